"""Task ``text``: classes or next tokens of texts, with a pretrained ``transformers`` model."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from equipoise.core import ExperimentTask, TrainingConfig, option
from equipoise.data.federated_dataset import Target
from equipoise.data.splits import UserRows
from equipoise.data.text import ClientTexts, TextDataConfig, Tokenizer, read_texts
from equipoise.data.transforms import TokenTransform
from equipoise.models import huggingface
from equipoise.tasks import TaskSpec, tables
from equipoise.tasks.supervised import ExamplesTask
from equipoise.utils.errors import UsageError


@dataclass(frozen=True)
class TextConfig(TextDataConfig):
    """Texts, and the model that reads them."""

    pretrained: str = option(
        "",
        "folder or name on the Hugging Face hub of a transformers model with its tokenizer: "
        "where training starts",
    )


def build(config: TextConfig, model: str, training: TrainingConfig, seed: int) -> ExperimentTask:
    """Build the task.

    Args:
        config: Options of the task.
        model: Name of the model.
        training: Settings of local training.
        seed: Seed of the run.

    Returns:
        The task.

    Raises:
        UsageError: If no pretrained model is given.
    """
    if not config.pretrained:
        raise UsageError(
            "task 'text' needs --pretrained: the folder of a transformers model, or its name "
            "on the hub"
        )
    return task_from_texts("text", read_texts(config), config, training, seed)


def task_from_texts(
    name: str, client_texts: ClientTexts, config: TextConfig, training: TrainingConfig, seed: int
) -> ExamplesTask:
    """Build a task from the texts of all clients, in files or given in Python.

    Args:
        name: Name of the task.
        client_texts: Texts and labels of all clients.
        config: Options of the task.
        training: Settings of local training.
        seed: Seed of the run.

    Returns:
        The task.
    """
    if config.kind == "classification":
        module = huggingface.text_classifier(config.pretrained, len(client_texts.classes), seed)
        target = Target("classification", config.target, client_texts.classes)
    else:
        module = huggingface.causal_lm(config.pretrained, seed)
        target = Target("next-token", config.text)
    served = client_texts.server[0] if client_texts.server else []
    tokens = Tokenizer(config.pretrained).rows([*client_texts.texts, *served], config.length)
    huggingface.check_tokens(module, int(tokens.max()), tokens.shape[1], config.pretrained)
    labels = np.concatenate(
        [client_texts.labels, *([client_texts.server[1]] if client_texts.server else [])]
    )
    y = (
        labels
        if client_texts.classes
        else np.full(len(tokens), math.log(huggingface.vocab_size(module)), np.float32)
    )
    rows = len(client_texts.texts)
    server = (tokens[rows:], y[rows:]) if client_texts.server else None
    given = UserRows(
        tokens[:rows],
        y[:rows],
        client_texts.owner,
        server,
        target.outputs,
        client_texts.clients,
        target,
    )
    data = given.federate(config, TokenTransform(), tables.split_generator(seed))
    return ExamplesTask(name, module, data, training, fresh=False)


SPEC = TaskSpec(
    name="text",
    help="your texts under a pretrained transformers model: their classes, or their next tokens",
    config=TextConfig,
    training=TrainingConfig(epochs=1, lr=0.05, batch_size=16),
    models=(),
    build=build,
)
