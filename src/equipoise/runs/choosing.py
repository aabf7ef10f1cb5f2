"""How a run's clients are computed: as asked, or as measured once."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

from equipoise.contract import Task
from equipoise.core import files as checkpoint
from equipoise.core import random
from equipoise.core.errors import UsageError
from equipoise.records.folder import Folder
from equipoise.runtime.choose import Choice, choose
from equipoise.runtime.workers import available_cores
from equipoise.settings.config import Settings


def chosen(settings: Settings, task: Task, folder: Folder) -> Choice:
    """The executor; what was measured once holds for the whole run, also after a crash."""
    run, file = settings.run, folder.executor
    if run.executor != "auto":
        return Choice(run.executor, run.threads, run.workers or available_cores())
    if file.exists():
        try:
            return Choice(**json.loads(file.read_text()))
        except (ValueError, TypeError) as error:
            raise UsageError(f"'{file}' is damaged: remove it ({error})") from error
    first = run.at(1, run.rounds)
    cohort = len(random.cohort(run.seed, 1, task.clients, first.participation))
    choice = choose(task, settings.training.at(1, run.rounds), cohort)
    choice = replace(choice, threads=max(choice.threads, run.threads) if choice.executor != "workers" else 1)
    checkpoint.write_text(file, json.dumps(asdict(choice)))
    return choice
