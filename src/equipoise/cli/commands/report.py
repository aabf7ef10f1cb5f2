"""``equipoise report``: one page of HTML for a run or for several."""

from __future__ import annotations

from pathlib import Path

from equipoise.cli.parser import Parser, output_file
from equipoise.utils.errors import UsageError


def main(arguments: list[str]) -> int:
    parser = Parser(
        "report", "One page of HTML for a run or for several; it opens without a network."
    )
    parser.add_argument(
        "folders", nargs="+", metavar="DIR", help="folders of runs or comparisons, finished or not"
    )
    parser.add_argument(
        "--out",
        help="the page (default: report.html in the folder; for several folders report-NAMES.html beside the first)",
    )
    chosen = parser.parse(arguments)
    folders = [Path(folder) for folder in chosen.folders]
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"'{folder}' is not a folder")
    from equipoise.report import html

    out = output_file(chosen.out) if chosen.out else html.default_report_path(folders)
    print(html.write_report(folders, out))
    return 0
