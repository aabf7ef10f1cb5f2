"""CIFAR-100: PAGE's second column (ResNet-18), with the training defaults of its authors' code."""

from __future__ import annotations

from equipoise.contract import TrainingConfig
from equipoise.data.cifar import CIFAR100, SOURCE_100
from equipoise.data.forms import Pixels
from equipoise.tasks import TaskSpec
from equipoise.tasks.images import ImageConfig, build_images

SPEC = TaskSpec(
    name="cifar100",
    help="CIFAR-100, 32x32 colour, 100 classes, 100 clients, Dirichlet 0.3: PAGE's ResNet-18 on Cifar-100",
    config=ImageConfig,
    training=TrainingConfig(epochs=5, lr=0.2, batch_size=32, weight_decay=1e-4),
    models=("resnet18", "cnn", "mlp", "linear"),
    build=build_images(
        "cifar100", SOURCE_100, CIFAR100.classes, Pixels((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
    ),
)
