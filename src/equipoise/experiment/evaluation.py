"""Scores after the last round: all metrics, baselines, held-out clients, local fine-tuning.

Personal models are scored in batches of clients, so that few of them are in memory at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from equipoise.core import (
    Capabilities,
    Client,
    ClientState,
    ClientUpdate,
    ExperimentTask,
    LocalHParams,
    Method,
    Params,
    ServerMessage,
    State,
    SupervisedTask,
    Task,
    TrainingConfig,
    option,
)
from equipoise.environments.deep_task import DeepRLTask
from equipoise.environments.heldout import heldout_returns
from equipoise.experiment.adaptation import (
    FINETUNE_EPOCHS,
    FINETUNE_LR_FACTORS,
    newcomer_round,
)
from equipoise.experiment.hazard import BaselineHazard, fit_hazard
from equipoise.experiment.row_outputs import (
    CONSTANT,
    GLOBAL,
    LOCAL,
    PERSONAL,
    RowOutputs,
    only_class,
    resample,
    site_scores,
)
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.local import Local
from equipoise.records.scores import ClientFinalScores, Evaluations, Scores
from equipoise.records.summary import Finetuned, ModelScore, Newcomers
from equipoise.simulation.executor_selection import EXECUTORS, ExecutorPlan, MakeExecutor
from equipoise.simulation.executors import CohortRequest, Loop, init_client_states
from equipoise.simulation.server_loop import FederatedSimulation
from equipoise.tasks.supervised import ExamplesTask
from equipoise.utils import pytree, rng
from equipoise.utils.errors import UsageError
from equipoise.utils.pytree import Ints

CLIENTS_PER_BATCH = 250  # bounds the memory of scoring: rows and outputs of 250 clients
ADAPTATION_EPOCHS = (0, 1, 5)  # local training of held-out clients before they are scored
LOWER_RATES = (0.25, 0.0625, 0.015625)
"""Multiples of the rate at which a client whose own training diverged is trained again."""
MIN_GAIN_ERRORS = 2.0  # standard errors by which fine-tuning must pay on validation rows
ModelBatches = Iterable[tuple[Ints, Params]]
"""Batches of clients: ids ``[K]`` and the stack of their models ``[K, ...]``."""


def client_batches(ids: Ints) -> list[Ints]:
    """Split clients into batches of bounded size; one empty batch if there are no clients."""
    starts = range(0, max(1, len(ids)), CLIENTS_PER_BATCH)
    return [ids[start : start + CLIENTS_PER_BATCH] for start in starts]


def personal_model_batches(simulation: FederatedSimulation) -> ModelBatches:
    """Iterate over the personal models of all participants; stacks are empty if none are kept."""
    return map(simulation.personal_models, client_batches(simulation.store.ids))


@dataclass(frozen=True)
class FinalScores:
    """Scores of the last models beyond the evaluations of rounds."""

    global_: Mapping[str, float] = field(default_factory=dict)
    personal: Params = field(default_factory=dict)
    """Scores ``[K]`` of the personal models of all participants."""
    columns: Mapping[str, list[float]] = field(default_factory=dict)
    """Further columns of clients.csv: confidence interval and baselines of the metric."""
    same_rows: dict[str, ModelScore] = field(default_factory=dict)
    """The metric on the clients' test rows, by kind of model."""
    outputs: Mapping[str, RowOutputs] = field(default_factory=dict)
    """What all kinds of models say about the test and validation rows of named clients."""
    hazard: BaselineHazard | None = None
    """Baseline hazard of survival, from the training rows."""
    baselines: Params = field(default_factory=dict)
    """Constant and local models of named clients, as ``baselines.safetensors`` has them."""

    def added_to(self, test: Evaluations) -> Evaluations:
        """Return the evaluations of the last round with the scores that they lack."""
        means = {name: float(value.double().nanmean()) for name, value in self.personal.items()}
        return replace(
            test, global_=_with(test.global_, self.global_), personal=_with(test.personal, means)
        )

    @property
    def undefined(self) -> dict[str, int]:
        """Number of clients without a score, such as the AUC if there is one class only."""
        counts = {
            name: int((~torch.isfinite(value)).sum()) for name, value in self.personal.items()
        }
        return {name: count for name, count in counts.items() if count}


