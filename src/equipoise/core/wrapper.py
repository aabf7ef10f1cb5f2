"""Methods that delegate to another method.

They are the base of wrappers (differential privacy, robust aggregation) and of composed methods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from torch import Tensor

from equipoise.config.schema import Options
from equipoise.core.client import Client
from equipoise.core.messages import ClientUpdate, LocalHParams, ServerMessage, TrainingConfig
from equipoise.core.method import Capabilities, Method
from equipoise.core.report_validation import ValueRange
from equipoise.core.server import Server
from equipoise.core.task import Task
from equipoise.utils.pytree import Params, State

T = TypeVar("T")


@dataclass(frozen=True)
class DelegatingMethod(Method):
    """Forward every hook to the inner method. Subclasses override the hooks they change.

    The inner method's state is stored under the key `base` of the client and server state. A
    subclass calls `super().aggregation_weights(server, ids, updates)` for the inner decision.
    """

    is_pass_through: ClassVar[bool] = True

    @property
    def inner(self) -> Method:
        """The wrapped method."""
        raise NotImplementedError

    @property
    def overridden_hooks(self) -> frozenset[str]:
        """Hooks that this method or the inner method overrides."""
        return self._overridden_hooks | self.inner.overridden_hooks

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        """Return the capabilities of the inner method."""
        return self.inner.capabilities

    @property
    def report_ranges(self) -> Mapping[str, ValueRange]:  # type: ignore[override]
        """The ranges of the inner method."""
        return self.inner.report_ranges

    def check(self, task: Task, training: TrainingConfig) -> None:
        """Check the inner method."""
        self.inner.check(task, training)

    # --- client hooks ---------------------------------------------------------------------------

    def init_client(self, task: Task, params: Params) -> State:
        """Return the inner method's initial client state under `base`."""
        return {"base": self.inner.init_client(task, params)}

    def receive(self, client: Client) -> tuple[Params, State]:
        """Delegate to the inner method."""
        return self._delegate(client, self.inner.receive)

    def configure_training(self, client: Client) -> tuple[LocalHParams, State]:
        """Delegate to the inner method."""
        return self._delegate(client, self.inner.configure_training)

    def allowed_hparams(
        self, task: Task, proposed: LocalHParams, round: int, num_rounds: int, server_chose: bool
    ) -> tuple[LocalHParams, LocalHParams]:
        """Delegate to the inner method."""
        return self.inner.allowed_hparams(task, proposed, round, num_rounds, server_chose)

    def train(self, client: Client) -> tuple[Params, State]:
        """Delegate to the inner method."""
        return self._delegate(client, self.inner.train)

    def upload(self, client: Client) -> tuple[ClientUpdate, State]:
        """Delegate to the inner method."""
        return self._delegate(client, self.inner.upload)

    def personal_model(self, client: Client) -> Params:
        """Return the personal model of the inner method."""
        return self.inner.personal_model(client.scoped("base"))

    # --- server hooks ---------------------------------------------------------------------------

    def init_server(self, task: Task, params: Params) -> State:
        """Return the inner method's initial server state under `base`."""
        return {"base": self.inner.init_server(task, params)}

    def select_clients(self, server: Server) -> tuple[Tensor, State]:
        """Delegate to the inner method."""
        ids, state = self.inner.select_clients(server.scoped("base"))
        return ids, {**server.state, "base": state}

    def distribute(self, server: Server, ids: Tensor) -> tuple[ServerMessage, State]:
        """Delegate to the inner method."""
        message, state = self.inner.distribute(server.scoped("base"), ids)
        return message, {**server.state, "base": state}

    def aggregation_weights(
        self, server: Server, ids: Tensor, updates: ClientUpdate
    ) -> tuple[Tensor | Params, State]:
        """Delegate to the inner method."""
        weights, state = self.inner.aggregation_weights(server.scoped("base"), ids, updates)
        return weights, {**server.state, "base": state}

    def memory_limits(self, server: Server, ids: Tensor, moves: Tensor) -> tuple[Tensor, State]:
        """Delegate to the inner method."""
        factors, state = self.inner.memory_limits(server.scoped("base"), ids, moves)
        return factors, {**server.state, "base": state}

    def aggregate(
        self, server: Server, ids: Tensor, updates: ClientUpdate, weights: Tensor | Params
    ) -> tuple[Params, State]:
        """Aggregate with the inner method, or from partial sums if the server provides them."""
        if server.sum_updates is not None:
            return self.apply_sums(server, server.sum_updates(weights))
        params, state = self.inner.aggregate(server.scoped("base"), ids, updates, weights)
        return params, {**server.state, "base": state}

    def partial_sums(
        self, global_params: Params, updates: ClientUpdate, weights: Tensor | Params
    ) -> State:
        """Delegate to the inner method."""
        return self.inner.partial_sums(global_params, updates, weights)

    def apply_sums(self, server: Server, sums: State) -> tuple[Params, State]:
        """Delegate to the inner method."""
        params, state = self.inner.apply_sums(server.scoped("base"), sums)
        return params, {**server.state, "base": state}

    def learn(self, server: Server, ids: Tensor, updates: ClientUpdate) -> State:
        """Delegate to the inner method."""
        state = self.inner.learn(server.scoped("base"), ids, updates)
        return {**server.state, "base": state}

    def ends_after(self, server: Server) -> bool:
        """Forward to the inner method."""
        return self.inner.ends_after(server.scoped("base"))

    def check_updates(
        self, message: ServerMessage, ids: Tensor, updates: ClientUpdate, memory: dict[str, Any]
    ) -> Mapping[int, str]:
        """Forward to the inner method."""
        return self.inner.check_updates(message, ids, updates, memory)

    def num_rounds(self, requested: int, task: Options) -> int:
        """Return the number of rounds that the inner method plans."""
        return self.inner.num_rounds(requested, task)

    def should_stop(self, server: Server) -> str | None:
        """Delegate to the inner method."""
        return self.inner.should_stop(server.scoped("base"))

    # --- shared parameters ----------------------------------------------------------------------

    def shared_blocks(self, task: Task) -> tuple[str, ...]:
        """Return the shared blocks of the inner method."""
        return self.inner.shared_blocks(task)

    def shared_param_names(self, task: Task) -> tuple[str, ...]:
        """Return the shared parameters of the inner method."""
        return self.inner.shared_param_names(task)

    def has_global(self, task: Task) -> bool:
        """Tell whether the inner method has a global model."""
        return self.inner.has_global(task)

    def _delegate(
        self, client: Client, hook: Callable[[Client], tuple[T, State]]
    ) -> tuple[T, State]:
        """Call a client hook of the inner method and store its state under `base`."""
        result, state = hook(client.scoped("base"))
        return result, {**client.state, "base": state}


@dataclass(frozen=True)
class MethodWrapper(DelegatingMethod):
    """Wrap an existing method and keep its name."""

    method: Method
    """The wrapped method."""

    @property
    def name(self) -> str:  # type: ignore[override]
        """Name of the wrapped method."""
        return self.method.name

    @property
    def inner(self) -> Method:
        """The wrapped method."""
        return self.method
