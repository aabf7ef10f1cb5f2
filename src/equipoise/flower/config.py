"""Options of a deployment, beside those of the run; and what a node says of itself."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.config.schema import Options, option
from equipoise.privacy.budget import DELTA
from equipoise.settings.run_settings import RunSettings
from equipoise.utils.errors import UsageError


@dataclass(frozen=True)
class DeploymentConfig(Options):
    """What a server asks of clients that are elsewhere."""

    out: str = option("", "the server's folder of the result: an absolute path")
    time_limit: float = option(600.0, "seconds that a round waits for replies", above=0)
    wait: float = option(
        300.0,
        "seconds to wait for clients to connect, at the start or when too few are left",
        above=0,
    )
    min_replies: int = option(1, "usable replies below which a round changes nothing", low=1)
    nodes: str = option(
        "", "file of 'equipoise flower register': a node may only be the client of its key"
    )
    below: str = option(
        "skip",
        "what happens then: skip (go on with the next round) or stop (resume later)",
        choices=("skip", "stop"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not Path(self.out).is_absolute():
            raise UsageError(
                f"out is '{self.out}': must be an absolute path, for the server runs in a folder of its own"
            )
        if self.nodes and not Path(self.nodes).is_absolute():
            raise UsageError(f"nodes is '{self.nodes}': must be an absolute path")


LONGEST_NAME = 100
NAMES = tuple(item.name for item in dataclasses.fields(DeploymentConfig))


def read_app_config(table: dict[str, Any]) -> tuple[RunSettings, DeploymentConfig]:
    """Both from one flat table, as it stands in the app's ``pyproject.toml``."""
    given = {name.replace("-", "_"): value for name, value in table.items()}
    deployment = {name: given.pop(name) for name in NAMES if name in given}
    # Saved after every round: clients can go back one round, not more.
    settings = RunSettings.from_options({**given, "checkpoint_every": 1})
    if settings.run.finetune:
        raise UsageError(
            "finetune needs every client's model in one place: fine-tune at the clients (method 'finetune')"
        )
    return settings, DeploymentConfig(**deployment)


@dataclass(frozen=True)
class NodeConfig:
    """What a node is told at its own start: never by the server."""

    client: int
    state_dir: Path
    data: str
    max_epsilon: float | None = None
    """What this client's uploads may cost it, over all runs; without it, whatever the run asks for."""
    max_delta: float = DELTA
    """The delta at which that is judged: the run's own is the server's word."""
    name: str = ""
    """What this client is called in tables and reports; its number without one."""

    @classmethod
    def from_dict(cls, table: dict[str, Any]) -> NodeConfig:
        client = table.get("client-id", table.get("partition-id"))
        if type(client) is not int or client < 0:
            raise UsageError(
                "the node has no client-id: start it with --node-config 'client-id=0 state-dir=\"...\"'"
            )
        state = table.get("state-dir")
        if not isinstance(state, str) or not Path(state).is_absolute():
            raise UsageError(
                "the node has no state-dir: give the absolute path of a folder in --node-config"
            )
        most = table.get("max-epsilon")
        if most is not None and (type(most) not in (int, float) or not 0 < most < math.inf):
            raise UsageError(f"the node's max-epsilon is {most!r}: must be a number above 0")
        delta = table.get("max-delta", DELTA)
        if type(delta) is not float or not 0 < delta < 1:
            raise UsageError(f"the node's max-delta is {delta!r}: must be a number between 0 and 1")
        name = table.get("name", "")
        if not isinstance(name, str) or len(name) > LONGEST_NAME:
            raise UsageError(
                f"the node's name is {name!r}: must be a text of at most {LONGEST_NAME} letters"
            )
        return cls(client, Path(state), str(table.get("data", "")), most, delta, name)
