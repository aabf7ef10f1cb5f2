"""Decision 0 by a policy: what the server knows of its clients, and what a round adds to it."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.core import Params, Pool, RoundFeedback, SelectionPolicy, State, Task
from equipoise.simulation.executors import RoundReplies
from equipoise.utils.errors import UsageError

LOSS_METRIC = "selection_loss"
"""The name under which clients tell their training loss, where the policy asks for it."""


class ClientSelector:
    """A policy at work. All that changes is in :meth:`state`."""

    def __init__(self, selection: SelectionPolicy, task: Task, seed: int, params: Params) -> None:
        self.selection, self.task, self.seed = selection, task, seed
        self._policy_state = selection.init()
        self._client_facts = _unknown_facts(task.num_clients if selection.is_stateful else 0)
        self._loss = self._public_loss(params)

    def choose(self, ids: Tensor, count: int, round: int) -> Tensor:
        """The clients of a round, of those who can be asked."""
        pool = self._pool(ids, count, round)
        chosen, self._policy_state = self.selection.choose(pool, self._policy_state)
        if (
            not bool(torch.isin(chosen, ids).all())
            or len(chosen.unique()) != len(chosen)
            or len(chosen) > count
        ):
            raise UsageError(
                f"{type(self.selection).__name__}.choose must give at most {count} of the pool's clients, each once: "
                f"it gave {chosen[:10].tolist()}"
            )
        return chosen.sort().values

    def observe(
        self, round: int, asked: Tensor, intake: RoundReplies, elapsed: float, params: Params
    ) -> None:
        """Learn from a round that lasted so long and made this model."""
        if not self.selection.is_stateful:
            return
        came, known, reply = intake.arrived, self._client_facts, intake.results.stack
        ids, before = torch.from_numpy(intake.ids)[came], self._loss
        self._loss = self._public_loss(params)
        progress = float(before.clamp(min=1e-12).log() - self._loss.clamp(min=1e-12).log())
        everybody = torch.arange(self.task.num_clients)
        heard = RoundFeedback(
            self._pool(everybody, len(ids), round), torch.isin(everybody, ids), elapsed, progress
        )
        self._policy_state = self.selection.observe(heard, self._policy_state)
        known["last"][asked] = round
        known["replies"][ids] += 1
        late = asked[~torch.isin(asked, ids)]
        if intake.staleness is None:  # else they are still under way
            known["seconds"][late] = torch.fmax(
                known["seconds"][late], torch.tensor(elapsed, dtype=torch.float64)
            )
        if intake.seconds is not None:
            known["seconds"][ids] = intake.seconds[came]
        if reply is not None and LOSS_METRIC in reply.update.metrics:
            known["loss"][ids] = reply.update.metrics[LOSS_METRIC][came].double()

    def state(self) -> State:
        """For a checkpoint."""
        return {"own": self._policy_state, "known": self._client_facts, "loss": self._loss}

    def load(self, state: State) -> None:
        """The inverse of :meth:`state`."""
        self._policy_state, self._client_facts, self._loss = (
            state["own"],
            state["known"],
            state["loss"],
        )

    def _pool(self, ids: Tensor, count: int, round: int) -> Pool:
        remembers = self.selection.is_stateful
        facts = (
            {name: value[ids] for name, value in self._client_facts.items()}
            if remembers
            else _unknown_facts(len(ids))
        )
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
