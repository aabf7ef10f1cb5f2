"""Split each client's rows into train, validation and test, and the server's into public and test.

The result is a :class:`~equipoise.data.federated_dataset.Federation`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from equipoise.config.schema import Options, option
from equipoise.data.federated_dataset import AnyArray, Federation, Ints, Target
from equipoise.data.partition import Partition
from equipoise.data.transforms import InputTransform
from equipoise.utils.errors import UsageError

Rows = tuple[AnyArray, AnyArray]
"""Inputs and targets."""

MIN_CLIENT_ROWS = 4  # rows that a client needs for its three splits


@dataclass(frozen=True)
class Shares(Options):
    """Shares of the splits; PAGE uses 7 : 3 for each client."""

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
    min_rows: int = option(
        10, "rows that every client gets at least, for its splits", low=MIN_CLIENT_ROWS
    )


@dataclass(frozen=True)
class SplitConfig(Shares):
    """Splits of one data set that is partitioned among clients."""

    clients: int = option(100, "number of clients", low=1)


def client_splits(sizes: Ints, config: Shares) -> dict[str, Ints]:
    """Compute the size of each split for each client, at least one row each.

    Args:
        sizes: Rows of each client ``[K]``.
        config: Shares of the splits.

    Returns:
        Rows ``[K]`` of ``train``, ``val`` (if there is a validation share) and ``test``.

    Raises:
        UsageError: If a client has too few rows for its splits.
    """
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
    if not config.val_share:
        return {"train": train, "test": test}
    return {"train": train, "val": val, "test": test}


def split_rows(partition: Partition, config: Shares) -> dict[str, Partition]:
    """Split each client's rows, in the order of the partition: train, validation, test."""
    return cut_rows(partition, client_splits(partition.sizes, config))


def cut_rows(partition: Partition, cuts: Mapping[str, Ints]) -> dict[str, Partition]:
    """Cut each client's rows, in the order of the partition, into pieces of given sizes.

    Args:
        partition: Rows of all clients.
        cuts: For each piece, the number of rows of each client ``[K]``.

    Returns:
        The partition of each piece.
    """
    start = np.cumsum(partition.sizes) - partition.sizes
    splits = {}
    for name, sizes in cuts.items():
        within = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        splits[name] = Partition(partition.rows[np.repeat(start, sizes) + within], sizes)
        start = start + sizes
    return splits


def federate(
    data: Rows,
    splits: Mapping[str, Partition],
    server: Rows,
    config: Shares,
    classes: int,
    transform: InputTransform,
    rng: np.random.Generator,
    target: Target | None = None,
) -> Federation:
    """Build the federation of partitioned rows.

    Args:
        data: Inputs and targets of all clients' rows.
        splits: Partition of each split.
        server: Inputs and targets of the server's rows.
        config: Shares of the splits.
        classes: Number of model outputs.
        transform: How stored rows become model inputs.
        rng: Source of randomness for the server's split.
        target: What is predicted; classes without names if ``None``.

    Returns:
        The federation.
    """
    x, y = data
    client_rows: dict[str, tuple[Tensor, Tensor, Ints]] = {
        name: (torch.from_numpy(x[part.rows]), _to_target(y[part.rows]), part.sizes)
        for name, part in splits.items()
    }
    server_rows = split_server(server, config, rng)
    return Federation(client_rows, server_rows, classes, transform, target)


def split_server(
    server: Rows, config: Shares, rng: np.random.Generator
) -> dict[str, tuple[Tensor, Tensor]]:
    """Split the server's rows at random into ``public`` and ``test``.

    Raises:
        UsageError: If the server has fewer than two rows.
    """
    x, y = server
    if len(y) < 2:
        raise UsageError(
            f"the server has {len(y)} rows: it needs 2 for its public and its test set"
        )
    order = rng.permutation(len(y))
    cut = min(len(y) - 1, max(1, round(config.public_share * len(y))))
    rows = {"public": np.sort(order[:cut]), "test": np.sort(order[cut:])}
    return {name: (torch.from_numpy(x[own]), _to_target(y[own])) for name, own in rows.items()}


def _to_target(y: AnyArray) -> Tensor:
    """Convert classes to int64 and measurements to float32."""
    dtype = np.float32 if np.issubdtype(y.dtype, np.floating) else np.int64
    return torch.from_numpy(y.astype(dtype))