def _with(scores: Scores, others: Mapping[str, float]) -> Scores:
    """Add the scores that are missing; empty scores stay empty."""
    if not scores:
        return Scores({})
    missing = {name: value for name, value in others.items() if name not in scores}
    return Scores({**scores, **missing})


def final_scores(
    simulation: FederatedSimulation, *, local_baseline: bool, make: MakeExecutor
) -> FinalScores:
    """Score the last models with all metrics.

    Args:
        simulation: The finished simulation.
        local_baseline: Whether to train every client alone as a baseline.
        make: Makes the executor of that baseline.

    Returns:
        The scores; remote clients score their own models and report the result. Without a test
        split there are baselines, but no scores.
    """
    task = simulation.task.with_all_metrics()
    if task is simulation.task:
        return FinalScores()
    global_metrics: dict[str, float] = {}
    has_test = task.has_split("test")
    with torch.no_grad():
        if simulation.method.has_global(task) and has_test:
            stack = {name: value.unsqueeze(0) for name, value in simulation.params.items()}
            scores = task.evaluate_server(stack, "test")
            global_metrics = {name: float(value[0]) for name, value in scores.items()}
        if not simulation.executor.keeps_models:
            return _reported_scores(global_metrics, simulation)
        final = FinalScores(global_metrics)
        if has_test:
            final = _client_scores(task, simulation, final)
        has_models = bool(final.personal) or not has_test
        if has_models and isinstance(task, ExamplesTask) and task.info.client_names:
            final = _with_baselines(task, simulation, final, local_baseline, make)
    return final


def _client_scores(task: Task, simulation: FederatedSimulation, final: FinalScores) -> FinalScores:
    """Add the scores of personal and global models on the clients' own test rows."""
    ids = simulation.store.ids
    personal = _score_models(task, personal_model_batches(simulation), len(ids))
    same_rows: dict[str, ModelScore] = {}
    if personal and isinstance(task, ExamplesTask):
        num_rows = task.num_rows(torch.from_numpy(ids), "test")
        same_rows[PERSONAL] = mean_scores(
            personal[task.info.metric], num_rows, task.info.higher_is_better
        )
        if simulation.method.has_global(task):
            primary = task.with_primary_metric(task.info.metric)
            values = _score_models(primary, _global_model_batches(simulation), len(ids))
            same_rows[GLOBAL] = mean_scores(
                values[task.info.metric], num_rows, task.info.higher_is_better
            )
    return replace(final, personal=personal, same_rows=same_rows)


def mean_scores(values: Tensor, num_rows: Tensor, higher_is_better: bool) -> ModelScore:
    """Average a score over clients, each client alike and each row alike.

    Args:
        values: Score of each client ``[K]``; NaN if it is undefined.
        num_rows: Rows of each client ``[K]``.
        higher_is_better: Whether a larger score is better.

    Returns:
        Both means.
    """
    values = values.double()
    known = torch.isfinite(values)
    if not bool(known.any()):
        return ModelScore(None, None, 0)
    weight = num_rows[known].double()
    weighted = float((values[known] * weight).sum() / weight.sum())
    decile = float(np.quantile(values[known].numpy(), 0.1 if higher_is_better else 0.9))
    return ModelScore(float(values[known].mean()), weighted, int(known.sum()), decile)


def _global_model_batches(simulation: FederatedSimulation) -> ModelBatches:
    """Iterate over the clients as if each of them used the global model."""
    for ids in client_batches(simulation.store.ids):
        stack = {
            name: value.expand(len(ids), *value.shape) for name, value in simulation.params.items()
        }
        yield ids, stack


