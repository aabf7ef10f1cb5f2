"""A method as a user may write it: made of sums, weighed by what its clients report, with a state
on both sides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.core import (
    Capabilities,
    Client,
    ClientUpdate,
    LocalHParams,
    Method,
    Params,
    Server,
    State,
    Task,
    ValueRange,
)
from equipoise.core.report_validation import FRACTION

BY_ERROR = "helpers_own:ByError"
"""How it is named where a method is."""


@dataclass(frozen=True)
class ByError(Method):
    """v <- v / 2 + sum p_i (w_i - w); w <- w + v; p_i ~ error_i + .02, of the received model.

    Clients train twice as long as is configured, with rates that fall.
    """

    name: ClassVar[str] = "by-error"
    capabilities: ClassVar[Capabilities] = Capabilities(aggregates_by_sum=True)
    report_ranges: ClassVar[Mapping[str, ValueRange]] = {"error": FRACTION}

    def init_client(self, task: Task, params: Params) -> State:
        return {"error": torch.zeros((), dtype=torch.float64)}

    def configure_training(self, client: Client) -> tuple[LocalHParams, State]:
        error = 1 - client.task.utility_and_loss(client.evaluate(client.start, "train"))[0].double()
        return LocalHParams(2 * client.hparams.epochs, client.hparams.lr / client.round), {
            **client.state,
            "error": error,
        }

    def upload(self, client: Client) -> tuple[ClientUpdate, State]:
        up, state = super().upload(client)
        up.metrics["error"] = state["error"]
        return up, state

    def init_server(self, task: Task, params: Params) -> State:
        return {"v": {name: torch.zeros_like(w) for name, w in params.items()}}

    def aggregation_weights(
        self, server: Server, ids: Tensor, updates: ClientUpdate
    ) -> tuple[Tensor | Params, State]:
        p = updates.metrics["error"] + 0.02
        return p / p.sum(), server.state

    def apply_sums(self, server: Server, sums: State) -> tuple[Params, State]:
        w = server.params
        v = {name: server.state["v"][name] / 2 + (sums["mean"][name] - w[name]) for name in w}
        return {name: w[name] + v[name] for name in w}, {**server.state, "v": v}
