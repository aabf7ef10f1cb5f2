"""The command line. Importing this package loads neither PyTorch nor NumPy."""

from equipoise.cli.main import COMMANDS, main

__all__ = ["COMMANDS", "main"]
