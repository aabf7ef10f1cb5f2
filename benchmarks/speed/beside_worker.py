"""Run rounds of W1 of one checkout when asked: ``beside_worker.py CHECKOUT THREADS``.

Started by :mod:`benchmarks.speed.beside` by its path, with the checkout first on Python's path. It
imports nothing of the working tree that it lies in. Requests are lines of JSON on standard input
(epochs, closed_form, seconds); each is answered by one line, the seconds of each round. With one
thread these are seconds of the processor, which do not count when other processes have it. Several
threads also wait for each other, so their seconds are those of the wall clock.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ENGINE_MODULES = ("benchmarks.speed.engine", "benchmarks.engine")  # the second until 49cf632


def make_round(engine: Any, epochs: int, closed_form: bool) -> Callable[[], object]:
    """A round of W1 by a checkout's benchmark module, which has ``w1_round`` since this script
    exists.
    """
    if hasattr(engine, "w1_round"):
        return engine.w1_round(epochs=epochs, closed_form=closed_form)  # type: ignore[no-any-return]
    return engine.equipoise_round(engine.data_of(100), epochs, closed_form)  # type: ignore[no-any-return]


def load_engine(checkout: Path) -> Any:
    """Import a checkout's benchmark module, and make sure that it measures the checkout's own
    package.
    """
    for name in ENGINE_MODULES:
        try:
            engine = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise  # the module is there, but something that it needs is not
            continue
        package = Path(sys.modules["equipoise"].__file__ or "")
        if not package.is_relative_to(checkout):
            raise SystemExit(
                f"{checkout} would measure {package.parent}, which is not its own package"
            )
        return engine
    raise SystemExit(f"{checkout} has none of the modules {', '.join(ENGINE_MODULES)}")


def main() -> None:
    """Answer requests until standard input ends."""
    checkout = Path(sys.argv[1]).resolve()
    threads = int(sys.argv[2])
    torch.set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    engine = load_engine(checkout)
    rounds = {
        (epochs, closed): make_round(engine, epochs, closed)
        for epochs in (1, 5)
        for closed in (False, True)
    }
    for run in rounds.values():
        run()
        run()
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        run = rounds[request["epochs"], request["closed_form"]]
        run()  # finds the other process's data in the caches
        print(json.dumps(seconds_of_rounds(run, request["seconds"], clock)), flush=True)


def seconds_of_rounds(
    run: Callable[[], object], seconds: float, clock: Callable[[], float]
) -> list[float]:
    """Run rounds for so many seconds, at least three, each timed by ``clock``."""
    found: list[float] = []
    end = time.perf_counter() + seconds
    while len(found) < 3 or time.perf_counter() < end:
        started = clock()
        run()
        found.append(clock() - started)
    return found


if __name__ == "__main__":
    main()
