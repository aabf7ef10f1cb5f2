"""Scores of a finished run: all that the task knows, each client's with its interval and beside what it must beat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from equipoise.contract import SupervisedTask, Task, Params
from equipoise.core import streams, trees
from equipoise.methods.local import Local
from equipoise.records.scores import Evaluations, ClientFinalScores, Scores
from equipoise.runs.personal import Parts, parted, personal_parts
from equipoise.runtime.choose import MakeExecutor
from equipoise.runtime.round import RoundLoopConfig, FederatedSimulation


@dataclass(frozen=True)
class FinalScores:
    """What is known of the last models beyond the evaluations of rounds."""

    global_: Mapping[str, float] = field(default_factory=dict)
    personal: Params = field(default_factory=dict)
    """Scores ``[K]`` of the personal models of all clients seen."""
    columns: Mapping[str, list[float]] = field(default_factory=dict)
    """For the table of clients: the headline's interval, and the headline of whoever is to beat."""

    def added_to(self, test: Evaluations) -> Evaluations:
        """The evaluations of the last round with the scores that they lack."""
        means = {name: float(value.double().nanmean()) for name, value in self.personal.items()}
        return replace(test, global_=_with(test.global_, self.global_), personal=_with(test.personal, means))

    @property
    def undefined(self) -> dict[str, int]:
        """Clients for which a score does not exist, such as the AUC of one class alone."""
        counts = {name: int((~torch.isfinite(value)).sum()) for name, value in self.personal.items()}
        return {name: count for name, count in counts.items() if count}


def _with(scores: Scores, more: Mapping[str, float]) -> Scores:
    return Scores({**scores, **{name: value for name, value in more.items() if name not in scores}} if scores else {})


def final_scores(simulation: FederatedSimulation, *, beside_local: bool, make: MakeExecutor) -> FinalScores:
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
            if beside_local:
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
        client_baselines(task, int(client), trees.index(models, k), seed) for ids, models in parts for k, client in enumerate(ids)
    ]
    return {name: [one[name] for one in each] for name in each[0]}


def client_baselines(task: SupervisedTask, client: int, model: Params, seed: int) -> dict[str, float]:
    """The interval of one client's headline, and the headline of who predicts the same for every row."""
    head = task.metric
    low, high = task.confidence_interval(client, model, streams.generator(seed, streams.BOOTSTRAP, client))
    constant = float(task.constant_baseline(client)[head])
    return {f"personal_{head}_low": low, f"personal_{head}_high": high, f"constant_{head}": constant}


def own_scores(task: Task, client: int, model: Params, seed: int) -> ClientFinalScores:
    """All that a client can say of its own model."""
    task = task.with_all_metrics()
    with torch.no_grad():
        scores = {name: float(value) for name, value in task.evaluate(torch.tensor(client), model, "test").items()}
        more = client_baselines(task, client, model, seed) if isinstance(task, SupervisedTask) and task.client_names else {}
        return ClientFinalScores(scores, more)


def _reported_scores(found: Mapping[str, float], simulation: FederatedSimulation) -> FinalScores:
    """From clients that keep their models and rows to themselves; what one does not say is not a number."""
    ids: list[int] = simulation.store.ids.tolist()
    told = simulation.executor.final_scores(simulation.store.ids)

    def columns(part: str) -> dict[str, list[float]]:
        parts: dict[int, Mapping[str, float]] = {client: getattr(own, part) for client, own in told.items()}
        names = dict.fromkeys(name for one in parts.values() for name in one)
        return {name: [parts.get(client, {}).get(name, np.nan) for client in ids] for name in names}

    personal = {name: torch.tensor(values, dtype=torch.float64) for name, values in columns("scores").items()}
    return FinalScores(found, personal, columns("beside"))


def _local_baseline(simulation: FederatedSimulation, make: MakeExecutor) -> Tensor:
    """The headline of clients that train by themselves, in as many rounds."""
    s, task = simulation.schedule, simulation.task
    schedule = RoundLoopConfig(s.num_rounds, s.seed, s.participation, s.executor, s.num_rounds, keep_models=True)
    alone = FederatedSimulation(Local(), task, simulation.training, schedule, make)
    for _ in range(s.num_rounds):
        alone.run_round()
    parts = ((ids, alone.store.held(ids).local_params) for ids in parted(simulation.store.ids))
    return _evaluated(task, parts, len(simulation.store.ids))[task.metric].double()
