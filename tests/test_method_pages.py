"""The documentation shows every option of every method and run, as the code declares them."""

from dataclasses import fields
from pathlib import Path

import pytest

from docs import comparisons, options
from equipoise.methods import all_methods

METHODS = all_methods()


@pytest.mark.parametrize("page", options.pages(), ids=lambda page: page.stem)
def test_the_page_shows_what_the_code_declares(page: Path) -> None:
    assert options.shown(page) == options.pages()[page], "run: python docs/options.py"


@pytest.mark.parametrize("name", METHODS)
def test_the_page_of_a_method_has_a_row_for_every_option(name: str) -> None:
    """By the text of the page, whoever wrote it."""
    lines = (options.DOCS / "methods" / f"{name}.md").read_text().splitlines()
    rows = [
        [cell.strip() for cell in line.split(" | ")[:2]] for line in lines if line.startswith("| `")
    ]
    found = {cells[0].strip("| `"): cells[1] for cells in rows}
    for field in fields(METHODS[name]):
        default = (
            str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
        )
        assert found[field.name] == (default or "empty")


def test_no_page_is_about_a_method_that_is_not_there() -> None:
    assert sorted(page.stem for page in (options.DOCS / "methods").glob("*.md")) == sorted(METHODS)


def test_a_changed_default_is_seen() -> None:
    page = options.DOCS / "methods" / "fedprox.md"
    edited = page.read_text().replace("| `mu` | 0.01 |", "| `mu` | 0.02 |")
    assert edited != page.read_text()
    assert options.rewritten(edited, options.pages()[page]) == page.read_text()


@pytest.mark.parametrize("page", comparisons.pages(), ids=lambda page: page.stem)
def test_the_page_shows_the_rows_of_the_results(page: Path) -> None:
    expected = [comparisons.pages()[page]]
    assert comparisons.shown(page) == expected, "run: python docs/comparisons.py"


def test_figures_are_those_of_the_results_page() -> None:
    """FedAvg's first row is the one of Synthetic, read here with plain string operations."""
    results = comparisons.RESULTS / "synthetic" / "README.md"
    row = next(line for line in results.read_text().splitlines() if line.startswith("| fedavg |"))
    score = row.split("|")[2].strip()
    page = (options.DOCS / "methods" / "fedavg.md").read_text()
    assert f"global %: {score};" in page


@pytest.mark.parametrize("name", METHODS)
def test_a_page_says_when_to_use_the_method_and_has_the_usual_sections(name: str) -> None:
    text = (options.DOCS / "methods" / f"{name}.md").read_text()
    for heading in ("## Equations", "## Deviations from the paper", "## Reference"):
        assert f"\n{heading}\n" in text, heading
    wanted = ["## When to use it", "## Options", "## How it compares"]
    places = [text.find(f"\n{heading}\n") for heading in wanted]
    assert -1 not in places, dict(zip(wanted, places, strict=True))
    assert places == sorted(places)
    assert "- **Yes**: " in text
    assert "- **No**: " in text
