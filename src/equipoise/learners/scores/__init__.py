"""What predictions are worth, one file per kind of target; every score is computed for many models at once."""
