"""``equipoise list``: the methods by family, the tasks, the models."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from equipoise.cli.parser import Parser
from equipoise.methods.families import by_family
from equipoise.models import MODELS
from equipoise.tasks import all_tasks


def main(arguments: list[str]) -> int:
    parser = Parser("list", "List what there is, one line each.")
    parser.add_argument("what", choices=["methods", "tasks", "models"])
    what = parser.parse(arguments).what
    if what == "methods":
        for family, methods in by_family().items():
            print(f"\n{family.title}: {family.advice}")
            _show(
                {name: sys.modules[method.__module__].__doc__ for name, method in methods.items()}
            )
        print(
            "\nWhich one to use: docs/which-method.md; options of one: equipoise run --method NAME --help"
        )
    elif what == "tasks":
        _show({name: spec.help for name, spec in all_tasks().items()})
    else:
        _show({name: build.__doc__ for name, build in MODELS.items()})
    return 0


def _show(entries: Mapping[str, str | None]) -> None:
    width = max(map(len, entries))
    for name, text in entries.items():
        print(f"  {name:<{width}}  {(text or '').strip().splitlines()[0]}")
