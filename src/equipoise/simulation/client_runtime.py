"""A client's round: the decisions of the client half, in order, for one client."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

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
from equipoise.simulation import vmap_primitives
from equipoise.utils import rng as random
from equipoise.utils import rng as streams


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
        self.id, self.round, self.num_rounds = id, rng.round, rounds
        self.task, self.training, self._when = task, training, rng
        self.message, self.local_params, self.state = (
            message,
            client_state.local_params,
            client_state.state,
        )
        # Shared with what `within` gives: a client has one source of data.
        self._sources: dict[str, State] = {"now": client_state.data_state}
        self._taken = [torch.zeros_like(id)]
        self.logged = {}
        configured = LocalHParams(
            torch.full_like(id, training.epochs),
            torch.full_like(id, training.lr, dtype=torch.float64),
        )
        self.hparams = message.hparams or configured

    @property
    def steps_taken(self) -> Tensor:
        """Gradient steps in this round so far."""
        return torch.stack(self._taken).sum(0)

    @property
    def data_state(self) -> State:
        """Return the state of the client's data source after its training so far."""
        return self._sources["now"]

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
        how = LocalTrainRequest(
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
        return self._fit(how, hparams or self.hparams, blocks, training)[0]

    def fit_with_moving_anchor(
        self, params: Params, proximal: ProximalTerm, **options: Any
    ) -> tuple[Params, Params]:
        hparams = options.pop("hparams", None) or self.hparams
        blocks = options.pop("blocks", None)
        aux = options.pop("aux", {})
        request = LocalTrainRequest(params, self.id, self.id, proximal, aux=aux, **options)
        return self._fit(request, hparams, blocks)

    def _fit(
        self,
        fit: LocalTrainRequest,
        train: LocalHParams,
        blocks: tuple[str, ...] | None,
        training: TrainingConfig | None = None,
    ) -> tuple[Params, Params]:
        task, when = self.task, replace(self._when, training=training or self.training)
        dtype = next(iter(fit.params.values())).dtype
        pull = fit.proximal
        if pull is not None:
            strength, follow = (
                torch.as_tensor(value, dtype=dtype) for value in (pull.mu, pull.anchor_lr)
            )
            pull = ProximalTerm(pull.anchor, strength, follow)
        names = tuple(fit.params) if blocks is None else task.info.param_names(*blocks)
        fit = replace(
            fit, epochs=train.epochs, lr=train.lr.to(dtype), proximal=pull, trainable=names
        )

        def steps(ids: Tensor, request: LocalTrainRequest) -> Tensor:
            return (
                task.num_steps(ids, request.epochs, when.training, request.data_range)
                * request.steps_per_batch
            )

        params, anchor, self._sources["now"], taken = vmap_primitives.call(
            lambda call: (*task.fit(*call, when), steps(*call[:2])),
            lambda call: (*task.fit_stack(*call, when), steps(*call[:2])),
            (self.id, fit, self.data_state),
        )
        self._taken.append(taken)
        return params, anchor

    def evaluate(self, params: Params, split: str = "val") -> Params:
        """Return the scores of a model on a split of the client's data."""
        task = self.task
        return vmap_primitives.call(
            lambda call: task.evaluate(*call, split),
            lambda call: task.evaluate_stack(*call, split),
            (self.id, params),
        )

    def grad_sq_norm(self, params: Params) -> Tensor:
        """Return the squared norm of the gradient on the training data."""
        task, when = self.task, self._when
        return vmap_primitives.call(
            lambda call: task.grad_sq_norm(*call, when),
            lambda call: task.grad_sq_norm_stack(*call, when),
            (self.id, params),
        )

    def evaluate_heads(self, params: Params, heads: Params, split: str = "val") -> Params:
        """Return the scores of several heads on one body."""
        task = self.task
        return vmap_primitives.call(
            lambda call: task.evaluate_heads(*call, split),
            lambda call: task.evaluate_heads_stack(*call, split),
            (self.id, params, heads),
        )

    def uniform(self, *shape: int, stream: int = 0) -> Tensor:
        """Draw uniform numbers from the client's own random stream."""
        when, count = self._when, int(torch.Size(shape).numel())
        number = stream if isinstance(stream, streams.Stream) else streams.METHOD_DRAWS[stream]

        def draw(ids: Tensor) -> Tensor:
            key = random.keys(when.seed, ids.reshape(-1).numpy(), when.round, number)
            return torch.from_numpy(random.uniform(key, count)).reshape(*ids.shape, *shape)

        return vmap_primitives.call(draw, draw, self.id)

    def num_steps(
        self, hparams: LocalHParams, data_range: tuple[float, float] = (0.0, 1.0)
    ) -> Tensor:
        """Return the number of gradient steps for these hyper-parameters."""

        def count(call: tuple[Tensor, Tensor]) -> Tensor:
            return self.task.num_steps(*call, self.training, data_range)

        return vmap_primitives.call(count, count, (self.id, hparams.epochs))

    def label_counts(self) -> Tensor:
        """Return the number of training examples of each class."""
        task = self.task
        assert isinstance(task, SupervisedTask)

        def count(ids: Tensor) -> Tensor:
            return task.label_counts(ids.reshape(-1)).reshape(*ids.shape, -1)

        return vmap_primitives.call(count, count, self.id)

    def device(self) -> DeviceProfile:
        """Return the typical speed and bandwidth of the client's device."""
        names = [item.name for item in fields(DeviceProfile)]

        def look(ids: Tensor) -> Params:
            usual = self.task.info.devices.profiles(ids.reshape(-1).numpy())
            return {
                name: torch.from_numpy(getattr(usual, name)).reshape(ids.shape) for name in names
            }

        return DeviceProfile(**vmap_primitives.call(look, look, self.id))

    def any_client(self, condition: Tensor) -> bool:
        """Return whether the condition holds for any client of the stack."""
        seen: list[bool] = []

        def look(condition: Tensor) -> Tensor:
            seen.append(bool(condition.any()))
            return condition

        vmap_primitives.call(look, look, condition)
        return seen[0]


def run_client_round(method: Method, c: ClientRuntime, splits: tuple[str, ...]) -> ClientResult:
    """Run decisions 4b, 1, 2 and 5 of one client, and its evaluations on `splits`."""
    c.start, c.state = method.receive(c)
    c.hparams, c.state = method.configure_training(c)
    c.trained, c.state = method.train(c)
    up, c.state = method.upload(c)
    # The personal model must not move the client's data source, so that is taken before it.
    held, steps = ClientState(c.trained, c.state, c.data_state), c.steps_taken
    personal = method.personal_model(c)
    named = {"received": c.start, "trained": c.trained}
    if personal is not c.trained:
        named["personal"] = held.personal = personal
    scores = {
        split: {name: c.evaluate(params, split) for name, params in named.items()}
        for split in splits
    }
    return ClientResult(
        up, held, LocalHParams(c.hparams.epochs, c.hparams.lr), steps, scores, c.logged
    )
