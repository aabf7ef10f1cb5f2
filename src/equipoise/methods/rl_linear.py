"""What the methods with linear representations share (arXiv 2411.15014): two timescales, one normalisation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from equipoise.config.schema import with_default
from equipoise.core import (
    Client,
    LocalHParams,
    Method,
    Params,
    State,
    Task,
    TrainingConfig,
    merge_sent_blocks,
    option,
)
from equipoise.environments.linear_task import LinearTask
from equipoise.utils.errors import UsageError


@dataclass(frozen=True)
class LinearRepresentation(Method):
    """Round t: `local_steps` TD steps on theta_i at alpha_t with Phi frozen, then one on Phi at beta_t with theta_i.

    delta = r + gamma max_a' Phi(s',a') theta - Phi(s,a) theta;  theta += alpha_t delta Phi(s,a);  Phi(s,a) += beta_t
    delta theta;  alpha_t = alpha0 / (1 + t/t0)^(2/3), beta_t = beta0 / (1 + t/t0), so that beta_t / alpha_t -> 0.
    A relative step on Phi (ours) is divided by |theta|^2 + the agent's running mean of delta^2.
    """

    learner_kind: ClassVar[str] = "linear"
    family: ClassVar[str] = "agents"
    learns: ClassVar[str]
    """The task's model: v, values of states, or q, values of states and actions."""
    needs_previous_model: ClassVar[bool] = True
    local_steps: int = option(
        10,
        "TD steps on an agent's own weights in a round, before the one on the representation",
        low=1,
    )
    alpha0: float = option(0.05, "first rate of the weights; fades as (1 + t/t0)^(-2/3)", above=0)
    beta0: float = option(
        0.3, "first rate of the representation, fades as 1/(1 + t/t0); 0 freezes it", low=0
    )
    t0: float = option(
        3000.0,
        "rounds after which the rates begin to fade; inf for constant rates",
        above=0,
        high=math.inf,
    )
    relative: bool = option(
        True,
        "steps on the representation that do not depend on the unit of rewards, or steps as published",
    )

    def check(self, task: Task, training: TrainingConfig) -> None:
        if not isinstance(task, LinearTask):
            raise UsageError(
                f"{self.name} learns values with linear features, and task '{task.name}' has none: try --task planted"
            )
        if task.model != self.learns:
            raise UsageError(f"{self.name} learns {self.learns}-values: give --model {self.learns}")

    def receive(self, client: Client) -> tuple[Params, State]:
        """Phi <- sqrt(S/d) Q of its thin QR; theta as keeps the values that its owner had with the old Phi best."""
        from equipoise.environments.linear_mdp import fit_theta, orthonormal

        phi = orthonormal(merge_sent_blocks(client)["phi"])
        owner = (
            client.message.params if "head" in self.default_shared_blocks else client.local_params
        )
        return {"phi": phi, "theta": fit_theta(phi, owner["phi"] @ owner["theta"])}, client.state

    def configure_training(self, client: Client) -> tuple[LocalHParams, State]:
        return _train(
            client, self.local_steps, self.alpha0 / self._fade(client.round) ** (2 / 3)
        ), client.state

    def train(self, client: Client) -> tuple[Params, State]:
        weights = client.fit(client.start, blocks=("head",))
        step, aux = (
            _train(client, 1, self.beta0 / self._fade(client.round)),
            {"relative": torch.ones_like(client.id)},
        )
        return client.fit(
            weights, hparams=step, blocks=("backbone",), aux=aux if self.relative else None
        ), client.state

    def _fade(self, round: int) -> float:
        return 1.0 + (round - 1) / self.t0


@dataclass(frozen=True)
class LinearControl(LinearRepresentation):
    """The same for Q-learning, which fades later: values overshoot at first."""

    learns: ClassVar[str] = "q"
    beta0: float = with_default(LinearRepresentation, "beta0", 1.0)
    t0: float = with_default(LinearRepresentation, "t0", 10_000.0)


def _train(client: Client, steps: int, rate: float) -> LocalHParams:
    return LocalHParams(
        torch.full_like(client.id, steps), torch.full_like(client.id, rate, dtype=torch.float64)
    )


@dataclass(frozen=True)
class TD(LinearRepresentation):
    """V^i(s) = Phi_i(s) theta_i; nothing travels."""

    name: ClassVar[str] = "td"
    learns: ClassVar[str] = "v"
    default_shared_blocks: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class FedTD(LinearRepresentation):
    """V(s) = Phi(s) theta; the server averages both."""

    name: ClassVar[str] = "fedtd"
    learns: ClassVar[str] = "v"
    default_shared_blocks: ClassVar[tuple[str, ...]] = ("backbone", "head")


@dataclass(frozen=True)
class PFedTDRep(LinearRepresentation):
    """V^i(s) = Phi(s) theta_i; the server averages Phi_i only: Phi <- mean_i Phi_i."""

    name: ClassVar[str] = "pfedtd-rep"
    learns: ClassVar[str] = "v"
    default_shared_blocks: ClassVar[tuple[str, ...]] = ("backbone",)


@dataclass(frozen=True)
class IndependentQ(LinearControl):
    """Q^i(s,a) = Phi_i(s,a) theta_i; nothing travels."""

    name: ClassVar[str] = "q"
    default_shared_blocks: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class FedQ(LinearControl):
    """Q(s,a) = Phi(s,a) theta; the server averages both."""

    name: ClassVar[str] = "fedq"
    default_shared_blocks: ClassVar[tuple[str, ...]] = ("backbone", "head")


@dataclass(frozen=True)
class PFedQRep(LinearControl):
    """Q^i(s,a) = Phi(s,a) theta_i; the server averages Phi_i only: Phi <- mean_i Phi_i."""

    name: ClassVar[str] = "pfedq-rep"
    default_shared_blocks: ClassVar[tuple[str, ...]] = ("backbone",)
