"""A client's round: the decisions of the client half, in order, for one client."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from equipoise.contract import Client, Down, Fit, Loss, Method, Pull, State, Task, Train, Training, Tree, When
from equipoise.contract.supervised import Supervised
from equipoise.core import random
from equipoise.runtime import primitives


class RunningClient(Client):
    """The client that methods see, in every executor."""

    def __init__(
        self, task: Task, training: Training, when: When, rounds: int, id: Tensor, down: Down, held: State
    ) -> None:
        """``held``: what the client keeps between rounds, as ``{"local": ..., "state": ..., "source": ...}``."""
        self.id, self.round, self.rounds = id, when.round, rounds
        self.task, self.training, self._when = task, training, when
        self.down, self.local, self.state = down, held["local"], held["state"]
        # Shared with what `within` gives: a client has one source of data.
        self._sources: dict[str, State] = {"now": held["source"]}
        self.notes = {}
        configured = Train(torch.full_like(id, training.epochs), torch.full_like(id, training.lr, dtype=torch.float64))
        self.train = down.train or configured

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
        names = tuple(fit.params) if blocks is None else tuple(n for block in blocks for n in task.blocks[block])
        dtype = next(iter(fit.params.values())).dtype
        tensors: State = {
            "id": self.id,
            "params": fit.params,
            "epochs": train.epochs,
            "lr": train.lr.to(dtype),
            "aux": fit.aux,
            "source": self.source,
        }
        if fit.linear is not None:
            tensors["linear"] = fit.linear
        if fit.pull is not None:
            tensors["anchor"] = fit.pull.anchor
            tensors["strength"] = torch.as_tensor(fit.pull.strength, dtype=dtype)
            tensors["follow"] = torch.as_tensor(fit.pull.follow, dtype=dtype)

        def body(train_clients: Any) -> primitives.Body:
            def run(t: State) -> State:
                pull = Pull(t["anchor"], t["strength"], t["follow"]) if "anchor" in t else None
                request = replace(
                    fit,
                    params=t["params"],
                    epochs=t["epochs"],
                    lr=t["lr"],
                    pull=pull,
                    linear=t.get("linear"),
                    aux=t["aux"],
                    names=names,
                )
                params, anchor, source = train_clients(t["id"], request, t["source"], when)
                return {"params": params, "anchor": anchor, "source": source}

            return run

        out = primitives.call(body(task.fit), body(task.fit_stack), tensors)
        self._sources["now"] = out["source"]
        return out["params"], out["anchor"]

    def evaluate(self, params: Tree, split: str = "val") -> Tree:
        task = self.task
        return primitives.call(
            lambda t: task.evaluate(t["id"], t["params"], split),
            lambda t: task.evaluate_stack(t["id"], t["params"], split),
            {"id": self.id, "params": params},
        )

    def evaluate_heads(self, params: Tree, heads: Tree, split: str = "val") -> Tree:
        task = self.task
        return primitives.call(
            lambda t: task.evaluate_heads(t["id"], t["params"], t["heads"], split),
            lambda t: task.evaluate_heads_stack(t["id"], t["params"], t["heads"], split),
            {"id": self.id, "params": params, "heads": heads},
        )

    def uniform(self, *shape: int, stream: int = 0) -> Tensor:
        when, count = self._when, int(torch.Size(shape).numel())

        def draw(t: State) -> State:
            ids: Tensor = t["id"]
            key = random.keys(when.seed, ids.reshape(-1).numpy(), when.round, stream)
            return {"u": torch.from_numpy(random.uniform(key, count)).reshape(*ids.shape, *shape)}

        drawn: Tensor = primitives.call(draw, draw, {"id": self.id})["u"]
        return drawn

    def steps(self, train: Train, part: tuple[float, float] = (0.0, 1.0)) -> Tensor:
        def count(t: State) -> State:
            return {"steps": self.task.steps(t["id"], t["epochs"], self.training, part)}

        steps: Tensor = primitives.call(count, count, {"id": self.id, "epochs": train.epochs})["steps"]
        return steps

    def label_counts(self) -> Tensor:
        task = self.task
        assert isinstance(task, Supervised)

        def count(t: State) -> State:
            ids: Tensor = t["id"]
            return {"counts": task.label_counts(ids.reshape(-1)).reshape(*ids.shape, -1)}

        counts: Tensor = primitives.call(count, count, {"id": self.id})["counts"]
        return counts

    def rows(self, split: str) -> Tensor:
        def count(t: State) -> State:
            ids: Tensor = t["id"]
            return {"rows": self.task.rows(ids.reshape(-1), split).reshape(ids.shape)}

        rows: Tensor = primitives.call(count, count, {"id": self.id})["rows"]
        return rows

    def anybody(self, condition: Tensor) -> bool:
        seen: list[bool] = []

        def look(t: State) -> State:
            seen.append(bool(t["condition"].any()))
            return t

        primitives.call(look, look, {"condition": condition})
        return seen[0]


def client_round(method: Method, c: RunningClient, splits: tuple[str, ...]) -> State:
    """Decisions 4b, 1, 2 and 5 of one client, and its three named evaluations on ``splits`` (none to skip them)."""
    c.start, c.state = method.install(c)
    c.train, c.state = method.decide(c)
    c.trained, c.state = method.update(c)
    up, c.state = method.upload(c)
    out: State = {
        "up": {"params": up.params, "extra": up.extra, "metrics": up.metrics},
        "train": {"epochs": c.train.epochs, "lr": c.train.lr},
        "scores": {},
    }
    # The personal model must not move the client's data source, so that is taken before it.
    held = {"local": c.trained, "state": c.state, "source": c.source}
    personal = method.personal(c)
    named = {"received": c.start, "trained": c.trained}
    if personal is not c.trained:
        named["personal"] = held["personal"] = personal
    if splits:
        out["scores"] = {split: {name: c.evaluate(params, split) for name, params in named.items()} for split in splits}
    return {**out, "held": held, "notes": c.notes}
