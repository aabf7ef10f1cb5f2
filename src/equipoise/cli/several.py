"""What commands for several methods share: whose option is which."""

from __future__ import annotations

import sys
from typing import Any

from equipoise.cli.arguments import add_options, early_options, given_options, own_options
from equipoise.cli.parser import Parser
from equipoise.experiment.compare import suitable
from equipoise.methods import all_methods, find_method
from equipoise.settings.option_registry import options
from equipoise.tasks import find_task
from equipoise.utils.errors import UsageError


def several(
    arguments: list[str], parser: Parser
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """What stood on the command line of a command for several methods, and each method's own options of it."""
    parser.add_argument(
        "--methods",
        default="fedavg,local,finetune",
        help="names with commas between, or 'all' that suit",
    )
    asking = ("-h", "--help", "--help-all")
    text = parser.parse_known_args([a for a in arguments if a not in asking])[0].methods
    names = list(all_methods()) if text == "all" else [name for name in text.split(",") if name]
    if not names or len(set(names)) < len(names):
        raise UsageError("--methods must name each method once, separated by commas, or be 'all'")
    early = early_options(arguments)
    each = {name: options(find_method(name), find_task(early["task"])) for name in names}
    known = {
        option: item
        for items in each.values()
        for option, item in items.items()
        if option != "method"
    }
    add_options(parser, known, {**early, "method": "' and '".join(names)}, arguments)
    chosen = vars(parser.parse(arguments))
    del early["method"]
    cells = {
        name: given_options(own_options(early, items), own_options(chosen, items), items)
        for name, items in each.items()
    }
    if text == "all":
        cells, refused = suitable(cells)
        for reason in refused.values():
            print(f"left out: {reason}", file=sys.stderr)
    return chosen, cells
