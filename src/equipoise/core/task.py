"""Base classes of tasks: the model, the data of every client, training and evaluation.

`Task` is what methods and executors call, `TaskInfo` holds the facts about it. `ExperimentTask`
adds what an experiment does before and after the training, `SupervisedTask` what labelled examples
add.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from numpy.random import Generator
from torch import Tensor, nn

from equipoise.clock.devices import DEVICE_POPULATIONS, DevicePopulation
from equipoise.core.messages import (
    Blocks,
    LocalTrainRequest,
    RngContext,
    TrainingConfig,
    matching_blocks,
)
from equipoise.utils.errors import UsageError
from equipoise.utils.pytree import Ints, Params, State

if TYPE_CHECKING:
    from equipoise.core.method import Method


@dataclass(frozen=True)
class TaskInfo:
    """Facts about a task."""

    name: str
    """Name of the task, as on the command line."""
    num_clients: int
    """Number of clients that take part in training."""
    blocks: Blocks
    """Blocks of the model, each with the names of its parameters."""
    training: TrainingConfig
    """Default settings of local training."""
    learner_kind: str = "gradient"
    """What a method must train: `gradient` for models under SGD, or a kind of agent."""
    metric: str = "acc"
    """Primary metric, used by tables and stopping rules."""
    higher_is_better: bool = True
    """Whether a larger value of the primary metric is better."""
    target_kind: str = ""
    """`classification`, `regression`, `survival` or `next-token`; empty without labels."""
    client_names: tuple[str, ...] = ()
    """Names of the clients by number. Empty if clients only have numbers."""
    class_names: tuple[str, ...] = ()
    """Names of the classes, in the order of the model's outputs."""
    batch_stat_names: tuple[str, ...] = ()
    """Parameters updated by batch statistics instead of gradients, such as running means."""
    has_train_mode: bool = False
    """Whether the network behaves differently in training: batch normalisation, dropout."""
    supports_fork: bool = False
    """Whether worker processes may compute its clients."""
    stackable: bool = True
    """Whether many models can be computed in one batched operation."""
    executor_depends_on_model: bool = False
    """Whether the fastest executor depends on model and machine, so that it must be measured."""
    devices: DevicePopulation = field(
        default_factory=lambda: DevicePopulation(DEVICE_POPULATIONS["default"], 0)
    )
    """Simulated devices of the clients."""

    def param_names(self, *blocks: str) -> tuple[str, ...]:
        """List the parameters of some blocks.

        Args:
            *blocks: Roles (`backbone`, `head`) or names of blocks.

        Returns:
            Names of the parameters, in the order of the blocks.
        """
        return tuple(
            name for block in matching_blocks(self.blocks, blocks) for name in self.blocks[block]
        )