def _with_baselines(
    task: ExamplesTask,
    simulation: FederatedSimulation,
    final: FinalScores,
    local_baseline: bool,
    make: MakeExecutor,
) -> FinalScores:
    """Add constants, local models, and what all models say about the clients' rows."""
    ids = simulation.store.ids
    constants = torch.stack([constant_outputs(task, int(client)) for client in ids])
    baselines: Params = {"client_ids": torch.from_numpy(ids), CONSTANT: constants}
    models: dict[str, ModelBatches] = {}
    if local_baseline:
        local = _train_alone(simulation, make)
        baselines |= {f"{LOCAL}.{name}": value for name, value in local.items()}
        models[LOCAL] = _batches_of(ids, local)
    if simulation.method.has_global(task):
        models[GLOBAL] = _global_model_batches(simulation)
    models[PERSONAL] = personal_model_batches(simulation)
    splits = [split for split in ("test", "val") if task.has_split(split)]
    if task.info.target_kind == "survival":
        splits.append("train")
    by_model = {name: _row_outputs(task, batches, splits) for name, batches in models.items()}
    outputs = {split: _split_outputs(task, ids, split, by_model, constants) for split in splits}
    if "train" in outputs:
        final = replace(final, hazard=fit_hazard(outputs.pop("train"), ids.tolist()))
    if "test" not in outputs:
        return replace(final, outputs=outputs, baselines=baselines)
    seed = simulation.schedule.seed
    columns = _baseline_columns(task, personal_model_batches(simulation), seed)
    num_rows = task.num_rows(torch.from_numpy(ids), "test")
    columns["test_rows"] = num_rows.tolist()
    same_rows = dict(final.same_rows)
    for name in (GLOBAL, LOCAL, CONSTANT):
        if name not in outputs["test"].outputs:
            continue
        scores = site_scores(outputs["test"], task.objective, name, task.info.metric)
        columns[f"{name}_{task.info.metric}"] = scores.tolist()
        same_rows[name] = mean_scores(scores, num_rows, task.info.higher_is_better)
    return replace(
        final, columns=columns, same_rows=same_rows, outputs=outputs, baselines=baselines
    )


def _split_outputs(
    task: ExamplesTask,
    ids: Ints,
    split: str,
    by_model: Mapping[str, Mapping[str, Tensor]],
    constants: Tensor,
) -> RowOutputs:
    """Return the rows of a split with what all models and the constants say about them."""
    rows = _labelled_rows(task, ids, split)
    outputs = {name: parts[split] for name, parts in by_model.items() if split in parts}
    outputs[CONSTANT] = constants[torch.from_numpy(rows.site)]
    return replace(rows, outputs=outputs)


def constant_outputs(task: ExamplesTask, client: int) -> Tensor:
    """Return the outputs ``[outputs]`` of the best constant prediction for a client."""
    _, y = task.client_rows(client, "train")
    return task.objective.constant_output(y).float()


def _labelled_rows(task: ExamplesTask, ids: Ints, split: str) -> RowOutputs:
    """Return the rows of a split without outputs, in the order of the clients."""
    own = task.data.split(ids, split)
    site = np.repeat(np.arange(len(ids)), own.size)
    within = np.arange(len(site)) - np.repeat(np.cumsum(own.size) - own.size, own.size)
    place = np.repeat(own.start, own.size) + within
    row = task.data.row_ids[split][place] if split in task.data.row_ids else place
    names = tuple(task.info.client_names[k] for k in ids)
    return RowOutputs(names, site, row.astype(np.int64), own.y[torch.from_numpy(place)], {})


def _row_outputs(
    task: ExamplesTask, batches: ModelBatches, splits: Sequence[str]
) -> dict[str, Tensor]:
    """Return what each client's model says about the client's rows, by split."""
    parts: dict[str, list[Tensor]] = {split: [] for split in splits}
    for ids, models in batches:
        for k, client in enumerate(ids):
            model = pytree.to_device(pytree.index(models, k), task.device)
            for split in splits:
                x, _ = task.client_rows(int(client), split)
                parts[split].append(task.logits(model, x).float().cpu())
    return {split: torch.cat(outputs) for split, outputs in parts.items() if outputs}


def _score_models(task: Task, batches: ModelBatches, clients: int) -> Params:
    """Score each model on the test rows of its client.

    The result is allocated once: small tensors kept between the large ones of each batch would
    fragment the memory.
    """
    all_scores: Params = {}
    first = 0
    for ids, models in batches:
        if models:
            scores = task.evaluate_stack(torch.from_numpy(ids), models, "test")
            all_scores = all_scores or {
                name: value.new_empty(clients) for name, value in scores.items()
            }
            for name, value in scores.items():
                all_scores[name][first : first + len(ids)] = value
        first += len(ids)
    return all_scores


def _baseline_columns(
    task: SupervisedTask, batches: ModelBatches, seed: int
) -> dict[str, list[float]]:
    """Return intervals and baselines of all clients, as columns."""
    each = [
        client_baselines(task, int(client), pytree.index(models, k), seed)
        for ids, models in batches
        for k, client in enumerate(ids)
    ]
    return {name: [one[name] for one in each] for name in each[0]}


