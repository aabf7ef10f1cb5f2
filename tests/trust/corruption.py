"""Damage every file of run folders, and let every command read them.

One character is changed, the file is cut, or it is deleted. A command must then refuse in one line
that names a file, or give the same result as without the damage. A different result, a traceback
or several lines are failures.

``PYTHONPATH=tests python -m trust.corruption --cases 4000`` prints one line; the exit code is 1 if
one case failed. With ``--add FILE`` the counts are added to those of earlier sittings. Everything
runs in this process; reports are compared as the data that they draw.
"""

from __future__ import annotations

import contextlib
import csv
import io
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import torch
from safetensors import safe_open

import equipoise
from equipoise.cli import main
from equipoise.experiment.runner import Interrupted, run
from equipoise.records.manifest import MANIFEST_FILE
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.utils.errors import UsageError
from trust.sittings import Found, sit
from trust.test_faults import SMALL, result

DAMAGES = ("change", "cut", "delete")
UNREAD = ("report.html", "table.md", "table.csv", "pareto.svg", ".lock")
"""Files that no command reads."""


@dataclass
class Corrupted(Found):
    """Counts of all cases."""

    cases: int = 0
    refused: int = 0
    same: int = 0
    different: int = 0
    crashed: int = 0
    sittings: int = 0

    def in_words(self) -> str:
        return (
            f"{self.cases} damaged folders: {self.refused} refused in one line, {self.same} with "
            f"the same result, {self.different} with another result, {self.crashed} crashed"
        )

    @property
    def failed(self) -> bool:
        return self.different + self.crashed > 0


class Refused(Exception):
    """A command refused, with its message."""


Command = Callable[[Path, Path], object]
"""Reads the folder (first) and writes beside it (second); returns what can be compared."""


