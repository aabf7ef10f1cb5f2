"""Clients with one quadratic each, F_i(w) = a_i/2 |w - b_i|^2: no samples, no labels, fixed points in closed form."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.contract import Fit, Method, Pull, State, Task, Training, Tree, When
from equipoise.runtime.round import Schedule, Simulation


class Quadratic(Task):
    """Gradients are exact, so all batches are alike; ``per_epoch`` gives clients unequal step counts."""

    name = "quadratic"
    headline = "loss"
    higher_is_better = False

    def __init__(
        self,
        a: list[float],
        b: list[list[float]],
        training: Training,
        sizes: list[int] | None = None,
        per_epoch: list[int] | None = None,
    ) -> None:
        self.a, self.b = torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64)
        self.clients, self.training = len(a), training
        self.blocks = {"backbone": (), "head": ("w",)}
        self._sizes = torch.tensor(sizes or [1] * len(a))
        self._per_epoch = torch.tensor(per_epoch or [1] * len(a))

    @property
    def optimum(self) -> Tensor:
        """Where the mean of all F_i is least."""
        return (self.a[:, None] * self.b).sum(0) / self.a.sum()

    def proximal_points(self, w: Tensor, strength: float) -> Tensor:
        """Per client: argmin F_i(v) + strength/2 |v - w|^2."""
        a = self.a[:, None]
        return (a * self.b + strength * w) / (a + strength)

    def fedavg_fixed_point(self) -> Tensor:
        """Where one round of FedAvg stays: R_i steps contract w - b_i by (1 - lr a_i)^R_i."""
        share = (self._sizes / self._sizes.sum()).double()
        moved = share * (1 - (1 - self.training.lr * self.a) ** (self._per_epoch * self.training.epochs))
        return (moved[:, None] * self.b).sum(0) / moved.sum()

    def init_params(self, seed: int) -> Tree:
        return {"w": torch.zeros_like(self.b[0])}

    def sizes(self, ids: Tensor) -> Tensor:
        return self._sizes[ids]

    def steps(self, ids: Tensor, epochs: Tensor, training: Training, part: tuple[float, float] = (0.0, 1.0)) -> Tensor:
        return epochs * self._per_epoch[ids]

    def fit(self, ids: Tensor, fit: Fit, source: State, when: When) -> tuple[Tree, Tree, State]:
        """A stack of one."""
        one = Fit({"w": fit.params["w"][None]}, fit.epochs[None], fit.lr[None], repeat=fit.repeat, loss=fit.loss)
        one.linear = fit.linear and {"w": fit.linear["w"][None]}
        if fit.pull is not None:
            one.pull = Pull({"w": fit.pull.anchor["w"][None]}, fit.pull.strength[None], fit.pull.follow[None])
        params, anchor, _ = self.fit_stack(ids[None], one, {}, when)
        return {"w": params["w"][0]}, {name: value[0] for name, value in anchor.items()}, source

    def fit_stack(self, ids: Tensor, fit: Fit, source: State, when: When) -> tuple[Tree, Tree, State]:
        """v <- momentum v + gradient; w <- w - lr v; the anchor follows after each batch; who has finished stays."""
        assert fit.loss is None
        p, v = fit.params["w"], torch.zeros_like(fit.params["w"])
        anchor = fit.pull.anchor["w"] if fit.pull else p
        strength, follow = (fit.pull.strength[:, None], fit.pull.follow[:, None]) if fit.pull else (0.0, 0.0)
        linear = fit.linear["w"] if fit.linear else 0.0
        a, b, training = self.a[ids][:, None], self.b[ids], when.training
        steps = self.steps(ids, fit.epochs, training)[:, None]
        for step in range(int(steps.max())):
            active = (step < steps).double()
            for _ in range(fit.repeat):
                g = a * (p - b) + training.weight_decay * p + linear + strength * (p - anchor)
                v = training.momentum * v + g
                p = p - active * fit.lr[:, None] * v
            anchor = anchor + active * follow * (p - anchor)
        return {"w": p}, {"w": anchor} if fit.pull else {}, source

    def evaluate(self, ids: Tensor, params: Tree, split: str) -> Tree:
        return {"loss": self.a[ids] / 2 * (params["w"] - self.b[ids]).square().sum(-1)}

    def evaluate_stack(self, ids: Tensor, params: Tree, split: str) -> Tree:
        return self.evaluate(ids, params, split)

    def evaluate_server(self, stack: Tree, split: str) -> Tree:
        distance = (stack["w"][:, None] - self.b).square().sum(-1)
        return {"loss": (self.a / 2 * distance).mean(-1)}


def heterogeneous(training: Training, **unequal: list[int]) -> Quadratic:
    """Four clients with other curvatures and other optima: the harder ones lie far off."""
    return Quadratic([0.5, 1.0, 2.0, 4.0], [[1.0, 0.0], [-1.0, 2.0], [3.0, -1.0], [-2.0, 4.0]], training, **unequal)


def long_run(method: Method, task: Task, rounds: int, participation: float = 1.0) -> Simulation:
    """Many rounds, of which only the last is evaluated."""
    run = Simulation(method, task, task.training, Schedule(rounds, 0, participation, "stacked", rounds, True))
    for _ in range(rounds):
        run.round()
    return run
