"""Clients that were not there: held out of training, they start from what it left and adapt for a while."""

from __future__ import annotations

import numpy as np
import torch

from equipoise.contract import Down, Task, Train
from equipoise.core import streams
from equipoise.core.errors import UsageError
from equipoise.methods.fedavg import FedAvg
from equipoise.records.results import Newcomers
from equipoise.records.scores import Scores
from equipoise.runtime.choose import Choice
from equipoise.runtime.executors import fresh_clients
from equipoise.runtime.round import Simulation

EPOCHS = (0, 1, 5)


def hold_out(task: Task, share: float, seed: int) -> Task:
    """The task without a share of its clients, drawn by the seed; they wait in its ``newcomers``."""
    count = max(1, round(share * task.clients))
    if count >= task.clients:
        raise UsageError(f"holdout_clients {share} leaves nobody of {task.clients} clients to train: lower it")
    order = streams.generator(seed, streams.NEWCOMERS).permutation(task.clients)
    members = task.subset(np.sort(order[count:]))
    members.newcomers = task.subset(np.sort(order[:count]))
    return members


def newcomers(simulation: Simulation, choice: Choice) -> Newcomers:
    """Scores on the newcomers' own test data after 0, 1 and 5 epochs of local training; of agents, after some steps.

    They start from the server's model: its shared blocks as trained, blocks that never travel as they were at first.
    """
    task = simulation.task
    assert task.newcomers is not None
    there, s = task.newcomers, simulation.schedule
    training = simulation.training.at(s.rounds, s.rounds)
    adapted = task.adapted(simulation.method, simulation.params, s.seed)
    if adapted is not None:
        return Newcomers(there.clients, {int(steps): Scores(scores) for steps, scores in adapted.items()})
    ids, method = torch.arange(there.clients), FedAvg()
    executor = choice.make(method, there, training, s.seed, s.rounds)
    lr = torch.full((len(ids),), training.lr, dtype=torch.float64)
    after: dict[int, Scores] = {}
    for epochs in EPOCHS:
        train = Train(torch.full_like(ids, epochs), lr)
        down = Down(simulation.params, dict.fromkeys(there.blocks, True), train)
        held = fresh_clients(method, there, ids, simulation.params, keeps_local=False)
        reply = executor.run(s.rounds + 1, ids, down, held, ("test",)).stack
        assert reply is not None
        scores = reply.scores["test"]["trained"]
        means = {name: float(value.double().mean()) for name, value in scores.items()}
        after[epochs] = Scores({**means, "std": float(scores[there.headline].double().std(correction=0))})
    return Newcomers(there.clients, after)
