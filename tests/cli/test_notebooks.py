"""The notebooks run from their first cell to the last."""

import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "examples"
NEEDS = {
    "tour": ("pandas", "sklearn", "narwhals", "plotly"),
    "tables": ("pandas", "narwhals"),
    "research": ("pandas",),
    "rl": ("gymnasium", "numba", "pandas"),
}
"""Modules of the extras that each notebook names."""


def test_all_notebooks_are_run() -> None:
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == set(NEEDS)


LONG = ("tables", "rl")
"""Notebooks of more than a few seconds."""
CASES = [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in NEEDS]


@pytest.mark.parametrize("name", CASES)
def test_a_notebook_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in NEEDS[name]:
        pytest.importorskip(module, reason="an extra is not installed")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": name}
    for cell in json.loads((NOTEBOOKS / f"{name}.ipynb").read_text())["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
