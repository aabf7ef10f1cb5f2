"""Measurements of speed: each module is a script, `python -m benchmarks.speed.NAME`."""
