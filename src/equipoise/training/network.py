"""Interface between local SGD and a task: a network, its loss and the rows of every client."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from equipoise.core import Params, State, TaskInfo
from equipoise.data.federated_dataset import ClientData
from equipoise.training.objectives import Objective

LinearParamNames = tuple[str, str | None]
"""Names of the weight and of the bias, None without a bias."""


class Network(Protocol):
    """A network, the loss of each example, and the training rows of every client."""

    info: TaskInfo
    """Facts; with `has_train_mode`, steps need a `step_context`."""
    data: ClientData
    """Rows of every client."""
    dtype: torch.dtype
    """Floating-point type of the parameters."""
    device: torch.device
    """Device of training."""
    linear: LinearParamNames | None
    """Names of weight and bias if the closed form applies: one linear layer, cross-entropy."""
    objective: Objective
    """Loss and metrics of the task's kind of target."""
    pad_label: float | None
    """Target of padding rows, if zero weight alone is not enough to ignore them."""
    transposed_params: frozenset[str]
    """Matrices stored transposed in memory while a stack is trained, because that is faster."""

    def step_context(self, key: Tensor, rows: Tensor) -> Params:
        """Return extra inputs of a training step: dropout keys and true batch sizes.

        Args:
            key: Random key of the step, scalar or `[K]`.
            rows: Number of rows in the batch without padding, scalar or `[K]`.
        """

    def prepare(self, x: Tensor) -> Tensor:
        """Convert stored rows to inputs of the network."""

    def channels_last(self, value: Tensor) -> Tensor:
        """Return the same values in the memory format that is fastest for the network."""

    def pad_inputs(self, x: Tensor) -> Tensor:
        """Return the training rows padded for the closed form (`batched_sgd.pad_inputs`)."""

    def losses(self, params: Params, x: Tensor, y: Tensor, aux: State) -> Tensor:
        """Compute the losses `[B]` of one model.

        Args:
            params: Parameters of the model.
            x: Inputs `[B, ...]`.
            y: Targets `[B, ...]`.
            aux: Extra inputs of the loss.
        """

    def forward_stack(self, stack: Params, x: Tensor) -> Tensor:
        """Compute the outputs `[K, B, ...]` of K models, each on its own rows."""

    def losses_stack(self, stack: Params, x: Tensor, y: Tensor) -> Tensor:
        """Compute the losses `[K, B]` of K models, each on its own rows.

        Args:
            stack: Parameters of K models.
            x: Inputs `[K, B, ...]`.
            y: Targets `[K, B, ...]`.
        """
