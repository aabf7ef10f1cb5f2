"""Fed-ROD: a generic head trained with a balanced loss, and a personal head on top of it.

Chen and Chao, "On Bridging Generic and Personalized Federated Learning for Image Classification",
ICLR 2022 (arXiv:2107.00778).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.core import (
    Capabilities,
    Client,
    LinearLoss,
    LinearStack,
    Loss,
    Method,
    Params,
    State,
    Task,
    TrainingConfig,
)
from equipoise.core.task import SupervisedTask, require_supervised
from equipoise.methods.checks import require_linear_head
from equipoise.utils.errors import UsageError

PERSONAL = "P."
"""Prefix of the personal head's parameters while both heads train."""


@dataclass(frozen=True)
class FedRod(Method):
    """Share the backbone f and the generic head G; keep a personal head P_i, which starts at 0.

    The personal model's logits are G(f(x)) + P_i(f(x)). A model of one layer is all head: f is the
    identity, as in the PAGE repository's runs on Synthetic.
    """

    name: ClassVar[str] = "fedrod"
    family: ClassVar[str] = "parts"
    capabilities: ClassVar[Capabilities] = Capabilities(aggregates_by_sum=True)

    def check(self, task: Task, training: TrainingConfig) -> None:
        """Refuse tasks without classes and models whose head is not one linear layer."""
        if require_supervised(self, task).info.target_kind != "classification":
            raise UsageError(
                f"fedrod balances classes, and task '{task.info.name}' has none: choose "
                "another method"
            )
        if task.info.has_train_mode:
            raise UsageError(
                "fedrod trains two heads at once, and a pass for each would update the batch "
                f"statistics of task '{task.info.name}' twice: choose a model without batch "
                "normalisation and dropout"
            )
        require_linear_head(self, task)

    def init_client(self, task: Task, params: Params) -> State:
        """Start with P_i = 0."""
        return {
            "P": {name: torch.zeros_like(params[name]) for name in task.info.param_names("head")}
        }

    def train(self, client: Client) -> tuple[Params, State]:
        """Minimise both losses with one SGD; neither reaches the parameters of the other."""
        personal = {f"{PERSONAL}{name}": value for name, value in client.state["P"].items()}
        dtype = next(iter(personal.values())).dtype
        trained = client.fit(
            {**client.start, **personal},
            loss=LinearLoss(_losses(require_supervised(self, client.task)), _gradients),
            aux={"log_counts": client.label_counts().to(dtype).log()},
        )
        shared = {name: trained[name] for name in client.start}
        P = {name: trained[f"{PERSONAL}{name}"] for name in client.state["P"]}
        return shared, {"P": P}

    def personal_model(self, client: Client) -> Params:
        """Add the heads' parameters, which for linear heads adds their logits."""
        heads = {name: client.trained[name] + P for name, P in client.state["P"].items()}
        return {**client.trained, **heads}


def _losses(task: SupervisedTask) -> Loss:
    """Return the sum of the generic and the personal loss."""
    head_names = task.info.param_names("head")
    backbone_names = task.info.param_names("backbone")

    def losses(params: Params, x: Tensor, y: Tensor, aux: State) -> Tensor:
        """Balanced softmax for f and G, cross-entropy of the summed logits for P alone.

        The balanced softmax is -log(n_y exp(g_y) / sum_c n_c exp(g_c)) with the client's class
        counts n_c.
        """
        generic = task.forward({name: params[name] for name in (*backbone_names, *head_names)}, x)
        frozen = {name: params[name].detach() for name in backbone_names}
        personal_head = {name: params[f"{PERSONAL}{name}"] for name in head_names}
        personal = task.forward({**frozen, **personal_head}, x)
        balanced = F.cross_entropy(generic + aux["log_counts"], y, reduction="none")
        return balanced + F.cross_entropy(generic.detach() + personal, y, reduction="none")

    return losses


def _gradients(
    models: LinearStack, stack: Params, x: Tensor, y: Tensor, aux: State, weight: Tensor | float
) -> Params:
    """Return the gradients of `_losses` for a stack of clients whose model is all head."""
    generic = models.logits(stack, x)
    both = generic + models.logits(stack, x, PERSONAL)
    balanced = generic + aux["log_counts"].unsqueeze(1)
    return {
        **models.gradients(balanced, x, y, weight),
        **models.gradients(both, x, y, weight, PERSONAL),
    }
