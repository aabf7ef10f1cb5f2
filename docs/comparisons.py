"""Rows of the results on the pages of methods: ``python docs/comparisons.py`` writes them.

Every figure is copied from a table of ``benchmarks/results``. A test compares every page with what
this would write.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple

from equipoise.methods import all_methods

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "benchmarks" / "results"
STUDIES = ("synthetic", "table3", "tables", "trees", "fedpolicy", "autopilot", "deep_rl", "q")
"""Studies that compare methods, in the order in which a page shows them."""
BEGIN = "<!-- comparison: written by docs/comparisons.py -->"
END = "<!-- end of comparison -->"
BETWEEN = re.compile(f"{re.escape(BEGIN)}\n\n(.*?)\n{re.escape(END)}", re.DOTALL)
COLUMNS = 3
"""Scores of a row that a page shows."""
FIGURE = re.compile(r"(- / )?[-+]?\d.*")
COUNTS = {"seeds", "splits", "families"}
"""Columns that say how often something was run."""


class Row(NamedTuple):
    """A row of a results page that is about one method."""

    study: str
    title: str
    """Title of the results page."""
    table: str
    """Heading above the table."""
    figures: dict[str, str]
    """The first scores of the row, by the heading of their column."""


def pages() -> dict[Path, str]:
    """Return every method's page with the text between its markers."""
    rows = all_rows()
    return {DOCS / "methods" / f"{name}.md": text(rows.get(name, [])) for name in all_methods()}


def all_rows() -> dict[str, list[Row]]:
    """Return the first row of each method in each study, by method."""
    rows: dict[str, list[Row]] = {}
    for study in STUDIES:
        seen: set[str] = set()
        for method, row in _rows_of(study):
            if method in seen:
                continue
            seen.add(method)
            rows.setdefault(method, []).append(row)
    return rows


def text(rows: list[Row]) -> str:
    """Return a table with one line per study, or a sentence where no study has the method."""
    if not rows:
        return "No committed table has a row for it.\n"
    lines = ["| study | table | scores |", "|---|---|---|"]
    for row in rows:
        link = f"[{row.title}](../../benchmarks/results/{row.study}/README.md)"
        scores = "; ".join(f"{name}: {figure}" for name, figure in row.figures.items())
        lines.append(f"| {link} | {row.table} | {scores} |")
    return "\n".join([*lines, ""])


def shown(page: Path) -> list[str]:
    """Return what stands between the markers of a page."""
    return BETWEEN.findall(page.read_text())


def _rows_of(study: str) -> list[tuple[str, Row]]:
    """Return the rows of a results page whose first cell is the name of a method."""
    methods = set(all_methods())
    title = ""
    heading = ""
    columns: list[str] = []
    rows: list[tuple[str, Row]] = []
    for line in (RESULTS / study / "README.md").read_text().splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
            title = title or heading
        if not line.startswith("|"):
            columns = []
            continue
        cells = [cell.strip(" `*") for cell in line.strip().strip("|").split("|")]
        columns = columns or cells
        if cells[0] not in methods:
            continue
        scores = {
            name: cell
            for name, cell in zip(columns[1:], cells[1:], strict=False)
            if name and name not in COUNTS and FIGURE.fullmatch(cell)
        }
        figures = dict(list(scores.items())[:COLUMNS])
        if figures:
            rows.append((cells[0], Row(study, title, heading, figures)))
    return rows


def main() -> int:
    """Write all pages; return an exit code."""
    for page, comparison in pages().items():
        old = page.read_text()
        if len(BETWEEN.findall(old)) != 1:
            print(f"{page}: needs the lines {BEGIN} and {END} once", file=sys.stderr)
            return 1
        new = f"{BEGIN}\n\n{comparison}\n{END}"
        page.write_text(BETWEEN.sub(lambda _, new=new: new, old))
    return 0


if __name__ == "__main__":
    sys.exit(main())
