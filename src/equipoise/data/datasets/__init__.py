"""Loaders and generators of published data sets."""