def build(root: Path) -> dict[str, Path]:
    """Make the folders: finished, interrupted with rounds after the checkpoint, a comparison."""
    data = root / "data"
    data.mkdir()
    draw = random.Random(0)
    for site in ("north", "south", "west"):
        with (data / f"{site}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["age", "dose", "colour", "label"])
            for _ in range(40):
                age, dose = draw.randint(20, 80), draw.random()
                colour = draw.choice(["red", "blue"])
                writer.writerow([age, dose, colour, "ill" if age * dose > 25 else "well"])
    rows = root / "rows.csv"
    text = (data / "north.csv").read_text().splitlines()
    rows.write_text("\n".join(line.rpartition(",")[0] for line in text) + "\n")
    table = {"task": "tables", "data": str(data), "epochs": 1, "batch_size": 10}
    settings = {**table, "method": "finetune", "rounds": 3, "checkpoint_every": 2}
    folders = {name: root / name for name in ("finished", "interrupted", "comparison")}
    run(ExperimentConfig.from_options(settings), folders["finished"])

    def stop(record: object) -> None:
        if record.round == 3:  # type: ignore[attr-defined]
            raise Interrupted

    with contextlib.suppress(Interrupted):
        run(
            ExperimentConfig.from_options({**settings, "rounds": 4}),
            folders["interrupted"],
            on_round_end=stop,
        )
    table_options = ["--task", "tables", "--data", data, "--epochs", 1, "--batch-size", 10]
    seeds = ["--methods", "fedavg,local", "--seeds", 1, "--rounds", 2]
    cli("compare", *seeds, *table_options, "--out", root / "clinics")
    folders["clinics"] = root / "clinics"
    compare = ["compare", "--methods", "fedavg,local", "--seeds", "1", "--rounds", "1", *SMALL]
    assert main([*compare, "--out", str(folders["comparison"])]) == 0
    return folders


def cli(*arguments: object) -> str:
    """Run a command; return its output, or raise `Refused` with its message."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = main([str(argument) for argument in arguments])
    if code:
        raise Refused(errors.getvalue())
    return out.getvalue()


def predict(folder: Path, beside: Path) -> object:
    cli("predict", folder, beside.parent / "rows.csv", "--out", beside / "p.csv")
    return (beside / "p.csv").read_text()


def predict_personal(folder: Path, beside: Path) -> object:
    client = ["--client", "south", "--out", beside / "p.csv"]
    cli("predict", folder, beside.parent / "rows.csv", *client)
    return (beside / "p.csv").read_text()


def export(folder: Path, beside: Path) -> object:
    cli("export", folder, "--client", "west", "--out", beside / "m.safetensors")
    with safe_open(beside / "m.safetensors", "pt") as file:
        tensors = {name: file.get_tensor(name).tolist() for name in sorted(file.keys())}
        return tensors, file.metadata()


def report(folder: Path, beside: Path) -> object:
    seen: list[object] = []

    def draw(*data: object) -> str:
        seen.append(repr(data).replace(str(folder), ""))
        return ""

    with mock.patch("equipoise.report.html.render_report", draw):
        cli("report", folder, "--out", beside / "r.html")
    return seen


def open_in_python(folder: Path, beside: Path) -> object:
    done = equipoise.open(folder)
    found = [done.config, done.rounds, done.is_finished]
    if done.is_finished:
        found += [done.summary, done.model().state_dict()]
    return repr(found)


def evaluate(folder: Path, beside: Path) -> object:
    labelled = beside.parent / "data" / "north.csv"
    return cli("evaluate", folder, labelled, "--client", "north")


def explain(folder: Path, beside: Path) -> object:
    few = ["--n-repeats", "1", "--max-samples", "20", "--features", "age"]
    return cli("explain", folder, "--json", *few).replace(str(folder), "")


def adapt(folder: Path, beside: Path) -> object:
    labelled = beside.parent / "data" / "north.csv"
    shown = cli("adapt", folder, labelled, "--out", beside / "adapted", "--json")
    return shown.replace(str(beside), "")


def choose(folder: Path, beside: Path) -> object:
    shown = cli("choose", folder, "--refit", "none", "--out", beside / "chosen", "--json")
    return shown.replace(str(beside), "")


def certify(folder: Path, beside: Path) -> object:
    return cli("certify", folder, "--samples", "1").replace(str(folder), "")


def show_config(folder: Path, beside: Path) -> object:
    return cli("config", "show", folder)


def watch(folder: Path, beside: Path) -> object:
    return cli("watch", folder)


def resume(folder: Path, beside: Path) -> object:
    with mock.patch("equipoise.report.html.try_write_report", return_value=""):
        shown = cli("resume", folder)
    if folder.name == "interrupted":
        return {name: repr(content) for name, content in result(folder).items()}
    if folder.name == "comparison":
        return (folder / "table.csv").read_text()  # written anew
    return shown  # what a finished run shows comes from its summary alone


COMMANDS: dict[str, list[Command]] = {
    "finished": [
        *(predict, predict_personal, export, report, open_in_python, watch, resume),
        *(evaluate, explain, adapt, certify, show_config),
    ],
    "interrupted": [report, open_in_python, watch, resume, show_config],
    "comparison": [report, watch, resume],
    "clinics": [choose, report],
}


def files_of(folder: Path) -> list[Path]:
    """The files of a folder that are damaged in turn, relative to it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [path.relative_to(folder) for path in files if path.name not in UNREAD]


def damage(path: Path, how: str, draw: random.Random) -> None:
    """Change one character to another of its kind, cut the file, or delete it."""
    data = bytearray(path.read_bytes())
    if how == "delete" or not data:
        path.unlink()
    elif how == "cut":
        path.write_bytes(data[: draw.randrange(len(data))])
    else:
        place = draw.randrange(len(data))
        digits = bytes(set(b"0123456789") - {data[place]})
        others = digits if data[place] in b"0123456789" else bytes([data[place] ^ 1])
        data[place] = draw.choice(others)
        path.write_bytes(data)


def corrupt(cases: int, minutes: float, seed: int, root: Path) -> Corrupted:
    """Try so many cases, or as many as there is time for."""
    end = time.monotonic() + 60 * minutes
    torch.set_num_threads(1)
    folders = build(root)
    expected: dict[tuple[str, str], object] = {}
    plan: list[tuple[str, Command, Path, str]] = []
    for name, commands in COMMANDS.items():
        for command in commands:
            expected[name, command.__name__] = attempt(folders[name], root, command, None, "", None)
            for file in files_of(folders[name]):
                plan += [(name, command, file, how) for how in DAMAGES]
    found = Corrupted(sittings=1)
    number = 0
    while found.cases < cases and time.monotonic() < end:
        if number % len(plan) == 0:
            random.Random(seed + number).shuffle(plan)
        name, command, file, how = plan[number % len(plan)]
        number += 1
        found.cases += 1
        draw = random.Random(1_000_003 * seed + number)
        where = f"{command.__name__} of {name}, {how} {file} (seed {seed}, case {number})"
        try:
            seen = attempt(folders[name], root, command, file, how, draw)
        except (Refused, UsageError) as refusal:
            lines = str(refusal).strip().splitlines()
            names_a_file = len(lines) == 1 and (file.name in lines[0] or MANIFEST_FILE in lines[0])
            found.refused += names_a_file
            found.crashed += not names_a_file
            if not names_a_file:
                print(f"{where}: the refusal names no file: {refusal}", file=sys.stderr)
        except Exception as error:
            found.crashed += 1
            print(f"{where}: {type(error).__name__}: {error}", file=sys.stderr)
        else:
            is_same = seen == expected[name, command.__name__]
            found.same += is_same
            found.different += not is_same
            if not is_same:
                print(f"{where}: another result, and no word of it", file=sys.stderr)
    return found


def attempt(
    folder: Path,
    root: Path,
    command: Command,
    file: Path | None,
    how: str,
    draw: random.Random | None,
) -> object:
    """Run a command on a copy of a folder in which one file is damaged, or none."""
    beside = root / "beside"
    victim = beside / folder.name
    shutil.copytree(folder, victim)
    try:
        if file is not None and draw is not None:
            damage(victim / file, how, draw)
        return command(victim, beside)
    finally:
        shutil.rmtree(beside)


def sitting(cases: int, minutes: float, seed: int) -> Corrupted:
    with tempfile.TemporaryDirectory() as scratch:
        return corrupt(cases, minutes, seed, Path(scratch))


if __name__ == "__main__":
    sit(Corrupted, sitting, wanted=4000, minutes=30.0, about=__doc__)
