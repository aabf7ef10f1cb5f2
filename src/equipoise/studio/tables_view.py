"""What the data page shows of raw tables: a preview, guesses of columns, small histograms."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from equipoise.data.tabular.columns import Column, format_number
from equipoise.data.tabular.io import read_table, split_by_client
from equipoise.data.tabular.table import Table
from equipoise.studio.paths import TABLE_SUFFIXES

PREVIEW_ROWS = 5
NUM_BINS = 12
MAX_SITES = 8  # with a histogram of their own
MAX_SITE_NAMES = 200  # distinct values of a column that may name the sites
SITE_WORDS = ("site", "hospital", "clinic", "center", "centre", "client", "institution", "region")


@dataclass(frozen=True)
class Preview:
    """The first rows of a table.

    Attributes:
        columns: Names of the columns.
        rows: Texts of the first rows.
        num_rows: Number of all rows.
        site_columns: Columns that may name the sites, the likeliest first; empty for a folder.
        is_folder: Whether each site has a file of its own.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    num_rows: int
    site_columns: tuple[str, ...]
    is_folder: bool


@dataclass(frozen=True)
class SiteHistogram:
    """The distribution of one column at one site.

    Attributes:
        site: Name of the site.
        bars: Heights 0 to 1.
        caption: What the bars are, for readers and screen readers.
    """

    site: str
    bars: tuple[float, ...]
    caption: str


def preview(path: Path) -> Preview:
    """Read the first rows of a table, or of the first file of a folder.

    Args:
        path: A table, or a folder with one table per site.

    Returns:
        Columns and first rows.

    Raises:
        UsageError: If the file cannot be read.
    """
    file = _first_table(path) if path.is_dir() else path
    table = read_table(file)
    shown = {name: _texts(column, PREVIEW_ROWS) for name, column in table.columns.items()}
    rows = tuple(zip(*shown.values(), strict=True))
    return Preview(
        columns=tuple(shown),
        rows=rows,
        num_rows=len(table),
        site_columns=() if path.is_dir() else _site_columns(table),
        is_folder=path.is_dir(),
    )


def histograms(path: Path, client_column: str) -> dict[str, tuple[SiteHistogram, ...]]:
    """Compute small histograms of each column at the largest sites.

    Args:
        path: A table, or a folder with one table per site.
        client_column: Column that names the site, where all are in one file.

    Returns:
        Histograms by column; the bins of a column are the same at all sites.

    Raises:
        UsageError: If a file cannot be read.
    """
    tables = _site_tables(path, client_column)
    largest = sorted(tables, key=lambda site: -len(tables[site]))[:MAX_SITES]
    names = list(tables[largest[0]].columns) if largest else []
    by_column = {}
    for name in names:
        columns = {
            site: tables[site].columns[name] for site in largest if name in tables[site].columns
        }
        by_column[name] = _column_histograms(columns)
    return by_column


def _site_tables(path: Path, client_column: str) -> dict[str, Table]:
    """Read the rows of each site."""
    if path.is_dir():
        files = [file for file in sorted(path.iterdir()) if file.suffix.lower() in TABLE_SUFFIXES]
        return {file.stem: read_table(file) for file in files}
    tables, _ = split_by_client(read_table(path, client_column), client_column, f"'{path.name}'")
    return dict(tables.clients)


def _first_table(folder: Path) -> Path:
    """Return the first table of a folder, or the folder itself, whose error says what is wrong."""
    files = [file for file in sorted(folder.iterdir()) if file.suffix.lower() in TABLE_SUFFIXES]
    return files[0] if files else folder


def _texts(column: Column, count: int) -> list[str]:
    """Return the first cells as texts."""
    shown = []
    for number, code in zip(column.numbers[:count], column.codes[:count], strict=True):
        if code >= 0:
            shown.append(column.texts[int(code)])
        else:
            shown.append("" if np.isnan(number) else format_number(float(number)))
    return shown


def _site_columns(table: Table) -> tuple[str, ...]:
    """Return columns with few repeated values; those with a telling name first."""
    likely: list[tuple[bool, bool, int, str]] = []
    for name, column in table.columns.items():
        _, values = column.labels
        if 2 <= len(values) <= min(MAX_SITE_NAMES, max(2, len(table) // 4)):
            is_telling = any(word in name.lower() for word in SITE_WORDS)
            is_text = bool((column.codes >= 0).any())
            likely.append((not is_telling, not is_text, len(likely), name))
    return tuple(name for *_, name in sorted(likely))


def _column_histograms(columns: dict[str, Column]) -> tuple[SiteHistogram, ...]:
    """Compute the histogram of one column at each site: of numbers by bins, else by category."""
    numbers = np.concatenate([column.numbers for column in columns.values()])
    numbers = numbers[np.isfinite(numbers)]
    has_texts = any(bool((column.codes >= 0).any()) for column in columns.values())
    if has_texts or not len(numbers):
        return tuple(_category_bars(site, column) for site, column in columns.items())
    low, high = (float(value) for value in np.quantile(numbers, [0.01, 0.99]))
    edges = np.linspace(low, high if high > low else low + 1, NUM_BINS + 1)
    caption = f"from {format_number(low)} to {format_number(high)}"
    return tuple(
        SiteHistogram(
            site, _heights(np.histogram(np.clip(column.numbers, low, high), edges)[0]), caption
        )
        for site, column in columns.items()
    )


def _category_bars(site: str, column: Column) -> SiteHistogram:
    """Count the most frequent categories of a site."""
    codes, values = column.labels
    counts = np.bincount(codes[codes >= 0], minlength=len(values))
    order = np.argsort(-counts, kind="stable")[:NUM_BINS]
    order = order[counts[order] > 0]
    caption = "most frequent: " + ", ".join(values[place] for place in order[:3])
    return SiteHistogram(site, _heights(counts[order]), caption)


def _heights(counts: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> tuple[float, ...]:
    """Scale counts to the largest."""
    largest = max(1, int(counts.max())) if len(counts) else 1
    return tuple(round(float(count) / largest, 3) for count in counts)
