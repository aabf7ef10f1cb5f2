"""Federated TD and Q-learning with linear representations, on two timescales.

Values are Phi theta: a representation Phi, which can be shared, and weights theta_i, which can be
personal. PFedTD-Rep and PFedQ-Rep: "On the Linear Speedup of Personalized Federated Reinforcement
Learning with Shared Representations" (arXiv:2411.15014). The six methods differ in the values that
they learn and in the blocks that they share:

                    share nothing    share everything    share Phi
    values of states      linear-td        fedtd               pfedtd-rep
    values of actions     linear-q         fedq                pfedq-rep
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from equipoise.config.schema import with_default
from equipoise.core import (
    Capabilities,
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
from equipoise.core.method import hparams_like
from equipoise.environments.linear_task import LinearTask
from equipoise.utils.errors import UsageError


@dataclass(frozen=True)
class LinearRepresentation(Method):
    """In round t, take `local_steps` TD steps on theta_i with Phi frozen, then one on Phi.

    With delta = r + gamma max_a' Phi(s', a') theta - Phi(s, a) theta the steps are
    theta += alpha_t delta Phi(s, a) and Phi(s, a) += beta_t delta theta, at the rates
    alpha_t = alpha0 / (1 + t/t0)^(2/3) and beta_t = beta0 / (1 + t/t0), so that
    beta_t / alpha_t -> 0. A relative step on Phi (ours) is divided by |theta|^2 plus the agent's
    running mean of delta^2.
    """

    family: ClassVar[str] = "agents"
    capabilities: ClassVar[Capabilities] = Capabilities(
        learner_kind="linear", needs_previous_model=True, aggregates_by_sum=True
    )
    learns: ClassVar[str]
    """The task's model: v, values of states, or q, values of states and actions."""
    local_steps: int = option(
        10,
        "TD steps on an agent's weights in a round, before the one on the representation",
        low=1,
    )
    alpha0: float = option(
        0.05, "initial learning rate of the weights; decays as (1 + t/t0)^(-2/3)", above=0
    )
    beta0: float = option(
        0.3,
        "initial learning rate of the representation; decays as 1/(1 + t/t0); 0 freezes it",
        low=0,
    )
    t0: float = option(
        3000.0,
        "time scale of the decay in rounds; inf for constant learning rates",
        above=0,
        high=math.inf,
    )
    relative: bool = option(
        True,
        "steps on the representation that do not depend on the scale of rewards, or steps as "
        "published",
    )

    def check(self, task: Task, training: TrainingConfig) -> None:
        """Refuse tasks without linear features, and the wrong kind of values."""
        if not isinstance(task, LinearTask):
            raise UsageError(
                f"{self.name} learns values with linear features, and task '{task.info.name}' has "
                "none: try --task planted"
            )
        if task.model != self.learns:
            raise UsageError(f"{self.name} learns {self.learns}-values: give --model {self.learns}")

    def receive(self, client: Client) -> tuple[Params, State]:
        """Normalise Phi <- sqrt(S/d) Q, with Q of its thin QR, and refit theta to the new Phi.

        theta is the least squares fit to the values that its owner had with the old Phi. The owner
        is the server where theta is shared, else the client.
        """
        from equipoise.environments.linear_mdp import fit_theta, orthonormal

        phi = orthonormal(merge_sent_blocks(client)["phi"])
        owner = client.local_params
        if "head" in self.default_shared_blocks:
            owner = client.message.params
        return {"phi": phi, "theta": fit_theta(phi, owner["phi"] @ owner["theta"])}, client.state

    def configure_training(self, client: Client) -> tuple[LocalHParams, State]:
        """Train theta for `local_steps` steps at rate alpha_t."""
        alpha = self._alpha(client.round)
        return _hparams(client, self.local_steps, alpha), client.state

    def allowed_hparams(
        self, task: Task, proposed: LocalHParams, round: int, num_rounds: int, server_chose: bool
    ) -> tuple[LocalHParams, LocalHParams]:
        """Allow what `configure_training` computes, and nothing else."""
        exact = hparams_like(proposed, self.local_steps, self._alpha(round))
        return exact, exact

    def train(self, client: Client) -> tuple[Params, State]:
        """Train theta with Phi frozen, then take one step on Phi at rate beta_t."""
        with_theta = client.fit(client.start, blocks=("head",))
        beta = self.beta0 / self._decay(client.round)
        trained = client.fit(
            with_theta,
            hparams=_hparams(client, 1, beta),
            blocks=("backbone",),
            aux={"relative": torch.ones_like(client.id)} if self.relative else None,
        )
        return trained, client.state

    def _alpha(self, round: int) -> float:
        """Return the rate of theta."""
        return float(self.alpha0 / self._decay(round) ** (2 / 3))

    def _decay(self, round: int) -> float:
        """Return 1 + t/t0, with t = 0 in round 1."""
        return 1.0 + (round - 1) / self.t0


def _hparams(client: Client, steps: int, lr: float) -> LocalHParams:
    """Return a number of steps and a learning rate for this client."""
    return LocalHParams(
        torch.full_like(client.id, steps), torch.full_like(client.id, lr, dtype=torch.float64)
    )


@dataclass(frozen=True)
class LinearTD(LinearRepresentation):
    """V^i(s) = Phi_i(s) theta_i; nothing is shared."""

    name: ClassVar[str] = "linear-td"
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
    """V^i(s) = Phi(s) theta_i; the server averages Phi <- mean_i Phi_i only."""

    name: ClassVar[str] = "pfedtd-rep"
    learns: ClassVar[str] = "v"
    default_shared_blocks: ClassVar[tuple[str, ...]] = ("backbone",)


@dataclass(frozen=True)
class LinearControl(LinearRepresentation):
    """Q-learning, whose rates decay later because its values overshoot at first."""

    learns: ClassVar[str] = "q"
    beta0: float = with_default(LinearRepresentation, "beta0", 1.0)
    t0: float = with_default(LinearRepresentation, "t0", 10_000.0)


@dataclass(frozen=True)
class LinearQ(LinearControl):
    """Q^i(s, a) = Phi_i(s, a) theta_i; nothing is shared."""

    name: ClassVar[str] = "linear-q"
    default_shared_blocks: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class FedQ(LinearControl):
    """Q(s, a) = Phi(s, a) theta; the server averages both."""

    name: ClassVar[str] = "fedq"
    default_shared_blocks: ClassVar[tuple[str, ...]] = ("backbone", "head")


@dataclass(frozen=True)
class PFedQRep(LinearControl):
    """Q^i(s, a) = Phi(s, a) theta_i; the server averages Phi <- mean_i Phi_i only."""

    name: ClassVar[str] = "pfedq-rep"
    default_shared_blocks: ClassVar[tuple[str, ...]] = ("backbone",)
