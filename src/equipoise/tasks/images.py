"""Image classification tasks: Fashion-MNIST, CIFAR-10, CIFAR-100 and Tiny-ImageNet.

The training images are partitioned among clients; the original test images are the server's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from equipoise.config.schema import with_default
from equipoise.core import ExperimentTask, TrainingConfig, option
from equipoise.data.datasets.images import (
    CIFAR10_LAYOUT,
    CIFAR10_SOURCE,
    CIFAR100_LAYOUT,
    CIFAR100_SOURCE,
    FASHION_MNIST,
    FASHION_MNIST_CLASSES,
    TINY_IMAGENET,
    TINY_IMAGENET_CLASSES,
)
from equipoise.data.partition import PARTITIONS, Partition
from equipoise.data.scenarios import SCENARIOS, make_scenario
from equipoise.data.sources import Arrays, DatasetSource, load_dataset
from equipoise.data.splits import SplitConfig, federate, split_rows
from equipoise.data.transforms import PixelTransform
from equipoise.models import MODELS
from equipoise.tasks import TaskSpec
from equipoise.tasks.supervised import ExamplesTask
from equipoise.utils import rng as streams
from equipoise.utils.errors import UsageError


@dataclass(frozen=True)
class ImageConfig(SplitConfig):
    """Where the images are, and how they are partitioned; 100 clients, as in PAGE."""

    data: str = option(
        "", "folder with the data set; empty for $EQUIPOISE_DATA, else it is fetched from the hub"
    )
    partition: str = option(
        "dirichlet",
        "who gets which rows; classes: a few classes per client",
        choices=PARTITIONS,
    )
    delta: float = option(
        0.3, "label skew of the dirichlet partition; smaller is more skewed", above=0
    )
    scenario: str = option(
        "", "population in place of the partition; empty for none", choices=("", *SCENARIOS)
    )
    size_sigma: float = option(
        0.0, "spread of client sizes (standard deviation of their logarithm)", low=0
    )
    classes_per_client: int = option(2, "classes per client of the classes partition", low=1)
    pool: int = option(
        1, "average squares of so many pixels a side into one: smaller images, faster rounds", low=1
    )
    train_rows: int = option(
        0, "use only so many of the training images, drawn by the seed; 0 for all", low=0
    )
    server_rows: int = option(0, "use only so many of the original test images; 0 for all", low=0)

    def __post_init__(self) -> None:
        """Refuse options that have no effect on each other.

        Raises:
            UsageError: If a scenario has too few clients, or ``size_sigma`` has no effect.
        """
        super().__post_init__()
        if self.scenario and self.clients < len(SCENARIOS[self.scenario]):
            raise UsageError(
                f"scenario {self.scenario} needs {len(SCENARIOS[self.scenario])} clients or more"
            )
        if self.size_sigma and (self.scenario or self.partition == "classes"):
            other = f"partition '{self.partition}'"
            if self.scenario:
                other = f"scenario {self.scenario}"
            raise UsageError(
                f"size_sigma has no effect on {other}: leave it at 0, or use --partition dirichlet "
                "or iid"
            )


@dataclass(frozen=True)
class TwentyClients(ImageConfig):
    """The same with 20 clients, as in FedPolicy."""

    clients: int = with_default(ImageConfig, "clients", 20)


def partition_rows(labels: Any, config: ImageConfig, rng: np.random.Generator) -> Partition:
    """Partition rows among clients, by the partition that the config names.

    Args:
        labels: Label of each row.
        config: Partition and its options.
        rng: Source of randomness.

    Returns:
        The partition.
    """
    options: dict[str, dict[str, Any]] = {
        "dirichlet": {"delta": config.delta, "size_sigma": config.size_sigma},
        "iid": {"size_sigma": config.size_sigma},
        "classes": {"classes_per_client": config.classes_per_client},
    }
    make_partition = PARTITIONS[config.partition]
    return make_partition(
        labels, config.clients, rng, min_rows=config.min_rows, **options[config.partition]
    )


def _image_task(
    name: str,
    help: str,
    source: DatasetSource,
    classes: int,
    transform: PixelTransform,
    config: type[ImageConfig],
    training: TrainingConfig,
    models: tuple[str, ...],
) -> TaskSpec:
    """Declare the task of one data set."""

    def build(
        config: ImageConfig, model: str, training: TrainingConfig, seed: int
    ) -> ExperimentTask:
        arrays = load_dataset(source, config.data)
        rng = streams.generator(seed, streams.IMAGES)
        x, y = _subset(arrays, "", config.train_rows, rng)
        server_x, server_y = _subset(arrays, "test_", config.server_rows, rng)
        x = _average_pool(x, config.pool)
        server = (_average_pool(server_x, config.pool), server_y)
        # An excerpt of Tiny-ImageNet may have fewer classes than the data set.
        num_classes = int(arrays["classes"]) if "classes" in arrays else classes
        if config.scenario:
            data = make_scenario(
                config.scenario, (x, y), server, config, num_classes, transform, rng
            )
        else:
            splits = split_rows(partition_rows(y, config, rng), config)
            data = federate((x, y), splits, server, config, num_classes, transform, rng)
        return ExamplesTask(name, MODELS[model](data.shape, num_classes), data, training)

    return TaskSpec(name, help, config, training, models, build)


def _subset(arrays: Arrays, part: str, count: int, rng: np.random.Generator) -> tuple[Any, Any]:
    """Draw ``count`` images with their labels, in the original order; 0 means all."""
    x = arrays[f"{part}x"]
    y = arrays[f"{part}y"]
    if not count or count >= len(y):
        return x, y
    rows = np.sort(rng.permutation(len(y))[:count])
    return x[rows], y[rows]


def _average_pool(x: Any, side: int) -> Any:
    """Average squares of ``side`` pixels of images ``[n, H, W, C]``, rounded to bytes."""
    if side == 1:
        return x
    n, height, width, channels = x.shape
    if side < 1 or height % side or width % side:
        raise UsageError(f"pool is {side}: must divide the images' {height}x{width} pixels")
    squares = x.reshape(n, height // side, side, width // side, side, channels)
    return np.rint(squares.mean((2, 4))).astype(x.dtype)


FMNIST_TASK = _image_task(
    name="fmnist",
    help="Fashion-MNIST, 28x28 grey, 10 classes, label skew by Dirichlet",
    source=FASHION_MNIST,
    classes=FASHION_MNIST_CLASSES,
    transform=PixelTransform(mean=(0.2860,), std=(0.3530,)),
    config=TwentyClients,
    training=TrainingConfig(epochs=1, lr=0.05, batch_size=32, weight_decay=1e-4),
    models=("cnn", "mlp", "linear"),
)

CIFAR10_TASK = _image_task(
    name="cifar10",
    help="CIFAR-10, 32x32 colour, 10 classes, label skew by Dirichlet",
    source=CIFAR10_SOURCE,
    classes=CIFAR10_LAYOUT.classes,
    transform=PixelTransform(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616)),
    config=TwentyClients,
    training=TrainingConfig(epochs=1, lr=0.05, batch_size=32, weight_decay=1e-4),
    models=("cnn", "resnet18", "mlp", "linear"),
)

CIFAR100_TASK = _image_task(
    name="cifar100",
    help="CIFAR-100, 32x32 colour, 100 classes, 100 clients, Dirichlet 0.3: PAGE's ResNet-18 on "
    "Cifar-100",
    source=CIFAR100_SOURCE,
    classes=CIFAR100_LAYOUT.classes,
    transform=PixelTransform(mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762)),
    config=ImageConfig,
    training=TrainingConfig(epochs=5, lr=0.2, batch_size=32, weight_decay=1e-4),
    models=("resnet18", "cnn", "mlp", "linear"),
)

TINY_IMAGENET_TASK = _image_task(
    name="tinyimagenet",
    help="Tiny-ImageNet, 64x64 colour, 200 classes, 100 clients, Dirichlet 0.3: PAGE's ResNet-18 "
    "on Tiny-ImageNet",
    source=TINY_IMAGENET,
    classes=TINY_IMAGENET_CLASSES,
    transform=PixelTransform(mean=(0.4802, 0.4481, 0.3975), std=(0.2770, 0.2691, 0.2821)),
    config=ImageConfig,
    training=TrainingConfig(epochs=20, lr=0.1, batch_size=128, weight_decay=1e-4),
    models=("resnet18", "cnn"),
)