class Task(ABC):
    """A learning problem: a model and the data or environment of every client.

    Methods with the suffix `_stack` handle K clients at once: tensors have a leading axis
    `[K, ...]`.
    """

    info: TaskInfo
    """Facts: name, clients, blocks, metric, devices."""
    device: torch.device = torch.device("cpu")
    """Device of training and evaluation. Data rows and all other state stay in main memory."""

    @abstractmethod
    def init_params(self, seed: int) -> Params:
        """Create the initial model of a run.

        Args:
            seed: Seed of the run.

        Returns:
            All parameters that may change. Frozen parameters are not part of a client's model.
        """

    @property
    def frozen(self) -> Params:
        """Frozen parameters: never trained, never communicated, and stored once by the task."""
        return {}

    def init_data_state(self, ids: Tensor) -> State:
        """Create the initial data states of clients.

        Args:
            ids: Client numbers, `[K]`.

        Returns:
            States such as environments or replay buffers, `[K, ...]`. Empty for data sets.
        """
        return {}

    def has_split(self, split: str) -> bool:
        """Tell whether clients have a split. `val` may be disabled."""
        return True

    @abstractmethod
    def num_examples(self, ids: Tensor) -> Tensor:
        """Count the training examples of clients.

        Args:
            ids: Client numbers, `[K]`.

        Returns:
            Counts `[K]`, int64.
        """

    def num_rows(self, ids: Tensor, split: str) -> Tensor:
        """Count the examples of clients in a split.

        Tasks without rows, such as environments, return `num_examples`.

        Args:
            ids: Client numbers, `[K]`.
            split: `train`, `val` or `test`.

        Returns:
            Counts `[K]`, int64.
        """
        return self.num_examples(ids)

    @abstractmethod
    def num_steps(
        self,
        ids: Tensor,
        epochs: Tensor,
        training: TrainingConfig,
        data_range: tuple[float, float] = (0.0, 1.0),
    ) -> Tensor:
        """Count the SGD steps of local training.

        Args:
            ids: Client numbers, `[K]`.
            epochs: Epochs of each client, `[K]`.
            training: Settings of local training, with the batch size.
            data_range: Part of the training rows that is used, as (start, end) fractions.

        Returns:
            Steps `[K]`, int64.
        """

    @abstractmethod
    def fit(
        self, ids: Tensor, request: LocalTrainRequest, data_state: State, rng: RngContext
    ) -> tuple[Params, Params, State]:
        """Train one client.

        Args:
            ids: Client number, a scalar tensor.
            request: Start model, epochs, learning rate and corrections.
            data_state: State of the client's data source.
            rng: Seed and round, which determine all random draws.

        Returns:
            The trained parameters, the anchor (empty without one) and the new data state.
        """

    @abstractmethod
    def fit_stack(
        self, ids: Tensor, request: LocalTrainRequest, data_state: State, rng: RngContext
    ) -> tuple[Params, Params, State]:
        """Train K clients. The result must equal `fit` of each client.

        Args:
            ids: Client numbers, `[K]`.
            request: As in `fit`, with a leading axis `[K, ...]`.
            data_state: States of the data sources, `[K, ...]`.
            rng: Seed and round, which determine all random draws.

        Returns:
            The trained parameters, the anchors (empty without) and the data states, `[K, ...]`.
        """

    @abstractmethod
    def evaluate(self, ids: Tensor, params: Params, split: str) -> Params:
        """Evaluate one client's model on its own data.

        Args:
            ids: Client number, a scalar tensor.
            params: Model of the client.
            split: `train`, `val` or `test`.

        Returns:
            Scalar tensors by the name of the metric.
        """

    @abstractmethod
    def evaluate_stack(self, ids: Tensor, params: Params, split: str) -> Params:
        """Evaluate K models, each on the data of its own client.

        Args:
            ids: Client numbers, `[K]`.
            params: Models, `[K, ...]`.
            split: `train`, `val` or `test`.

        Returns:
            Tensors `[K]` by the name of the metric.
        """

    def evaluate_heads(self, ids: Tensor, params: Params, heads: Params, split: str) -> Params:
        """Evaluate one client's model with each of several heads.

        Subclasses may compute the shared part of the model once.

        Args:
            ids: Client number, a scalar tensor.
            params: Model of the client.
            heads: Parameters of the heads, `[H, ...]`.
            split: `train`, `val` or `test`.

        Returns:
            Tensors `[H]` by the name of the metric.
        """
        count = len(next(iter(heads.values())))
        models = [params | {name: w[k] for name, w in heads.items()} for k in range(count)]
        scores = [self.evaluate(ids, model, split) for model in models]
        return {name: torch.stack([score[name] for score in scores]) for name in scores[0]}

    def evaluate_heads_stack(
        self, ids: Tensor, params: Params, heads: Params, split: str
    ) -> Params:
        """Run `evaluate_heads` for K clients.

        Args:
            ids: Client numbers, `[K]`.
            params: Models, `[K, ...]`.
            heads: Parameters of the heads, `[K, H, ...]`.
            split: `train`, `val` or `test`.

        Returns:
            Tensors `[K, H]` by the name of the metric.
        """
        count = next(iter(heads.values())).shape[1]
        models = [params | {name: w[:, k] for name, w in heads.items()} for k in range(count)]
        scores = [self.evaluate_stack(ids, model, split) for model in models]
        return {name: torch.stack([score[name] for score in scores], 1) for name in scores[0]}

    @abstractmethod
    def evaluate_server(self, stack: Params, split: str) -> Params:
        """Evaluate K models on the server's data.

        Args:
            stack: Models, `[K, ...]`.
            split: `public` or `test`.

        Returns:
            Tensors `[K]` by the name of the metric.
        """

    def with_all_metrics(self) -> Task:
        """Return the task with all its metrics evaluated, including the expensive ones."""
        return self

    def utility_and_loss(self, scores: Params) -> tuple[Tensor, Tensor]:
        """Convert the scores of a model to the values that policies compare.

        Args:
            scores: Result of an evaluation.

        Returns:
            A utility in [0, 1], higher is better, and the loss. Both have the shape of a score.
        """
        return scores["acc"], scores["loss"]

    def grad_sq_norm(self, ids: Tensor, params: Params, rng: RngContext) -> Tensor:
        """Compute the squared gradient norm of one client on the first batch of the round.

        Args:
            ids: Client number, a scalar tensor.
            params: Model at which the gradient is taken.
            rng: Seed and round, which determine the batch.

        Returns:
            A scalar tensor.

        Raises:
            NotImplementedError: If the task has no gradients.
        """
        raise NotImplementedError

    def grad_sq_norm_stack(self, ids: Tensor, params: Params, rng: RngContext) -> Tensor:
        """Compute `grad_sq_norm` of K clients.

        Args:
            ids: Client numbers, `[K]`.
            params: Models, `[K, ...]`.
            rng: Seed and round, which determine the batches.

        Returns:
            Squared norms, `[K]`.

        Raises:
            NotImplementedError: If the task has no gradients.
        """
        raise NotImplementedError


