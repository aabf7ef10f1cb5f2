"""FedALA (Zhang et al., 2023): each client learns, element by element, how much of the received top layer it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.contract import Client, Loss, Method, OverRounds, State, Task, Train, Training, Tree, option, take_sent
from equipoise.contract.supervised import Supervised, supervised

WINDOW, SETTLED, MOST_PASSES = 10, 0.1, 50  # of the first learning of A: until std(last 10 losses) < 0.1, capped
NEW, TRAINED, LEARNED = 0, 1, 2  # a client's phase: never took part; has a model of its own; has learned A once


@dataclass(frozen=True)
class FedAla(Method):
    """Their local aggregation with p = 1: top <- own + (received - own) * A, A in [0, 1]; lower layers <- received."""

    name: ClassVar[str] = "fedala"
    family: ClassVar[str] = "parts"
    search: ClassVar[Mapping[str, tuple[float, float]]] = {"ala_lr": (0.05, 2.0)}
    keeps_model: ClassVar[bool] = True
    ala_lr: OverRounds[float] = option(1.0, "rate of the weights A (the paper's eta)", above=0)
    ala_part: float = option(0.8, "share of the training rows that A is learned on (the paper's s)", above=0, high=1)

    def check(self, task: Task, training: Training) -> None:
        supervised(self, task)

    def client_init(self, task: Task, params: Tree) -> State:
        ones = {name: torch.ones_like(params[name]) for name in task.names_of("head")}
        return {"A": ones, "phase": torch.tensor(NEW)}

    def install(self, c: Client) -> tuple[Tree, State]:
        """A <- clip(A - eta grad (received - own), 0, 1): at first until the losses settle, later one pass."""
        received, top, phase = take_sent(c), c.task.names_of("head"), c.state["phase"]
        own = {name: c.local[name] for name in top}
        new = {name: received[name] for name in top}
        lower = {name: value for name, value in received.items() if name not in top}
        plain = replace(c.training, momentum=0.0, weight_decay=0.0)
        A, passes, active = c.state["A"], torch.zeros_like(phase), phase != NEW
        recent: list[Tensor] = []
        for k in range(MOST_PASSES):
            if not c.anybody(active):
                break
            once, passes = Train(active.long(), torch.full_like(c.train.lr, self.ala_lr)), passes + active
            A = c.fit(
                A,
                train=once,
                loss=_losses(supervised(self, c.task)),
                aux={"own": own, "new": new, "lower": lower},
                part=(0.0, self.ala_part),
                clamp=(0.0, 1.0),
                stream=k + 1,
                training=plain,
            )
            active = active & (phase == TRAINED)
            if c.anybody(active):
                loss = c.evaluate({**lower, **_merge(own, new, A)}, "train")["loss"]
                recent = [*recent, loss][-WINDOW:]
                if k >= WINDOW:
                    active = active & (torch.stack(recent).std(correction=0) >= SETTLED)
        c.notes["gradients"] = c.steps(replace(c.train, epochs=passes), (0.0, self.ala_part))
        after = torch.where(phase == NEW, TRAINED, LEARNED)
        return {**lower, **_merge(own, new, A)}, {"A": A, "phase": after}

    def update(self, c: Client) -> tuple[Tree, State]:
        c.notes["gradients"] = c.notes["gradients"] + c.steps(c.train)
        return c.fit(c.start), c.state


def _merge(own: Tree, new: Tree, A: Tree) -> Tree:
    """own + (new - own) * A, exact at A = 0 and A = 1."""
    return {name: torch.lerp(own[name], new[name], A[name]) for name in own}


def _losses(task: Supervised) -> Loss:
    def losses(A: Tree, x: Tensor, y: Tensor, aux: State) -> Tensor:
        return task.losses({**aux["lower"], **_merge(aux["own"], aux["new"], A)}, x, y, {})

    return losses
