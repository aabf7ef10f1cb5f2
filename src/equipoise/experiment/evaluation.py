"""Personal models of all clients seen, in parts: however many clients there are, few of their models are in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from equipoise.core import (
    Capabilities,
    Client,
    ClientState,
    ClientUpdate,
    LocalHParams,
    Method,
    Params,
    ServerMessage,
    State,
    SupervisedTask,
    Task,
)
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.local import Local
from equipoise.records.scores import ClientFinalScores, Evaluations, Scores
from equipoise.records.summary import Finetuned, Newcomers
from equipoise.simulation.executor_selection import EXECUTORS, ExecutorPlan, MakeExecutor
from equipoise.simulation.executors import init_client_states
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig
from equipoise.utils import pytree, rng
from equipoise.utils.errors import UsageError
from equipoise.utils.pytree import Ints

AT_ONCE = (
    250  # clients: with the rows and the outputs of so many, scoring stays small beside a round
)
Parts = Iterable[tuple[Ints, Params]]
"""Some clients and the stack of their models, part by part."""


def parted(ids: Ints) -> list[Ints]:
    """These clients, a bounded number in each part; one empty part of nobody."""
    return [ids[first : first + AT_ONCE] for first in range(0, max(1, len(ids)), AT_ONCE)]


def personal_parts(simulation: FederatedSimulation) -> Parts:
    """Clients seen and the stack of their personal models, part by part; empty stacks where none are kept."""
    return map(simulation.personal_models, parted(simulation.store.ids))


@dataclass(frozen=True)
class FinalScores:
    """What is known of the last models beyond the evaluations of rounds."""

    global_: Mapping[str, float] = field(default_factory=dict)
    personal: Params = field(default_factory=dict)
    """Scores ``[K]`` of the personal models of all clients seen."""
    columns: Mapping[str, list[float]] = field(default_factory=dict)
    """For the table of clients: the headline's interval, and the metric of whoever is to beat."""

    def added_to(self, test: Evaluations) -> Evaluations:
        """The evaluations of the last round with the scores that they lack."""
        means = {name: float(value.double().nanmean()) for name, value in self.personal.items()}
        return replace(
            test, global_=_with(test.global_, self.global_), personal=_with(test.personal, means)
        )

    @property
    def undefined(self) -> dict[str, int]:
        """Clients for which a score does not exist, such as the AUC of one class alone."""
        counts = {
            name: int((~torch.isfinite(value)).sum()) for name, value in self.personal.items()
        }
        return {name: count for name, count in counts.items() if count}


def _with(scores: Scores, more: Mapping[str, float]) -> Scores:
    return Scores(
        {**scores, **{name: value for name, value in more.items() if name not in scores}}
        if scores
        else {}
    )


def final_scores(
    simulation: FederatedSimulation, *, local_baseline: bool, make: MakeExecutor
) -> FinalScores:
    """For models that are here; clients that are elsewhere score their own, and say it."""
    task, method = simulation.task.with_all_metrics(), simulation.method
    if task is simulation.task:
        return FinalScores()
    found: dict[str, float] = {}
    with torch.no_grad():
        if method.has_global(task):
            whole = task.evaluate_server(
                {name: value.unsqueeze(0) for name, value in simulation.params.items()}, "test"
            )
            found = {name: float(value[0]) for name, value in whole.items()}
        if not simulation.executor.keeps_models:
            return _reported_scores(found, simulation)
        personal = _evaluated(task, personal_parts(simulation), len(simulation.store.ids))
        columns: dict[str, list[float]] = {}
        if personal and isinstance(task, SupervisedTask) and task.client_names:
            columns = _beside(task, personal_parts(simulation), simulation.schedule.seed)
            if local_baseline:
                columns[f"local_{task.metric}"] = _local_baseline(simulation, make).tolist()
    return FinalScores(found, personal, columns)


def _evaluated(task: Task, parts: Parts, clients: int) -> Params:
    """Each model on its own client's test rows.

    Room for the scores of all is made once: small tensors that were kept between the large ones of each part would keep
    the memory of all parts from being used again.
    """
    found: Params = {}
    done = 0
    for ids, models in parts:
        if models:
            scores = task.evaluate_stack(torch.from_numpy(ids), models, "test")
            found = found or {name: value.new_empty(clients) for name, value in scores.items()}
            for name, value in scores.items():
                found[name][done : done + len(ids)] = value
        done += len(ids)
    return found


def _beside(task: SupervisedTask, parts: Parts, seed: int) -> dict[str, list[float]]:
    """Client by client: only those with names are looked at so."""
    each = [
        client_baselines(task, int(client), pytree.index(models, k), seed)
        for ids, models in parts
        for k, client in enumerate(ids)
    ]
    return {name: [one[name] for one in each] for name in each[0]}


def client_baselines(
    task: SupervisedTask, client: int, model: Params, seed: int
) -> dict[str, float]:
    """The interval of one client's headline, and the metric of who predicts the same for every row."""
    head = task.metric
    low, high = task.confidence_interval(client, model, rng.generator(seed, rng.BOOTSTRAP, client))
    constant = float(task.constant_baseline(client)[head])
    return {
        f"personal_{head}_low": low,
        f"personal_{head}_high": high,
        f"constant_{head}": constant,
    }


