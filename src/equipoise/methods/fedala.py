"""FedALA: clients learn, element by element, how much of the received head they take over.

Zhang et al., "FedALA: Adaptive Local Aggregation for Personalized Federated Learning", AAAI 2023
(arXiv:2212.01197), algorithm 1 with p = 1 (the weights cover the top layer).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.core import (
    Capabilities,
    Client,
    LinearLoss,
    LinearStack,
    LocalHParams,
    Loss,
    Method,
    Params,
    Scheduled,
    State,
    Task,
    TrainingConfig,
    merge_sent_blocks,
    option,
)
from equipoise.core.task import SupervisedTask, require_supervised

# The first time, A is learned until the standard deviation of the last LOSS_WINDOW losses is below
# CONVERGED_LOSS_STD, but for at most MAX_PASSES passes over the data.
LOSS_WINDOW = 10
CONVERGED_LOSS_STD = 0.1
MAX_PASSES = 50

# A client's phase: it has never taken part, it has a model of its own, it has learned A once.
NEW = 0
TRAINED = 1
LEARNED = 2


@dataclass(frozen=True)
class FedAla(Method):
    """Start from head <- own + (received - own) * A with A in [0, 1], and the received backbone.

    A has the shape of the head, starts at 1 and is learned at the client. The client state holds A
    and the client's phase.
    """

    name: ClassVar[str] = "fedala"
    family: ClassVar[str] = "parts"
    capabilities: ClassVar[Capabilities] = Capabilities(
        needs_previous_model=True, aggregates_by_sum=True
    )
    search_space: ClassVar[Mapping[str, tuple[float, float]]] = {"ala_lr": (0.05, 2.0)}
    ala_lr: Scheduled[float] = option(
        1.0, "learning rate of the weights A (the paper's eta)", above=0
    )
    ala_part: float = option(
        0.8, "share of the training rows that A is learned on (the paper's s)", above=0, high=1
    )

    def check(self, task: Task, training: TrainingConfig) -> None:
        """Refuse tasks without examples and labels."""
        require_supervised(self, task)

    def init_client(self, task: Task, params: Params) -> State:
        """Start with A = 1."""
        ones = {name: torch.ones_like(params[name]) for name in task.info.param_names("head")}
        return {"A": ones, "phase": torch.tensor(NEW)}

    def receive(self, client: Client) -> tuple[Params, State]:
        """Learn A <- clip(A - eta dL/dA, 0, 1) and merge the heads with it.

        A client takes the received model as it is the first time it takes part. The second time it
        learns A until the loss has converged, later with one pass. `active` says whether the client
        goes on learning; under `vmap` it is one flag per client.
        """
        received = merge_sent_blocks(client)
        head_names = client.task.info.param_names("head")
        phase = client.state["phase"]
        own_head = {name: client.local_params[name] for name in head_names}
        new_head = {name: received[name] for name in head_names}
        backbone = {name: value for name, value in received.items() if name not in head_names}
        plain_sgd = replace(client.training, momentum=0.0, weight_decay=0.0)
        loss_of_A = LinearLoss(_losses(require_supervised(self, client.task)), _gradients)
        lr = torch.full_like(client.hparams.lr, self.ala_lr)

        A = client.state["A"]
        passes = torch.zeros_like(phase)
        active = phase != NEW
        recent_losses: list[Tensor] = []
        for k in range(MAX_PASSES):
            if not client.any_client(active):
                break
            passes = passes + active
            A = client.fit(
                A,
                hparams=LocalHParams(active.long(), lr),
                loss=loss_of_A,
                aux={"own_head": own_head, "new_head": new_head, "backbone": backbone},
                data_range=(0.0, self.ala_part),
                clamp=(0.0, 1.0),
                stream=k + 1,
                training=plain_sgd,
            )
            active = active & (phase == TRAINED)
            if client.any_client(active):
                merged = {**backbone, **_merge(own_head, new_head, A)}
                loss = client.evaluate(merged, "train")["loss"]
                recent_losses = [*recent_losses, loss][-LOSS_WINDOW:]
                if k >= LOSS_WINDOW:
                    deviation = torch.stack(recent_losses).std(correction=0)
                    active = active & (deviation >= CONVERGED_LOSS_STD)

        client.logged["gradients"] = client.num_steps(
            replace(client.hparams, epochs=passes), (0.0, self.ala_part)
        )
        next_phase = torch.where(phase == NEW, TRAINED, LEARNED)
        start = {**backbone, **_merge(own_head, new_head, A)}
        return start, {"A": A, "phase": next_phase}

    def train(self, client: Client) -> tuple[Params, State]:
        """Train the merged model, and add its steps to those that learned A."""
        client.logged["gradients"] = client.logged["gradients"] + client.num_steps(client.hparams)
        return client.fit(client.start), client.state


def _merge(own: Params, new: Params, A: Params) -> Params:
    """Return own + (new - own) * A, exact at A = 0 and A = 1."""
    return {name: torch.lerp(own[name], new[name], A[name]) for name in own}


def _losses(task: SupervisedTask) -> Loss:
    """Return the loss of the merged model as a function of A."""

    def losses(A: Params, x: Tensor, y: Tensor, aux: State) -> Tensor:
        head = _merge(aux["own_head"], aux["new_head"], A)
        return task.losses({**aux["backbone"], **head}, x, y, {})

    return losses


def _gradients(
    models: LinearStack, stack: Params, x: Tensor, y: Tensor, aux: State, weight: Tensor | float
) -> Params:
    """Return the gradients of `_losses` for a stack of clients whose model is all head.

    By the chain rule dL/dA = dL/dhead * (received - own).
    """
    own = aux["own_head"]
    new = aux["new_head"]
    logits = models.logits(_merge(own, new, stack), x)
    by_head = models.gradients(logits, x, y, weight)
    return {name: g * (new[name] - own[name]) for name, g in by_head.items()}
