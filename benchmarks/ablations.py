"""Autopilot without one of its parts each, to see what the part is worth."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.contract import Client, Method, Server, State, Train, Tree, Up
from equipoise.methods import steering
from equipoise.methods.autopilot import Autopilot

NEVER = torch.tensor([0.0, math.inf], dtype=torch.float64)  # the least loss so far, as if none had been seen


@dataclass(frozen=True)
class ConfiguredRate(Autopilot):
    """The task's own rate in the place of the measured one."""

    name: ClassVar[str] = "configured-rate"

    def first_rate(self, c: Client, state: State) -> Tensor:
        return c.train.lr

    def steer(self, s: Server, ids: Tensor, seen: Tree) -> State:
        return {**super().steer(s, ids, seen), "rate": torch.tensor(float(s.training.lr), dtype=torch.float64)}


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

    def steer(self, s: Server, ids: Tensor, seen: Tree) -> State:
        return {**super().steer(s, ids, seen), "z": torch.zeros((), dtype=torch.float64)}


@dataclass(frozen=True)
class NoRestraint(Autopilot):
    """Momentum is never dropped."""

    name: ClassVar[str] = "no-restraint"

    def steer(self, s: Server, ids: Tensor, seen: Tree) -> State:
        unseen = {name: s.state[name] + NEVER for name in ("val", "own")}
        return super().steer(replace(s, state={**s.state, **unseen}), ids, seen)


@dataclass(frozen=True)
class NoMomentum(Autopilot):
    """The weighted mean of the uploads."""

    name: ClassVar[str] = "no-momentum"

    def aggregate(self, s: Server, ids: Tensor, up: Up, weights: Tensor | Tree) -> tuple[Tree, State]:
        return Method.aggregate(self, s, ids, up, weights)[0], self.steer(s, ids, up.metrics)


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


ALL = (ConfiguredRate, NoTrial, NoCorrection, NoRestraint, NoMomentum, NoErrors, NoSizes, NoDecay, AllOfTraining)
