"""FedRecon (Singhal et al., 2021): local parameters are rebuilt when they are needed, never stored, never sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from equipoise.contract import Client, OverRounds, Server, State, Task, Train, Tree, option
from equipoise.methods.split import Split


@dataclass(frozen=True)
class FedRecon(Split):
    """Their algorithm 1, with g = backbone and l = head. The only state is l's initial value, which never changes."""

    name: ClassVar[str] = "fedrecon"
    family: ClassVar[str] = "parts"
    search: ClassVar[Mapping[str, tuple[float, float]]] = {"recon_epochs": (1, 20), "server_lr": (0.3, 1.5)}
    shares: ClassVar[tuple[str, ...]] = ("backbone",)
    recon_epochs: OverRounds[int] = option(2, "epochs of reconstruction of the head, on the support rows", low=1)
    support: float = option(
        0.5, "share of the training rows that reconstruct the head; the others train the backbone", above=0, below=1
    )
    server_lr: OverRounds[float] = option(1.0, "the server's rate eta_s", above=0)

    def client_init(self, task: Task, params: Tree) -> State:
        return {"l": {name: params[name] for block in self.kept(task) for name in task.blocks[block]}}

    def install(self, c: Client) -> tuple[Tree, State]:
        return {**{name: c.down.params[name] for name in self.shared_names(c.task)}, **c.state["l"]}, c.state

    def update(self, c: Client) -> tuple[Tree, State]:
        """l from its start, k_r steps on the support with g frozen; then k_u steps on g on the query, l frozen."""
        support, query = (0.0, self.support), (self.support, 1.0)
        c.notes["gradients"] = c.steps(self._recon(c), support) + c.steps(c.train, query)
        rebuilt = c.fit(c.start, train=self._recon(c), blocks=self.kept(c.task), part=support)
        return c.fit(rebuilt, blocks=self.travels(c.task), part=query, stream=1), c.state

    def personal(self, c: Client) -> Tree:
        """As at their test time: rebuild l on all training rows under the received g."""
        return c.fit(c.start, train=self._recon(c), blocks=self.kept(c.task), stream=2)

    def step(self, s: Server, sums: State) -> tuple[Tree, State]:
        """g <- g + eta_s sum (n_i/n) (g_i - g)."""
        mean, g = sums["mean"], s.params
        moved = {name: g[name] + self.server_lr * (mean[name] - g[name]) for name in mean}
        return {**g, **s.stepped(moved, mean)}, s.state

    def _recon(self, c: Client) -> Train:
        return replace(c.train, epochs=torch.full_like(c.train.epochs, self.recon_epochs))
