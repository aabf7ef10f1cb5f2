"""Supervised tasks: any network on any client data, for any kind of target."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from equipoise.core import (
    LocalTrainRequest,
    Params,
    ProximalTerm,
    RngContext,
    State,
    TrainingConfig,
)
from equipoise.data.federated_dataset import ClientData, Ints, Subset, fraction_range
from equipoise.data.tabular.preprocessing import Preprocessor
from equipoise.data.time_series import WindowTransform
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
from equipoise.tasks.poisoning import PoisonableTask
from equipoise.training import batched_sgd, batching, grad_norm, linear_closed_form, metrics, sgd
from equipoise.training.chunking import fit_in_chunks
from equipoise.training.objectives import Objective, objective_of
from equipoise.utils import pytree
from equipoise.utils.errors import UsageError
from equipoise.utils.metrics import higher_is_better

MAX_LOGITS_AT_ONCE = 2**23  # bounds the memory of scoring many models on one set
MAX_INPUTS_AT_ONCE = (
    2**19
)  # of the inputs that a deep model scores at once: bounds the memory of its activations
MAX_ACTIVATION_BYTES = (
    2**30
)  # bytes that the clients of a stack, or the rows of a sequence model, keep together
UNSTACKABLE = (nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention)  # vmap runs these as a slow loop
CONVOLUTION = (nn.Conv1d, nn.Conv2d, nn.Conv3d, LoraConv)


class ExamplesTask(PoisonableTask):
    """A network under SGD; loss and scores are those of its :class:`~equipoise.training.objectives.Objective`."""

    preprocessor: Preprocessor | WindowTransform | None = None
    """How raw rows of tables, or recordings, became the rows of the data."""
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
    ) -> None:
        """``closed_form=False`` keeps a linear model on the general engine (to measure and test it).

        ``fresh``: a run's seed draws the first model anew; otherwise it is ``module`` with the weights that it has.
        Frozen parameters stay as they are in either case. ``objective``: the target's usual one without it.
        """
        self.fresh = fresh
        self.name, self.data, self.training, self.dtype = name, data, training, dtype
        self.num_clients, self.client_names = data.clients, data.names
        self.class_names = data.target.classes if data.target.name else ()
        self.objective = objective or objective_of(data.target)
        self.pad_label, self.target_kind = self.objective.pad_label, data.target.kind
        self._set_metrics(self.objective.default_metrics)
        self._closed_form = closed_form and self.objective.closed_form
        self._set_network(with_reproducible_layers(copy.deepcopy(module).to(dtype)), "")

    def _set_network(self, module: nn.Module, blocks: str) -> None:
        """Everything that follows from the network."""
        self.module, self._padded_inputs = module, None
        self.blocks = blocks_of(self.module, blocks)
        self.batch_stat_names = running_stat_names(self.module)
        self._batch_norm_keys = tuple(f"{name}.rows" for name, _ in batch_norm_layers(self.module))
        self._dropout_keys = tuple(f"{name}.key" for name, _ in dropout_layers(self.module))
        self.has_train_mode = bool(self._batch_norm_keys or self._dropout_keys)
        self.linear = (
            linear_closed_form.linear_param_names(self.module) if self._closed_form else None
        )
        layers = list(self.module.modules())
        self.stackable = not any(isinstance(layer, UNSTACKABLE) for layer in layers)
        self.convolutional = any(isinstance(layer, CONVOLUTION) for layer in layers)
        sequences = isinstance(self.data.transform, TokenTransform)
        self.deep = self.executor_depends_on_model = (
            self.convolutional or sequences or not self.stackable
        )
        """Whether computing many models at once gains nothing in evaluation and costs their activations' memory."""
        self._is_sequence_model, self._row_bytes = sequences and self.stackable, 0
        self._device_module = self.module
        self._map_forward()

    def _set_metrics(self, scored: tuple[str, ...]) -> None:
        self.eval_metrics, self.metric = scored, scored[0]
        self.higher_is_better = higher_is_better(self.metric)

    def with_primary_metric(self, name: str) -> ExamplesTask:
        part = copy.copy(self)
        part._set_metrics(self.objective.with_primary_metric(name))
        part._map_forward()
        return part

    def with_all_metrics(self) -> ExamplesTask:
        """With all scores of the objective, the headline first as before."""
        part = copy.copy(self)
        part._set_metrics(
            (self.metric, *(name for name in self.objective.metric_names if name != self.metric))
        )
        part._map_forward()
        return part

    def _map_forward(self) -> None:
        self._forward_stack = stacked_forward(self._device_module) or vmap(self.forward)
        self.transposed_params = transposed_params(self._device_module)
        self._forward_shared = vmap(self.forward, in_dims=(0, None))

    def with_network(self, start: str, adapter: str, blocks: str, seed: int) -> ExamplesTask:
        part, module = copy.copy(self), copy.deepcopy(self.module)
        if start:
            weights.load_weights(module, start)
        elif adapter:
            module.load_state_dict(
                self.init_params(seed), strict=False
            )  # the base, which nobody draws later
        module = add_adapters(module, LoraConfig.parse(adapter), seed) if adapter else module
        part.fresh = self.fresh and not (start or adapter)
        part._set_network(module, blocks)
        return part

    def to(self, device: torch.device) -> ExamplesTask:
        """``module`` stays: a seed gives the same initial model on every device."""
        part = copy.copy(self)
        part.device, part._padded_inputs = device, None
        part._device_module = copy.deepcopy(self.module).to(device)
        part._map_forward()
        if self.heldout_clients is not None:
            part.heldout_clients = self.heldout_clients.to(device)
        return part

    def step_context(self, key: Tensor, rows: Tensor) -> Params:
        return pytree.to_device(
            {
                **dict.fromkeys(self._dropout_keys, key),
                **dict.fromkeys(self._batch_norm_keys, rows),
            },
            self.device,
        )

    def subset(self, ids: Ints) -> ExamplesTask:
        part = copy.copy(self)
        part.data = Subset(self.data, ids)
        part.num_clients, part.client_names = part.data.clients, part.data.names
        part._map_forward()
        return part

    def check(self) -> None:
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
            if self.target_kind == "classification"
            else f"one number for {self.target_kind}"
        )
        if not isinstance(logits, Tensor):
            raise UsageError(
                f"the model gives a {type(logits).__name__}: it must give its outputs alone, for {wanted}"
            )
        if logits.shape != (len(x[:2]), self.data.classes):
            raise UsageError(
                f"the model gives outputs of shape {tuple(logits.shape[1:])}, but the data has {wanted}"
            )
        self._check_deterministic(x[:2])
        if self.stackable and not self._can_vmap(x[:2]):
            self.stackable, self.deep = False, True

    def _check_deterministic(self, x: Tensor) -> None:
        with torch.no_grad():
            once, again = (self.forward({}, self.prepare(x)) for _ in range(2))
        if not torch.equal(*_to_cpu({"once": once, "again": again}).values()):
            raise UsageError(
                "the model gives other outputs when asked again (F.dropout?): use nn.Dropout layers"
            )
        if self.fresh:
            weights.check_reinitialisable(self.module)

    def _can_vmap(self, x: Tensor) -> bool:
        """Whether the model can be mapped over many: not if it branches on a tensor's value or takes it out of one."""
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
        """The module's own weights, or fresh random layers by ``seed``; a layer that starts at zero stays there."""
        return (
            weights.reinitialised_params(self.module, seed)
            if self.fresh
            else weights.model_params(self.module)
        )

    @property
    def frozen(self) -> Params:
        return weights.frozen_params(self.module)

    def has_split(self, split: str) -> bool:
        return self.data.has_split(split)

    def preprocessing_json(self) -> str:
        return self.preprocessor.to_json() if self.preprocessor else ""

    def fingerprint(self) -> str:
        return self.data.fingerprint()

    def num_examples(self, ids: Tensor) -> Tensor:
        return self.num_rows(ids, "train")

    def num_rows(self, ids: Tensor, split: str) -> Tensor:
        return torch.from_numpy(self.data.sizes(_numpy(ids), split))

    def num_server_rows(self, split: str) -> int:
        return len(self.data.server(split)[1])

    def num_steps(
        self,
        ids: Tensor,
        epochs: Tensor,
        training: TrainingConfig,
        data_range: tuple[float, float] = (0.0, 1.0),
    ) -> Tensor:
        sizes = self.data.sizes(_numpy(ids.reshape(-1)), "train")
        if data_range != (0.0, 1.0):
            _, sizes = fraction_range(sizes, *data_range)
        return epochs * torch.from_numpy(
            batching.batches_per_epoch(sizes, training.batch_size)
        ).reshape(ids.shape)

    def label_counts(self, ids: Tensor) -> Tensor:
        own, classes = self.data.split(_numpy(ids), "train"), self.data.classes
        if self.target_kind != "classification":
            return torch.from_numpy(own.size)[:, None]
        owner = np.repeat(np.arange(len(own.size)), own.size)
        first = np.cumsum(own.size) - own.size
        mine = own.start[owner] + np.arange(len(owner)) - first[owner]
        label = owner * classes + own.y.numpy()[mine]
        return torch.from_numpy(np.bincount(label, minlength=len(own.size) * classes)).reshape(
            -1, classes
        )

    def example_inputs(self, count: int) -> Tensor:
        return self.prepare(self.data.server("test")[0][:count]).contiguous()

    # --- one client -------------------------------------------------------------------------------------------------

    def prepare(self, x: Tensor) -> Tensor:
        """Stored rows as the model takes them; images of a convolutional model with their channels last in memory."""
        return self.channels_last(self.data.transform.prepare(x.to(self.device), self.dtype))

    def pad_inputs(self, x: Tensor) -> Tensor:
        """Training rows as the closed form takes them; made once for rows that stay."""
        if self._padded_inputs is None or self._padded_inputs[0] is not x:
            self._padded_inputs = x, linear_closed_form.pad_inputs(x.to(self.device))
        return self._padded_inputs[1]

    def channels_last(self, value: Tensor) -> Tensor:
        """Channels last in memory, which convolutions are fastest on; the numbers do not change."""
        return (
            value.to(memory_format=torch.channels_last)
            if self.convolutional and value.dim() == 4
            else value
        )

    def logits(self, params: Params, x: Tensor) -> Tensor:
        """Logits of one model on stored rows, a bounded number at once."""
        at_once = self._rows_at_once() if self.deep else len(x)
        if len(x) <= at_once:
            return self.forward(params, self.prepare(x))
        return torch.cat(
            [self.forward(params, self.prepare(part)) for part in torch.split(x, at_once)]
        )

    def _rows_at_once(self) -> int:
        numbers = MAX_INPUTS_AT_ONCE // math.prod(self.data.shape)
        return max(
            1, MAX_ACTIVATION_BYTES // self.row_bytes() if self._is_sequence_model else numbers
        )

    def _clients_at_once(self, ids: Tensor, batch: int) -> int:
        if len(ids) * batch * self.row_bytes() <= MAX_ACTIVATION_BYTES:
            return len(ids)
        rows = min(batch, int(self.num_examples(ids).max()))
        return max(1, MAX_ACTIVATION_BYTES // (rows * self.row_bytes()))

    def row_bytes(self) -> int:
        """What one row keeps in memory for its gradient; at least one byte."""
        if not self._row_bytes:
            x = self.prepare(
                self.data.server("test")[0][:1].clone()
            )  # not a view: what it lies in would count, too
            learned = {
                name: v
                for name, v in weights.model_params(self.module).items()
                if name not in self.batch_stat_names
            }
            size = activation_bytes(
                self._device_module,
                pytree.to_device(learned, self.device),
                lambda p: self.forward(p, x),
            )
            self._row_bytes = max(1, size)
        return self._row_bytes

    def forward(self, params: Params, x: Tensor) -> Tensor:
        """Logits ``[B, classes]`` of one model."""
        logits: Tensor = functional_call(self._device_module, params, (x,))
        return logits

    def losses(self, params: Params, x: Tensor, y: Tensor, aux: State) -> Tensor:
        return self.objective.losses(self.forward(params, x), y)

    def fit(
        self, ids: Tensor, request: LocalTrainRequest, data_state: State, rng: RngContext
    ) -> tuple[Params, Params, State]:
        params, anchor = sgd.fit(self, ids, self._request_to_device(request), rng)
        return _to_cpu(params), _to_cpu(anchor), data_state

    def _request_to_device(self, request: LocalTrainRequest) -> LocalTrainRequest:
        """The numbers that training computes with, where it computes; ids and epochs only plan it."""
        pull, linear = request.proximal, request.grad_correction
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
        x, y = self._rows_of_one(ids, split)
        return pytree.index(
            self._score(self.logits(pytree.to_device(params, self.device), x)[None], y[None], None),
            0,
        )

    def grad_sq_norm(self, ids: Tensor, params: Params, rng: RngContext) -> Tensor:
        return grad_norm.grad_sq_norm(self, ids, pytree.to_device(params, self.device), rng).to(
            ExamplesTask.device
        )

    def confidence_interval(
        self, client: int, params: Params, random: np.random.Generator
    ) -> tuple[float, float]:
        x, y = self._rows_of_one(torch.tensor(client), "test")
        outputs = self.logits(pytree.to_device(params, self.device), x).cpu()
        alone = (self.metric,)  # not every score that the task knows, five hundred times
        return metrics.bootstrap_interval(
            lambda rows: self.objective.score(outputs[rows], y[rows], None, alone)[self.metric],
            len(y),
            random,
        )

    def constant_baseline(self, client: int) -> Params:
        _, trained = self._rows_of_one(torch.tensor(client), "train")
        x, y = self._rows_of_one(torch.tensor(client), "test")
        outputs = self.objective.constant_output(trained).expand(1, len(x), -1)
        return pytree.index(self._score(outputs, y[None], None), 0)

    def evaluate_heads(self, ids: Tensor, params: Params, heads: Params, split: str) -> Params:
        if not (self.deep and self.stackable):
            return super().evaluate_heads(ids, params, heads, split)
        x, y = self._rows_of_one(ids, split)
        body, heads = (pytree.to_device(tree, self.device) for tree in (params, heads))
        self.row_bytes()  # which bounds the rows at once, and cannot be measured within the map
        # What does not depend on the heads is not mapped over them, but computed once.
        mapped = vmap(lambda head: self.logits(body | head, x))
        return self._score(mapped(heads), y[None], None)

    def _rows_of_one(self, ids: Tensor, split: str) -> tuple[Tensor, Tensor]:
        """One client's stored rows and labels."""
        own = self.data.split(_numpy(ids.reshape(1)), split)
        here = slice(int(own.start[0]), int(own.start[0] + own.size[0]))
        return own.x[here], own.y[here]

    # --- stacks -----------------------------------------------------------------------------------------------------

    def forward_stack(self, stack: Params, x: Tensor) -> Tensor:
        """Logits ``[K, B, classes]`` of K models, each on its own rows."""
        logits: Tensor = self._forward_stack(stack, x)
        return logits

    def losses_stack(self, stack: Params, x: Tensor, y: Tensor) -> Tensor:
        """Losses ``[K, B]``: :meth:`losses` of K models."""
        return self.objective.losses(self.forward_stack(stack, x), y)

    def fit_stack(
        self, ids: Tensor, request: LocalTrainRequest, data_state: State, rng: RngContext
    ) -> tuple[Params, Params, State]:
        train = batched_sgd.fit if self.stackable else sgd.fit_each
        at_once = self._clients_at_once(ids, rng.training.batch_size)
        params, anchor = fit_in_chunks(
            train, self, ids, self._request_to_device(request), rng, at_once
        )
        return _to_cpu(params), _to_cpu(anchor), data_state

    def evaluate_stack(self, ids: Tensor, params: Params, split: str) -> Params:
        if self.deep:
            return pytree.stack(
                [self.evaluate(ids[k], pytree.index(params, k), split) for k in range(len(ids))]
            )
        x, y, weight = self.data.split(_numpy(ids), split).padded
        return self._score(
            self.forward_stack(pytree.to_device(params, self.device), self.prepare(x)), y, weight
        )

    def grad_sq_norm_stack(self, ids: Tensor, params: Params, rng: RngContext) -> Tensor:
        if not self.stackable:
            return torch.stack(
                [self.grad_sq_norm(ids[k], pytree.index(params, k), rng) for k in range(len(ids))]
            )
        return grad_norm.grad_sq_norm_stack(
            self, ids, pytree.to_device(params, self.device), rng
        ).to(ExamplesTask.device)

    def evaluate_heads_stack(
        self, ids: Tensor, params: Params, heads: Params, split: str
    ) -> Params:
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
        x, y = self.data.server(split)
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
        """Scores ``[K]`` of outputs ``[K, n, outputs]``, in main memory; ``y [1, n]`` is that of all."""
        y = y.to(outputs.device).expand(len(outputs), *y.shape[1:])
        weight = None if weight is None else weight.to(outputs.device)
        return _to_cpu(self.objective.score(outputs, y, weight, self.eval_metrics))

    def utility_and_loss(self, scores: Params) -> tuple[Tensor, Tensor]:
        return self.objective.utility(self.metric, scores[self.metric]), scores["loss"]


def _to_cpu(tree: Params) -> Params:
    return pytree.to_device(tree, ExamplesTask.device)


def _numpy(ids: Tensor) -> Ints:
    array: Ints = ids.numpy()
    return array
