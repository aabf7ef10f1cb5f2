"""Trackers that are told of every round."""
