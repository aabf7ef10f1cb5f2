"""Task ``synthetic``: logistic regression on Synthetic(alpha, beta), as in PAGE's first column.

The defaults of local training are those of its authors' code.
"""

from __future__ import annotations

from equipoise.core import ExperimentTask, TrainingConfig
from equipoise.data.datasets.synthetic import Synthetic, SyntheticConfig
from equipoise.models import MODELS
from equipoise.tasks import TaskSpec
from equipoise.tasks.supervised import ExamplesTask


def build(
    config: SyntheticConfig, model: str, training: TrainingConfig, seed: int
) -> ExperimentTask:
    """Build the task.

    Args:
        config: Options of the task.
        model: Name of the model.
        training: Settings of local training.
        seed: Seed of the run.

    Returns:
        The task.
    """
    data = Synthetic(config, seed)
    return ExamplesTask("synthetic", MODELS[model](data.shape, data.classes), data, training)


SPEC = TaskSpec(
    name="synthetic",
    help="100 clients with Gaussian inputs of their own and one labelling model: PAGE's Logistic "
    "on Synthetic",
    config=SyntheticConfig,
    training=TrainingConfig(epochs=20, lr=0.1, batch_size=5, weight_decay=1e-5),
    models=("linear", "mlp"),
    build=build,
)
