"""Options of typed configs: each has its default and its sentence in one place."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def option(default: Any, help: str) -> Any:
    """A field of a typed config: its default, and the sentence that the command line shows for it."""
    return field(default=default, metadata={"help": help})
