"""Local training: SGD of one client or many, objectives and metrics."""
