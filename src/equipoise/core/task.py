"""What is learned."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from equipoise.clock.devices import DEVICE_POPULATIONS, DevicePopulation
from equipoise.core.blocks import matching_blocks
from equipoise.core.messages import Blocks, LocalTrainRequest, RngContext, TrainingConfig
from equipoise.utils.errors import UsageError
from equipoise.utils.pytree import Ints, Params, State

if TYPE_CHECKING:
    from equipoise.core.method import Method
from numpy.random import Generator
from torch import nn


class Task(ABC):
    """What is learned: a model, its blocks, every client's data or environment, and how to train and score it."""

    name: str
    num_clients: int
    blocks: Blocks
    training: TrainingConfig
    """The task's own defaults of local training."""
    learner_kind: ClassVar[str] = "gradient"
    """What a method must know how to train: any model under SGD, or a kind of agent (see :attr:`Method.trains`)."""
    device: torch.device = torch.device("cpu")
    """Where models are trained and scored; all else, and the rows of data, stay in main memory."""
    supports_fork: ClassVar[bool] = False
    """Whether worker processes may compute its clients."""
    stackable: bool = True
    """Whether many models can be computed at once."""
    executor_depends_on_model: bool = False
    """Whether the fastest executor depends on the model and the machine, so that it must be measured."""
    batch_stat_names: tuple[str, ...] = ()
    """What of a model moves by averages over batches and not by gradients."""
    has_train_mode: bool = False
    """Whether its network trains otherwise than it evaluates: batch normalisation, dropout."""
    heldout_clients: Task | None = None
    """Clients that were held out of training."""
    metric: str = "acc"
    """The score that tables and stopping rules read."""
    higher_is_better: bool = True
    client_names: tuple[str, ...] = ()
    """What clients are called, in the order of their numbers; empty where they have numbers only."""
    class_names: tuple[str, ...] = ()
    """What classes are called, in the order of a model's outputs."""
    devices: DevicePopulation = DevicePopulation(DEVICE_POPULATIONS["default"], 0)
    """What its clients compute on, where they are simulated."""
    bytes_before: tuple[int, int] = (0, 0)
    """Up and down, of all clients together: what they exchanged before the first round to prepare their data."""

    @abstractmethod
    def init_params(self, seed: int) -> Params:
        """The one initial model of a run: all that may move. What is frozen is in no client's model."""

    @property
    def frozen(self) -> Params:
        """Parameters of the network that never move and never travel; they are held once, by the task."""
        return {}

    def param_names(self, *blocks: str) -> tuple[str, ...]:
        """The parameters in blocks with these roles or names."""
        return tuple(
            name for block in matching_blocks(self.blocks, blocks) for name in self.blocks[block]
        )

    @abstractmethod
    def num_examples(self, ids: Tensor) -> Tensor:
        """Training samples of each of these clients, as int64."""

    def num_rows(self, ids: Tensor, split: str) -> Tensor:
        """Samples of each of these clients in a split; as many as for training where splits are no rows."""
        return self.num_examples(ids)

    @abstractmethod
    def num_steps(
        self,
        ids: Tensor,
        epochs: Tensor,
        training: TrainingConfig,
        part: tuple[float, float] = (0.0, 1.0),
    ) -> Tensor:
        """SGD steps that so many epochs, on this share of the rows, mean for each of these clients."""

    @abstractmethod
    def fit(
        self, ids: Tensor, request: LocalTrainRequest, source: State, rng: RngContext
    ) -> tuple[Params, Params, State]:
        """Train one client; gives parameters, anchor (empty without one) and the source's state."""

    @abstractmethod
    def fit_stack(
        self, ids: Tensor, request: LocalTrainRequest, source: State, rng: RngContext
    ) -> tuple[Params, Params, State]:
        """Train a stack of clients; must mean the same as :meth:`fit` for each."""

    @abstractmethod
    def evaluate(self, ids: Tensor, params: Params, split: str) -> Params:
        """Scores of one client's model on its own split."""

    @abstractmethod
    def evaluate_stack(self, ids: Tensor, params: Params, split: str) -> Params:
        """Scores ``[K]`` of a stack of models, each on its own client's split."""

    def grad_sq_norm(self, ids: Tensor, params: Params, rng: RngContext) -> Tensor:
        """Squared norm of the gradient of one client's model, on the round's first batch; not every task has one."""
        raise NotImplementedError

    def grad_sq_norm_stack(self, ids: Tensor, params: Params, rng: RngContext) -> Tensor:
        """The same ``[K]`` of a stack of clients."""
        raise NotImplementedError

    def evaluate_heads(self, ids: Tensor, params: Params, heads: Params, split: str) -> Params:
        """Scores ``[H]`` of one client's model with each of these heads; a task may compute the rest of it once."""
        count = len(next(iter(heads.values())))
        models = [params | {name: w[k] for name, w in heads.items()} for k in range(count)]
        scores = [self.evaluate(ids, model, split) for model in models]
        return {name: torch.stack([score[name] for score in scores]) for name in scores[0]}

    def evaluate_heads_stack(
        self, ids: Tensor, params: Params, heads: Params, split: str
    ) -> Params:
        """Scores ``[K, H]``: :meth:`evaluate_heads` of a stack of clients; heads are ``[K, H, ...]``."""
        count = next(iter(heads.values())).shape[1]
        models = [params | {name: w[:, k] for name, w in heads.items()} for k in range(count)]
        scores = [self.evaluate_stack(ids, model, split) for model in models]
        return {name: torch.stack([score[name] for score in scores], 1) for name in scores[0]}

    @abstractmethod
    def evaluate_server(self, stack: Params, split: str) -> Params:
        """Scores ``[K]`` of a stack of models on the server's ``public`` or ``test`` set."""

    def set_reported_sizes(self, sizes: Mapping[int, int]) -> None:  # noqa: B027 (simulations know them)
        """What connected clients say of the number of their training samples."""

    def init_data_state(self, ids: Tensor) -> State:
        """State of the clients' data sources, stacked: an environment's, a replay buffer; data sets have none."""
        return {}

    def with_network(self, start: str, adapter: str, blocks: str, seed: int) -> Task:
        """The task with its network started from a file, frozen under adapters, its blocks named: each if given."""
        raise UsageError(
            f"task '{self.name}' has no network to shape: leave start, adapter and blocks empty"
        )

    def to(self, device: torch.device) -> Task:
        """The same task, computed there."""
        raise UsageError(
            f"task '{self.name}' is computed on the processor alone: leave device at auto"
        )

    def subset(self, ids: Ints) -> Task:
        """The same task with these clients only, numbered anew."""
        raise UsageError(f"task '{self.name}' cannot hold clients out: leave holdout_clients at 0")

    def poisoned(self, how: str, liars: Ints) -> Task:
        """The same task in which these clients train on false rows."""
        raise UsageError(
            f"task '{self.name}' has no rows to falsify: choose another attack than {how}"
        )

    def adaptation_scores(
        self, method: Method, params: Params, seed: int
    ) -> Mapping[str, Mapping[str, float]] | None:
        """Scores of its newcomers by the steps that they have learned, or ``None`` where they train by epochs."""
        return None

    def has_split(self, split: str) -> bool:
        """Whether clients hold this split (``val`` may be switched off)."""
        return True

    def with_primary_metric(self, name: str) -> Task:
        """The same task, whose tables, stopping rules and agents read this score."""
        raise UsageError(
            f"metric is '{name}', but task '{self.name}' has '{self.metric}' alone: leave it out"
        )

    def with_all_metrics(self) -> Task:
        """The same task, whose evaluations give every score that it knows, also those that cost more."""
        return self

    def utility_and_loss(self, scores: Params) -> tuple[Tensor, Tensor]:
        """What decisions compare, from the scores of a model: a number in [0, 1], higher is better, and a loss."""
        return scores["acc"], scores["loss"]

    def summary(self, params: Params) -> State:
        """What the summary of a run holds beyond the named evaluations, from the final global model."""
        return {}

    def preprocessing_json(self) -> str:
        """How raw rows become a model's input, as JSON that is kept beside the models; empty if there is no such."""
        return ""

    def fingerprint(self) -> str:
        """Of the data, so that a run is never resumed on other data; empty where there are none to compare."""
        return ""

    def check_method(self, method: Method) -> None:  # noqa: B027 (most tasks serve any method)
        """Refuse a method that cannot work here, before any work starts."""

    def check(self) -> None:  # noqa: B027 (a task may have nothing to refuse)
        """Refuse bad data before any work starts."""

    def warnings(self) -> tuple[str, ...]:
        """What a run tells before it starts: sentences about what is allowed here and may surprise."""
        return ()


