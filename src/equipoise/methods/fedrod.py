"""Fed-ROD (Chen and Chao, 2022): a generic head for all, balanced over classes, and a personal one on top of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.contract import Client, Loss, Method, State, Task, Training, Tree
from equipoise.contract.supervised import Supervised, supervised
from equipoise.core.errors import UsageError


@dataclass(frozen=True)
class FedRod(Method):
    """Backbone f and generic head G are federated; P_i (from 0) is local. Personal logits: G(f(x)) + P_i(f(x))."""

    name: ClassVar[str] = "fedrod"
    family: ClassVar[str] = "parts"

    def check(self, task: Task, training: Training) -> None:
        if supervised(self, task).kind != "classification":
            raise UsageError(f"fedrod balances classes, and task '{task.name}' has none: choose another method")
        self.needs_two_blocks(task)
        if task.stepped:
            raise UsageError(
                f"fedrod trains two heads at once, and a pass for each would move the statistics of task '{task.name}' "
                "twice: choose a model without batch normalisation and dropout"
            )
        layers = {name.rpartition(".")[0] for name in task.names_of("head")}
        if len(layers) > 1 or {name.rpartition(".")[2] for name in task.names_of("head")} - {"weight", "bias"}:
            raise UsageError(
                f"fedrod adds two heads, which needs a head that is one linear layer, but that of task '{task.name}' "
                f"is {', '.join(task.names_of('head'))}"
            )

    def client_init(self, task: Task, params: Tree) -> State:
        return {"P": {name: torch.zeros_like(params[name]) for name in task.names_of("head")}}

    def update(self, c: Client) -> tuple[Tree, State]:
        """One SGD on both losses: neither reaches the parameters of the other."""
        own = {f"P.{name}": value for name, value in c.state["P"].items()}
        task = supervised(self, c.task)
        log_counts = c.label_counts().to(next(iter(own.values())).dtype).log()
        out = c.fit({**c.start, **own}, loss=_losses(task), aux={"log_counts": log_counts})
        return {name: out[name] for name in c.start}, {"P": {name: out[f"P.{name}"] for name in c.state["P"]}}

    def personal(self, c: Client) -> Tree:
        """A linear head's outputs add as its parameters do."""
        return {**c.trained, **{name: c.trained[name] + own for name, own in c.state["P"].items()}}


def _losses(task: Supervised) -> Loss:
    heads, bodies = task.names_of("head"), task.names_of("backbone")

    def losses(params: Tree, x: Tensor, y: Tensor, aux: State) -> Tensor:
        """Balanced softmax -log(n_y e^g_y / sum_c n_c e^g_c) for f and G; cross-entropy of the sum for P alone."""
        generic = task.forward({name: params[name] for name in (*bodies, *heads)}, x)
        frozen = {name: params[name].detach() for name in bodies}
        own = task.forward({**frozen, **{name: params[f"P.{name}"] for name in heads}}, x)
        balanced = F.cross_entropy(generic + aux["log_counts"], y, reduction="none")
        return balanced + F.cross_entropy(generic.detach() + own, y, reduction="none")

    return losses
