"""A study: what its cells are, what is measured of each, and the page that is made of them."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import studies
from benchmarks.lab.cells import Cell, Results

Lines = list[str]
TEXTS = Path(studies.__path__[0])
FORMER_POLICY = "learned"
"""FedPolicy's default until it was replaced by a schedule."""


@dataclass(frozen=True)
class Study:
    """A declaration; ``studies/NAME.md`` is its text, in which ``{{table}}`` stands for a table of
    ``tables``.

    ``cells`` is given what is finished, so that cells may follow from others (tuned settings, say):
    it is asked again when all that it named are done. ``measure`` gets a cell and an empty folder
    and gives what is kept of it, as JSON.
    """

    name: str
    cells: Callable[[Results], Iterable[Cell]]
    measure: Callable[[Cell, Path], dict[str, Any]]
    tables: Mapping[str, Callable[[Results], Lines]]
    figures: Mapping[str, Callable[[Results, Path], None]] = field(default_factory=dict)

    def page(self, results: Results) -> str:
        """The text with its tables."""
        made = {**self.tables, "provenance": _provenance, "former_policy": former_policy}
        text = (TEXTS / f"{self.name}.md").read_text()
        return re.sub(
            r"\{\{(\w+)\}\}", lambda found: "\n".join(made[found[1]](results)).strip(), text
        )

    def write(self, results: Results) -> None:
        """The page and the figures, into the folder of the results."""
        for name, draw in self.figures.items():
            draw(results, results.folder / name)
        (results.folder / "README.md").write_text(self.page(results))


def names() -> list[str]:
    return sorted(text.stem for text in TEXTS.glob("*.md"))


def find(name: str) -> Study:
    study = importlib.import_module(f"benchmarks.studies.{name}").STUDY
    assert isinstance(study, Study)
    return study


def former_policy(results: Results) -> Lines:
    """Say how many cells of FedPolicy were made with a policy that is no longer there."""
    old = [r for r in results if r.config.get("policy") == FORMER_POLICY]
    if not old:
        return []
    return [
        f"Cells of FedPolicy with its former policy `{FORMER_POLICY}`, since removed: {len(old)}. "
        "They are a record; today's commands do not give them."
    ]


def _provenance(results: Results) -> Lines:
    """How many cells, of which commits, on which machines."""
    records = list(results)
    old = sum(record.commit is None for record in records)
    commits = sorted(
        {f"{r.commit[:10]}{' with changes' if r.dirty else ''}" for r in records if r.commit}
    )
    machines = sorted(
        {f"{r.machine['cores']} cores of {r.machine['cpu']}" for r in records if r.machine}
    )
    suffix = ".gz" if (results.folder / "cells.jsonl.gz").exists() else ""
    parts = [f"{len(records)} cells in `cells.jsonl{suffix}`"]
    parts += [f"{old} of them made before commits were kept"] if old else []
    parts += [f"commit {', '.join(commits)}"] if commits else []
    return ["; ".join([*parts, *machines]) + "."]
