"""Recordings cut into windows.

All windows of a recording are in one split, because they overlap and look alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.data.federated_dataset import Federation, Ints, Target
from equipoise.data.splits import client_splits
from equipoise.data.tabular.columns import format_number
from equipoise.data.tabular.config import TableConfig
from equipoise.data.tabular.statistics import moments
from equipoise.utils.errors import UsageError, nearest
from equipoise.utils.record import Record, from_json, to_json

SPLITS = ("train", "val", "test")
VERSION = 1


@dataclass(frozen=True)
class Steps:
    """``steps [sum of length, channels]`` is one recording after the other."""

    steps: NDArray[np.float32]
    length: Ints

    def windows(self, recording: int, window: int) -> NDArray[np.float32]:
        """Windows ``[n, channels, window]`` of one recording, each half over the one before."""
        first = int(self.length[:recording].sum())
        steps = self.steps[first : first + int(self.length[recording])]
        return np.stack(
            [steps[start : start + window].T for start in self.starts(recording, window)]
        )

    def starts(self, recording: int, window: int) -> Ints:
        """The first step of each window."""
        return np.arange(0, int(self.length[recording]) - window + 1, max(1, window // 2))

    def check_length(self, window: int) -> None:
        """Refuse recordings that are shorter than a window."""
        short = np.flatnonzero(self.length < window)
        if len(short):
            raise UsageError(
                f"recording {short[0]} has {self.length[short[0]]} steps: a window of {window} is longer"
            )


@dataclass(frozen=True)
class Recordings(Steps):
    """The same; each recording has an owner and a class."""

    owner: Ints
    y: Ints
    names: tuple[str, ...]
    classes: tuple[str, ...]
    target: str


class WindowTransform(Record, frozen=True):
    """How recordings become a model's input: the steps of a window, and each channel's shift and scale."""

    version: int
    window: int
    mean: tuple[float, ...]
    scale: tuple[float, ...]

    @property
    def features(self) -> tuple[str, ...]:
        """A window's numbers have no names."""
        return ()

    def prepare(self, windows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Raw windows ``[n, channels, window]`` as the model takes them."""
        if windows.shape[1:] != (len(self.mean), self.window):
            raise UsageError(
                f"the windows have shape {windows.shape[1:]}, the model takes {len(self.mean)} channels of "
                f"{self.window} steps"
            )
        mean, scale = (np.array(values, np.float32)[:, None] for values in (self.mean, self.scale))
        prepared: NDArray[np.float32] = (windows - mean) / scale
        return prepared

    def cut_windows(self, steps: Steps) -> tuple[NDArray[np.float32], Ints, Ints]:
        """All windows of new recordings; of each, its recording and its first step there."""
        steps.check_length(self.window)
        each = [steps.starts(k, self.window) for k in range(len(steps.length))]
        windows = np.concatenate([steps.windows(k, self.window) for k in range(len(each))])
        return (
            windows,
            np.repeat(np.arange(len(each)), [len(starts) for starts in each]),
            np.concatenate(each),
        )

    def to_json(self) -> str:
        """Return the content of `preparation.json`."""
        return to_json(self)

    @staticmethod
    def from_json(text: str, source: str) -> WindowTransform:
        """The inverse of :meth:`write`."""
        return from_json(WindowTransform, text, source)


@dataclass(frozen=True)
class FederatedRecordings:
    """Recordings, made ready to learn from."""

    data: Federation
    preprocessor: WindowTransform
    upload_bytes: int
    """Bytes that the exchange before round 1 took: moments of each channel, of all clients."""
    download_bytes: int


def read_recordings(path: Path, client: str, target: str) -> Recordings:
    """A NumPy archive: ``x``, ``length``, and for each recording its client and its target (named by ``TARGETs``)."""
    arrays = _arrays(path, client, target)
    steps = steps_from_arrays(arrays, f"'{path}'")
    if any(len(arrays[name]) != len(steps.length) for name in (client, target)):
        raise UsageError(f"'{path}' must have one entry per recording in '{client}' and '{target}'")
    who, owner = np.unique(arrays[client], return_inverse=True)
    found, y = np.unique(arrays[target], return_inverse=True)
    given = arrays.get(f"{target}s")
    named = (
        given is not None
        and found.dtype.kind in "iu"
        and found.min() >= 0
        and found.max() < len(given)
    )
    classes = (
        [str(given[v]) for v in found]
        if named and given is not None
        else [_name(v) for v in found.tolist()]
    )
    return Recordings(
        steps.steps,
        steps.length,
        owner,
        y,
        tuple(_name(v) for v in who.tolist()),
        tuple(classes),
        target,
    )


def read_steps(path: Path) -> Steps:
    """New recordings, of which nobody says whose and what they are."""
    return steps_from_arrays(_arrays(path), f"'{path}'")


def steps_from_arrays(arrays: Mapping[str, Any], where: str) -> Steps:
    """``x`` and ``length``, checked."""
    length, x = (
        np.asarray(arrays["length"]).astype(np.int64),
        np.asarray(arrays["x"]).astype(np.float32),
    )
    if x.ndim != 2 or length.ndim != 1 or int(length.sum()) != len(x):
        raise UsageError(f"{where} must have steps x [n, channels], and lengths that add up to n")
    if not np.isfinite(x).all():
        raise UsageError(
            f"step {int(np.argmin(np.isfinite(x).all(1)))} of {where} holds NaN or infinity: clean it"
        )
    return Steps(x, length)


def _arrays(path: Path, *more: str) -> dict[str, NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays: dict[str, NDArray[Any]] = {name: file[name] for name in file.files}
    except (OSError, ValueError) as error:
        raise UsageError(f"'{path}' cannot be read: {error}") from error
    for name in ("x", "length", *more):
        if name not in arrays:
            raise UsageError(
                f"'{path}' has no array '{name}'{nearest(name, arrays)}: it has {', '.join(arrays)}"
            )
    return arrays


def federate_recordings(
    recordings: Recordings, window: int, config: TableConfig, rng: np.random.Generator
) -> FederatedRecordings:
    """Whole recordings are dealt to splits; channels are standardised by the training windows of all clients."""
    if config.standardise == "client":
        raise UsageError(
            "recordings are standardised by the federation, or not at all (standardise none)"
        )
    recordings.check_length(window)
    chosen: dict[str, list[list[int]]] = {name: [] for name in (*SPLITS, "server")}
    for k, name in enumerate(recordings.names):
        mine = rng.permutation(np.flatnonzero(recordings.owner == k))
        lent = max(1, round(config.server_share * len(mine)))
        if len(mine) - lent < len(SPLITS):
            raise UsageError(
                f"client '{name}' has {len(mine)} recordings: it needs {len(SPLITS) + 1}, one for each split"
            )
        chosen["server"].append(mine[:lent].tolist())
        start = lent
        for split, sizes in client_splits(np.array([len(mine) - lent]), config).items():
            chosen[split].append(mine[start : start + int(sizes[0])].tolist())
            start += int(sizes[0])
    cut = {
        split: [_cut(recordings, part, window) for part in parts]
        for split, parts in chosen.items()
        if parts
    }
    by_server = config.preprocess_from == "server"
    preprocessor, up = _standardised(
        cut["server" if by_server else "train"], window, config.standardise != "none"
    )

    def joined(parts: list[tuple[NDArray[np.float32], Ints]]) -> tuple[Tensor, Tensor]:
        x, y = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        return torch.from_numpy(preprocessor.prepare(x)), torch.from_numpy(y)

    splits = {
        name: (*joined(cut[name]), np.array([len(y) for _, y in cut[name]]))
        for name in SPLITS
        if name in cut
    }
    public = max(
        1, round(config.public_share * len(cut["server"]))
    )  # whole clients, so whole recordings
    if public >= len(cut["server"]):
        raise UsageError(
            "recordings need at least two clients: one's are the server's public set, the rest its test set"
        )
    server = {"public": joined(cut["server"][:public]), "test": joined(cut["server"][public:])}
    target = Target("classification", recordings.target, recordings.classes)
    data = Federation(splits, server, len(recordings.classes), None, target)
    data.names = recordings.names
    down = len(preprocessor.to_json().encode()) * len(recordings.names)
    return FederatedRecordings(data, preprocessor, 0 if by_server else up, down)


def _standardised(
    train: list[tuple[NDArray[np.float32], Ints]], window: int, standardise: bool
) -> tuple[WindowTransform, int]:
    """By every client's moments of its channels; and the bytes that these took, if they were told."""
    channels = train[0][0].shape[1]
    if not standardise:
        return WindowTransform(VERSION, window, (0.0,) * channels, (1.0,) * channels), 0
    told = [
        tuple(moments(x[:, c].ravel().astype(np.float64)) for c in range(channels))
        for x, _ in train
    ]
    about = [reduce(lambda a, b: a + b, each) for each in zip(*told, strict=True)]
    mean = tuple(float(np.float32(m.mean)) for m in about)
    scale = tuple(float(np.float32(m.std or 1.0)) for m in about)
    return WindowTransform(VERSION, window, mean, scale), sum(
        len(to_json(each).encode()) for each in told
    )


def _cut(recordings: Recordings, part: list[int], window: int) -> tuple[NDArray[np.float32], Ints]:
    each = [recordings.windows(recording, window) for recording in part]
    return np.concatenate(each), np.repeat(recordings.y[part], [len(windows) for windows in each])


def _name(value: Any) -> str:
    return format_number(value) if isinstance(value, float) else str(value)
