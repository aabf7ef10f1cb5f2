"""What local SGD needs from a task: a network, its parameters and its rows."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from equipoise.core import Params, State
from equipoise.data.federated_dataset import ClientData
from equipoise.training.linear_closed_form import Names
from equipoise.training.objectives import Objective


class Network(Protocol):
    """A network, its loss for each sample, and the rows of every client."""

    data: ClientData
    dtype: torch.dtype
    device: torch.device
    linear: Names | None
    """Names of weight and bias if the network is one linear layer under cross-entropy, which has a closed form."""

    objective: Objective
    """The loss and the scores of the task's kind of target."""
    filler: float | None
    """The ``y`` of rows that only fill a batch, where it is not enough that they weigh nothing."""
    batch_stat_names: tuple[str, ...]
    """What of a model moves by averages over batches and not by gradients."""
    wide: frozenset[str]
    """Parameters whose matrices lie transposed in memory while a stack of them is trained: that is faster."""
    has_train_mode: bool
    """Whether the network trains otherwise than it evaluates, so that :meth:`step` adds something."""

    def step(self, key: Tensor, rows: Tensor) -> Params:
        """What a training step adds to a model: its random key and its true rows, one of each or a stack."""

    def prepare(self, x: Tensor) -> Tensor:
        """Stored rows as the network takes them."""

    def laid_out(self, value: Tensor) -> Tensor:
        """The same numbers in the memory layout that the network is fastest on."""

    def with_lanes(self, x: Tensor) -> Tensor:
        """Training rows as the closed form takes them."""

    def losses(self, params: Params, x: Tensor, y: Tensor, aux: State) -> Tensor:
        """Losses ``[B]`` of one model."""

    def forward_stack(self, stack: Params, x: Tensor) -> Tensor:
        """Outputs ``[K, B, ...]`` of K models, each on its own rows."""

    def losses_stack(self, stack: Params, x: Tensor, y: Tensor) -> Tensor:
        """Losses ``[K, B]`` of K models."""
