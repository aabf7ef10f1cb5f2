"""Forms that are generated from the declared options of a run, and the commands that they make."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from equipoise.config.schema import to_config_value
from equipoise.experiment.compare import first_methods, method_and_model
from equipoise.methods import all_methods, find_method
from equipoise.methods.families import Family, by_family
from equipoise.settings.option_registry import options
from equipoise.tasks import find_task
from equipoise.utils.errors import UsageError, did_you_mean

ASKED_ABOVE = frozenset({"method", "task", "data", "target", "client_column", "rounds", "seed"})
"""Options that the three questions of the page ask, or that it sets."""
OWNER_TITLES = {
    "run": "Run",
    "timing": "Simulated time",
    "training": "Local training",
    "privacy": "Differential privacy",
    "task": "Data",
}


@dataclass(frozen=True)
class Effort:
    """How long a comparison may take.

    Attributes:
        name: Value of the choice.
        text: What the reader chooses.
        rounds: Federated rounds of each run.
        seeds: Number of seeds.
    """

    name: str
    text: str
    rounds: int
    seeds: int


EFFORTS = (
    Effort("quick", "A first look (20 rounds, 1 seed): no intervals over seeds", 20, 1),
    Effort("usual", "A usual comparison (60 rounds, 3 seeds)", 60, 3),
    Effort("thorough", "A thorough one (150 rounds, 5 seeds)", 150, 5),
)


@dataclass(frozen=True)
class FormField:
    """One input of a form.

    Attributes:
        name: Name of the option.
        flag: The option on the command line.
        help: Description, bounds and default.
        kind: `number`, `text`, `choice` or `flag`.
        default: Default as text.
        choices: Allowed texts of a choice.
        low: Least number; empty without a bound.
        high: Largest number; empty without a bound.
    """

    name: str
    flag: str
    help: str
    kind: str
    default: str
    choices: tuple[str, ...]
    low: str
    high: str


def option_groups(task: str = "tables") -> dict[str, list[FormField]]:
    """Return the inputs of all options that every method shares, by the title of their group.

    Args:
        task: Name of the task.
    """
    groups: dict[str, list[FormField]] = {}
    for name, item in options(find_method("fedavg"), find_task(task)).items():
        if item.owner not in OWNER_TITLES or name in ASKED_ABOVE:
            continue
        rule = item.rule
        kind = "number" if item.kind.type in (int, float) else "text"
        if item.kind.allows_schedule:
            kind = "text"  # a number, or a schedule such as cosine(0.1, 0.001)
        if item.kind.type is bool:
            kind = "flag"
        elif rule.choices:
            kind = "choice"
        field = FormField(
            name=name,
            flag=f"--{name.replace('_', '-')}",
            help=item.help,
            kind=kind,
            default=_format_value(to_config_value(item.default)),
            choices=tuple(rule.choices),
            low=_format_value(rule.low),
            high=_format_value(rule.high),
        )
        groups.setdefault(OWNER_TITLES[item.owner], []).append(field)
    return groups


def advised_options(command: str) -> dict[str, str] | None:
    """Return the inputs that the command of a description sets beyond the three questions.

    Args:
        command: What `data describe` suggests; empty if its problems need more than options.

    Returns:
        Values by the names of inputs; None without a command.
    """
    words = shlex.split(command)[2:]
    if not words:
        return None
    given = {
        flag.removeprefix("--").replace("-", "_"): value
        for flag, value in zip(words[::2], words[1::2], strict=True)
    }
    return {
        f"option.{name}": value
        for name, value in given.items()
        if name not in ASKED_ABOVE and name != "json"
    }


def default_methods() -> tuple[str, ...]:
    """Return the methods that a comparison on tables runs unless others are named."""
    return first_methods(find_task("tables"))


def method_families() -> dict[str, list[str]]:
    """Return the methods that learn from data, by the title of their family.

    Methods with a model of their own that a comparison runs by default stand after the others.
    """
    labels = [label for label in default_methods() if method_and_model(label)[1]]
    return {
        family.title: [*methods, *(one for one in labels if method_and_model(one)[0] in methods)]
        for family, methods in by_family().items()
        if family is not Family.AGENTS
    }


def comparison_arguments(form: Mapping[str, str], data: Path, out: Path) -> list[str]:
    """Return the arguments of the command that a filled form asks for.

    Args:
        form: Values by the names of the inputs.
        data: The table, or the folder of tables.
        out: Folder of the result.

    Raises:
        UsageError: If the form is incomplete or names an unknown method.
    """
    target = form.get("target", "").strip()
    if not target:
        raise UsageError("choose what to predict: a column of the table")
    client_column = form.get("client_column", "").strip()
    if not client_column and data.is_file():
        raise UsageError("choose the column that names the sites")
    methods = [name for name in form.get("methods", "").split(",") if name]
    methods = methods or list(default_methods())
    known = all_methods()
    for name in methods:
        if method_and_model(name)[0] not in known:
            raise UsageError(f"there is no method '{name}'{did_you_mean(name, known)}")
    effort = next((item for item in EFFORTS if item.name == form.get("effort")), EFFORTS[0])
    arguments = ["compare", "--methods", ",".join(methods), "--task", "tables"]
    arguments += ["--data", str(data)]
    if client_column and data.is_file():
        arguments += ["--client-column", client_column]
    arguments += ["--target", target, "--rounds", str(effort.rounds), "--seeds", str(effort.seeds)]
    arguments += _advanced_arguments(form)
    return [*arguments, "--out", str(out)]


def _advanced_arguments(form: Mapping[str, str]) -> list[str]:
    """Return the options that differ from their defaults."""
    words: list[str] = []
    for fields in option_groups().values():
        for field in fields:
            value = form.get(f"option.{field.name}", field.default).strip()
            if value == field.default or (field.kind != "flag" and not value):
                continue
            if field.kind == "flag":
                is_on = value == "true"
                words.append(field.flag if is_on else f"--no-{field.flag.removeprefix('--')}")
            else:
                words.append(f"{field.flag}={value}")
    return words


def _format_value(value: object) -> str:
    """Return a value as an input shows it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
