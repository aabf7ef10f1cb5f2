"""The certificate of a run folder: how much any player would gain by deviating alone from its last strategy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from equipoise.core import files as checkpoint
from equipoise.core.errors import UsageError
from equipoise.records.folder import Folder
from equipoise.runs.certificate import certify
from equipoise.runs.running import build_task
from equipoise.runtime.round import Schedule, Simulation
from equipoise.settings.config import Settings
from equipoise.settings.given import settings_in


def certify_run(path: Path, samples: int, settings: Settings | None = None) -> list[str]:
    """Add ``certificate`` to the run's summary; gives it in words. ``settings``: of a run made in Python."""
    folder = Folder(path)
    folder.demand()
    if not (folder.summary.is_file() and folder.checkpoint.is_file()):
        raise UsageError(f"'{path}' is not finished: go on with 'equipoise resume {path}' first")
    settings = settings or settings_in(folder.config)
    run = settings.run
    schedule = Schedule(run.rounds, run.seed, run.participation, run.executor, run.eval_every, run.save_personal)
    simulation = Simulation(settings.policy, build_task(settings), settings.training, schedule)
    state, meta = checkpoint.load(folder.checkpoint)
    folder.check()
    simulation.load(state["simulation"], meta["round"])
    found = certify(simulation, samples)
    with checkpoint.locked(path):
        folder.write_summary(replace(folder.read_summary(), certificate=found))
    clients, server = found.clients, found.server
    lines = [
        f"clients: the largest gain is {clients.largest:.1%}, the mean {clients.mean:.1%}; "
        f"{clients.gaining:.0%} of them gain ({samples} deviations each)"
    ]
    if server:
        lines.append(f"server: {server.gain:.1%} in its utility, {server.gain_of_the_aggregate:.1%} in the aggregate's")
    return [*lines, f"epsilon {found.epsilon:.4f}, in {folder.summary}"]
