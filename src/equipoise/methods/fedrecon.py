"""FedRecon (Singhal et al., 2021): local parameters are rebuilt when they are needed, never stored, never sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from equipoise.core import Client, LocalHParams, Params, Scheduled, Server, State, Task, option
from equipoise.methods._partial_sharing import PartialSharing


@dataclass(frozen=True)
class FedRecon(PartialSharing):
    """Their algorithm 1, with g = backbone and l = head. The only state is l's initial value, which never changes."""

    name: ClassVar[str] = "fedrecon"
    family: ClassVar[str] = "parts"
    search_space: ClassVar[Mapping[str, tuple[float, float]]] = {
        "recon_epochs": (1, 20),
        "server_lr": (0.3, 1.5),
    }
    default_shared_blocks: ClassVar[tuple[str, ...]] = ("backbone",)
    recon_epochs: Scheduled[int] = option(
        2, "epochs of reconstruction of the head, on the support rows", low=1
    )
    support: float = option(
        0.5,
        "share of the training rows that reconstruct the head; the others train the backbone",
        above=0,
        below=1,
    )
    server_lr: Scheduled[float] = option(1.0, "the server's rate eta_s", above=0)

    def init_client(self, task: Task, params: Params) -> State:
        return {
            "l": {name: params[name] for block in self.kept(task) for name in task.blocks[block]}
        }

    def receive(self, client: Client) -> tuple[Params, State]:
        return {
            **{name: client.message.params[name] for name in self.shared_param_names(client.task)},
            **client.state["l"],
        }, client.state

    def train(self, client: Client) -> tuple[Params, State]:
        """l from its start, k_r steps on the support with g frozen; then k_u steps on g on the query, l frozen."""
        support, query = (0.0, self.support), (self.support, 1.0)
        client.logged["gradients"] = client.num_steps(
            self._recon(client), support
        ) + client.num_steps(client.hparams, query)
        rebuilt = client.fit(
            client.start,
            hparams=self._recon(client),
            blocks=self.kept(client.task),
            data_range=support,
        )
        return client.fit(
            rebuilt, blocks=self.shared_blocks(client.task), data_range=query, stream=1
        ), client.state

    def personal_model(self, client: Client) -> Params:
        """As at their test time: rebuild l on all training rows under the received g."""
        return client.fit(
            client.start, hparams=self._recon(client), blocks=self.kept(client.task), stream=2
        )

    def apply_sums(self, server: Server, sums: State) -> tuple[Params, State]:
        """g <- g + eta_s sum (n_i/n) (g_i - g)."""
        mean, g = sums["mean"], server.params
        moved = {name: g[name] + self.server_lr * (mean[name] - g[name]) for name in mean}
        return {**g, **server.with_client_batch_stats(moved, mean)}, server.state

    def _recon(self, client: Client) -> LocalHParams:
        return replace(
            client.hparams, epochs=torch.full_like(client.hparams.epochs, self.recon_epochs)
        )
