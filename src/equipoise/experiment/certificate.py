"""PAGE's equilibrium certificate: how much would a player gain by deviating alone?

In a feedback Stackelberg equilibrium nobody gains by a unilateral deviation (PAGE, definition 4).
For the last strategies of a run, of any method, every client tries sampled epochs and learning
rates from the same received model, in batched calls, and the server tries sampled weights; all
other players stay. The result is the largest relative gain of utility over all players: 0 is an
equilibrium, as far as sampled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from equipoise.core import (
    Client,
    ClientResult,
    ClientState,
    LocalHParams,
    Method,
    MethodWrapper,
    Scores,
    Server,
    ServerMessage,
    State,
    Task,
)
from equipoise.experiment.build import build_task
from equipoise.experiment.checkpoint import Checkpoint
from equipoise.methods.dapfl import DapFL
from equipoise.methods.page.page import (
    MIN_LOSS,
    Page,
    absolute_epochs,
    absolute_lr,
    softmax_weights,
)
from equipoise.records.run_dir import RunFolder
from equipoise.records.summary import Certificate, ClientGains, ServerGains
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.settings.loading import settings_in
from equipoise.simulation.executors import CohortRequest, Stacked
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig
from equipoise.utils import io as checkpoint
from equipoise.utils import pytree
from equipoise.utils.errors import UsageError

NUM_BATCHES = 8
"""Batched calls in which clients try their deviations; progress is reported after each."""
Progress = Callable[[int, int], None]
"""Called with the number of deviations that each client has tried, and the number of all."""


def certify_run(
    path: Path,
    samples: int,
    settings: ExperimentConfig | None = None,
    on_progress: Progress | None = None,
) -> Certificate:
    """Certify a finished run and add the certificate to its summary.

    Args:
        path: The run's folder.
        samples: Deviations that each player tries.
        settings: The settings of a run that was made in Python; else those of its config file.
        on_progress: Called with the progress.

    Returns:
        The certificate.

    Raises:
        UsageError: If the folder has no finished run, or one without synchronous rounds.
    """
    folder = RunFolder(path)
    folder.demand()
    if not (folder.summary.exists() and folder.checkpoint.exists()):
        raise UsageError(f"'{path}' is not finished: go on with 'equipoise resume {path}' first")
    summary = folder.read_summary()  # a damaged one is refused before any work
    settings = settings or settings_in(folder.read_config())
    if settings.timing.carries_stale_updates:
        raise UsageError(
            f"'{path}' is of mode {settings.timing.mode}: a certificate is of rounds that "
            "everybody plays together"
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
        certificate = certify(simulation, samples, on_progress=on_progress)
        folder.write_summary(replace(summary, certificate=certificate))
    return certificate


def certify(
    simulation: FederatedSimulation,
    samples: int = 16,
    seed: int = 0,
    on_progress: Progress | None = None,
) -> Certificate:
    """Play one more round, and every player's deviations from it; the simulation is not changed.

    Args:
        simulation: The run, in the state in which it ended.
        samples: Deviations that each player tries.
        seed: Seed of the deviations.
        on_progress: Called with the progress.

    Returns:
        The gains of clients and server.

    Raises:
        UsageError: If `samples` is below 1, or the task has no validation data.
    """
    task = simulation.task
    if samples < 1:
        raise UsageError(f"samples is {samples}: must be at least 1")
    if not task.has_split("val"):
        raise UsageError(
            f"utilities are measured on validation data, and task '{task.info.name}' has none: "
            "set val_share"
        )
    with torch.no_grad():
        stage = _play(simulation)
        clients = _client_gains(stage, samples, seed, on_progress)
        server_gains = _server_gains(stage, samples, seed)
    largest = clients.largest
    if server_gains:
        largest = max(largest, server_gains.gain)
    return Certificate(
        round=stage.server.round,
        samples=samples,
        clients=clients,
        server=server_gains,
        largest_gain=largest,
    )


@dataclass(frozen=True)
class _Stage:
    """The round from which players deviate."""

    method: Method
    server: Server
    """The server, after it sent the message."""
    ids: Tensor
    """All clients that ever took part `[K]`."""
    message: ServerMessage
    client_state: ClientState
    """What the clients kept before the round `[K, ...]`."""
    played: ClientResult
    """Their results with the strategies that they chose `[K, ...]`."""


def _play(simulation: FederatedSimulation) -> _Stage:
    """Play the next round up to the uploads, without changing the simulation."""
    schedule = simulation.schedule
    task = simulation.task
    t = simulation.rounds_done + 1
    method = simulation.method.at(t, schedule.num_rounds)
    training = simulation.training.at(t, schedule.num_rounds)
    ids = torch.from_numpy(simulation.store.ids).sort().values
    server = Server(task, training, simulation.params, simulation.server_state, schedule.seed, t, t)
    message, server.state = method.distribute(server, ids)
    client_state = simulation.store.client_state(ids.numpy())
    executor = Stacked(method, task, training, schedule.seed, t)
    request = CohortRequest(t, ids, message, client_state, ("val",))
    played = executor.run_clients(request).stack
    assert played is not None
    return _Stage(method, server, ids, message, client_state, played)


def _client_gains(
    stage: _Stage, samples: int, seed: int, on_progress: Progress | None
) -> ClientGains:
    """Let every client try other epochs and learning rates, from the same message and state.

    Args:
        stage: The round.
        samples: Deviations of each client.
        seed: Seed of the deviations.
        on_progress: Called with the progress.

    Returns:
        The relative gains of the clients' best deviations, 0 for those that gain nothing.
    """
    server = stage.server
    ids = stage.ids
    assert stage.played.hparams is not None
    u = _uniform(seed, samples, len(ids), 2)
    method = FixedHParams(stage.method)
    executor = Stacked(method, server.task, server.training, server.seed, server.round)
    utilities: list[Tensor] = []
    for actions in (2 * u - 1).chunk(NUM_BATCHES):
        count = len(actions)
        state = pytree.repeat(stage.client_state, count)
        state = replace(state, state={"base": pytree.repeat(stage.client_state.state, count)})
        hparams = _deviations(stage.method, server.task, actions, stage.played.hparams)
        messages = stage.message.for_clients(torch.arange(len(ids)).repeat(count))
        messages = replace(messages, hparams=hparams)
        request = CohortRequest(server.round, ids.repeat(count), messages, state, ("val",))
        results = executor.run_clients(request).stack
        assert results is not None
        utilities += _client_utilities(results.scores).view(count, -1)
        if on_progress:
            on_progress(len(utilities), samples)
    best = torch.stack(utilities).max(0).values
    gains = (best / _client_utilities(stage.played.scores) - 1).clamp(min=0.0)
    return ClientGains(float(gains.max()), float(gains.mean()), float((gains > 0).double().mean()))


@dataclass(frozen=True)
class FixedHParams(MethodWrapper):
    """The same method, whose clients train with the hyper-parameters of the server's message."""

    def configure_training(self, client: Client) -> tuple[LocalHParams, State]:
        """Return the proposed epochs and learning rate."""
        return client.hparams, client.state


