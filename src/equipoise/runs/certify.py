"""The certificate of a run folder: how much any player would gain by deviating alone from its last strategy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from equipoise.core import files as checkpoint
from equipoise.core.errors import UsageError
from equipoise.records.folder import Folder
from equipoise.records.results import Certificate
from equipoise.runs.certificate import Told, certify
from equipoise.runs.running import build_task
from equipoise.runs.saving import Checkpoint
from equipoise.runtime.round import RoundLoopConfig, FederatedSimulation
from equipoise.settings.config import RunSettings
from equipoise.settings.given import settings_in


def certify_run(path: Path, samples: int, settings: RunSettings | None = None, told: Told | None = None) -> Certificate:
    """Add ``certificate`` to the run's summary, and give it.

    Arguments:
        path: the run's folder.
        samples: deviations that each player tries.
        settings: the settings of a run that was made in Python.
        told: called with the progress.
    """
    folder = Folder(path)
    folder.demand()
    if not (folder.summary.is_file() and folder.checkpoint.is_file()):
        raise UsageError(f"'{path}' is not finished: go on with 'equipoise resume {path}' first")
    settings = settings or settings_in(folder.config)
    if settings.timing.carries_stale_updates:
        raise UsageError(
            f"'{path}' is of mode {settings.timing.mode}: a certificate is of rounds that everybody plays together"
        )
    run = settings.run
    schedule = RoundLoopConfig(run.rounds, run.seed, run.participation, run.executor, run.eval_every, run.save_personal)
    simulation = FederatedSimulation(settings.wrapped_method, build_task(settings), settings.training, schedule)
    with checkpoint.locked(path):
        Checkpoint(folder, simulation).load()
        folder.check()
        found = certify(simulation, samples, told=told)
        folder.write_summary(replace(folder.read_summary(), certificate=found))
    return found


def in_words(found: Certificate) -> list[str]:
    """What was tried, who would gain and what the number means."""
    clients, server = found.clients, found.server
    lines = [
        f"Tried: {found.samples} other choices of epochs and learning rate for each client"
        + (f", {found.samples} other weights for the server" if server else "")
        + "; one player deviates, all others stay. Gains are relative, in utility 1 / loss on validation data.",
        f"Clients: {clients.gaining:.0%} of them would gain; the mean gain is {clients.mean:.1%}, "
        f"the largest {clients.largest:.1%}.",
    ]
    if server:
        lines.append(
            f"Server: {server.gain:.1%} in its own utility, {server.gain_of_the_aggregate:.1%} in the aggregate's."
        )
    return [
        *lines,
        f"Largest relative gain of any player: {found.largest_gain:.1%}. At 0 % nobody would change alone (an "
        "equilibrium); choices that were not tried may gain more.",
    ]
