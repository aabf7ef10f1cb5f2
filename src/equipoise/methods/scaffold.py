"""SCAFFOLD (Karimireddy et al., 2020), option II: control variates take the clients' drift out of local SGD."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.core import (
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
    """Their algorithm 1. Server x, c; clients c_i; all control variates start at 0, so that c = mean of all c_i."""

    name: ClassVar[str] = "scaffold"
    family: ClassVar[str] = "one-model"
    needs_common_start: ClassVar[bool] = True
    report_ranges: ClassVar[Mapping[str, ValueRange]] = {"c": DEFAULT_RANGE}
    aggregates_by_sum: ClassVar[bool] = True
    search_space: ClassVar[Mapping[str, tuple[float, float]]] = {"server_lr": (0.3, 1.5)}
    server_lr: Scheduled[float] = option(1.0, "the server's rate eta_g", above=0)

    def check(self, task: Task, training: TrainingConfig) -> None:
        if training.momentum:
            raise UsageError(
                "scaffold reads the mean gradient off the path of plain SGD, which momentum bends: set momentum to 0"
            )

    def init_client(self, task: Task, params: Params) -> State:
        return {"c": {name: torch.zeros_like(x) for name, x in params.items()}}

    def init_server(self, task: Task, params: Params) -> State:
        return self.init_client(task, params)

    def distribute(self, server: Server, ids: Tensor) -> tuple[ServerMessage, State]:
        down, state = super().distribute(server, ids)
        return replace(down, broadcast={"c": state["c"]}), state

    def train(self, client: Client) -> tuple[Params, State]:
        """R times: y <- y - eta (g_i(y) - c_i + c)."""
        all_c, own_c = client.message.broadcast["c"], client.state["c"]
        return client.fit(
            client.start, grad_correction={name: all_c[name] - own_c[name] for name in own_c}
        ), client.state

    def upload(self, client: Client) -> tuple[ClientUpdate, State]:
        """c_i+ = c_i - c + (x - y) / (R eta), with the R and eta of this very client."""
        x, y, all_c, own_c = (
            client.start,
            client.trained,
            client.message.broadcast["c"],
            client.state["c"],
        )
        path = client.num_steps(client.hparams) * client.hparams.lr
        change = {name: (x[name] - y[name]) / path.to(y[name].dtype) - all_c[name] for name in y}
        return ClientUpdate(y, {"c": change}), {
            "c": {name: own_c[name] + change[name] for name in y}
        }

    def aggregation_weights(
        self, server: Server, ids: Tensor, updates: ClientUpdate
    ) -> tuple[Tensor | Params, State]:
        return equal_weights(ids), server.state

    def partial_sums(
        self, global_params: Params, updates: ClientUpdate, weights: Tensor | Params
    ) -> State:
        return super().partial_sums(global_params, updates, weights) | {
            "c": {name: change.sum(0) for name, change in updates.extra["c"].items()}
        }

    def apply_sums(self, server: Server, sums: State) -> tuple[Params, State]:
        """x <- x + eta_g mean_S(y - x); c <- c + 1/N sum_S(c_i+ - c_i)."""
        y, x = sums["mean"], server.params
        moved = {name: x[name] + self.server_lr * (y[name] - x[name]) for name in x}
        c = {
            name: old + sums["c"][name] / server.task.num_clients
            for name, old in server.state["c"].items()
        }
        return server.with_client_batch_stats(moved, y), {"c": c}
