"""FedDBE: FedAvg with a domain bias eliminator, a personal shift of the representation.

Zhang et al., "Eliminating Domain Bias for Federated Learning in Representation Space", NeurIPS 2023
(arXiv:2311.14975), with momentum mu = 1 as in the authors' runs: the regularised mean is that of
the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.core import (
    Capabilities,
    Client,
    ClientUpdate,
    Loss,
    Method,
    Params,
    Scheduled,
    Server,
    ServerMessage,
    State,
    Task,
    TrainingConfig,
    ValueRange,
    option,
)
from equipoise.core.messages import ROW_WEIGHTS
from equipoise.core.method import hparams_like
from equipoise.core.report_validation import DEFAULT_RANGE
from equipoise.core.task import SupervisedTask, require_supervised
from equipoise.methods.checks import require_linear_head
from equipoise.utils.errors import UsageError

SHIFT = "shift"
"""Name of a client's shift of the representation, beside the parameters of the model."""


@dataclass(frozen=True)
class FedDbe(Method):
    """Share backbone f and head g; a client's outputs are g(f(x) + c_i) with its own shift c_i.

    Training keeps the mean representation of each batch near a consensus m, so that what is special
    to a client goes into c_i. The first round finds m: clients train as in FedAvg and upload the
    mean representation of their last batch, m is the mean of these, and the model stays as it was.
    """

    name: ClassVar[str] = "feddbe"
    family: ClassVar[str] = "parts"
    capabilities: ClassVar[Capabilities] = Capabilities(aggregates_by_sum=True, uploads_vary=True)
    report_ranges: ClassVar[Mapping[str, ValueRange]] = {"mean": DEFAULT_RANGE}
    search_space: ClassVar[Mapping[str, tuple[float, float]]] = {"kappa": (0.1, 100.0)}
    kappa: Scheduled[float] = option(
        50.0,
        "weight kappa of the mean regularisation (the authors' value for Fashion-MNIST)",
        low=0,
    )

    def check(self, task: Task, training: TrainingConfig) -> None:
        """Refuse tasks without classes and models whose head is not one linear layer."""
        if require_supervised(self, task).info.target_kind != "classification":
            raise UsageError(
                f"feddbe is defined for classes, and task '{task.info.name}' has none: choose "
                "another method"
            )
        self.require_two_blocks(task)
        require_linear_head(self, task)

    # --- client -----------------------------------------------------------------------------

    def init_client(self, task: Task, params: Params) -> State:
        """Start with c_i = 0."""
        return {SHIFT: _zero_representation(task, params)}

    def train(self, client: Client) -> tuple[Params, State]:
        """Minimise the loss of g(f(x) + c) + kappa/2 mean_j (mean_batch f_j(x) - m_j)^2.

        In the first round there is no m yet, and c stays as it is.
        """
        if client.round == 1:
            return client.fit(client.start), client.state
        head_weight = client.start[_head_names(client.task)[0]]
        trained = client.fit(
            {**client.start, SHIFT: client.state[SHIFT]},
            loss=_losses(require_supervised(self, client.task)),
            aux={
                "consensus": client.message.broadcast["consensus"],
                "kappa": torch.as_tensor(self.kappa, dtype=head_weight.dtype),
                ROW_WEIGHTS: head_weight.new_zeros(()),
            },
        )
        model = {name: trained[name] for name in client.start}
        return model, {SHIFT: trained[SHIFT]}

    def upload(self, client: Client) -> tuple[ClientUpdate, State]:
        """Add the mean representation of the last batch in the first round.

        One step of rate 1 on |mean - f(x)|^2 / 2 makes `mean` that of the batch.
        """
        update, state = super().upload(client)
        if client.round > 1:
            return update, state
        mean = client.fit(
            {"mean": _zero_representation(client.task, client.trained)},
            hparams=hparams_like(client.hparams, 1, 1.0),
            loss=_distances(require_supervised(self, client.task)),
            aux={"model": client.trained},
            stream=1,
            training=replace(client.training, momentum=0.0, weight_decay=0.0, max_grad_norm=0.0),
        )
        return replace(update, extra=mean), state

    def personal_model(self, client: Client) -> Params:
        """Move the shift into the bias: W (z + c) + b = W z + (b + W c)."""
        weight, bias = _head_names(client.task)
        shifted = client.trained[bias] + client.trained[weight] @ client.state[SHIFT]
        return {**client.trained, bias: shifted}

    # --- server -----------------------------------------------------------------------------

    def init_server(self, task: Task, params: Params) -> State:
        """Start with an unknown consensus, which nobody reads in the first round."""
        return {"consensus": _zero_representation(task, params)}

    def distribute(self, server: Server, ids: Tensor) -> tuple[ServerMessage, State]:
        """Send the model and the consensus."""
        message, state = super().distribute(server, ids)
        return replace(message, broadcast={"consensus": state["consensus"]}), state

    def partial_sums(
        self, global_params: Params, updates: ClientUpdate, weights: Tensor | Params
    ) -> State:
        """Add the weighted sum of the clients' mean representations, where there are any."""
        sums = super().partial_sums(global_params, updates, weights)
        if not updates.extra:
            return sums
        if isinstance(weights, dict):
            raise TypeError("feddbe weighs clients, not parameters")
        mean = updates.extra["mean"]
        return sums | {"consensus": torch.tensordot(weights.to(mean.dtype), mean, 1)}

    def apply_sums(self, server: Server, sums: State) -> tuple[Params, State]:
        """Set the consensus in the first round, and the model in all others."""
        if server.round == 1:
            return server.params, {"consensus": sums["consensus"]}
        return super().apply_sums(server, sums)


