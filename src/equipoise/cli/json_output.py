"""Output for programs: with ``--json`` a command prints one JSON object and nothing else.

The shapes are in docs/for-programs.md; tests/cli/test_json.py compares them with what is printed.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from equipoise.cli.parser import Parser
from equipoise.records import codec


class Output(NamedTuple):
    """What a command prints.

    Attributes:
        quiet: Nothing but errors.
        json: The result as one JSON object; notes go to standard error.
    """

    quiet: bool
    json: bool

    @property
    def for_people(self) -> bool:
        """Whether progress and tables are shown."""
        return not (self.quiet or self.json)


def add_json(parser: Parser) -> None:
    """Add ``--json``."""
    parser.add_argument(
        "--json",
        action="store_true",
        help="print the result as one JSON object and nothing else (docs/for-programs.md)",
    )


def print_json(**entries: object) -> None:
    """Print the result of a command as one JSON object.

    Args:
        entries: Entries of the object by name: JSON types, records, and trees of both. NaN and
            infinity become null; a field of a record that has its default is left out.
    """
    print(codec.dumps(entries, indent=1))


def existing_file(path: Path) -> str | None:
    """Return a path as an entry of a result; None if there is no such file."""
    return str(path) if path.is_file() else None
