"""Any method that needs only sums of its uploads, with sums that are all the server ever sees.

A client works out its own part of the method's sums, in whole numbers modulo 2^64 (fixed point), so that the parts add
up exactly, in any order. In a deployment every part is masked before it leaves, and the masks cancel in the sum
(:mod:`equipoise.flower.secagg_protocol`); in a simulation nobody looks, and masks would change no bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.core import (
    Client,
    ClientUpdate,
    Method,
    MethodWrapper,
    Params,
    Server,
    ServerMessage,
    State,
    Task,
    TrainingConfig,
    ValueRange,
)
from equipoise.utils import pytree
from equipoise.utils.errors import UsageError
from equipoise.wrappers.differential_privacy import DifferentialPrivacy, dry_run_upload, is_noisy

POINT = 32  # bits behind the point of a whole number modulo 2^64
MAX_ABS_VALUE = (
    2.0**20
)  # of any number of a client's part, so that as many clients as may be cannot reach 2^63 together
MOST_CLIENTS = 2**10
NO_PLACE = 2**62  # stands for what is larger, or no number: nobody who sends it is in the sum
FEWEST = 3  # clients of a round: of two, each would know the other's
WORDS = "words"
WEIGHT = "secure_weight"


def with_secure_aggregation(method: Method, secure: bool) -> Method:
    """The method with exact sums as all that its server sees; itself if that is not asked for."""
    return SecureAggregation(method) if secure else method


@dataclass(frozen=True)
class SecureAggregation(MethodWrapper):
    """``sums`` of the method below, added up as whole numbers that clients make; then its ``step``."""

    aggregates_by_sum: ClassVar[bool] = True
    report_ranges: ClassVar[Mapping[str, ValueRange]] = {
        WORDS: ValueRange(-MAX_ABS_VALUE * 2.0**POINT, MAX_ABS_VALUE * 2.0**POINT)
    }

    def check(self, task: Task, training: TrainingConfig) -> None:
        super().check(task, training)
        below = self.inner.inner if isinstance(self.inner, DifferentialPrivacy) else self.inner
        reason = ""
        if not self.shared_param_names(task):
            reason = "its clients upload no model"
        elif not below.aggregates_by_sum:
            reason = "its server must see the upload of every client, and would see their sum alone"
        else:
            up, _ = dry_run_upload(self.inner, task, training)
            if up.metrics:
                told = next(iter(up.metrics))
                reason = f"beside its model a client reports '{told}', which the server must read of each by itself"
        if reason:
            raise UsageError(
                f"{self.name} is not offered with --secure: {reason}; choose another method"
            )

    def distribute(self, server: Server, ids: Tensor) -> tuple[ServerMessage, State]:
        """Each client is told its weight: one is the mean of those that are asked."""
        if not FEWEST <= len(ids) <= MOST_CLIENTS:
            raise UsageError(
                f"secure is for {FEWEST} to {MOST_CLIENTS} clients per round, here are {len(ids)}"
            )
        down, state = super().distribute(server, ids)
        weights = torch.ones(len(ids), dtype=torch.float64)
        if not is_noisy(self.inner):  # under noise all count alike
            found, _ = self.inner.aggregation_weights(server.scoped("base"), ids, ClientUpdate({}))
            if not isinstance(found, Tensor):
                raise UsageError(
                    f"{self.name} is not offered with --secure: it weighs parameters one by one"
                )
            weights = found.double() * len(ids)
        return replace(down, per_client={**down.per_client, WEIGHT: weights}), state

    def upload(self, client: Client) -> tuple[ClientUpdate, State]:
        up, state = super().upload(client)
        alone = pytree.map_leaves(lambda value: value.unsqueeze(0), up)
        sums, weighted = (
            _flat(self.inner.partial_sums(client.message.params, alone, torch.ones(1))),
            self._weighted(client.message.params, up),
        )
        weight = client.message.per_client[WEIGHT]
        part = {
            name: value.double() * (weight if weighted[name] else 1.0)
            for name, value in sums.items()
        }
        words = {
            "weighted": {name: encode(value) for name, value in part.items() if weighted[name]},
            "plain": {name: encode(value) for name, value in part.items() if not weighted[name]},
            "weight": encode(weight),
        }
        return ClientUpdate({}, {WORDS: words}), state

    def partial_sums(
        self, global_params: Params, updates: ClientUpdate, weights: Tensor | Params
    ) -> State:
        words: State = pytree.map_leaves(lambda value: value.sum(0), updates.extra[WORDS])
        return words

    def apply_sums(self, server: Server, sums: State) -> tuple[Params, State]:
        """What is weighed is divided by the weights of those that replied, whoever was asked."""
        total = decode(sums["weight"])
        kind = next(iter(server.params.values())).dtype
        parts = {name: decode(value).to(kind) for name, value in sums["plain"].items()}
        parts |= {
            name: (decode(value) / total).to(kind) for name, value in sums["weighted"].items()
        }
        return super().apply_sums(server, _deep(parts))

    def _weighted(self, sent: Params, updates: ClientUpdate) -> dict[str, bool]:
        """Which sums are weighed: those that vanish under a weight of 0, whatever clients upload."""
        ones = pytree.map_leaves(
            lambda value: torch.ones(1, *value.shape, dtype=value.dtype), updates
        )
        zeros = {name: torch.zeros(value.shape, dtype=value.dtype) for name, value in sent.items()}
        under_none = _flat(self.inner.partial_sums(zeros, ones, torch.zeros(1)))
        return {name: not bool(value.any()) for name, value in under_none.items()}


def encode(value: Tensor) -> Tensor:
    """Fixed point: the nearest multiple of 2^-32."""
    fits = value.double().abs() <= MAX_ABS_VALUE  # no NaN does
    return torch.where(
        fits, (value.double().where(fits, 0.0) * 2.0**POINT).round().to(torch.int64), NO_PLACE
    )


def decode(words: Tensor) -> Tensor:
    return words.double() / 2.0**POINT


def _flat(tree: State, above: str = "") -> Params:
    found: Params = {}
    for name, value in tree.items():
        found |= (
            _flat(value, f"{above}{name}/")
            if isinstance(value, dict)
            else {f"{above}{name}": value}
        )
    return found


def _deep(flat: Params) -> State:
    tree: State = {}
    for name, value in flat.items():
        *above, last = name.split("/")
        inner = tree
        for part in above:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return tree
