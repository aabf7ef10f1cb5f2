"""The user's own rows: clients that exist already, and a server that may have none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.core.errors import UsageError
from equipoise.core.options import option
from equipoise.data.federation import Federation, Ints
from equipoise.data.forms import Form, Pixels, Tokens
from equipoise.data.partition import Parts, natural
from equipoise.data.split import Shares, federate, split_rows


@dataclass(frozen=True)
class OwnShares(Shares):
    """Shares of the splits where clients are given."""

    server_share: float = option(
        0.1, "share of each client's rows for the server's sets, if the server has none", above=0, below=1
    )


@dataclass(frozen=True)
class OwnRows:
    """All rows, whose they are (clients numbered from 0), and the server's own if it has any."""

    x: NDArray[Any]
    y: Ints
    owner: Ints
    server: tuple[NDArray[Any], Ints] | None
    classes: int
    names: Sequence[str] = ()
    """What the clients are called, if they have names."""
    class_names: Sequence[Any] = ()
    """What the classes are called, if they have names."""

    def federate(
        self, config: OwnShares, form: Form, rng: np.random.Generator, standardise: bool = False
    ) -> Federation:
        """``standardise``: every feature to mean 0 and deviation 1 over all clients' training rows."""
        sizes = np.bincount(self.owner)
        if (sizes < config.min_rows).any():
            client = int(np.argmin(sizes))
            called = f" ('{self.names[client]}')" if self.names else ""
            raise UsageError(f"client {client}{called} has {sizes[client]} rows: min_rows asks for {config.min_rows}")
        parts, lent = self._dealt(config, rng)
        x, server = self.x, self.server
        if standardise:
            mean, scale = self._standards(parts, config)
            x = (x - mean) / scale
            server = None if server is None else ((server[0] - mean) / scale, server[1])
        served = (x[lent], self.y[lent]) if server is None else server
        return federate((x, self.y), parts, served, config, self.classes, form, rng)

    def standards(self, config: OwnShares, rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
        """Mean and scale by which :meth:`federate` standardises, for rows that come later."""
        return self._standards(self._dealt(config, rng)[0], config)

    def _dealt(self, config: OwnShares, rng: np.random.Generator) -> tuple[Parts, Ints]:
        """Every client's rows in random order, and the rows that are taken out of them for the server."""
        mixed = rng.permutation(len(self.owner))
        parts = Parts(mixed[natural(self.owner[mixed]).rows], np.bincount(self.owner))
        return _lend(parts, config.server_share) if self.server is None else (parts, np.zeros(0, np.int64))

    def _standards(self, parts: Parts, config: OwnShares) -> tuple[NDArray[Any], NDArray[Any]]:
        train = self.x[split_rows(parts, config)["train"].rows]
        mean, std = train.mean(0), train.std(0)
        return mean, np.where(std > 0, std, 1.0).astype(self.x.dtype)


def _lend(parts: Parts, share: float) -> tuple[Parts, Ints]:
    """The first rows of every client (they are in random order), taken out for the server."""
    lent = np.maximum(1, np.rint(share * parts.sizes).astype(np.int64))
    first = np.cumsum(parts.sizes) - parts.sizes
    place = np.arange(len(parts.rows)) - np.repeat(first, parts.sizes)
    out = place < np.repeat(lent, parts.sizes)
    return Parts(parts.rows[~out], parts.sizes - lent), parts.rows[out]


def form_of(x: NDArray[Any]) -> Form:
    """Bytes of three dimensions are images ``[H, W, C]``, other whole numbers are tokens, the rest are numbers."""
    if x.dtype == np.uint8 and x.ndim == 4:
        return Pixels((0.0,) * x.shape[3], (1.0,) * x.shape[3])
    return Tokens() if np.issubdtype(x.dtype, np.integer) else Form()
