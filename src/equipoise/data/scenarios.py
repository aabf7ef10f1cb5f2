"""Scenarios: populations whose clients have different needs.

A scenario is a list of groups of clients of equal size. Groups differ in label skew, in the number
of rows, or in their view of the images (rotated, inverted, with permuted labels or pixels).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from equipoise.data.federated_dataset import AnyArray, Federation, InputTransform, Ints
from equipoise.data.partition import Partition, dirichlet, iid
from equipoise.data.splits import Rows, SplitConfig, split_rows, split_server

FEW_ROWS_SHARE = 0.2  # of training and validation rows that a client with few rows keeps

Images = AnyArray
View = Callable[[Images, Ints, int, int, np.random.Generator], tuple[Images, Ints]]
"""Maps (images ``[n, H, W, C]``, labels ``[n]``, the client's index in its group, number of
classes, randomness) to the client's own images and labels."""


def rotate_or_invert(
    x: Images, y: Ints, index: int, classes: int, rng: np.random.Generator
) -> tuple[Images, Ints]:
    """Rotate by quarter turns; clients 4 to 7 of each eight also see negatives.

    Args:
        x: Images of the client `[n, ...]`.
        y: Labels `[n]`.
        index: Number of the client.
        classes: Number of classes.
        rng: Random generator of the client.

    Returns:
        The changed images, and the labels.
    """
    x = np.rot90(x, index % 4, axes=(1, 2))
    if index // 4 % 2:
        x = 255 - x
    return x, y


def permute_labels(
    x: Images, y: Ints, index: int, classes: int, rng: np.random.Generator
) -> tuple[Images, Ints]:
    """Permute the labels, differently for each client.

    Args:
        x: Images of the client `[n, ...]`.
        y: Labels `[n]`.
        index: Number of the client.
        classes: Number of classes.
        rng: Random generator of the client.

    Returns:
        The images, and the changed labels.
    """
    return x, rng.permutation(classes)[y]


def permute_pixels(
    x: Images, y: Ints, index: int, classes: int, rng: np.random.Generator
) -> tuple[Images, Ints]:
    """Permute the pixels, differently for each client.

    Args:
        x: Images of the client `[n, ...]`.
        y: Labels `[n]`.
        index: Number of the client.
        classes: Number of classes.
        rng: Random generator of the client.

    Returns:
        The changed images, and the labels.
    """
    n, height, width, channels = x.shape
    mixed = x.reshape(n, height * width, channels)[:, rng.permutation(height * width)]
    return mixed.reshape(x.shape), y


@dataclass(frozen=True)
class Group:
    """Clients of one kind.

    Attributes:
        delta: Concentration of the Dirichlet label skew; IID if ``None``.
        few_rows: Whether clients keep only a fifth of their training and validation rows.
        view: How clients see the images; unchanged if ``None``.
    """

    delta: float | None = None
    few_rows: bool = False
    view: View | None = None


SCENARIOS: dict[str, tuple[Group, ...]] = {
    "L.1": (Group(0.1),),
    "L.3": (Group(0.3),),
    "L.5": (Group(0.5),),
    "S": (Group(0.3, few_rows=True),),
    "I": (Group(few_rows=True),),
    "F": (Group(view=rotate_or_invert),),
    "M1": (Group(0.1), Group(few_rows=True)),
    "M2": (Group(0.1), Group(view=rotate_or_invert)),
    "M3": (Group(few_rows=True), Group(view=permute_labels), Group(view=permute_pixels)),
}


def make_scenario(
    name: str,
    data: Rows,
    server: Rows,
    config: SplitConfig,
    classes: int,
    transform: InputTransform,
    rng: np.random.Generator,
) -> Federation:
    """Build the population of a scenario; every row belongs to one client.

    Args:
        name: Name of the scenario.
        data: Images and labels of all clients.
        server: Images and labels of the server.
        config: Number of clients and shares of the splits.
        classes: Number of classes.
        transform: How stored images become model inputs.
        rng: Source of randomness.

    Returns:
        The federation.
    """
    x, y = data
    groups = SCENARIOS[name]
    group_of = _group_of_each_client(name, config.clients)
    partition = _partition_by_group(groups, group_of, y, config, rng)
    index_in_group = np.arange(config.clients) - np.searchsorted(group_of, group_of)
    seeds = rng.integers(2**63, size=config.clients)
    splits = {}
    for split, part in split_rows(partition, config).items():
        images = []
        labels = []
        for client in range(config.clients):
            group = groups[group_of[client]]
            rows = part.rows_of(client)
            if group.few_rows and split != "test":
                rows = rows[: max(1, round(FEW_ROWS_SHARE * len(rows)))]
            own_x = x[rows]
            own_y = y[rows].astype(np.int64)
            if group.view is not None:
                # The seed is the client's, so that its view is the same in every split.
                view_rng = np.random.default_rng(seeds[client])
                index = int(index_in_group[client])
                own_x, own_y = group.view(own_x, own_y, index, classes, view_rng)
            images.append(own_x)
            labels.append(own_y)
        splits[split] = (
            torch.from_numpy(np.concatenate(images)),
            torch.from_numpy(np.concatenate(labels)),
            np.array([len(own) for own in labels]),
        )
    return Federation(splits, split_server(server, config, rng), classes, transform)


def _partition_by_group(
    groups: tuple[Group, ...],
    group_of: Ints,
    y: Ints,
    config: SplitConfig,
    rng: np.random.Generator,
) -> Partition:
    """Share rows among groups by their number of clients, then partition within each group."""
    cuts = np.cumsum(np.bincount(group_of))[:-1] * len(y) // config.clients
    rows: list[Ints] = []
    shares = np.array_split(rng.permutation(len(y)), cuts)
    for number, (group, share) in enumerate(zip(groups, shares, strict=True)):
        clients = int((group_of == number).sum())
        if group.delta is None:
            part = iid(y[share], clients, rng, min_rows=config.min_rows)
        else:
            part = dirichlet(y[share], clients, rng, group.delta, min_rows=config.min_rows)
        rows += [share[part.rows_of(k)] for k in range(clients)]
    return Partition(np.concatenate(rows), np.array([len(own) for own in rows]))


def _group_of_each_client(name: str, clients: int) -> Ints:
    """Return the group number of each client: groups of about equal size, in order."""
    return np.arange(clients) * len(SCENARIOS[name]) // clients
