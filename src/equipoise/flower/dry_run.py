"""Show what would leave a node: one round of an app on the node's own rows, without any server."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from equipoise.core import State
from equipoise.experiment.build import build_task
from equipoise.flower import codec
from equipoise.flower.config import NodeConfig, read_app_config
from equipoise.flower.egress import EgressRules
from equipoise.flower.launch import read_app_options
from equipoise.flower.node import Node
from equipoise.flower.remote_executor import RemoteExecutor
from equipoise.flower.table_agreement import agree_on_preprocessing, raw_table_config
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig
from equipoise.tasks.remote_tables import RemoteTablesConfig
from equipoise.utils.errors import UsageError

MAX_SHOWN_NUMBERS = 4  # larger tensors are shown by shape and size


def describe_egress(app: Path, client: int, data: str, rules: EgressRules) -> list[str]:
    """Describe every answer of a node in the first round and after the last one.

    Args:
        app: Folder of the app.
        client: Id of the client.
        data: The node's data folder; empty if the task makes its own data.
        rules: The node's egress rules.

    Returns:
        Lines for people: the answers with all numbers that are not parameters.

    Raises:
        UsageError: If the app or the data cannot be used.
    """
    settings, _ = read_app_config(read_app_options(app))
    given = settings.to_dict
    notes = []
    if isinstance(settings.task_config, RemoteTablesConfig):
        if not data:
            raise UsageError("the app's rows are at its nodes: give the node's folder with --data")
        # Statistics of the other sites are not known here.
        given |= {"data": data, "clients": 1}
        client = 0
    if settings.run.secure:
        given["secure"] = False
        notes.append("with --secure the upload is masked: the server sees only the sum of all")
    settings = ExperimentConfig.from_options(given)
    with tempfile.TemporaryDirectory() as state:
        wire = _LocalWire(given, NodeConfig(client, Path(state), data, rules=rules))
        try:
            with _quiet():
                _run(settings, wire, client)
        except UsageError as error:
            notes.append(f"the run would end before round 1: {error}")
        return notes + [line for kind, data_ in wire.answers for line in _describe(kind, data_)]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the log silent: what is refused is in the lines."""
    logger = logging.getLogger("equipoise")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


class _LocalWire:
    """A wire to one node in this process, which keeps its answers."""

    def __init__(self, given: Mapping[str, Any], config: NodeConfig) -> None:
        self.given = given
        self.config = config
        self.answers: list[tuple[str, bytes]] = []

    def present(self) -> dict[int, int]:
        """Return the one client."""
        if not self.answers:
            self._ask(codec.encode({}, {"kind": "hello"}))
        return {self.config.client: 1}

    def exchange(self, messages: dict[int, bytes], limit: float) -> dict[int, bytes | str]:
        """Hand messages to the node."""
        return {client: self._ask(data) for client, data in messages.items()}

    def _ask(self, data: bytes) -> bytes:
        answer = Node(self.given, self.config).answer(data)
        self.answers.append((str(codec.decode(data)[1]["kind"]), answer))
        return answer


def _run(settings: ExperimentConfig, wire: _LocalWire, client: int) -> None:
    """Run the exchange before round 1, one round, and the final evaluation."""
    preparation = ""
    wire.present()
    if raw := raw_table_config(settings):
        agreed = agree_on_preprocessing(raw, settings.privacy, wire, 1.0)
        settings = agreed.settings(settings)
        preparation = agreed.preprocessor.to_json()
    task = build_task(settings)
    settings = settings.with_chosen_noise(task.info.num_clients, is_simulation=False)

    def make_executor(*configuration: Any) -> RemoteExecutor:
        return RemoteExecutor(
            *configuration,
            wire=wire,
            run="dryrun",
            time_limit=1.0,
            min_replies=1,
            preparation=preparation,
            verdict=True,
        )

    simulation = FederatedSimulation(
        settings.wrapped_method,
        task,
        settings.training,
        RoundLoopConfig(settings.run.rounds, settings.run.seed, 1.0, "loop", 1, True),
        make_executor,
    )
    simulation.run_round()
    has_global = simulation.method.has_global(task)
    params = simulation.params if has_global else {}
    simulation.executor.final_scores(np.array([client]), params, simulation.rounds_done)


def _describe(kind: str, data: bytes) -> Iterator[str]:
    """Describe one answer: its metadata in full, and its tensors."""
    tree, metadata = codec.decode(data)
    if "error" in metadata:
        yield f"{kind}: refused: {metadata['error']}"
        return
    yield f"{kind}: {len(data)} bytes"
    for name, value in metadata.items():
        yield f"  {name}: {value}"
    for name, tensor in _leaves(tree):
        text = f"{tensor.numel()} numbers, {tuple(tensor.shape)} {tensor.dtype}"
        if tensor.numel() <= MAX_SHOWN_NUMBERS:
            text = str(tensor.tolist())
        yield f"  {name}: {text}"


def _leaves(tree: State, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a tree with their paths."""
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", value
