"""Secure aggregation: the server sees only sums of the clients' uploads.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017.
A client computes its own term of the inner method's sums in fixed point, as integers modulo 2^64,
so that the terms add up exactly and in any order. In a deployment every term is masked before it
leaves, and the masks cancel in the sum (`equipoise.flower.secagg_protocol`). In a simulation masks
would change no bit and are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.core import (
    Capabilities,
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
from equipoise.wrappers.differential_privacy import (
    DifferentialPrivacy,
    dry_run_upload,
    is_noisy,
)

FRACTION_BITS = 32
"""Bits behind the binary point of the fixed-point numbers."""
MAX_ABS_VALUE = 2.0**20
"""Bound of a client's numbers: MAX_CLIENTS of them in fixed point stay below 2^63."""
MAX_CLIENTS = 2**10
OVERFLOW = 2**62
"""Stands for a number above the bound or NaN; a client that sends it is rejected."""
MIN_CLIENTS = 3
"""Of two clients each would know the other's upload from the sum."""
WORDS = "words"
UPDATE = "update"
WEIGHT = "secure_weight"


def with_secure_aggregation(method: Method, secure: bool, keeps_update: bool = False) -> Method:
    """Wrap a method so that its server sees exact sums only.

    Args:
        method: Any method.
        secure: Whether secure aggregation is asked for.
        keeps_update: Whether a client's result has its update before weighting too.

    Returns:
        The wrapped method, or `method` itself.
    """
    return SecureAggregation(method, keeps_update) if secure else method


@dataclass(frozen=True)
class SecureAggregation(MethodWrapper):
    """Add up the inner method's `partial_sums` as integers, then call its `apply_sums`.

    Attributes:
        keeps_update: Whether a client's result also has its term of the sums before weighting,
            under `UPDATE`, for a record that the client keeps. It must not be uploaded.
    """

    keeps_update: bool = False
    report_ranges: ClassVar[Mapping[str, ValueRange]] = {
        WORDS: ValueRange(-MAX_ABS_VALUE * 2.0**FRACTION_BITS, MAX_ABS_VALUE * 2.0**FRACTION_BITS)
    }

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        """Return those of the inner method; the server sees sums alone."""
        return replace(self.inner.capabilities, aggregates_by_sum=True)

    def check(self, task: Task, training: TrainingConfig) -> None:
        """Refuse methods whose server needs more than sums."""
        super().check(task, training)
        reason = self._unsupported_reason(task, training)
        if reason:
            raise UsageError(
                f"{self.name} is not offered with --secure: {reason}; choose another method"
            )

    def _unsupported_reason(self, task: Task, training: TrainingConfig) -> str:
        """Return why the inner method cannot work on sums, or an empty text."""
        method = self.inner
        if isinstance(method, DifferentialPrivacy):
            method = method.inner
        if not self.shared_param_names(task):
            return "its clients upload no model"
        if not method.capabilities.aggregates_by_sum:
            return "its server must see the upload of every client, and would see their sum only"
        if not method.capabilities.sends_every_block:
            return "a client that was not sent a block has no reference for its term of the sum"
        update, _ = dry_run_upload(self.inner, task, training)
        if update.metrics:
            metric = next(iter(update.metrics))
            return (
                f"beside its model a client reports '{metric}', which the server must read from "
                "each client"
            )
        return ""

    # --- client -----------------------------------------------------------------------------

    def upload(self, client: Client) -> tuple[ClientUpdate, State]:
        """Send this client's term of the sums, in fixed point."""
        update, state = super().upload(client)
        sent = client.message.params
        weight = client.message.per_client[WEIGHT]
        cohort_of_one = pytree.map_leaves(lambda value: value.unsqueeze(0), update)
        sums = _flatten(self.inner.partial_sums(sent, cohort_of_one, torch.ones(1)))
        is_weighted = self._weighted_sums(sent, update)
        weighted = {}
        plain = {}
        for name, value in sums.items():
            if is_weighted[name]:
                weighted[name] = encode(value.double() * weight)
            else:
                plain[name] = encode(value.double())
        words = {"weighted": weighted, "plain": plain, "weight": encode(weight)}
        extra: State = {WORDS: words}
        if self.keeps_update:
            extra[UPDATE] = sums
        return ClientUpdate({}, extra), state

    def _weighted_sums(self, sent: Params, update: ClientUpdate) -> dict[str, bool]:
        """Return which sums are weighted: those that vanish under a weight of 0."""
        ones = pytree.map_leaves(
            lambda value: torch.ones(1, *value.shape, dtype=value.dtype), update
        )
        zeros = {name: torch.zeros(value.shape, dtype=value.dtype) for name, value in sent.items()}
        sums = _flatten(self.inner.partial_sums(zeros, ones, torch.zeros(1)))
        return {name: not bool(value.any()) for name, value in sums.items()}

    # --- server -----------------------------------------------------------------------------

    def distribute(self, server: Server, ids: Tensor) -> tuple[ServerMessage, State]:
        """Send each client its aggregation weight, scaled to a mean of 1 over the cohort."""
        if not MIN_CLIENTS <= len(ids) <= MAX_CLIENTS:
            raise UsageError(
                f"secure is for {MIN_CLIENTS} to {MAX_CLIENTS} clients per round, here are "
                f"{len(ids)}"
            )
        message, state = super().distribute(server, ids)
        weights = torch.ones(len(ids), dtype=torch.float64)
        if not is_noisy(self.inner):  # Under noise all clients count equally.
            inner_weights, _ = self.inner.aggregation_weights(
                server.scoped("base"), ids, ClientUpdate({})
            )
            if not isinstance(inner_weights, Tensor):
                raise UsageError(
                    f"{self.name} is not offered with --secure: it weighs parameters one by one"
                )
            weights = inner_weights.double() * len(ids)
        return replace(message, per_client={**message.per_client, WEIGHT: weights}), state

    def partial_sums(
        self, global_params: Params, updates: ClientUpdate, weights: Tensor | Params
    ) -> State:
        """Add the integers of these clients."""
        words: State = pytree.map_leaves(lambda value: value.sum(0), updates.extra[WORDS])
        return words

    def apply_sums(self, server: Server, sums: State) -> tuple[Params, State]:
        """Decode the sums and divide the weighted ones by the weights of those that replied."""
        total_weight = decode(sums["weight"])
        dtype = next(iter(server.params.values())).dtype
        decoded = {name: decode(value).to(dtype) for name, value in sums["plain"].items()}
        for name, value in sums["weighted"].items():
            decoded[name] = (decode(value) / total_weight).to(dtype)
        return super().apply_sums(server, _unflatten(decoded))


def encode(value: Tensor) -> Tensor:
    """Convert to fixed point: the nearest multiple of 2^-32, as int64; OVERFLOW if out of range."""
    value = value.double()
    fits = value.abs() <= MAX_ABS_VALUE  # False for NaN.
    words = (value.where(fits, 0.0) * 2.0**FRACTION_BITS).round().to(torch.int64)
    return torch.where(fits, words, OVERFLOW)


def decode(words: Tensor) -> Tensor:
    """Convert fixed-point numbers back to floats."""
    return words.double() / 2.0**FRACTION_BITS


def _flatten(tree: State, prefix: str = "") -> Params:
    """Return the tensors of a tree by their paths, such as `mean/weight`."""
    flat: Params = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{name}/")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _unflatten(flat: Params) -> State:
    """Invert `_flatten`."""
    tree: State = {}
    for path, value in flat.items():
        *parents, name = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = value
    return tree
