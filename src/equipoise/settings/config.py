"""A run's settings: five typed configs (run, training, privacy, task, method), one flat set of option names."""

from __future__ import annotations

import dataclasses
import json
import math
import tomllib
from dataclasses import MISSING, Field, dataclass
from pathlib import Path
from typing import Any, get_type_hints

from equipoise.contract import Method, Training, option
from equipoise.core.errors import UsageError, nearest
from equipoise.methods import find_method
from equipoise.privacy.options import Privacy
from equipoise.runtime.choose import EXECUTORS
from equipoise.tasks import TaskSpec, find_task
from equipoise.wrappers.late import delayed
from equipoise.wrappers.private import private


@dataclass(frozen=True)
class RunConfig:
    """What to run and how long."""

    method: str = option("fedavg", "method, or your own as module:Class or file.py:Class")
    task: str = option("synthetic", "task")
    model: str = option("", "model; empty for the task's default")
    rounds: int = option(100, "federated rounds")
    seed: int = option(0, "seed of data, initial model, cohorts and batches")
    participation: float = option(1.0, "share of the clients that take part in a round, in (0, 1]")
    executor: str = option(
        "auto",
        "stacked (all clients at once), loop (one after another), workers (processes), or auto: what suits the model",
    )
    threads: int = option(1, "threads of one tensor operation, unless auto finds more to be faster")
    workers: int = option(0, "processes of the workers executor; 0 for one a core")
    device: str = option("auto", "where networks are computed: cpu, cuda, or auto: cuda where there is one")
    delay: int = option(0, "rounds after which the uploads of late clients reach the aggregate; 0 for at once")
    late: float = option(1.0, "share of the clients that are late, if there is a delay, in (0, 1]")
    holdout_clients: float = option(0.0, "share of the clients kept out of training, to see how newcomers adapt")
    eval_every: int = option(1, "rounds between evaluations; the last round is always evaluated")
    checkpoint_every: int = option(10, "rounds between checkpoints")
    patience: int = option(0, "stop after so many evaluations without a better validation score; 0 for never")
    finetune: bool = option(False, "also score the personal models after validation-stopped local fine-tuning")
    save_personal: bool = option(True, "keep every client's personal model in the run folder")

    def __post_init__(self) -> None:
        for name in ("rounds", "threads", "eval_every", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}: must be at least 1")
        if self.seed < 0 or self.patience < 0 or self.workers < 0 or self.delay < 0:
            raise UsageError("seed, patience, workers and delay must be at least 0")
        if not 0 < self.late <= 1:
            raise UsageError(f"late is {self.late}: must lie in (0, 1]")
        if not 0 <= self.holdout_clients < 1:
            raise UsageError(f"holdout_clients is {self.holdout_clients}: must lie in [0, 1)")
        if not 0 < self.participation <= 1:
            raise UsageError(f"participation is {self.participation}: must lie in (0, 1]")
        if self.executor not in EXECUTORS:
            raise UsageError(f"unknown executor '{self.executor}': choose {', '.join(EXECUTORS)}")


def check_training(training: Training) -> None:
    for name in ("epochs", "batch_size"):
        if getattr(training, name) < 1:
            raise UsageError(f"{name} is {getattr(training, name)}: must be at least 1")
    if not 0 < training.lr < math.inf:
        raise UsageError(f"lr is {training.lr}: must be a number above 0")
    if not 0 <= training.weight_decay < math.inf:
        raise UsageError(f"weight_decay is {training.weight_decay}: must be a number of at least 0")
    if not 0 <= training.momentum < 1:
        raise UsageError(f"momentum is {training.momentum}: must lie in [0, 1)")


@dataclass(frozen=True)
class Option:
    """One option of a run: where it belongs, its type, default and explanation."""

    name: str
    owner: str
    type: type
    default: Any
    help: str


