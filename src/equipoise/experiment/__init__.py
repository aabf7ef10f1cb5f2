"""Run experiments: train, resume, compare, tune, score, export and predict."""
