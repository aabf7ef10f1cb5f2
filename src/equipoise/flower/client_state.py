"""State of a client between rounds, on its own disk.

A client cannot know whether its reply was accepted: it may be lost, late or refused, or the server
may stop before it saves. So each round is written next to the last one, and the server's next
message says which round of this client it accepted last. The client continues from there. A round
that was not accepted is dropped on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from equipoise.core import Params, State
from equipoise.flower.codec import InvalidMessage
from equipoise.records.manifest import CheckedFile, Content
from equipoise.records.run_dir import RunFolder
from equipoise.utils import io, serialization
from equipoise.utils.config_file import config_text
from equipoise.utils.errors import UsageError
from equipoise.utils.sealed_json import read_sealed, write_sealed


class ClientStateStore:
    """State of one client in one run."""

    def __init__(self, root: Path, run: str, client: int) -> None:
        """Open the client's folder of a run.

        Args:
            root: The node's folder.
            run: Id of the run.
            client: Id of the client.

        Raises:
            UsageError: If the id of the run could be a path.
        """
        if not run.isalnum():
            raise UsageError(f"the run's id is '{run[:40]}': must be letters and digits")
        self.path = root / run / f"client-{client}"

    def load(self, round: int) -> State | None:
        """Return the state after this round, or ``None`` if it is not here any more."""
        try:
            return serialization.load(self._file(round))[0]
        except UsageError:
            return None

    def save(self, round: int, state: State, accepted_round: int) -> None:
        """Write the state after a round; keep the last accepted one, and delete all others.

        Args:
            round: The new round.
            state: State after it.
            accepted_round: Round that the server accepted last.
        """
        io.make_folder(self.path, private=True)
        serialization.save(self._file(round), state, {"round": round})
        for old in self.path.glob("round-*.safetensors"):
            if old not in (self._file(round), self._file(accepted_round)):
                io.remove(old)

    @property
    def folder(self) -> RunFolder:
        """The client's folder as one that ``predict`` and ``export`` read."""
        return RunFolder(self.path)

    def save_model(
        self, params: Params, frozen: Params, card: str, options: Mapping[str, Any]
    ) -> None:
        """Save the model that this client would use now, with all that is needed to use it.

        The folder can be given to ``equipoise predict`` and ``export`` like that of a run: the
        client's own model is in the place of the global model.

        Args:
            params: Parameters of the model.
            frozen: Parameters that are never trained.
            card: Card of the model as JSON; empty if the task learns no network.
            options: Options of the run.
        """
        folder = self.folder
        files: dict[str, Content] = {}
        if not folder.has_config():
            io.make_folder(folder.models, private=True)
            if frozen:
                files[folder.model("frozen").name] = _tensor_writer(frozen)
            if card:
                files[folder.card.name] = card
            files[folder.config.name] = config_text(options)
        folder.write({folder.model("global").name: _tensor_writer(params), **files})

    def load_model(self) -> Params:
        """Return the model that :meth:`save_model` saved.

        Raises:
            InvalidMessage: If there is none.
        """
        file = self.folder.model("global")
        if not file.exists():
            raise InvalidMessage("it has no model of this run")
        return file.read_tensors()

    @property
    def preparation(self) -> CheckedFile:
        """File with the preprocessing of raw tables, as the server sent it."""
        return self.folder.preparation

    def save_preparation(self, text: str) -> None:
        """Save the preprocessing of raw tables."""
        io.make_folder(self.path, private=True)
        self.preparation.write(text)

    def save_secagg_input(self, round: int, part: Params, update_digest: str, member: str) -> None:
        """Save this client's input of a secure sum and its protocol state; delete older ones.

        Args:
            round: Number of the round.
            part: The input.
            update_digest: Digest of the update from which the input was made.
            member: Protocol state.
        """
        for old in (*self.path.glob("part-*"), *self.path.glob("member-*")):
            io.remove(old)
        metadata = {"update": update_digest}
        serialization.write_tensors(self.path / f"part-{round}.safetensors", part, metadata)
        self.save_secagg_state(round, member)

    def load_secagg_input(self, round: int) -> tuple[Params, str]:
        """Return this client's input of a secure sum, and the digest of its update."""
        part, metadata = serialization.read_tensors(self.path / f"part-{round}.safetensors")
        return part, metadata["update"]

    def save_secagg_state(self, round: int, member: str) -> None:
        """Save the state of the secure aggregation protocol."""
        io.write_text(self.path / f"member-{round}.json", member)

    def load_secagg_state(self, round: int) -> str:
        """Return the state of the secure aggregation protocol.

        Raises:
            InvalidMessage: If this client has none for the round.
        """
        file = self.path / f"member-{round}.json"
        if not file.exists():
            raise InvalidMessage(f"this client has no part in a secure sum of round {round}")
        return io.read_text(file)

    def delete_secagg(self, round: int) -> None:
        """Delete input and protocol state of a round."""
        io.remove(self.path / f"member-{round}.json")
        io.remove(self.path / f"part-{round}.safetensors")

    def _file(self, round: int) -> Path:
        return self.path / f"round-{round}.safetensors"


class RevealedUpdates:
    """Which updates a client has given to secure sums, over all runs.

    The difference of two sums that have all updates in common but one is that one update. So a
    client gives one update per round, and never the same update twice.
    """

    def __init__(self, file: Path) -> None:
        """Open the record; the file is created with the first update."""
        self.file = file

    def check_round(self, run: str, round: int) -> None:
        """Refuse a round for which this client has given an update, and all rounds before it.

        Args:
            run: Id of the run.
            round: Number of the round.

        Raises:
            InvalidMessage: If the round is refused.
        """
        last = self._read()[0].get(run, 0)
        if round <= last:
            raise InvalidMessage(
                f"this client has given its update of round {last} to a secure sum: it answers "
                f"round {last + 1} and later ones"
            )

    def check_update(self, digest: str) -> None:
        """Refuse an update that this client has given before, in any run.

        Args:
            digest: Digest of the update before weighting, because the server chooses weights.

        Raises:
            InvalidMessage: If the same update was given before.
        """
        if digest in self._read()[1]:
            raise InvalidMessage(
                "this client has given the very same update to a secure sum before, and two sums "
                "with it could be subtracted: choose another seed"
            )

    def record(self, run: str, round: int, digest: str) -> None:
        """Write down an update before it leaves, masked.

        Args:
            run: Id of the run.
            round: The round of the update.
            digest: Digest of the update.
        """
        last_rounds, digests = self._read()
        last_rounds[run] = round
        table = {"last_rounds": last_rounds, "digests": [*digests, digest]}
        write_sealed(self.file, table)

    def _read(self) -> tuple[dict[str, int], list[str]]:
        """Return the last round of each run, and the digests of all updates."""
        table = read_sealed(self.file, "this client's record of its secure sums is lost")
        if table is None:
            return {}, []
        return table["last_rounds"], table["digests"]


def _tensor_writer(tensors: Params) -> Callable[[Path], None]:
    """Return a function that writes tensors to a file."""
    return lambda file: serialization.fill_tensors(file, tensors, {})
