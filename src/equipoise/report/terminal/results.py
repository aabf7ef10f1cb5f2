"""The result of a run or comparison as a table on the screen."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from equipoise.report.tables import Cell, Column
from equipoise.report.terminal.fit import fitted


def to_screen(
    title: str, table: dict[str, list[Cell]], shown: Sequence[Column], console: Console
) -> None:
    """All columns that are meant for the screen, however narrow it is."""
    head = ["method", *(column.title for column in shown if column.on_screen)]
    rows = [
        [method, *(str(cell) for cell in cells if cell.column.on_screen)]
        for method, cells in table.items()
    ]
    console.print(fitted(title, head, rows, console.width))
