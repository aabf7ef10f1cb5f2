"""``python -m benchmarks STUDY``: run what is missing of a study and write its page.

``python -m benchmarks papers`` writes the pages of the papers, ``docs/papers``, from all studies.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

from benchmarks import papers
from benchmarks.lab import study as studies
from benchmarks.lab.cells import Results
from benchmarks.lab.provenance import RESULTS
from benchmarks.lab.runner import execute, missing
from equipoise.simulation.executor_selection import available_cores


def main(arguments: list[str] | None = None) -> None:
    if (sys.argv[1:] if arguments is None else arguments) == ["papers"]:
        papers.write()
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("study", choices=studies.names(), help="a file of benchmarks/studies")
    parser.add_argument(
        "--only",
        default="",
        metavar="PATTERN",
        help="cells whose name this regular expression finds",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=available_cores(),
        help="cells at the same time (default: %(default)s, the cores)",
    )
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="start no cell after so many minutes"
    )
    parser.add_argument("--list", action="store_true", help="only list the cells that are missing")
    parser.add_argument(
        "--page", action="store_true", help="only write the page and the figures anew"
    )
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="keep the run folders of the cells there"
    )
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="where results are (default: %(default)s)"
    )
    given = parser.parse_args(arguments)
    study = studies.find(given.study)
    results = Results(given.results / study.name)
    if given.list:
        waiting = missing(study, results, given.only)
        print("\n".join(cell.name for cell in waiting))
        print(f"{len(results.records)} cells are done, {len(waiting)} missing", file=sys.stderr)
        return
    whole = given.page or execute(study, results, given.only, given.jobs, given.minutes, given.keep)
    if given.results != RESULTS:
        for line in differences(results, Results(RESULTS / study.name)):
            print(line)
    if results.records and (given.results == RESULTS or not missing(study, results, "")):
        study.write(results)
    sys.exit(0 if whole else 1)


def differences(results: Results, committed: Results) -> list[str]:
    """Say of each cell that was computed anew whether its figures are the committed ones.

    Args:
        results: Cells of another folder.
        committed: The committed cells of the same study.

    Returns:
        One line per cell that both have; numbers that differ are named, committed ones first.
        Figures that only the committed cell has do not count.
    """
    lines = []
    for record in results:
        if record.name not in committed:
            continue
        other = committed.records[record.name]
        former = {key: other.result.get(key) for key in record.result}
        if record.result == former:
            lines.append(f"{record.name}: the committed figures")
            continue
        changed = [
            f"{key} {former[key]} -> {value}"
            for key, value in record.result.items()
            if isinstance(value, int | float) and former[key] != value
        ]
        line = f"{record.name}: differs ({', '.join(changed) or 'in its curves'})"
        cpu = (other.machine or {}).get("cpu")
        if cpu and cpu != (record.machine or {}).get("cpu"):
            line += f"; the committed cell was computed on {cpu}, whose rounding may differ"
        lines.append(line)
    return lines
