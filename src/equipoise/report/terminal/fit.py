"""Tables that fit the terminal: columns that have no room beside the others continue in a table below."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, Group
from rich.table import Table

GAP = 3  # characters between the contents of two columns: their padding and the line
LEAST = 7  # characters of a column of figures


def fitted(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Group:
    """The first column names the row and is repeated; all others are shown, in as many tables as it takes."""
    columns = list(zip(head, *rows, strict=True))
    room = width - max(map(cell_len, columns[0])) - GAP - 1
    whole = [max(LEAST, *map(cell_len, column)) for column in columns]
    folded = [max(LEAST, *map(_longest_word, column)) for column in columns]
    tables = []
    for number, part in enumerate(_parts(folded[1:], room)):
        fits = sum(whole[i] + GAP for i in part) <= room
        table = Table(title=title if number == 0 else None, title_justify="left")
        table.add_column(head[0], no_wrap=True)
        for i in part:
            table.add_column(head[i], justify="right", width=(whole if fits else folded)[i])
        for row in rows:
            table.add_row(row[0], *(row[i] for i in part))
        tables.append(table)
    return Group(*tables)


def output() -> Console:
    """Standard output; wide enough for a table when it is not a terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=140)


def _parts(widths: Sequence[int], room: int) -> Iterator[list[int]]:
    """Numbers of columns, from 1 on, that have room beside each other."""
    part: list[int] = []
    left = room
    for number, width in enumerate(widths, 1):
        if part and width + GAP > left:
            yield part
            part, left = [], room
        part.append(number)
        left -= width + GAP
    yield part


def _longest_word(text: str) -> int:
    """Titles may be broken between words; a figure with its spread stays on one line."""
    return cell_len(text) if "±" in text else max(map(cell_len, text.split()), default=0)
