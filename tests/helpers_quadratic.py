"""Clients with one quadratic each, F_i(w) = a_i/2 |w - b_i|^2: no samples, no labels, fixed points
in closed form.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.core import (
    LocalTrainRequest,
    Method,
    Params,
    ProximalTerm,
    RngContext,
    State,
    Task,
    TaskInfo,
    TrainingConfig,
)
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig


class Quadratic(Task):
    """Gradients are exact, so all batches are alike; ``per_epoch`` gives clients unequal step
    counts.
    """

    def __init__(
        self,
        a: list[float],
        b: list[list[float]],
        training: TrainingConfig,
        sizes: list[int] | None = None,
        per_epoch: list[int] | None = None,
    ) -> None:
        self.a, self.b = torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64)
        self.info = TaskInfo(
            "quadratic",
            len(a),
            {"backbone": (), "head": ("w",)},
            training,
            metric="loss",
            higher_is_better=False,
        )
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
        moved = share * (
            1
            - (1 - self.info.training.lr * self.a) ** (self._per_epoch * self.info.training.epochs)
        )
        return (moved[:, None] * self.b).sum(0) / moved.sum()

    def init_params(self, seed: int) -> Params:
        return {"w": torch.zeros_like(self.b[0])}

    def num_examples(self, ids: Tensor) -> Tensor:
        return self._sizes[ids]

    def num_steps(
        self,
        ids: Tensor,
        epochs: Tensor,
        training: TrainingConfig,
        data_range: tuple[float, float] = (0.0, 1.0),
    ) -> Tensor:
        return epochs * self._per_epoch[ids]

    def fit(
        self, ids: Tensor, request: LocalTrainRequest, data_state: State, rng: RngContext
    ) -> tuple[Params, Params, State]:
        """A stack of one."""
        one = LocalTrainRequest(
            {"w": request.params["w"][None]},
            request.epochs[None],
            request.lr[None],
            steps_per_batch=request.steps_per_batch,
            loss=request.loss,
        )
        one.grad_correction = request.grad_correction and {"w": request.grad_correction["w"][None]}
        if request.proximal is not None:
            one.proximal = ProximalTerm(
                {"w": request.proximal.anchor["w"][None]},
                request.proximal.mu[None],
                request.proximal.anchor_lr[None],
            )
        params, anchor, _ = self.fit_stack(ids[None], one, {}, rng)
        return {"w": params["w"][0]}, {name: value[0] for name, value in anchor.items()}, data_state

    def fit_stack(
        self, ids: Tensor, request: LocalTrainRequest, data_state: State, rng: RngContext
    ) -> tuple[Params, Params, State]:
        """v <- momentum v + gradient; w <- w - lr v; the anchor follows after each batch; who has
        finished stays.
        """
        assert request.loss is None
        p, v = request.params["w"], torch.zeros_like(request.params["w"])
        anchor = request.proximal.anchor["w"] if request.proximal else p
        strength, follow = (
            (request.proximal.mu[:, None], request.proximal.anchor_lr[:, None])
            if request.proximal
            else (0.0, 0.0)
        )
        linear = request.grad_correction["w"] if request.grad_correction else 0.0
        a, b, training = self.a[ids][:, None], self.b[ids], rng.training
        steps = self.num_steps(ids, request.epochs, training)[:, None]
        for step in range(int(steps.max())):
            active = (step < steps).double()
            for _ in range(request.steps_per_batch):
                g = a * (p - b) + training.weight_decay * p + linear + strength * (p - anchor)
                v = training.momentum * v + g
                p = p - active * request.lr[:, None] * v
            anchor = anchor + active * follow * (p - anchor)
        return {"w": p}, {"w": anchor} if request.proximal else {}, data_state

    def evaluate(self, ids: Tensor, params: Params, split: str) -> Params:
        return {"loss": self.a[ids] / 2 * (params["w"] - self.b[ids]).square().sum(-1)}

    def evaluate_stack(self, ids: Tensor, params: Params, split: str) -> Params:
        return self.evaluate(ids, params, split)

    def evaluate_server(self, stack: Params, split: str) -> Params:
        distance = (stack["w"][:, None] - self.b).square().sum(-1)
        return {"loss": (self.a / 2 * distance).mean(-1)}


def heterogeneous(training: TrainingConfig, **unequal: list[int]) -> Quadratic:
    """Four clients with other curvatures and other optima: the harder ones lie far off."""
    return Quadratic(
        [0.5, 1.0, 2.0, 4.0],
        [[1.0, 0.0], [-1.0, 2.0], [3.0, -1.0], [-2.0, 4.0]],
        training,
        **unequal,
    )


def long_run(
    method: Method, task: Task, rounds: int, participation: float = 1.0
) -> FederatedSimulation:
    """Many rounds, of which only the last is evaluated."""
    run = FederatedSimulation(
        method,
        task,
        task.info.training,
        RoundLoopConfig(rounds, 0, participation, "stacked", rounds, True),
    )
    for _ in range(rounds):
        run.run_round()
    return run
