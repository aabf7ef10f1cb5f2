"""Digests of whole runs: the net under every change that must keep behaviour to the bit.

`python -m benchmarks.digests record FILE` runs every method for three rounds on every executor, and
one run per kind of task, and writes digests of what each run folder holds. `... compare FILE` does
the same and names each run whose digest changed. Bits depend on the processor, so that both
commands belong on one machine.

A digest does not depend on names: it is taken over the sorted hashes of all tensors (checkpoint and
models) and over the sorted numbers of the log and the summary. Renaming an option, a state or a
score leaves it as it is.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from equipoise.cli import main
from equipoise.methods import all_methods

DATA = Path(__file__).parents[2] / "shared" / "data"
TABULAR_Q = ("fedasynq-eq", "fedasynq-im", "fedasynq-ta", "feddvrq", "fedsynq")
LINEAR_Q = ("fedq", "linear-q", "pfedq-rep")
LINEAR_TD = ("fedtd", "linear-td", "pfedtd-rep")
DEEP_AGENTS = ("dqn", "dqnavg", "dqnavg-im", "perdqnavg", "pfeddqn-rep")
TIMES = ("seconds", "created", "version")  # not results
SUPERVISED = "--task synthetic --samples 24 --epochs 2 --participation 0.9 --val-share 0.2"
TASK_OPTIONS = {
    **dict.fromkeys(TABULAR_Q, "--task two-state"),
    **dict.fromkeys(LINEAR_Q, "--task planted --model q"),
    **dict.fromkeys(LINEAR_TD, "--task planted"),
    **dict.fromkeys(DEEP_AGENTS, "--task cartpole --agents 4 --epochs 20"),
}
EXECUTORS = {
    "stacked": "--executor stacked --processes 1 --clients 120",
    "loop": "--executor loop --processes 1 --clients 12",
    "processes": "--executor stacked --processes 2 --clients 120",
}


def commands() -> dict[str, str]:
    """Return every run by name: its options as a user types them."""
    runs: dict[str, str] = {}
    for method in all_methods():
        task = TASK_OPTIONS.get(method, f"{SUPERVISED} --model mlp")
        for executor, options in EXECUTORS.items():
            if executor == "processes" and method in TASK_OPTIONS:
                continue
            if method in TASK_OPTIONS:
                options = options.partition(" --clients")[0]
            runs[f"{method}/{executor}"] = f"--method {method} {options} {task}"
    runs.update(_variants())
    return runs


def _variants() -> dict[str, str]:
    """Return wrappers, clocks, selections, models and kinds of tasks."""
    stacked = EXECUTORS["stacked"]
    fedavg = f"--method fedavg {SUPERVISED} {stacked}"
    runs = {
        "linear": fedavg,
        "linear/processes": f"--method fedavg {SUPERVISED} {EXECUTORS['processes']}",
        "private": f"{fedavg} --dp-clip 1 --dp-noise 0.5",
        "robust": f"{fedavg} --robust median",
        "secure": f"{fedavg} --secure",
        "attack": f"{fedavg} --attack flip:0.1 --robust trust",
        "clock": f"{fedavg} --mode semi --deadline 30 --devices phones",
        "async": f"{fedavg} --mode async --devices phones",
        "oort": f"{fedavg} --participation 0.2 --selection oort",
        "learned-selection": f"{fedavg} --participation 0.2 --selection learned",
        "page-paper": f"--method page --reading paper --agents shared {SUPERVISED} {stacked}",
        "page-each": f"--method page --agents per-client {SUPERVISED} {stacked}",
        "holdout": f"{fedavg} --holdout-clients 0.2",
        "finetuned": f"{fedavg} --finetune",
        "garnet": "--executor stacked --processes 1 --method fedasynq-im --task garnet --agents 4",
        "pendulum": (
            "--executor stacked --processes 1 --method pfeddqn-rep --task pendulum --agents 3 "
            "--epochs 20"
        ),
    }
    for policy in ("full", "backbone", "random"):
        runs[f"fedpolicy-{policy}"] = (
            f"--method fedpolicy --policy {policy} --model mlp {SUPERVISED} {stacked}"
        )
    if DATA.is_dir():
        images = (
            f"{stacked} --task fmnist --data {DATA / 'fashion-mnist'} --clients 4 --epochs 1 "
            "--train-rows 400 --server-rows 200"
        )
        heart = DATA / "tables" / "heart_disease.csv"
        runs["fmnist-cnn"] = f"--method fedavg {images} --model cnn"
        runs["shakespeare"] = (
            f"{stacked} --method fedper --task shakespeare --data {DATA / 'shakespeare'} "
            "--clients 3 --epochs 1 --role-samples 60 --server-rows 100"
        )
        runs["heart"] = (
            f"--method ditto --task tables --client-column hospital --data {heart} --target num>0 "
            "--executor stacked --processes 1"
        )
    return runs


def digest_of(folder: Path) -> dict[str, Any]:
    """Digest one run folder.

    Args:
        folder: A finished run.

    Returns:
        Sorted short hashes of all tensors, and one hash of all numbers of log and summary.
    """
    tensors: list[str] = []
    for file in sorted(folder.rglob("*.safetensors")):
        for value in load_file(file).values():
            content = value.contiguous().reshape(-1).numpy().tobytes()
            tensors.append(hashlib.sha256(content).hexdigest()[:10])
    numbers: list[str] = []
    for line in (folder / "rounds.jsonl").read_text().splitlines():
        numbers += _numbers(json.loads(line))
    numbers += _numbers(json.loads((folder / "summary.json").read_text()))
    text = "\n".join(sorted(numbers))
    return {
        "tensors": sorted(tensors),
        "numbers": hashlib.sha256(text.encode()).hexdigest()[:16],
        "count": len(numbers),
    }


def _numbers(value: Any) -> Iterator[str]:
    """Yield every number below a JSON value, except times."""
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, int | float):
        yield repr(value)
    if isinstance(value, list):
        for item in value:
            yield from _numbers(item)
    if isinstance(value, dict):
        for key, item in value.items():
            if key not in TIMES:
                yield from _numbers(item)


def run_all(only: str) -> dict[str, Any]:
    """Run everything whose name contains `only`; return digests, or the error, by name."""
    found: dict[str, Any] = {}
    for name, options in commands().items():
        if only not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "run"
            arguments = ["run", *options.split(), "--rounds", "3", "--seed", "3", "--out", str(out)]
            text = io.StringIO()
            with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
                try:
                    code = main(arguments)
                except Exception as error:
                    code = 1
                    print(repr(error))
            if code != 0:
                found[name] = {"error": text.getvalue().strip()[-300:]}
            else:
                found[name] = digest_of(out)
        print(name, found[name].get("error", ""), file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return found


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return one line for each run that differs."""
    lines: list[str] = []
    for name, known in before.items():
        present = after.get(name)
        if present is None:
            lines.append(f"{name}: gone")
        elif "error" in known or "error" in present:
            if known != present:
                lines.append(
                    f"{name}: {known.get('error', 'ran')} -> {present.get('error', 'runs')}"
                )
        else:
            lines += _difference(name, known, present)
    lines += [f"{name}: new" for name in after if name not in before]
    return lines


def _difference(name: str, known: dict[str, Any], present: dict[str, Any]) -> list[str]:
    lost = len(set(known["tensors"]) - set(present["tensors"]))
    added = len(set(present["tensors"]) - set(known["tensors"]))
    lines: list[str] = []
    if known["tensors"] != present["tensors"]:
        lines.append(
            f"{name}: tensors {len(known['tensors'])} -> {len(present['tensors'])}, "
            f"{lost} lost, {added} new"
        )
    if known["numbers"] != present["numbers"]:
        lines.append(f"{name}: numbers differ ({known['count']} -> {present['count']})")
    return lines


def command_line() -> int:
    """Record digests, or compare with recorded ones; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.digests")
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", help="run only what has this in its name")
    arguments = parser.parse_args()
    found = run_all(arguments.only)
    if arguments.action == "record":
        arguments.file.write_text(json.dumps(found, indent=0) + "\n")
        return 0
    before = json.loads(arguments.file.read_text())
    if arguments.only:
        before = {name: value for name, value in before.items() if arguments.only in name}
    lines = differences(before, found)
    print("\n".join(lines) or f"{len(found)} runs: all digests are equal")
    return 1 if lines else 0


if __name__ == "__main__":
    raise SystemExit(command_line())
