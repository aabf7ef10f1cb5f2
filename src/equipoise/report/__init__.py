"""What people look at: progress, tables."""
