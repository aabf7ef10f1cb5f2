"""Tiny-ImageNet: PAGE's third column (ResNet-18), with the training defaults of its authors' code."""

from __future__ import annotations

from equipoise.contract import TrainingConfig
from equipoise.data.forms import Pixels
from equipoise.data.tinyimagenet import CLASSES, SOURCE
from equipoise.tasks import TaskSpec
from equipoise.tasks.images import ImageConfig, build_images

SPEC = TaskSpec(
    name="tinyimagenet",
    help="Tiny-ImageNet, 64x64 colour, 200 classes, 100 clients, Dirichlet 0.3: PAGE's ResNet-18 on Tiny-ImageNet",
    config=ImageConfig,
    training=TrainingConfig(epochs=20, lr=0.1, batch_size=128, weight_decay=1e-4),
    models=("resnet18", "cnn"),
    build=build_images("tinyimagenet", SOURCE, CLASSES, Pixels((0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821))),
)
