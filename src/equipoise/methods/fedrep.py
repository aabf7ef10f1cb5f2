"""FedRep (Collins et al., 2021): first the personal head on the received backbone, then the backbone under it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from equipoise.core import Client, Params, Scheduled, State, option
from equipoise.methods._partial_sharing import PartialSharing


@dataclass(frozen=True)
class FedRep(PartialSharing):
    """Their algorithm 1. Decision 1 is about the backbone; heads stay at the clients, backbones are averaged."""

    name: ClassVar[str] = "fedrep"
    family: ClassVar[str] = "parts"
    search_space: ClassVar[Mapping[str, tuple[float, float]]] = {"head_epochs": (1, 20)}
    default_shared_blocks: ClassVar[tuple[str, ...]] = ("backbone",)
    needs_previous_model: ClassVar[bool] = True
    head_epochs: Scheduled[int] = option(
        10, "epochs on the head with the backbone frozen, before the backbone's own", low=1
    )

    def train(self, client: Client) -> tuple[Params, State]:
        head = replace(
            client.hparams, epochs=torch.full_like(client.hparams.epochs, self.head_epochs)
        )
        client.logged["gradients"] = client.num_steps(head) + client.num_steps(client.hparams)
        with_head = client.fit(client.start, hparams=head, blocks=self.kept(client.task))
        return client.fit(with_head, blocks=self.shared_blocks(client.task), stream=1), client.state
