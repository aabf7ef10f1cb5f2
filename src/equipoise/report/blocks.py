"""Building blocks of an HTML page. `templates/_macros.html.j2` has one macro for each kind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

MISSING = "—"


class TableColumn(NamedTuple):
    """Title of a column, and which way is better."""

    title: str
    higher_is_better: bool = False
    """The first click on the title sorts the best to the top."""


class TableCell(NamedTuple):
    """One cell of a table."""

    text: str
    value: float | None = None
    """Number to sort by. None sorts by the text."""
    is_best: bool = False

    @property
    def sort_key(self) -> str | None:
        """Text to sort by instead of the cell's own; empty sorts last."""
        if self.value is not None and math.isfinite(self.value):
            return f"{self.value:.10g}"
        return "" if self.text == MISSING else None


@dataclass(frozen=True)
class TableBlock:
    """A table that the reader can sort by its columns."""

    kind: ClassVar[str] = "table"
    columns: Sequence[TableColumn]
    rows: Sequence[Sequence[TableCell]]


@dataclass(frozen=True)
class Tiles:
    """Numbers at a glance, as pairs of title and value."""

    kind: ClassVar[str] = "tiles"
    tiles: Sequence[tuple[str, str]]


class Plot(NamedTuple):
    """Place of a figure; the figure itself is in the page's data under the same id."""

    id: str
    title: str
    caption: str


@dataclass(frozen=True)
class Plots:
    """A grid of figures."""

    kind: ClassVar[str] = "plots"
    plots: Sequence[Plot]


@dataclass(frozen=True)
class Heading:
    """A heading within a section."""

    kind: ClassVar[str] = "heading"
    text: str


@dataclass(frozen=True)
class Paragraph:
    """A paragraph."""

    kind: ClassVar[str] = "paragraph"
    text: str
    is_faint: bool = False


@dataclass(frozen=True)
class Notes:
    """A list of sentences."""

    kind: ClassVar[str] = "notes"
    texts: Sequence[str]


@dataclass(frozen=True)
class Code:
    """Preformatted text."""

    kind: ClassVar[str] = "code"
    text: str


@dataclass(frozen=True)
class Details:
    """Blocks that the reader can unfold."""

    kind: ClassVar[str] = "details"
    summary: str
    blocks: Sequence[Block]
    is_open: bool = False


Block = TableBlock | Tiles | Plots | Heading | Paragraph | Notes | Code | Details


@dataclass(frozen=True)
class Section:
    """A part of the page that the navigation links to."""

    id: str
    title: str
    blocks: Sequence[Block]


def number_text(value: float | None) -> str:
    """Write a number with four digits, integers in full, and a dash if there is none."""
    if value is None or not math.isfinite(value):
        return MISSING
    return f"{value:.4g}" if value % 1 else f"{value:.0f}"
