"""CIFAR-10: FedPolicy's second set."""

from __future__ import annotations

from equipoise.contract import TrainingConfig
from equipoise.data.cifar import CIFAR10, SOURCE_10
from equipoise.data.forms import Pixels
from equipoise.tasks import TaskSpec
from equipoise.tasks.images import TwentyClients, build_images

SPEC = TaskSpec(
    name="cifar10",
    help="CIFAR-10, 32x32 colour, 10 classes, label skew by Dirichlet",
    config=TwentyClients,
    training=TrainingConfig(epochs=1, lr=0.05, batch_size=32, weight_decay=1e-4),
    models=("cnn", "resnet18", "mlp", "linear"),
    build=build_images(
        "cifar10", SOURCE_10, CIFAR10.classes, Pixels((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
    ),
)
