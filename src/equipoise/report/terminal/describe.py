"""What a task's data look like: how many rows everybody has, and a picture of who holds which classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from equipoise.core import SupervisedTask, Task
from equipoise.utils.errors import UsageError

SHADES = " ░▒▓█"
PICTURED_CLIENTS, PICTURED_CLASSES = 40, 60


def describe(task: Task) -> dict[str, Any]:
    """Counts of a task with labelled samples, ready for JSON."""
    if not isinstance(task, SupervisedTask):
        raise UsageError(
            f"task '{task.name}' has environments, not data: there is nothing to describe"
        )
    ids = torch.arange(task.num_clients)
    held = {
        name: task.num_rows(ids, name).numpy()
        for name in ("train", "val", "test")
        if task.has_split(name)
    }
    counts = task.label_counts(ids).numpy()
    classes = counts.shape[1]
    share = counts / counts.sum(1, keepdims=True)
    entropy = -(share * np.log(np.where(share > 0, share, 1.0))).sum(1) / np.log(classes)
    return {
        "task": task.name,
        "clients": task.num_clients,
        "classes": classes,
        "shape": list(task.example_inputs(1).shape[1:]),
        "parameters": sum(p.numel() for p in task.module.parameters()),
        "frozen": sum(p.numel() for p in task.frozen.values()),
        "rows": {name: _spread(sizes) for name, sizes in held.items()},
        "server": {name: task.num_server_rows(name) for name in ("public", "test")},
        "classes_per_client": _spread((counts > 0).sum(1)),
        "label_entropy": {
            "mean": float(entropy.mean()),
            "min": float(entropy.min()),
            "max": float(entropy.max()),
        },
        "label_counts": counts.tolist(),
    }


def in_words(found: dict[str, Any]) -> str:
    """The same for people, with the picture."""
    shape = " x ".join(map(str, found["shape"]))
    lines = [
        f"{found['task']}: {found['clients']} clients, samples of {shape}, {found['classes']} classes, "
        f"model with {found['parameters']:,} parameters"
        + (f", of which {found['frozen']:,} are frozen" if found["frozen"] else ""),
        *(
            f"{name:>6}: {rows['total']:,} rows; a client has {rows['min']} to {rows['max']}, median {rows['median']:g}"
            for name, rows in found["rows"].items()
        ),
        f"server: {found['server']['public']:,} public rows, {found['server']['test']:,} test rows",
        f"a client trains on {found['classes_per_client']['median']:g} classes (median); "
        f"evenness of its labels {found['label_entropy']['mean']:.2f} on average (1 is even, 0 is one class)",
        *_picture(np.array(found["label_counts"])),
    ]
    return "\n".join(lines)


def _picture(counts: np.ndarray[Any, Any]) -> list[str]:
    """One line per client and one column per class; darker is a larger share of the client's training rows."""
    clients, classes = min(len(counts), PICTURED_CLIENTS), min(counts.shape[1], PICTURED_CLASSES)
    share = counts[:clients, :classes] / counts[:clients].sum(1, keepdims=True)
    level = np.ceil(np.sqrt(share) * (len(SHADES) - 1)).astype(
        int
    )  # the root shows small shares too
    width = len(str(clients - 1))
    shown = [
        f"client {k:>{width}} |{''.join(SHADES[i] * 2 for i in row)}|"
        for k, row in enumerate(level)
    ]
    hidden = [f"{len(counts) - clients} clients"] * (len(counts) > clients)
    hidden += [f"{counts.shape[1] - classes} classes"] * (counts.shape[1] > classes)
    return ["", *shown, *([f"({' and '.join(hidden)} more)"] if hidden else [])]


def _spread(values: Any) -> dict[str, float]:
    return {
        "total": int(values.sum()),
        "min": int(values.min()),
        "median": float(np.median(values)),
        "max": int(values.max()),
    }
