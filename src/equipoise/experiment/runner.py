"""What is kept while a run goes on: the number of threads, and the word that somebody asked it to stop."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from equipoise.clock.devices import DevicePopulation
from equipoise.core import Params, SupervisedTask, Task
from equipoise.data.poisoning import DATA_ATTACKS
from equipoise.experiment import checkpoint as unchanged
from equipoise.experiment.checkpoint import Checkpoint
from equipoise.experiment.evaluation import (
    FinalScores,
    final_scores,
    finetuned,
    hold_out,
    personal_parts,
    score_heldout_clients,
)
from equipoise.experiment.model_card import Card
from equipoise.experiment.multiprocess import (
    is_worker_rank,
    memory_budget,
    multiprocess_executor,
    num_processes,
    per_process_plan,
    plan_for_run,
)
from equipoise.experiment.signals import interruptible, threads
from equipoise.privacy.accountant import GaussianAccountant
from equipoise.records.client_table import write_table
from equipoise.records.rounds import Bytes, RoundRecord
from equipoise.records.run_dir import Folder
from equipoise.records.summary import About, Summary, summarise, validation_score
from equipoise.settings.loading import settings_in, settings_like
from equipoise.settings.run_config import ResourceConfig
from equipoise.settings.run_settings import RunSettings
from equipoise.simulation.attacks import with_attack, hostile_clients
from equipoise.simulation.attacks import parse_attack as parse_attack
from equipoise.simulation.client_store import MemoryBudget
from equipoise.simulation.executor_selection import ExecutorPlan, MakeExecutor, place
from equipoise.simulation.ipc import ProcessGroup
from equipoise.simulation.multiprocess import MultiProcessExecutor
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig
from equipoise.utils import io as checkpoint
from equipoise.utils import rng
from equipoise.utils.config_file import write_config
from equipoise.utils.errors import UsageError
from equipoise.utils.pytree import Ints
from equipoise.utils.serialization import write_stack


def refuse_simulated(settings: RunSettings) -> None:
    """The first option that such a run cannot keep, with the reason."""
    run = settings.run
    if run.holdout_clients:
        raise UsageError(
            "holdout_clients is for simulations: clients that are elsewhere cannot be held out"
        )
    if settings.timing.needs_simulated_clock or run.selection != "uniform":
        raise UsageError(
            "devices, semi, deadline, over_select, until and select are for simulations: clients that are elsewhere "
            "have a clock of their own"
        )
    if run.local_baseline:
        raise UsageError(
            "local_baseline is for simulations: clients that are elsewhere train with --method local"
        )
    if run.attack:
        raise UsageError("attack is for simulations: clients that are elsewhere are what they are")


LABELLED = 1000  # clients up to this number have their classes counted
OnRoundEnd = Callable[[RoundRecord], str | None]
"""Called after each round with its record; gives a reason to stop the run, or ``None``."""
OnMessage = Callable[[str], None]
"""Called with each remark before the first round."""


class Interrupted(Exception):
    """The user asked to stop; everything up to the last whole round is on disk."""


def run(
    settings: RunSettings,
    out: Path | str,
    *,
    resume: bool = False,
    overwrite: bool = False,
    on_round_end: OnRoundEnd | None = None,
    make_executor: MakeExecutor | None = None,
    on_message: OnMessage | None = None,
    resources: ResourceConfig | None = None,
) -> Summary:
    """Run to the end and give the summary.

    Arguments:
        settings: the options of the run.
        out: its folder; one that is not empty is refused unless ``resume`` or ``overwrite``.
        resume: continue with what is in the folder.
        overwrite: replace what is in the folder.
        watch: called after every round.
        make_executor: where the clients are, if not in this process.
        tell: called with remarks before the first round.
        means: what it may use of the machine.
    """
    folder = Folder(Path(out))
    folder.refuse(resume or overwrite)
    if folder.config.is_file() and resume:
        if settings_like(settings, folder.config).to_dict != settings.to_dict:
            raise UsageError(
                f"'{out}' holds a run with other options: use 'equipoise resume {out}' or another --out"
            )
        return resume_run(folder.path, on_round_end, make_executor, settings, on_message, resources)
    task = build_task(settings)
    checkpoint.make_folder(folder.path)
    with checkpoint.locked(folder.path):
        folder.refuse(overwrite)  # another run may have begun here meanwhile
        folder.clear()
        checkpoint.make_folder(folder.checkpoint.parent)
        unchanged.keep(folder, settings, task)
        write_config(folder.config, settings.to_dict)
        _remark(task, on_message)
        with _start(
            settings, task, folder, make_executor, resources or ResourceConfig(), on_message
        ) as running:
            return running.run(on_round_end)


def resume_run(
    path: Path | str,
    on_round_end: OnRoundEnd | None = None,
    make_executor: MakeExecutor | None = None,
    settings: RunSettings | None = None,
    on_message: OnMessage | None = None,
    resources: ResourceConfig | None = None,
) -> Summary:
    """Continue where a run stopped; a finished one just gives its summary.

    Arguments:
        path: the run's folder.
        watch, make_executor, tell, means: as in :func:`run`.
        settings: those of the folder, where its method or task was made in Python.
    """
    folder = Folder(Path(path))
    folder.demand()
    settings = settings or settings_in(folder.config)
    if folder.summary.exists():
        return folder.read_summary()
    task = build_task(settings)
    unchanged.demand_unchanged(folder, settings, task)
    with checkpoint.locked(folder.path):
        checkpoint.make_folder(folder.checkpoint.parent)
        _remark(task, on_message)
        with _start(
            settings, task, folder, make_executor, resources or ResourceConfig(), on_message
        ) as running:
            if folder.checkpoint.exists():
                running.restore()
            return running.run(on_round_end)


@contextlib.contextmanager
def _start(
    settings: RunSettings,
    task: Task,
    folder: Folder,
    make_executor: MakeExecutor | None,
    means: ResourceConfig,
    tell: OnMessage | None,
) -> Iterator[RunSession]:
    """The run with its processes; under ``torchrun``, with those that it started."""
    if make_executor is not None:
        yield RunSession(
            settings, task, folder, ExecutorPlan("stacked", settings.run.threads), make_executor
        )
        return
    if is_worker_rank():
        raise UsageError(
            "torchrun starts one run: use it with 'equipoise run', which goes on with --resume"
        )
    choice = plan_for_run(settings, task, folder)
    if not means.processes and ProcessGroup.launched()[1] == 1:
        count, remark = num_processes(settings, task, choice)
        means = replace(means, processes=count)
        if tell is not None and remark:
            tell(remark)
    if max(means.processes, ProcessGroup.launched()[1]) == 1:
        yield RunSession(
            settings, task, folder, choice, room=memory_budget(means, folder.checkpoint.parent)
        )
        return
    choice = per_process_plan(choice)
    with multiprocess_executor(means, settings, task, choice, folder.checkpoint.parent) as spread:
        yield RunSession(settings, task, folder, choice, spread=spread)


def build_task(settings: RunSettings) -> Task:
    """The task of a run, with every check that can be made before work starts."""
    run, last = settings.run, settings.training.at(settings.run.rounds, settings.run.rounds)
    task = settings.task_spec.build(settings.task_config, run.model, last, run.seed)
    if run.init_weights or run.adapter or run.blocks:
        task = task.with_network(run.init_weights, run.adapter, run.blocks, run.seed)
    if settings.run.metric:
        task = task.with_primary_metric(settings.run.metric)
    if settings.run.holdout_clients:
        task = hold_out(task, settings.run.holdout_clients, settings.run.seed)
    if settings.run.attack:
        attack, share = parse_attack(settings.run.attack)
        if attack in DATA_ATTACKS:
            liars = hostile_clients(settings.run.seed, task.num_clients, share)
            task = task.poisoned(attack, liars.numpy())
    task = place(task, settings.run.device)
    task.devices = DevicePopulation(settings.timing.device_classes, run.seed)
    if task.bytes_before[0]:
        settings.privacy.refuse_column_statistics()
    task.check()
    task.check_method(settings.method)
    _check_rounds(settings, task)
    if settings.timing.carries_stale_updates and not settings.wrapped_method.supports_stale_updates:
        raise UsageError(
            f"{run.method} is not offered in mode {settings.timing.mode}: its server counts on replies to what it sent "
            "in the same round; use mode sync, or another method"
        )
    selection = settings.selection
    if (selection.needs_client_loss or selection.needs_server_loss) and not isinstance(
        task, SupervisedTask
    ):
        raise UsageError(
            f"selection {run.selection} reads losses, and agents of task '{task.name}' have none: choose another"
        )
    if run.selection != "uniform" and "select_clients" in settings.method.overridden_hooks:
        raise UsageError(
            f"{run.method} chooses who takes part by itself: leave selection at uniform"
        )
    if settings.run.finetune and not isinstance(task, SupervisedTask):
        raise UsageError(
            f"finetune tunes on rows of data, and agents of task '{task.name}' have none: leave it off"
        )
    if settings.run.finetune and not (task.has_split("val") and settings.run.save_personal):
        raise UsageError(
            "finetune needs validation data and the personal models: set val_share and keep save_personal"
        )
    return task


def _remark(task: Task, tell: OnMessage | None) -> None:
    if tell is not None:
        for remark in task.warnings():
            tell(remark)


def _check_rounds(settings: RunSettings, task: Task) -> None:
    """The method's own check; on every round's numbers, where options follow schedules."""
    method, training, rounds = settings.wrapped_method, settings.training, settings.run.rounds
    constant = method.at(1, rounds) is method and training.at(1, rounds) is training
    each = (
        (method.at(t, rounds), training.at(t, rounds))
        for t in range(1, 2 if constant else rounds + 1)
    )
    for one, numbers in dict.fromkeys(each):
        one.check(task, numbers)


class RunSession:
    """A run under way: the simulation, what is on disk of it, and the best model so far."""

    def __init__(
        self,
        settings: RunSettings,
        task: Task,
        folder: Folder,
        choice: ExecutorPlan,
        make_executor: MakeExecutor | None = None,
        spread: MultiProcessExecutor | None = None,
        room: MemoryBudget | None = None,
    ) -> None:
        """``make_executor``: clients are elsewhere; ``spread``: they are in these processes; ``room``: where what they
        hold may lie, if they are here."""
        run = settings.run
        self.settings, self.task, self.folder = settings, task, folder
        self.here = make_executor is None
        if not self.here:
            refuse_simulated(settings)
        self.choice = choice
        schedule = RoundLoopConfig(
            run.rounds,
            run.seed,
            run.participation,
            self.choice.executor,
            run.eval_every,
            run.save_personal,
        )
        self.make = make_executor or self.choice.make
        make = (
            (lambda *_: spread) if spread else make_executor or with_attack(self.make, run.attack)
        )
        timing = settings.timing if self.here else None
        self.simulation = FederatedSimulation(
            settings.wrapped_method,
            task,
            settings.training,
            schedule,
            make,
            self._ledger(),
            timing,
            room,
            settings.client_selection,
        )
        self.checkpoint = Checkpoint(folder, self.simulation)
        self.began = time.monotonic()
        self.records: list[RoundRecord] = []
        self.best: tuple[float, int] | None = None
        self.best_params: Params = {}

    def _ledger(self) -> GaussianAccountant | None:
        """Clients that are elsewhere know the seed, and so who is drawn: only a simulation may count on secrecy."""
        run, task = self.settings.run, self.task
        if not self.settings.privacy.is_enabled:
            return None
        cohort = len(rng.cohort(run.seed, 1, task.num_clients, run.participation))
        sends = bool(self.settings.method.shared_param_names(task))
        return GaussianAccountant(
            self.settings.privacy,
            task.num_clients,
            cohort,
            sends,
            amplified=self.here,
            secure=run.secure,
        )

    def restore(self) -> None:
        self.best_params, meta = self.checkpoint.load()
        self.folder.check()
        self.records = self.folder.records()[: meta["round"]]
        self.began -= self.records[-1].clock or 0.0  # where it counts real time, that goes on
        self.best = tuple(meta["best"]) if meta["best"] else None

    def run(self, watch: OnRoundEnd | None) -> Summary:
        self.log_checksum = self.folder.write_rounds(self.records)
        with threads(self.choice.threads), interruptible() as asked:
            while not self._finished():
                record = self._round()
                if watch and (reason := watch(record)):
                    self._stop(reason)
                if asked():
                    self._save()
                    raise Interrupted
            final = final_scores(
                self.simulation, local_baseline=self.settings.run.local_baseline, make=self.make
            )
            summary = self._summary(final)
        self._write_models()
        self._write_clients(final)
        self.folder.write_summary(summary)
        return summary

    def _round(self) -> RoundRecord:
        record = self.simulation.run_round()
        if not self.here:
            record = replace(record, clock=time.monotonic() - self.began)
        score = validation_score(record, self.task.metric, self.task.higher_is_better)
        if score is not None and (self.best is None or score > self.best[0]):
            self.best, self.best_params = (score, record.round), self.simulation.params
        patience = self.settings.run.patience
        if patience and self.best is not None and record.stop is None:
            since = sum(
                earlier.evaluated
                for earlier in [*self.records, record]
                if earlier.round > self.best[1]
            )
            if since >= patience:
                record = replace(
                    record, stop=f"no better validation score in {patience} evaluations"
                )
        self.records.append(record)
        self.log_checksum = self.folder.append_round(record, self.log_checksum)
        if record.round % self.settings.run.checkpoint_every == 0 or self._finished():
            self._save()
        return record

    def _stop(self, reason: str) -> None:
        """End with the round that is written already, for a reason that is known only now."""
        self.records[-1] = replace(self.records[-1], stop=self.records[-1].stop or reason)
        before, self.log_checksum = self.log_checksum, self.folder.checksum_of(self.records)
        self._save(before)  # for a moment either log is right
        self.folder.write_rounds(self.records)

    def _finished(self) -> bool:
        if not self.records:
            return False
        last = self.records[-1]
        return last.round == self.settings.run.rounds or last.stop is not None

    def _save(self, *also: int) -> None:
        """The log first: a checkpoint must never know of a round that the log has lost.

        ``also``: checksums of other logs that belong to this checkpoint.
        """
        checkpoint.sync(self.folder.rounds)
        sums = {
            "config": checkpoint.checksum(self.folder.config.read_bytes()),
            "log": [self.log_checksum, *also],
        }
        self.checkpoint.save(
            self.best_params, {"round": self.simulation.rounds_done, "best": self.best, **sums}
        )

    def _summary(self, final: FinalScores) -> Summary:
        run, task = self.settings.run, self.task
        there = f" on {task.device}" if task.device.type != "cpu" else ""
        count = self.simulation.executor.processes
        several = f", {count} processes" if count > 1 else ""
        executor = f"{self.choice}{there}{several}" if self.here else None
        about = About(
            method=run.method, task=run.task, model=run.model, seed=run.seed, executor=executor
        )
        summary = summarise(about, self.records, task.metric, task.higher_is_better)
        if any(task.bytes_before):
            before = Bytes(*task.bytes_before)
            summary = replace(summary, bytes=summary.bytes + before, bytes_before=before)
        return replace(
            summary,
            test=final.added_to(summary.test),
            undefined=final.undefined,
            extra=task.summary(self.simulation.params),
            newcomers=score_heldout_clients(self.simulation, self.choice)
            if run.holdout_clients
            else None,
            finetuned=finetuned(self.simulation) if run.finetune else None,
        )

    def _write_models(self) -> None:
        checkpoint.make_folder(self.folder.models)
        if card := Card.of(self.task, self.settings.run):
            checkpoint.write_text(self.folder.card, card.write())
        method = self.settings.method
        if frozen := self.task.frozen:
            checkpoint.write_tensors(self.folder.models / "frozen.safetensors", frozen)
        if method.has_global(self.task):
            checkpoint.write_tensors(
                self.folder.models / "global.safetensors", self.simulation.params
            )
            if self.best_params:
                checkpoint.write_tensors(
                    self.folder.models / "global-best.safetensors", self.best_params
                )
        elif names := method.shared_param_names(self.task):
            shared = {name: self.simulation.params[name] for name in names}
            checkpoint.write_tensors(self.folder.models / "shared.safetensors", shared)
        if self.settings.run.save_personal and self.simulation.executor.keeps_models:
            each = personal_parts(self.simulation)
            parts = ({"client_ids": torch.from_numpy(ids), **models} for ids, models in each)
            write_stack(
                self.folder.models / "personal.safetensors", len(self.simulation.store.ids), parts
            )

    def _write_clients(self, final: FinalScores) -> None:
        """One line per client seen: size, scores on its own test data, bytes; and training samples of each class."""
        store, head = self.simulation.store, self.task.metric
        ids = store.ids
        columns: dict[str, list[Any]] = {
            **self._who(ids),
            "samples": self.task.num_examples(torch.from_numpy(ids)).tolist(),
        }
        for name, scores in store.scores.get("test", {}).items():
            columns[f"{name}_{head}"] = scores[head].tolist()
        columns |= {f"personal_{name}": values.tolist() for name, values in final.personal.items()}
        columns |= final.columns
        for name, counts in store.counts.items():
            columns["rounds" if name == "rounds" else f"bytes_{name}"] = counts.tolist()
        write_table(self.folder.clients, columns)
        if (
            self.here
            and isinstance(self.task, SupervisedTask)
            and self.task.target_kind == "classification"
            and len(ids) <= LABELLED
        ):
            counts = self.task.label_counts(torch.from_numpy(ids)).T
            named = self.task.class_names or tuple(map(str, range(len(counts))))
            classes = {name: held.tolist() for name, held in zip(named, counts, strict=True)}
            write_table(self.folder.labels, {**self._who(ids), **classes})

    def _who(self, ids: Ints) -> dict[str, list[Any]]:
        """Columns that say whose a line is: the client's number, and its name if it has one."""
        names = self.task.client_names
        return {"client": ids.tolist(), **({"name": [names[k] for k in ids]} if names else {})}
