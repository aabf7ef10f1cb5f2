"""A run's checkpoint: one file, or where clients hold much, one file and the rows of those who changed."""

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

WHOLE = 2**25  # bytes of what clients hold: so much is written at once, as part of the one file


class Checkpoint:
    """What is on disk of a simulation, so that the next saving need not write it again."""

    def __init__(self, folder: Folder, simulation: FederatedSimulation) -> None:
        self._file, self._simulation = folder.checkpoint, simulation
        self._parts = ShardedRows(folder.checkpoint.parent, simulation.task.num_clients)

    def save(self, best: State, about: dict[str, Any]) -> None:
        """``best``: the best model so far; ``about``: what is known of the run beside its state."""
        simulation, store = self._simulation, self._simulation.store
        each = tree_bytes(simulation.client_state_dict(store.ids[:1]))
        if not self._parts.files and each * len(store.ids) <= WHOLE:
            io.save(self._file, {"simulation": simulation.state_dict(), "best": best}, about)
            return
        self._parts.add(store.changed(), each, simulation.client_state_dict)
        about = {**about, "parts": self._parts.files, "seen": len(store.ids)}
        io.save(self._file, {"simulation": simulation.server_state_dict(), "best": best}, about)
        store.forget_changes()
        self._parts.remove_unused_files()

    def load(self) -> tuple[State, dict[str, Any]]:
        """Bring the simulation to where it was; gives the best model and the rest as they were saved."""
        state, about = io.load(self._file)
        try:
            self._simulation.load_state_dict(state["simulation"], about["round"])
            if "parts" in about:
                self._simulation.load_client_shards(about["seen"], self._parts.load(about["parts"]))
        except KeyError as error:
            raise UsageError(
                f"checkpoint '{self._file}' is of another version: {error} is missing"
            ) from error
        best: State = state["best"]
        return best, about


def keep(folder: Folder, settings: RunSettings, task: Task) -> None:
    """Write them down, before the config says that a run is here."""
    devices = settings.timing.devices
    table = "" if devices in DEVICE_POPULATIONS else Path(devices).read_text(encoding="utf-8-sig")
    before = {
        folder.preparation: task.preprocessing_json(),
        folder.fingerprint: task.fingerprint(),
        folder.devices: table,
    }
    for file, text in before.items():
        if text:
            write_text(file, text)


def demand_unchanged(folder: Folder, settings: RunSettings, task: Task) -> None:
    """Refuse to go on with other data or other devices."""
    if folder.fingerprint.exists() and folder.fingerprint.read_text() != task.fingerprint():
        raise UsageError(
            f"the data have changed since the run in '{folder.path}' began: restore them, or begin a new run"
        )
    if (
        folder.devices.exists()
        and load_device_classes(str(folder.devices)) != settings.timing.device_classes
    ):
        raise UsageError(
            f"the devices in '{settings.timing.devices}' have changed since the run in '{folder.path}' began: restore "
            f"them from '{folder.devices}', or begin a new run"
        )