def client_baselines(
    task: SupervisedTask, client: int, model: Params, seed: int
) -> dict[str, float]:
    """Return the confidence interval of a client's metric, and the constant baseline.

    Args:
        task: Task with the client's data.
        client: Client id.
        model: Personal model of the client.
        seed: Seed of the bootstrap.

    Returns:
        Values by column of clients.csv.
    """
    metric = task.info.metric
    low, high = task.confidence_interval(client, model, rng.generator(seed, rng.BOOTSTRAP, client))
    constant = float(task.constant_baseline(client)[metric])
    return {
        f"personal_{metric}_low": low,
        f"personal_{metric}_high": high,
        f"constant_{metric}": constant,
    }


def own_scores(
    task: Task,
    client: int,
    model: Params,
    seed: int,
    rivals: Mapping[str, Params] | None = None,
) -> ClientFinalScores:
    """Score the model of one client, as a remote client does.

    Args:
        task: Task with the client's data.
        client: Client id.
        model: Personal model of the client.
        seed: Seed of the bootstrap.
        rivals: Other models for this client by kind, which are scored on the same rows.

    Returns:
        All scores and baselines of the client.
    """
    task = task.with_all_metrics()
    with torch.no_grad():
        scores = {
            name: float(value)
            for name, value in task.evaluate(torch.tensor(client), model, "test").items()
        }
        more: dict[str, float] = {}
        if isinstance(task, SupervisedTask) and task.info.client_names:
            more = client_baselines(task, client, model, seed)
        if rivals and isinstance(task, ExamplesTask):
            more |= compare_models(task, client, {PERSONAL: model, **rivals})
        return ClientFinalScores(scores, more)


def compare_models(
    task: ExamplesTask, client: int, models: Mapping[str, Params]
) -> dict[str, float]:
    """Score a client's models and the constant on its own test rows, paired.

    Args:
        task: Task with the client's data.
        client: Client id.
        models: Models by kind: ``personal``, and ``global`` or ``local``.

    Returns:
        Values by column of clients.csv: see :func:`comparison_columns`. The gain of the personal
        over the local model is positive if it is better, of errors too.
    """
    rows = site_rows(task, client, models)
    metric = task.info.metric
    scores = resample([rows], task.data.target, metric)
    personal = scores.at_site(PERSONAL, 0)
    values = [float(len(rows.y)), personal.low, personal.high]
    values += [scores.at_site(name, 0).value for name in (CONSTANT, *models) if name != PERSONAL]
    if LOCAL in models:
        pair = (PERSONAL, LOCAL) if task.info.higher_is_better else (LOCAL, PERSONAL)
        gain = scores.site_difference(*pair, 0)
        values += [gain.value, gain.low, gain.high]
    values.append(float(bool(only_class(rows, task.data.target, PERSONAL))))
    return dict(zip(comparison_columns(metric, models), values, strict=True))


def site_rows(
    task: ExamplesTask,
    client: int,
    models: Mapping[str, Params],
    name: str = "",
    split: str = "test",
) -> RowOutputs:
    """Return what the models of one client, and the constant, say about its rows.

    Args:
        task: Task with the client's data.
        client: Client id.
        models: Models by kind.
        name: Name of the client; its id if empty.
        split: Split of its rows.

    Returns:
        The rows with their outputs by kind of model.
    """
    x, y = task.client_rows(client, split)
    with torch.no_grad():
        outputs = {kind: task.logits(model, x).float().cpu() for kind, model in models.items()}
    outputs[CONSTANT] = constant_outputs(task, client).expand(len(x), -1)
    places = np.arange(len(x))
    return RowOutputs((name or str(client),), np.zeros_like(places), places, y, outputs)


def comparison_columns(metric: str, kinds: Iterable[str]) -> list[str]:
    """Return the columns of :func:`compare_models`.

    Args:
        metric: Main metric of the task.
        kinds: Kinds of models, ``personal`` among them.

    Returns:
        Names: number of test rows, interval of the personal model, scores of the others, gain over
        the local model with its interval, and whether the personal model predicts one class.
    """
    kinds = list(kinds)
    names = ["test_rows", f"{PERSONAL}_{metric}_low", f"{PERSONAL}_{metric}_high"]
    names += [f"{kind}_{metric}" for kind in (CONSTANT, *kinds) if kind != PERSONAL]
    if LOCAL in kinds:
        names += ["gain_over_own", "gain_over_own_low", "gain_over_own_high"]
    return [*names, "one_class"]


