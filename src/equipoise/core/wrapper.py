"""A method around another: the one way in which methods are made private or robust, or are joined."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from torch import Tensor

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
    """Every hook is that of the method below, whose state lies under ``base``; subclasses replace what they decide.

    A subclass calls ``super().weigh(s, ids, up)`` for what the method below would do.
    """

    is_pass_through: ClassVar[bool] = True

    @property
    def inner(self) -> Method:
        """The method that is wrapped."""
        raise NotImplementedError

    @property
    def overridden_hooks(self) -> frozenset[str]:
        return self._overridden_hooks | self.inner.overridden_hooks

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        """Return the capabilities of the inner method."""
        return self.inner.capabilities

    @property
    def report_ranges(self) -> Mapping[str, ValueRange]:  # type: ignore[override]
        return self.inner.report_ranges

    def check(self, task: Task, training: TrainingConfig) -> None:
        self.inner.check(task, training)

    # --- client half ------------------------------------------------------------------------------------------------

    def init_client(self, task: Task, params: Params) -> State:
        return {"base": self.inner.init_client(task, params)}

    def receive(self, client: Client) -> tuple[Params, State]:
        return self._client(client, self.inner.receive)

    def configure_training(self, client: Client) -> tuple[LocalHParams, State]:
        return self._client(client, self.inner.configure_training)

    def train(self, client: Client) -> tuple[Params, State]:
        return self._client(client, self.inner.train)

    def upload(self, client: Client) -> tuple[ClientUpdate, State]:
        return self._client(client, self.inner.upload)

    def personal_model(self, client: Client) -> Params:
        return self.inner.personal_model(client.scoped("base"))

    # --- server half ------------------------------------------------------------------------------------------------

    def init_server(self, task: Task, params: Params) -> State:
        return {"base": self.inner.init_server(task, params)}

    def select_clients(self, server: Server) -> tuple[Tensor, State]:
        ids, state = self.inner.select_clients(server.scoped("base"))
        return ids, {**server.state, "base": state}

    def distribute(self, server: Server, ids: Tensor) -> tuple[ServerMessage, State]:
        down, state = self.inner.distribute(server.scoped("base"), ids)
        return down, {**server.state, "base": state}

    def aggregation_weights(
        self, server: Server, ids: Tensor, updates: ClientUpdate
    ) -> tuple[Tensor | Params, State]:
        weights, state = self.inner.aggregation_weights(server.scoped("base"), ids, updates)
        return weights, {**server.state, "base": state}

    def aggregate(
        self, server: Server, ids: Tensor, updates: ClientUpdate, weights: Tensor | Params
    ) -> tuple[Params, State]:
        if server.sum_updates is not None:
            return self.apply_sums(server, server.sum_updates(weights))
        params, state = self.inner.aggregate(server.scoped("base"), ids, updates, weights)
        return params, {**server.state, "base": state}

    def partial_sums(
        self, global_params: Params, updates: ClientUpdate, weights: Tensor | Params
    ) -> State:
        return self.inner.partial_sums(global_params, updates, weights)

    def apply_sums(self, server: Server, sums: State) -> tuple[Params, State]:
        params, state = self.inner.apply_sums(server.scoped("base"), sums)
        return params, {**server.state, "base": state}

    def learn(self, server: Server, ids: Tensor, updates: ClientUpdate) -> State:
        state = self.inner.learn(server.scoped("base"), ids, updates)
        return {**server.state, "base": state}

    def num_rounds(self, asked: int) -> int:
        return self.inner.num_rounds(asked)

    def should_stop(self, server: Server) -> str | None:
        return self.inner.should_stop(server.scoped("base"))

    # --- shared -----------------------------------------------------------------------------------------------------

    def shared_blocks(self, task: Task) -> tuple[str, ...]:
        return self.inner.shared_blocks(task)

    def shared_param_names(self, task: Task) -> tuple[str, ...]:
        return self.inner.shared_param_names(task)

    def has_global(self, task: Task) -> bool:
        return self.inner.has_global(task)

    def _client(self, client: Client, hook: Callable[[Client], tuple[T, State]]) -> tuple[T, State]:
        result, state = hook(client.scoped("base"))
        return result, {**client.state, "base": state}


@dataclass(frozen=True)
class MethodWrapper(DelegatingMethod):
    """A wrapper around a method that is there already; it goes by that method's name."""

    method: Method

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.method.name

    @property
    def inner(self) -> Method:
        return self.method
