"""A run's options: typed configs, their names on the command line and in files."""
