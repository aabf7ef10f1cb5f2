"""Recordings cut into windows; those of one recording are never in two splits, for they overlap and look alike."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.core.errors import UsageError, nearest
from equipoise.data.federation import Federation, Ints
from equipoise.data.own import OwnShares
from equipoise.data.split import client_splits
from equipoise.data.tables.cells import spelled
from equipoise.data.tables.statistics import moments
from equipoise.data.target import Target

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class Recordings:
    """``steps [sum of length, channels]`` is one recording after the other; each has an owner and a class."""

    steps: NDArray[np.float32]
    length: Ints
    owner: Ints
    y: Ints
    names: tuple[str, ...]
    classes: tuple[str, ...]
    target: str

    def windows(self, recording: int, window: int) -> NDArray[np.float32]:
        """Windows ``[n, channels, window]`` of one recording, each half over the one before."""
        first = int(self.length[:recording].sum())
        steps = self.steps[first : first + int(self.length[recording])]
        starts = np.arange(0, len(steps) - window + 1, max(1, window // 2))
        return np.stack([steps[start : start + window].T for start in starts])


def read_recordings(path: Path, client: str, target: str) -> Recordings:
    """A NumPy archive: ``x``, ``length``, and for each recording its client and its target (named by ``TARGETs``)."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays: dict[str, NDArray[Any]] = {name: file[name] for name in file.files}
    except (OSError, ValueError) as error:
        raise UsageError(f"'{path}' cannot be read: {error}") from error
    for name in ("x", "length", client, target):
        if name not in arrays:
            raise UsageError(f"'{path}' has no array '{name}'{nearest(name, arrays)}: it has {', '.join(arrays)}")
    length, x = arrays["length"].astype(np.int64), arrays["x"].astype(np.float32)
    if x.ndim != 2 or int(length.sum()) != len(x) or any(len(arrays[n]) != len(length) for n in (client, target)):
        raise UsageError(
            f"'{path}' must have steps [n, channels], lengths that add up to n, and one entry per recording"
        )
    if not np.isfinite(x).all():
        raise UsageError(f"step {int(np.argmin(np.isfinite(x).all(1)))} of '{path}' holds NaN or infinity: clean it")
    who, owner = np.unique(arrays[client], return_inverse=True)
    found, y = np.unique(arrays[target], return_inverse=True)
    given = arrays.get(f"{target}s")
    named = given is not None and found.dtype.kind in "iu" and found.min() >= 0 and found.max() < len(given)
    classes = [str(given[v]) for v in found] if named and given is not None else [_name(v) for v in found.tolist()]
    return Recordings(x, length, owner, y, tuple(_name(v) for v in who.tolist()), tuple(classes), target)


def federate_recordings(recordings: Recordings, window: int, config: OwnShares, rng: np.random.Generator) -> Federation:
    """Whole recordings are dealt to splits; channels are standardised by the training windows of all clients."""
    short = np.flatnonzero(recordings.length < window)
    if len(short):
        raise UsageError(
            f"recording {short[0]} has {recordings.length[short[0]]} steps: a window of {window} is longer"
        )
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
    cut = {split: [_cut(recordings, part, window) for part in parts] for split, parts in chosen.items() if parts}
    channels = range(recordings.steps.shape[1])
    about = [
        reduce(lambda a, b: a + b, (moments(x[:, c].ravel().astype(np.float64)) for x, _ in cut["train"]))
        for c in channels
    ]
    mean = np.array([m.mean for m in about], np.float32)[:, None]
    scale = np.array([m.deviation or 1.0 for m in about], np.float32)[:, None]

    def joined(parts: list[tuple[NDArray[np.float32], Ints]]) -> tuple[Tensor, Tensor]:
        x, y = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        return torch.from_numpy((x - mean) / scale), torch.from_numpy(y)

    splits = {name: (*joined(cut[name]), np.array([len(y) for _, y in cut[name]])) for name in SPLITS if name in cut}
    public = max(1, round(config.public_share * len(cut["server"])))  # whole clients, so whole recordings
    if public >= len(cut["server"]):
        raise UsageError(
            "recordings need at least two clients: one's are the server's public set, the rest its test set"
        )
    server = {"public": joined(cut["server"][:public]), "test": joined(cut["server"][public:])}
    target = Target("classification", recordings.target, recordings.classes)
    data = Federation(splits, server, len(recordings.classes), None, target)
    data.names = recordings.names
    return data


def _cut(recordings: Recordings, part: list[int], window: int) -> tuple[NDArray[np.float32], Ints]:
    each = [recordings.windows(recording, window) for recording in part]
    return np.concatenate(each), np.repeat(recordings.y[part], [len(windows) for windows in each])


def _name(value: Any) -> str:
    return spelled(value) if isinstance(value, float) else str(value)