def _head_names(task: Task) -> tuple[str, str]:
    """Return the names of the head's weight and bias."""
    by_kind = {name.rpartition(".")[2]: name for name in task.info.param_names("head")}
    return by_kind["weight"], by_kind["bias"]


def _zero_representation(task: Task, params: Params) -> Tensor:
    """Return zeros `[d]`, as many as the head has inputs."""
    return torch.zeros_like(params[_head_names(task)[0]][0])


def _outputs(
    task: SupervisedTask, params: Params, x: Tensor, shift: Tensor
) -> tuple[Tensor, Tensor]:
    """Return logits `[B, C]` of g(f(x) + shift) and representations f(x) `[B, d]`.

    One pass computes both: a head with rows for the classes and the rows of the identity.
    """
    weight_name, bias_name = _head_names(task)
    weight = params[weight_name]
    classes, width = weight.shape
    both = torch.cat([weight, torch.eye(width, dtype=weight.dtype, device=weight.device)])
    bias = torch.cat([params[bias_name] + weight @ shift, torch.zeros_like(shift)])
    outputs = task.forward({**params, weight_name: both, bias_name: bias}, x)
    return outputs[:, :classes], outputs[:, classes:]


def _losses(task: SupervisedTask) -> Loss:
    """Return the cross-entropy of the shifted model with mean regularisation."""

    def losses(params: Params, x: Tensor, y: Tensor, aux: State) -> Tensor:
        model = {name: value for name, value in params.items() if name != SHIFT}
        logits, representations = _outputs(task, model, x, params[SHIFT])
        mean = aux[ROW_WEIGHTS] @ representations
        regularisation: Tensor = aux["kappa"] / 2 * (mean - aux["consensus"]).square().mean()
        errors = F.cross_entropy(logits, y, reduction="none")
        return errors + regularisation

    return losses


def _distances(task: SupervisedTask) -> Loss:
    """Return |mean - f(x)|^2 / 2 for each example, as a function of `mean`."""

    def losses(params: Params, x: Tensor, y: Tensor, aux: State) -> Tensor:
        mean = params["mean"]
        _, representations = _outputs(task, aux["model"], x, torch.zeros_like(mean))
        distances: Tensor = (mean - representations.detach()).square().sum(-1) / 2
        return distances

    return losses
