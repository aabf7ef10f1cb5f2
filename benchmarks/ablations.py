"""Autopilot without one of its parts each, to see what the part is worth."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.contract import Client, Down, Method, Server, State, Train, Tree, Up
from equipoise.methods import steering
from equipoise.methods.autopilot import Autopilot

NEVER = torch.tensor([0.0, math.inf], dtype=torch.float64)  # the least loss so far, as if none had been seen


@dataclass(frozen=True)
class ConfiguredRate(Autopilot):
    """The task's own rate in the place of the measured one."""

    name: ClassVar[str] = "configured-rate"

    def first_rate(self, c: Client, state: State) -> Tensor:
        return c.train.lr

    def steer(self, s: Server, ids: Tensor, seen: Tree) -> tuple[State, bool]:
        state, back = super().steer(s, ids, seen)
        return {**state, "rate": torch.tensor(float(s.training.lr), dtype=torch.float64)}, back


@dataclass(frozen=True)
class NoTrial(Autopilot):
    """The first rate as if all loss could go, without a trial."""

    name: ClassVar[str] = "no-trial"

    def first_rate(self, c: Client, state: State) -> Tensor:
        return steering.polyak(state["loss"], torch.zeros_like(state["loss"]), state["square"])


@dataclass(frozen=True)
class NoCorrection(Autopilot):
    """The measured rate as it is: z = 0."""

    name: ClassVar[str] = "no-correction"

    def steer(self, s: Server, ids: Tensor, seen: Tree) -> tuple[State, bool]:
        state, back = super().steer(s, ids, seen)
        return {**state, "z": torch.zeros((), dtype=torch.float64)}, back


@dataclass(frozen=True)
class NoRestraint(Autopilot):
    """Momentum is never dropped, and no model is taken back."""

    name: ClassVar[str] = "no-restraint"

    def steer(self, s: Server, ids: Tensor, seen: Tree) -> tuple[State, bool]:
        return super().steer(replace(s, state={**s.state, "val": s.state["val"] + NEVER}), ids, seen)


@dataclass(frozen=True)
class NoReturn(Autopilot):
    """Momentum is dropped and the rate halved, but the model stays where it is."""

    name: ClassVar[str] = "no-return"

    def steer(self, s: Server, ids: Tensor, seen: Tree) -> tuple[State, bool]:
        return super().steer(s, ids, seen)[0], False


@dataclass(frozen=True)
class NoNeed(Autopilot):
    """All clients take the whole rate."""

    name: ClassVar[str] = "no-need"

    def give(self, s: Server, ids: Tensor) -> tuple[Down, State]:
        down, state = super().give(s, ids)
        return replace(down, extra={**down.extra, "loss": torch.zeros_like(down.extra["loss"])}), state


@dataclass(frozen=True)
class NoMomentum(Autopilot):
    """The weighted mean of the uploads."""

    name: ClassVar[str] = "no-momentum"

    def aggregate(self, s: Server, ids: Tensor, up: Up, weights: Tensor | Tree) -> tuple[Tree, State]:
        state, back = self.steer(s, ids, up.metrics)
        return state["best"] if back else Method.aggregate(self, s, ids, up, weights)[0], state


@dataclass(frozen=True)
class NoErrors(Autopilot):
    """Weights by data size alone."""

    name: ClassVar[str] = "no-errors"

    def weigh(self, s: Server, ids: Tensor, up: Up) -> tuple[Tensor | Tree, State]:
        return Method.weigh(self, s, ids, up)


@dataclass(frozen=True)
class NoSizes(Autopilot):
    """Weights by errors alone."""

    name: ClassVar[str] = "no-sizes"

    def weigh(self, s: Server, ids: Tensor, up: Up) -> tuple[Tensor | Tree, State]:
        p, state = super().weigh(s, ids, up)
        assert isinstance(p, Tensor)
        p = p / s.task.sizes(ids)
        return p / p.sum(), state


@dataclass(frozen=True)
class NoDecay(Autopilot):
    """Rates do not decay with the rounds."""

    name: ClassVar[str] = "no-decay"

    def decide(self, c: Client) -> tuple[Train, State]:
        train, state = super().decide(c)
        return Train(train.epochs, train.lr / steering.decay(c.round, c.rounds)), state


@dataclass(frozen=True)
class AllOfTraining(Autopilot):
    """Personal models keep all of local training."""

    name: ClassVar[str] = "all-of-training"

    def personal(self, c: Client) -> Tree:
        return c.trained


ALL = (
    *(ConfiguredRate, NoTrial, NoCorrection, NoRestraint, NoReturn, NoNeed, NoMomentum),
    *(NoErrors, NoSizes, NoDecay, AllOfTraining),
)
