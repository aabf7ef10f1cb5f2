"""What is shown in a terminal: progress, a run as it goes on, a task's data."""