def options(method: type[Method], task: TaskSpec) -> dict[str, Option]:
    """Every option that a run of this method on this task takes."""
    found: dict[str, Option] = {}
    for owner, config, defaults in (
        ("run", RunConfig, {}),
        ("training", Training, dataclasses.asdict(task.training)),
        ("privacy", Privacy, {}),
        ("task", task.config, {}),
        ("method", method, {}),
    ):
        hints = get_type_hints(config)
        for item in dataclasses.fields(config):
            if item.name in found:
                raise UsageError(
                    f"{owner} option '{item.name}' is also an option of {found[item.name].owner}: rename it"
                )
            default = defaults.get(item.name, _default(item))
            found[item.name] = Option(item.name, owner, hints[item.name], default, item.metadata.get("help", ""))
    return found


@dataclass(frozen=True)
class Settings:
    """A complete, checked set of options. ``flat`` repeats the run."""

    run: RunConfig
    training: Training
    privacy: Privacy
    task_spec: TaskSpec
    task_config: Any
    method: Method

    @classmethod
    def of(cls, given: dict[str, Any]) -> Settings:
        """Settings from option names and values; what is not given has its default."""
        method, task = find_method(given.get("method", "fedavg")), find_task(given.get("task", "synthetic"))
        known = options(method, task)
        for name in given:
            if name not in known:
                raise UsageError(f"unknown option '{name}' for method '{method.name}'{nearest(name, known)}")
        values: dict[str, dict[str, Any]] = {"run": {}, "training": {}, "privacy": {}, "task": {}, "method": {}}
        for name, item in known.items():
            values[item.owner][name] = _checked(item, given.get(name, item.default))
        run = RunConfig(**values["run"])
        if not run.model and task.models:
            run = dataclasses.replace(run, model=method.model if method.model in task.models else task.models[0])
        if run.model and run.model not in task.models:
            raise UsageError(
                f"unknown model '{run.model}' for task '{task.name}'{nearest(run.model, task.models)}; "
                f"it takes: {', '.join(task.models) or 'none'}"
            )
        training = Training(**values["training"])
        check_training(training)
        policy = method(**values["method"])
        run = dataclasses.replace(run, rounds=policy.planned_rounds(run.rounds))
        privacy = Privacy(**values["privacy"])
        if run.delay and privacy.on:
            raise UsageError("delay is not offered with dp_clip: epsilon is counted for means of one round's uploads")
        return cls(run, training, privacy, task, task.config(**values["task"]), policy)

    @property
    def policy(self) -> Method:
        """The method as it is run: under differential privacy or with late clients, if that is asked for."""
        return delayed(private(self.method, self.privacy), self.run.delay, self.run.late)

    @property
    def flat(self) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for part in (self.run, self.training, self.privacy, self.task_config, self.method):
            result |= {item.name: getattr(part, item.name) for item in dataclasses.fields(part)}
        return result


def read_config(path: Path) -> dict[str, Any]:
    """Options from a TOML file, or from the ``config.json`` of a run."""
    try:
        text = path.read_text()
    except FileNotFoundError as error:
        raise UsageError(f"there is no config file '{path}'") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"config file '{path}' cannot be read: {error}") from error
    try:
        values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except ValueError as error:
        raise UsageError(f"config file '{path}' is not valid {path.suffix.lstrip('.').upper()}: {error}") from error
    if not isinstance(values, dict) or any(isinstance(value, dict) for value in values.values()):
        raise UsageError(f"config file '{path}' must be one flat table of option names and values")
    return {name.replace("-", "_"): value for name, value in values.items()}


def parse(item: Option, text: str) -> Any:
    """An option's value from its text on the command line."""
    if item.type is bool:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise UsageError(f"{item.name} is '{text}': must be true or false")
    try:
        return item.type(text)
    except ValueError as error:
        kind = "a whole number" if item.type is int else "a number"
        raise UsageError(f"{item.name} is '{text}': must be {kind}") from error


def _checked(item: Option, value: Any) -> Any:
    if item.type is float and type(value) is int:
        return float(value)
    if type(value) is not item.type:
        kinds = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
        raise UsageError(f"{item.name} is {value!r}: must be {kinds.get(item.type, item.type.__name__)}")
    if isinstance(value, float) and math.isnan(value):
        raise UsageError(f"{item.name} is NaN: must be a number")
    return value


def _default(item: Field[Any]) -> Any:
    if item.default is MISSING:
        raise UsageError(f"option '{item.name}' has no default: every option needs one")
    return item.default
