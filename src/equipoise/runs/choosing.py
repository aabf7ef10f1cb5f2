"""How a run's clients are computed: as asked, or as measured once."""

from __future__ import annotations

import json
import multiprocessing
from dataclasses import asdict, replace

import torch

from equipoise.contract import Task
from equipoise.core import files as checkpoint
from equipoise.core import random
from equipoise.core.errors import UsageError
from equipoise.core.trees import Ints
from equipoise.records.folder import Folder
from equipoise.runs.keeping import threads
from equipoise.runs.spreading import single_process_reason
from equipoise.runtime.choose import ExecutorPlan, select_executor, seconds_of_a_step
from equipoise.runtime.device import available_cores
from equipoise.settings.config import RunSettings

STARTING = 3.0  # seconds that processes must save in all, to be started unasked
MESSAGES = 0.01  # seconds per round that they lose to each other
FASTEST = 1e-6  # seconds: no step of one client takes less


def plan_for_run(settings: RunSettings, task: Task, folder: Folder) -> ExecutorPlan:
    """The executor; what was measured once holds for the whole run, also after a crash."""
    run, file = settings.run, folder.executor
    if run.executor != "auto":
        return ExecutorPlan(run.executor, run.threads)
    if file.exists():
        try:
            return ExecutorPlan(**json.loads(file.read_text()))
        except (ValueError, TypeError) as error:
            raise UsageError(f"'{file}' is damaged: remove it ({error})") from error
    cohort = len(_first_cohort(settings, task))
    choice = select_executor(task, settings.training.at(1, run.rounds), cohort, shared=not single_process_reason(settings, task))
    if choice.processes == 1:
        choice = replace(choice, threads=max(choice.threads, run.threads))
    checkpoint.write_text(file, json.dumps(asdict(choice)))
    return choice


def num_processes(settings: RunSettings, task: Task, choice: ExecutorPlan) -> tuple[int, str]:
    """How many processes the run is to have where nobody says, and a remark on it; none where one is obvious."""
    run = settings.run
    faster = choice.executor == "stacked" or choice.processes > 1
    if run.executor != "auto" or not faster or task.device.type != "cpu":
        return 1, ""
    if single_process_reason(settings, task) or "fork" not in multiprocessing.get_all_start_methods():
        return 1, ""
    ids = _first_cohort(settings, task)
    training = settings.training.at(1, run.rounds)
    chunks = choice.make(settings.wrapped_method, task, training, run.seed, run.rounds).chunks(len(ids))
    processes = min(available_cores(), len(chunks))
    cohort = torch.from_numpy(ids)
    steps = int(task.num_steps(cohort, torch.full_like(cohort, training.epochs), training).sum())
    if processes == 1 or steps * run.rounds * FASTEST < STARTING:
        return 1, ""
    with threads(1):  # as in each of several processes
        each = steps * seconds_of_a_step(task, training, chunks[0].stop)
    saved = run.rounds * (each * (1 - 1 / processes) - MESSAGES)
    measured = f"local training takes one about {1000 * each:.0f} ms per round"
    if saved < STARTING:
        return 1, f"one process: {measured}, and others would not save the time to start them"
    return processes, f"{processes} processes share the clients: {measured}; the result is that of one"


def _first_cohort(settings: RunSettings, task: Task) -> Ints:
    run = settings.run
    first = run.at(1, run.rounds)
    return random.cohort(run.seed, 1, task.num_clients, first.participation)
