"""A run's checkpoint: one file, or where clients hold much, one file and the rows of those who changed."""

from __future__ import annotations

from typing import Any

from equipoise.core import files
from equipoise.core.errors import UsageError
from equipoise.core.parts import ShardedRows
from equipoise.core.trees import State, tree_bytes
from equipoise.records.folder import Folder
from equipoise.runtime.round import FederatedSimulation

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
            files.save(self._file, {"simulation": simulation.state_dict(), "best": best}, about)
            return
        self._parts.add(store.changed(), each, simulation.client_state_dict)
        about = {**about, "parts": self._parts.files, "seen": len(store.ids)}
        files.save(self._file, {"simulation": simulation.server_state_dict(), "best": best}, about)
        store.forget_changes()
        self._parts.sweep()

    def load(self) -> tuple[State, dict[str, Any]]:
        """Bring the simulation to where it was; gives the best model and the rest as they were saved."""
        state, about = files.load(self._file)
        try:
            self._simulation.load_state_dict(state["simulation"], about["round"])
            if "parts" in about:
                self._simulation.load_client_shards(about["seen"], self._parts.load(about["parts"]))
        except KeyError as error:
            raise UsageError(f"checkpoint '{self._file}' is of another version: {error} is missing") from error
        best: State = state["best"]
        return best, about
