"""Options of a deployment, and the configuration of a node."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.config.schema import Options, option
from equipoise.flower.egress import NO_RULES, EgressRules
from equipoise.privacy.budget import DEFAULT_DELTA
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.utils.errors import UsageError
from equipoise.wrappers.secure_aggregation import MAX_CLIENTS, MIN_CLIENTS


@dataclass(frozen=True)
class DeploymentConfig(Options):
    """Options of the server of a deployment."""

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
    verdict: bool = option(
        True,
        "at the end every client also trains alone, for as many rounds, and compares that model "
        "with its own on its test rows",
    )
    below: str = option(
        "skip",
        "what happens then: skip (go on with the next round) or stop (resume later)",
        choices=("skip", "stop"),
    )

    def __post_init__(self) -> None:
        """Check the paths.

        Raises:
            UsageError: If a path is not absolute.
        """
        super().__post_init__()
        if not Path(self.out).is_absolute():
            raise UsageError(
                f"out is '{self.out}': must be an absolute path, for the server runs in a folder "
                "of its own"
            )
        if self.nodes and not Path(self.nodes).is_absolute():
            raise UsageError(f"nodes is '{self.nodes}': must be an absolute path")


MAX_NAME_LENGTH = 100
ROLES = ("train", "validate", "adapt")
"""What a node may do; the last two are outside training."""
OPTION_NAMES = tuple(item.name for item in dataclasses.fields(DeploymentConfig))


def read_app_config(table: Mapping[str, Any]) -> tuple[ExperimentConfig, DeploymentConfig]:
    """Split an app's options into those of the run and those of the deployment.

    Args:
        table: Flat table of the app's ``pyproject.toml``.

    Returns:
        Settings of the run, and options of the deployment.

    Raises:
        UsageError: If an option is wrong or not available in a deployment.
    """
    given = {name.replace("-", "_"): value for name, value in table.items()}
    deployment = {name: given.pop(name) for name in OPTION_NAMES if name in given}
    # Saved after every round: clients can go back one round, not more.
    settings = ExperimentConfig.from_options({**given, "checkpoint_every": 1})
    if settings.run.finetune:
        raise UsageError(
            "finetune needs every client's model in one place: fine-tune at the clients (method "
            "'finetune')"
        )
    return settings, DeploymentConfig(**deployment)


@dataclass(frozen=True)
class NodeConfig:
    """Configuration of a node, given at its start and never by the server.

    Attributes:
        client: Id of the client.
        state_dir: Folder for the client's state.
        data: Folder of the client's data; replaces the run's option.
        max_epsilon: Privacy budget of this client over all runs; unlimited if ``None``.
        max_delta: The delta at which the budget is judged, because the run's own delta is chosen
            by the server.
        name: Name of this client in tables and reports; its number if empty.
        max_clients: Largest number of clients in a secure sum that the owner believes in. More
            keys are refused, and the budget counts on no more. If ``None``, 100 keys are accepted
            and an upload costs as much as one that the server sees alone.
        rules: What may leave this client.
        role: ``train``; or ``validate`` or ``adapt`` for a site outside training, which gets the
            final model.
    """

    client: int
    state_dir: Path
    data: str
    max_epsilon: float | None = None
    max_delta: float = DEFAULT_DELTA
    name: str = ""
    max_clients: int | None = None
    rules: EgressRules = NO_RULES
    role: str = "train"

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> NodeConfig:
        """Read the table that Flower's ``--node-config`` gives.

        Raises:
            UsageError: If a value is missing or wrong.
        """
        client = table.get("client-id", table.get("partition-id"))
        if type(client) is not int or client < 0:
            raise UsageError(
                "the node has no client-id: start it with --node-config 'client-id=0 "
                'state-dir="..."\''
            )
        state = table.get("state-dir")
        if not isinstance(state, str) or not Path(state).is_absolute():
            raise UsageError(
                "the node has no state-dir: give the absolute path of a folder in --node-config"
            )
        most = table.get("max-epsilon")
        if most is not None and (type(most) not in (int, float) or not 0 < most < math.inf):
            raise UsageError(f"the node's max-epsilon is {most!r}: must be a number above 0")
        delta = table.get("max-delta", DEFAULT_DELTA)
        if type(delta) is not float or not 0 < delta < 1:
            raise UsageError(f"the node's max-delta is {delta!r}: must be a number between 0 and 1")
        name = table.get("name", "")
        if not isinstance(name, str) or len(name) > MAX_NAME_LENGTH:
            raise UsageError(
                f"the node's name is {name!r}: must be a text of at most {MAX_NAME_LENGTH} letters"
            )
        max_clients = table.get("max-clients")
        if max_clients is not None and (
            type(max_clients) is not int or not MIN_CLIENTS <= max_clients <= MAX_CLIENTS
        ):
            raise UsageError(
                f"the node's max-clients is {max_clients!r}: must be a whole number from "
                f"{MIN_CLIENTS} to {MAX_CLIENTS}"
            )
        role = table.get("role", "train")
        if role not in ROLES:
            raise UsageError(f"the node's role is {role!r}: must be one of {', '.join(ROLES)}")
        rules_file = table.get("rules", "")
        if not isinstance(rules_file, str) or (rules_file and not Path(rules_file).is_absolute()):
            raise UsageError(
                f"the node's rules are {rules_file!r}: must be the absolute path of a node.toml"
            )
        rules = EgressRules.load(Path(rules_file)) if rules_file else NO_RULES
        data = str(table.get("data", ""))
        return cls(client, Path(state), data, most, delta, name, max_clients, rules, role)
