"""Split each client's rows into train, validation and test, and the server's into public and test.

The result is a :class:`~equipoise.data.federated_dataset.Federation`. Rows of the user come last:
there the clients exist already, and the server may have no rows of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.config.schema import Options, option
from equipoise.data.federated_dataset import (
    SPLITS,
    AnyArray,
    Federation,
    InputTransform,
    Ints,
    Target,
)
from equipoise.data.partition import Partition, natural
from equipoise.data.transforms import PixelTransform, TokenTransform
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
        Rows ``[K]`` of ``train``, and of ``val`` and ``test`` if their shares are not 0.

    Raises:
        UsageError: If a client has too few rows for its splits.
    """
    test = np.zeros_like(sizes)
    if config.test_share:
        test = np.maximum(1, np.rint(config.test_share * sizes).astype(np.int64))
    return _sizes_beside_test(sizes, test, config)


def _sizes_beside_test(sizes: Ints, test: Ints, config: Shares) -> dict[str, Ints]:
    """Divide the rows that are not tested into training and validation rows ``[K]`` each."""
    val = np.zeros_like(sizes)
    if config.val_share:
        val = np.maximum(1, np.rint(config.val_share * (sizes - test)).astype(np.int64))
    train = sizes - test - val
    if (train < 1).any():
        client = int(np.argmin(train))
        raise UsageError(
            f"client {client} has {sizes[client]} rows: too few for its splits, raise min_rows"
        )
    by_split = {"train": train, "val": val, "test": test}
    return {name: count for name, count in by_split.items() if name == "train" or count.any()}


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
    server: Rows | None,
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
        server: Inputs and targets of the server's rows. None if it has none: the global model is
            then scored on the rows of all clients together.
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
    if server is None:
        train = client_rows["train"][:2]
        server_rows = {
            "public": client_rows["val"][:2] if "val" in client_rows else train,
            "test": client_rows["test"][:2] if "test" in client_rows else train,
        }
    else:
        server_rows = split_server(server, config, rng)
    return Federation(client_rows, server_rows, classes, transform, target)


