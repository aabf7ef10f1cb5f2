"""Rounds and runs: executors, local SGD, evaluation, checkpoints."""
