"""A run's settings: six typed configs (run, timing, training, privacy, task, method), one flat set of option names."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from equipoise.client_selection import find_selection
from equipoise.client_selection import recorded_name as selection_name
from equipoise.client_selection.policies import Uniform
from equipoise.clock.config import ClockConfig
from equipoise.clock.devices import DevicePopulation
from equipoise.config.parsing import from_file, to_file
from equipoise.config.schedules import Schedule
from equipoise.core import Method, SelectionPolicy, TrainingConfig
from equipoise.data.tabular.config import ColumnConfig
from equipoise.methods import find_method, recorded_name
from equipoise.privacy.config import PrivacyConfig
from equipoise.settings.option_registry import options, resolve_names
from equipoise.settings.run_config import RunConfig
from equipoise.simulation.attacks import parse_attack as parse_attack
from equipoise.tasks import TaskSpec, find_task
from equipoise.utils.errors import UsageError, nearest
from equipoise.wrappers.deadline import with_deadline_epochs
from equipoise.wrappers.differential_privacy import with_differential_privacy
from equipoise.wrappers.loss_reporting import with_loss_reporting
from equipoise.wrappers.robust_aggregation import with_robust_aggregation
from equipoise.wrappers.secure_aggregation import with_secure_aggregation

Config = TypeVar("Config")
OWNERS = ("run", "timing", "training", "privacy", "task", "method")


@dataclass(frozen=True)
class RunSettings:
    """A complete, checked set of options. ``flat`` repeats the run."""

    run: RunConfig
    timing: ClockConfig
    training: TrainingConfig
    privacy: PrivacyConfig
    task_spec: TaskSpec
    task_config: Any
    method: Method
    selection: SelectionPolicy

    @classmethod
    def from_options(cls, given: Mapping[str, Any]) -> RunSettings:
        """Settings from option names and values; what is not given has its default."""
        asked = given.get("method", "fedavg")
        method, task = find_method(asked), find_task(given.get("task", "synthetic"))
        named = asked if isinstance(asked, str) else recorded_name(method)
        selection = find_selection(given.get("selection", "uniform"))
        chosen = given.get("selection", "uniform")
        chosen = chosen if isinstance(chosen, str) else selection_name(selection)
        given = {**given, "method": named, "task": task.recorded_name, "selection": chosen}
        known, wrong = options(method, task), []
        values: dict[str, dict[str, Any]] = {owner: {} for owner in OWNERS}
        for key, value in resolve_names(known, given).items():
            try:
                values[known[key].owner][known[key].name] = from_file(key, value, known[key].kind)
            except UsageError as error:
                wrong.append(str(error))

        def made(config: Callable[..., Config], owner: str) -> Config | None:
            try:
                return config(**values[owner])
            except UsageError as error:
                wrong.append(str(error))
                return None

        run, privacy, timing = (
            made(RunConfig, "run"),
            made(PrivacyConfig, "privacy"),
            made(ClockConfig, "timing"),
        )
        training = made(lambda **changes: dataclasses.replace(task.training, **changes), "training")
        task_config, policy = made(task.config, "task"), made(method, "method")
        if (
            run is None
            or privacy is None
            or timing is None
            or training is None
            or task_config is None
            or policy is None
        ):
            raise UsageError("; ".join(wrong))
        if wrong:
            raise UsageError("; ".join(wrong))
        run = _completed(run, policy, privacy, timing, task)
        if privacy.is_enabled and selection is not Uniform:
            raise UsageError(
                f"selection {chosen} is not offered with dp_clip: epsilon is counted for cohorts drawn by chance alone"
            )
        if run.secure and selection.needs_client_loss:
            raise UsageError(
                f"selection {chosen} is not offered with secure: the server reads the loss of each client"
            )
        if (
            privacy.has_noise
            and isinstance(task_config, ColumnConfig)
            and not task_config.preprocess_from
        ):
            task_config = dataclasses.replace(
                task_config, preprocess_from="server"
            )  # what clients would tell has no bound
        return cls(run, timing, training, privacy, task, task_config, policy, selection())

    @property
    def wrapped_method(self) -> Method:
        """The method as it is run: private, in secure sums, under a robust rule, if asked for."""
        fitting = with_deadline_epochs(self.method, self.timing)
        inner = with_secure_aggregation(
            with_differential_privacy(fitting, self.privacy), self.run.secure
        )
        return with_loss_reporting(with_robust_aggregation(inner, self.run.robust), self.selection)

    @property
    def client_selection(self) -> SelectionPolicy | None:
        """The policy that takes the place of the method's own decision 0, if there is one."""
        return None if isinstance(self.selection, Uniform) else self.selection

    @property
    def to_dict(self) -> dict[str, Any]:
        """Every option by name, as files keep it."""
        parts = {
            "run": self.run,
            "timing": self.timing,
            "training": self.training,
            "privacy": self.privacy,
            "task": self.task_config,
            "method": self.method,
        }
        known = options(type(self.method), self.task_spec)
        return {key: to_file(getattr(parts[item.owner], item.name)) for key, item in known.items()}


def _completed(
    run: RunConfig, method: Method, privacy: PrivacyConfig, timing: ClockConfig, task: TaskSpec
) -> RunConfig:
    """The run with its model and rounds filled in, and what several configs must agree on checked."""
    if timing.carries_stale_updates and (run.robust or run.secure or privacy.is_enabled):
        raise UsageError(
            f"mode {timing.mode} is not offered with robust, secure or dp_clip: they count on a round's own replies"
        )
    if privacy.has_noise and not DevicePopulation(timing.device_classes, run.seed).always_available:
        raise UsageError(
            "dp_noise is not offered with devices that are away at times: epsilon is counted for cohorts that are "
            "drawn from everybody"
        )
    if run.attack:
        parse_attack(run.attack)
    if run.robust and privacy.has_noise:
        raise UsageError(
            "robust is not offered with dp_noise: it must see every upload of the round as it is"
        )
    with_robust_aggregation(method, run.robust)
    if run.secure and run.robust:
        raise UsageError(
            "secure is not offered with robust: its server must see every upload by itself, and sees their sum alone"
        )
    if run.secure and privacy.dp_quantile:
        raise UsageError(
            "secure is not offered with dp_quantile: whether a change was clipped would be told beside the sum; "
            "choose a fixed dp_clip"
        )
    if run.patience and privacy.has_noise:
        raise UsageError(
            "patience is not offered with dp_noise: when to stop would be told by validation scores without noise"
        )
    if privacy.is_enabled and isinstance(run.participation, Schedule):
        raise UsageError(
            "participation must be one number with dp_clip: epsilon is counted for cohorts of one size"
        )
    model = run.model
    if not model and task.models:
        model = method.model if method.model in task.models else task.models[0]
    if model and model not in task.models:
        raise UsageError(
            f"unknown model '{model}' for task '{task.name}'{nearest(model, task.models)}; "
            f"it takes: {', '.join(task.models) or 'none'}"
        )
    return dataclasses.replace(run, model=model, rounds=method.num_rounds(run.rounds))
