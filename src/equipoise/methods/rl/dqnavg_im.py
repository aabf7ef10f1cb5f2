"""DQNAvg-Im (ours): importance averaging for neural Q, each parameter by how much its agents learned of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from equipoise.contract import Client, ValueRange, Server, State, Params, ClientUpdate
from equipoise.contract.ranges import COUNT
from equipoise.methods.rl.dqnavg import DqnAvg

LEAST = 1e-12  # where nobody has learned anything, all weigh the same


@dataclass(frozen=True)
class DqnAvgIm(DqnAvg):
    """theta(p) <- sum_i v_i(p) theta_i(p) / sum_i v_i(p), v_i(p) the mean square of agent i's slopes at parameter p.

    A net has no visit counts, but slopes vanish where an agent's states do not use a parameter. v_i is Adam's own.
    """

    name: ClassVar[str] = "dqnavg-im"
    report_ranges: ClassVar[Mapping[str, ValueRange]] = {"evidence": COUNT}

    def upload(self, client: Client) -> tuple[ClientUpdate, State]:
        up, state = super().upload(client)
        seen = client.data_state["adam"]["v"]
        return ClientUpdate(up.params, {"evidence": {name: seen[name] for name in up.params}}), state

    def aggregation_weights(self, server: Server, ids: Tensor, updates: ClientUpdate) -> tuple[Tensor | Params, State]:
        evidence = {name: value + LEAST for name, value in updates.extra["evidence"].items()}
        return {name: value / value.sum(0) for name, value in evidence.items()}, server.state
