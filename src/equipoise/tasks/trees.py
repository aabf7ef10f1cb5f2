"""Tasks whose model is an ensemble of trees: statistics of rows, own trees, and evaluation.

The rows of a split have a `BoostingState` that remembers margins and nodes. All of it follows from
the rows and the model, so that it may be lost at any time: a run that is resumed, or a client that
was away, computes it again with the same bits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.core import (
    LocalTrainRequest,
    Method,
    Params,
    Preparation,
    RngContext,
    State,
    TrainingConfig,
)
from equipoise.data.federated_dataset import ClientData, Split
from equipoise.tasks.supervised import UNPREPARED, ExamplesTask
from equipoise.training.objectives import (
    ClassificationObjective,
    Objective,
    RegressionObjective,
    objective_of,
)
from equipoise.trees import binning, interface, personal
from equipoise.trees.arrays import MAX_VAL_LOSS, ClientSpans, Flags, Floats, Ints
from equipoise.trees.boosting import BoostingState, Rows
from equipoise.trees.config import TreeOptions
from equipoise.trees.ensemble import (
    COMMON_NAMES,
    LEVEL,
    OWN,
    OWN_NAMES,
    STAGE,
    TREE,
    TREE_NAMES,
    TreeEnsemble,
    Trees,
    asked_nodes,
    empty_params,
    margins_of,
    max_sum,
)
from equipoise.trees.histograms import add_trees
from equipoise.trees.objectives import (
    BoostingObjective,
    ClassificationBoosting,
    RegressionBoosting,
    SurvivalBoosting,
    quantise,
)
from equipoise.utils import pytree, rng
from equipoise.utils.errors import UsageError


class TreesTask(ExamplesTask):
    """Gradient boosting on the rows of every client."""

    def __init__(
        self,
        name: str,
        data: ClientData,
        training: TrainingConfig,
        options: TreeOptions,
        num_categories: tuple[int, ...] = (),
        objective: Objective | None = None,
        preparation: Preparation = UNPREPARED,
    ) -> None:
        """Create the task.

        Args:
            name: Name of the task.
            data: Rows of every client. Missing values are `MISSING_INPUT`.
            training: Default settings of local training; its batch size measures time.
            options: Options of boosting.
            num_categories: Categories of each input, 0 for numbers; empty for numbers alone.
            objective: Loss and metrics. Defaults to the objective of the target.
            preparation: How the rows were made from raw ones.

        Raises:
            UsageError: If a column has more categories than bins.
        """
        self.tree_options = options
        num_features = data.shape[0]
        self.num_categories = np.array(num_categories or (0,) * num_features, np.int64)
        if self.num_categories.max() > options.tree_bins:
            raise UsageError(
                f"tree_bins is {options.tree_bins}, and a column has "
                f"{self.num_categories.max()} categories: it must be at least as large"
            )
        self.boosting = boosting_objective(objective or objective_of(data.target))
        super().__init__(
            name, nn.Identity(), data, training, objective=objective, preparation=preparation
        )

    def _set_network(self, module: nn.Module, blocks: str) -> None:
        """Set the ensemble; the module that is given stands for it."""
        empty = empty_params(
            self.num_categories,
            self.boosting.num_margins,
            self.tree_options,
            interface.MAX_OWN_TREES,
        )
        self.module = TreeEnsemble(self.data.classes, empty)
        self.info = replace(
            self.info,
            blocks={"backbone": COMMON_NAMES, "head": OWN_NAMES},
            learner_kind=interface.LEARNER_KIND,
        )
        self.linear = None
        self.convolutional = False
        self.deep = False
        self._is_sequence_model = False
        self._padded_inputs = None
        self._row_bytes = 0
        self._device_module = self.module
        self._map_forward()

    def _map_forward(self) -> None:
        """Forget what is known of rows, which another copy of the task may share."""
        self._states: dict[str, tuple[Tensor, BoostingState]] = {}
        self._scores: dict[str, tuple[bytes, Params]] = {}
        self._sampled: tuple[object, Flags | None] = (None, None)

    def with_network(self, start: str, adapter: str, blocks: str, seed: int) -> ExamplesTask:
        """Refuse weights, adapters and blocks: they are for networks."""
        raise UsageError("model trees is no network: leave init_weights, adapter and blocks empty")

    def to(self, device: torch.device) -> ExamplesTask:
        """Return the task as it is: trees are computed on the processor."""
        return self

    def check(self) -> None:
        """Accept the rows: they were checked when they were read."""

    def check_method(self, method: Method) -> None:
        """Refuse methods that average or train networks.

        Raises:
            UsageError: If the method neither grows trees nor trains every client alone.
        """
        if method.capabilities.learner_kind != interface.LEARNER_KIND and method.shared_blocks(
            self
        ):
            raise UsageError(
                f"{method.name} averages networks, and trees cannot be averaged: choose fedtrees, "
                "or local for trees of each client alone"
            )

    def init_params(self, seed: int) -> Params:
        """Return a model without trees."""
        return {name: value.clone() for name, value in self.module.named_buffers()}

    @property
    def frozen(self) -> Params:
        """Return nothing: no part of a model is frozen."""
        return {}

    # --- one model ------------------------------------------------------------------------------

    def prepare(self, x: Tensor) -> Tensor:
        """Return stored rows in single precision."""
        return x.float()

    def forward(self, params: Params, x: Tensor) -> Tensor:
        """Compute the outputs of one model, `[B, outputs]`."""
        if not params:
            params = self.init_params(0)
        return self._outputs(margins_of(params, x.float().numpy()))

    def logits(self, params: Params, x: Tensor) -> Tensor:
        """Compute the outputs of one model on stored rows."""
        return self.forward(params, x)

    def forward_stack(self, stack: Params, x: Tensor) -> Tensor:
        """Compute the outputs `[K, B, outputs]` of K models, each on its own rows."""
        return torch.stack([self.forward(pytree.index(stack, k), x[k]) for k in range(len(x))])

    def _outputs(self, margins: Floats) -> Tensor:
        """Convert margins `[C, n]` to outputs `[n, outputs]`."""
        return torch.from_numpy(self.boosting.outputs(margins))

    # --- statistics and training ----------------------------------------------------------------

    def fit(
        self, ids: Tensor, request: LocalTrainRequest, data_state: State, rng: RngContext
    ) -> tuple[Params, Params, State]:
        """Handle one client as a stack of one."""
        stacked = replace(
            request,
            params={name: value[None] for name, value in request.params.items()},
            epochs=request.epochs[None],
            lr=request.lr[None],
            aux={name: value[None] for name, value in request.aux.items()},
        )
        found, _, _ = self.fit_stack(ids[None], stacked, data_state, rng)
        return {name: value[0] for name, value in found.items()}, {}, data_state

    def fit_stack(
        self, ids: Tensor, request: LocalTrainRequest, data_state: State, rng: RngContext
    ) -> tuple[Params, Params, State]:
        """Return statistics or own trees if `aux` asks for them, else ensembles of each client.

        Without `aux` a client's ensemble is grown on its own rows alone. An ensemble that has
        trees already is complete, and returned as it is.

        Raises:
            UsageError: If the request has a loss.
        """
        if request.proximal or request.grad_correction or request.loss:
            raise UsageError("trees are grown by their own loss: choose another method")
        numbers = ids.numpy()
        if "statistics" in request.aux:
            found = self._statistics(numbers, request.params, request.aux, rng.seed)
        elif "own_trees" in request.aux:
            found = self._own_trees(numbers, request.params, int(request.aux["own_trees"][0]))
        elif bool((request.params["progress"][:, TREE] > 0).any()):
            found = request.params
        else:
            found = self._local_ensembles(numbers, request.params, rng.seed)
        return found, {}, data_state

    def _statistics(self, ids: Ints, params: Params, aux: State, seed: int) -> Params:
        """Return what clients send at the stage of the common model."""
        progress = params["progress"][0]
        stage = int(progress[STAGE])
        if stage in interface.BIN_STAGES:
            return self._bin_statistics(ids, aux["grid"][0].numpy())
        if stage != interface.GROW:
            return {"complete": torch.ones(len(ids), 1, dtype=torch.float64)}
        tree = int(progress[TREE])
        level = int(progress[LEVEL])
        own = self.data.split(ids, "train")
        state = self._state("train", own)
        edges = params["edges"][0].numpy()
        sums = state.histograms(
            _first(params),
            params["base"][0].numpy(),
            tree,
            level,
            asked_nodes(params["asked"][0].numpy()),
            edges,
            (own.start, own.size),
            self._sample(ids, own, tree, seed),
            max_sum(params["limits"][0]),
        )
        found = {"sums": torch.from_numpy(sums)}
        if level == 0:
            found["val"] = torch.from_numpy(self._val_sums(ids, params, tree))
        return found

    def _bin_statistics(self, ids: Ints, grid: Floats) -> Params:
        """Return counts per cell and sums of targets."""
        own = self.data.split(ids, "train")
        cells = []
        targets = []
        for first, count in zip(own.start.tolist(), own.size.tolist(), strict=True):
            x = own.x[first : first + count].float().numpy()
            cells.append(binning.count_cells(x, grid))
            targets.append(self.boosting.target_sums(_targets(own.y[first : first + count])))
        return {
            "cells": torch.from_numpy(np.stack(cells)),
            "target": torch.from_numpy(np.stack(targets)),
        }

    def _val_sums(self, ids: Ints, params: Params, num_trees: int) -> Floats:
        """Return the sum of validation losses and the number of rows of each client `[K, 2]`."""
        sums = np.zeros((len(ids), 2))
        if not self.data.has_split("val"):
            return sums
        own = self.data.split(ids, "val")
        state = self._state("val", own)
        margins = state.margins_after(
            _first(params), params["base"][0].numpy(), num_trees, own.start, own.size
        )
        losses = self.boosting.losses(state.y, margins, own.start, own.size)
        for k, (first, count) in enumerate(zip(own.start, own.size, strict=True)):
            counted = np.minimum(losses[first : first + count], MAX_VAL_LOSS)
            sums[k] = quantise(counted).sum(), count
        return sums

    def _own_trees(self, ids: Ints, params: Params, asked: int) -> Params:
        """Return each client's own trees; none before the common trees are complete."""
        if int(params["progress"][0, STAGE]) != interface.OWN_TREES:
            return {name: params[name] for name in OWN_NAMES}
        rows = self._client_rows(ids)
        num_trees = int(params["progress"][0, TREE])
        base = params["base"][0].numpy()
        for split, part, margins in (
            ("train", rows.train, rows.margins),
            ("val", rows.val, rows.val_margins),
        ):
            if part is not None and margins is not None:
                own = self.data.split(ids, split)
                state = self._state(split, own)
                margins[:] = state.margins_after(
                    _first(params), base, num_trees, part.start, part.size
                )
        trees, count = personal.own_trees(
            self.boosting,
            self.tree_options,
            self.num_categories,
            params["edges"][0].numpy(),
            rows,
            interface.MAX_OWN_TREES,
            asked,
        )
        found = trees.params(OWN)
        found[f"{OWN}count"] = torch.from_numpy(count.astype(np.float64))[:, None]
        return found

    def _local_ensembles(self, ids: Ints, params: Params, seed: int) -> Params:
        """Return an ensemble of each client's own rows."""
        own = self.data.split(ids, "train")
        trees, base, edges, count = personal.local_ensembles(
            self.boosting,
            self.tree_options,
            self.num_categories,
            self._client_rows(ids),
            lambda tree: self._sample(ids, own, tree, seed),
        )
        progress = params["progress"].numpy().copy()
        progress[:, STAGE] = interface.DONE
        progress[:, TREE] = count
        return {
            **params,
            **trees.params(),
            "base": torch.from_numpy(base),
            "edges": torch.from_numpy(edges),
            "progress": torch.from_numpy(progress),
        }

    def _client_rows(self, ids: Ints) -> personal.ClientRows:
        """Return training and validation rows of clients, with margins of 0."""
        train = self._rows(ids, "train")
        val = self._rows(ids, "val") if self.data.has_split("val") else None
        margins = self.boosting.num_margins
        return personal.ClientRows(
            train,
            np.zeros((margins, len(train.x))),
            val,
            None if val is None else np.zeros((margins, len(val.x))),
        )

    def _rows(self, ids: Ints, split: str) -> Rows:
        """Return the rows of clients in a split."""
        own = self.data.split(ids, split)
        state = self._state(split, own)
        return Rows(state.x, state.y, own.start, own.size)

    def _sample(self, ids: Ints, own: Split, tree: int, seed: int) -> Flags | None:
        """Return the rows on which a tree is grown, drawn by (seed, client, tree); None for all."""
        share = self.tree_options.row_sample
        if share >= 1:
            return None
        key = (ids.tobytes(), tree, seed)
        if self._sampled[0] != key:
            is_sampled = np.zeros(len(own.x), np.bool_)
            keys = rng.keys(seed, ids, tree, rng.TREES[0])
            for k, (first, count) in enumerate(zip(own.start, own.size, strict=True)):
                draws = rng.uniform(keys[k : k + 1], int(count))[0]
                is_sampled[first : first + count] = draws < share
            self._sampled = key, is_sampled
        return self._sampled[1]

    def _state(self, split: str, own: Split) -> BoostingState:
        """Return what is known of the rows of a split; nothing if they are other rows."""
        known = self._states.get(split)
        if known is None or known[0] is not own.x:
            x = np.ascontiguousarray(own.x.float().numpy())
            state = BoostingState(
                x,
                _targets(own.y),
                self.boosting,
                self.num_categories,
                self.tree_options.tree_depth,
            )
            known = (own.x, state)
            self._states[split] = known
        return known[1]

    # --- evaluation -----------------------------------------------------------------------------

    def evaluate(self, ids: Tensor, params: Params, split: str) -> Params:
        """Evaluate one model on the rows of its client."""
        stack = {name: value[None] for name, value in params.items()}
        return pytree.index(self.evaluate_stack(ids[None], stack, split), 0)

    def evaluate_stack(self, ids: Tensor, params: Params, split: str) -> Params:
        """Evaluate K models, each on the rows of its client.

        One model of all clients is evaluated by adding its new trees to known margins.
        """
        numbers = ids.numpy()
        own = self.data.split(numbers, split)
        if not _is_shared(params):
            return self._score_margins(own, self._margins_of_each(own, split, params))
        state = self._state(split, own)
        num_trees = int(params["progress"][0, TREE])
        trees = _first(params)
        base = params["base"][0].numpy()
        key = b"".join(
            (
                numbers.tobytes(),
                base.tobytes(),
                *(array[:, :num_trees].tobytes() for array in trees),
            )
        )
        known = self._scores.get(split)
        if known is None or known[0] != key:
            margins = state.margins_after(trees, base, num_trees, own.start, own.size)
            known = (key, self._score_margins(own, margins))
            self._scores[split] = known
        return dict(known[1])

    def _margins_of_each(self, own: Split, split: str, params: Params) -> Floats:
        """Return margins `[C, n]` of models that differ."""
        x = self._state(split, own).x
        margins = np.zeros((self.boosting.num_margins, len(x)))
        base = params["base"].numpy()
        models = np.arange(len(own.start))
        spans = ClientSpans(own.start, own.size, models)
        zeros = np.zeros(len(models), np.int64)
        for k in models:
            margins[:, own.start[k] : own.start[k] + own.size[k]] = base[k][:, None]
        for prefix in ("", OWN):
            # Unused trees add 0.
            trees = Trees.from_params(params, prefix)
            last = trees.value.shape[1]
            add_trees(x, spans, zeros, last, trees, margins)
        return margins

    def _score_margins(self, own: Split, margins: Floats) -> Params:
        """Score the margins of clients' rows, `[K]`."""
        outputs = self._outputs(margins)
        parts = []
        for first, count in zip(own.start.tolist(), own.size.tolist(), strict=True):
            rows = slice(first, first + count)
            parts.append(self._score(outputs[None, rows], own.y[None, rows], None))
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def evaluate_server(self, stack: Params, split: str) -> Params:
        """Evaluate K models on a server split, `[K]`."""
        x, y = self.data.server(split)
        rows = Split(x, y, np.zeros(1, np.int64), np.array([len(x)]))
        models = len(stack["base"])
        scores = []
        for k in range(models):
            one = {name: value[k : k + 1] for name, value in stack.items()}
            margins = self._margins_of_server(rows, one, split)
            scores.append(self._score_margins(rows, margins))
        return {name: torch.cat([score[name] for score in scores]) for name in scores[0]}

    def _margins_of_server(self, rows: Split, one: Params, split: str) -> Floats:
        """Return margins `[C, n]` of one model on the server's rows."""
        place = f"server/{split}"
        if float(one[f"{OWN}count"].sum()) > 0:
            return self._margins_of_each(rows, place, one)
        state = self._state(place, rows)
        base = one["base"][0].numpy()
        num_trees = int(one["progress"][0, TREE])
        return state.margins_after(_first(one), base, num_trees, rows.start, rows.size)


def boosting_objective(objective: Objective) -> BoostingObjective:
    """Return the gradients and losses that belong to the loss of a network."""
    target = objective.target
    if isinstance(objective, ClassificationObjective):
        weights = None if objective.weights is None else objective.weights.double().numpy()
        return ClassificationBoosting(len(target.classes), weights)
    if isinstance(objective, RegressionObjective):
        return RegressionBoosting(target.mean, target.scale, objective.absolute)
    return SurvivalBoosting()


def _first(params: Params) -> Trees:
    """Return the common trees of the first model of a stack, which is that of all."""
    return Trees.from_params({name: params[name][:1] for name in TREE_NAMES})


def _is_shared(params: Params) -> bool:
    """Return whether all models of a stack are one model without own trees."""
    is_one = len(params["value"]) == 1 or params["value"].stride(0) == 0
    return is_one and float(params[f"{OWN}count"].sum()) == 0


def _targets(y: Tensor) -> Any:
    """Return targets as an array: classes as integers, numbers in double precision."""
    return y.double().numpy() if y.is_floating_point() else y.numpy()