def _deviations(method: Method, task: Task, actions: Tensor, played: LocalHParams) -> LocalHParams:
    """Return epochs and rates in the range of the method's agents, or of PAGE's if it has none.

    Args:
        method: The method.
        task: The task, on which PAGE's range of rates depends.
        actions: Numbers in [-1, 1], `[B, K, 2]`.
        played: What clients chose; only its dtypes matter.

    Returns:
        Hyper-parameters `[B * K]`.
    """
    page = method if isinstance(method, Page) else Page()
    max_epochs = getattr(method, "max_epochs", page.max_epochs)
    lr_min, lr_max = page.lr_range(task)
    if isinstance(method, DapFL):
        lr_min = method.lr_min
        lr_max = method.lr_max
    epochs = absolute_epochs(actions[..., 0], max_epochs).flatten()
    lr = absolute_lr(actions[..., 1], lr_min, lr_max).flatten()
    return LocalHParams(epochs.to(played.epochs.dtype), lr.to(played.lr.dtype))


def _client_utilities(scores: Scores) -> Tensor:
    """Return u_i = 1 / f_i of each client's trained model `[K]`."""
    loss: Tensor = scores["val"]["trained"]["loss"].double()
    return 1 / loss.clamp(min=MIN_LOSS)


def _server_gains(stage: _Stage, samples: int, seed: int) -> ServerGains | None:
    """Return the gains of other aggregation weights; None without weights of whole models.

    Gains are in the paper's utility 1 / sum p_i f_i, and in 1 / F of the aggregate on public data.
    """
    method = stage.method
    server = stage.server
    ids = stage.ids
    updates = stage.played.update
    p, server.state = method.aggregation_weights(server, ids, updates)
    if not isinstance(p, Tensor) or not method.has_global(server.task):
        return None
    u = _uniform(seed + 1, samples, len(ids))
    tried = torch.cat([p.double().unsqueeze(0), softmax_weights(2 * u - 1)])
    losses = stage.played.scores["val"]["trained"]["loss"].double()
    utilities = 1 / (tried @ losses).clamp(min=MIN_LOSS)
    models = [method.aggregate(server, ids, updates, weights)[0] for weights in tried]
    stack = {name: torch.stack([model[name] for model in models]) for name in models[0]}
    aggregate_utilities = 1 / server.evaluate(stack)["loss"].double().clamp(min=MIN_LOSS)
    return ServerGains(_gain(utilities), _gain(aggregate_utilities))


def _gain(utilities: Tensor) -> float:
    """Return the relative gain of the best deviation over the first entry, the strategy played."""
    return max(0.0, float(utilities[1:].max() / utilities[0] - 1))


def _uniform(seed: int, *shape: int) -> Tensor:
    """Return uniform random numbers of this shape."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, generator=generator, dtype=torch.float64)


def describe(certificate: Certificate) -> list[str]:
    """Return sentences for people: what was tried, who would gain, and what the number means."""
    clients = certificate.clients
    server = certificate.server
    server_tried = f", {certificate.samples} other weights for the server" if server else ""
    lines = [
        f"Tried: {certificate.samples} other choices of epochs and learning rate for each client"
        f"{server_tried}; one player deviates, all others stay. Gains are relative, in utility "
        "1 / loss on validation data.",
        f"Clients: {clients.gaining:.0%} of them would gain; the mean gain is {clients.mean:.1%}, "
        f"the largest {clients.largest:.1%}.",
    ]
    if server:
        lines.append(
            f"Server: {server.gain:.1%} in its own utility, {server.gain_of_the_aggregate:.1%} in "
            "the aggregate's."
        )
    lines.append(
        f"Largest relative gain of any player: {certificate.largest_gain:.1%}. At 0 % nobody would "
        "change alone (an equilibrium); choices that were not tried may gain more."
    )
    return lines
