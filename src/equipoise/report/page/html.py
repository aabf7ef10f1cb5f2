"""One file of HTML for a run, a comparison or several of them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from equipoise.records.run_dir import Folder
from equipoise.report.folders import gather
from equipoise.report.page.repeat import command as to_repeat
from equipoise.report.page.sections import draw
from equipoise.report.reading import Group, readable
from equipoise.utils import io as checkpoint
from equipoise.utils.errors import UsageError

LONGEST = 100  # characters of the names of several folders in the name of their page


def write(paths: Sequence[Path], out: Path) -> Path:
    """Draw these runs into one file."""
    with readable(paths[0]):
        groups = gather(paths)
        page = draw(groups, _command(paths, groups))
    checkpoint.write_text(out, page)
    return out


def offer(path: Path) -> str:
    """The report of what has just ended, in its folder; gives one line about it. A picture never fails a run."""
    out = Folder(path).report
    try:
        if not _newer(out, Folder(path).summary, path / "compare.json"):
            write([path], out)
        return f"report: {out}"
    except UsageError as error:
        return f"no report: {error}"
    except Exception as error:
        return f"no report: drawing it failed ({type(error).__name__}: {error}); try again: equipoise report {path}"


def _newer(page: Path, *results: Path) -> bool:
    """Whether it shows these results already: resuming what is finished changes nothing."""
    made = page.stat().st_mtime_ns if page.exists() else 0
    return made > max((file.stat().st_mtime_ns for file in results if file.exists()), default=made)


def place(paths: Sequence[Path]) -> Path:
    """Where the page goes if nobody says: of one folder into it, of several ones beside the first."""
    if len(paths) == 1:
        return Folder(paths[0]).report
    names = "-".join(path.resolve().name for path in paths)
    return paths[0].resolve().parent / f"report-{names[:LONGEST]}.html"


def _command(paths: Sequence[Path], groups: Sequence[Group]) -> str:
    """The command that was typed for a comparison, or one that says the same for a run."""
    compared = paths[0] / "compare.json"
    if len(paths) == 1 and compared.is_file():
        command: Any = json.loads(compared.read_text()).get("command", [])
        return shlex.join(map(str, command))
    return "\n".join(to_repeat(run.config) for group in groups for run in group.runs)
