"""A client's round: the decisions of the client half, in order, for one client."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from equipoise.core import (
    Client,
    ClientResult,
    ClientState,
    DeviceProfile,
    LocalHParams,
    LocalTrainRequest,
    Loss,
    Method,
    Params,
    ProximalTerm,
    RngContext,
    ServerMessage,
    State,
    SupervisedTask,
    Task,
    TrainingConfig,
)
from equipoise.utils import pytree, torch_internals
from equipoise.utils import rng as random

A = TypeVar("A")
R = TypeVar("R")
Axes = int | None | object
"""Of an argument: 0 if it is a stack, None if all clients share it, or a tree of these."""


class ClientRuntime(Client):
    """The client that methods see, in every executor."""

    def __init__(
        self,
        task: Task,
        training: TrainingConfig,
        rng: RngContext,
        rounds: int,
        id: Tensor,
        message: ServerMessage,
        client_state: ClientState,
    ) -> None:
        """Create the client.

        Args:
            task: Task of the run.
            training: Settings of local training in this round.
            rng: Seed and round.
            rounds: Number of rounds of the run.
            id: Client number, a scalar tensor.
            message: What the server sent.
            client_state: What the client keeps between rounds.
        """
        self.id = id
        self.round = rng.round
        self.num_rounds = rounds
        self.task = task
        self.training = training
        self._rng = rng
        self.message = message
        self.local_params = client_state.local_params
        self.state = client_state.state
        # Shared by the copies that `scoped` makes: a client has one source of data.
        self._data: dict[str, State] = {"state": client_state.data_state}
        self._step_counts = [torch.zeros_like(id)]
        self.logged = {}
        configured = LocalHParams(
            torch.full_like(id, training.epochs),
            torch.full_like(id, training.lr, dtype=torch.float64),
        )
        self.hparams = message.hparams or configured

    @property
    def steps_taken(self) -> Tensor:
        """Gradient steps in this round so far."""
        return torch.stack(self._step_counts).sum(0)

    @property
    def data_state(self) -> State:
        """Return the state of the client's data source after its training so far."""
        return self._data["state"]

    def fit(
        self,
        params: Params,
        *,
        hparams: LocalHParams | None = None,
        proximal: ProximalTerm | None = None,
        grad_correction: Params | None = None,
        blocks: tuple[str, ...] | None = None,
        loss: Loss | None = None,
        aux: State | None = None,
        data_range: tuple[float, float] = (0.0, 1.0),
        steps_per_batch: int = 1,
        clamp: tuple[float, float] | None = None,
        stream: int = 0,
        training: TrainingConfig | None = None,
    ) -> Params:
        """Train on the client's own data, and return the new parameters."""
        request = LocalTrainRequest(
            params,
            self.id,
            self.id,
            proximal,
            grad_correction,
            aux or {},
            (),
            loss,
            data_range,
            steps_per_batch,
            clamp,
            stream,
        )
        return self._fit(request, hparams or self.hparams, blocks, training)[0]

    def fit_with_moving_anchor(
        self, params: Params, proximal: ProximalTerm, **options: Any
    ) -> tuple[Params, Params]:
        """Run `fit` with an anchor that moves towards the model after each batch."""
        hparams = options.pop("hparams", None) or self.hparams
        blocks = options.pop("blocks", None)
        aux = options.pop("aux", {})
        request = LocalTrainRequest(params, self.id, self.id, proximal, aux=aux, **options)
        return self._fit(request, hparams, blocks)

    def _fit(
        self,
        request: LocalTrainRequest,
        hparams: LocalHParams,
        blocks: tuple[str, ...] | None,
        training: TrainingConfig | None = None,
    ) -> tuple[Params, Params]:
        """Complete a request and run it; count its steps and keep the new state of the data.

        Args:
            request: The request, without epochs, rate and names of trainable parameters.
            hparams: Epochs and learning rate.
            blocks: Blocks that are trained; None for all.
            training: Settings of local training in place of the run's.

        Returns:
            The trained parameters, and the anchor (empty without a proximal term).
        """
        task = self.task
        rng = replace(self._rng, training=training or self.training)
        dtype = next(iter(request.params.values())).dtype
        proximal = request.proximal
        if proximal is not None:
            mu = torch.as_tensor(proximal.mu, dtype=dtype)
            anchor_lr = torch.as_tensor(proximal.anchor_lr, dtype=dtype)
            proximal = ProximalTerm(proximal.anchor, mu, anchor_lr)
        request = replace(
            request,
            epochs=hparams.epochs,
            lr=hparams.lr.to(dtype),
            proximal=proximal,
            trainable=tuple(request.params) if blocks is None else task.info.param_names(*blocks),
        )

        def num_steps(ids: Tensor, request: LocalTrainRequest) -> Tensor:
            num_batches = task.num_steps(ids, request.epochs, rng.training, request.data_range)
            return num_batches * request.steps_per_batch

        params, anchor, self._data["state"], steps = call_mapped(
            lambda call: (*task.fit(*call, rng), num_steps(*call[:2])),
            lambda call: (*task.fit_stack(*call, rng), num_steps(*call[:2])),
            (self.id, request, self.data_state),
        )
        self._step_counts.append(steps)
        return params, anchor

    def evaluate(self, params: Params, split: str = "val") -> Params:
        """Return the scores of a model on a split of the client's data."""
        task = self.task
        return call_mapped(
            lambda call: task.evaluate(*call, split),
            lambda call: task.evaluate_stack(*call, split),
            (self.id, params),
        )

    def grad_sq_norm(self, params: Params) -> Tensor:
        """Return the squared norm of the gradient on the training data."""
        task = self.task
        rng = self._rng
        return call_mapped(
            lambda call: task.grad_sq_norm(*call, rng),
            lambda call: task.grad_sq_norm_stack(*call, rng),
            (self.id, params),
        )

    def evaluate_heads(self, params: Params, heads: Params, split: str = "val") -> Params:
        """Return the scores of several heads on one body."""
        task = self.task
        return call_mapped(
            lambda call: task.evaluate_heads(*call, split),
            lambda call: task.evaluate_heads_stack(*call, split),
            (self.id, params, heads),
        )

    def uniform(self, *shape: int, stream: int = 0) -> Tensor:
        """Draw uniform numbers from the client's own random stream."""
        rng = self._rng
        count = int(torch.Size(shape).numel())
        number = stream if isinstance(stream, random.Stream) else random.METHOD_DRAWS[stream]

        def draw(ids: Tensor) -> Tensor:
            key = random.keys(rng.seed, ids.reshape(-1).numpy(), rng.round, number)
            return torch.from_numpy(random.uniform(key, count)).reshape(*ids.shape, *shape)

        return call_mapped(draw, draw, self.id)

    def num_steps(
        self, hparams: LocalHParams, data_range: tuple[float, float] = (0.0, 1.0)
    ) -> Tensor:
        """Return the number of gradient steps for these hyper-parameters."""

        def count(call: tuple[Tensor, Tensor]) -> Tensor:
            return self.task.num_steps(*call, self.training, data_range)

        return call_mapped(count, count, (self.id, hparams.epochs))

    def label_counts(self) -> Tensor:
        """Return the number of training examples of each class."""
        task = self.task
        assert isinstance(task, SupervisedTask)

        def count(ids: Tensor) -> Tensor:
            return task.label_counts(ids.reshape(-1)).reshape(*ids.shape, -1)

        return call_mapped(count, count, self.id)

    def device(self) -> DeviceProfile:
        """Return the typical speed and bandwidth of the client's device."""
        names = [item.name for item in fields(DeviceProfile)]

        def read_profiles(ids: Tensor) -> Params:
            profiles = self.task.info.devices.profiles(ids.reshape(-1).numpy())
            return {
                name: torch.from_numpy(getattr(profiles, name)).reshape(ids.shape) for name in names
            }

        return DeviceProfile(**call_mapped(read_profiles, read_profiles, self.id))

    def any_client(self, condition: Tensor) -> bool:
        """Return whether the condition holds for any client of the stack."""
        holds: list[bool] = []

        def check(condition: Tensor) -> Tensor:
            holds.append(bool(condition.any()))
            return condition

        call_mapped(check, check, condition)
        return holds[0]


