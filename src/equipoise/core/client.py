"""One client in one round, as the client hooks of a method see it."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from torch import Tensor

from equipoise.core.messages import LocalHParams, Loss, ProximalTerm, ServerMessage, TrainingConfig
from equipoise.utils.pytree import Params, State

if TYPE_CHECKING:
    from equipoise.core.task import Task


@dataclass(frozen=True)
class DeviceProfile:
    """Nominal device profile of a client, without the jitter of single rounds."""

    samples_per_second: Tensor
    """Training examples per second."""
    upload_seconds_per_byte: Tensor
    """Seconds per byte from the client to the server."""
    download_seconds_per_byte: Tensor
    """Seconds per byte from the server to the client."""
    compute_watts: Tensor
    """Power draw during training."""
    radio_watts: Tensor
    """Power draw during upload and download."""


class Client(ABC):
    """Everything that one client knows in one round, and what it can do with its own data.

    Hooks are written for one client. An executor may run them for many clients at once under
    `torch.func.vmap`, so tensors have the shapes of one client, without a client axis.
    """

    id: Tensor
    """Number of the client, a scalar int64 tensor."""
    round: int
    """Current round, from 1 on."""
    num_rounds: int
    """Planned number of rounds of the run."""
    task: Task
    """The task of the run."""
    training: TrainingConfig
    """Batch size, momentum, weight decay and default epochs and lr of the run."""
    message: ServerMessage
    """The download of this round."""
    local_params: Params
    """The model that the client held before the download."""
    state: State
    """The method's own state of this client."""
    start: Params
    """Result of `receive`: the model from which the client trains."""
    hparams: LocalHParams
    """Result of `configure_training`: epochs and learning rate of this round."""
    trained: Params
    """Result of `train`: the model after local training."""
    logged: Params
    """Values for the log of the round. They are not counted as communication."""

    @property
    @abstractmethod
    def data_state(self) -> State:
        """State of the data source or environment, such as visit counts.

        Read-only: only `fit` advances it.
        """

    @abstractmethod
    def fit(
        self,
        params: Params,
        *,
        hparams: LocalHParams | None = None,
        proximal: ProximalTerm | None = None,
        grad_correction: Params | None = None,
        blocks: tuple[str, ...] | None = None,
        loss: Loss | None = None,
        aux: State | None = None,
        data_range: tuple[float, float] = (0.0, 1.0),
        steps_per_batch: int = 1,
        clamp: tuple[float, float] | None = None,
        stream: int = 0,
        training: TrainingConfig | None = None,
    ) -> Params:
        """Run local SGD on the client's own training rows.

        The objective is `loss(p) + <grad_correction, p> + mu / 2 * ||p - anchor||^2`.

        Args:
            params: Model to start from.
            hparams: Epochs and learning rate. Defaults to `self.hparams`.
            proximal: Quadratic penalty towards an anchor (FedProx, Ditto).
            grad_correction: Added to the gradient of each parameter (SCAFFOLD, FedDyn).
            blocks: Blocks that are trained. Defaults to all blocks.
            loss: Loss of one client that replaces the task's loss.
            aux: Extra input of `loss`, besides the model and the batch.
            data_range: Part of the training rows that is used, as (start, end) fractions.
            steps_per_batch: Number of SGD steps on each batch.
            clamp: Lower and upper bound of every parameter, enforced after each step.
            stream: Random stream of the batch order. Calls of one round with different numbers
                see independent orders.
            training: Replaces batch size, momentum and weight decay of the run for this call.

        Returns:
            The trained model, with the shapes of `params`.
        """

    @abstractmethod
    def fit_with_moving_anchor(
        self, params: Params, proximal: ProximalTerm, **options: Any
    ) -> tuple[Params, Params]:
        """Run `fit` with an anchor that moves towards the model after each batch.

        Args:
            params: Model to start from.
            proximal: Penalty, whose `anchor_lr` says how fast the anchor follows the model.
            **options: Other keyword arguments of `fit`.

        Returns:
            The trained model and the anchor.
        """

    @abstractmethod
    def evaluate(self, params: Params, split: str = "val") -> Params:
        """Evaluate a model on the client's own data.

        Args:
            params: Model of this client.
            split: Split of the data. Decisions may only use `val`.

        Returns:
            Scalar tensors by the name of the metric.
        """

    @abstractmethod
    def grad_sq_norm(self, params: Params) -> Tensor:
        """Compute the squared gradient norm on the first batch of this round's training.

        Args:
            params: Model at which the gradient is taken.

        Returns:
            A scalar tensor.
        """

    @abstractmethod
    def evaluate_heads(self, params: Params, heads: Params, split: str = "val") -> Params:
        """Evaluate a model with each of several heads in place of its own.

        Args:
            params: Model of this client.
            heads: Parameters of the heads, `[H, ...]` each.
            split: Split of the data.

        Returns:
            Tensors `[H]` by the name of the metric.
        """

    @abstractmethod
    def uniform(self, *shape: int, stream: int = 0) -> Tensor:
        """Draw random numbers that depend only on (seed, client, round, stream).

        Args:
            *shape: Shape of the result.
            stream: Number of the method's own random stream.

        Returns:
            Numbers in [0, 1), `[*shape]`.
        """

    @abstractmethod
    def num_steps(
        self, hparams: LocalHParams, data_range: tuple[float, float] = (0.0, 1.0)
    ) -> Tensor:
        """Count the batches of a local training.

        Args:
            hparams: Epochs of the training.
            data_range: Part of the training rows that is used, as (start, end) fractions.

        Returns:
            The number of batches, a scalar int64 tensor.
        """

    @abstractmethod
    def label_counts(self) -> Tensor:
        """Count the training examples of each class, `[C]`. Only for tasks with labels."""

    @abstractmethod
    def device(self) -> DeviceProfile:
        """Return the device profile. Real devices report the default profile."""

    @abstractmethod
    def any_client(self, condition: Tensor) -> bool:
        """Tell whether a condition holds for any client of the current vmap batch.

        Use it only to skip work that would not change any result.

        Args:
            condition: A scalar bool tensor.
        """

    def scoped(self, key: str) -> Self:
        """Return the same client as an inner method sees it.

        Args:
            key: Entry of `state` that holds the inner method's state.

        Returns:
            A shallow copy whose state is `self.state[key]`.
        """
        inner = copy.copy(self)
        inner.state = self.state[key]
        return inner