class FittedPreprocessor(Protocol):
    """How raw rows become inputs of the model, with the statistics that it needs."""

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the inputs."""

    def to_json(self) -> str:
        """Return the preprocessor as JSON."""


class Preparation(NamedTuple):
    """How the clients prepared their raw rows before round 1."""

    preprocessor: FittedPreprocessor | None = None
    """Preprocessing that made the rows from raw tables or recordings."""
    upload_bytes: int = 0
    """Bytes that all clients sent to agree on it."""
    download_bytes: int = 0
    """Bytes that all clients received."""
    notes: tuple[str, ...] = ()
    """What the user should know about the rows before training."""
    label_type: str = ""
    """Type of class labels given in Python: `text` or `float`; empty if their names show it."""

    def to_json(self) -> str:
        """Return the preprocessing as JSON for the model folder; empty without any."""
        return self.preprocessor.to_json() if self.preprocessor else ""


class ExperimentTask(Task):
    """A task with what an experiment does around the training: variants, checks, summaries."""

    heldout_clients: ExperimentTask | None = None
    """Task of the clients that are held out of training."""
    preparation: Preparation = Preparation()
    """How raw rows became inputs."""

    def with_network(self, start: str, adapter: str, blocks: str, seed: int) -> ExperimentTask:
        """Return the task with a modified network. Empty arguments change nothing.

        Args:
            start: File with the initial weights.
            adapter: Specification of low-rank adapters; the other weights are frozen.
            blocks: Specification of the blocks.
            seed: Seed of the adapters' initial weights.

        Raises:
            UsageError: If the task has no network.
        """
        raise UsageError(
            f"task '{self.info.name}' has no network to shape: leave start, adapter and "
            "blocks empty"
        )

    def to(self, device: torch.device) -> ExperimentTask:
        """Return the same task, computed on another device.

        Args:
            device: Device of training and evaluation.

        Raises:
            UsageError: If the task only runs on the CPU.
        """
        raise UsageError(
            f"task '{self.info.name}' is computed on the processor alone: leave device at auto"
        )

    def subset(self, ids: Ints) -> ExperimentTask:
        """Return the task of some of the clients, renumbered from 0.

        Args:
            ids: Client numbers, `[K]`.

        Raises:
            UsageError: If the task does not support it.
        """
        raise UsageError(
            f"task '{self.info.name}' cannot hold clients out: leave holdout_clients at 0"
        )

    def with_primary_metric(self, name: str) -> ExperimentTask:
        """Return the task with another primary metric.

        Args:
            name: Name of the metric.

        Raises:
            UsageError: If the task does not have this metric.
        """
        raise UsageError(
            f"metric is '{name}', but task '{self.info.name}' has '{self.info.metric}' alone: "
            "leave it out"
        )

    def check(self) -> None:
        """Check the data before any work starts.

        Raises:
            UsageError: If the data cannot be used.
        """

    def check_method(self, method: Method) -> None:
        """Check, before any work starts, that a method works on this task.

        Args:
            method: Method of the run.

        Raises:
            UsageError: If it does not.
        """

    def warnings(self) -> tuple[str, ...]:
        """Return sentences about surprising but valid settings, shown before the run starts."""
        return ()

    def fingerprint(self) -> str:
        """Return a fingerprint of the data, so that a run is never resumed on other data.

        Empty if there is no data to compare.
        """
        return ""

    def summary(self, params: Params) -> State:
        """Compute extra entries of the run summary from the final global model."""
        return {}


class SupervisedTask(ExperimentTask):
    """Interface of tasks with labelled examples: outputs, losses per example, label counts."""

    module: nn.Module
    """The network. Its parameters are replaced by those of a client's model."""

    @abstractmethod
    def example_inputs(self, count: int) -> Tensor:
        """Return `count` prepared test examples of the server, `[count, ...]`."""

    def claim_sizes(self, sizes: Mapping[int, int]) -> None:
        """Let clients claim other numbers of training examples, in a simulated attack.

        Args:
            sizes: Number of training examples by client number.

        Raises:
            UsageError: If the task counts no rows.
        """
        raise UsageError("this task has no sizes to lie about: choose another attack")

    @abstractmethod
    def num_server_rows(self, split: str) -> int:
        """Count the examples of the server's `public` or `test` set."""

    def probe_losses(self, stack: Params) -> Tensor:
        """Return the losses `[K]` of models on some of the server's public rows.

        Args:
            stack: Models, `[K, ...]`.
        """
        return self.evaluate_server(stack, "public")["loss"]

    @abstractmethod
    def forward(self, params: Params, x: Tensor) -> Tensor:
        """Compute the outputs of one model.

        Args:
            params: Model.
            x: Prepared inputs, `[B, ...]`.

        Returns:
            Logits `[B, C]`, or `[B, 1]` for targets without classes.
        """

    @abstractmethod
    def losses(self, params: Params, x: Tensor, y: Tensor, aux: State) -> Tensor:
        """Compute the loss of each example; the task's own `Loss`.

        Args:
            params: Model.
            x: Prepared inputs, `[B, ...]`.
            y: Targets, `[B, ...]`.
            aux: Unused by the task's own loss.

        Returns:
            Losses, `[B]`.
        """

    @abstractmethod
    def confidence_interval(
        self, client: int, params: Params, random: Generator
    ) -> tuple[float, float]:
        """Compute the 95 % bootstrap interval of the primary metric over a client's test rows.

        Args:
            client: Client number.
            params: Model of the client.
            random: Generator of the bootstrap samples.

        Returns:
            Lower and upper bound.
        """

    @abstractmethod
    def constant_baseline(self, client: int) -> Params:
        """Compute test scores of the best constant prediction from a client's training targets."""

    @abstractmethod
    def label_counts(self, ids: Tensor) -> Tensor:
        """Count the training examples of each class.

        Args:
            ids: Client numbers, `[K]`.

        Returns:
            Counts `[K, C]`, int64. Targets without classes count as one class.
        """


def require_supervised(method: Method, task: Task) -> SupervisedTask:
    """Return the task if it is supervised.

    Args:
        method: Method that needs labels, named in the error.
        task: Task of the run.

    Raises:
        UsageError: If the task has no labelled examples.
    """
    if not isinstance(task, SupervisedTask):
        raise UsageError(
            f"{method.name} needs labelled samples, and task '{task.info.name}' has none: "
            "choose another method"
        )
    return task