def run_client_round(
    method: Method, client: ClientRuntime, splits: tuple[str, ...]
) -> ClientResult:
    """Run the hooks of one client in their order, and evaluate its models.

    Args:
        method: The method with the values of its scheduled options in this round.
        client: The client, as its hooks see it.
        splits: Splits of its data on which its models are evaluated.

    Returns:
        The update, the new client state, and what the log shows.
    """
    client.start, client.state = method.receive(client)
    client.hparams, client.state = method.configure_training(client)
    client.trained, client.state = method.train(client)
    update, client.state = method.upload(client)
    # The personal model must not move the client's data source, so that is taken before it.
    client_state = ClientState(client.trained, client.state, client.data_state)
    steps = client.steps_taken
    personal = method.personal_model(client)
    models = {"received": client.start, "trained": client.trained}
    if personal is not client.trained:
        client_state.personal = personal
        models["personal"] = personal
    scores = {
        split: {name: client.evaluate(params, split) for name, params in models.items()}
        for split in splits
    }
    hparams = LocalHParams(client.hparams.epochs, client.hparams.lr)
    return ClientResult(update, client_state, hparams, steps, scores, client.logged)


# --- client code over many clients ---------------------------------------------------------------
# Client code is written for one client and mapped over a stack. What it calls on its own data has a
# rule of its own for the map (`call_mapped`): when the code of one client reaches it, the whole
# stack is handed to the batched version of the task. There are two maps with the same bits: a fast
# one by private functions of torch, and `torch.func.vmap` for versions of torch that are not known
# (see `utils/torch_internals.py`).


