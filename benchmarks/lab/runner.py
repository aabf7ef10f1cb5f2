"""Runs what is missing of a study: parallel over processes, bounded in time; a finished cell is
never run again.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from datetime import UTC, datetime
from pathlib import Path

import torch

from benchmarks.lab.cells import Cell, Record, Results
from benchmarks.lab.provenance import provenance
from benchmarks.lab.study import Study, find
from equipoise.environments import tabular_q
from equipoise.experiment.runner import Interrupted
from equipoise.records.run_dir import RunFolder

SINGLE = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def missing(study: Study, results: Results, only: str) -> list[Cell]:
    """The declared cells that are not done, those whose name the pattern matches."""
    return [
        cell
        for cell in study.cells(results)
        if cell.name not in results and re.search(only, cell.name)
    ]


def execute(
    study: Study, results: Results, only: str, jobs: int, minutes: float, keep: Path | None
) -> bool:
    """Run all that is missing; whether every cell that was started came to its end.

    No cell starts after ``minutes``.

    ``keep``: a folder for the run folders, which otherwise are removed with the cell.
    """
    end, failed = time.monotonic() + 60 * minutes, set[str]()
    os.environ |= SINGLE  # each process has one thread; those that are spawned inherit it
    if jobs > 1:
        os.environ["NUMBA_NUM_THREADS"] = "1"  # Numba refuses another number once it has begun
    torch.set_num_threads(1)  # this one has read its environment already
    tabular_q.set_num_threads(1)
    while waiting := [cell for cell in missing(study, results, only) if cell.name not in failed]:
        started = False
        for name, found in _outcomes(study, waiting, jobs, end, keep):
            started = True
            if isinstance(found, Record):
                results.add(found)
                print(f"{name}: {found.seconds:.1f} s", flush=True)
            elif isinstance(
                found, Interrupted
            ):  # the run took the signal that was meant for the study
                print(f"{name} was stopped: the same command goes on", flush=True)
                return False
            else:
                failed.add(name)
                print(f"{name} failed: {type(found).__name__}: {found}", flush=True)
        if not started:
            print(f"{len(waiting)} cells are left: time is up", flush=True)
            break
    return not failed


def _outcomes(
    study: Study, cells: list[Cell], jobs: int, end: float, keep: Path | None
) -> Iterator[tuple[str, Record | BaseException]]:
    """Each cell's name with its record, or with what went wrong, as they finish."""
    if jobs == 1:
        for cell in cells:
            if time.monotonic() >= end:
                return
            try:
                yield cell.name, measure(study.name, cell, keep)
            except Exception as error:
                yield cell.name, error
        return
    waiting, running = iter(cells), dict[Future[Record], str]()
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        while True:
            while (
                len(running) < jobs
                and time.monotonic() < end
                and (following := next(waiting, None))
            ):
                running[pool.submit(measure, study.name, following, keep)] = following.name
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.exception() or future.result()


def measure(study: str, cell: Cell, keep: Path | None) -> Record:
    """One cell, in this process, with all that is recorded of it."""
    folder = (
        Path(tempfile.mkdtemp(prefix="cell-"))
        if keep is None
        else keep / re.sub(r"[^\w.-]+", "-", cell.name)
    )
    started, begin = datetime.now(UTC).isoformat(timespec="seconds"), time.perf_counter()
    try:
        result = find(study).measure(cell, folder)
        seconds = round(time.perf_counter() - begin, 2)
        done = RunFolder(folder)
        full = done.read_config() if done.has_config() else dict(cell.options)
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    result = json.loads(json.dumps(result))  # as it will be read
    return Record(
        cell.name, dict(cell.axes), full, result, **provenance(), started=started, seconds=seconds
    )
