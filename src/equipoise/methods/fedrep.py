"""FedRep: personal heads, fitted first, on a federated representation.

Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", ICML 2021
(arXiv:2102.07078), algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from equipoise.core import Capabilities, Client, Params, Scheduled, State, option
from equipoise.methods._partial_sharing import PartialSharing


@dataclass(frozen=True)
class FedRep(PartialSharing):
    """Train the head on the frozen received backbone, then the backbone under the frozen head.

    Heads stay at the clients, backbones are averaged. The run's epochs are those of the backbone.
    """

    name: ClassVar[str] = "fedrep"
    family: ClassVar[str] = "parts"
    capabilities: ClassVar[Capabilities] = replace(
        PartialSharing.capabilities, needs_previous_model=True
    )
    search_space: ClassVar[Mapping[str, tuple[float, float]]] = {"head_epochs": (1, 20)}
    default_shared_blocks: ClassVar[tuple[str, ...]] = ("backbone",)
    head_epochs: Scheduled[int] = option(
        10, "epochs on the head with the backbone frozen, before those on the backbone", low=1
    )

    def train(self, client: Client) -> tuple[Params, State]:
        """Train the head for `head_epochs`, then the backbone for the configured epochs."""
        epochs = torch.full_like(client.hparams.epochs, self.head_epochs)
        head_hparams = replace(client.hparams, epochs=epochs)
        client.logged["gradients"] = client.num_steps(head_hparams) + client.num_steps(
            client.hparams
        )
        head_trained = client.fit(
            client.start, hparams=head_hparams, blocks=self.local_blocks(client.task)
        )
        trained = client.fit(head_trained, blocks=self.shared_blocks(client.task), stream=1)
        return trained, client.state
