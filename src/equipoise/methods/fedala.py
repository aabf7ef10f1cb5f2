"""FedALA (Zhang et al., 2023): each client learns, element by element, how much of the received top layer it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.core import (
    Client,
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

WINDOW, SETTLED, MOST_PASSES = (
    10,
    0.1,
    50,
)  # of the first learning of A: until std(last 10 losses) < 0.1, capped
NEW, TRAINED, LEARNED = (
    0,
    1,
    2,
)  # a client's phase: never took part; has a model of its own; has learned A once


@dataclass(frozen=True)
class FedAla(Method):
    """Their local aggregation with p = 1: top <- own + (received - own) * A, A in [0, 1]; lower layers <- received."""

    name: ClassVar[str] = "fedala"
    family: ClassVar[str] = "parts"
    search_space: ClassVar[Mapping[str, tuple[float, float]]] = {"ala_lr": (0.05, 2.0)}
    needs_previous_model: ClassVar[bool] = True
    ala_lr: Scheduled[float] = option(1.0, "rate of the weights A (the paper's eta)", above=0)
    ala_part: float = option(
        0.8, "share of the training rows that A is learned on (the paper's s)", above=0, high=1
    )

    def check(self, task: Task, training: TrainingConfig) -> None:
        require_supervised(self, task)

    def init_client(self, task: Task, params: Params) -> State:
        ones = {name: torch.ones_like(params[name]) for name in task.param_names("head")}
        return {"A": ones, "phase": torch.tensor(NEW)}

    def receive(self, client: Client) -> tuple[Params, State]:
        """A <- clip(A - eta grad (received - own), 0, 1): at first until the losses settle, later one pass."""
        received, top, phase = (
            merge_sent_blocks(client),
            client.task.param_names("head"),
            client.state["phase"],
        )
        own = {name: client.local_params[name] for name in top}
        new = {name: received[name] for name in top}
        lower = {name: value for name, value in received.items() if name not in top}
        plain = replace(client.training, momentum=0.0, weight_decay=0.0)
        A, passes, active = client.state["A"], torch.zeros_like(phase), phase != NEW
        recent: list[Tensor] = []
        for k in range(MOST_PASSES):
            if not client.any_client(active):
                break
            once, passes = (
                LocalHParams(active.long(), torch.full_like(client.hparams.lr, self.ala_lr)),
                passes + active,
            )
            A = client.fit(
                A,
                hparams=once,
                loss=_losses(require_supervised(self, client.task)),
                aux={"own": own, "new": new, "lower": lower},
                data_range=(0.0, self.ala_part),
                clamp=(0.0, 1.0),
                stream=k + 1,
                training=plain,
            )
            active = active & (phase == TRAINED)
            if client.any_client(active):
                loss = client.evaluate({**lower, **_merge(own, new, A)}, "train")["loss"]
                recent = [*recent, loss][-WINDOW:]
                if k >= WINDOW:
                    active = active & (torch.stack(recent).std(correction=0) >= SETTLED)
        client.logged["gradients"] = client.num_steps(
            replace(client.hparams, epochs=passes), (0.0, self.ala_part)
        )
        after = torch.where(phase == NEW, TRAINED, LEARNED)
        return {**lower, **_merge(own, new, A)}, {"A": A, "phase": after}

    def train(self, client: Client) -> tuple[Params, State]:
        client.logged["gradients"] = client.logged["gradients"] + client.num_steps(client.hparams)
        return client.fit(client.start), client.state


def _merge(own: Params, new: Params, A: Params) -> Params:
    """own + (new - own) * A, exact at A = 0 and A = 1."""
    return {name: torch.lerp(own[name], new[name], A[name]) for name in own}


def _losses(task: SupervisedTask) -> Loss:
    def losses(A: Params, x: Tensor, y: Tensor, aux: State) -> Tensor:
        return task.losses({**aux["lower"], **_merge(aux["own"], aux["new"], A)}, x, y, {})

    return losses
