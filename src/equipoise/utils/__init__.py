"""Shared helpers: files, trees of tensors, random numbers, errors."""
