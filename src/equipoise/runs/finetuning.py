"""Fine-tuning for everybody: any method's personal models after a few local epochs, stopped on validation data.

Rate and number of epochs are one choice for all clients, made on their pooled validation accuracy: a choice per client
on a few dozen samples is worse. No tuning at all is among the choices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from equipoise.contract import Client, ServerMessage, ClientState, Method, State, LocalHParams, Params, ClientUpdate
from equipoise.records.results import Finetuned
from equipoise.records.scores import Scores
from equipoise.runtime.choose import EXECUTORS
from equipoise.runtime.round import FederatedSimulation

SHARES_OF_RATE = (1.0, 0.3, 0.1, 0.03)
EPOCHS = (1, 2, 3, 5, 8, 12, 20)  # looked at on the way


@dataclass(frozen=True)
class Sweep(Method):
    """Every client tunes its personal model at every rate and reports scores on the way: ``[rates, 1 + epochs]``."""

    name: ClassVar[str] = "fine-tuning sweep"
    default_shared_blocks: ClassVar[tuple[str, ...]] = ()

    def train(self, client: Client) -> tuple[Params, State]:
        paths = [self._path(client, number, share) for number, share in enumerate(SHARES_OF_RATE)]
        scores = {name: torch.stack([path[name] for path in paths]) for name in paths[0]}
        return client.start, scores

    def upload(self, client: Client) -> tuple[ClientUpdate, State]:
        return ClientUpdate({}, metrics=client.state), client.state

    def _path(self, client: Client, number: int, share: float) -> Params:
        params, done, seen = client.start, 0, [self._scores(client, client.start)]
        for epochs in EPOCHS:
            train = LocalHParams(torch.full_like(client.hparams.epochs, epochs - done), client.hparams.lr * share)
            params = client.fit(params, hparams=train, stream=number * len(EPOCHS) + len(seen))
            done = epochs
            seen.append(self._scores(client, params))
        return {name: torch.stack([scores[name] for scores in seen]) for name in seen[0]}

    @staticmethod
    def _scores(client: Client, params: Params) -> Params:
        return {f"{split} {name}": v for split in ("val", "test") for name, v in client.evaluate(params, split).items()}


def finetuned(simulation: FederatedSimulation) -> Finetuned:
    """Scores of the tuned personal models over all clients seen, and the choice that was made."""
    task, schedule = simulation.task, simulation.schedule
    last = simulation.training.at(schedule.num_rounds, schedule.num_rounds)
    ids, models = simulation.personal_models()
    executor = EXECUTORS[schedule.executor](Sweep(), task, last, schedule.seed, schedule.num_rounds)
    held = ClientState(models, {}, task.init_data_state(torch.from_numpy(ids)))
    down = ServerMessage(simulation.params, dict.fromkeys(task.blocks, False))
    reply = executor.run_clients(schedule.num_rounds + 1, torch.from_numpy(ids), down, held, ()).stack
    assert reply is not None
    out = reply.update.metrics
    pooled = out[f"val {task.metric}"].double().mean(0) * (1 if task.higher_is_better else -1)
    rate, step = _first_best(pooled)
    head = out[f"test {task.metric}"][:, rate, step].double()
    scores = {
        task.metric: float(head.mean()),
        "loss": float(out["test loss"][:, rate, step].double().mean()),
        "std": float(head.std(correction=0)),
        "p10": float(np.quantile(head.numpy(), 0.1)),
    }
    lr = last.lr * SHARES_OF_RATE[rate] if step else None
    return Finetuned(Scores(scores), lr, (0, *EPOCHS)[step])


def _first_best(pooled: Tensor) -> tuple[int, int]:
    """Rate and step of the best pooled score; among equals the fewest epochs, then the gentlest rate."""
    rates, steps = pooled.shape
    order = [(float(pooled[r, s]), -s, r) for r in range(rates) for s in range(steps)]
    _, step, rate = max(order)
    return rate, -step
