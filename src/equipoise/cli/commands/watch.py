"""``equipoise watch``: a run or comparison as it goes on."""

from __future__ import annotations

import contextlib
from pathlib import Path

from equipoise.cli.parser import Parser


def main(arguments: list[str]) -> int:
    parser = Parser("watch", "Follow a run or a comparison; Ctrl-C ends the watching, not the run.")
    parser.add_argument("folder", help="folder of a run or comparison, under way or finished")
    parser.add_argument(
        "--every", type=float, default=1.0, help="seconds between looks (default: 1)"
    )
    chosen = parser.parse(arguments)
    from equipoise.report.terminal import make_console
    from equipoise.report.terminal_live import watch

    with contextlib.suppress(KeyboardInterrupt):  # the run itself goes on
        watch(Path(chosen.folder), chosen.every, make_console())
    return 0
