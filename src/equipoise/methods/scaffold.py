"""SCAFFOLD: control variates that remove client drift from local SGD.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020
(arXiv:1910.06378), algorithm 1 with option II for the client control variates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

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
from equipoise.core.report_validation import DEFAULT_RANGE, memory_factors
from equipoise.utils.errors import UsageError

MAX_RELATIVE_ERROR = 1e-3
"""Of a change of c_i; rounding in single precision is a thousandth of that."""
TINY = 1e-300  # squared lengths below count as this


@dataclass(frozen=True)
class Scaffold(Method):
    """The server keeps a model x and a control variate c; every client i keeps its own c_i.

    All control variates start at zero, so that c is always the mean of all c_i. Clients that were
    asked and whose replies never counted (they lie, say) have no c_i in it: clients are sent the
    mean over the others, else c - c_i would pull honest clients back by that share.

    A client's state has one entry, `c`. The server's also has the masks `asked` and `counted`
    `[N]`, and `moved` `[N]`: how far each client has moved c along its direction.
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
        clients = task.info.num_clients
        nobody = torch.zeros(clients, dtype=torch.bool)
        moved = torch.zeros(clients, dtype=torch.float64)
        return {
            **self.init_client(task, params),
            "asked": nobody,
            "counted": nobody,
            "moved": moved,
        }

    def distribute(self, server: Server, ids: Tensor) -> tuple[ServerMessage, State]:
        """Send x and c, the mean over those clients whose replies can count."""
        message, state = super().distribute(server, ids)
        c = state["c"]
        never_counted = int((state["asked"] & ~state["counted"]).sum())
        if never_counted:
            clients = len(state["asked"])
            factor = clients / max(1, clients - never_counted)
            c = {name: factor * value for name, value in c.items()}
        asked = state["asked"].index_fill(0, ids, True)
        return replace(message, broadcast={"c": c}), {**state, "asked": asked}

    def check_updates(
        self, message: ServerMessage, ids: Tensor, updates: ClientUpdate, memory: dict[str, Any]
    ) -> Mapping[int, str]:
        """Find changes of c_i that do not follow from the uploaded model.

        By option II the change plus c is x - y over the path, whatever its length. So a client can
        lie about its control variate only by a lie of the same direction in its model, which the
        guards and robust rules see. Under secure aggregation the server sees neither.
        """
        if "c" not in updates.extra:
            return {}
        c_changes = updates.extra["c"]
        server_c = message.broadcast["c"]
        squares = torch.zeros(3, len(ids), dtype=torch.float64)
        scale = torch.zeros(len(ids), dtype=torch.float64)
        for name, change in c_changes.items():
            gradient = (change + server_c[name]).flatten(1).double()
            path = (message.params[name] - updates.params[name]).flatten(1).double()
            squares += torch.stack(
                [gradient.square().sum(1), (gradient * path).sum(1), path.square().sum(1)]
            )
            scale += change.flatten(1).square().sum(1, dtype=torch.float64)
            scale += server_c[name].square().sum(dtype=torch.float64)
        own, product, length = squares
        # What is left of the gradient beside the path.
        rest = own - product.clamp(min=0).square() / length.clamp(min=TINY)
        wrong = rest > MAX_RELATIVE_ERROR**2 * scale
        reason = "its change of c does not follow from its model"
        return dict.fromkeys(torch.nonzero(wrong).flatten().tolist(), reason)

    def aggregation_weights(
        self, server: Server, ids: Tensor, updates: ClientUpdate
    ) -> tuple[Tensor | Params, State]:
        """Weight all clients equally."""
        counted = server.state["counted"].index_fill(0, ids, True)
        return equal_weights(ids), {**server.state, "counted": counted}

    def memory_limits(self, server: Server, ids: Tensor, moves: Tensor) -> tuple[Tensor, State]:
        """Bound how far a client has moved c along its direction over all rounds.

        A client that lies about its model and about c_i in agreement with it moves c a little in
        each round, and nothing takes that back.
        """
        moved = server.state["moved"]
        factors = memory_factors(moved[ids], moves)
        moved = moved.index_add(0, ids, factors * moves)
        return factors, {**server.state, "moved": moved}

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
        return server.with_client_batch_stats(new_x, y), {**server.state, "c": new_c}
