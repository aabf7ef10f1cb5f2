"""Settings of a run: six typed configs (run, timing, training, privacy, task, method).

The options of all six have one flat set of names, see :mod:`equipoise.settings.option_registry`.
"""

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
from equipoise.config.schema import Schedule, from_config_value, to_config_value
from equipoise.core import Method, Options, SelectionPolicy, TrainingConfig
from equipoise.data.tabular.config import ColumnConfig
from equipoise.methods import find_method, recorded_name, usual_method
from equipoise.privacy.config import PrivacyConfig
from equipoise.privacy.planning import RoundPlan, check_one_round, choose_noise
from equipoise.settings.option_registry import OptionTable, options, resolve_names
from equipoise.settings.run_config import RunConfig
from equipoise.simulation.attacks import parse_attack
from equipoise.tasks import AUTO_MODEL, TaskSpec, find_task
from equipoise.utils.errors import UsageError, did_you_mean, refuse_all
from equipoise.wrappers.deadline import with_deadline_epochs
from equipoise.wrappers.differential_privacy import with_differential_privacy
from equipoise.wrappers.loss_reporting import with_loss_reporting
from equipoise.wrappers.robust_aggregation import with_robust_aggregation
from equipoise.wrappers.secure_aggregation import with_secure_aggregation

Config = TypeVar("Config")
OWNERS = ("run", "timing", "training", "privacy", "task", "method")


@dataclass(frozen=True)
class ExperimentConfig:
    """A complete, checked set of options. ``to_dict`` repeats the run."""

    run: RunConfig
    timing: ClockConfig
    training: TrainingConfig
    privacy: PrivacyConfig
    task_spec: TaskSpec
    task_config: Any
    method: Method
    selection: SelectionPolicy

    @classmethod
    def from_options(cls, given: Mapping[str, Any]) -> ExperimentConfig:
        """Build settings from options; what is not given has its default.

        Args:
            given: Values by short or full name.

        Returns:
            The checked settings.

        Raises:
            UsageError: If options are unknown or wrong; all are reported at once.
        """
        method, task, selection, names = _named_parts(given)
        values, errors = _values_by_owner({**given, **names}, options(method, task))

        def build(config: Callable[..., Config], owner: str) -> Config | None:
            """Build one config; collect its errors."""
            try:
                return config(**values[owner])
            except UsageError as error:
                errors.append(str(error))
                return None

        run = build(RunConfig, "run")
        privacy = build(PrivacyConfig, "privacy")
        timing = build(ClockConfig, "timing")
        task_config = build(task.config, "task")
        usual_training = task.training
        if task_config is not None:
            usual_training = task.default_training(task_config)
        training = build(
            lambda **changes: dataclasses.replace(usual_training, **changes), "training"
        )
        method_config = build(method, "method")
        if errors:
            raise UsageError("; ".join(errors))
        # Without an error `build` has returned every config.
        assert run is not None
        assert privacy is not None
        assert timing is not None
        assert training is not None
        assert task_config is not None
        assert method_config is not None
        if run.patience < 0 and privacy.has_noise:
            run = dataclasses.replace(run, patience=0)
        _check_together(run, privacy, timing, selection)
        with_robust_aggregation(method_config, run.robust)  # refuse what it does not offer
        run = with_model_defaults(run, method_config, task, task_config)
        if (
            privacy.has_noise
            and isinstance(task_config, ColumnConfig)
            and not task_config.preprocess_from
        ):
            # The sensitivity of statistics of the clients' tables is unbounded.
            task_config = dataclasses.replace(task_config, preprocess_from="server")
        return cls(run, timing, training, privacy, task, task_config, method_config, selection())

    def with_chosen_noise(self, num_clients: int, is_simulation: bool) -> ExperimentConfig:
        """Choose the noise that the planned rounds need, if only `max_epsilon` was given.

        Args:
            num_clients: Number of clients of the task.
            is_simulation: Whether only the server knows who is drawn into a cohort.

        Returns:
            The settings with a noise, or these settings if there is nothing to choose.

        Raises:
            UsageError: If not even one round is within the limit.
        """
        privacy = self.privacy
        participation = self.run.participation
        if not privacy.max_epsilon or isinstance(participation, Schedule):
            return self
        plan = RoundPlan(
            num_clients,
            participation,
            self.run.rounds,
            self.run.seed,
            amplified=is_simulation,
            secure=self.run.secure,
        )
        if not privacy.needs_noise:
            check_one_round(plan, privacy)
            return self
        noise = choose_noise(plan, privacy)
        return dataclasses.replace(self, privacy=dataclasses.replace(privacy, dp_noise=noise))

    @property
    def wrapped_method(self) -> Method:
        """Method with its wrappers: deadline, privacy, secure sums, robust rule, loss reports."""
        method = with_deadline_epochs(self.method, self.timing)
        method = with_differential_privacy(method, self.privacy)
        method = with_secure_aggregation(method, self.run.secure)
        method = with_robust_aggregation(method, self.run.robust)
        return with_loss_reporting(method, self.selection)

    @property
    def client_selection(self) -> SelectionPolicy | None:
        """Policy that replaces the client selection of the method; None for uniform."""
        return None if isinstance(self.selection, Uniform) else self.selection

    @property
    def to_dict(self) -> dict[str, Any]:
        """All options by name, as they are stored in files."""
        parts = {
            "run": self.run,
            "timing": self.timing,
            "training": self.training,
            "privacy": self.privacy,
            "task": self.task_config,
            "method": self.method,
        }
        known = options(type(self.method), self.task_spec)
        return {
            key: to_config_value(getattr(parts[item.owner], item.name))
            for key, item in known.items()
        }


