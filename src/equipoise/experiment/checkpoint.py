"""Checkpoints of a run, and the inputs that must not change before it is resumed.

A checkpoint is one file. If the state of all clients is large, it is one file for the server and
further files with the rows of the clients that changed since the last checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from equipoise.clock.devices import DEVICE_POPULATIONS, load_device_classes
from equipoise.core import Task
from equipoise.records.run_dir import Folder
from equipoise.settings.run_settings import RunSettings
from equipoise.simulation.server_loop import FederatedSimulation
from equipoise.utils import io
from equipoise.utils.errors import UsageError
from equipoise.utils.io import write_text
from equipoise.utils.pytree import State, tree_bytes
from equipoise.utils.serialization import ShardedRows

MAX_SINGLE_FILE_BYTES = 2**25  # client state up to this size (32 MiB) is part of the one file


class Checkpoint:
    """Writer and reader of the checkpoints of one simulation; tracks what is already on disk."""

    def __init__(self, folder: Folder, simulation: FederatedSimulation) -> None:
        """Prepare checkpoints of a simulation in the folder of its run."""
        self._file = folder.checkpoint
        self._simulation = simulation
        self._shards = ShardedRows(folder.checkpoint.parent, simulation.task.num_clients)

    def save(self, best: State, about: dict[str, object]) -> None:
        """Save the simulation.

        Args:
            best: The best model so far.
            about: Facts about the run that are stored beside its state.
        """
        simulation = self._simulation
        store = simulation.store
        client_bytes = tree_bytes(simulation.client_state_dict(store.ids[:1]))
        if not self._shards.files and client_bytes * len(store.ids) <= MAX_SINGLE_FILE_BYTES:
            io.save(self._file, {"simulation": simulation.state_dict(), "best": best}, about)
            return
        self._shards.add(store.changed(), client_bytes, simulation.client_state_dict)
        about = {**about, "parts": self._shards.files, "seen": len(store.ids)}
        io.save(self._file, {"simulation": simulation.server_state_dict(), "best": best}, about)
        store.forget_changes()
        self._shards.remove_unused_files()

    def load(self) -> tuple[State, dict[str, Any]]:
        """Load the last checkpoint into the simulation.

        Returns:
            The best model so far, and the facts about the run as they were saved.

        Raises:
            UsageError: If the checkpoint is damaged or of another version.
        """
        state, about = io.load(self._file)
        try:
            self._simulation.load_state_dict(state["simulation"], about["round"])
            if "parts" in about:
                self._simulation.load_client_shards(
                    about["seen"], self._shards.load(about["parts"])
                )
        except KeyError as error:
            raise UsageError(
                f"checkpoint '{self._file}' is of another version: {error} is missing"
            ) from error
        best: State = state["best"]
        return best, about


def write_inputs(folder: Folder, settings: RunSettings, task: Task) -> None:
    """Write what a resumed run is compared with: preprocessing, data fingerprint, device table.

    They are written before the config, whose presence makes the folder a run.

    Args:
        folder: Folder of the run.
        settings: Options of the run.
        task: Task of the run.
    """
    devices = settings.timing.devices
    table = "" if devices in DEVICE_POPULATIONS else Path(devices).read_text(encoding="utf-8-sig")
    texts = {
        folder.preparation: task.preprocessing_json(),
        folder.fingerprint: task.fingerprint(),
        folder.devices: table,
    }
    for file, text in texts.items():
        if text:
            write_text(file, text)


def check_unchanged(folder: Folder, settings: RunSettings, task: Task) -> None:
    """Check that data and devices are those that the run began with.

    Args:
        folder: Folder of the run.
        settings: Options of the run.
        task: Task of the run.

    Raises:
        UsageError: If the data or the devices have changed.
    """
    if folder.fingerprint.exists() and folder.fingerprint.read_text() != task.fingerprint():
        raise UsageError(
            f"the data have changed since the run in '{folder.path}' began: "
            "restore them, or begin a new run"
        )
    if (
        folder.devices.exists()
        and load_device_classes(str(folder.devices)) != settings.timing.device_classes
    ):
        raise UsageError(
            f"the devices in '{settings.timing.devices}' have changed since the run in "
            f"'{folder.path}' began: restore them from '{folder.devices}', or begin a new run"
        )