def train_alone(
    task: Task, client: int, training: TrainingConfig, config: LocalBaselineConfig
) -> Params:
    """Train one client alone, as a remote client does: the baseline without communication.

    Args:
        task: Task with the client's data.
        client: Client id.
        training: Local training.
        config: Seed and rounds.

    Returns:
        The model.
    """
    method = Local()
    executor = Loop(method, task, training, config.seed, config.planned_rounds)
    id = torch.tensor(client)
    initial = task.init_params(config.seed)
    message = ServerMessage(initial, dict.fromkeys(task.info.blocks, False))
    with torch.no_grad():
        states = init_client_states(method, task, id.reshape(1), initial, keeps_local=True)
        state: ClientState = pytree.index(states, 0)
        for round in range(1, config.rounds + 1):
            request = CohortRequest(round, id, message, state, splits=())
            state = executor.run_client(request).client_state
    return state.local_params


class LocalBaselineConfig(NamedTuple):
    """How long a client trains alone."""

    seed: int
    """Seed of the run."""
    rounds: int
    """Rounds that it trains."""
    planned_rounds: int
    """Rounds that the run planned, which schedules of the learning rate follow."""


def _reported_scores(
    global_metrics: Mapping[str, float], simulation: FederatedSimulation
) -> FinalScores:
    """Add the scores that remote clients report to those of the server; a missing one is NaN."""
    ids: list[int] = simulation.store.ids.tolist()
    has_global = simulation.method.has_global(simulation.task)
    params = simulation.params if has_global else {}
    reported = simulation.executor.final_scores(
        simulation.store.ids, params, simulation.rounds_done
    )

    scores = _columns_of({client: own.scores for client, own in reported.items()}, ids)
    personal = {name: torch.tensor(values, dtype=torch.float64) for name, values in scores.items()}
    columns = _columns_of({client: own.columns for client, own in reported.items()}, ids)
    return FinalScores(global_metrics, personal, columns)


def _columns_of(
    numbers: Mapping[int, Mapping[str, float]], ids: list[int]
) -> dict[str, list[float]]:
    """Return the numbers of clients as columns in the order of `ids`; a missing one is NaN."""
    names = dict.fromkeys(name for by_name in numbers.values() for name in by_name)
    return {name: [numbers.get(client, {}).get(name, np.nan) for client in ids] for name in names}


@dataclass(frozen=True)
class SlowLocal(Local):
    """Local training at a multiple of the configured rate."""

    name: ClassVar[str] = "local training at a lower rate"
    rate_factor: float = option(1.0, "multiple of the configured rate", above=0)

    def configure_training(self, client: Client) -> tuple[LocalHParams, State]:
        """Lower the rate."""
        hparams = client.hparams
        return LocalHParams(hparams.epochs, self.rate_factor * hparams.lr), client.state


def _train_alone(simulation: FederatedSimulation, make: MakeExecutor) -> Params:
    """Train every client alone for as many rounds; return the models ``[K, ...]``.

    A client whose loss on its own training rows has risen by that is trained again at lower rates:
    inputs that are far from 0 at one site diverge at a rate that suits all others.
    """
    task = simulation.task
    ids = simulation.store.ids
    models = _rounds_alone(simulation, make, 1.0)
    if task.info.learner_kind != Local.capabilities.learner_kind:
        return models
    first = task.init_params(simulation.schedule.seed)
    start = {name: value.expand(len(ids), *value.shape) for name, value in first.items()}
    first_losses = _train_losses(task, ids, start)
    for factor in LOWER_RATES:
        has_diverged = ~(_train_losses(task, ids, models) <= first_losses)
        if not bool(has_diverged.any()):
            break
        slower = _rounds_alone(simulation, make, factor)
        rows = has_diverged.nonzero()[:, 0]
        models = {
            name: value.index_copy(0, rows, slower[name][rows]) for name, value in models.items()
        }
    return models


