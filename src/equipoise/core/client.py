"""One client in one round, as a method sees it."""

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
    """What a client's device does on a usual day."""

    samples_per_second: Tensor
    """Training samples per second."""
    upload_seconds_per_byte: Tensor
    """Seconds per byte to the server."""
    download_seconds_per_byte: Tensor
    compute_watts: Tensor
    """While it trains."""
    radio_watts: Tensor
    """Watts while it sends or receives."""


class Client(ABC):
    """All that one client knows in one round, and all that it can do with its own data."""

    id: Tensor
    round: int
    num_rounds: int
    task: Task
    training: TrainingConfig
    message: ServerMessage
    local_params: Params
    """The model it held before the download."""
    state: State
    start: Params
    """After decision 4: what it trains from."""
    hparams: LocalHParams
    """Decision 1 as taken."""
    trained: Params
    """After local training."""
    logged: Params
    """What hooks want to see in the round's log; costs no bytes."""

    @property
    @abstractmethod
    def data_state(self) -> State:
        """State of its data source or environment, such as visit counts; to read, for only :meth:`fit` moves it."""

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
        """Local SGD on loss(params) + <linear, params> + pull, on the client's own training rows.

        Arguments:
            params: the model to start from.
            train: epochs and rate; by default those of decision 1.
            pull: a quadratic pull to an anchor (FedProx, Ditto).
            linear: what is added to the gradient, by parameter (SCAFFOLD, FedDyn).
            blocks: the blocks that move; by default all of them.
            loss: a loss for one client that takes the place of the task's.
            aux: what that loss is given beside model and batch.
            part: the share of the training rows that is used, from where to where.
            repeat: how many steps are taken on each batch.
            clamp: bounds within which parameters are kept after every step.
            stream: a number that tells this call's batches from those of other calls in the round.
            training: batch size, momentum and weight decay of this call instead of the run's.

        Returns:
            The trained model.
        """

    @abstractmethod
    def fit_with_moving_anchor(
        self, params: Params, pull: ProximalTerm, **how: Any
    ) -> tuple[Params, Params]:
        """As :meth:`fit`, with an anchor that follows; gives both."""

    @abstractmethod
    def evaluate(self, params: Params, split: str = "val") -> Params:
        """Scores of a model on the client's own data: ``val`` is the only split that a decision may read."""

    @abstractmethod
    def grad_sq_norm(self, params: Params) -> Tensor:
        """The squared norm of a model's gradient, on the first batch of this round's training."""

    @abstractmethod
    def evaluate_heads(self, params: Params, heads: Params, split: str = "val") -> Params:
        """Scores ``[H]`` of a model with each of these heads (a leading axis ``[H]``) in the place of its own."""

    @abstractmethod
    def uniform(self, *shape: int, stream: int = 0) -> Tensor:
        """Random numbers in [0, 1) that depend on (seed, client, round, stream) only."""

    @abstractmethod
    def num_steps(self, train: LocalHParams, part: tuple[float, float] = (0.0, 1.0)) -> Tensor:
        """The number of batches that ``train`` means for this client, on this share of its rows."""

    @abstractmethod
    def label_counts(self) -> Tensor:
        """Training samples of each class, if the task has labels."""

    @abstractmethod
    def device(self) -> DeviceProfile:
        """What its device can do; where it is real, what the default device can."""

    @abstractmethod
    def any_client(self, condition: Tensor) -> bool:
        """Whether it holds for any client computed along with this one: only to skip work that would change nothing."""

    def scoped(self, key: str) -> Self:
        """The same client seen by a method that is part of another: its state is the part under ``key``."""
        inner = copy.copy(self)
        inner.state = self.state[key]
        return inner
