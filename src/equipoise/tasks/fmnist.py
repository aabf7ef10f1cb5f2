"""Fashion-MNIST: FedPolicy's first set, small enough for quick experiments with real images."""

from __future__ import annotations

from equipoise.contract import TrainingConfig
from equipoise.data.fmnist import CLASSES, SOURCE
from equipoise.data.forms import Pixels
from equipoise.tasks import TaskSpec
from equipoise.tasks.images import TwentyClients, build_images

SPEC = TaskSpec(
    name="fmnist",
    help="Fashion-MNIST, 28x28 grey, 10 classes, label skew by Dirichlet",
    config=TwentyClients,
    training=TrainingConfig(epochs=1, lr=0.05, batch_size=32, weight_decay=1e-4),
    models=("cnn", "mlp", "linear"),
    build=build_images("fmnist", SOURCE, CLASSES, Pixels((0.2860,), (0.3530,))),
)