def _named_parts(
    given: Mapping[str, Any],
) -> tuple[type[Method], TaskSpec, type[SelectionPolicy], dict[str, str]]:
    """Return method, task and selection policy of a run, and the names that a run records."""
    given_method = given.get("method", usual_method(given.get("model")))
    method = find_method(given_method)
    task = find_task(given.get("task", "synthetic"))
    given_selection = given.get("selection", "uniform")
    selection = find_selection(given_selection)
    method_name = given_method if isinstance(given_method, str) else recorded_name(method)
    policy_name = given_selection
    if not isinstance(given_selection, str):
        policy_name = selection_name(selection)
    names = {"method": method_name, "task": task.recorded_name, "selection": policy_name}
    return method, task, selection, names


def _values_by_owner(
    given: Mapping[str, Any], table: OptionTable
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Sort values by the config that owns them.

    Args:
        given: Values by short or full name.
        table: Options of run, method and task.

    Returns:
        For each of `OWNERS` its values by field, and one message per value of a wrong type.
    """
    values: dict[str, dict[str, Any]] = {owner: {} for owner in OWNERS}
    errors: list[str] = []
    for key, value in resolve_names(table, given).items():
        item = table[key]
        try:
            values[item.owner][item.name] = from_config_value(key, value, item.kind)
        except UsageError as error:
            errors.append(str(error))
    return values, errors


def _check_together(
    run: RunConfig, privacy: PrivacyConfig, timing: ClockConfig, selection: type[SelectionPolicy]
) -> None:
    """Raise ``UsageError`` with all pairs of options that exclude each other."""
    if run.attack:
        parse_attack(run.attack)
    needs_own_replies = bool(run.robust) or run.secure or privacy.is_enabled
    is_scheduled = isinstance(run.participation, Schedule)
    refuse_all(
        [
            (
                timing.carries_stale_updates and needs_own_replies,
                f"mode {timing.mode} is not offered with robust, secure or dp_clip: they count on "
                "a round's own replies",
            ),
            (
                privacy.has_noise
                and not DevicePopulation(timing.device_classes, run.seed).always_available,
                "dp_noise is not offered with devices that are away at times: epsilon is counted "
                "for cohorts that are drawn from everybody",
            ),
            (
                bool(run.robust) and privacy.has_noise,
                "robust is not offered with dp_noise: it must see every upload of the round as it "
                "is",
            ),
            (
                run.secure and bool(run.robust),
                "secure is not offered with robust: its server must see every upload by itself, "
                "and sees their sum alone",
            ),
            (
                run.secure and bool(privacy.dp_quantile),
                "secure is not offered with dp_quantile: whether a change was clipped would be "
                "told beside the sum; choose a fixed dp_clip",
            ),
            (
                bool(run.patience) and privacy.has_noise,
                "patience is not offered with dp_noise: when to stop would be told by validation "
                "scores without noise",
            ),
            (
                privacy.is_enabled and is_scheduled,
                "participation must be one number with dp_clip: epsilon is counted for cohorts of "
                "one size",
            ),
            (
                privacy.is_enabled and selection is not Uniform,
                f"selection {run.selection} is not offered with dp_clip: epsilon is counted for "
                "cohorts drawn by chance alone",
            ),
            (
                run.secure and selection.needs_client_loss,
                f"selection {run.selection} is not offered with secure: the server reads the loss "
                "of each client",
            ),
        ]
    )


def with_model_defaults(
    run: RunConfig, method: Method, task: TaskSpec, task_config: Options
) -> RunConfig:
    """Fill in the model, the rounds and the patience, which depend on method and task.

    A method that plans its own rounds, as trees do, knows by itself when to stop. Of the model
    `auto` rounds and patience follow when it is chosen.

    Args:
        run: The options as they were given.
        method: The method.
        task: The task.
        task_config: Options of the task.

    Returns:
        The complete options.

    Raises:
        UsageError: If the task does not offer the model.
    """
    model = run.model
    if not model and task.models:
        model = method.model if method.model in task.models else task.models[0]
    if model and model not in task.models:
        raise UsageError(
            f"unknown model '{model}' for task '{task.name}'{did_you_mean(model, task.models)}; "
            f"it takes: {', '.join(task.models) or 'none'}"
        )
    if model == AUTO_MODEL:  # the rounds follow from the model that is chosen
        return dataclasses.replace(run, model=model)
    rounds = method.num_rounds(run.rounds, task_config)
    patience = run.patience
    if patience < 0:
        patience = task.patience if rounds == run.rounds else 0
    return dataclasses.replace(run, model=model, rounds=rounds, patience=patience)
