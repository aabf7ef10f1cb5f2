"""SCAFFOLD: control variates that remove client drift from local SGD.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020
(arXiv:1910.06378), algorithm 1 with option II for the client control variates.
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
    ClientUpdate,
    Method,
    Params,
    Scheduled,
    Server,
    ServerMessage,
    State,
    Task,
    TrainingConfig,
    ValueRange,
    equal_weights,
    option,
)
from equipoise.core.report_validation import DEFAULT_RANGE
from equipoise.utils.errors import UsageError


@dataclass(frozen=True)
class Scaffold(Method):
    """The server keeps a model x and a control variate c; every client i keeps its own c_i.

    All control variates start at zero, so that c is always the mean of all c_i. Both states have
    one entry, `c`.
    """

    name: ClassVar[str] = "scaffold"
    family: ClassVar[str] = "one-model"
    capabilities: ClassVar[Capabilities] = Capabilities(
        needs_common_start=True, aggregates_by_sum=True
    )
    report_ranges: ClassVar[Mapping[str, ValueRange]] = {"c": DEFAULT_RANGE}
    search_space: ClassVar[Mapping[str, tuple[float, float]]] = {"server_lr": (0.3, 1.5)}
    server_lr: Scheduled[float] = option(1.0, "server learning rate eta_g", above=0)

    def check(self, task: Task, training: TrainingConfig) -> None:
        """Refuse momentum: option II recovers the mean gradient from the path of plain SGD."""
        if training.momentum:
            raise UsageError(
                "scaffold recovers the mean gradient from the path of plain SGD, which momentum "
                "bends: set momentum to 0"
            )

    # --- client -----------------------------------------------------------------------------

    def init_client(self, task: Task, params: Params) -> State:
        """Start with c_i = 0."""
        return {"c": {name: torch.zeros_like(x) for name, x in params.items()}}

    def train(self, client: Client) -> tuple[Params, State]:
        """Run R local steps with corrected gradients: y <- y - eta (g_i(y) - c_i + c)."""
        server_c = client.message.broadcast["c"]
        own_c = client.state["c"]
        correction = {name: server_c[name] - own_c[name] for name in own_c}
        return client.fit(client.start, grad_correction=correction), client.state

    def upload(self, client: Client) -> tuple[ClientUpdate, State]:
        """Send y and the change of c_i, with option II: c_i+ = c_i - c + (x - y) / (R eta).

        R is the number of local steps and eta the learning rate that this client really used.
        """
        x = client.start
        y = client.trained
        server_c = client.message.broadcast["c"]
        own_c = client.state["c"]
        path = client.num_steps(client.hparams) * client.hparams.lr
        change = {name: (x[name] - y[name]) / path.to(y[name].dtype) - server_c[name] for name in y}
        new_c = {name: own_c[name] + change[name] for name in y}
        return ClientUpdate(y, {"c": change}), {"c": new_c}

    # --- server -----------------------------------------------------------------------------

    def init_server(self, task: Task, params: Params) -> State:
        """Start with c = 0."""
        return self.init_client(task, params)

    def distribute(self, server: Server, ids: Tensor) -> tuple[ServerMessage, State]:
        """Send x and c."""
        message, state = super().distribute(server, ids)
        return replace(message, broadcast={"c": state["c"]}), state

    def aggregation_weights(
        self, server: Server, ids: Tensor, updates: ClientUpdate
    ) -> tuple[Tensor | Params, State]:
        """Weight all clients equally."""
        return equal_weights(ids), server.state

    def partial_sums(
        self, global_params: Params, updates: ClientUpdate, weights: Tensor | Params
    ) -> State:
        """Add the sum of the changes of c_i to the mean of the models."""
        sums = super().partial_sums(global_params, updates, weights)
        c_changes = updates.extra["c"].items()
        return sums | {"c": {name: change.sum(0) for name, change in c_changes}}

    def apply_sums(self, server: Server, sums: State) -> tuple[Params, State]:
        """Set x <- x + eta_g mean_S(y - x) and c <- c + 1/N sum_S(c_i+ - c_i)."""
        x = server.params
        y = sums["mean"]
        new_x = {name: x[name] + self.server_lr * (y[name] - x[name]) for name in x}
        new_c = {
            name: c + sums["c"][name] / server.task.info.num_clients
            for name, c in server.state["c"].items()
        }
        return server.with_client_batch_stats(new_x, y), {"c": new_c}
