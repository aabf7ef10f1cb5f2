"""Running, resuming, comparing, tuning, certifying and exporting: a run is a folder."""