def _rounds_alone(simulation: FederatedSimulation, make: MakeExecutor, factor: float) -> Params:
    """Train every client alone at a multiple of the rate; return the models ``[K, ...]``."""
    num_rounds = simulation.schedule.num_rounds
    schedule = replace(simulation.schedule, eval_every=num_rounds, keep_models=True)
    method = Local() if factor == 1 else SlowLocal(factor)
    alone = FederatedSimulation(method, simulation.task, simulation.training, schedule, make)
    for _ in range(simulation.rounds_done):
        alone.run_round()
    return alone.store.client_state(simulation.store.ids).local_params


def _train_losses(task: Task, ids: Ints, stack: Params) -> Tensor:
    """Return the loss of each client's model on its training rows ``[K]``."""
    scores = [
        task.evaluate_stack(torch.from_numpy(batch), models, "train")["loss"]
        for batch, models in _batches_of(ids, stack)
    ]
    return torch.cat(scores).cpu()


def _batches_of(ids: Ints, stack: Params) -> ModelBatches:
    """Split a stack of all clients' models into batches."""
    start = 0
    for batch in client_batches(ids):
        end = start + len(batch)
        yield batch, {name: value[start:end] for name, value in stack.items()}
        start = end


def hold_out(task: ExperimentTask, share: float, seed: int) -> ExperimentTask:
    """Hold clients out of training.

    Args:
        task: The task.
        share: Share of the clients to hold out.
        seed: Seed of the draw.

    Returns:
        The task of the remaining clients; the others are its ``heldout_clients``.

    Raises:
        UsageError: If no client would be left.
    """
    count = max(1, round(share * task.info.num_clients))
    if count >= task.info.num_clients:
        raise UsageError(
            f"holdout_clients {share} leaves nobody of {task.info.num_clients} clients to train: "
            "lower it"
        )
    order = rng.generator(seed, rng.NEWCOMERS).permutation(task.info.num_clients)
    members = task.subset(np.sort(order[count:]))
    members.heldout_clients = task.subset(np.sort(order[:count]))
    return members


def score_heldout_clients(
    simulation: FederatedSimulation, task: ExperimentTask, plan: ExecutorPlan
) -> Newcomers:
    """Score clients that were held out of training after some local training.

    They start from the server's model: shared blocks as trained, other blocks as initialised.

    Args:
        simulation: The finished simulation.
        task: Its task, with the clients that were held out.
        plan: Executor and threads.

    Returns:
        Test scores after 0, 1 and 5 epochs of local training; of agents, after some steps.
    """
    heldout = task.heldout_clients
    assert heldout is not None
    schedule = simulation.schedule
    training = simulation.training.at(schedule.num_rounds, schedule.num_rounds)
    if isinstance(task, DeepRLTask) and isinstance(heldout, DeepRLTask):
        adapted = heldout_returns(
            task, heldout, simulation.method, simulation.params, schedule.seed
        )
        return Newcomers(
            heldout.info.num_clients, {steps: Scores(scores) for steps, scores in adapted.items()}
        )
    ids = torch.arange(heldout.info.num_clients)
    method = FedAvg()
    executor = plan.make(method, heldout, training, schedule.seed, schedule.num_rounds)
    lr = torch.full((len(ids),), training.lr, dtype=torch.float64)
    after: dict[int, Scores] = {}
    for epochs in ADAPTATION_EPOCHS:
        hparams = LocalHParams(torch.full_like(ids, epochs), lr)
        sent_blocks = dict.fromkeys(heldout.info.blocks, True)
        message = ServerMessage(simulation.params, sent_blocks, hparams)
        result = newcomer_round(executor, schedule.num_rounds + 1, message, splits=("test",))
        scores = result.scores["test"]["trained"]
        means = {name: float(value.double().mean()) for name, value in scores.items()}
        after[epochs] = Scores(
            {**means, "std": float(scores[heldout.info.metric].double().std(correction=0))}
        )
    return Newcomers(heldout.info.num_clients, after)


