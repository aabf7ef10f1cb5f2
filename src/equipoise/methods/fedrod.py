"""Fed-ROD (Chen and Chao, 2022): a generic head for all, balanced over classes, and a personal one on top of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.core import Client, Loss, Method, Params, State, Task, TrainingConfig
from equipoise.core.task import SupervisedTask, require_supervised
from equipoise.utils.errors import UsageError


@dataclass(frozen=True)
class FedRod(Method):
    """Backbone f and generic head G are federated; P_i (from 0) is local. Personal logits: G(f(x)) + P_i(f(x))."""

    name: ClassVar[str] = "fedrod"
    family: ClassVar[str] = "parts"

    def check(self, task: Task, training: TrainingConfig) -> None:
        if require_supervised(self, task).target_kind != "classification":
            raise UsageError(
                f"fedrod balances classes, and task '{task.name}' has none: choose another method"
            )
        self.require_two_blocks(task)
        if task.has_train_mode:
            raise UsageError(
                f"fedrod trains two heads at once, and a pass for each would move the statistics of task '{task.name}' "
                "twice: choose a model without batch normalisation and dropout"
            )
        layers = {name.rpartition(".")[0] for name in task.param_names("head")}
        if len(layers) > 1 or {name.rpartition(".")[2] for name in task.param_names("head")} - {
            "weight",
            "bias",
        }:
            raise UsageError(
                f"fedrod adds two heads, which needs a head that is one linear layer, but that of task '{task.name}' "
                f"is {', '.join(task.param_names('head'))}"
            )

    def init_client(self, task: Task, params: Params) -> State:
        return {"P": {name: torch.zeros_like(params[name]) for name in task.param_names("head")}}

    def train(self, client: Client) -> tuple[Params, State]:
        """One SGD on both losses: neither reaches the parameters of the other."""
        own = {f"P.{name}": value for name, value in client.state["P"].items()}
        task = require_supervised(self, client.task)
        log_counts = client.label_counts().to(next(iter(own.values())).dtype).log()
        out = client.fit(
            {**client.start, **own}, loss=_losses(task), aux={"log_counts": log_counts}
        )
        return {name: out[name] for name in client.start}, {
            "P": {name: out[f"P.{name}"] for name in client.state["P"]}
        }

    def personal_model(self, client: Client) -> Params:
        """A linear head's outputs add as its parameters do."""
        return {
            **client.trained,
            **{name: client.trained[name] + own for name, own in client.state["P"].items()},
        }


def _losses(task: SupervisedTask) -> Loss:
    heads, bodies = task.param_names("head"), task.param_names("backbone")

    def losses(params: Params, x: Tensor, y: Tensor, aux: State) -> Tensor:
        """Balanced softmax -log(n_y e^g_y / sum_c n_c e^g_c) for f and G; cross-entropy of the sum for P alone."""
        generic = task.forward({name: params[name] for name in (*bodies, *heads)}, x)
        frozen = {name: params[name].detach() for name in bodies}
        own = task.forward({**frozen, **{name: params[f"P.{name}"] for name in heads}}, x)
        balanced = F.cross_entropy(generic + aux["log_counts"], y, reduction="none")
        return balanced + F.cross_entropy(generic.detach() + own, y, reduction="none")

    return losses
