"""FedRecon: local parameters are reconstructed when they are needed, never stored or sent.

Singhal et al., "Federated Reconstruction: Partially Local Federated Learning", NeurIPS 2021
(arXiv:2102.03448), algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from equipoise.core import Client, LocalHParams, Params, Scheduled, Server, State, Task, option
from equipoise.methods._partial_sharing import PartialSharing


@dataclass(frozen=True)
class FedRecon(PartialSharing):
    """Share the global parameters g (backbone) and reconstruct the local ones l (head).

    The only client state is the initial value of l, which never changes.
    """

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
    server_lr: Scheduled[float] = option(1.0, "server learning rate eta_s", above=0)

    # --- client -----------------------------------------------------------------------------

    def init_client(self, task: Task, params: Params) -> State:
        """Keep the initial value of l."""
        names = [name for block in self.local_blocks(task) for name in task.info.blocks[block]]
        return {"l": {name: params[name] for name in names}}

    def receive(self, client: Client) -> tuple[Params, State]:
        """Join the received g with the initial l."""
        g = {name: client.message.params[name] for name in self.shared_param_names(client.task)}
        return {**g, **client.state["l"]}, client.state

    def train(self, client: Client) -> tuple[Params, State]:
        """Reconstruct l on the support rows with g frozen, then train g on the query rows."""
        support = (0.0, self.support)
        query = (self.support, 1.0)
        recon_hparams = self._recon_hparams(client)
        recon_steps = client.num_steps(recon_hparams, support)
        client.logged["gradients"] = recon_steps + client.num_steps(client.hparams, query)
        reconstructed = client.fit(
            client.start,
            hparams=recon_hparams,
            blocks=self.local_blocks(client.task),
            data_range=support,
        )
        trained = client.fit(
            reconstructed, blocks=self.shared_blocks(client.task), data_range=query, stream=1
        )
        return trained, client.state

    def personal_model(self, client: Client) -> Params:
        """Reconstruct l on all training rows under the received g, as the paper does for tests."""
        return client.fit(
            client.start,
            hparams=self._recon_hparams(client),
            blocks=self.local_blocks(client.task),
            stream=2,
        )

    def _recon_hparams(self, client: Client) -> LocalHParams:
        """Return the client's hyper-parameters with the epochs of reconstruction."""
        epochs = torch.full_like(client.hparams.epochs, self.recon_epochs)
        return replace(client.hparams, epochs=epochs)

    # --- server -----------------------------------------------------------------------------

    def apply_sums(self, server: Server, sums: State) -> tuple[Params, State]:
        """Set g <- g + eta_s sum_i (n_i / n) (g_i - g)."""
        g = server.params
        mean = sums["mean"]
        new_g = {name: g[name] + self.server_lr * (mean[name] - g[name]) for name in mean}
        return {**g, **server.with_client_batch_stats(new_g, mean)}, server.state
