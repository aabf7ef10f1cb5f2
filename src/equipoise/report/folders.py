"""Which runs are in a folder: a run itself, those of a comparison, or any below; grouped by seed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from equipoise.records.run_dir import Folder
from equipoise.report.reading import Group, Run, read
from equipoise.utils.errors import UsageError

MOST_RUNS = 300  # of one page


def gather(paths: Sequence[Path]) -> list[Group]:
    """The runs under these folders (a run, a comparison, or folders of them), as groups with labels that differ."""
    found: list[Path] = []
    for path in paths:
        found += [folder for folder in run_folders(path) if folder not in found]
    if len(found) > MOST_RUNS:
        raise UsageError(
            f"{len(found)} runs are too many for one page (at most {MOST_RUNS}): name fewer folders"
        )
    runs = [run for run in map(read, found) if run.records]
    if not runs:
        raise UsageError(f"no round has ended yet in '{paths[0]}': try again later")
    if len({run.headline for run in runs}) > 1:
        raise UsageError("these runs have different kinds of scores: report them apart")
    by_config: dict[str, list[Run]] = {}
    for run in runs:
        key = json.dumps({k: v for k, v in run.config.items() if k != "seed"}, sort_keys=True)
        by_config.setdefault(key, []).append(run)
    groups = list(by_config.values())
    return [
        Group(_label(runs, groups), sorted(runs, key=lambda run: run.config["seed"]))
        for runs in groups
    ]


def run_folders(path: Path) -> list[Path]:
    """A run folder itself, or those in it; those of a comparison in the order in which its methods were named."""
    if Folder(path).config.is_file():
        return [path]
    found = sorted(file.parent for file in path.rglob("config.json"))
    if not found:
        raise UsageError(f"'{path}' holds no run: there is no config.json in it or below")
    try:
        named = list(json.loads((path / "compare.json").read_text())["summaries"])
    except (OSError, ValueError, KeyError):
        return found
    places = {cell_name(method): place for place, method in enumerate(named)}
    return sorted(
        found, key=lambda folder: places.get(folder.relative_to(path).parts[0], len(places))
    )


def cell_name(method: str) -> str:
    """The folder of a method's runs in a comparison."""
    return method.replace(":", "-").replace("/", "-").replace(" ", "-")


def _label(runs: list[Run], groups: list[list[Run]]) -> str:
    """The method, with those options that tell it from other groups of the same method."""
    own = runs[0].config
    same = [group[0].config for group in groups if group[0].config["method"] == own["method"]]
    keys = [
        key for key in own if key != "seed" and any(other.get(key) != own[key] for other in same)
    ]
    return " ".join([str(own["method"]), *(f"{key}={own[key]}" for key in keys)])
