"""Write the tables of options into the documentation, from the code: ``python docs/options.py``.

They stand between markers. A test compares every page with what this would write.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from equipoise.clock.config import ClockConfig
from equipoise.config.schema import TYPE_NAMES, Schedule
from equipoise.core import TrainingConfig
from equipoise.methods import all_methods
from equipoise.privacy.config import PrivacyConfig
from equipoise.settings.option_registry import Option, of_config
from equipoise.settings.resources import ResourceConfig
from equipoise.settings.run_config import RunConfig

DOCS = Path(__file__).parent
BEGIN, END = "<!-- options: written by docs/options.py -->", "<!-- end of options -->"
BETWEEN = re.compile(f"{re.escape(BEGIN)}\n\n(.*?)\n{re.escape(END)}", re.DOTALL)


def pages() -> dict[Path, list[str]]:
    """Every page with tables of options, and what these are, in their order."""
    methods = {
        DOCS / "methods" / f"{name}.md": [table(of_config(method, "method"))]
        for name, method in all_methods().items()
    }
    configs = ((RunConfig, "run"), (ClockConfig, "timing"), (TrainingConfig, "training"))
    runs = [table(of_config(config, owner)) for config, owner in configs]
    return {
        **methods,
        DOCS / "reference" / "options.md": [
            *runs,
            table(of_config(PrivacyConfig, "privacy")),
            table(of_config(ResourceConfig, "run")),
        ],
    }


def table(options: list[Option]) -> str:
    """One row for each option: its name, default, what it takes and what it does."""
    if not options:
        return "This method has no options of its own.\n"
    rows = [
        f"| `{item.name}` | {_default(item)} | {_allowed(item)} | {_escaped(item.rule.help)} |"
        for item in options
    ]
    return "\n".join(["| option | default | allowed | meaning |", "|---|---|---|---|", *rows, ""])


def shown(page: Path) -> list[str]:
    """The tables that stand on a page."""
    return BETWEEN.findall(page.read_text())


def rewritten(text: str, tables: list[str]) -> str:
    """A page's text with these tables between its markers."""
    found = iter(tables)
    return BETWEEN.sub(lambda _: f"{BEGIN}\n\n{next(found)}\n{END}", text)


def _default(item: Option) -> str:
    value = str(item.default) if isinstance(item.default, Schedule | str) else repr(item.default)
    return _escaped(value.lower() if isinstance(item.default, bool) else value) or "empty"


def _allowed(item: Option) -> str:
    words = item.rule.bounds_text or TYPE_NAMES.get(item.kind.type, "")
    return _escaped(words) + (", or a schedule" if item.kind.allows_schedule else "")


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> int:
    """Write the tables of all pages.

    Returns:
        The exit code: 1 if a page lacks markers.
    """
    for page, tables in pages().items():
        text = page.read_text()
        if len(BETWEEN.findall(text)) != len(tables):
            print(
                f"{page}: needs {len(tables)} pairs of the lines {BEGIN} and {END}", file=sys.stderr
            )
            return 1
        page.write_text(rewritten(text, tables))
    return 0


if __name__ == "__main__":
    sys.exit(main())
