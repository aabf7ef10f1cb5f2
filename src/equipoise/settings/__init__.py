"""Options of a run: typed configs, and their names on the command line and in files."""