@dataclass(frozen=True)
class FinetuningSweep(Method):
    """Fine-tune the personal model of every client at every learning rate.

    The upload is the scores ``[rates, 1 + epochs]`` before and during fine-tuning.
    """

    name: ClassVar[str] = "fine-tuning sweep"
    capabilities: ClassVar[Capabilities] = Capabilities(aggregates_by_sum=True)
    default_shared_blocks: ClassVar[tuple[str, ...]] = ()

    def train(self, client: Client) -> tuple[Params, State]:
        """Fine-tune at every learning rate; the scores are the state."""
        paths = [
            self._finetune(client, number, factor)
            for number, factor in enumerate(FINETUNE_LR_FACTORS)
        ]
        scores = {name: torch.stack([path[name] for path in paths]) for name in paths[0]}
        return client.start, scores

    def upload(self, client: Client) -> tuple[ClientUpdate, State]:
        """Upload the scores."""
        return ClientUpdate({}, metrics=client.state), client.state

    def _finetune(self, client: Client, number: int, factor: float) -> Params:
        """Fine-tune at one learning rate; return scores ``[1 + epochs]`` by name."""
        params = client.start
        epochs_done = 0
        path = [self._scores(client, params)]
        lr = client.hparams.lr * factor
        for epochs in FINETUNE_EPOCHS:
            hparams = LocalHParams(torch.full_like(client.hparams.epochs, epochs - epochs_done), lr)
            stream = number * len(FINETUNE_EPOCHS) + len(path)
            params = client.fit(params, hparams=hparams, stream=stream)
            epochs_done = epochs
            path.append(self._scores(client, params))
        return {name: torch.stack([scores[name] for scores in path]) for name in path[0]}

    @staticmethod
    def _scores(client: Client, params: Params) -> Params:
        """Return validation and test scores by name."""
        return {
            f"{split} {name}": v
            for split in ("val", "test")
            for name, v in client.evaluate(params, split).items()
        }


def score_finetuned(simulation: FederatedSimulation) -> Finetuned:
    """Fine-tune all personal models and score them.

    Learning rate and epochs are common to all clients and chosen by validation data. Rates are
    relative to that of the first round, since a rate that falls ends too low to adapt anything.
    Models stay as they are unless the gain is larger than two standard errors over clients.

    Args:
        simulation: The finished simulation.

    Returns:
        The test scores, and the learning rate and epochs that were chosen.
    """
    task = simulation.task
    schedule = simulation.schedule
    first = simulation.training.at(1, schedule.num_rounds)
    ids, models = simulation.personal_models()
    executor = EXECUTORS[schedule.executor](
        FinetuningSweep(), task, first, schedule.seed, schedule.num_rounds
    )
    client_state = ClientState(models, {}, task.init_data_state(torch.from_numpy(ids)))
    message = ServerMessage(simulation.params, dict.fromkeys(task.info.blocks, False))
    request = CohortRequest(
        schedule.num_rounds + 1, torch.from_numpy(ids), message, client_state, splits=()
    )
    reply = executor.run_clients(request).stack
    assert reply is not None
    metrics = reply.update.metrics
    sign = 1 if task.info.higher_is_better else -1
    rate, step = _best_setting(sign * metrics[f"val {task.info.metric}"].double())
    primary = metrics[f"test {task.info.metric}"][:, rate, step].double()
    scores = {
        task.info.metric: float(primary.mean()),
        "loss": float(metrics["test loss"][:, rate, step].double().mean()),
        "std": float(primary.std(correction=0)),
        "p10": float(np.quantile(primary.numpy(), 0.1)),
    }
    lr = first.lr * FINETUNE_LR_FACTORS[rate] if step else None
    return Finetuned(Scores(scores), lr, (0, *FINETUNE_EPOCHS)[step])


def _best_setting(scores: Tensor) -> tuple[int, int]:
    """Return rate and step of the best mean score; step 0 if its gain may be noise.

    The best of many settings on few validation rows is often luck, and where clients are alike
    fine-tuning can only hurt: its mean gain over clients must exceed `MIN_GAIN_ERRORS` standard
    errors.

    Args:
        scores: Validation scores `[K, rates, steps]`, higher is better; step 0 is untuned.
    """
    rate, step = _first_best(scores.mean(0))
    gain = scores[:, rate, step] - scores[:, 0, 0]
    error = gain.std() / len(gain) ** 0.5 if len(gain) > 1 else torch.zeros(())
    if gain.mean() <= MIN_GAIN_ERRORS * error:
        return rate, 0
    return rate, step


def _first_best(pooled: Tensor) -> tuple[int, int]:
    """Return rate and step of the best score; among equals fewest epochs, then smallest rate."""
    rates, steps = pooled.shape
    order = [(float(pooled[r, s]), -s, r) for r in range(rates) for s in range(steps)]
    _, step, rate = max(order)
    return rate, -step
