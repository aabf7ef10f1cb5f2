"""Tables of the page: sortable, with the best in bold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

Cell = tuple[str, float | None, bool]
"""Text, figure and whether it is the best of its column."""


def table(head: Sequence[tuple[str, bool]], rows: Sequence[Sequence[Cell]]) -> str:
    """Sortable. A head is a title and whether more is better; a cell its text, its figure and whether it is best."""
    top = "".join(
        f'<th data-first="{"descending" if higher else "ascending"}"><button>{escape(title)}</button></th>'
        for title, higher in head
    )
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(cell: Cell) -> str:
    words, value, best = cell
    known = value is not None and math.isfinite(value)
    kind = ' class="best"' if best else ""
    data = f' data-value="{value:.10g}"' if known else (' data-value=""' if words == "—" else "")
    return f"<td{kind}{data}>{escape(words)}</td>"


def figure(value: float | None) -> str:
    """A number, or a dash where there is none."""
    return (
        "—"
        if value is None or not math.isfinite(value)
        else f"{value:.4g}"
        if value % 1
        else f"{value:.0f}"
    )