def split_server(
    server: Rows, config: Shares, rng: np.random.Generator
) -> dict[str, tuple[Tensor, Tensor]]:
    """Split the server's rows at random into ``public`` and ``test``.

    Args:
        server: Inputs and targets of the server's rows.
        config: The share of the public rows.
        rng: Random generator of the split.

    Returns:
        Inputs and targets by the name of the set.

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


# ------------------------------------------------------------------ rows of the user


@dataclass(frozen=True)
class UserRowShares(Shares):
    """Shares of the splits where the clients exist already."""

    test_share: float = option(
        0.3,
        "share of a client's rows kept for its test; 0 trains on all rows and scores nothing",
        low=0,
        below=1,
    )
    folds: int = option(
        0,
        "cross-validation: cut each client's rows into so many parts, one of which is its test; "
        "'compare' runs all of them; 0 for a random test share",
        low=0,
    )
    fold: int = option(0, "which of the folds is the test, from 0 on", low=0)
    server_rows: str = option(
        "auto",
        "whether the server takes rows of the clients, if it has none; auto: if a method needs "
        "them; without them the global model is scored on the clients' own rows",
        choices=("auto", "always", "never"),
    )
    server_share: float = option(
        0.1, "share of each client's rows that the server takes, if it takes any", above=0, below=1
    )

    def __post_init__(self) -> None:
        """Refuse folds that do not exist.

        Raises:
            UsageError: If there are too few folds, or the number of the fold is too large.
        """
        super().__post_init__()
        if self.folds == 1 or (self.folds and self.fold >= self.folds):
            raise UsageError(
                f"fold is {self.fold} of {self.folds} folds: give at least 2 folds, numbered from 0"
            )


@dataclass(frozen=True)
class RowAssignment:
    """Which rows are used for what.

    Attributes:
        splits: The rows of each split, by client.
        server_holdout: Rows of clients that become the server's public and test set.
    """

    splits: Mapping[str, Partition]
    server_holdout: Ints


@dataclass(frozen=True)
class UserRows:
    """All rows and their owners.

    Attributes:
        x: Inputs `[n, ...]`.
        y: Targets `[n, ...]`.
        owner: The client of each row `[n]`, numbered from 0.
        server: Inputs and targets of the server, if it has rows of its own.
        num_outputs: The number of classes; 1 where a number is predicted.
        names: The names of the clients, if they have any.
        target: The target; classes without names if None.
    """

    x: AnyArray
    y: AnyArray
    owner: Ints
    server: tuple[AnyArray, AnyArray] | None
    num_outputs: int
    names: Sequence[str] = ()
    target: Target | None = None

    def federate(
        self, config: UserRowShares, form: InputTransform, rng: np.random.Generator
    ) -> Federation:
        """Split the rows of each client and build the federation.

        Args:
            config: Shares of validation, test and server rows.
            form: How stored rows become model inputs.
            rng: Random generator of the split.

        Returns:
            The federation.
        """
        needs_holdout = self.server is None
        assignment = assign_rows(self.owner, config, rng, needs_holdout, self.names)
        return self.build(assignment, config, form, rng)

    def build(
        self,
        assignment: RowAssignment,
        config: UserRowShares,
        form: InputTransform,
        rng: np.random.Generator,
    ) -> Federation:
        """Build the federation from rows that are assigned already.

        Args:
            assignment: The rows of each split.
            config: Shares of validation, test and server rows.
            form: How stored rows become model inputs.
            rng: Random generator of the server's split.

        Returns:
            The federation.
        """
        rows = (self.x, self.y)
        holdout = assignment.server_holdout
        server = self.server
        if server is None and len(holdout):
            server = (self.x[holdout], self.y[holdout])
        splits = assignment.splits
        data = federate(rows, splits, server, config, self.num_outputs, form, rng, self.target)
        data.names = tuple(self.names)
        data.row_ids = {name: part.rows for name, part in splits.items()}
        return data


def assign_rows(
    owner: Ints,
    config: UserRowShares,
    rng: np.random.Generator,
    needs_holdout: bool,
    names: Sequence[str] = (),
    fixed_splits: Ints | None = None,
) -> RowAssignment:
    """Assign each client's rows to its splits, and a share to the server if it has none.

    With `fixed_splits`, the server's share is taken from the training rows, and so is the
    validation split if no row is assigned to it.

    Args:
        owner: The client of each row `[n]`.
        config: Shares of the splits.
        rng: Draws the order of the rows.
        needs_holdout: Whether the server has no rows of its own.
        names: The names of the clients, for errors.
        fixed_splits: The split of each row as an index of `SPLITS` `[n]`; None to draw them.

    Returns:
        The rows of each split and of the server.

    Raises:
        UsageError: If a client has fewer than `min_rows` rows.
    """
    sizes = np.bincount(owner)
    if (sizes < config.min_rows).any():
        client = int(np.argmin(sizes))
        name = f" ('{names[client]}')" if names else ""
        raise UsageError(
            f"client {client}{name} has {sizes[client]} rows: min_rows asks for {config.min_rows}"
        )
    shuffled = rng.permutation(len(owner))
    parts = Partition(shuffled[natural(owner[shuffled]).rows], sizes)
    holdout = np.zeros(0, np.int64)
    needs_holdout = needs_holdout and config.server_rows != "never"
    if fixed_splits is not None and config.folds:
        raise UsageError("folds and a split column exclude each other: leave one out")
    if fixed_splits is None or not config.test_share:
        if needs_holdout:
            parts, holdout = _take_holdout(parts, config.server_share)
        if config.folds:
            return RowAssignment(_fold_splits(parts, config, names), holdout)
        return RowAssignment(split_rows(parts, config), holdout)
    splits = {name: _select(parts, owner, fixed_splits == i) for i, name in enumerate(SPLITS)}
    if needs_holdout:
        splits["train"], holdout = _take_holdout(splits["train"], config.server_share)
    if not splits["val"].sizes.any():
        del splits["val"]
        if config.val_share:
            num_train = splits["train"].sizes
            num_val = np.maximum(1, np.rint(config.val_share * num_train).astype(np.int64))
            splits |= cut_rows(splits["train"], {"train": num_train - num_val, "val": num_val})
    return RowAssignment({name: splits[name] for name in SPLITS if name in splits}, holdout)


def _fold_splits(
    parts: Partition, config: UserRowShares, names: Sequence[str]
) -> dict[str, Partition]:
    """Split each client's rows, one fold of which is its test.

    Over all folds, every row is in the test exactly once.
    """
    sizes = parts.sizes
    if (sizes < config.folds + 1).any():
        client = int(np.argmin(sizes))
        name = f"'{names[client]}'" if names else client
        raise UsageError(
            f"client {name} has {sizes[client]} rows: too few for {config.folds} folds"
        )
    low = sizes * config.fold // config.folds
    high = sizes * (config.fold + 1) // config.folds
    rows = []
    for k, start in enumerate(np.cumsum(sizes) - sizes):
        own = parts.rows[start : start + sizes[k]]
        rows += [own[: low[k]], own[high[k] :], own[low[k] : high[k]]]  # the test comes last
    ordered = Partition(np.concatenate(rows), sizes)
    return cut_rows(ordered, _sizes_beside_test(sizes, high - low, config))


def _select(parts: Partition, owner: Ints, is_selected: NDArray[np.bool_]) -> Partition:
    """Select rows, in the order of `parts`."""
    rows = parts.rows[is_selected[parts.rows]]
    return Partition(rows, np.bincount(owner[rows], minlength=len(parts.sizes)))


def _take_holdout(parts: Partition, share: float) -> tuple[Partition, Ints]:
    """Take a share of each client's rows, which are in random order, from their beginning."""
    num_taken = np.maximum(1, np.rint(share * parts.sizes).astype(np.int64))
    first = np.cumsum(parts.sizes) - parts.sizes
    place = np.arange(len(parts.rows)) - np.repeat(first, parts.sizes)
    is_taken = place < np.repeat(num_taken, parts.sizes)
    return Partition(parts.rows[~is_taken], parts.sizes - num_taken), parts.rows[is_taken]


def infer_form(x: AnyArray) -> InputTransform:
    """Guess the form of samples: uint8 `[H, W, C]` are images, other integers are tokens."""
    if x.dtype == np.uint8 and x.ndim == 4:
        return PixelTransform((0.0,) * x.shape[3], (1.0,) * x.shape[3])
    return TokenTransform() if np.issubdtype(x.dtype, np.integer) else InputTransform()
