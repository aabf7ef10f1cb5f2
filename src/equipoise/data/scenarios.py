"""Populations whose clients need different things: skewed labels, few rows, other views of the same images.

A scenario is a list of groups of clients, of equal size, each with its own rows and its own view of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from equipoise.data.federated_dataset import Federation, Ints
from equipoise.data.partition import Partition, dirichlet, iid
from equipoise.data.splits import Rows, SplitConfig, split_rows, split_server
from equipoise.data.transforms import InputTransform

FEW = 0.2  # share of its training and validation rows that a client with few rows keeps
Images = NDArray[Any]
View = Callable[[Images, Ints, int, int, np.random.Generator], tuple[Images, Ints]]
"""Images ``[n, H, W, C]``, labels, the client's place in its group, classes, randomness: the client's own view."""


def rotate_or_invert(
    x: Images, y: Ints, place: int, classes: int, rng: np.random.Generator
) -> tuple[Images, Ints]:
    """Rotated by quarter turns, and every other four clients see negatives."""
    x = np.rot90(x, place % 4, axes=(1, 2))
    return (255 - x if place // 4 % 2 else x), y


def permute_labels(
    x: Images, y: Ints, place: int, classes: int, rng: np.random.Generator
) -> tuple[Images, Ints]:
    """Labels permuted, by a permutation of the client's own."""
    return x, rng.permutation(classes)[y]


def permute_pixels(
    x: Images, y: Ints, place: int, classes: int, rng: np.random.Generator
) -> tuple[Images, Ints]:
    """Pixels permuted, by a permutation of the client's own."""
    n, height, width, channels = x.shape
    mixed = x.reshape(n, height * width, channels)[:, rng.permutation(height * width)]
    return mixed.reshape(x.shape), y


@dataclass(frozen=True)
class Group:
    """Clients of one kind."""

    delta: float | None = None
    """Label skew; none for rows at random."""
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
    form: InputTransform,
    rng: np.random.Generator,
) -> Federation:
    """The population of a scenario: every row goes to one client, seen as that client sees it."""
    x, y = data
    clients, group_of = config.clients, _groups(name, config.clients)
    shares = np.array_split(
        rng.permutation(len(y)), np.cumsum(np.bincount(group_of))[:-1] * len(y) // clients
    )
    rows: list[Ints] = []
    kinds = SCENARIOS[name]
    for group, mine in zip(kinds, shares, strict=True):
        count = int((group_of == kinds.index(group)).sum())
        parts = (
            iid(y[mine], count, rng, min_rows=config.min_rows)
            if group.delta is None
            else dirichlet(y[mine], count, rng, group.delta, min_rows=config.min_rows)
        )
        rows += [mine[parts.rows_of(k)] for k in range(count)]
    splits = split_rows(
        Partition(np.concatenate(rows), np.array([len(own) for own in rows])), config
    )
    places = np.arange(clients) - np.searchsorted(group_of, group_of)
    seeds = rng.integers(2**63, size=clients)
    built = {}
    for split, parts in splits.items():
        views = []
        for client in range(clients):
            group, own = kinds[group_of[client]], parts.rows_of(client)
            if group.few and split != "test":
                own = own[: max(1, round(FEW * len(own)))]
            seen = (x[own], y[own].astype(np.int64))
            if group.view:  # the same view in every split
                seen = group.view(
                    *seen, int(places[client]), classes, np.random.default_rng(seeds[client])
                )
            views.append(seen)
        built[split] = (
            torch.from_numpy(np.concatenate([images for images, _ in views])),
            torch.from_numpy(np.concatenate([labels for _, labels in views])),
            np.array([len(labels) for _, labels in views]),
        )
    return Federation(built, split_server(server, config, rng), classes, form)


def _groups(name: str, clients: int) -> Ints:
    """The group of each client: as equal as can be, in order."""
    return np.arange(clients) * len(SCENARIOS[name]) // clients
