"""A run is a folder: config, one JSON line a round, summary, models, checkpoint."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import torch

from equipoise.contract import Supervised, Task, Tree
from equipoise.core import files as checkpoint
from equipoise.core import random
from equipoise.core.errors import UsageError
from equipoise.privacy.ledger import Ledger
from equipoise.records.summary import summarise, validation_score
from equipoise.runs.finetuning import finetuned
from equipoise.runs.newcomers import hold_out, newcomers
from equipoise.runtime.choose import Choice, MakeExecutor, choose
from equipoise.runtime.device import place
from equipoise.runtime.round import RoundLog, Schedule, Simulation
from equipoise.runtime.workers import available_cores
from equipoise.settings.config import Settings, read_config

ENTRIES = (
    *("config.json", "rounds.jsonl", "summary.json", "clients.csv", "labels.csv", "report.html", "executor.json"),
    *("trackers.json", "tensorboard", "wandb", "models", "checkpoint"),
)
LABELLED = 1000  # clients up to this number have their classes counted
Watch = Callable[[RoundLog], None]
"""Called after each round with its log."""


class Interrupted(Exception):
    """The user asked to stop; everything up to the last whole round is on disk."""


@dataclass
class Folder:
    """The paths of a run."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    @property
    def rounds(self) -> Path:
        return self.path / "rounds.jsonl"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint" / "last.safetensors"

    @property
    def executor(self) -> Path:
        return self.path / "executor.json"

    @property
    def models(self) -> Path:
        return self.path / "models"

    def logs(self) -> list[RoundLog]:
        """Rounds on disk; a last line that a crash cut short is left out."""
        if not self.rounds.exists():
            return []
        logs = []
        for line in self.rounds.read_text().splitlines():
            try:
                logs.append(json.loads(line))
            except ValueError:
                break
        return logs


def run(
    settings: Settings,
    out: Path | str,
    *,
    resume: bool = False,
    overwrite: bool = False,
    watch: Watch | None = None,
    make_executor: MakeExecutor | None = None,
) -> dict[str, Any]:
    """Run to the end and give the summary. An existing folder is refused unless ``resume`` or ``overwrite``.

    ``make_executor``: where the clients are, if not in this process.
    """
    folder = Folder(Path(out))
    exists = folder.path.exists() and any(folder.path.iterdir()) if folder.path.is_dir() else folder.path.exists()
    if exists and not (resume or overwrite):
        raise UsageError(f"'{out}' exists already: choose another --out, or give --resume or --overwrite")
    if exists and not folder.config.is_file():
        raise UsageError(f"'{out}' is not a run folder (it has no config.json): choose another --out")
    if exists and resume:
        if Settings.of(read_config(folder.config)).flat != settings.flat:
            raise UsageError(f"'{out}' holds a run with other options: use 'equipoise resume {out}' or another --out")
        return resume_run(folder.path, watch, make_executor)
    task = build_task(settings)
    if exists:
        for name in ENTRIES:
            entry = folder.path / name
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink(missing_ok=True)
    folder.checkpoint.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.write_text(folder.config, json.dumps(settings.flat, indent=1))
    return _Running(settings, task, folder, make_executor).to_the_end(watch)


def resume_run(
    path: Path | str, watch: Watch | None = None, make_executor: MakeExecutor | None = None
) -> dict[str, Any]:
    """Go on where a run stopped; a finished one just gives its summary."""
    folder = Folder(Path(path))
    if not folder.config.is_file():
        raise UsageError(f"'{path}' is not a run folder: it has no config.json")
    settings = Settings.of(read_config(folder.config))
    if folder.summary.exists():
        return read_summary(folder.path)
    folder.checkpoint.parent.mkdir(exist_ok=True)
    running = _Running(settings, build_task(settings), folder, make_executor)
    if folder.checkpoint.exists():
        running.restore()
    return running.to_the_end(watch)


def read_summary(path: Path) -> dict[str, Any]:
    """The summary of a finished run."""
    try:
        summary: dict[str, Any] = json.loads(Folder(path).summary.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"'{path}' has no readable summary.json: {error}") from error
    return summary


