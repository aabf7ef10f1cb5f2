"""What a run's models are: all that it takes to build, name and use them, without the data of their training."""

from __future__ import annotations

import json
import re
from pathlib import Path

import torch
from torch import Tensor, nn

from equipoise import __version__
from equipoise.core import Task
from equipoise.data.federated_dataset import Target
from equipoise.data.transforms import InputTransform, PixelTransform, TokenTransform
from equipoise.models import MODELS
from equipoise.models.lora import LoraConfig, add_adapters
from equipoise.records.run_dir import Folder
from equipoise.settings.run_config import RunConfig
from equipoise.tasks.supervised import ExamplesTask
from equipoise.utils.record import Record, from_json, to_json


class Card(Record, frozen=True):
    """Written beside the models of a run, and into every export."""

    version: str
    """Of this program."""
    method: str
    task: str
    model: str
    seed: int
    shape: tuple[int, ...]
    """Of one sample, as the network takes it."""
    form: InputTransform | PixelTransform | TokenTransform
    """How stored samples become such."""
    target: Target
    clients: tuple[str, ...]
    """Names, in the order of their numbers; empty where clients have numbers only."""
    inputs: tuple[str, ...]
    """Names of a row's numbers, where it came from a table."""
    adapter: str = ""
    """Adapters of the network, as the run's option has them."""

    @staticmethod
    def of(task: Task, run: RunConfig) -> Card | None:
        """Of a task that learns a network from examples; agents in environments have none."""
        if not isinstance(task, ExamplesTask):
            return None
        names = task.preprocessor.features if task.preprocessor else ()
        about, data = (__version__, run.method, run.task, run.model, run.seed), task.data
        return Card(
            *about, data.shape, data.transform, data.target, task.client_names, names, run.adapter
        )

    @staticmethod
    def read(file: Path) -> Card:
        return from_json(Card, file.read_text(encoding="utf-8"), f"'{file}'")

    def write(self) -> str:
        return to_json(self)

    def network(self) -> nn.Module | None:
        """The network without its weights; ``None`` where it is none of those that ship."""
        build = MODELS.get(self.model)
        if build is None:
            return None
        module = build(self.shape, self.target.outputs)
        return (
            add_adapters(module, LoraConfig.parse(self.adapter), self.seed)
            if self.adapter
            else module
        ).eval()

    def samples(self, count: int) -> Tensor:
        """Anything of the right shape, to compare two forms of a network on."""
        random = torch.Generator().manual_seed(0)
        if isinstance(self.form, TokenTransform):
            return torch.randint(0, self.target.outputs, (count, *self.shape), generator=random)
        return torch.randn(count, *self.shape, generator=random)

    def called(self, client: int) -> str:
        """The client's name where a file can have it, else its number."""
        name = self.clients[client] if self.clients else ""
        return name if re.fullmatch(r"\w[\w.-]*", name) else str(client)

    def whose(self, client: int | None) -> str:
        """The model in words."""
        if client is None:
            return "the global model"
        return (
            f"the personal model of {self.clients[client] if self.clients else f'client {client}'}"
        )

    def in_words(self, client: int | None) -> str:
        """What the model predicts from what, and who it is of."""
        target, inputs = self.target, f"{' x '.join(map(str, self.shape))} numbers"
        what = (
            f"one of {len(target.classes)} classes"
            if target.kind == "classification"
            else f"a {target.kind}"
        )
        of = f" of {target.name}" if target.name else ""
        return f"{self.whose(client)} by {self.method} on {self.task}, which predicts {what}{of} from {inputs}"

    def facts(self, client: int | None) -> dict[str, str]:
        """For the metadata of other formats, which know texts only."""
        about = {
            "equipoise": self.version,
            "method": self.method,
            "task": self.task,
            "model": self.model,
        }
        outputs = self.target.classes or (self.target.name,)
        listed = {"inputs": json.dumps(self.inputs), "outputs": json.dumps(outputs)}
        return {
            "is": self.whose(client),
            **about,
            "target": self.target.name,
            "kind": self.target.kind,
            **listed,
        }


def read_card(folder: Folder) -> Card | None:
    """The card of a finished run; ``None`` for runs of agents, and of versions before there were cards."""
    return Card.read(folder.card) if folder.card.is_file() else None
