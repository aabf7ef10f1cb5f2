"""``equipoise data describe``: a task's data, as a run would share them out."""

from __future__ import annotations

import json

from equipoise.cli.arguments import add_options, early_options, given_options
from equipoise.cli.parser import Parser, add_config
from equipoise.methods import find_method
from equipoise.report.terminal.describe import describe, in_words
from equipoise.runs.running import build_task
from equipoise.settings.config import Settings
from equipoise.settings.names import options
from equipoise.tasks import find_task


def main(arguments: list[str]) -> int:
    early = early_options(arguments)
    known = options(find_method(early["method"]), find_task(early["task"]))
    parser = Parser("data", "Describe the data of a task, as a run would share them out.")
    parser.add_argument("what", choices=["describe"], help="rows of everybody, and who holds which classes")
    add_config(parser)
    parser.add_argument("--json", action="store_true", help="as JSON")
    add_options(parser, known, early, arguments)
    chosen = vars(parser.parse(arguments))
    found = describe(build_task(Settings.of(given_options(early, chosen, known))))
    print(json.dumps(found) if chosen["json"] else in_words(found))
    return 0
