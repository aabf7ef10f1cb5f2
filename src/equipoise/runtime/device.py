"""Where networks are trained and scored: a CUDA device where there is one, else the cores of the processor."""

from __future__ import annotations

import os
import re

import torch

from equipoise.contract import Task
from equipoise.core.errors import UsageError


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def place(task: Task, name: str) -> Task:
    """The task on the device of that name; ``auto`` is CUDA's first, else the processor.

    Processes that ``torchrun`` started take one device each.
    """
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", name):
        raise UsageError(f"unknown device '{name}': choose auto, cpu, cuda, or cuda:1 for the second")
    if not task.supports_fork and not name.startswith("cuda"):  # nothing to gain there
        return task
    found = torch.cuda.device_count()
    if name == "cpu" or (name == "auto" and not found):
        return task
    number = int(name.partition(":")[2] or os.environ.get("LOCAL_RANK", "0"))
    if number >= found:
        raise UsageError(f"device is '{name}', but PyTorch finds {found} CUDA devices: use another, or auto")
    return task.to(torch.device("cuda", number))