def own_scores(task: Task, client: int, model: Params, seed: int) -> ClientFinalScores:
    """All that a client can say of its own model."""
    task = task.with_all_metrics()
    with torch.no_grad():
        scores = {
            name: float(value)
            for name, value in task.evaluate(torch.tensor(client), model, "test").items()
        }
        more = (
            client_baselines(task, client, model, seed)
            if isinstance(task, SupervisedTask) and task.client_names
            else {}
        )
        return ClientFinalScores(scores, more)


def _reported_scores(found: Mapping[str, float], simulation: FederatedSimulation) -> FinalScores:
    """From clients that keep their models and rows to themselves; what one does not say is not a number."""
    ids: list[int] = simulation.store.ids.tolist()
    told = simulation.executor.final_scores(simulation.store.ids)

    def columns(part: str) -> dict[str, list[float]]:
        parts: dict[int, Mapping[str, float]] = {
            client: getattr(own, part) for client, own in told.items()
        }
        names = dict.fromkeys(name for one in parts.values() for name in one)
        return {name: [parts.get(client, {}).get(name, np.nan) for client in ids] for name in names}

    personal = {
        name: torch.tensor(values, dtype=torch.float64)
        for name, values in columns("scores").items()
    }
    return FinalScores(found, personal, columns("beside"))


def _local_baseline(simulation: FederatedSimulation, make: MakeExecutor) -> Tensor:
    """The metric of clients that train by themselves, in as many rounds."""
    s, task = simulation.schedule, simulation.task
    schedule = RoundLoopConfig(
        s.num_rounds, s.seed, s.participation, s.executor, s.num_rounds, keep_models=True
    )
    alone = FederatedSimulation(Local(), task, simulation.training, schedule, make)
    for _ in range(s.num_rounds):
        alone.run_round()
    parts = ((ids, alone.store.held(ids).local_params) for ids in parted(simulation.store.ids))
    return _evaluated(task, parts, len(simulation.store.ids))[task.metric].double()


EPOCHS = (0, 1, 5)


def hold_out(task: Task, share: float, seed: int) -> Task:
    """The task without a share of its clients, drawn by the seed; they wait in its ``newcomers``."""
    count = max(1, round(share * task.num_clients))
    if count >= task.num_clients:
        raise UsageError(
            f"holdout_clients {share} leaves nobody of {task.num_clients} clients to train: lower it"
        )
    order = rng.generator(seed, rng.NEWCOMERS).permutation(task.num_clients)
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
        return Newcomers(
            there.num_clients, {int(steps): Scores(scores) for steps, scores in adapted.items()}
        )
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
        after[epochs] = Scores(
            {**means, "std": float(scores[there.metric].double().std(correction=0))}
        )
    return Newcomers(there.num_clients, after)


SHARES_OF_RATE = (1.0, 0.3, 0.1, 0.03)
EPOCHS_FINETUNING = (1, 2, 3, 5, 8, 12, 20)  # looked at on the way


@dataclass(frozen=True)
class Sweep(Method):
    """Every client tunes its personal model at every rate and reports scores on the way: ``[rates, 1 + epochs]``."""

    name: ClassVar[str] = "fine-tuning sweep"
    capabilities: ClassVar[Capabilities] = Capabilities(aggregates_by_sum=True)
    default_shared_blocks: ClassVar[tuple[str, ...]] = ()

    def train(self, client: Client) -> tuple[Params, State]:
        paths = [self._path(client, number, share) for number, share in enumerate(SHARES_OF_RATE)]
        scores = {name: torch.stack([path[name] for path in paths]) for name in paths[0]}
        return client.start, scores

    def upload(self, client: Client) -> tuple[ClientUpdate, State]:
        return ClientUpdate({}, metrics=client.state), client.state

    def _path(self, client: Client, number: int, share: float) -> Params:
        params, done, seen = client.start, 0, [self._scores(client, client.start)]
        for epochs in EPOCHS_FINETUNING:
            train = LocalHParams(
                torch.full_like(client.hparams.epochs, epochs - done), client.hparams.lr * share
            )
            params = client.fit(
                params, hparams=train, stream=number * len(EPOCHS_FINETUNING) + len(seen)
            )
            done = epochs
            seen.append(self._scores(client, params))
        return {name: torch.stack([scores[name] for scores in seen]) for name in seen[0]}

    @staticmethod
    def _scores(client: Client, params: Params) -> Params:
        return {
            f"{split} {name}": v
            for split in ("val", "test")
            for name, v in client.evaluate(params, split).items()
        }


def finetuned(simulation: FederatedSimulation) -> Finetuned:
    """Scores of the tuned personal models over all clients seen, and the choice that was made."""
    task, schedule = simulation.task, simulation.schedule
    last = simulation.training.at(schedule.num_rounds, schedule.num_rounds)
    ids, models = simulation.personal_models()
    executor = EXECUTORS[schedule.executor](Sweep(), task, last, schedule.seed, schedule.num_rounds)
    held = ClientState(models, {}, task.init_data_state(torch.from_numpy(ids)))
    down = ServerMessage(simulation.params, dict.fromkeys(task.blocks, False))
    reply = executor.run_clients(
        schedule.num_rounds + 1, torch.from_numpy(ids), down, held, ()
    ).stack
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
    return Finetuned(Scores(scores), lr, (0, *EPOCHS_FINETUNING)[step])


def _first_best(pooled: Tensor) -> tuple[int, int]:
    """Rate and step of the best pooled score; among equals the fewest epochs, then the gentlest rate."""
    rates, steps = pooled.shape
    order = [(float(pooled[r, s]), -s, r) for r in range(rates) for s in range(steps)]
    _, step, rate = max(order)
    return rate, -step
