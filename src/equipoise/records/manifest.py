"""Checked files: a folder whose files are read and written through one manifest.

``manifest.json`` has the size and the SHA-256 of every file, and a digest of itself. A
:class:`CheckedFile` is no path: its content is reached only by methods that compare it with the
manifest. A file that the manifest does not name does not exist for a reader.

Durability: new content is written to hidden files and synced; then the manifest names the old and
the new state of each file; then the files are renamed, the last one after all others are durable;
then the manifest names the new states only. A kill or a power cut at any operation leaves files
that the manifest knows.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec

from equipoise.utils import io, serialization
from equipoise.utils.errors import DamagedFile, UsageError
from equipoise.utils.pytree import Params, State
from equipoise.utils.record import Record, from_json

MANIFEST_FILE = "manifest.json"
LOG_SUFFIX = ".jsonl"
"""Files with this suffix grow: the manifest has the digest of their first bytes."""
CHECKSUM_KEY = b', "crc": '
"""Start of the last entry of a line of a log: the CRC-32 of the text before it."""
READ_BLOCK_BYTES = 2**20  # bytes that are hashed at once

Content: TypeAlias = str | bytes | Callable[[Path], None]
"""Content of a file: text, bytes, or a function that writes it to a temporary path."""


class FileState(NamedTuple):
    """One state of a file. Of a log it covers the first ``size`` bytes."""

    size: int
    sha256: str


States: TypeAlias = list[FileState | None]
"""States that a file may have; None means that it may be absent."""


class Manifest(Record, frozen=True):
    """Content of ``manifest.json``."""

    files: dict[str, States]
    """States by path, relative to the folder. There are several only while a file is replaced."""
    sha256: str
    """Digest of ``files``."""


@dataclass(frozen=True)
class CheckedFile:
    """One file of a checked folder. It is no path, so that nobody reads it unchecked."""

    folder: CheckedFolder
    name: str
    """Path relative to the folder."""

    def __str__(self) -> str:
        """Return the path, for messages."""
        return str(self.folder.path / self.name)

    def exists(self) -> bool:
        """Return whether the folder has the file.

        A file that was deleted by somebody else still counts: reading it is refused.
        """
        states = self.folder.states(self.name)
        if None in states:
            return (self.folder.path / self.name).exists()
        return bool(states)

    def modified_ns(self) -> int:
        """Return the time of the last change, in nanoseconds; 0 if there is no file."""
        path = self.folder.path / self.name
        return path.stat().st_mtime_ns if path.exists() else 0

    def read_bytes(self) -> bytes:
        """Return the content.

        Raises:
            UsageError: If the file is missing or does not match the manifest.
        """
        return self.folder.verify(self.name).read_bytes()

    def read_text(self) -> str:
        """Return the content as text; raise ``UsageError`` like `read_bytes`."""
        return io.read_text(self.folder.verify(self.name))

    def read_tensors(self) -> Params:
        """Return the tensors of a safetensors file; raise ``UsageError`` like `read_bytes`."""
        return serialization.read_tensors(self.folder.verify(self.name))[0]

    def read_state(self) -> tuple[State, serialization.Meta]:
        """Return tree and JSON object of `serialization.save`; raise like `read_bytes`."""
        return serialization.load(self.folder.verify(self.name))

    def write(self, content: Content) -> None:
        """Replace the content durably."""
        self.folder.write({self.name: content})


@dataclass(frozen=True)
class CheckedFolder:
    """A folder with a manifest. One process at a time may write to it (`io.locked`)."""

    path: Path

    def __post_init__(self) -> None:
        """Refuse a path that no file system can have."""
        if "\0" in str(self.path):
            raise UsageError(f"the folder {str(self.path)!r} has a NUL character in its name")

    def file(self, name: str) -> CheckedFile:
        """Return a file by its path relative to the folder."""
        return CheckedFile(self, name)

    @property
    def decision(self) -> CheckedFile:
        """Scores of all models on the same rows, and the verdict; of a run or a comparison."""
        return self.file("decision.json")

    def states(self, name: str) -> States:
        """Return the states that a file may have; empty if the manifest does not name it."""
        is_there = (self.path / name).exists()
        return self._read_manifest(or_empty=not is_there).get(name, [])

    def verify(self, name: str) -> Path:
        """Compare a file with the manifest.

        Args:
            name: Path relative to the folder.

        Returns:
            The path of the file.

        Raises:
            UsageError: If the file is missing or does not match.
        """
        path = self.path / name
        files = self._read_manifest()
        while not any(_matches(path, state) for state in files.get(name, []) if state):
            before = files
            files = self._read_manifest()
            if files == before:  # otherwise a running command has just replaced the file
                raise DamagedFile(self._difference(path, name in files))
        return path

    def covered_bytes(self, name: str) -> int:
        """Return how many bytes of a log the manifest covers; raise like `verify`."""
        path = self.verify(name)
        states = [state for state in self.states(name) if state and _matches(path, state)]
        return max(state.size for state in states)

    def write(
        self, contents: Mapping[str, Content], logs: Mapping[str, FileState] | None = None
    ) -> None:
        """Replace files durably: after a crash each has its old or its new content.

        Args:
            contents: Content by path relative to the folder. The last file is replaced when all
                others are durable, so that it can mark them as complete.
            logs: New states of logs whose content is already on disk.

        Raises:
            OSError: If the disk fails.
        """
        paths = [self.path / name for name in contents]
        temporaries = [io.temporary_path(path) for path in paths]
        logs = dict(logs or {})
        try:
            for temporary, content in zip(temporaries, contents.values(), strict=True):
                io.fill(temporary, _writer(content))
            states = [_state_of(temporary) for temporary in temporaries]
            new: dict[str, States] = {
                name: [state] for name, state in zip(contents, states, strict=True)
            }
            old = self._read_manifest(or_empty=True)
            old |= {name: [state] for name, state in logs.items()}
            both = {name: [*old.get(name, [None]), *states] for name, states in new.items()}
            self._write_manifest({**old, **both})
            io.rename(list(zip(temporaries, paths, strict=True)))
        except Exception:
            io.remove_quietly(temporaries)  # on a full disk their room is needed
            raise
        self._write_manifest({**old, **new})

    def forget(self, names: Iterable[str]) -> None:
        """Remove files and folders durably; the manifest forgets them first.

        Args:
            names: Paths relative to the folder.
        """
        names = list(names)
        files = self._read_manifest(or_empty=True)
        left = {
            name: states
            for name, states in files.items()
            if name not in names and name.partition("/")[0] not in names
        }
        self._write_manifest(left)
        self._remove(names)

    def restart(self, keep: Iterable[str], remove: Iterable[str]) -> None:
        """Begin a new manifest, whatever the old one says.

        Args:
            keep: Files whose present content is trusted.
            remove: Files and folders to remove.
        """
        paths = {name: self.path / name for name in keep}
        self._write_manifest({n: [_state_of(path)] for n, path in paths.items() if path.is_file()})
        self._remove(remove)

    def _remove(self, names: Iterable[str]) -> None:
        """Remove files and folders durably."""
        for name in names:
            io.remove(self.path / name)
        io.sync(self.path)

    def settle(self) -> None:
        """Name one state per file after a crash: the one that is on disk."""
        files = self._read_manifest()
        settled = {
            name: _states_on_disk(self.path / name, states) for name, states in files.items()
        }
        settled = {name: states for name, states in settled.items() if states}
        if settled != files:
            self._write_manifest(settled)

    def _read_manifest(self, or_empty: bool = False) -> dict[str, States]:
        """Read and check the manifest.

        Args:
            or_empty: Whether a missing manifest counts as an empty one.

        Returns:
            The states by name.

        Raises:
            UsageError: If the manifest is missing or damaged.
        """
        path = self.path / MANIFEST_FILE
        try:
            text = path.read_bytes().decode(errors="replace")
        except FileNotFoundError as error:
            if or_empty:
                return {}
            raise DamagedFile(
                f"'{path}' is missing: without it nothing in the folder can be trusted; "
                "restore it, or begin a new run"
            ) from error
        except NotADirectoryError as error:
            raise UsageError(
                f"'{self.path}' is a file, not a folder: choose another one"
            ) from error
        manifest = from_json(Manifest, text, f"'{path}'")
        if manifest.sha256 != _digest(manifest.files):
            raise DamagedFile(f"'{path}' is damaged or was edited: its checksum does not match")
        return manifest.files

    def _write_manifest(self, files: dict[str, States]) -> None:
        """Replace the manifest durably."""
        files = dict(sorted(files.items()))
        text = msgspec.json.format(msgspec.json.encode(Manifest(files, _digest(files))), indent=1)
        io.write_bytes(self.path / MANIFEST_FILE, text + b"\n")

    def _difference(self, path: Path, is_listed: bool) -> str:
        """Say why a file is refused."""
        if not path.exists():
            return f"'{path}' is missing: restore it, or begin a new run"
        if not is_listed:
            return f"'{path}' is not in '{MANIFEST_FILE}': it was not written by this run"
        return (
            f"'{path}' is damaged or was edited: its checksum does not match {MANIFEST_FILE}; "
            "restore it, or begin a new run"
        )


@dataclass(frozen=True)
class NamedFile:
    """Attribute of a checked folder: its file of this name."""

    name: str

    def __get__(self, folder: CheckedFolder, owner: type) -> CheckedFile:
        """Return the file of a folder."""
        return folder.file(self.name)


def seal_line(text: str) -> bytes:
    """Return a JSON object as one line of a log, with its CRC-32 as last entry.

    Args:
        text: JSON object with at least one entry, in one line.

    Returns:
        The line with its end.
    """
    data = text[:-1].encode()
    return data + CHECKSUM_KEY + _line_end(data)


def unseal_line(line: bytes) -> bytes | None:
    """Return the JSON object of a line of `seal_line`; None if the line is damaged."""
    data, _, end = line.rpartition(CHECKSUM_KEY)
    return data + b"}" if end == _line_end(data) else None


def _line_end(data: bytes) -> bytes:
    """Return the end of a line, after the key of its checksum."""
    return b'"%08x"}\n' % zlib.crc32(data)


def _writer(content: Content) -> Callable[[Path], None]:
    """Return the function that writes some content to a path."""
    if callable(content):
        return content
    data = content.encode() if isinstance(content, str) else content

    def write(path: Path) -> None:
        path.write_bytes(data)

    return write


def _states_on_disk(path: Path, states: States) -> States:
    """Return the state that is on disk; all of them if none is."""
    if len(states) == 1:
        return states
    on_disk = [state for state in states if state and _matches(path, state)]
    if on_disk:
        return [max(on_disk)]
    return [] if None in states and not path.exists() else states


def _matches(path: Path, state: FileState) -> bool:
    """Return whether a file has a state."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return False
    is_long_enough = size >= state.size if path.suffix == LOG_SUFFIX else size == state.size
    return is_long_enough and _state_of(path, state.size) == state


def _state_of(path: Path, size: int | None = None) -> FileState:
    """Return the state of a file, or of its first ``size`` bytes."""
    digest = hashlib.sha256()
    left = path.stat().st_size if size is None else size
    total = left
    with path.open("rb") as file:
        while left > 0 and (block := file.read(min(left, READ_BLOCK_BYTES))):
            digest.update(block)
            left -= len(block)
    return FileState(total, digest.hexdigest())


def _digest(files: dict[str, States]) -> str:
    """Return the digest of the content of a manifest."""
    return hashlib.sha256(msgspec.json.encode(files)).hexdigest()
