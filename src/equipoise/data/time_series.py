"""Recordings cut into windows.

All windows of a recording are in one split, because they overlap and look alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from equipoise.data.federated_dataset import SPLITS, AnyArray, Federation, Ints, Target
from equipoise.data.splits import client_splits
from equipoise.data.tabular.columns import format_number
from equipoise.data.tabular.config import TableConfig
from equipoise.data.tabular.statistics import moments
from equipoise.utils.errors import UsageError, did_you_mean, require
from equipoise.utils.record import Record, from_json, to_json

Windows = NDArray[np.float32]
"""Windows ``[n, channels, window]``."""
VERSION = 1


@dataclass(frozen=True)
class UnlabelledRecordings:
    """Recordings without owners and classes.

    Attributes:
        steps: One recording after the other ``[sum of length, channels]``.
        length: The number of steps of each recording.
    """

    steps: NDArray[np.float32]
    length: Ints

    def windows(self, recording: int, window: int) -> Windows:
        """Cut one recording into windows ``[n, channels, window]``, each half over the last."""
        first = int(self.length[:recording].sum())
        starts = first + self.starts(recording, window)
        return np.stack([self.steps[start : start + window].T for start in starts])

    def starts(self, recording: int, window: int) -> Ints:
        """Return the first step of each window of one recording."""
        return np.arange(0, int(self.length[recording]) - window + 1, max(1, window // 2))

    def check_length(self, window: int) -> None:
        """Refuse recordings that are shorter than a window.

        Raises:
            UsageError: If there is one.
        """
        shortest = int(np.argmax(self.length < window))
        length = self.length[shortest]
        message = f"recording {shortest} has {length} steps: a window of {window} is longer"
        require(length >= window, message)


@dataclass(frozen=True)
class Recordings(UnlabelledRecordings):
    """Recordings with owners and classes.

    Attributes:
        owner: The client of each recording.
        y: The class of each recording.
        names: The names of the clients.
        classes: The names of the classes.
        target: The name of the target.
    """

    owner: Ints
    y: Ints
    names: tuple[str, ...]
    classes: tuple[str, ...]
    target: str


class WindowTransform(Record, frozen=True):
    """How recordings become inputs of a model.

    Attributes:
        version: The version of the file format.
        window: The number of steps of a window.
        mean: The value that is subtracted from each channel.
        scale: The value that each channel is divided by.
    """

    version: int
    window: int
    mean: tuple[float, ...]
    scale: tuple[float, ...]

    @property
    def features(self) -> tuple[str, ...]:
        """The names of inputs; those of windows have none."""
        return ()

    def prepare(self, windows: Windows) -> Windows:
        """Standardise raw windows ``[n, channels, window]``.

        Raises:
            UsageError: If they have other channels or steps.
        """
        shape = (len(self.mean), self.window)
        require(
            windows.shape[1:] == shape,
            f"the windows have shape {windows.shape[1:]}, the model takes {shape[0]} channels of "
            f"{shape[1]} steps",
        )
        mean = np.array(self.mean, np.float32)[:, None]
        prepared: Windows = (windows - mean) / np.array(self.scale, np.float32)[:, None]
        return prepared

    def cut_windows(self, steps: UnlabelledRecordings) -> tuple[Windows, Ints, Ints]:
        """Cut new recordings into windows.

        Returns:
            All windows, and the recording and the first step of each.
        """
        steps.check_length(self.window)
        recordings = range(len(steps.length))
        starts = [steps.starts(k, self.window) for k in recordings]
        windows = np.concatenate([steps.windows(k, self.window) for k in recordings])
        return windows, np.repeat(recordings, list(map(len, starts))), np.concatenate(starts)

    def to_json(self) -> str:
        """Return the content of `preparation.json`."""
        return to_json(self)

    @staticmethod
    def from_json(text: str, source: str) -> WindowTransform:
        """Read the result of `to_json`; `source` is its name in errors."""
        return from_json(WindowTransform, text, source)


@dataclass(frozen=True)
class FederatedRecordings:
    """Recordings that are ready for training.

    Attributes:
        data: The federation.
        preprocessor: How recordings became its inputs.
        upload_bytes: Bytes of the moments that all clients sent before round 1.
        download_bytes: Bytes of the preprocessor, once for each client.
    """

    data: Federation
    preprocessor: WindowTransform
    upload_bytes: int
    download_bytes: int


def read_recordings(path: Path, client: str, target: str) -> Recordings:
    """Read a NumPy archive of recordings.

    Args:
        path: The archive, with the arrays ``x`` (steps) and ``length``.
        client: The array with the client of each recording.
        target: The array with the class of each; the array of this name and ``s`` names classes.

    Returns:
        The recordings.

    Raises:
        UsageError: If the archive cannot be read.
    """
    arrays = _load_arrays(path, client, target)
    steps = steps_from_arrays(arrays, f"'{path}'")
    require(
        len(arrays[client]) == len(arrays[target]) == len(steps.length),
        f"'{path}' must have one entry per recording in '{client}' and '{target}'",
    )
    clients, owner = np.unique(arrays[client], return_inverse=True)
    classes, y = np.unique(arrays[target], return_inverse=True)
    class_names = arrays.get(f"{target}s")
    if class_names is not None and classes.dtype.kind in "iu":
        is_index = (classes >= 0) & (classes < len(class_names))
        classes = class_names[classes] if is_index.all() else classes
    return Recordings(steps.steps, steps.length, owner, y, _names(clients), _names(classes), target)


def read_steps(path: Path) -> UnlabelledRecordings:
    """Read new recordings, without owners and classes."""
    return steps_from_arrays(_load_arrays(path), f"'{path}'")


def steps_from_arrays(arrays: Mapping[str, ArrayLike], location: str) -> UnlabelledRecordings:
    """Check and convert the arrays ``x`` and ``length``; `location` is their name in errors."""
    length = np.asarray(arrays["length"]).astype(np.int64)
    x = np.asarray(arrays["x"]).astype(np.float32)
    require(
        x.ndim == 2 and length.ndim == 1 and int(length.sum()) == len(x),
        f"{location} must have steps x [n, channels], and lengths that add up to n",
    )
    is_finite = np.isfinite(x).all(1)
    message = f"step {np.argmin(is_finite)} of {location} holds NaN or infinity: clean it"
    require(bool(is_finite.all()), message)
    return UnlabelledRecordings(x, length)


def _load_arrays(path: Path, *more: str) -> dict[str, AnyArray]:
    """Load an archive that has the arrays ``x``, ``length`` and others."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays: dict[str, AnyArray] = {name: file[name] for name in file.files}
    except (OSError, ValueError) as error:
        raise UsageError(f"'{path}' cannot be read: {error}") from error
    for name in ("x", "length", *more):
        suggestion = did_you_mean(name, arrays)
        message = f"'{path}' has no array '{name}'{suggestion}: it has {', '.join(arrays)}"
        require(name in arrays, message)
    return arrays


