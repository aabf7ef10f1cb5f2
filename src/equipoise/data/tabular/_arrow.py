"""Lazy imports of pyarrow: it is an optional dependency, and importing it takes 0.2 seconds."""

from __future__ import annotations

from typing import Any

from equipoise.data.sources import import_extra


class LazyModule:
    """A module of pyarrow that is imported when it is first used.

    A missing package is an error of one line that says what to install.
    """

    def __init__(self, name: str) -> None:
        """Remember the name of the module."""
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_extra(self._name, "reading tables"), attribute)


pa = LazyModule("pyarrow")
pc = LazyModule("pyarrow.compute")
arrow_csv = LazyModule("pyarrow.csv")
arrow_parquet = LazyModule("pyarrow.parquet")

ArrowArray = Any
"""A `pyarrow.Array` or `pyarrow.ChunkedArray`; pyarrow has no types."""
