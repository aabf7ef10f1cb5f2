"""What a run's models are: all that it takes to build, name and use them, without the data that they were trained on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from equipoise import __version__
from equipoise.core.errors import UsageError, nearest
from equipoise.data.forms import Tokens
from equipoise.data.tables.typed import of_json, to_json
from equipoise.data.target import Target
from equipoise.models import MODELS
from equipoise.records.folder import Folder
from equipoise.settings.run import RunConfig
from equipoise.tasks.classify import Classify


@dataclass(frozen=True)
class Card:
    """Written beside the models of a run, and into every export."""

    version: str
    """Of this program."""
    method: str
    task: str
    model: str
    seed: int
    shape: tuple[int, ...]
    """Of one sample, as the network takes it."""
    tokens: bool
    """Whether samples are whole numbers."""
    target: Target
    clients: tuple[str, ...]
    """Names, in the order of their numbers; empty where clients have numbers only."""
    inputs: tuple[str, ...]
    """Names of a row's numbers, where it came from a table."""

    @staticmethod
    def of(task: Classify, run: RunConfig) -> Card:
        names = task.preparation.features if task.preparation else ()
        tokens = isinstance(task.data.form, Tokens)
        about = (__version__, run.method, run.task, run.model, run.seed)
        return Card(*about, task.data.shape, tokens, task.data.target, task.client_names, names)

    @staticmethod
    def read(file: Path) -> Card:
        return of_json(Card, file.read_text(encoding="utf-8"), f"'{file}'")

    def write(self) -> str:
        return to_json(self)

    def network(self) -> nn.Module | None:
        """The network without its weights; ``None`` where it is none of those that ship."""
        build = MODELS.get(self.model)
        return build(self.shape, self.target.outputs).eval() if build else None

    def samples(self, count: int) -> Tensor:
        """Anything of the right shape, to compare two forms of a network on."""
        random = torch.Generator().manual_seed(0)
        if self.tokens:
            return torch.randint(0, self.target.outputs, (count, *self.shape), generator=random)
        return torch.randn(count, *self.shape, generator=random)

    def number(self, client: str | None) -> int | None:
        """A client's number, from its name or (where clients have no names) its number as text."""
        if client is None:
            return None
        if client in self.clients:
            return self.clients.index(client)
        if not self.clients and client.isdecimal():
            return int(client)
        there = f"{nearest(client, self.clients)}: there are {_some(self.clients)}" if self.clients else ": give a number"
        raise UsageError(f"there is no client '{client}'{there}")

    def whose(self, client: int | None) -> str:
        """The model in words."""
        if client is None:
            return "the global model"
        return f"the personal model of {self.clients[client] if self.clients else f'client {client}'}"

    def facts(self) -> dict[str, str]:
        """For the metadata of other formats, which know texts only."""
        about = {name: value for name, value in asdict(self).items() if isinstance(value, str)}
        outputs = self.target.classes or (self.target.name,)
        return {**about, "target": self.target.name, "kind": self.target.kind, "outputs": "\n".join(outputs)}


def read_card(folder: Folder) -> Card | None:
    """The card of a finished run; ``None`` for runs of agents, and of versions before there were cards."""
    return Card.read(folder.card) if folder.card.is_file() else None


def _some(names: tuple[str, ...], most: int = 12) -> str:
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")