def federate_recordings(
    recordings: Recordings, window: int, config: TableConfig, rng: np.random.Generator
) -> FederatedRecordings:
    """Assign whole recordings to splits, and standardise channels by the training windows.

    Args:
        recordings: The recordings of all clients.
        window: The number of steps of a window.
        config: Shares of the splits, and how to standardise.
        rng: Draws the splits.

    Returns:
        The federation, with its preprocessor and the bytes of the exchange.

    Raises:
        UsageError: If recordings are too few or too short.
    """
    require(
        config.standardise != "client",
        "recordings are standardised by the federation, or not at all (standardise none)",
    )
    recordings.check_length(window)
    rows: dict[str, list[tuple[Windows, Ints]]] = {}
    for client in range(len(recordings.names)):
        for split, members in _split_client(recordings, client, config, rng).items():
            rows.setdefault(split, []).append(_cut_windows(recordings, members, window))
    by_server = config.preprocess_from == "server"
    fitted_rows = rows["server" if by_server else "train"]
    preprocessor, upload_bytes = _fit(fitted_rows, window, config.standardise != "none")

    def join(parts: list[tuple[Windows, Ints]]) -> tuple[Tensor, Tensor]:
        x = np.concatenate([x for x, _ in parts])
        y = np.concatenate([y for _, y in parts])
        return torch.from_numpy(preprocessor.prepare(x)), torch.from_numpy(y)

    splits = {
        name: (*join(rows[name]), np.array([len(y) for _, y in rows[name]]))
        for name in SPLITS
        if name in rows
    }
    # Whole clients, and so whole recordings.
    num_public = max(1, round(config.public_share * len(rows["server"])))
    require(
        num_public < len(rows["server"]),
        "recordings need at least two clients: one's are the server's public set, "
        "the rest its test set",
    )
    server = {
        "public": join(rows["server"][:num_public]),
        "test": join(rows["server"][num_public:]),
    }
    target = Target("classification", recordings.target, recordings.classes)
    data = Federation(splits, server, len(recordings.classes), None, target)
    data.names = recordings.names
    download_bytes = len(preprocessor.to_json().encode()) * len(recordings.names)
    return FederatedRecordings(data, preprocessor, 0 if by_server else upload_bytes, download_bytes)


def _split_client(
    recordings: Recordings, client: int, config: TableConfig, rng: np.random.Generator
) -> dict[str, Ints]:
    """Assign the recordings of a client to its splits and to the server."""
    members = rng.permutation(np.flatnonzero(recordings.owner == client))
    num_server = max(1, round(config.server_share * len(members)))
    num_own = len(members) - num_server
    require(
        num_own >= len(SPLITS),
        f"client '{recordings.names[client]}' has {len(members)} recordings: "
        f"it needs {len(SPLITS) + 1}, one for each split",
    )
    sizes = client_splits(np.array([num_own]), config)
    ends = num_server + np.cumsum([size[0] for size in sizes.values()])
    parts = np.split(members, [num_server, *ends[:-1]])
    return dict(zip(("server", *sizes), parts, strict=True))


def _fit(
    train: list[tuple[Windows, Ints]], window: int, standardise: bool
) -> tuple[WindowTransform, int]:
    """Fit the transform to each client's moments; also return the bytes of these."""
    num_channels = train[0][0].shape[1]
    if not standardise:
        mean = (0.0,) * num_channels
        return WindowTransform(VERSION, window, mean, (1.0,) * num_channels), 0
    messages = [
        tuple(moments(x[:, channel].ravel().astype(np.float64)) for channel in range(num_channels))
        for x, _ in train
    ]
    merged = [reduce(add, channel) for channel in zip(*messages, strict=True)]
    mean = tuple(float(np.float32(channel.mean)) for channel in merged)
    scale = tuple(float(np.float32(channel.std or 1.0)) for channel in merged)
    upload_bytes = sum(len(to_json(message).encode()) for message in messages)
    return WindowTransform(VERSION, window, mean, scale), upload_bytes


def _cut_windows(recordings: Recordings, members: Ints, window: int) -> tuple[Windows, Ints]:
    """Cut some recordings into windows with their classes."""
    windows = [recordings.windows(recording, window) for recording in members.tolist()]
    return np.concatenate(windows), np.repeat(recordings.y[members], list(map(len, windows)))


def _names(values: AnyArray) -> tuple[str, ...]:
    """Convert values to names: 3, not 3.0."""
    if values.dtype.kind == "f":
        return tuple(map(format_number, values.tolist()))
    return tuple(map(str, values.tolist()))
