"""Supervised tasks: any network on any client data, for any kind of target."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from equipoise.core import (
    LocalTrainRequest,
    Params,
    Preparation,
    ProximalTerm,
    RngContext,
    State,
    SupervisedTask,
    TaskInfo,
    TrainingConfig,
)
from equipoise.data.federated_dataset import ClientData, Ints, Subset, fraction_range
from equipoise.data.transforms import TokenTransform
from equipoise.models import blocks_of, check_trainable, weights
from equipoise.models.batched import activation_bytes, stacked_forward, transposed_params
from equipoise.models.lora import LoraConfig, LoraConv, add_adapters
from equipoise.models.norm_dropout import (
    batch_norm_layers,
    dropout_layers,
    running_stat_names,
    with_reproducible_layers,
)
from equipoise.training import batched_sgd, batching, grad_norm, metrics, sgd
from equipoise.training.objectives import Objective, objective_of
from equipoise.utils import pytree
from equipoise.utils.errors import UsageError
from equipoise.utils.metrics import higher_is_better

MAX_PROBE_ROWS = 4096
"""Public rows on which the updates of a cohort are compared."""
MAX_LOGITS_AT_ONCE = 2**23
"""Logits computed at once when many models are scored on one set. Bounds the memory."""
MAX_INPUTS_AT_ONCE = 2**19
"""Input numbers that a deep model scores at once. Bounds the memory of its activations."""
MAX_ACTIVATION_BYTES = 2**30
"""Activation memory of the clients of a stack, or of the rows of a sequence model."""
UNPREPARED = Preparation()
"""Rows that come as they are."""
UNSTACKABLE = (nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention)  # vmap runs these as a slow loop
CONVOLUTION = (nn.Conv1d, nn.Conv2d, nn.Conv3d, LoraConv)


class ExamplesTask(SupervisedTask):
    """A network trained by SGD, with the loss and the metrics of an `Objective`."""

    data: ClientData
    """Rows of clients and server."""
    claimed_sizes: Mapping[int, int] = MappingProxyType({})
    """Numbers of training rows that count instead of the true ones, in simulated attacks."""
    _padded_inputs: tuple[Tensor, Tensor] | None

    def __init__(
        self,
        name: str,
        module: nn.Module,
        data: ClientData,
        training: TrainingConfig,
        dtype: torch.dtype = torch.float32,
        closed_form: bool = True,
        fresh: bool = True,
        objective: Objective | None = None,
        preparation: Preparation = UNPREPARED,
    ) -> None:
        """Create the task.

        Args:
            name: Name of the task.
            module: The network. It is copied.
            data: Rows of every client.
            training: Default settings of local training.
            dtype: Floating-point type of the parameters.
            closed_form: Use the closed form for linear models; False for tests and measurements.
            fresh: Draw the initial model from the seed of a run. If False, it is `module` with its
                own weights. Frozen parameters never change.
            objective: Loss and metrics. Defaults to the objective of the target.
            preparation: How the rows were made from raw ones.
        """
        self.fresh = fresh
        self.data = data
        self.dtype = dtype
        self.preparation = preparation
        self.info = TaskInfo(
            name,
            data.clients,
            {},
            training,
            target_kind=data.target.kind,
            client_names=data.names,
            class_names=data.target.classes if data.target.name else (),
            supports_fork=True,
        )
        self.objective = objective or objective_of(data.target)
        self.pad_label = self.objective.pad_label
        self._set_metrics(self.objective.default_metrics)
        self._closed_form = closed_form and self.objective.closed_form
        self._set_network(with_reproducible_layers(copy.deepcopy(module).to(dtype)), "")

    def _set_network(self, module: nn.Module, blocks: str) -> None:
        """Set the network and everything derived from it."""
        self.module = module
        self._padded_inputs = None
        self._batch_norm_keys = tuple(f"{name}.rows" for name, _ in batch_norm_layers(self.module))
        self._dropout_keys = tuple(f"{name}.key" for name, _ in dropout_layers(self.module))
        self.linear = batched_sgd.linear_param_names(self.module) if self._closed_form else None
        layers = list(self.module.modules())
        stackable = not any(isinstance(layer, UNSTACKABLE) for layer in layers)
        self.convolutional = any(isinstance(layer, CONVOLUTION) for layer in layers)
        sequences = isinstance(self.data.transform, TokenTransform)
        self.deep = self.convolutional or sequences or not stackable
        """Evaluate models one by one: batching gains nothing and costs activation memory."""
        self._is_sequence_model = sequences and stackable
        self.info = replace(
            self.info,
            blocks=blocks_of(self.module, blocks),
            batch_stat_names=running_stat_names(self.module),
            has_train_mode=bool(self._batch_norm_keys or self._dropout_keys),
            stackable=stackable,
            executor_depends_on_model=self.deep,
        )
        self._row_bytes = 0
        self._device_module = self.module
        self._map_forward()

    def _set_metrics(self, eval_metrics: tuple[str, ...]) -> None:
        """Set the metrics of every evaluation, the primary one first."""
        self.eval_metrics = eval_metrics
        metric = eval_metrics[0]
        self.info = replace(self.info, metric=metric, higher_is_better=higher_is_better(metric))

    def with_primary_metric(self, name: str) -> ExamplesTask:
        """Return the task with another primary metric."""
        task = copy.copy(self)
        task._set_metrics(self.objective.with_primary_metric(name))
        task._map_forward()
        return task

    def with_all_metrics(self) -> ExamplesTask:
        """Return the task with all metrics of the objective, the primary one first."""
        task = copy.copy(self)
        metric = self.info.metric
        others = (name for name in self.objective.metric_names if name != metric)
        task._set_metrics((metric, *others))
        task._map_forward()
        return task

    def _map_forward(self) -> None:
        """Create the batched forward functions; they are bound to this object."""
        self._forward_stack = stacked_forward(self._device_module) or vmap(self.forward)
        self.transposed_params = transposed_params(self._device_module)
        self._forward_shared = vmap(self.forward, in_dims=(0, None))

    def with_network(self, start: str, adapter: str, blocks: str, seed: int) -> ExamplesTask:
        """Return the task with loaded weights, adapters or other blocks."""
        task = copy.copy(self)
        module = copy.deepcopy(self.module)
        if start:
            weights.load_weights(module, start)
        elif adapter:
            # The frozen base is not part of a client's model, so it is drawn here.
            module.load_state_dict(self.init_params(seed), strict=False)
        module = add_adapters(module, LoraConfig.parse(adapter), seed) if adapter else module
        task.fresh = self.fresh and not (start or adapter)
        task._set_network(module, blocks)
        return task

    def to(self, device: torch.device) -> ExamplesTask:
        """Return the task on a device. `module` stays on the CPU: a seed gives the same model."""
        task = copy.copy(self)
        task.device = device
        task._padded_inputs = None
        task._device_module = copy.deepcopy(self.module).to(device)
        task._map_forward()
        if self.heldout_clients is not None:
            task.heldout_clients = self.heldout_clients.to(device)
        return task

    def step_context(self, key: Tensor, rows: Tensor) -> Params:
        """Return the dropout keys and batch sizes of a training step."""
        return pytree.to_device(
            {
                **dict.fromkeys(self._dropout_keys, key),
                **dict.fromkeys(self._batch_norm_keys, rows),
            },
            self.device,
        )

    def subset(self, ids: Ints) -> Self:
        """Return the task of some of the clients, renumbered from 0."""
        return self.with_data(Subset(self.data, ids))

    def with_data(self, data: ClientData) -> Self:
        """Return the task on other rows of the same form."""
        task = copy.copy(self)
        task.data = data
        task.info = replace(self.info, num_clients=data.clients, client_names=data.names)
        task._map_forward()
        return task

    def check(self) -> None:
        """Check that the model takes the data, is deterministic and can be batched."""
        check_trainable(self.module)
        x, _ = self.data.server("test")
        try:
            logits = self.forward({}, self.prepare(x[:2]))
        except (RuntimeError, IndexError) as error:
            raise UsageError(
                f"the model does not take samples of shape {self.data.shape}: {error}"
            ) from error
        wanted = (
            f"{self.data.classes} classes"
            if self.info.target_kind == "classification"
            else f"one number for {self.info.target_kind}"
        )
        if not isinstance(logits, Tensor):
            raise UsageError(
                f"the model gives a {type(logits).__name__}: "
                f"it must give its outputs alone, for {wanted}"
            )
        if logits.shape != (len(x[:2]), self.data.classes):
            raise UsageError(
                f"the model gives outputs of shape {tuple(logits.shape[1:])}, "
                f"but the data has {wanted}"
            )
        self._check_deterministic(x[:2])
        if self.info.stackable and not self._can_vmap(x[:2]):
            self.info = replace(self.info, stackable=False)
            self.deep = True

    def _check_deterministic(self, x: Tensor) -> None:
        """Refuse a model whose outputs or initial weights no seed can repeat."""
        with torch.no_grad():
            once, again = (self.forward({}, self.prepare(x)) for _ in range(2))
        if not torch.equal(*_to_cpu({"once": once, "again": again}).values()):
            raise UsageError(
                "the model gives other outputs when asked again (F.dropout?): use nn.Dropout layers"
            )
        if self.fresh:
            weights.check_reinitialisable(self.module)

    def _can_vmap(self, x: Tensor) -> bool:
        """Tell whether vmap works: not if the model branches on or reads a tensor's value."""
        params = {
            name: value[None]
            for name, value in pytree.to_device(
                weights.model_params(self.module), self.device
            ).items()
        }
        params |= self.step_context(torch.ones(1, dtype=torch.int64), torch.full((1,), len(x)))
        try:
            with torch.no_grad():
                self._forward_stack(params, self.prepare(x)[None])
        except RuntimeError:
            return False
        return True

    def init_params(self, seed: int) -> Params:
        """Return the module's weights, or new random ones; layers that start at 0 stay at 0."""
        return (
            weights.reinitialised_params(self.module, seed)
            if self.fresh
            else weights.model_params(self.module)
        )

    @property
    def frozen(self) -> Params:
        """Frozen parameters of the network."""
        return weights.frozen_params(self.module)

    def has_split(self, split: str) -> bool:
        """Tell whether the data has a split."""
        return self.data.has_split(split)

    def warnings(self) -> tuple[str, ...]:
        """Return what the user should know about the data before training."""
        return self.preparation.notes

    def fingerprint(self) -> str:
        """Return the fingerprint of the data."""
        return self.data.fingerprint()

    def num_examples(self, ids: Tensor) -> Tensor:
        """Count the training rows of clients, `[K]`, or what they claim in a simulated attack."""
        counts = self.num_rows(ids, "train")
        if not self.claimed_sizes:
            return counts
        pairs = zip(ids.tolist(), counts.tolist(), strict=True)
        return torch.tensor([self.claimed_sizes.get(client, count) for client, count in pairs])

    def num_rows(self, ids: Tensor, split: str) -> Tensor:
        """Count the rows of clients in a split, `[K]`."""
        return torch.from_numpy(self.data.sizes(_numpy(ids), split))

    def claim_sizes(self, sizes: Mapping[int, int]) -> None:
        """Count these numbers of training rows instead of the true ones."""
        self.claimed_sizes = dict(sizes)

    def num_server_rows(self, split: str) -> int:
        """Count the rows of a server split."""
        return len(self.data.server(split)[1])

    def num_steps(
        self,
        ids: Tensor,
        epochs: Tensor,
        training: TrainingConfig,
        data_range: tuple[float, float] = (0.0, 1.0),
    ) -> Tensor:
        """Count the SGD steps of local training, `[K]`."""
        sizes = self.data.sizes(_numpy(ids.reshape(-1)), "train")
        if data_range != (0.0, 1.0):
            _, sizes = fraction_range(sizes, *data_range)
        return epochs * torch.from_numpy(
            batching.batches_per_epoch(sizes, training.batch_size)
        ).reshape(ids.shape)

    def label_counts(self, ids: Tensor) -> Tensor:
        """Count the training rows of each class, `[K, C]`."""
        own = self.data.split(_numpy(ids), "train")
        classes = self.data.classes
        if self.info.target_kind != "classification":
            return torch.from_numpy(own.size)[:, None]
        owner = np.repeat(np.arange(len(own.size)), own.size)
        first = np.cumsum(own.size) - own.size
        mine = own.start[owner] + np.arange(len(owner)) - first[owner]
        label = owner * classes + own.y.numpy()[mine]
        return torch.from_numpy(np.bincount(label, minlength=len(own.size) * classes)).reshape(
            -1, classes
        )

    def example_inputs(self, count: int) -> Tensor:
        """Return prepared test rows of the server, `[count, ...]`."""
        return self.prepare(self.data.server("test")[0][:count]).contiguous()

    # --- one client -----------------------------------------------------------------------------

    def prepare(self, x: Tensor) -> Tensor:
        """Convert stored rows to inputs of the network, on its device."""
        return self.channels_last(self.data.transform.prepare(x.to(self.device), self.dtype))

    def pad_inputs(self, x: Tensor) -> Tensor:
        """Return rows padded for the closed form; cached while the rows are the same tensor."""
        if self._padded_inputs is None or self._padded_inputs[0] is not x:
            self._padded_inputs = x, batched_sgd.pad_inputs(x.to(self.device))
        return self._padded_inputs[1]

    def channels_last(self, value: Tensor) -> Tensor:
        """Return images and filters in channels-last format, the fastest for convolutions."""
        return (
            value.to(memory_format=torch.channels_last)
            if self.convolutional and value.dim() == 4
            else value
        )

    def logits(self, params: Params, x: Tensor) -> Tensor:
        """Compute the outputs of one model on stored rows, in chunks that fit into memory."""
        at_once = self._rows_at_once() if self.deep else len(x)
        if len(x) <= at_once:
            return self.forward(params, self.prepare(x))
        return torch.cat(
            [self.forward(params, self.prepare(part)) for part in torch.split(x, at_once)]
        )

    def _rows_at_once(self) -> int:
        """Return the number of rows that a deep model scores at once."""
        numbers = MAX_INPUTS_AT_ONCE // math.prod(self.data.shape)
        return max(
            1, MAX_ACTIVATION_BYTES // self.row_bytes() if self._is_sequence_model else numbers
        )

    def _clients_at_once(self, ids: Tensor, batch: int) -> int:
        """Return the number of clients whose activations fit into memory."""
        if len(ids) * batch * self.row_bytes() <= MAX_ACTIVATION_BYTES:
            return len(ids)
        rows = min(batch, int(self.num_examples(ids).max()))
        return max(1, MAX_ACTIVATION_BYTES // (rows * self.row_bytes()))

    def row_bytes(self) -> int:
        """Return the activation memory of one row for its gradient, at least 1 byte."""
        if not self._row_bytes:
            # A copy, because the whole storage of a view would be counted.
            x = self.prepare(self.data.server("test")[0][:1].clone())
            learned = {
                name: v
                for name, v in weights.model_params(self.module).items()
                if name not in self.info.batch_stat_names
            }
            size = activation_bytes(
                self._device_module,
                pytree.to_device(learned, self.device),
                lambda p: self.forward(p, x),
            )
            self._row_bytes = max(1, size)
        return self._row_bytes

    def forward(self, params: Params, x: Tensor) -> Tensor:
        """Compute the outputs `[B, outputs]` of one model."""
        logits: Tensor = functional_call(self._device_module, params, (x,))
        return logits

    def losses(self, params: Params, x: Tensor, y: Tensor, aux: State) -> Tensor:
        """Compute the losses `[B]` of one model."""
        return self.objective.losses(self.forward(params, x), y)

    def fit(
        self, ids: Tensor, request: LocalTrainRequest, data_state: State, rng: RngContext
    ) -> tuple[Params, Params, State]:
        """Train one client by `sgd.fit`."""
        params, anchor = sgd.fit(self, ids, self._request_to_device(request), rng)
        return _to_cpu(params), _to_cpu(anchor), data_state

    def _request_to_device(self, request: LocalTrainRequest) -> LocalTrainRequest:
        """Move the tensors of a request to the device; ids and epochs stay on the CPU."""
        pull = request.proximal
        linear = request.grad_correction
        if pull is not None:
            strength, follow = (
                torch.as_tensor(value).to(self.device) for value in (pull.mu, pull.anchor_lr)
            )
            pull = ProximalTerm(pytree.to_device(pull.anchor, self.device), strength, follow)
        return replace(
            request,
            params=pytree.to_device(request.params, self.device),
            lr=request.lr.to(self.device),
            proximal=pull,
            grad_correction=None if linear is None else pytree.to_device(linear, self.device),
            aux=pytree.to_device(request.aux, self.device),
        )

    def evaluate(self, ids: Tensor, params: Params, split: str) -> Params:
        """Evaluate one model on the rows of its client."""
        x, y = self._rows_of_one(ids, split)
        return pytree.index(
            self._score(self.logits(pytree.to_device(params, self.device), x)[None], y[None], None),
            0,
        )

    def grad_sq_norm(self, ids: Tensor, params: Params, rng: RngContext) -> Tensor:
        """Compute the squared gradient norm of one client on its first batch."""
        return grad_norm.grad_sq_norm(self, ids, pytree.to_device(params, self.device), rng).to(
            ExamplesTask.device
        )

    def confidence_interval(
        self, client: int, params: Params, random: np.random.Generator
    ) -> tuple[float, float]:
        """Compute the bootstrap interval of the primary metric over a client's test rows."""
        x, y = self._rows_of_one(torch.tensor(client), "test")
        outputs = self.logits(pytree.to_device(params, self.device), x).cpu()
        alone = (self.info.metric,)  # not every score that the task knows, five hundred times
        return metrics.bootstrap_interval(
            lambda rows: self.objective.score(outputs[rows], y[rows], None, alone)[
                self.info.metric
            ],
            len(y),
            random,
        )

    def constant_baseline(self, client: int) -> Params:
        """Compute test scores of the best constant prediction."""
        _, trained = self._rows_of_one(torch.tensor(client), "train")
        x, y = self._rows_of_one(torch.tensor(client), "test")
        outputs = self.objective.constant_output(trained).expand(1, len(x), -1)
        return pytree.index(self._score(outputs, y[None], None), 0)

    def evaluate_heads(self, ids: Tensor, params: Params, heads: Params, split: str) -> Params:
        """Evaluate one model with each of several heads; the body is computed once."""
        if not (self.deep and self.info.stackable):
            return super().evaluate_heads(ids, params, heads, split)
        x, y = self._rows_of_one(ids, split)
        body, heads = (pytree.to_device(tree, self.device) for tree in (params, heads))
        self.row_bytes()  # which bounds the rows at once, and cannot be measured within the map
        # What does not depend on the heads is not mapped over them, but computed once.
        mapped = vmap(lambda head: self.logits(body | head, x))
        return self._score(mapped(heads), y[None], None)

    def client_rows(self, client: int, split: str) -> tuple[Tensor, Tensor]:
        """Return the stored rows and targets of one client."""
        return self._rows_of_one(torch.tensor(client), split)

    def _rows_of_one(self, ids: Tensor, split: str) -> tuple[Tensor, Tensor]:
        """Return the stored rows and targets of one client."""
        own = self.data.split(_numpy(ids.reshape(1)), split)
        rows = slice(int(own.start[0]), int(own.start[0] + own.size[0]))
        return own.x[rows], own.y[rows]

    # --- stacks of clients ----------------------------------------------------------------------

    def forward_stack(self, stack: Params, x: Tensor) -> Tensor:
        """Compute the outputs `[K, B, outputs]` of K models, each on its own rows."""
        logits: Tensor = self._forward_stack(stack, x)
        return logits

    def losses_stack(self, stack: Params, x: Tensor, y: Tensor) -> Tensor:
        """Compute the losses `[K, B]` of K models."""
        return self.objective.losses(self.forward_stack(stack, x), y)

    def fit_stack(
        self, ids: Tensor, request: LocalTrainRequest, data_state: State, rng: RngContext
    ) -> tuple[Params, Params, State]:
        """Train K clients, in chunks that fit into memory."""
        train = batched_sgd.fit if self.info.stackable else sgd.fit_each
        at_once = self._clients_at_once(ids, rng.training.batch_size)
        params, anchor = batching.fit_in_chunks(
            train, self, ids, self._request_to_device(request), rng, at_once
        )
        return _to_cpu(params), _to_cpu(anchor), data_state

    def evaluate_stack(self, ids: Tensor, params: Params, split: str) -> Params:
        """Evaluate K models, each on the rows of its client."""
        if self.deep:
            return pytree.stack(
                [self.evaluate(ids[k], pytree.index(params, k), split) for k in range(len(ids))]
            )
        x, y, weight = self.data.split(_numpy(ids), split).padded
        return self._score(
            self.forward_stack(pytree.to_device(params, self.device), self.prepare(x)), y, weight
        )

    def grad_sq_norm_stack(self, ids: Tensor, params: Params, rng: RngContext) -> Tensor:
        """Compute `grad_sq_norm` of K clients, `[K]`."""
        if not self.info.stackable:
            return torch.stack(
                [self.grad_sq_norm(ids[k], pytree.index(params, k), rng) for k in range(len(ids))]
            )
        return grad_norm.grad_sq_norm_stack(
            self, ids, pytree.to_device(params, self.device), rng
        ).to(ExamplesTask.device)

    def evaluate_heads_stack(
        self, ids: Tensor, params: Params, heads: Params, split: str
    ) -> Params:
        """Run `evaluate_heads` for K clients, `[K, H]`."""
        if not self.deep:
            return super().evaluate_heads_stack(ids, params, heads, split)
        each = range(len(ids))
        return pytree.stack(
            [
                self.evaluate_heads(ids[k], pytree.index(params, k), pytree.index(heads, k), split)
                for k in each
            ]
        )

    def evaluate_server(self, stack: Params, split: str) -> Params:
        """Evaluate K models on a server split, `[K]`."""
        return self._evaluate_rows(stack, *self.data.server(split))

    def probe_losses(self, stack: Params) -> Tensor:
        """Return the losses `[K]` of models on an even sample of the server's public rows."""
        x, y = self.data.server("public")
        step = math.ceil(len(x) / MAX_PROBE_ROWS)
        return self._evaluate_rows(stack, x[::step], y[::step])["loss"]

    def _evaluate_rows(self, stack: Params, x: Tensor, y: Tensor) -> Params:
        """Evaluate K models on rows, `[K]`."""
        stack = pytree.to_device(stack, self.device)
        models = len(next(iter(stack.values())))
        if models == 1 or self.deep:
            scores = [
                self._score(self.logits(pytree.index(stack, k), x)[None], y[None], None)
                for k in range(models)
            ]
            return {name: torch.cat([score[name] for score in scores]) for name in scores[0]}
        x = self.prepare(x)
        at_once = max(1, MAX_LOGITS_AT_ONCE // (len(x) * self.data.classes))
        scores = [
            self._score(
                self._forward_shared(
                    {name: value[k : k + at_once] for name, value in stack.items()}, x
                ),
                y[None],
                None,
            )
            for k in range(0, models, at_once)
        ]
        return {name: torch.cat([score[name] for score in scores]) for name in scores[0]}

    def _score(self, outputs: Tensor, y: Tensor, weight: Tensor | None) -> Params:
        """Score outputs `[K, n, outputs]` against `y [K or 1, n]`; return `[K]` on the CPU."""
        y = y.to(outputs.device).expand(len(outputs), *y.shape[1:])
        weight = None if weight is None else weight.to(outputs.device)
        return _to_cpu(self.objective.score(outputs, y, weight, self.eval_metrics))

    def utility_and_loss(self, scores: Params) -> tuple[Tensor, Tensor]:
        """Return the utility of the primary metric, and the loss."""
        metric = self.info.metric
        return self.objective.utility(metric, scores[metric]), scores["loss"]


def _to_cpu(tree: Params) -> Params:
    """Move tensors to main memory."""
    return pytree.to_device(tree, ExamplesTask.device)


def _numpy(ids: Tensor) -> Ints:
    """Return client numbers as an array."""
    array: Ints = ids.numpy()
    return array
