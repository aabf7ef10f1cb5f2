"""Autopilot without one of its parts each, to see what the part is worth."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.core import Capabilities, Client, ClientUpdate, LocalHParams, Params, Server, State
from equipoise.core.method import equal_weights
from equipoise.methods import autopilot
from equipoise.methods.autopilot import Autopilot, AutopilotState

ALWAYS_HIGH = torch.full(
    (2,), torch.inf, dtype=torch.float64
)  # validation losses, as if none had been seen


@dataclass(frozen=True)
class ConfiguredRate(Autopilot):
    """The task's own rate, without a trial."""

    name: ClassVar[str] = "configured-rate"

    def configure_training(self, client: Client) -> tuple[LocalHParams, State]:
        train, state = super().configure_training(client)
        return (
            LocalHParams(train.epochs, client.hparams.lr)
            if client.message.hparams is None
            else train
        ), state

    def steer(
        self, server: Server, ids: Tensor, measurements: Params
    ) -> tuple[AutopilotState, float]:
        state, m = super().steer(server, ids, measurements)
        return {**state, "lr": torch.tensor(float(server.training.lr), dtype=torch.float64)}, m


@dataclass(frozen=True)
class MeasuredRate(Autopilot):
    """The measured rate, whatever the trial says."""

    name: ClassVar[str] = "measured-rate"

    def configure_training(self, client: Client) -> tuple[LocalHParams, State]:
        train, state = super().configure_training(client)
        if client.message.hparams is None:
            train = LocalHParams(
                train.epochs, autopilot.polyak_lr(state["loss"], state["grad_sq_norm"])
            )
        return train, state

    def steer(
        self, server: Server, ids: Tensor, measurements: Params
    ) -> tuple[AutopilotState, float]:
        state, m = super().steer(server, ids, measurements)
        return (state | {"lr": measurements["step"].median()} if server.round == 1 else state), m


@dataclass(frozen=True)
class NoCorrection(Autopilot):
    """The chosen rate as it is: z = 0."""

    name: ClassVar[str] = "no-correction"

    def steer(
        self, server: Server, ids: Tensor, measurements: Params
    ) -> tuple[AutopilotState, float]:
        state, m = super().steer(server, ids, measurements)
        return {**state, "log_lr_correction": torch.zeros((), dtype=torch.float64)}, m


@dataclass(frozen=True)
class NoRestraint(Autopilot):
    """Momentum is never dropped, and the rate never halved."""

    name: ClassVar[str] = "no-restraint"

    def steer(
        self, server: Server, ids: Tensor, measurements: Params
    ) -> tuple[AutopilotState, float]:
        return super().steer(
            replace(server, state={**server.state, "val": ALWAYS_HIGH}), ids, measurements
        )


@dataclass(frozen=True)
class NoNeed(Autopilot):
    """The rate does not fall with the loss."""

    name: ClassVar[str] = "no-need"

    def steer(
        self, server: Server, ids: Tensor, measurements: Params
    ) -> tuple[AutopilotState, float]:
        state, m = super().steer(server, ids, measurements)
        return {**state, "loss_scale": torch.ones((), dtype=torch.float64)}, m


@dataclass(frozen=True)
class NoMomentum(Autopilot):
    """The weighted mean of the uploads."""

    name: ClassVar[str] = "no-momentum"

    def steer(
        self, server: Server, ids: Tensor, measurements: Params
    ) -> tuple[AutopilotState, float]:
        return super().steer(server, ids, measurements)[0], 0.0


@dataclass(frozen=True)
class NoReach(Autopilot):
    """Small coordinates move as little as the clients moved them."""

    name: ClassVar[str] = "no-reach"

    def steer(
        self, server: Server, ids: Tensor, measurements: Params
    ) -> tuple[AutopilotState, float]:
        state, m = super().steer(server, ids, measurements)
        return {**state, "amplification": torch.full((), autopilot.TINY, dtype=torch.float64)}, m


@dataclass(frozen=True)
class NoSizes(Autopilot):
    """Every client weighs alike."""

    name: ClassVar[str] = "no-sizes"
    capabilities: ClassVar[Capabilities] = replace(Autopilot.capabilities, aggregates_by_sum=False)

    def aggregation_weights(
        self, server: Server, ids: Tensor, updates: ClientUpdate
    ) -> tuple[Tensor | Params, State]:
        return equal_weights(ids), server.state


@dataclass(frozen=True)
class NoDecay(Autopilot):
    """Rates do not decay with the rounds."""

    name: ClassVar[str] = "no-decay"

    def configure_training(self, client: Client) -> tuple[LocalHParams, State]:
        train, state = super().configure_training(client)
        return LocalHParams(
            train.epochs, train.lr / autopilot.lr_decay(client.round, client.num_rounds)
        ), state


ALL = (
    ConfiguredRate,
    MeasuredRate,
    NoCorrection,
    NoRestraint,
    NoNeed,
    NoMomentum,
    NoReach,
    NoSizes,
    NoDecay,
)
