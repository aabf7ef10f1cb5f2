"""FedRep (Collins et al., 2021): first the personal head on the received backbone, then the backbone under it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from equipoise.contract import Client, OverRounds, State, Tree, option
from equipoise.methods.split import Split


@dataclass(frozen=True)
class FedRep(Split):
    """Their algorithm 1. Decision 1 is about the backbone; heads stay at the clients, backbones are averaged."""

    name: ClassVar[str] = "fedrep"
    family: ClassVar[str] = "parts"
    search: ClassVar[Mapping[str, tuple[float, float]]] = {"head_epochs": (1, 20)}
    shares: ClassVar[tuple[str, ...]] = ("backbone",)
    keeps_model: ClassVar[bool] = True
    head_epochs: OverRounds[int] = option(
        10, "epochs on the head with the backbone frozen, before the backbone's own", low=1
    )

    def update(self, c: Client) -> tuple[Tree, State]:
        head = replace(c.train, epochs=torch.full_like(c.train.epochs, self.head_epochs))
        c.notes["gradients"] = c.steps(head) + c.steps(c.train)
        with_head = c.fit(c.start, train=head, blocks=self.kept(c.task))
        return c.fit(with_head, blocks=self.travels(c.task), stream=1), c.state
