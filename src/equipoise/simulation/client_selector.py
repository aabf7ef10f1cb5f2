"""Decision 0 by a selection policy, with what the server knows of each client."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.core import Params, Pool, RoundFeedback, SelectionPolicy, State, Task
from equipoise.simulation.executors import RoundReplies
from equipoise.utils.errors import UsageError

LOSS_METRIC = "selection_loss"
"""The metric in which clients report their training loss, where the policy needs it."""


class ClientSelector:
    """Run a selection policy.

    Everything that changes is in `state()`.
    """

    def __init__(self, selection: SelectionPolicy, task: Task, seed: int, params: Params) -> None:
        """Start the policy.

        Args:
            selection: The policy.
            task: The task of the run.
            seed: Seed of the run.
            params: The initial model.
        """
        self.selection = selection
        self.task = task
        self.seed = seed
        self._policy_state = selection.init()
        self._client_facts = _unknown_facts(task.info.num_clients if selection.is_stateful else 0)
        self._loss = self._public_loss(params)

    def choose(self, ids: Tensor, count: int, round: int) -> Tensor:
        """Select the clients of a round.

        Args:
            ids: The available clients.
            count: How many to select at most.
            round: Number of the round.

        Returns:
            The selected ids, ascending.

        Raises:
            UsageError: The policy selected too many clients, unavailable ones, or one twice.
        """
        pool = self._pool(ids, count, round)
        chosen, self._policy_state = self.selection.choose(pool, self._policy_state)
        if (
            not bool(torch.isin(chosen, ids).all())
            or len(chosen.unique()) != len(chosen)
            or len(chosen) > count
        ):
            raise UsageError(
                f"{type(self.selection).__name__}.choose must give at most {count} of the pool's "
                f"clients, each once: it gave {chosen[:10].tolist()}"
            )
        return chosen.sort().values

    def observe(
        self, round: int, cohort: Tensor, replies: RoundReplies, elapsed: float, params: Params
    ) -> None:
        """Let the policy learn from a round, and update what is known of the clients.

        Args:
            round: Number of the round.
            cohort: The clients that were asked.
            replies: What arrived.
            elapsed: Simulated seconds that the round took.
            params: The new model.
        """
        if not self.selection.is_stateful:
            return
        arrived = replies.arrived
        facts = self._client_facts
        ids = torch.from_numpy(replies.ids)[arrived]
        before = self._loss
        self._loss = self._public_loss(params)
        progress = float(before.clamp(min=1e-12).log() - self._loss.clamp(min=1e-12).log())
        everybody = torch.arange(self.task.info.num_clients)
        feedback = RoundFeedback(
            self._pool(everybody, len(ids), round), torch.isin(everybody, ids), elapsed, progress
        )
        self._policy_state = self.selection.observe(feedback, self._policy_state)
        facts["last"][cohort] = round
        facts["replies"][ids] += 1
        late = cohort[~torch.isin(cohort, ids)]
        if replies.staleness is None:  # otherwise they are still in flight
            facts["seconds"][late] = torch.fmax(
                facts["seconds"][late], torch.tensor(elapsed, dtype=torch.float64)
            )
        if replies.seconds is not None:
            facts["seconds"][ids] = replies.seconds[arrived]
        reply = replies.results.stack
        if reply is not None and LOSS_METRIC in reply.update.metrics:
            facts["loss"][ids] = reply.update.metrics[LOSS_METRIC][arrived].double()

    def state(self) -> State:
        """Return the state for a checkpoint."""
        return {"own": self._policy_state, "known": self._client_facts, "loss": self._loss}

    def load(self, state: State) -> None:
        """Restore what `state` returned."""
        self._policy_state = state["own"]
        self._client_facts = state["known"]
        self._loss = state["loss"]

    def _pool(self, ids: Tensor, count: int, round: int) -> Pool:
        """Return what the policy may know of the available clients."""
        facts = _unknown_facts(len(ids))
        if self.selection.is_stateful:
            facts = {name: value[ids] for name, value in self._client_facts.items()}
        return Pool(
            ids, self.task.num_examples(ids), **facts, count=count, seed=self.seed, round=round
        )

    def _public_loss(self, params: Params) -> Tensor:
        if not self.selection.needs_server_loss:
            return torch.ones((), dtype=torch.float64)
        one = {name: value.unsqueeze(0) for name, value in params.items()}
        return self.task.evaluate_server(one, "public")["loss"][0].double()


def _unknown_facts(clients: int) -> Params:
    unknown = torch.full((clients,), torch.nan, dtype=torch.float64)
    never = torch.zeros(clients, dtype=torch.int64)
    return {"loss": unknown, "seconds": unknown.clone(), "last": never, "replies": never.clone()}
