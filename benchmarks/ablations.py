"""Autopilot without one of its parts each, to see what the part is worth."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.contract import Client, Server, State, Train, Tree, Up
from equipoise.contract.method import equal_weights
from equipoise.methods import steering
from equipoise.methods.autopilot import Autopilot

ALWAYS_HIGH = torch.full((2,), torch.inf, dtype=torch.float64)  # validation losses, as if none had been seen


@dataclass(frozen=True)
class ConfiguredRate(Autopilot):
    """The task's own rate, without a trial."""

    name: ClassVar[str] = "configured-rate"

    def decide(self, c: Client) -> tuple[Train, State]:
        train, state = super().decide(c)
        return (Train(train.epochs, c.train.lr) if c.down.train is None else train), state

    def steer(self, s: Server, ids: Tensor, seen: Tree) -> tuple[State, float]:
        state, m = super().steer(s, ids, seen)
        return {**state, "rate": torch.tensor(float(s.training.lr), dtype=torch.float64)}, m


@dataclass(frozen=True)
class MeasuredRate(Autopilot):
    """The measured rate, whatever the trial says."""

    name: ClassVar[str] = "measured-rate"

    def decide(self, c: Client) -> tuple[Train, State]:
        train, state = super().decide(c)
        if c.down.train is None:
            train = Train(train.epochs, steering.polyak(state["loss"], state["square"]))
        return train, state

    def steer(self, s: Server, ids: Tensor, seen: Tree) -> tuple[State, float]:
        state, m = super().steer(s, ids, seen)
        return (state | {"rate": seen["step"].median()} if s.round == 1 else state), m


@dataclass(frozen=True)
class NoCorrection(Autopilot):
    """The chosen rate as it is: z = 0."""

    name: ClassVar[str] = "no-correction"

    def steer(self, s: Server, ids: Tensor, seen: Tree) -> tuple[State, float]:
        state, m = super().steer(s, ids, seen)
        return {**state, "z": torch.zeros((), dtype=torch.float64)}, m


@dataclass(frozen=True)
class NoRestraint(Autopilot):
    """Momentum is never dropped, and the rate never halved."""

    name: ClassVar[str] = "no-restraint"

    def steer(self, s: Server, ids: Tensor, seen: Tree) -> tuple[State, float]:
        return super().steer(replace(s, state={**s.state, "val": ALWAYS_HIGH}), ids, seen)


@dataclass(frozen=True)
class NoNeed(Autopilot):
    """The rate does not fall with the loss."""

    name: ClassVar[str] = "no-need"

    def steer(self, s: Server, ids: Tensor, seen: Tree) -> tuple[State, float]:
        state, m = super().steer(s, ids, seen)
        return {**state, "need": torch.ones((), dtype=torch.float64)}, m


@dataclass(frozen=True)
class NoMomentum(Autopilot):
    """The weighted mean of the uploads."""

    name: ClassVar[str] = "no-momentum"

    def steer(self, s: Server, ids: Tensor, seen: Tree) -> tuple[State, float]:
        return super().steer(s, ids, seen)[0], 0.0


@dataclass(frozen=True)
class NoReach(Autopilot):
    """Small coordinates move as little as the clients moved them."""

    name: ClassVar[str] = "no-reach"

    def steer(self, s: Server, ids: Tensor, seen: Tree) -> tuple[State, float]:
        state, m = super().steer(s, ids, seen)
        return {**state, "reach": torch.full((), steering.TINY, dtype=torch.float64)}, m


@dataclass(frozen=True)
class NoSizes(Autopilot):
    """Every client weighs alike."""

    name: ClassVar[str] = "no-sizes"

    def weigh(self, s: Server, ids: Tensor, up: Up) -> tuple[Tensor | Tree, State]:
        return equal_weights(ids), s.state


@dataclass(frozen=True)
class NoDecay(Autopilot):
    """Rates do not decay with the rounds."""

    name: ClassVar[str] = "no-decay"

    def decide(self, c: Client) -> tuple[Train, State]:
        train, state = super().decide(c)
        return Train(train.epochs, train.lr / steering.decay(c.round, c.rounds)), state


ALL = (ConfiguredRate, MeasuredRate, NoCorrection, NoRestraint, NoNeed, NoMomentum, NoReach, NoSizes, NoDecay)
