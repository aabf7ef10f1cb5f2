"""Hostile clients for simulations: a fixed share of the clients changes what it uploads.

- `flip` sends ten times the opposite of its update, `scaled` ten times its update;
- `noise` sends a random update of ten times the honest norm;
- `constant` sends one number everywhere, `huge` the largest number of single precision;
- `metrics` sends its honest model with the worst report that the declared ranges allow;
- `little` sends an update on which all hostile clients agree: the honest mean less 1.5 standard
  deviations per coordinate (Baruch et al., "A Little Is Enough", NeurIPS 2019, arXiv:1902.06156).

`labels` and `backdoor` change the rows of clients instead: see `equipoise.data.poisoning`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from equipoise.core import (
    ClientState,
    ClientUpdate,
    Method,
    Params,
    ServerMessage,
    Task,
    TrainingConfig,
)
from equipoise.core.report_validation import DEFAULT_RANGE
from equipoise.data.poisoning import DATA_ATTACKS
from equipoise.simulation.executors import CohortResults, Executor
from equipoise.utils import rng
from equipoise.utils.errors import UsageError, nearest

ATTACK_SCALE = 10.0
LITTLE_NUM_STDS = 1.5
MakeExecutor = Callable[[Method, Task, TrainingConfig, int, int], Executor]


def hostile_clients(seed: int, clients: int, share: float) -> Tensor:
    """Ids of the clients that lie, drawn by the seed; at least one if the share is above 0."""
    order = rng.generator(seed, rng.ATTACKERS).permutation(clients)
    return (
        torch.from_numpy(order[: max(round(share * clients), math.ceil(share))].copy())
        .sort()
        .values
    )


def with_attack(make: MakeExecutor, text: str) -> MakeExecutor:
    """Add hostile clients (`NAME:SHARE`) to an executor; data attacks leave it as it is."""
    name, share = parse_attack(text) if text else ("", 0.0)
    if name not in ATTACKS:
        return make

    def attacking(
        method: Method, task: Task, training: TrainingConfig, seed: int, rounds: int
    ) -> Executor:
        return AttackedExecutor(make(method, task, training, seed, rounds), name, share)

    return attacking


def parse_attack(text: str) -> tuple[str, float]:
    """Parse `NAME:SHARE` into the name of an attack and the share of hostile clients."""
    name, _, number = text.partition(":")
    known = (*ATTACKS, *DATA_ATTACKS)
    if name not in known:
        raise UsageError(
            f"unknown attack '{name}'{nearest(name, known)}: "
            f"attack must be one of {', '.join(known)}"
        )
    try:
        share = float(number)
    except ValueError:
        share = math.nan
    if not 0 < share < 1:
        raise UsageError(
            f"attack is '{text}': must be NAME:SHARE with a share in (0, 1), such as flip:0.1"
        )
    return name, share


class AttackedExecutor(Executor):
    """Another executor, some of whose clients lie. Their own models and scores stay honest."""

    def __init__(self, inner: Executor, attack: str, share: float) -> None:
        """Attack the replies that an executor computes.

        Args:
            inner: Executor of the clients.
            attack: Name of the attack.
            share: Share of hostile clients.
        """
        super().__init__(inner.method, inner.task, inner.training, inner.seed, inner.rounds)
        self.inner = inner
        self.attack = attack
        self.hostile = hostile_clients(inner.seed, inner.task.info.num_clients, share)
        self.min_replies = inner.min_replies
        self.keeps_models = inner.keeps_models

    def init_state(self, ids: Tensor, initial: Params, keeps_local: bool) -> ClientState:
        """Return the initial states of the inner executor."""
        return self.inner.init_state(ids, initial, keeps_local)

    def chunks(self, clients: int) -> list[slice]:
        """Split a cohort as the inner executor does."""
        return self.inner.chunks(clients)

    def run_clients(
        self,
        round: int,
        ids: Tensor,
        message: ServerMessage,
        client_state: ClientState,
        splits: tuple[str, ...],
    ) -> CohortResults:
        """Run the clients, then change the uploads of hostile ones."""
        replies = self.inner.run_clients(round, ids, message, client_state, splits)
        if replies.stack is None:
            return replies
        lying = torch.isin(ids[replies.arrived], self.hostile)
        if not bool(lying.any()):
            return replies
        up = self._lie(replies.stack.update, message.params, lying, round)
        return replace(replies, stack=replace(replies.stack, update=up))

    def _lie(self, updates: ClientUpdate, sent: Params, lying: Tensor, round: int) -> ClientUpdate:
        if self.attack == "metrics":
            return replace(
                updates,
                metrics={
                    name: self._worst(name, value, lying) for name, value in updates.metrics.items()
                },
            )
        changed = {}
        for number, (name, value) in enumerate(updates.params.items()):
            change = value - sent[name]
            draw = torch.Generator().manual_seed(self.seed * 1_000_003 + round * 1009 + number)
            lie = ATTACKS[self.attack](change, lying, draw)
            shape = (-1, *[1] * (value.dim() - 1))
            changed[name] = torch.where(lying.view(shape), sent[name] + lie, value)
        if changed or not isinstance(updates.extra.get("sums"), Tensor):
            return replace(updates, params=changed)
        # An upload without a model is its sums: histograms of trees.
        sums = updates.extra["sums"]
        draw = torch.Generator().manual_seed(self.seed * 1_000_003 + round * 1009)
        lie = ATTACKS[self.attack](sums, lying, draw)
        lied = torch.where(lying.view(-1, *[1] * (sums.dim() - 1)), lie, sums)
        return replace(updates, extra={**updates.extra, "sums": lied})

    def _worst(self, name: str, value: Tensor, lying: Tensor) -> Tensor:
        """Replace a metric of hostile clients by the top of its declared range."""
        high = torch.tensor(
            self.method.report_ranges.get(name, DEFAULT_RANGE).high, dtype=torch.float64
        )
        shape = (-1, *[1] * (value.dim() - 1))
        return torch.where(lying.view(shape), high.expand(value.shape).to(value.dtype), value)


def _noise(change: Tensor, lying: Tensor, draw: torch.Generator) -> Tensor:
    noise = torch.randn(change.shape, generator=draw, dtype=change.dtype)
    typical = torch.linalg.vector_norm(change.flatten(1), dim=1).median() / math.sqrt(
        max(change[0].numel(), 1)
    )
    lie: Tensor = ATTACK_SCALE * typical * noise
    return lie


def _little(change: Tensor, lying: Tensor, draw: torch.Generator) -> Tensor:
    honest = change[~lying] if bool((~lying).any()) else change
    agreed: Tensor = honest.mean(0) - LITTLE_NUM_STDS * honest.std(0, correction=0)
    return agreed.expand_as(change)


UploadAttack = Callable[[Tensor, Tensor, torch.Generator], Tensor]
ATTACKS: dict[str, UploadAttack] = {
    "flip": lambda change, lying, draw: -ATTACK_SCALE * change,
    "scaled": lambda change, lying, draw: ATTACK_SCALE * change,
    "noise": _noise,
    "constant": lambda change, lying, draw: torch.ones_like(change),
    "huge": lambda change, lying, draw: torch.full_like(change, 3e38),
    "metrics": lambda change, lying, draw: change,
    "little": _little,
}
