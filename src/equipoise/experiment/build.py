"""Build the task of a run, and check that method, task and options fit together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from equipoise.clock.devices import DevicePopulation
from equipoise.core import ExperimentTask, SupervisedTask
from equipoise.data.poisoning import DATA_ATTACKS
from equipoise.data.splits import UserRowShares
from equipoise.experiment.evaluation import hold_out
from equipoise.experiment.memory import check_population, check_training
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.simulation.attacks import hostile_clients, parse_attack
from equipoise.simulation.executor_selection import to_device
from equipoise.tasks.poisoning import poison
from equipoise.utils.errors import refuse_all

MAX_CHECKED_ROUNDS = 1000  # of a schedule, evenly spaced, the first and the last included


def build_task(settings: ExperimentConfig) -> ExperimentTask:
    """Build the task of a run and check that method, task and options fit together.

    Args:
        settings: Options of the run.

    Returns:
        The task, on the device of the run.

    Raises:
        UsageError: If a combination of options is not supported.
    """
    run = settings.run
    check_population(settings)
    last_training = settings.training.at(run.rounds, run.rounds)
    config = task_config_of(settings)
    task = settings.task_spec.build(config, run.model, last_training, run.seed)
    if run.init_weights or run.adapter or run.blocks:
        task = task.with_network(run.init_weights, run.adapter, run.blocks, run.seed)
    if run.metric:
        task = task.with_primary_metric(run.metric)
    if run.holdout_clients:
        task = hold_out(task, run.holdout_clients, run.seed)
    if run.attack:
        attack, share = parse_attack(run.attack)
        if attack in DATA_ATTACKS:
            hostile = hostile_clients(run.seed, task.info.num_clients, share)
            task = poison(task, attack, hostile.numpy())
    task = to_device(task, run.device)
    devices = DevicePopulation(settings.timing.device_classes, run.seed)
    task.info = replace(task.info, devices=devices)
    if task.preparation.upload_bytes:
        settings.privacy.refuse_column_statistics()
    task.check()
    task.check_method(settings.method)
    _check_method_options(settings, task)
    _check_compatibility(settings, task)
    check_training(settings, task)
    return task


def task_config_of(settings: ExperimentConfig) -> Any:
    """Return the options of the task; the server takes rows only if something needs them."""
    config = settings.task_config
    if not isinstance(config, UserRowShares) or config.server_rows != "auto":
        return config
    return replace(config, server_rows="always" if needs_server_rows(settings) else "never")


def needs_server_rows(settings: ExperimentConfig) -> bool:
    """Tell whether the server of a run evaluates or prepares anything on rows of its own."""
    return (
        settings.method.capabilities.needs_server_data
        or settings.run.robust.startswith("trust")
        or settings.selection.needs_server_loss
        or getattr(settings.task_config, "preprocess_from", "") == "server"
    )


def _check_compatibility(settings: ExperimentConfig, task: ExperimentTask) -> None:
    """Raise ``UsageError`` for options that the method or the task does not support."""
    run = settings.run
    timing = settings.timing
    selection = settings.selection
    has_rows = isinstance(task, SupervisedTask)
    is_finetunable = task.has_split("val") and run.save_personal
    agents = f"agents of task '{task.info.name}' have none"
    refuse_all(
        [
            (
                timing.carries_stale_updates and not settings.wrapped_method.supports_stale_updates,
                f"{run.method} is not offered in mode {timing.mode}: its server counts on replies "
                "to what it sent in the same round; use mode sync, or another method",
            ),
            (
                (selection.needs_client_loss or selection.needs_server_loss) and not has_rows,
                f"selection {run.selection} reads losses, and {agents}: choose another",
            ),
            (
                run.selection != "uniform" and "select_clients" in settings.method.overridden_hooks,
                f"{run.method} chooses who takes part by itself: leave selection at uniform",
            ),
            (
                run.finetune and not has_rows,
                f"finetune tunes on rows of data, and {agents}: leave it off",
            ),
            (
                run.finetune and has_rows and not is_finetunable,
                "finetune needs validation data and the personal models: set val_share and keep "
                "save_personal",
            ),
        ]
    )


def _check_method_options(settings: ExperimentConfig, task: ExperimentTask) -> None:
    """Let the method check its options; of many rounds, if options follow schedules."""
    method = settings.wrapped_method
    training = settings.training
    rounds = settings.run.rounds
    is_constant = method.at(1, rounds) is method and training.at(1, rounds) is training
    num_checked = 1 if is_constant else min(rounds, MAX_CHECKED_ROUNDS)
    checked = (1 + k * (rounds - 1) // max(1, num_checked - 1) for k in range(num_checked))
    pairs = ((method.at(t, rounds), training.at(t, rounds)) for t in checked)
    for round_method, round_training in dict.fromkeys(pairs):
        round_method.check(task, round_training)


def check_deployable(settings: ExperimentConfig) -> None:
    """Raise ``UsageError`` for options that exist only in simulations."""
    run = settings.run
    needs_clock = settings.timing.needs_simulated_clock or run.selection != "uniform"
    refuse_all(
        [
            (
                bool(run.holdout_clients),
                "holdout_clients is for simulations: clients that are elsewhere cannot be held out",
            ),
            (
                needs_clock,
                "devices, semi, deadline, overselection, until and selection are for simulations: "
                "clients that are elsewhere have a clock of their own",
            ),
            (
                run.local_baseline,
                "local_baseline is for simulations: clients that are elsewhere train alone at the "
                "end of a deployment (option verdict)",
            ),
            (
                bool(run.attack),
                "attack is for simulations: clients that are elsewhere are what they are",
            ),
        ]
    )