class SupervisedTask(Task):
    """What is known beyond a :class:`Task`: outputs, the loss of each sample, and how labels are spread."""

    supports_fork: ClassVar[bool] = True
    target_kind: str = "classification"
    """What is predicted: classes, a number (``regression``), or a risk (``survival``)."""
    module: nn.Module
    """The network, whose parameters are replaced by those of a model."""

    @abstractmethod
    def example_inputs(self, count: int) -> Tensor:
        """So many of the server's test samples, as the network takes them."""

    @abstractmethod
    def num_server_rows(self, split: str) -> int:
        """Samples of the server's ``public`` or ``test`` set."""

    @abstractmethod
    def forward(self, params: Params, x: Tensor) -> Tensor:
        """Outputs of one model, ``[B, classes]`` logits or ``[B, 1]``."""

    @abstractmethod
    def losses(self, params: Params, x: Tensor, y: Tensor, aux: State) -> Tensor:
        """The task's own :data:`~equipoise.core.Loss`."""

    @abstractmethod
    def confidence_interval(
        self, client: int, params: Params, random: Generator
    ) -> tuple[float, float]:
        """Between which bounds the metric of this client's model lies in 95 of 100 test sets like its own."""

    @abstractmethod
    def constant_baseline(self, client: int) -> Params:
        """Test scores of who predicts the same for every row, from the client's own training targets."""

    @abstractmethod
    def label_counts(self, ids: Tensor) -> Tensor:
        """Training samples of each class ``[K, classes]``, as int64; all in one where there are no classes."""


def require_supervised(method: Method, task: Task) -> SupervisedTask:
    """The task, if it has labels; else the method is refused."""
    if not isinstance(task, SupervisedTask):
        raise UsageError(
            f"{method.name} needs labelled samples, and task '{task.name}' has none: choose another method"
        )
    return task
