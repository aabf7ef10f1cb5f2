"""Checkpoints of a run, and the inputs that must not change before it is resumed.

A checkpoint is one file. If the state of all clients is large, it is one file for the server and
further files with the rows of the clients that changed since the last checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from equipoise.clock.devices import DEVICE_POPULATIONS, load_device_classes
from equipoise.core import ExperimentTask
from equipoise.records.manifest import FileState
from equipoise.records.run_dir import RunFolder
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.simulation.server_loop import FederatedSimulation
from equipoise.utils import io, serialization
from equipoise.utils.errors import UsageError
from equipoise.utils.pytree import Ints, State, index, tree_bytes

MAX_FILE_BYTES = 2**26  # of a file with rows of clients
MAX_SINGLE_FILE_BYTES = 2**25  # client state up to this size (32 MiB) is part of the one file


class ShardedRows:
    """Rows of clients in immutable files; of each client, the row in the newest file is valid.

    A save writes only the rows that changed. The list of valid files is stored elsewhere, last.
    """

    def __init__(self, folder: Path, clients: int) -> None:
        """Start without files, for `clients` clients in `folder`."""
        self._folder = folder
        self._newest = np.full(clients, -1, np.int32)
        self._rows: dict[int, int] = {}

    @property
    def files(self) -> dict[str, int]:
        """Row counts of the valid files, by file number."""
        return {str(number): rows for number, rows in self._rows.items()}

    def add(self, changed: Ints, size: int, rows: Callable[[Ints], State]) -> None:
        """Write the rows of changed clients to new files.

        Files with more than half of their rows outdated, and files smaller than the new one, are
        merged into the new files. This keeps both their number and their size small.

        Args:
            changed: Numbers of the changed clients.
            size: Approximate bytes of one row.
            rows: Returns the rows of clients.
        """
        max_rows = max(1, MAX_FILE_BYTES // max(1, size))
        number = max(self._rows, default=0)
        self._newest[changed] = -1
        num_valid = np.bincount(self._newest[self._newest >= 0], minlength=number + 1)
        for old in sorted(self._rows, reverse=True):
            stale = 2 * num_valid[old] < self._rows[old]
            small = self._rows[old] <= max_rows // 2 and num_valid[old] <= len(changed)
            if stale or small:
                changed = np.concatenate([changed, np.flatnonzero(self._newest == old)])
                del self._rows[old]
        if not len(changed):
            return
        for ids in np.array_split(np.sort(changed), -(-len(changed) // max_rows)):
            number += 1
            serialization.save(
                self._path(number), {"ids": torch.from_numpy(ids), "rows": rows(ids)}, {}
            )
            self._newest[ids] = number
            self._rows[number] = len(ids)

    def remove_unused_files(self) -> None:
        """Remove files that are no longer valid, after the new list is stored."""
        valid = {self._path(number) for number in self._rows}
        for file in sorted(self._folder.glob("*clients-*.safetensors")):
            if file not in valid:
                io.remove(file)

    def load(self, num_rows: dict[str, int]) -> Iterator[tuple[Ints, State]]:
        """Load the valid rows.

        Args:
            num_rows: Stored value of `files`.

        Yields:
            Client numbers and their rows, for each file.

        Raises:
            UsageError: If a file is missing or damaged.
        """
        self._rows = {int(number): rows for number, rows in num_rows.items()}
        for number in sorted(self._rows, reverse=True):
            path = self._path(number)
            if not path.is_file():
                raise UsageError(f"'{path}' is missing: the checkpoint cannot be read without it")
            state, _ = serialization.load(path)
            valid = np.flatnonzero(self._newest[state["ids"].numpy()] < 0)
            ids: Ints = state["ids"].numpy()[valid]
            self._newest[ids] = number
            yield ids, index(state["rows"], torch.from_numpy(valid))

    def _path(self, number: int) -> Path:
        return self._folder / f"clients-{number}.safetensors"


class Checkpoint:
    """Writer and reader of the checkpoints of one simulation; tracks what is already on disk."""

    def __init__(self, folder: RunFolder, simulation: FederatedSimulation) -> None:
        """Prepare checkpoints of a simulation in the folder of its run."""
        self._folder = folder
        self._simulation = simulation
        self._shards = ShardedRows(folder.checkpoints, simulation.task.info.num_clients)

    def save(self, best: State, about: dict[str, object], logs: Mapping[str, FileState]) -> None:
        """Save the simulation.

        Args:
            best: The best model so far.
            about: Facts about the run that are stored beside its state.
            logs: States of the logs that belong to the checkpoint.
        """
        simulation = self._simulation
        store = simulation.store
        client_bytes = tree_bytes(simulation.client_state_dict(store.ids[:1]))
        if not self._shards.files and client_bytes * len(store.ids) <= MAX_SINGLE_FILE_BYTES:
            self._write({"simulation": simulation.state_dict(), "best": best}, about, logs)
            return
        self._shards.add(store.changed_ids(), client_bytes, simulation.client_state_dict)
        about = {**about, "parts": self._shards.files, "seen": len(store.ids)}
        self._write({"simulation": simulation.server_state_dict(), "best": best}, about, logs)
        store.forget_changes()
        self._shards.remove_unused_files()

    def _write(self, state: State, about: dict[str, object], logs: Mapping[str, FileState]) -> None:
        """Replace the file of the server."""
        fill = partial(serialization.fill, tree=state, meta=about)
        self._folder.write({self._folder.checkpoint.name: fill}, logs)

    def load(self) -> tuple[State, dict[str, Any]]:
        """Load the last checkpoint into the simulation.

        Returns:
            The best model so far, and the facts about the run as they were saved.

        Raises:
            UsageError: If the checkpoint is damaged or of another version.
        """
        file = self._folder.checkpoint
        state, about = file.read_state()
        try:
            self._simulation.load_state_dict(state["simulation"], about["round"])
            if "parts" in about:
                self._simulation.load_client_shards(
                    about["seen"], self._shards.load(about["parts"])
                )
        except KeyError as error:
            raise UsageError(
                f"checkpoint '{file}' is of another version: {error} is missing"
            ) from error
        best: State = state["best"]
        return best, about


def input_texts(
    folder: RunFolder, settings: ExperimentConfig, task: ExperimentTask
) -> dict[str, str]:
    """Return what a resumed run is compared with: preprocessing, data fingerprint, device table.

    Args:
        folder: Folder of the run.
        settings: Options of the run.
        task: Task of the run.

    Returns:
        Texts by file name; empty if there is nothing to compare.
    """
    devices = settings.timing.devices
    table = "" if devices in DEVICE_POPULATIONS else Path(devices).read_text(encoding="utf-8-sig")
    return {
        folder.preparation.name: task.preparation.to_json(),
        folder.fingerprint.name: task.fingerprint(),
        folder.devices.name: table,
    }


def check_unchanged(folder: RunFolder, settings: ExperimentConfig, task: ExperimentTask) -> None:
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
        and load_device_classes(str(folder.verify(folder.devices.name)))
        != settings.timing.device_classes
    ):
        raise UsageError(
            f"the devices in '{settings.timing.devices}' have changed since the run in "
            f"'{folder.path}' began: restore them from '{folder.devices}', or begin a new run"
        )