class _VmapPrimitive(torch.autograd.Function):
    """A call that `torch.func.vmap` hands to the batched version of the task."""

    @staticmethod
    def forward(call: _Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        return call.run(call.for_one, tensors)

    @staticmethod
    def setup_context(ctx: object, inputs: object, output: object) -> None:
        pass

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], call: _Call, *tensors: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        stacked = tuple(
            tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            for tensor, dim in zip(tensors, in_dims[1:], strict=True)
        )
        outputs = call.run(call.for_stack, stacked)
        return outputs, (0,) * len(outputs)


class _Call:
    """One call of `call_mapped`; remembers the structure of its arguments and of its result."""

    def __init__(
        self, for_one: Callable[[A], object], for_stack: Callable[[A], object], arguments: A
    ) -> None:
        self.for_one = for_one
        self.for_stack = for_stack
        self.arguments = arguments
        self.result: object = None

    def run(self, body: Callable[[A], object], tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        self.result = body(pytree.with_leaves(self.arguments, tensors))  # type: ignore[arg-type]
        # An output that is also an input would confuse autograd's bookkeeping: hand out an alias.
        return tuple(value.view_as(value) for value in pytree.leaves(self.result))


class _ActiveMap(threading.local):
    """The active map over clients in this thread: its vmap level and number of clients."""

    level: int | None = None
    clients = 0


_MAP = _ActiveMap()


def over_clients(
    body: Callable[..., R], axes: tuple[Axes, ...], arguments: tuple[object, ...], clients: int
) -> R:
    """Map a client's code over clients.

    Args:
        body: Code of one client.
        axes: For each argument 0, None or a tree of these.
        arguments: Trees of tensors.
        clients: Number of clients K.

    Returns:
        The results, with a leading axis `[K, ...]`.
    """
    if not torch_internals.has_vmap_levels():
        return _public_map(body, axes, arguments)
    level = torch_internals.enter_vmap(clients)
    outer_level = _MAP.level
    outer_clients = _MAP.clients
    _MAP.level = level
    _MAP.clients = clients
    try:
        batched = [
            _add_batch_dims(argument, axis, level)
            for argument, axis in zip(arguments, axes, strict=True)
        ]
        return _stacks(body(*batched), level, clients)
    finally:
        _MAP.level = outer_level
        _MAP.clients = outer_clients
        torch_internals.leave_vmap()


def _public_map(body: Callable[..., R], axes: tuple[Axes, ...], arguments: tuple[object, ...]) -> R:
    """Map by `torch.func.vmap` over flat tensors, because it does not know our messages."""
    tensors = pytree.leaves(arguments)
    in_dims = [
        dim
        for argument, axis in zip(arguments, axes, strict=True)
        for dim in _leaf_axes(argument, axis)
    ]
    results: list[R] = []

    def flat(*values: Tensor) -> tuple[Tensor, ...]:
        results.append(body(*pytree.with_leaves(arguments, values)))
        return tuple(pytree.leaves(results[0]))

    stacks = torch.func.vmap(flat, in_dims=tuple(in_dims))(*tensors)
    return pytree.with_leaves(results[0], stacks)


def _leaf_axes(tree: object, axis: Axes) -> list[int | None]:
    """Return the axis of each leaf."""
    if axis is None or isinstance(axis, int):
        return [axis] * len(pytree.leaves(tree))
    axes: list[int | None] = []
    pytree.map_leaves(lambda _, one: axes.append(one), tree, axis)
    return axes


def _add_batch_dims(tree: Any, axis: Axes, level: int) -> Any:
    """Return stacks as the values of one client."""
    if axis is None:
        return tree
    if isinstance(axis, int):
        return pytree.map_leaves(lambda value: torch_internals.add_batch_dim(value, level), tree)
    return pytree.map_leaves(
        lambda value, one: value if one is None else torch_internals.add_batch_dim(value, level),
        tree,
        axis,
    )


def _stacks(tree: R, level: int, clients: int) -> R:
    """Return the values of one client as stacks."""
    stacks: R = pytree.map_leaves(
        lambda value: torch_internals.remove_batch_dim(value, level, clients), tree
    )
    return stacks


def call_mapped(for_one: Callable[[A], R], for_stack: Callable[[A], R], arguments: A) -> R:
    """Call `for_one(arguments)`, or `for_stack` on all clients' arguments in a map over clients.

    Args:
        for_one: The primitive for one client.
        for_stack: The primitive for a stack of clients.
        arguments: Trees of tensors: dictionaries, tuples, messages.

    Returns:
        The result of one client.
    """
    level = _MAP.level
    # Another level means that the method maps or derives by itself.
    if level is not None and torch_internals.current_level() == level:
        stacked = _stacks(arguments, level, _MAP.clients)
        with torch_internals.outside_vmap():
            _MAP.level = None
            try:
                results = for_stack(stacked)
            finally:
                _MAP.level = level
        batched: R = _add_batch_dims(results, 0, level)
        return batched
    call = _Call(for_one, for_stack, arguments)
    outputs = _VmapPrimitive.apply(call, *pytree.leaves(arguments))  # type: ignore[no-untyped-call]
    result: R = pytree.with_leaves(call.result, outputs)  # type: ignore[assignment]
    return result
