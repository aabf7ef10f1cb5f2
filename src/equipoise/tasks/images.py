"""Image classification on the published sets: one config and one builder; each set is a file of its own beside this."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from equipoise.config.schema import with_default
from equipoise.core import Task, TrainingConfig, option
from equipoise.data import partition
from equipoise.data.cache import Arrays
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
from equipoise.data.scenarios import SCENARIOS, make_scenario
from equipoise.data.sources import DatasetSource, load_dataset
from equipoise.data.splits import SplitConfig, federate, split_rows
from equipoise.data.transforms import PixelTransform
from equipoise.models import MODELS
from equipoise.tasks import TaskSpec
from equipoise.tasks.supervised import ExamplesTask
from equipoise.utils import rng as streams
from equipoise.utils.errors import UsageError


@dataclass(frozen=True)
class ImageConfig(SplitConfig):
    """Where the images are and how clients share them."""

    data: str = option(
        "", "folder with the data set; empty for $EQUIPOISE_DATA, else it is fetched from the hub"
    )
    partition: str = option(
        "dirichlet",
        "who gets which rows; classes: a few classes per client",
        choices=partition.PARTITIONS,
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
        super().__post_init__()
        if self.scenario and self.clients < len(SCENARIOS[self.scenario]):
            raise UsageError(
                f"scenario {self.scenario} needs {len(SCENARIOS[self.scenario])} clients or more"
            )
        if self.size_sigma and (self.scenario or self.partition == "classes"):
            other = (
                f"scenario {self.scenario}" if self.scenario else f"partition '{self.partition}'"
            )
            raise UsageError(
                f"size_sigma has no effect on {other}: leave it at 0, or use --partition dirichlet or iid"
            )


@dataclass(frozen=True)
class TwentyClients(ImageConfig):
    """FedPolicy's populations; PAGE's have a hundred."""

    clients: int = with_default(ImageConfig, "clients", 20)


def build_images(
    name: str, source: DatasetSource, classes: int, form: PixelTransform
) -> Callable[[ImageConfig, str, TrainingConfig, int], Task]:
    """The builder of a task on this set."""

    def build(config: ImageConfig, model: str, training: TrainingConfig, seed: int) -> Task:
        arrays = load_dataset(source, config.data)
        rng = streams.generator(seed, streams.IMAGES)
        x, y = _some(arrays, "", config.train_rows, rng)
        server_x, server_y = _some(arrays, "test_", config.server_rows, rng)
        x, server = _pooled(x, config.pool), (_pooled(server_x, config.pool), server_y)
        known = int(arrays["classes"]) if "classes" in arrays else classes
        if config.scenario:
            data = make_scenario(config.scenario, (x, y), server, config, known, form, rng)
        else:
            data = federate(
                (x, y),
                split_rows(partition_rows(y, config, rng), config),
                server,
                config,
                known,
                form,
                rng,
            )
        return ExamplesTask(name, MODELS[model](data.shape, known), data, training)

    return build


def partition_rows(
    labels: Any, config: ImageConfig, rng: np.random.Generator
) -> partition.Partition:
    """Rows to clients, by the partition that the config names."""
    own: dict[str, dict[str, Any]] = {
        "dirichlet": {"delta": config.delta, "size_sigma": config.size_sigma},
        "iid": {"size_sigma": config.size_sigma},
        "classes": {"classes_per_client": config.classes_per_client},
    }
    assign = partition.PARTITIONS[config.partition]
    return assign(labels, config.clients, rng, min_rows=config.min_rows, **own[config.partition])


def _some(arrays: Arrays, part: str, count: int, rng: np.random.Generator) -> tuple[Any, Any]:
    x, y = arrays[f"{part}x"], arrays[f"{part}y"]
    if not count or count >= len(y):
        return x, y
    rows = np.sort(rng.permutation(len(y))[:count])
    return x[rows], y[rows]


def _pooled(x: Any, side: int) -> Any:
    """Images ``[n, H, W, C]`` of bytes, made smaller by whole squares."""
    if side == 1:
        return x
    n, height, width, channels = x.shape
    if side < 1 or height % side or width % side:
        raise UsageError(f"pool is {side}: must divide the images' {height}x{width} pixels")
    squares = x.reshape(n, height // side, side, width // side, side, channels)
    return np.rint(squares.mean((2, 4))).astype(x.dtype)


SPEC = TaskSpec(
    name="fmnist",
    help="Fashion-MNIST, 28x28 grey, 10 classes, label skew by Dirichlet",
    config=TwentyClients,
    training=TrainingConfig(epochs=1, lr=0.05, batch_size=32, weight_decay=1e-4),
    models=("cnn", "mlp", "linear"),
    build=build_images(
        "fmnist", FASHION_MNIST, FASHION_MNIST_CLASSES, PixelTransform((0.2860,), (0.3530,))
    ),
)


SPEC_CIFAR10 = TaskSpec(
    name="cifar10",
    help="CIFAR-10, 32x32 colour, 10 classes, label skew by Dirichlet",
    config=TwentyClients,
    training=TrainingConfig(epochs=1, lr=0.05, batch_size=32, weight_decay=1e-4),
    models=("cnn", "resnet18", "mlp", "linear"),
    build=build_images(
        "cifar10",
        CIFAR10_SOURCE,
        CIFAR10_LAYOUT.classes,
        PixelTransform((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    ),
)


SPEC_CIFAR100 = TaskSpec(
    name="cifar100",
    help="CIFAR-100, 32x32 colour, 100 classes, 100 clients, Dirichlet 0.3: PAGE's ResNet-18 on Cifar-100",
    config=ImageConfig,
    training=TrainingConfig(epochs=5, lr=0.2, batch_size=32, weight_decay=1e-4),
    models=("resnet18", "cnn", "mlp", "linear"),
    build=build_images(
        "cifar100",
        CIFAR100_SOURCE,
        CIFAR100_LAYOUT.classes,
        PixelTransform((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    ),
)


SPEC_TINYIMAGENET = TaskSpec(
    name="tinyimagenet",
    help="Tiny-ImageNet, 64x64 colour, 200 classes, 100 clients, Dirichlet 0.3: PAGE's ResNet-18 on Tiny-ImageNet",
    config=ImageConfig,
    training=TrainingConfig(epochs=20, lr=0.1, batch_size=128, weight_decay=1e-4),
    models=("resnet18", "cnn"),
    build=build_images(
        "tinyimagenet",
        TINY_IMAGENET,
        TINY_IMAGENET_CLASSES,
        PixelTransform((0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)),
    ),
)
