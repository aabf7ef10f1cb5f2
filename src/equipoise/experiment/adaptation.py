"""Models of clients that join after the run: a newcomer adapts what a federation has learned.

A newcomer runs the client half of the method against the last model of the server, which stays as
it is: it fine-tunes, trains its own head, reconstructs, or grows its own trees. How long, and at
which rate, is chosen by cross-validation on the newcomer's rows. The choice is nested, so that the
outputs on held-out rows are those of models that these rows had no part in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from equipoise.core import (
    ClientResult,
    ClientState,
    LocalHParams,
    Method,
    Params,
    ServerMessage,
    Task,
    TrainingConfig,
)
from equipoise.data.federated_dataset import Federation, InputTransform, Ints, Target
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.local import Local
from equipoise.simulation.executor_selection import EXECUTORS
from equipoise.simulation.executors import CohortRequest, Executor, init_client_states
from equipoise.tasks.supervised import ExamplesTask
from equipoise.trees import interface
from equipoise.trees.ensemble import OWN, STAGE, TREE, Trees
from equipoise.utils import pytree, rng

FINETUNE_LR_FACTORS = (1.0, 0.3, 0.1, 0.03)  # of the learning rate of training
FINETUNE_EPOCHS = (1, 2, 3, 5, 8, 12, 20)  # evaluated after each of these
ALONE_ROUNDS = (1, 2, 3, 5, 8, 12, 20, 35, 60, 100, 200)  # the same of training alone
TREE_COUNTS = (1, 2, 3, 5, 8, 12, 20, 35, 50, 100, 200, 500)  # the same of trees
NUM_FOLDS = 5
NUM_FOLDS_OF_MANY = 3
MANY_ROWS = 5000  # with more rows there are fewer folds: their errors are small anyway


def newcomer_round(
    executor: Executor,
    round: int,
    message: ServerMessage,
    state: ClientState | None = None,
    splits: tuple[str, ...] = (),
) -> ClientResult:
    """Run one round of all clients of an executor's task, who never took part before.

    Args:
        executor: Executor of the method on the newcomers' task.
        round: Number of the round, which names the random streams.
        message: What the server sends.
        state: What they keep from the round before; None in their first.
        splits: Splits on which the models are scored.

    Returns:
        The stacked results of all clients.
    """
    task = executor.task
    ids = torch.arange(task.info.num_clients)
    if state is None:
        state = init_client_states(executor.method, task, ids, message.params, keeps_local=True)
    result = executor.run_clients(CohortRequest(round, ids, message, state, splits)).stack
    assert result is not None
    return result


# ------------------------------------------------------------------ rows


@dataclass(frozen=True)
class Folds:
    """Folds of a newcomer's rows, and the training sets that nested cross-validation needs.

    The first training set has all rows. The others lack one fold, or two.

    Attributes:
        fold: Fold of each row ``[n]``.
        count: Number of folds.
    """

    fold: Ints
    count: int

    @staticmethod
    def draw(y: Tensor, target: Target, seed: int) -> Folds:
        """Draw folds in which classes, or events, have nearly equal shares.

        Args:
            y: Targets of all rows.
            target: What is predicted.
            seed: Seed of the draw.

        Returns:
            The folds.
        """
        num_rows = len(y)
        count = NUM_FOLDS if num_rows <= MANY_ROWS else NUM_FOLDS_OF_MANY
        group = np.zeros(num_rows, np.int64)
        if target.kind == "classification":
            group = y.numpy()
        elif target.kind == "survival":
            group = y[:, 1].long().numpy()
        order = rng.generator(seed, rng.NEWCOMERS, 1).permutation(num_rows)
        order = order[np.argsort(group[order], kind="stable")]
        fold = np.empty(num_rows, np.int64)
        fold[order] = np.arange(num_rows) % count
        return Folds(fold, count)

    @property
    def left_out(self) -> list[tuple[int, ...]]:
        """Folds that each training set lacks."""
        return [
            (),
            *((k,) for k in range(self.count)),
            *combinations(range(self.count), 2),
        ]

    def rows(self, fold: int) -> Ints:
        """Return the rows of a fold."""
        return np.flatnonzero(self.fold == fold)

    def data(self, x: Tensor, y: Tensor, target: Target, transform: InputTransform) -> Federation:
        """Return a federation with one client for each training set.

        Args:
            x: Stored inputs ``[n, ...]``.
            y: Targets ``[n, ...]``.
            target: What is predicted.
            transform: How stored rows become inputs.
        """
        parts = [np.flatnonzero(~np.isin(self.fold, lacking)) for lacking in self.left_out]
        rows = torch.from_numpy(np.concatenate(parts))
        sizes = np.array([len(part) for part in parts])
        return Federation(
            {"train": (x[rows], y[rows], sizes)},
            {"test": (x, y), "public": (x, y)},
            target.outputs,
            transform,
            target,
        )


# ------------------------------------------------------------------ rules


@dataclass(frozen=True)
class AdaptHParams:
    """One way to adapt: how long, and at which rate."""

    lr_factor: float
    """Of the learning rate of training."""
    passes: int
    """Rounds, epochs or trees; 0 for the model that the newcomer received."""


AdaptationPath = Iterator[tuple[AdaptHParams, Params]]
"""Candidates, each with the stack of models of all training sets."""


@dataclass(frozen=True)
class Rule:
    """How a newcomer gets a personal model.

    Attributes:
        method: Method whose client half the newcomer runs.
        words: The rule in words.
        unit: What is counted: ``epochs``, ``rounds`` or ``trees``.
        keeps_model: Whether the newcomer goes on from its own model, instead of merging the
            server's blocks again in each round.
    """

    method: Method
    words: str
    unit: str
    keeps_model: bool = False

    @staticmethod
    def of(method: Method, task: Task) -> Rule:
        """Return the rule of a method.

        Methods whose server decides for each client by what it knows of it cannot do so for a
        newcomer: it fine-tunes the server's model.

        Args:
            method: Method of the run, without wrappers.
            task: Its task.
        """
        if task.info.learner_kind == interface.LEARNER_KIND:
            return Rule(method, "own trees on top of the common ones", "trees")
        needs_server = {"distribute", "configure_training"} & method.overridden_hooks
        shared = method.shared_blocks(task)
        own_blocks = [
            block for block, names in task.info.blocks.items() if names and block not in shared
        ]
        is_personal = own_blocks or {"receive", "personal_model"} & method.overridden_hooks
        if needs_server or not is_personal:
            words = "fine-tuning of the global model"
            return Rule(FedAvg(), words, "epochs", keeps_model=True)
        words = f"the rule of {method.name}"
        if own_blocks:
            words += f", with its own {' and '.join(own_blocks)}"
        return Rule(method, words, "rounds")

    def path(
        self, task: ExamplesTask, params: Params, training: TrainingConfig, seed: int
    ) -> AdaptationPath:
        """Adapt a model on every training set.

        Args:
            task: Task with one client for each training set.
            params: Model of the server.
            training: Settings of local training.
            seed: Seed of the batches.

        Yields:
            Candidates from the shortest on, without the model that was received.
        """
        if self.unit == "trees":
            yield from _own_tree_path(self.method, task, params, training, seed)
            return
        info = task.info
        shared = self.method.shared_blocks(task)
        sent = {block: not self.keeps_model and block in shared for block in info.blocks}
        epochs = 1 if self.keeps_model else training.epochs
        last = FINETUNE_EPOCHS[-1]
        executor = _executor(self.method, task, training, seed, last)
        for factor in FINETUNE_LR_FACTORS:
            hparams = _hparams(info.num_clients, epochs, training.lr * factor)
            message = ServerMessage(params, sent, hparams)
            state: ClientState | None = None
            for number in range(1, last + 1):
                state = newcomer_round(executor, number, message, state).client_state
                if number in FINETUNE_EPOCHS:
                    yield AdaptHParams(factor, number), _models(state)

    def describe(self, candidate: AdaptHParams, training: TrainingConfig) -> str:
        """Say in words what a newcomer did."""
        if candidate.passes == 0:
            return "the global model as it is: cross-validation on these rows preferred no change"
        text = f"{self.words}, {candidate.passes} {self.unit}"
        if candidate.passes == 1:
            text = text.removesuffix("s")
        if self.unit == "trees":
            return text
        return f"{text} at learning rate {training.lr * candidate.lr_factor:.3g}"


def alone_path(
    task: ExamplesTask, training: TrainingConfig, seed: int, num_rounds: int
) -> AdaptationPath:
    """Train every training set alone, from the initial model.

    Args:
        task: Task with one client for each training set.
        training: Settings of local training.
        seed: Seed of the initial model and the batches.
        num_rounds: Rounds of the run.

    Yields:
        Candidates from the shortest on.
    """
    initial = task.init_params(seed)
    info = task.info
    hparams = _hparams(info.num_clients, training.epochs, training.lr)
    message = ServerMessage(initial, dict.fromkeys(info.blocks, False), hparams)
    if info.learner_kind == interface.LEARNER_KIND:
        executor = _executor(Local(), task, training, seed, 1)
        models = _models(newcomer_round(executor, 1, message).client_state)
        yield from _tree_prefixes(models, "")
        return
    last = min(num_rounds, ALONE_ROUNDS[-1])
    executor = _executor(Local(), task, training, seed, last)
    state: ClientState | None = None
    for number in range(1, last + 1):
        state = newcomer_round(executor, number, message, state).client_state
        if number in ALONE_ROUNDS or number == last:
            yield AdaptHParams(1.0, number), _models(state)


def _own_tree_path(
    method: Method, task: ExamplesTask, params: Params, training: TrainingConfig, seed: int
) -> AdaptationPath:
    """Grow as many own trees as there may be; the first of them are the shorter candidates."""
    progress = params["progress"].clone()
    progress[STAGE] = interface.OWN_TREES
    params = {**params, "progress": progress}
    grower = replace(method, **{"personal_trees": str(interface.MAX_OWN_TREES)})
    hparams = _hparams(task.info.num_clients, training.epochs, training.lr)
    sent = dict.fromkeys(task.info.blocks, True)
    message = ServerMessage(params, sent, hparams)
    executor = _executor(grower, task, training, seed, 1)
    models = _models(newcomer_round(executor, 1, message).client_state)
    yield from _tree_prefixes(models, OWN)


def _tree_prefixes(models: Params, prefix: str) -> AdaptationPath:
    """Cut ensembles after some of their trees.

    Args:
        models: Stack of ensembles.
        prefix: ``own_`` to cut the own trees.
    """
    trees = Trees.from_params(models, prefix)
    last = trees.value.shape[1]
    num_models = len(trees.value)
    for count in sorted({*(number for number in TREE_COUNTS if number < last), last}):
        shorter = {**models, **trees.cleared_after(np.full(num_models, count)).params(prefix)}
        if prefix:
            shorter[f"{OWN}count"] = torch.full_like(models[f"{OWN}count"], count)
        else:
            shorter["progress"] = models["progress"].clone()
            shorter["progress"][:, TREE] = count
        yield AdaptHParams(1.0, count), shorter


def _executor(
    method: Method, task: ExamplesTask, training: TrainingConfig, seed: int, rounds: int
) -> Executor:
    name = "stacked" if task.info.stackable else "loop"
    return EXECUTORS[name](method, task, training, seed, rounds)


def _hparams(num_clients: int, epochs: int, lr: float) -> LocalHParams:
    return LocalHParams(
        torch.full((num_clients,), epochs, dtype=torch.int64),
        torch.full((num_clients,), lr, dtype=torch.float64),
    )


def _models(state: ClientState) -> Params:
    """Return the models that clients would use."""
    return state.local_params if state.personal is None else state.personal


# ------------------------------------------------------------------ nested cross-validation


@dataclass(frozen=True)
class CrossFit:
    """A model that was adapted to all rows, and what such models say about rows they never had.

    Attributes:
        candidate: The candidate that the folds chose.
        params: The model of all rows.
        outputs: Outputs ``[n, outputs]`` on held-out rows. The candidate of each fold was chosen
            without that fold.
    """

    candidate: AdaptHParams
    params: Params
    outputs: Tensor


def cross_fit(
    task: ExamplesTask, folds: Folds, path: AdaptationPath, received: Params | None = None
) -> CrossFit:
    """Choose a candidate by nested cross-validation.

    Args:
        task: Task with one client for each training set of the folds.
        folds: The folds.
        path: Candidates, from the simplest on; the first of equal losses is chosen.
        received: Model that is a candidate too, as it is; None without one.

    Returns:
        The model and the held-out outputs.
    """
    x, y = task.data.server("test")
    sets = folds.left_out
    outputs: list[Tensor] = []
    inner: list[Tensor] = []
    candidates: list[AdaptHParams] = []
    finals: list[Params] = []
    for candidate, stack in _with_received(path, received, len(sets)):
        held_out = torch.zeros(len(y), task.data.classes)
        losses = torch.full((folds.count, folds.count), torch.nan, dtype=torch.float64)
        for place, lacking in enumerate(sets):
            model = pytree.index(stack, place)
            for tested in lacking:
                rows = torch.from_numpy(folds.rows(tested))
                with torch.no_grad():
                    logits = task.logits(model, x[rows]).float().cpu()
                if len(lacking) == 1:
                    held_out[rows] = logits
                    losses[tested, tested] = _loss(task, logits, y[rows])
                else:
                    other = sum(lacking) - tested
                    losses[other, tested] = _loss(task, logits, y[rows])
        candidates.append(candidate)
        finals.append({name: value.clone() for name, value in pytree.index(stack, 0).items()})
        outputs.append(held_out)
        inner.append(losses)
    sizes = torch.from_numpy(np.bincount(folds.fold, minlength=folds.count)).double()
    table = torch.stack(inner)  # [candidates, fold that is left out, tested fold]
    chosen_outputs = torch.zeros_like(outputs[0])
    for fold in range(folds.count):
        others = torch.arange(folds.count) != fold
        weight = sizes[others] / sizes[others].sum()
        best = _first_lowest((table[:, fold, others] * weight).sum(1))
        rows = torch.from_numpy(folds.rows(fold))
        chosen_outputs[rows] = outputs[best][rows]
    diagonal = table.diagonal(dim1=1, dim2=2)
    best = _first_lowest((diagonal * (sizes / sizes.sum())).sum(1))
    return CrossFit(candidates[best], finals[best], chosen_outputs)


def _with_received(path: AdaptationPath, received: Params | None, num_sets: int) -> AdaptationPath:
    """Put the received model before the others."""
    if received is not None:
        stack = {name: value.expand(num_sets, *value.shape) for name, value in received.items()}
        yield AdaptHParams(1.0, 0), stack
    yield from path


def _loss(task: ExamplesTask, outputs: Tensor, y: Tensor) -> float:
    """Return the mean loss of rows; infinite if training has diverged."""
    loss = float(task.objective.score(outputs[None], y[None], None, ("loss",))["loss"][0])
    return loss if np.isfinite(loss) else np.inf


def _first_lowest(losses: Tensor) -> int:
    """Return the first of the lowest losses."""
    return int(np.argmin(losses.numpy()))


def cross_fit_constant(task: ExamplesTask, folds: Folds) -> tuple[Tensor, Tensor]:
    """Return the best constant of all rows, and those of held-out rows.

    Args:
        task: Task with the newcomer's rows.
        folds: Their folds.

    Returns:
        Outputs ``[outputs]``, and ``[n, outputs]`` by constants of the other folds.
    """
    _, y = task.data.server("test")
    held_out = torch.zeros(len(y), task.data.classes)
    for fold in range(folds.count):
        train = torch.from_numpy(np.flatnonzero(folds.fold != fold))
        rows = torch.from_numpy(folds.rows(fold))
        held_out[rows] = task.objective.constant_output(y[train]).float()
    return task.objective.constant_output(y).float(), held_out
