"""Lazy imports of pyarrow: it is an optional dependency, and importing it takes 0.2 seconds."""

from __future__ import annotations

from typing import Any

from equipoise.data.sources import import_extra


def pyarrow() -> Any:
    """Import `pyarrow`; a missing package is one line that says what to install."""
    return import_extra("pyarrow", "reading tables")


def compute() -> Any:
    """Import `pyarrow.compute`."""
    return import_extra("pyarrow.compute", "reading tables")