def build_task(settings: Settings) -> Task:
    """The task of a run, with every check that can be made before work starts."""
    task = settings.task_spec.build(settings.task_config, settings.run.model, settings.training, settings.run.seed)
    if settings.run.holdout_clients:
        task = hold_out(task, settings.run.holdout_clients, settings.run.seed)
    task = place(task, settings.run.device)
    task.check()
    task.suits(settings.method)
    settings.policy.check(task, settings.training)
    if settings.run.finetune and not isinstance(task, Supervised):
        raise UsageError(f"finetune tunes on rows of data, and agents of task '{task.name}' have none: leave it off")
    if settings.run.finetune and not (task.has("val") and settings.run.save_personal):
        raise UsageError("finetune needs validation data and the personal models: set val_share and keep save_personal")
    return task


class _Running:
    """A run under way: the simulation, what is on disk of it, and the best model so far."""

    def __init__(self, settings: Settings, task: Task, folder: Folder, make_executor: MakeExecutor | None) -> None:
        run = settings.run
        self.settings, self.task, self.folder = settings, task, folder
        self.here = make_executor is None
        if run.holdout_clients and not self.here:
            raise UsageError("holdout_clients is for simulations: clients that are elsewhere cannot be held out")
        if run.delay and not self.here:
            raise UsageError("delay is for simulations: clients that are elsewhere are late by themselves")
        self.choice = self._choice() if self.here else Choice("stacked", run.threads)
        schedule = Schedule(
            run.rounds, run.seed, run.participation, self.choice.executor, run.eval_every, run.save_personal
        )
        make = make_executor or self.choice.make
        self.simulation = Simulation(settings.policy, task, settings.training, schedule, make, self._ledger())
        self.logs: list[RoundLog] = []
        self.best: tuple[float, int] | None = None
        self.best_params: Tree = {}

    def _ledger(self) -> Ledger | None:
        """Clients that are elsewhere know the seed, and so who is drawn: only a simulation may count on secrecy."""
        run, task = self.settings.run, self.task
        if not self.settings.privacy.on:
            return None
        cohort = len(random.cohort(run.seed, 1, task.clients, run.participation))
        sends = bool(self.settings.method.shared_names(task))
        return Ledger(self.settings.privacy, task.clients, cohort, sends, amplified=self.here)

    def _choice(self) -> Choice:
        """The executor; what was measured once holds for the whole run, also after a crash."""
        run, file = self.settings.run, self.folder.executor
        if run.executor != "auto":
            return Choice(run.executor, run.threads, run.workers or available_cores())
        if file.exists():
            try:
                return Choice(**json.loads(file.read_text()))
            except (ValueError, TypeError) as error:
                raise UsageError(f"'{file}' is damaged: remove it ({error})") from error
        cohort = len(random.cohort(run.seed, 1, self.task.clients, run.participation))
        choice = choose(self.task, self.settings.training, cohort)
        choice = replace(choice, threads=max(choice.threads, run.threads) if choice.executor != "workers" else 1)
        checkpoint.write_text(file, json.dumps(asdict(choice)))
        return choice

    def restore(self) -> None:
        state, meta = checkpoint.load(self.folder.checkpoint)
        self.logs = self.folder.logs()[: meta["round"]]
        if len(self.logs) < meta["round"]:
            raise UsageError(f"'{self.folder.rounds}' has fewer rounds than the checkpoint: it was cut or edited")
        try:
            self.simulation.load(state["simulation"], meta["round"])
        except KeyError as error:
            raise UsageError(
                f"checkpoint '{self.folder.checkpoint}' is of another version: {error} is missing"
            ) from error
        self.best = tuple(meta["best"]) if meta["best"] else None
        self.best_params = state["best"]

    def to_the_end(self, watch: Watch | None) -> dict[str, Any]:
        checkpoint.write_text(self.folder.rounds, "".join(json.dumps(log) + "\n" for log in self.logs))
        with _threads(self.choice.threads), _interruptible() as asked, open(self.folder.rounds, "a") as file:
            while not self._finished():
                log = self._round(file)
                if watch:
                    watch(log)
                if asked():
                    self._save()
                    raise Interrupted
            summary = self._summary()
        self._write_models()
        self._write_clients()
        checkpoint.write_text(self.folder.summary, json.dumps(summary, indent=1))
        return summary

    def _round(self, file: TextIO) -> RoundLog:
        log = self.simulation.round()
        score = validation_score(log, self.task.headline, self.task.higher_is_better)
        if score is not None and (self.best is None or score > self.best[0]):
            self.best, self.best_params = (score, log["round"]), self.simulation.params
        patience = self.settings.run.patience
        if patience and self.best is not None and "stop" not in log:
            since = sum("trained" in earlier for earlier in [*self.logs, log] if earlier["round"] > self.best[1])
            if since >= patience:
                log["stop"] = f"no better validation score in {patience} evaluations"
        self.logs.append(log)
        file.write(json.dumps(log) + "\n")
        file.flush()
        if log["round"] % self.settings.run.checkpoint_every == 0 or self._finished():
            self._save()
        return log

    def _finished(self) -> bool:
        return bool(self.logs) and (self.logs[-1]["round"] == self.settings.run.rounds or "stop" in self.logs[-1])

    def _save(self) -> None:
        state = {"simulation": self.simulation.state(), "best": self.best_params}
        checkpoint.save(self.folder.checkpoint, state, {"round": self.simulation.done, "best": self.best})

    def _summary(self) -> dict[str, Any]:
        run = self.settings.run
        about = {"method": run.method, "task": run.task, "model": run.model, "seed": run.seed}
        if self.here:
            task = self.task
            there = f" on {task.device}" if task.device.type != "cpu" else ""
            about["executor"] = f"{self.choice}{there}"
        summary = summarise(about, self.logs, self.task.headline, self.task.higher_is_better)
        summary |= self.task.summary(self.simulation.params)
        if run.holdout_clients:
            summary["newcomers"] = newcomers(self.simulation, self.choice)
        if run.finetune:
            summary["finetuned"] = finetuned(self.simulation)
        return summary

    def _write_models(self) -> None:
        self.folder.models.mkdir(exist_ok=True)
        method = self.settings.method
        if method.has_global(self.task):
            checkpoint.write_tensors(self.folder.models / "global.safetensors", self.simulation.params)
            if self.best_params:
                checkpoint.write_tensors(self.folder.models / "global-best.safetensors", self.best_params)
        elif names := method.shared_names(self.task):
            shared = {name: self.simulation.params[name] for name in names}
            checkpoint.write_tensors(self.folder.models / "shared.safetensors", shared)
        if self.settings.run.save_personal and self.simulation.executor.keeps_models:
            ids, models = self.simulation.personal_models()
            everything = {"client_ids": torch.from_numpy(ids), **models}
            checkpoint.write_tensors(self.folder.models / "personal.safetensors", everything)

    def _write_clients(self) -> None:
        """One line a client seen: size, scores on its own test data, bytes; and its training samples of each class."""
        store, head = self.simulation.store, self.task.headline
        ids = store.ids
        columns: dict[str, list[Any]] = {
            "client": ids.tolist(),
            "samples": self.task.sizes(torch.from_numpy(ids)).tolist(),
        }
        for name, scores in store.scores.get("test", {}).items():
            columns[f"{name}_{head}"] = scores[head].tolist()
        for name, counts in store.counts.items():
            columns["rounds" if name == "rounds" else f"bytes_{name}"] = counts.tolist()
        self._write_table("clients.csv", columns)
        if self.here and isinstance(self.task, Supervised) and len(ids) <= LABELLED:
            counts = self.task.label_counts(torch.from_numpy(ids)).T
            classes = {str(label): held.tolist() for label, held in enumerate(counts)}
            self._write_table("labels.csv", {"client": ids.tolist(), **classes})

    def _write_table(self, name: str, columns: dict[str, list[Any]]) -> None:
        rows = sorted(zip(*columns.values(), strict=True))
        lines = [
            ",".join(columns),
            *(",".join(f"{v:.6g}" if isinstance(v, float) else str(v) for v in r) for r in rows),
        ]
        checkpoint.write_text(self.folder.path / name, "\n".join(lines) + "\n")


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Ctrl-C once: stop after the round under way, so that what is saved is whole. Twice: stop at once."""
    asked = False

    def ask(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        os.write(2, b"\nstopping after this round (Ctrl-C again to stop at once)\n")

    try:
        before = signal.signal(signal.SIGINT, ask)
    except ValueError:  # not the main thread: signals are the caller's affair
        yield lambda: False
        return
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)
