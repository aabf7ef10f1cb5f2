"""The command line, ``equipoise COMMAND``; ``equipoise --help`` names the commands."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0 when it is done, 1 if it failed or was interrupted, 2 for bad usage."""
    from equipoise.cli.commands import main as run_command

    return run_command(arguments)
