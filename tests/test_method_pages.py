"""Each method's page exists and shows its options with the defaults that the code has."""

from dataclasses import fields
from pathlib import Path

import pytest

from equipoise.methods import all_methods

PAGES = Path(__file__).parents[1] / "docs" / "methods"
OTHERS = ("dapfl", "equilibrium")  # their options are not all numbers
BASELINES = {name: m for name, m in all_methods().items() if m.__module__.count(".") == 2 and name not in OTHERS}


@pytest.mark.parametrize("name", BASELINES)
def test_the_page_shows_every_option_with_its_default(name: str) -> None:
    lines = (PAGES / f"{name}.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:3]] for line in lines if line.startswith("| `")]
    shown = {option.strip("`"): float(default) if default != "empty" else "" for option, default in rows}
    assert shown == {field.name: field.default for field in fields(BASELINES[name])}
