"""Results for people: HTML reports, tables, terminal output and experiment trackers."""
