"""Errors that are meant for people."""


class UsageError(Exception):
    """Bad input or usage: one sentence that says what is wrong, where, and what to do. Exit code 2."""
