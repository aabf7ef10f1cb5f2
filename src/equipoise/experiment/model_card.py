"""Card of the models of a run: how to build, name and use them without the training data."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from equipoise import __version__
from equipoise.core import Task
from equipoise.data.federated_dataset import InputTransform, Target
from equipoise.data.tabular.columns import PLAIN_NUMBER
from equipoise.data.transforms import PixelTransform, TokenTransform
from equipoise.models import MODELS
from equipoise.models.lora import LoraConfig, add_adapters
from equipoise.records.run_dir import RunFolder
from equipoise.settings.run_config import RunConfig
from equipoise.tasks.supervised import ExamplesTask
from equipoise.utils.record import Record, from_json, to_json


class Card(Record, frozen=True):
    """Description of the models of a run, stored beside them and in every export."""

    version: str
    """Version of Equipoise."""
    method: str
    task: str
    model: str
    seed: int
    shape: tuple[int, ...]
    """Shape of one input of the network."""
    form: InputTransform | PixelTransform | TokenTransform
    """How stored samples become inputs."""
    target: Target
    clients: tuple[str, ...]
    """Names of clients by number; empty if clients have no names."""
    inputs: tuple[str, ...]
    """Names of the features, if the data are tables."""
    adapter: str = ""
    """Option ``adapter`` of the run."""
    label_type: str = ""
    """Type of the class labels: `text` or `float`; empty if the names of classes show it."""
    owner: str = ""
    """Site whose own model is in the place of the global model, such as a Flower node or a
    newcomer; empty in a run of many sites."""

    @property
    def owner_id(self) -> int | None:
        """Number of the owner among the clients; None without an owner."""
        if not self.owner:
            return None
        if self.owner in self.clients:
            return self.clients.index(self.owner)
        number = self.owner.removeprefix("client ")
        return int(number) if number.isdecimal() else 0

    @staticmethod
    def of(task: Task, run: RunConfig) -> Card | None:
        """Return the card of a supervised task; None for agents in environments."""
        if not isinstance(task, ExamplesTask):
            return None
        preprocessor = task.preparation.preprocessor
        names = preprocessor.features if preprocessor else ()
        return Card(
            version=__version__,
            method=run.method,
            task=run.task,
            model=run.model,
            seed=run.seed,
            shape=task.data.shape,
            form=task.data.transform,
            target=task.data.target,
            clients=task.info.client_names,
            inputs=names,
            adapter=run.adapter,
            label_type=task.preparation.label_type,
        )

    def write(self) -> str:
        """Return the card as JSON."""
        return to_json(self)

    def network(self) -> nn.Module | None:
        """Build the network without its weights; None if it is a model of the user."""
        build = MODELS.get(self.model)
        if build is None:
            return None
        module = build(self.shape, self.target.outputs)
        if self.adapter:
            module = add_adapters(module, LoraConfig.parse(self.adapter), self.seed)
        return module.eval()

    @property
    def labels(self) -> NDArray[Any]:
        """The classes `[classes]` in the type of the training labels.

        Names of classes that are all numbers, or true and false, become numbers or booleans, as in
        a data frame; without names the classes are 0, 1, 2, ...
        """
        names = self.target.classes
        if not self.target.name:
            return np.arange(len(names))
        if self.label_type == "text":
            return np.array(names)
        if set(names) <= {"false", "true"}:
            return np.array([name == "true" for name in names])
        if not all(PLAIN_NUMBER.fullmatch(name) for name in names):
            return np.array(names)
        numbers = np.array(names, np.float64)
        are_whole = bool((numbers == np.rint(numbers)).all())
        return numbers.astype(np.int64) if are_whole and not self.label_type else numbers

    def samples(self, count: int) -> Tensor:
        """Draw random inputs ``[count, *shape]``, to compare two versions of a network."""
        random = torch.Generator().manual_seed(0)
        if isinstance(self.form, TokenTransform):
            return torch.randint(0, self.target.outputs, (count, *self.shape), generator=random)
        return torch.randn(count, *self.shape, generator=random)

    def file_name(self, client: int) -> str:
        """Return the name of a client if a file name can contain it, else its number."""
        name = self.clients[client] if self.clients else ""
        return name if re.fullmatch(r"\w[\w.-]*", name) else str(client)

    def describe_owner(self, client: int | None) -> str:
        """Return whose model it is, in words."""
        if client is None:
            return f"the personal model of {self.owner}" if self.owner else "the global model"
        name = self.clients[client] if self.clients else f"client {client}"
        return f"the personal model of {name}"

    def describe(self, client: int | None) -> str:
        """Describe the model in one line: owner, method, task, target and inputs."""
        target = self.target
        inputs = f"{' x '.join(map(str, self.shape))} numbers"
        output = f"a {target.kind}"
        if target.kind == "classification":
            output = f"one of {len(target.classes)} classes"
        if target.name:
            output += f" of {target.name}"
        model = f"{self.describe_owner(client)} by {self.method} on {self.task}"
        return f"{model}, which predicts {output} from {inputs}"

    def facts(self, client: int | None) -> dict[str, str]:
        """Return metadata for other formats, which store only texts."""
        outputs = self.target.classes or (self.target.name,)
        return {
            "is": self.describe_owner(client),
            "equipoise": self.version,
            "method": self.method,
            "task": self.task,
            "model": self.model,
            "target": self.target.name,
            "kind": self.target.kind,
            "inputs": json.dumps(self.inputs),
            "outputs": json.dumps(outputs),
        }


def read_card(folder: RunFolder) -> Card | None:
    """Read the card of a finished run; None for agents."""
    if not folder.card.exists():
        return None
    return from_json(Card, folder.card.read_text(), f"'{folder.card}'")
