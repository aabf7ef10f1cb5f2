"""What a client keeps between rounds, on its own disk.

A client cannot know whether its reply counted: it may be lost, late or refused, or the server may die before it saves.
So each round is written beside the last, and the server's next message says which round of this client it took last:
from there it goes on. A round that did not count is forgotten, on both sides.
"""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file

from equipoise.core import Params, State
from equipoise.flower.codec import InvalidMessage
from equipoise.utils import io as checkpoint
from equipoise.utils.errors import UsageError


class ClientStateStore:
    """The rounds of one client in one run."""

    def __init__(self, root: Path, run: str, client: int) -> None:
        if not run.isalnum():
            raise UsageError(f"the run's id is '{run[:40]}': must be letters and digits")
        self.path = root / run / f"client-{client}"

    def load(self, round: int) -> State | None:
        """What was held after this round, or ``None`` if it is not here any more."""
        try:
            return checkpoint.load(self._file(round))[0]
        except UsageError:
            return None

    def save(self, round: int, held: State, taken: int) -> None:
        """Write a new round; keep it and the one that the server took last, forget others."""
        checkpoint.make_folder(self.path, private=True)
        checkpoint.save(self._file(round), held, {"round": round})
        for old in self.path.glob("round-*.safetensors"):
            if old not in (self._file(round), self._file(taken)):
                checkpoint.remove(old)

    def save_model(self, params: Params) -> None:
        """The model that this client would use now, as a plain file for its owner."""
        checkpoint.write_tensors(self.path / "model.safetensors", params)

    def load_model(self) -> Params:
        """The inverse of :meth:`save_model`."""
        file = self.path / "model.safetensors"
        if not file.is_file():
            raise InvalidMessage("it has no model of this run")
        return load_file(file)

    @property
    def preparation_file(self) -> Path:
        """How this run's raw tables are prepared, as the server told."""
        return self.path / "preparation.json"

    def save_preparation(self, text: str) -> None:
        checkpoint.make_folder(self.path, private=True)
        checkpoint.write_text(self.preparation_file, text)

    def save_secagg_input(self, round: int, part: Params, member: str) -> None:
        """This client's part of a secure sum, and what it must remember of the masks; of earlier rounds nothing is."""
        for old in (*self.path.glob("part-*"), *self.path.glob("member-*")):
            checkpoint.remove(old)
        checkpoint.write_tensors(self.path / f"part-{round}.safetensors", part)
        self.save_secagg_state(round, member)

    def load_secagg_input(self, round: int) -> Params:
        return checkpoint.read_tensors(self.path / f"part-{round}.safetensors")[0]

    def save_secagg_state(self, round: int, member: str) -> None:
        checkpoint.write_text(self.path / f"member-{round}.json", member)

    def load_secagg_state(self, round: int) -> str:
        file = self.path / f"member-{round}.json"
        if not file.exists():
            raise InvalidMessage(f"this client has no part in a secure sum of round {round}")
        return checkpoint.read_text(file)

    def delete_secagg(self, round: int) -> None:
        checkpoint.remove(self.path / f"member-{round}.json")
        checkpoint.remove(self.path / f"part-{round}.safetensors")

    def _file(self, round: int) -> Path:
        return self.path / f"round-{round}.safetensors"
