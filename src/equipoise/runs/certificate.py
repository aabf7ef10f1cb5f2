"""How far a run's last strategies are from an equilibrium: what would a player gain by deviating alone?

Definition 4 of PAGE: in equilibrium nobody gains. Here every client tries sampled epochs and rates from the same
received model, in batched calls, and the server tries sampled weights; everything else stays. The result is the
largest relative gain of utility over all players, as far as sampled: 0 is an equilibrium.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from equipoise.contract import MethodWrapper, Client, Method, Scores, Server, State, LocalHParams, ClientUpdate
from equipoise.core import trees
from equipoise.core.errors import UsageError
from equipoise.methods.page.actions import epochs_of, rate_of, simplex
from equipoise.records.results import Certificate, ClientGains, ServerGains
from equipoise.runtime.executors import Stacked
from equipoise.runtime.round import FederatedSimulation

LEAST = 0.01  # losses below count as this, as in PAGE's rewards
CALLS = 8  # batched calls in which the clients' deviations are played, so that progress can be told
Told = Callable[[int, int], None]
"""Called as the deviations are played: how many of them each client has tried, and of how many."""


def certify(simulation: FederatedSimulation, samples: int = 16, seed: int = 0, told: Told | None = None) -> Certificate:
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
        raise UsageError(f"utilities are measured on validation data, and task '{task.name}' has none: set val_share")
    ids = torch.from_numpy(simulation.store.ids).sort().values
    t = simulation.rounds_done + 1
    method, training = simulation.method.at(t, schedule.num_rounds), simulation.training.at(t, schedule.num_rounds)
    server = Server(task, training, simulation.params, simulation.server_state, schedule.seed, t, t)
    make = (task, training, schedule.seed, t)
    with torch.no_grad():
        down, server.state = method.distribute(server, ids)
        held = simulation.store.held(ids.numpy())
        played = Stacked(method, *make).run_clients(t, ids, down, held, ("val",)).stack
        assert played is not None
        assert played.hparams is not None
        u = torch.rand(samples, len(ids), 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        theirs: list[Tensor] = []
        for part in (2 * u - 1).chunk(CALLS):
            count = len(part)
            before = replace(trees.repeat(held, count), state={"base": trees.repeat(held.state, count)})
            other = _alternatives(method, part, played.hparams)
            sent = replace(down.for_clients(torch.arange(len(ids)).repeat(count)), hparams=other)
            many = Stacked(Obedient(method), *make).run_clients(t, ids.repeat(count), sent, before, ("val",)).stack
            assert many is not None
            theirs += _utility(many.scores).view(count, -1)
            if told:
                told(len(theirs), samples)
        gains = (torch.stack(theirs).max(0).values / _utility(played.scores) - 1).clamp(min=0.0)
        clients = ClientGains(float(gains.max()), float(gains.mean()), float((gains > 0).double().mean()))
        weights = _server(simulation, server, ids, played.update, played.scores, samples, seed)
    largest = max(clients.largest, weights.gain if weights else 0.0)
    return Certificate(round=t, samples=samples, clients=clients, server=weights, largest_gain=largest)


def _server(
    simulation: FederatedSimulation, server: Server, ids: Tensor, updates: ClientUpdate, scores: Scores, samples: int, seed: int
) -> ServerGains | None:
    """Gains of other weights: in the paper's utility 1 / sum p_i f_i, and in that of the aggregate on public data."""
    method = simulation.method.at(server.round, simulation.schedule.num_rounds)
    p, server.state = method.aggregation_weights(server, ids, updates)
    if not isinstance(p, Tensor) or not method.has_global(simulation.task):
        return None  # no weights of whole models
    u = torch.rand(samples, len(ids), generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    tried = torch.cat([p.double().unsqueeze(0), simplex(2 * u - 1)])
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
    most = getattr(method, "epochs_most", 20)
    low, high = getattr(method, "lr_low", 1e-3), getattr(method, "lr_high", 1e-1)
    epochs, lr = epochs_of(actions[..., 0], most).flatten(), rate_of(actions[..., 1], low, high).flatten()
    return LocalHParams(epochs.to(chosen.epochs.dtype), lr.to(chosen.lr.dtype))


@dataclass(frozen=True)
class Obedient(MethodWrapper):
    """The same method, whose clients train as they are told."""

    def configure_training(self, client: Client) -> tuple[LocalHParams, State]:
        return client.hparams, client.state
