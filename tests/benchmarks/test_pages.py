"""Every committed page of results is what its data say, byte for byte."""

import json
import re
from pathlib import Path

import pytest

from benchmarks.lab import study as studies
from benchmarks.lab.cells import Results
from benchmarks.lab.provenance import RESULTS, ROOT

COMMITTED = sorted(page.parent.name for page in RESULTS.glob("*/README.md"))


def test_every_page_has_a_study_and_every_study_but_the_example_a_page() -> None:
    assert sorted([*COMMITTED, "example"]) == studies.names()


@pytest.mark.parametrize("name", COMMITTED)
def test_page_is_made_of_its_cells(name: str) -> None:
    results = Results(RESULTS / name)
    assert results.records
    assert studies.find(name).page(results) == (RESULTS / name / "README.md").read_text()


@pytest.mark.parametrize("name", studies.names())
def test_every_table_is_on_the_page(name: str) -> None:
    named = re.findall(r"\{\{(\w+)\}\}", (studies.TEXTS / f"{name}.md").read_text())
    common = {"provenance"} | ({"former_policy"} & set(named))
    assert sorted(named) == sorted([*studies.find(name).tables, *common])


@pytest.mark.parametrize("name", COMMITTED)
def test_cells_are_declared_and_sorted(name: str) -> None:
    results, study = Results(RESULTS / name), studies.find(name)
    names = [record.name for record in results]
    assert names == sorted(set(names))
    declared = {cell.name: cell for cell in study.cells(results)}
    assert not set(names) - set(declared)
    for record in results:
        assert json.loads(record.to_json())["name"] == record.name
        if record.name in declared:
            assert dict(declared[record.name].axes) == record.axes


@pytest.mark.parametrize("name", COMMITTED)
def test_figures_are_drawn_from_the_cells(name: str, tmp_path: Path) -> None:
    """With the pinned matplotlib alone: another one may write the same lines in other words."""
    matplotlib = pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    if (
        f"matplotlib=={matplotlib.__version__}"
        not in (ROOT / "constraints.txt").read_text().split()
    ):
        pytest.skip("matplotlib is not the version of constraints.txt")
    study = studies.find(name)
    for file, draw in study.figures.items():
        draw(Results(RESULTS / name), tmp_path / file)
        assert (tmp_path / file).read_bytes() == (RESULTS / name / file).read_bytes(), file
    shown = re.findall(r"\]\(([\w-]+\.svg)\)", (RESULTS / name / "README.md").read_text())
    assert sorted(shown) == sorted(study.figures)
