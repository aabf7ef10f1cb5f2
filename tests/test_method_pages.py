"""The documentation shows every option of every method and run, as the code declares them."""

from dataclasses import fields
from pathlib import Path

import pytest

from docs import options
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
