"""Task ``shakespeare``: next-character prediction with an LSTM, as in PAGE's fourth column.

A client is a role. Its rows keep the order of the text, so its test rows are later speech than its
training rows, and no character of a test target was seen in training.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from equipoise.core import ExperimentTask, TrainingConfig, option
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
    """Roles and their samples.

    The paper takes 100 roles with more than 8,000 samples: 7,000 of each (4,900 : 2,100) for the
    client, the rest for the server.
    """

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
        """Refuse roles with too few samples.

        Raises:
            UsageError: If `role_samples` is below `min_rows`.
        """
        super().__post_init__()
        if self.role_samples < self.min_rows:
            raise UsageError(
                f"role_samples is {self.role_samples}: must be at least min_rows ({self.min_rows})"
            )


def choose_roles(samples: Ints, config: ShakespeareConfig, rng: np.random.Generator) -> Ints:
    """Draw roles that have enough samples.

    Args:
        samples: Number of samples of each role.
        config: Number of clients, and samples that each needs.
        rng: Source of randomness.

    Returns:
        Indices of the roles, in the order of the text.

    Raises:
        UsageError: If too few roles have enough samples.
    """
    needed = config.role_samples + config.spare_samples
    eligible = np.flatnonzero(samples > needed)
    if len(eligible) < config.clients:
        raise UsageError(
            f"only {len(eligible)} roles have more than {needed} samples: "
            "lower clients or role_samples"
        )
    return np.sort(rng.permutation(eligible)[: config.clients])


def build(
    config: ShakespeareConfig, model: str, training: TrainingConfig, seed: int
) -> ExperimentTask:
    """Build the task: the first samples of each role are its client's, the rest the server's.

    Args:
        config: Options of the task.
        model: Name of the model.
        training: Settings of local training.
        seed: Seed of the run.

    Returns:
        The task.
    """
    arrays = load_dataset(SHAKESPEARE, config.data)
    rng = streams.generator(seed, streams.SHAKESPEARE)
    codes = arrays["codes"]
    sizes = arrays["sizes"]
    start = np.cumsum(sizes) - sizes
    roles = choose_roles(sizes - WINDOW, config, rng)
    n = config.role_samples
    x = np.empty((len(roles) * n, WINDOW), np.uint8)
    y = np.empty(len(roles) * n, np.uint8)
    spare: list[Ints] = []  # positions in the text where the spare samples of each role begin
    for k, role in enumerate(roles):
        inputs, next_chars = windows(codes[start[role] : start[role] + sizes[role]])
        x[k * n : (k + 1) * n] = inputs[:n]
        y[k * n : (k + 1) * n] = next_chars[:n]
        spare.append(start[role] + np.arange(n, len(next_chars)))
    at = np.sort(rng.permutation(np.concatenate(spare))[: config.server_rows])
    server = (codes[at[:, None] + np.arange(WINDOW)], codes[at + WINDOW])
    partition = natural(np.repeat(np.arange(len(roles)), n), config.min_rows)
    splits = split_rows(partition, config)
    data = federate((x, y), splits, server, config, len(ALPHABET), TokenTransform(), rng)
    return ExamplesTask("shakespeare", MODELS[model](data.shape, data.classes), data, training)


SPEC = TaskSpec(
    name="shakespeare",
    help="next character of 100 roles of Shakespeare's plays: PAGE's LSTM on Shakespeare",
    config=ShakespeareConfig,
    training=TrainingConfig(epochs=20, lr=1.0, batch_size=32, weight_decay=1e-4),
    models=("lstm", "transformer"),
    build=build,
)
