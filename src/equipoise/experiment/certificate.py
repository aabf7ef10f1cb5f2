"""How far a run's last strategies are from an equilibrium: what would a player gain by deviating alone?

Definition 4 of PAGE: in equilibrium nobody gains. Here every client tries sampled epochs and rates from the same
received model, in batched calls, and the server tries sampled weights; everything else stays. The result is the
largest relative gain of utility over all players, as far as sampled: 0 is an equilibrium.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from equipoise.core import (
    Client,
    ClientUpdate,
    LocalHParams,
    Method,
    MethodWrapper,
    Scores,
    Server,
    State,
)
from equipoise.experiment.checkpoint import Checkpoint
from equipoise.experiment.runner import build_task
from equipoise.methods.page.config import absolute_epochs, absolute_lr, softmax_weights
from equipoise.records.run_dir import Folder
from equipoise.records.summary import Certificate, ClientGains, ServerGains
from equipoise.settings.loading import settings_in
from equipoise.settings.run_settings import RunSettings
from equipoise.simulation.executors import Stacked
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig
from equipoise.utils import io as checkpoint
from equipoise.utils import pytree
from equipoise.utils.errors import UsageError

LEAST = 0.01  # losses below count as this, as in PAGE's rewards
CALLS = 8  # batched calls in which the clients' deviations are played, so that progress can be told
Told = Callable[[int, int], None]
"""Called as the deviations are played: how many of them each client has tried, and of how many."""


def certify(
    simulation: FederatedSimulation, samples: int = 16, seed: int = 0, told: Told | None = None
) -> Certificate:
    """Play one more round without keeping it, then every player's deviations from it.

    Arguments:
        simulation: the run, in the state that it ended with.
        samples: deviations that each player tries.
        seed: seed of the deviations.
        told: called with the progress.
    """
    task, schedule = simulation.task, simulation.schedule
    if samples < 1:
        raise UsageError(f"samples is {samples}: must be at least 1")
    if not task.has_split("val"):
        raise UsageError(
            f"utilities are measured on validation data, and task '{task.name}' has none: set val_share"
        )
    ids = torch.from_numpy(simulation.store.ids).sort().values
    t = simulation.rounds_done + 1
    method, training = (
        simulation.method.at(t, schedule.num_rounds),
        simulation.training.at(t, schedule.num_rounds),
    )
    server = Server(task, training, simulation.params, simulation.server_state, schedule.seed, t, t)
    make = (task, training, schedule.seed, t)
    with torch.no_grad():
        down, server.state = method.distribute(server, ids)
        held = simulation.store.held(ids.numpy())
        played = Stacked(method, *make).run_clients(t, ids, down, held, ("val",)).stack
        assert played is not None
        assert played.hparams is not None
        u = torch.rand(
            samples, len(ids), 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
        )
        theirs: list[Tensor] = []
        for part in (2 * u - 1).chunk(CALLS):
            count = len(part)
            before = replace(
                pytree.repeat(held, count), state={"base": pytree.repeat(held.state, count)}
            )
            other = _alternatives(method, part, played.hparams)
            sent = replace(down.for_clients(torch.arange(len(ids)).repeat(count)), hparams=other)
            many = (
                Stacked(Obedient(method), *make)
                .run_clients(t, ids.repeat(count), sent, before, ("val",))
                .stack
            )
            assert many is not None
            theirs += _utility(many.scores).view(count, -1)
            if told:
                told(len(theirs), samples)
        gains = (torch.stack(theirs).max(0).values / _utility(played.scores) - 1).clamp(min=0.0)
        clients = ClientGains(
            float(gains.max()), float(gains.mean()), float((gains > 0).double().mean())
        )
        weights = _server(simulation, server, ids, played.update, played.scores, samples, seed)
    largest = max(clients.largest, weights.gain if weights else 0.0)
    return Certificate(
        round=t, samples=samples, clients=clients, server=weights, largest_gain=largest
    )


def _server(
    simulation: FederatedSimulation,
    server: Server,
    ids: Tensor,
    updates: ClientUpdate,
    scores: Scores,
    samples: int,
    seed: int,
) -> ServerGains | None:
    """Gains of other weights: in the paper's utility 1 / sum p_i f_i, and in that of the aggregate on public data."""
    method = simulation.method.at(server.round, simulation.schedule.num_rounds)
    p, server.state = method.aggregation_weights(server, ids, updates)
    if not isinstance(p, Tensor) or not method.has_global(simulation.task):
        return None  # no weights of whole models
    u = torch.rand(
        samples, len(ids), generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64
    )
    tried = torch.cat([p.double().unsqueeze(0), softmax_weights(2 * u - 1)])
    f = scores["val"]["trained"]["loss"].double()
    paper = 1 / (tried @ f).clamp(min=LEAST)
    models = [method.aggregate(server, ids, updates, weights)[0] for weights in tried]
    stack = {name: torch.stack([model[name] for model in models]) for name in models[0]}
    real = 1 / server.evaluate(stack)["loss"].double().clamp(min=LEAST)
    return ServerGains(_gain(paper), _gain(real))


def _gain(utilities: Tensor) -> float:
    """The best of the others over the first."""
    return max(0.0, float(utilities[1:].max() / utilities[0] - 1))


def _utility(scores: Scores) -> Tensor:
    loss: Tensor = scores["val"]["trained"]["loss"].double()
    return 1 / loss.clamp(min=LEAST)


def _alternatives(method: Method, actions: Tensor, chosen: LocalHParams) -> LocalHParams:
    """Epochs and rates anywhere in the range of the method's agents, or of PAGE's if it has none."""
    most = getattr(method, "max_epochs", 20)
    low, high = getattr(method, "lr_min", 1e-3), getattr(method, "lr_max", 1e-1)
    epochs, lr = (
        absolute_epochs(actions[..., 0], most).flatten(),
        absolute_lr(actions[..., 1], low, high).flatten(),
    )
    return LocalHParams(epochs.to(chosen.epochs.dtype), lr.to(chosen.lr.dtype))


@dataclass(frozen=True)
class Obedient(MethodWrapper):
    """The same method, whose clients train as they are told."""

    def configure_training(self, client: Client) -> tuple[LocalHParams, State]:
        return client.hparams, client.state


def certify_run(
    path: Path, samples: int, settings: RunSettings | None = None, told: Told | None = None
) -> Certificate:
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
    schedule = RoundLoopConfig(
        run.rounds, run.seed, run.participation, run.executor, run.eval_every, run.save_personal
    )
    simulation = FederatedSimulation(
        settings.wrapped_method, build_task(settings), settings.training, schedule
    )
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
