"""Clients that were not there: held out of training, they start from what it left and adapt for a while."""

from __future__ import annotations

import numpy as np
import torch

from equipoise.contract import ServerMessage, Task, LocalHParams
from equipoise.core import streams
from equipoise.core.errors import UsageError
from equipoise.methods.fedavg import FedAvg
from equipoise.records.results import Newcomers
from equipoise.records.scores import Scores
from equipoise.runtime.choose import ExecutorPlan
from equipoise.runtime.executors import init_client_states
from equipoise.runtime.round import FederatedSimulation

EPOCHS = (0, 1, 5)


def hold_out(task: Task, share: float, seed: int) -> Task:
    """The task without a share of its clients, drawn by the seed; they wait in its ``newcomers``."""
    count = max(1, round(share * task.num_clients))
    if count >= task.num_clients:
        raise UsageError(f"holdout_clients {share} leaves nobody of {task.num_clients} clients to train: lower it")
    order = streams.generator(seed, streams.NEWCOMERS).permutation(task.num_clients)
    members = task.subset(np.sort(order[count:]))
    members.heldout_clients = task.subset(np.sort(order[:count]))
    return members


def score_heldout_clients(simulation: FederatedSimulation, choice: ExecutorPlan) -> Newcomers:
    """Scores on the newcomers' own test data after 0, 1 and 5 epochs of local training; of agents, after some steps.

    They start from the server's model: its shared blocks as trained, blocks that never travel as they were at first.
    """
    task = simulation.task
    assert task.heldout_clients is not None
    there, s = task.heldout_clients, simulation.schedule
    training = simulation.training.at(s.num_rounds, s.num_rounds)
    adapted = task.adaptation_scores(simulation.method, simulation.params, s.seed)
    if adapted is not None:
        return Newcomers(there.num_clients, {int(steps): Scores(scores) for steps, scores in adapted.items()})
    ids, method = torch.arange(there.num_clients), FedAvg()
    executor = choice.make(method, there, training, s.seed, s.num_rounds)
    lr = torch.full((len(ids),), training.lr, dtype=torch.float64)
    after: dict[int, Scores] = {}
    for epochs in EPOCHS:
        train = LocalHParams(torch.full_like(ids, epochs), lr)
        down = ServerMessage(simulation.params, dict.fromkeys(there.blocks, True), train)
        held = init_client_states(method, there, ids, simulation.params, keeps_local=False)
        reply = executor.run_clients(s.num_rounds + 1, ids, down, held, ("test",)).stack
        assert reply is not None
        scores = reply.scores["test"]["trained"]
        means = {name: float(value.double().mean()) for name, value in scores.items()}
        after[epochs] = Scores({**means, "std": float(scores[there.metric].double().std(correction=0))})
    return Newcomers(there.num_clients, after)
