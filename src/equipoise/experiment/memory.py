"""Estimate the memory of a run before it starts, and refuse what cannot fit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import torch

from equipoise.core import SupervisedTask, Task
from equipoise.data.datasets.synthetic import MAX_IN_MEMORY, SyntheticConfig
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.simulation.executors import MAX_JOINED_CLIENTS, split_into_chunks
from equipoise.utils import rng
from equipoise.utils.errors import UsageError

BYTES_PER_CLIENT = 32  # indices and flags of each client of the population
BYTES_PER_PARTICIPANT = 512  # scores, counts and indices of each client of a cohort
PLAN_COPIES = 3  # copies of a batch plan while it is made: random words, orders, batches
MAX_COUNTED_CLIENTS = 2000  # clients whose rows are counted; generated ones take time to count
GIB = 2**30


class Need(NamedTuple):
    """One part of the memory of a run."""

    size: int
    """Bytes."""
    purpose: str
    """What the memory is for."""
    remedy: str
    """Options to lower."""


def check_population(settings: ExperimentConfig) -> None:
    """Check that the clients and generated data fit into memory, before data are made.

    Args:
        settings: Options of the run.

    Raises:
        UsageError: If they do not fit.
    """
    config = settings.task_config
    clients = getattr(config, "clients", getattr(config, "agents", None))
    needs: list[Need] = []
    if isinstance(clients, int):
        first = settings.run.at(1, settings.run.rounds)
        cohort = rng.cohort_size(clients, first.participation)
        size = clients * BYTES_PER_CLIENT + cohort * BYTES_PER_PARTICIPANT
        needs.append(Need(size, f"{clients:,} clients", "their number or --participation"))
    if isinstance(config, SyntheticConfig):
        rows = min(config.clients, MAX_IN_MEMORY) * config.samples
        size = 4 * rows * config.features
        needs.append(Need(size, f"{rows:,} rows of data", "--clients, --samples or --features"))
        size = 24 * config.features * config.classes
        needs.append(Need(size, "the labelling model", "--features or --classes"))
    _refuse(needs)


def check_training(settings: ExperimentConfig, task: Task) -> None:
    """Check that the batch plans of local training fit into memory.

    Args:
        settings: Options of the run.
        task: Task of the run.

    Raises:
        UsageError: If they do not fit.
    """
    if not isinstance(task, SupervisedTask):
        return
    run = settings.run
    first = run.at(1, run.rounds)
    training = settings.training.at(1, run.rounds)
    cohort = rng.cohort_size(task.info.num_clients, first.participation)
    chunk = max(part.stop - part.start for part in split_into_chunks(cohort, 1))
    stacked = 1 if run.executor == "loop" else min(cohort, max(chunk, MAX_JOINED_CLIENTS))
    batches = -(-_largest_client(settings, task) // training.batch_size)
    rows = batches * training.batch_size  # the last batch is padded
    size = 8 * PLAN_COPIES * stacked * training.epochs * rows
    purpose = f"the batches of {stacked} clients with {training.epochs:,} epochs each"
    remedy = "--epochs (or take more --rounds) or --batch-size, or take --executor loop"
    _refuse([Need(size, purpose, remedy)])


def _largest_client(settings: ExperimentConfig, task: Task) -> int:
    """Return the rows of the largest client of the first cohort."""
    run = settings.run
    first = run.at(1, run.rounds)
    ids = rng.sample_cohort(run.seed, 1, task.info.num_clients, first.participation)
    return int(task.num_examples(torch.from_numpy(ids[:MAX_COUNTED_CLIENTS])).max())


def _refuse(needs: list[Need]) -> None:
    """Raise ``UsageError`` if the needs exceed the memory that is free."""
    total = sum(need.size for need in needs)
    free = available_memory()
    if total <= free:
        return
    largest = max(needs)
    raise UsageError(
        f"the run needs about {total / GIB:,.0f} GiB of memory, most of it for {largest.purpose}, "
        f"and {free / GIB:,.1f} GiB are free: lower {largest.remedy}"
    )


def available_memory() -> int:
    """Return the bytes of memory that this process can still use."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = [total]
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        entries = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        limits.append(int(entries["MemAvailable"].split()[0]) * 1024)
    group = Path("/sys/fs/cgroup/memory.max")
    if group.is_file() and group.read_text().strip().isdecimal():
        limits.append(int(group.read_text()))
    return min(limits)
