"""Run an experiment: build the task, train all rounds, save checkpoints, write the results.

:func:`run` starts a run and :func:`resume_run` continues one. Both use a :class:`RunSession`, which
holds the simulation and everything that is on disk of it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from equipoise.core import ExperimentTask, Params, SupervisedTask
from equipoise.experiment.build import build_task, check_deployable
from equipoise.experiment.checkpoint import Checkpoint, check_unchanged, input_texts
from equipoise.experiment.evaluation import (
    FinalScores,
    final_scores,
    personal_model_batches,
    score_finetuned,
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
from equipoise.records.client_table import table_text
from equipoise.records.manifest import Content
from equipoise.records.rounds import Bytes, RoundRecord
from equipoise.records.run_dir import RoundLog, RunFolder, summary_text
from equipoise.records.summary import (
    About,
    Summary,
    evaluations_without_gain,
    summarise,
    validation_score,
)
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.settings.loading import settings_in, settings_like
from equipoise.settings.resources import ResourceConfig
from equipoise.simulation.attacks import with_attack
from equipoise.simulation.client_store import MemoryBudget
from equipoise.simulation.executor_selection import ExecutorPlan, MakeExecutor
from equipoise.simulation.ipc import ProcessGroup
from equipoise.simulation.multiprocess import MultiProcessExecutor
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig
from equipoise.tasks.poisoning import backdoor_success_rate
from equipoise.utils import io, rng, serialization
from equipoise.utils.errors import UsageError
from equipoise.utils.pytree import Ints
from equipoise.utils.record import to_json

MAX_UNSAVED_SECONDS = 10.0  # a checkpoint is due after this time, whatever checkpoint_every is
MAX_CLIENTS_IN_LABELS = 1000  # labels.csv is written for at most this many clients
OnRoundEnd = Callable[[RoundRecord], str | None]
"""Called after each round with its record; returns a reason to stop the run, or None."""
OnCheckpoint = Callable[[int], None]
"""Called after each checkpoint with the number of its last round."""
OnMessage = Callable[[str], None]
"""Called with each note before the first round."""


class Interrupted(Exception):
    """Raised when the user asked to stop; all finished rounds are on disk."""


def run(
    settings: ExperimentConfig,
    out: Path | str,
    *,
    resume: bool = False,
    overwrite: bool = False,
    on_round_end: OnRoundEnd | None = None,
    make_executor: MakeExecutor | None = None,
    on_message: OnMessage | None = None,
    resources: ResourceConfig | None = None,
    on_checkpoint: OnCheckpoint | None = None,
) -> Summary:
    """Run to the end.

    Args:
        settings: Options of the run.
        out: Folder of the run.
        resume: Whether to continue the run in the folder.
        overwrite: Whether to replace the run in the folder.
        on_round_end: Called after every round.
        make_executor: Makes the executor of remote clients; None for a simulation.
        on_message: Called with notes before the first round.
        resources: Resource limits.
        on_checkpoint: Called after every checkpoint.

    Returns:
        The summary of the finished run.

    Raises:
        UsageError: If the folder is not empty and neither ``resume`` nor ``overwrite`` is set, or
            if it holds a run with other options.
        Interrupted: If the user asked to stop.
    """
    folder = RunFolder(Path(out))
    folder.refuse(resume or overwrite)
    if folder.has_config() and resume:
        return resume_run(
            folder.path,
            on_round_end,
            make_executor,
            _settings_of_same_run(settings, folder),
            on_message,
            resources,
            on_checkpoint,
        )
    task = build_task(settings)
    noise_is_chosen = settings.privacy.needs_noise
    settings = settings.with_chosen_noise(
        task.info.num_clients, is_simulation=make_executor is None
    )
    io.make_folder(folder.path)
    with io.locked(folder.path):
        folder.refuse(overwrite)  # another run may have begun here meanwhile
        folder.clear()
        io.make_folder(folder.checkpoints)
        folder.begin(settings.to_dict, input_texts(folder, settings, task))
        folder.remove_leftovers()
        _send(_warnings(settings, task), on_message)
        if noise_is_chosen:
            _send([_chosen_noise_note(settings)], on_message)
        with _open_session(settings, task, folder, make_executor, resources, on_message) as session:
            return session.run(on_round_end, on_checkpoint)


def _settings_of_same_run(settings: ExperimentConfig, folder: RunFolder) -> ExperimentConfig:
    """Return settings with the noise that was chosen when the run in the folder began.

    Raises:
        UsageError: If the folder holds a run with other options.
    """
    config = folder.read_config()
    if settings.privacy.needs_noise:
        noise = float(config["dp_noise"])
        settings = replace(settings, privacy=replace(settings.privacy, dp_noise=noise))
    if settings_like(settings, config).to_dict != settings.to_dict:
        raise UsageError(
            f"'{folder.path}' holds a run with other options: "
            f"use 'equipoise resume {folder.path}' or another --out"
        )
    return settings


def _chosen_noise_note(settings: ExperimentConfig) -> str:
    """Say which noise was chosen, and for what."""
    privacy = settings.privacy
    return (
        f"dp_noise is {privacy.dp_noise:g}: with it {settings.run.rounds} rounds "
        f"stay within max_epsilon {privacy.max_epsilon:g} (client-level)"
    )


def resume_run(
    path: Path | str,
    on_round_end: OnRoundEnd | None = None,
    make_executor: MakeExecutor | None = None,
    settings: ExperimentConfig | None = None,
    on_message: OnMessage | None = None,
    resources: ResourceConfig | None = None,
    on_checkpoint: OnCheckpoint | None = None,
) -> Summary:
    """Continue a run where it stopped; of a finished one only read the summary.

    Args:
        path: Folder of the run.
        on_round_end: Called after every round.
        make_executor: Makes the executor of remote clients; None for a simulation.
        settings: Options of the run, needed if its method or task was made in Python.
        on_message: Called with notes before the first round.
        resources: Resource limits; they may differ from those of the first part.
        on_checkpoint: Called after every checkpoint.

    Returns:
        The summary of the finished run.

    Raises:
        UsageError: If the folder holds no run, or data or devices have changed.
        Interrupted: If the user asked to stop.
    """
    folder = RunFolder(Path(path))
    config = folder.read_config()
    settings = settings or settings_in(config)
    if folder.summary.exists():
        return folder.read_summary()
    task = build_task(settings)
    check_unchanged(folder, settings, task)
    with io.locked(folder.path):
        folder.remove_leftovers()
        io.make_folder(folder.checkpoints)
        _send(_warnings(settings, task), on_message)
        with _open_session(settings, task, folder, make_executor, resources, on_message) as session:
            if folder.checkpoint.exists():
                session.restore()
            return session.run(on_round_end, on_checkpoint)


@contextlib.contextmanager
def _open_session(
    settings: ExperimentConfig,
    task: ExperimentTask,
    folder: RunFolder,
    make_executor: MakeExecutor | None,
    resources: ResourceConfig | None,
    on_message: OnMessage | None,
) -> Iterator[RunSession]:
    """Open a session with its worker processes: forked, or started by ``torchrun``."""
    resources = resources or ResourceConfig()
    if make_executor is not None:
        yield RunSession(
            settings, task, folder, ExecutorPlan("stacked", settings.run.threads), make_executor
        )
        return
    if is_worker_rank():
        raise UsageError(
            "torchrun starts one run: use it with 'equipoise run', which goes on with --resume"
        )
    plan = plan_for_run(settings, task, folder)
    num_launched = ProcessGroup.launched_rank()[1]
    if not resources.processes and num_launched == 1:
        count, note = num_processes(settings, task, plan)
        resources = replace(resources, processes=count)
        if note:
            _send([note], on_message)
    work_folder = folder.checkpoints
    if max(resources.processes, num_launched) == 1:
        budget = memory_budget(resources, work_folder)
        yield RunSession(settings, task, folder, plan, memory_budget=budget)
        return
    plan = per_process_plan(plan)
    with multiprocess_executor(resources, settings, task, plan, work_folder) as executor:
        yield RunSession(settings, task, folder, plan, multiprocess=executor)


def _warnings(settings: ExperimentConfig, task: ExperimentTask) -> Iterator[str]:
    """Yield the warnings of the task and of the method."""
    yield from task.warnings()
    yield from settings.method.warnings(task, settings.run.rounds)


def _send(notes: Iterable[str], on_message: OnMessage | None) -> None:
    """Pass notes to the callback, if there is one."""
    if on_message is None:
        return
    for note in notes:
        on_message(note)


class RunSession:
    """A run in progress: the simulation, its files on disk, and the best model so far."""

    def __init__(
        self,
        settings: ExperimentConfig,
        task: ExperimentTask,
        folder: RunFolder,
        plan: ExecutorPlan,
        make_executor: MakeExecutor | None = None,
        multiprocess: MultiProcessExecutor | None = None,
        memory_budget: MemoryBudget | None = None,
    ) -> None:
        """Create the simulation of a run.

        Args:
            settings: Options of the run.
            task: Task of the run.
            folder: Folder of the run.
            plan: Executor and threads.
            make_executor: Makes the executor of remote clients; None for a simulation.
            multiprocess: Executor of several processes, if the simulation has several.
            memory_budget: Limit for client state in RAM; the rest spills to disk.
        """
        self.settings = settings
        self.task = task
        self.folder = folder
        self.plan = plan
        self.is_simulation = make_executor is None
        if not self.is_simulation:
            check_deployable(settings)
        self.make_executor = make_executor or plan.make
        self.accountant = self._accountant()
        self.simulation = self._make_simulation(make_executor, multiprocess, memory_budget)
        self.min_replies = self.simulation.executor.min_replies
        """Replies that the deployment demands; a privacy limit may demand more in a round."""
        self.checkpoint = Checkpoint(folder, self.simulation)
        self.on_checkpoint: OnCheckpoint | None = None
        self.start_time = time.monotonic()
        self.last_save = self.start_time
        self.records: list[RoundRecord] = []
        self.best: tuple[float, int] | None = None
        """Best validation score and its round."""
        self.best_params: Params = {}
        """Global model of that round."""

    def _make_simulation(
        self,
        make_executor: MakeExecutor | None,
        multiprocess: MultiProcessExecutor | None,
        memory_budget: MemoryBudget | None,
    ) -> FederatedSimulation:
        """Return the simulation before its first round; the arguments are those of the session."""
        settings = self.settings
        run = settings.run
        config = RoundLoopConfig(
            run.rounds,
            run.seed,
            run.participation,
            self.plan.executor,
            run.eval_every,
            run.save_personal,
        )
        return FederatedSimulation(
            settings.wrapped_method,
            self.task,
            settings.training,
            config,
            self._executor_factory(make_executor, multiprocess),
            self.accountant,
            settings.timing if self.is_simulation else None,
            memory_budget,
            settings.client_selection,
        )

    def _executor_factory(
        self, make_executor: MakeExecutor | None, multiprocess: MultiProcessExecutor | None
    ) -> MakeExecutor:
        """Return what makes the executor of the rounds; attackers exist in simulations only."""
        if multiprocess is not None:
            return lambda *_: multiprocess
        return make_executor or with_attack(self.make_executor, self.settings.run.attack)

    def _accountant(self) -> GaussianAccountant | None:
        """Return the accountant of a private run.

        Sampling amplifies privacy only in a simulation: remote clients know the seed, and hence
        who is drawn.
        """
        run = self.settings.run
        if not self.settings.privacy.is_enabled:
            return None
        cohort = rng.sample_cohort(run.seed, 1, self.task.info.num_clients, run.participation)
        return GaussianAccountant(
            self.settings.privacy,
            self.task.info.num_clients,
            len(cohort),
            bool(self.settings.method.shared_param_names(self.task)),
            amplified=self.is_simulation,
            secure=run.secure,
        )

    def restore(self) -> None:
        """Load the last checkpoint.

        Raises:
            UsageError: If log and checkpoint do not fit together.
        """
        self.best_params, meta = self.checkpoint.load()
        self.records = self.folder.records(meta["round"])
        if len(self.records) < meta["round"]:
            raise UsageError(
                f"'{self.folder.rounds}' has fewer rounds than the checkpoint: it was cut or edited"
            )
        self.start_time -= self.records[-1].clock or 0.0  # real time continues in deployments
        self.best = tuple(meta["best"]) if meta["best"] else None

    def run(
        self, on_round_end: OnRoundEnd | None, on_checkpoint: OnCheckpoint | None = None
    ) -> Summary:
        """Run the remaining rounds, then write scores and models.

        Args:
            on_round_end: Called after every round; may return a reason to stop.
            on_checkpoint: Called after every checkpoint.

        Returns:
            The summary of the finished run.

        Raises:
            Interrupted: If the user asked to stop; a checkpoint was saved.
        """
        self.on_checkpoint = on_checkpoint
        self.log = RoundLog(self.folder, self.records)
        if self.accountant is not None:
            for request in self.simulation.executor.lost_requests(self.simulation.rounds_done):
                self.accountant.count_lost(request)
        with threads(self.plan.threads), interruptible(self.folder.path) as stop_requested:
            while not self._is_finished():
                if reason := self._privacy_limit_reached():
                    self._stop(reason)
                    break
                record = self._run_round()
                if on_round_end and (reason := on_round_end(record)):
                    self._stop(reason)
                if stop_requested():
                    self._save()
                    raise Interrupted
            final = final_scores(
                self.simulation,
                local_baseline=self.settings.run.local_baseline,
                make=self.make_executor,
            )
            summary = self._summarise(final)
        io.make_folder(self.folder.models)
        # The summary comes last: it marks the run as finished.
        self.folder.write(
            {
                **self._model_files(final),
                **self._client_tables(final),
                self.folder.summary.name: summary_text(summary),
            }
        )
        return summary

    def _run_round(self) -> RoundRecord:
        """Run one round, log it, and save a checkpoint if one is due."""
        record = self.simulation.run_round()
        if not self.is_simulation:
            record = replace(record, clock=time.monotonic() - self.start_time)
        score = validation_score(record, self.task.info.metric, self.task.info.higher_is_better)
        if score is not None and (self.best is None or score > self.best[0]):
            self.best = (score, record.round)
            self.best_params = self.simulation.params
        if record.stop is None and self._is_out_of_patience(record):
            patience = self.settings.run.patience
            reason = f"no lower validation loss in {patience} evaluations"
            record = replace(record, stop=reason)
        self.records.append(record)
        self.log.append(record)
        is_due = record.round % self.settings.run.checkpoint_every == 0
        is_late = time.monotonic() - self.last_save > MAX_UNSAVED_SECONDS
        if is_due or is_late or self._is_finished():
            self._save()
        return record

    def _privacy_limit_reached(self) -> str | None:
        """Return the reason to stop if another round would pass ``max_epsilon``.

        Otherwise demand as many replies of the next round as keep it within the limit: the fewer
        uploads are in a mean, the more each of them tells.
        """
        privacy = self.settings.privacy
        run = self.settings.run
        if self.accountant is None or not privacy.max_epsilon:
            return None
        assert isinstance(run.participation, float | int)
        round = self.simulation.rounds_done + 1
        ids = rng.sample_cohort(run.seed, round, self.task.info.num_clients, run.participation)
        num_needed = self.accountant.min_replies_within(ids, privacy.max_epsilon)
        if num_needed is not None:
            self.simulation.executor.min_replies = max(self.min_replies, num_needed)
            return None
        reason = (
            f"another round would take epsilon above max_epsilon {privacy.max_epsilon:g} "
            f"(client-level, delta {privacy.dp_delta:g})"
        )
        if not self.records:
            raise UsageError(f"{reason}: rounds that were lost in a crash count too")
        return reason

    def _is_out_of_patience(self, record: RoundRecord) -> bool:
        """Return whether validation has not improved for ``patience`` evaluations."""
        patience = self.settings.run.patience
        if not patience:
            return False
        info = self.task.info
        return (
            evaluations_without_gain([*self.records, record], info.metric, info.higher_is_better)
            >= patience
        )

    def _stop(self, reason: str) -> None:
        """End the run with the last round, which is already in the log."""
        self.records[-1] = replace(self.records[-1], stop=self.records[-1].stop or reason)
        self.log.rewrite(self.records)
        self._save()

    def _is_finished(self) -> bool:
        """Return whether the last round was run or the run was stopped."""
        if not self.records:
            return False
        last = self.records[-1]
        return last.round == self.settings.run.rounds or last.stop is not None

    def _save(self) -> None:
        """Save a checkpoint.

        The log is synced first: a checkpoint must never contain a round that the log has lost.
        """
        logs = self.log.sync()
        about: dict[str, object] = {"round": self.simulation.rounds_done, "best": self.best}
        self.checkpoint.save(self.best_params, about, logs)
        self.last_save = time.monotonic()
        if self.on_checkpoint is not None:
            self.on_checkpoint(self.simulation.rounds_done)

    def _summarise(self, final: FinalScores) -> Summary:
        """Return the summary of the finished run."""
        run = self.settings.run
        task = self.task
        about = About(
            method=run.method,
            task=run.task,
            model=run.model,
            seed=run.seed,
            executor=self._executor_description() if self.is_simulation else None,
        )
        summary = summarise(about, self.records, task.info.metric, task.info.higher_is_better)
        before = Bytes(task.preparation.upload_bytes, task.preparation.download_bytes)
        if before.up or before.down:
            summary = replace(summary, bytes=summary.bytes + before, bytes_before=before)
        extra = dict(task.summary(self.simulation.params))
        backdoor = backdoor_success_rate(task, self.simulation.params)
        if backdoor is not None:
            extra["backdoor"] = backdoor
        newcomers = None
        if run.holdout_clients:
            newcomers = score_heldout_clients(self.simulation, task, self.plan)
        return replace(
            summary,
            test=final.added_to(summary.test),
            undefined=final.undefined,
            same_rows=final.same_rows,
            extra=extra,
            newcomers=newcomers,
            finetuned=score_finetuned(self.simulation) if run.finetune else None,
        )

    def _executor_description(self) -> str:
        """Return how clients were computed, in words."""
        text = str(self.plan)
        if self.task.device.type != "cpu":
            text += f" on {self.task.device}"
        count = self.simulation.executor.processes
        if count > 1:
            text += f", {count} processes"
        return text

    def _model_files(self, final: FinalScores) -> dict[str, Content]:
        """Return the card, all models and what they say about rows, by file name."""
        folder = self.folder
        method = self.settings.method
        files: dict[str, Content] = {}
        if card := Card.of(self.task, self.settings.run):
            files[folder.card.name] = card.write()
        models = {"frozen": self.task.frozen}
        if method.has_global(self.task):
            models |= {"global": self.simulation.params, "global-best": self.best_params}
        else:
            names = method.shared_param_names(self.task)
            models["shared"] = {name: self.simulation.params[name] for name in names}
        for name, params in models.items():
            if params:
                fill = partial(serialization.fill_tensors, tensors=params, texts={})
                files[folder.model(name).name] = fill
        if self.settings.run.save_personal and self.simulation.executor.keeps_models:
            files[folder.model("personal").name] = self._fill_personal_models
        if final.baselines:
            fill = partial(serialization.fill_tensors, tensors=final.baselines, texts={})
            files[folder.baselines.name] = fill
        if final.hazard is not None:
            files[folder.hazard.name] = to_json(final.hazard)
        for split, rows in final.outputs.items():
            files[folder.outputs(split).name] = rows.fill
        return files

    def _fill_personal_models(self, path: Path) -> None:
        """Write the personal models of all clients, part by part."""
        parts = (
            {"client_ids": torch.from_numpy(ids), **models}
            for ids, models in personal_model_batches(self.simulation)
        )
        serialization.fill_stack(path, len(self.simulation.store.ids), parts)

    def _client_tables(self, final: FinalScores) -> dict[str, Content]:
        """Return ``clients.csv`` (size, test scores, bytes) and ``labels.csv`` (class counts)."""
        store = self.simulation.store
        metric = self.task.info.metric
        ids = store.ids
        columns: dict[str, list[Any]] = {
            **self._client_columns(ids),
            "samples": self.task.num_examples(torch.from_numpy(ids)).tolist(),
        }
        for name, scores in store.scores.get("test", {}).items():
            columns[f"{name}_{metric}"] = scores[metric].tolist()
        columns |= {f"personal_{name}": values.tolist() for name, values in final.personal.items()}
        columns |= final.columns
        for name, counts in store.counts.items():
            columns["rounds" if name == "rounds" else f"bytes_{name}"] = counts.tolist()
        tables: dict[str, Content] = {self.folder.clients.name: table_text(columns)}
        if (
            self.is_simulation
            and isinstance(self.task, SupervisedTask)
            and self.task.info.target_kind == "classification"
            and len(ids) <= MAX_CLIENTS_IN_LABELS
        ):
            counts = self.task.label_counts(torch.from_numpy(ids)).T
            names = self.task.info.class_names or tuple(map(str, range(len(counts))))
            classes = {name: count.tolist() for name, count in zip(names, counts, strict=True)}
            labels = {**self._client_columns(ids), **classes}
            tables[self.folder.labels.name] = table_text(labels)
        return tables

    def _client_columns(self, ids: Ints) -> dict[str, list[Any]]:
        """Return the columns that identify clients: number, and name if clients have names."""
        columns: dict[str, list[Any]] = {"client": ids.tolist()}
        if self.task.info.client_names:
            columns["name"] = [self.task.info.client_names[k] for k in ids]
        return columns
