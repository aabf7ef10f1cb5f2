"""The user's own rows: clients that exist already, and a server that may have none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.config.schema import option
from equipoise.data.federated_dataset import SPLITS, Federation, Ints, Target
from equipoise.data.partition import Partition, natural
from equipoise.data.splits import Shares, cut_rows, federate, split_rows
from equipoise.data.transforms import InputTransform, PixelTransform, TokenTransform
from equipoise.utils.errors import UsageError


@dataclass(frozen=True)
class OwnShares(Shares):
    """Shares of the splits where clients are given."""

    server_share: float = option(
        0.1,
        "share of each client's rows for the server's sets, if the server has none",
        above=0,
        below=1,
    )


@dataclass(frozen=True)
class Dealt:
    """Rows of every split, client by client, and those that are lent to the server."""

    splits: Mapping[str, Partition]
    lent: Ints


@dataclass(frozen=True)
class OwnRows:
    """All rows, whose they are (clients numbered from 0), and the server's own if it has any."""

    x: NDArray[Any]
    y: NDArray[Any]
    owner: Ints
    server: tuple[NDArray[Any], NDArray[Any]] | None
    classes: int
    names: Sequence[str] = ()
    """What the clients are called, if they have names."""
    target: Target | None = None

    def federate(
        self, config: OwnShares, form: InputTransform, rng: np.random.Generator
    ) -> Federation:
        return self.share(
            deal(self.owner, config, rng, self.server is None, self.names), config, form, rng
        )

    def share(
        self, dealt: Dealt, config: OwnShares, form: InputTransform, rng: np.random.Generator
    ) -> Federation:
        """The same once it is known who gets which rows."""
        served = self.server or (self.x[dealt.lent], self.y[dealt.lent])
        data = federate(
            (self.x, self.y), dealt.splits, served, config, self.classes, form, rng, self.target
        )
        data.names = tuple(self.names)
        return data


def deal(
    owner: Ints,
    config: OwnShares,
    rng: np.random.Generator,
    lends: bool,
    names: Sequence[str] = (),
    chosen: Ints | None = None,
) -> Dealt:
    """``lends``: the server has no rows of its own, and every client gives it a share.

    ``chosen``: the split of each row, as a place in :data:`SPLITS`, where that is not left to chance. Then the server's
    share is one of the training rows, and so is that of validation if no row is chosen for it.
    """
    sizes = np.bincount(owner)
    if (sizes < config.min_rows).any():
        client = int(np.argmin(sizes))
        called = f" ('{names[client]}')" if names else ""
        raise UsageError(
            f"client {client}{called} has {sizes[client]} rows: min_rows asks for {config.min_rows}"
        )
    mixed = rng.permutation(len(owner))
    parts = Partition(mixed[natural(owner[mixed]).rows], sizes)
    nobody = np.zeros(0, np.int64)
    if chosen is None:
        parts, lent = _lend(parts, config.server_share) if lends else (parts, nobody)
        return Dealt(split_rows(parts, config), lent)
    splits = {name: _only(parts, owner, chosen == place) for place, name in enumerate(SPLITS)}
    train, lent = (
        _lend(splits["train"], config.server_share) if lends else (splits["train"], nobody)
    )
    if not splits["val"].sizes.any():
        held_back = np.zeros_like(train.sizes)
        if config.val_share:
            held_back = np.maximum(1, np.rint(config.val_share * train.sizes).astype(np.int64))
        train, splits["val"] = cut_rows(
            train, {"train": train.sizes - held_back, "val": held_back}
        ).values()
    splits["train"] = train
    return Dealt(
        {name: part for name, part in splits.items() if name != "val" or part.sizes.any()}, lent
    )


def _only(parts: Partition, owner: Ints, wanted: NDArray[np.bool_]) -> Partition:
    """Those of the rows that are wanted."""
    rows = parts.rows[wanted[parts.rows]]
    return Partition(rows, np.bincount(owner[rows], minlength=len(parts.sizes)))


def _lend(parts: Partition, share: float) -> tuple[Partition, Ints]:
    """The first rows of every client (they are in random order), taken out for the server."""
    lent = np.maximum(1, np.rint(share * parts.sizes).astype(np.int64))
    first = np.cumsum(parts.sizes) - parts.sizes
    place = np.arange(len(parts.rows)) - np.repeat(first, parts.sizes)
    out = place < np.repeat(lent, parts.sizes)
    return Partition(parts.rows[~out], parts.sizes - lent), parts.rows[out]


def form_of(x: NDArray[Any]) -> InputTransform:
    """Bytes of three dimensions are images ``[H, W, C]``, other whole numbers are tokens, the rest are numbers."""
    if x.dtype == np.uint8 and x.ndim == 4:
        return PixelTransform((0.0,) * x.shape[3], (1.0,) * x.shape[3])
    return TokenTransform() if np.issubdtype(x.dtype, np.integer) else InputTransform()
