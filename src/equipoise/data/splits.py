"""From parts to a federation: train, validation and test rows of every client, public and test rows of the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.config.schema import Options, option
from equipoise.data.federated_dataset import Federation, Ints, Target
from equipoise.data.partition import Partition
from equipoise.data.transforms import InputTransform
from equipoise.utils.errors import UsageError

Rows = tuple[NDArray[Any], NDArray[Any]]
FEWEST = 4  # rows that a client needs for its three splits


@dataclass(frozen=True)
class Shares(Options):
    """Shares of the splits; PAGE's are 7 : 3 for each client."""

    test_share: float = option(0.3, "share of a client's rows kept for its test", above=0, below=1)
    val_share: float = option(
        0.1, "share of a client's training rows kept for validation; 0 for none", low=0, below=1
    )
    public_share: float = option(
        0.1,
        "share of the server's rows that is its public set; the rest is its test set",
        above=0,
        below=1,
    )
    min_rows: int = option(10, "rows that every client gets at least, for its splits", low=FEWEST)


@dataclass(frozen=True)
class SplitConfig(Shares):
    """Shares of the splits of a set that is dealt out to clients."""

    clients: int = option(100, "number of clients", low=1)


def client_splits(sizes: Ints, config: Shares) -> dict[str, Ints]:
    """How many of its rows each client trains, validates and tests on: at least one each."""
    test = np.maximum(1, np.rint(config.test_share * sizes).astype(np.int64))
    val = np.zeros_like(sizes)
    if config.val_share:
        val = np.maximum(1, np.rint(config.val_share * (sizes - test)).astype(np.int64))
    train = sizes - test - val
    if (train < 1).any():
        client = int(np.argmin(train))
        raise UsageError(
            f"client {client} has {sizes[client]} rows: too few for its splits, raise min_rows"
        )
    return {"train": train, **({"val": val} if config.val_share else {}), "test": test}


def split_rows(parts: Partition, config: Shares) -> dict[str, Partition]:
    """Each client's rows cut in the order of ``parts``: train, then validation, then test."""
    return cut_rows(parts, client_splits(parts.sizes, config))


def cut_rows(parts: Partition, cuts: Mapping[str, Ints]) -> dict[str, Partition]:
    """Each client's rows cut in the order of ``parts``, into pieces of these sizes."""
    start = np.cumsum(parts.sizes) - parts.sizes
    splits = {}
    for name, sizes in cuts.items():
        within = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        splits[name] = Partition(parts.rows[np.repeat(start, sizes) + within], sizes)
        start = start + sizes
    return splits


def federate(
    data: Rows,
    splits: Mapping[str, Partition],
    server: Rows,
    config: Shares,
    classes: int,
    form: InputTransform,
    rng: np.random.Generator,
    target: Target | None = None,
) -> Federation:
    """The rows ``data``, dealt out as ``splits``, and the server's rows; without ``target``, ``y`` are classes."""
    x, y = data
    held: dict[str, tuple[Tensor, Tensor, Ints]] = {
        name: (torch.from_numpy(x[part.rows]), _targets(y[part.rows]), part.sizes)
        for name, part in splits.items()
    }
    return Federation(held, split_server(server, config, rng), classes, form, target)


def split_server(
    server: Rows, config: Shares, rng: np.random.Generator
) -> dict[str, tuple[Tensor, Tensor]]:
    x, y = server
    if len(y) < 2:
        raise UsageError(
            f"the server has {len(y)} rows: it needs 2 for its public and its test set"
        )
    order = rng.permutation(len(y))
    cut = min(len(y) - 1, max(1, round(config.public_share * len(y))))
    chosen = {"public": np.sort(order[:cut]), "test": np.sort(order[cut:])}
    return {name: (torch.from_numpy(x[rows]), _targets(y[rows])) for name, rows in chosen.items()}


def _targets(y: NDArray[Any]) -> Tensor:
    """Classes as int64, measurements as float32."""
    return torch.from_numpy(
        y.astype(np.float32 if np.issubdtype(y.dtype, np.floating) else np.int64)
    )
