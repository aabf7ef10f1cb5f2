"""LSTM on Shakespeare: PAGE's fourth column. A client is a role; its rows keep the order of the text.

So the test rows of a client are later speech than its training rows, and no character to be predicted was seen before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from equipoise.core import Task, TrainingConfig, option
from equipoise.data.datasets.shakespeare import ALPHABET, SHAKESPEARE, WINDOW, windows
from equipoise.data.federated_dataset import Ints
from equipoise.data.partition import natural
from equipoise.data.sources import load_dataset
from equipoise.data.splits import SplitConfig, federate, split_rows
from equipoise.data.transforms import TokenTransform
from equipoise.models import MODELS
from equipoise.tasks import TaskSpec
from equipoise.tasks.supervised import ExamplesTask
from equipoise.utils import rng as streams
from equipoise.utils.errors import UsageError


@dataclass(frozen=True)
class ShakespeareConfig(SplitConfig):
    """The paper takes 100 roles with more than 8,000 samples: 7,000 of each (4,900 : 2,100), the rest to the server."""

    data: str = option("", "folder with the text; empty for $EQUIPOISE_DATA")
    role_samples: int = option(
        7000, "samples of each role for its client: 7,000 is the paper's", low=1
    )
    spare_samples: int = option(
        1000, "samples that a role must have beyond these, for the server", low=1
    )
    server_rows: int = option(
        10_000, "samples of the server's sets, drawn from what the roles leave", low=2
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.role_samples < self.min_rows:
            raise UsageError(
                f"role_samples is {self.role_samples}: must be at least min_rows ({self.min_rows})"
            )


def choose_roles(samples: Ints, config: ShakespeareConfig, rng: np.random.Generator) -> Ints:
    """Roles with enough samples, drawn by the seed, in the order of the text."""
    enough = np.flatnonzero(samples > config.role_samples + config.spare_samples)
    if len(enough) < config.clients:
        raise UsageError(
            f"only {len(enough)} roles have more than {config.role_samples + config.spare_samples} samples: "
            "lower clients or role_samples"
        )
    return np.sort(rng.permutation(enough)[: config.clients])


def build(config: ShakespeareConfig, model: str, training: TrainingConfig, seed: int) -> Task:
    arrays, rng = (
        load_dataset(SHAKESPEARE, config.data),
        streams.generator(seed, streams.SHAKESPEARE),
    )
    sizes, n = arrays["sizes"], config.role_samples
    start = np.cumsum(sizes) - sizes
    roles = choose_roles(sizes - WINDOW, config, rng)
    x = np.empty((len(roles) * n, WINDOW), np.uint8)
    y = np.empty(len(roles) * n, np.uint8)
    left: list[Ints] = []
    for k, role in enumerate(roles):
        inputs, nexts = windows(arrays["codes"][start[role] : start[role] + sizes[role]])
        x[k * n : (k + 1) * n], y[k * n : (k + 1) * n] = inputs[:n], nexts[:n]
        left.append(start[role] + np.arange(n, len(nexts)))
    at = np.sort(rng.permutation(np.concatenate(left))[: config.server_rows])
    server = arrays["codes"][at[:, None] + np.arange(WINDOW)], arrays["codes"][at + WINDOW]
    parts = natural(np.repeat(np.arange(len(roles)), n), config.min_rows)
    data = federate(
        (x, y), split_rows(parts, config), server, config, len(ALPHABET), TokenTransform(), rng
    )
    return ExamplesTask("shakespeare", MODELS[model](data.shape, data.classes), data, training)


SPEC = TaskSpec(
    name="shakespeare",
    help="next character of 100 roles of Shakespeare's plays: PAGE's LSTM on Shakespeare",
    config=ShakespeareConfig,
    training=TrainingConfig(epochs=20, lr=1.0, batch_size=32, weight_decay=1e-4),
    models=("lstm", "transformer"),
    build=build,
)
