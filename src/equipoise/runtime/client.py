"""A client's round: the decisions of the client half, in order, for one client."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from equipoise.contract import (
    Client,
    Down,
    Fit,
    Held,
    Loss,
    Method,
    Profile,
    Pull,
    Reply,
    State,
    Supervised,
    Task,
    Train,
    Training,
    Tree,
    When,
)
from equipoise.core import random, streams
from equipoise.runtime import primitives


class RunningClient(Client):
    """The client that methods see, in every executor."""

    def __init__(
        self, task: Task, training: Training, when: When, rounds: int, id: Tensor, down: Down, held: Held
    ) -> None:
        self.id, self.round, self.rounds = id, when.round, rounds
        self.task, self.training, self._when = task, training, when
        self.down, self.local, self.state = down, held.local, held.state
        # Shared with what `within` gives: a client has one source of data.
        self._sources: dict[str, State] = {"now": held.source}
        self._taken = [torch.zeros_like(id)]
        self.notes = {}
        configured = Train(torch.full_like(id, training.epochs), torch.full_like(id, training.lr, dtype=torch.float64))
        self.train = down.train or configured

    @property
    def taken(self) -> Tensor:
        """Gradient steps in this round so far."""
        return torch.stack(self._taken).sum(0)

    @property
    def source(self) -> State:
        return self._sources["now"]

    def fit(
        self,
        params: Tree,
        *,
        train: Train | None = None,
        pull: Pull | None = None,
        linear: Tree | None = None,
        blocks: tuple[str, ...] | None = None,
        loss: Loss | None = None,
        aux: State | None = None,
        part: tuple[float, float] = (0.0, 1.0),
        repeat: int = 1,
        clamp: tuple[float, float] | None = None,
        stream: int = 0,
        training: Training | None = None,
    ) -> Tree:
        how = Fit(params, self.id, self.id, pull, linear, aux or {}, (), loss, part, repeat, clamp, stream)
        return self._fit(how, train or self.train, blocks, training)[0]

    def fit_following(self, params: Tree, pull: Pull, **how: Any) -> tuple[Tree, Tree]:
        train, blocks = how.pop("train", None) or self.train, how.pop("blocks", None)
        return self._fit(Fit(params, self.id, self.id, pull, aux=how.pop("aux", {}), **how), train, blocks)

    def _fit(
        self, fit: Fit, train: Train, blocks: tuple[str, ...] | None, training: Training | None = None
    ) -> tuple[Tree, Tree]:
        task, when = self.task, replace(self._when, training=training or self.training)
        dtype = next(iter(fit.params.values())).dtype
        pull = fit.pull
        if pull is not None:
            strength, follow = (torch.as_tensor(value, dtype=dtype) for value in (pull.strength, pull.follow))
            pull = Pull(pull.anchor, strength, follow)
        names = tuple(fit.params) if blocks is None else task.names_of(*blocks)
        fit = replace(fit, epochs=train.epochs, lr=train.lr.to(dtype), pull=pull, names=names)

        def steps(ids: Tensor, fit: Fit) -> Tensor:
            return task.steps(ids, fit.epochs, when.training, fit.part) * fit.repeat

        params, anchor, self._sources["now"], taken = primitives.call(
            lambda call: (*task.fit(*call, when), steps(*call[:2])),
            lambda call: (*task.fit_stack(*call, when), steps(*call[:2])),
            (self.id, fit, self.source),
        )
        self._taken.append(taken)
        return params, anchor

    def evaluate(self, params: Tree, split: str = "val") -> Tree:
        task = self.task
        return primitives.call(
            lambda call: task.evaluate(*call, split), lambda call: task.evaluate_stack(*call, split), (self.id, params)
        )

    def steepness(self, params: Tree) -> Tensor:
        task, when = self.task, self._when
        return primitives.call(
            lambda call: task.steepness(*call, when), lambda call: task.steepness_stack(*call, when), (self.id, params)
        )

    def evaluate_heads(self, params: Tree, heads: Tree, split: str = "val") -> Tree:
        task = self.task
        return primitives.call(
            lambda call: task.evaluate_heads(*call, split),
            lambda call: task.evaluate_heads_stack(*call, split),
            (self.id, params, heads),
        )

    def uniform(self, *shape: int, stream: int = 0) -> Tensor:
        when, count = self._when, int(torch.Size(shape).numel())
        number = stream if isinstance(stream, streams.Stream) else streams.OWN[stream]

        def draw(ids: Tensor) -> Tensor:
            key = random.keys(when.seed, ids.reshape(-1).numpy(), when.round, number)
            return torch.from_numpy(random.uniform(key, count)).reshape(*ids.shape, *shape)

        return primitives.call(draw, draw, self.id)

    def steps(self, train: Train, part: tuple[float, float] = (0.0, 1.0)) -> Tensor:
        def count(call: tuple[Tensor, Tensor]) -> Tensor:
            return self.task.steps(*call, self.training, part)

        return primitives.call(count, count, (self.id, train.epochs))

    def label_counts(self) -> Tensor:
        task = self.task
        assert isinstance(task, Supervised)

        def count(ids: Tensor) -> Tensor:
            return task.label_counts(ids.reshape(-1)).reshape(*ids.shape, -1)

        return primitives.call(count, count, self.id)

    def device(self) -> Profile:
        names = [item.name for item in fields(Profile)]

        def look(ids: Tensor) -> Tree:
            usual = self.task.devices.usual(ids.reshape(-1).numpy())
            return {name: torch.from_numpy(getattr(usual, name)).reshape(ids.shape) for name in names}

        return Profile(**primitives.call(look, look, self.id))

    def anybody(self, condition: Tensor) -> bool:
        seen: list[bool] = []

        def look(condition: Tensor) -> Tensor:
            seen.append(bool(condition.any()))
            return condition

        primitives.call(look, look, condition)
        return seen[0]


def client_round(method: Method, c: RunningClient, splits: tuple[str, ...]) -> Reply:
    """Decisions 4b, 1, 2 and 5 of one client, and its three named evaluations on ``splits`` (none to skip them)."""
    c.start, c.state = method.install(c)
    c.train, c.state = method.decide(c)
    c.trained, c.state = method.update(c)
    up, c.state = method.upload(c)
    # The personal model must not move the client's data source, so that is taken before it.
    held, steps = Held(c.trained, c.state, c.source), c.taken
    personal = method.personal(c)
    named = {"received": c.start, "trained": c.trained}
    if personal is not c.trained:
        named["personal"] = held.personal = personal
    scores = {split: {name: c.evaluate(params, split) for name, params in named.items()} for split in splits}
    return Reply(up, held, Train(c.train.epochs, c.train.lr), steps, scores, c.notes)
