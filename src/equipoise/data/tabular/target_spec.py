"""The target: a column (`num`), or two classes that a threshold makes of it (`num > 0`)."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from equipoise.data.federated_dataset import AnyArray, Kind, Target
from equipoise.data.tabular.columns import MISSING_NUMBER_TEXTS, PLAIN_NUMBER, Column, format_number
from equipoise.data.tabular.config import ColumnConfig, parse_names
from equipoise.data.tabular.dates import Floats
from equipoise.data.tabular.diagnostics import Diagnostic
from equipoise.data.tabular.statistics import ClientStatistics, ColumnStatistics, merge_columns
from equipoise.data.tabular.table import Table
from equipoise.utils.errors import UsageError, nearest
from equipoise.utils.record import Record

COMPARISONS: dict[str, Callable[[Floats, float], NDArray[np.bool_]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
OPPOSITES = {">=": "<", "<=": ">", "==": "!=", "!=": "==", ">": "<=", "<": ">="}
THRESHOLD = re.compile(r"(.+?)\s*(>=|<=|==|!=|>|<)\s*(.+)")
EVENT_TEXTS = frozenset({"1", "true", "yes"})
NO_EVENT_TEXTS = frozenset({"0", "false", "no"})

MAX_CLASS_NUMBERS = 20  # a target with more distinct numbers is hardly a class
MAX_CLASSES = 1000


class TargetSpec(Record, frozen=True, tag="Rule", rename={"operator": "sign"}):
    """How the target is read from a table.

    Attributes:
        column: The column of the target.
        operator: The operator of a threshold, such as `>`; empty without one.
        value: The value of the threshold.
        event: For survival, the column that says whether the event was seen.
    """

    column: str
    operator: str = ""
    value: str = ""
    event: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are predicted, and hence are no inputs."""
        return (self.column, self.event) if self.event else (self.column,)

    @property
    def name(self) -> str:
        """The target as it is written on the command line."""
        return f"{self.column} {self.operator} {self.value}" if self.operator else self.column

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the two classes of a threshold."""
        if not self.operator:
            return ()
        return f"{self.column} {OPPOSITES[self.operator]} {self.value}", self.name

    def needs_number(self, kind: Kind) -> bool:
        """Whether the cells of the target must be numbers."""
        return kind != "classification" or self.operator in COMPARISONS

    def is_known(self, table: Table, kind: Kind) -> NDArray[np.bool_]:
        """Whether each row has a target `[n]`."""
        column = table.columns[self.column]
        known = ~np.isnan(column.numbers) if self.needs_number(kind) else ~column.missing
        if self.event:
            known &= ~np.isnan(read_events(table.columns[self.event]))
        return known

    def read(self, table: Table, target: Target) -> AnyArray:
        """Read the targets of rows whose target is known.

        Returns:
            Targets `[n, ...]` as `Target` describes them; -1 for a class that is not in `target`.
        """
        column = table.columns[self.column]
        if self.operator in COMPARISONS:
            is_hit: NDArray[np.bool_] = COMPARISONS[self.operator](
                column.numbers, float(self.value)
            )
            return is_hit.astype(np.int64)
        if target.kind == "regression":
            return column.numbers.astype(np.float32)
        if target.kind == "survival":
            events = read_events(table.columns[self.event])
            return np.stack([column.numbers, events], axis=1).astype(np.float32)
        codes, labels = column.labels
        if self.operator:
            classes = [
                int(_is_same(label, self.value) == (self.operator == "==")) for label in labels
            ]
        else:
            class_of_name = {name: i for i, name in enumerate(target.classes)}
            classes = [class_of_name.get(label, -1) for label in labels]
        return np.array([*classes, -1], np.int64)[codes]


def read_events(column: Column) -> Floats:
    """Read the events of survival `[n]`: 1 if it was seen, 0 if not, NaN for other cells."""
    codes, labels = column.labels
    events = []
    for label in labels:
        if label.lower() in EVENT_TEXTS:
            events.append(1.0)
        else:
            events.append(0.0 if label.lower() in NO_EVENT_TEXTS else np.nan)
    return np.array([*events, np.nan])[codes]


def parse_target(config: ColumnConfig, columns: Iterable[str], source: str) -> TargetSpec:
    """Parse the options `target` and `event`, and check all options that name columns.

    A column whose own name looks like a threshold is meant as it is.

    Args:
        config: The options.
        columns: The names of the columns.
        source: The name of the tables in errors.

    Raises:
        UsageError: If there is no such column, or a threshold is not a number.
    """
    known = list(columns)
    spec = TargetSpec(config.target, event=config.event)
    threshold = THRESHOLD.fullmatch(config.target.strip())
    if threshold and config.target not in known:
        value = threshold[3].strip("'\" ")
        spec = TargetSpec(threshold[1], threshold[2], value, config.event)
        if spec.operator in COMPARISONS and not PLAIN_NUMBER.fullmatch(value):
            raise UsageError(f"target is '{config.target}': '{value}' is no number to compare with")
    options = {spec.column: "target"}
    if spec.event:
        options[spec.event] = "event"
    for option in ("categories", "numbers"):
        for name in parse_names(getattr(config, option)):
            options.setdefault(name, option)
    for name, option in options.items():
        if name not in known:
            raise UsageError(
                f"{source} has no column '{name}'{nearest(name, known)}: see --{option}"
            )
    return spec


def target_kind(config: ColumnConfig) -> Kind:
    """Return the kind of target that the options ask for."""
    if config.target_type == "regression":
        return "regression"
    return "survival" if config.event or config.target_type == "survival" else "classification"


def infer_target(
    messages: Sequence[ClientStatistics], spec: TargetSpec, config: ColumnConfig
) -> tuple[Target | None, list[Diagnostic]]:
    """Decide what the target is, from the statistics of all clients.

    Returns:
        The target, or None with the problems.
    """
    column = merge_columns([message.target[0] for message in messages])
    kind = target_kind(config)
    problems = _check_cells(column, spec, kind)
    if kind == "survival":
        problems += _check_events(messages, spec)
    if problems:
        return None, problems
    if kind == "regression":
        values = reduce(lambda a, b: a + b, [message.train_target for message in messages])
        if not values.m2 > 0:
            return None, [_problem(spec, "has one value only: there is nothing to predict")]
        return Target(kind, spec.name, mean=values.mean, scale=values.std), []
    if kind == "survival":
        if column.histogram and column.histogram[0][0] < 0:
            return None, [_problem(spec, "has times below 0: survival counts from 0 on")]
        return Target(kind, spec.name, event=spec.event), []
    if spec.operator:
        return Target(kind, spec.name, spec.classes), []
    return _infer_classes(column, spec, config)


def _infer_classes(
    column: ColumnStatistics, spec: TargetSpec, config: ColumnConfig
) -> tuple[Target | None, list[Diagnostic]]:
    """List the classes; numbers that look like measurements are a question to the user."""
    num_numbers = len(column.histogram)
    num_classes = num_numbers + len(column.text_counts)
    looks_measured = column.numbers.count and (
        not column.all_integers or not column.histogram_is_exact or num_numbers > MAX_CLASS_NUMBERS
    )
    if looks_measured and not config.target_type:
        threshold = f'"{spec.column} > {format_number(column.median)}"'
        message = (
            f"has {num_numbers} or more different numbers: say --target-type regression, "
            f"or --target {threshold} for two classes, or --target-type classification"
        )
        return None, [_problem(spec, message, "--target-type regression")]
    if column.num_suppressed or not column.histogram_is_exact or num_classes > MAX_CLASSES:
        return None, [_problem(spec, "has too many different values for classes")]
    if num_classes < 2:
        return None, [_problem(spec, "has one value only: there is nothing to tell apart")]
    numbers = [format_number(value) for value, _ in column.histogram]
    texts = [text for text, _ in column.text_counts]
    return Target("classification", spec.name, (*numbers, *texts)), []


def _check_cells(column: ColumnStatistics, spec: TargetSpec, kind: Kind) -> list[Diagnostic]:
    """Report a target without values, or with texts where numbers are needed."""
    if column.num_rows == column.num_missing:
        return [_problem(spec, "is empty: there is nothing to learn from")]
    if not spec.needs_number(kind):
        return []
    texts = [text for text, _ in column.text_counts if text.lower() not in MISSING_NUMBER_TEXTS]
    if not texts and not column.num_suppressed:
        return []
    examples = ", ".join(map(repr, texts[:3])) or "texts"
    return [
        _problem(
            spec, f"holds {examples}, which are no numbers: clean it, or choose another target"
        )
    ]


def _check_events(messages: Sequence[ClientStatistics], spec: TargetSpec) -> list[Diagnostic]:
    """Report a column of events that is not given, or does not hold events."""
    if not spec.event:
        message = "is a time of survival, and --event is not given: name the column of events"
        return [_problem(spec, message)]
    column = merge_columns([message.target[1] for message in messages])
    values = {format_number(value) for value, _ in column.histogram}
    values |= {text.lower() for text, _ in column.text_counts}
    others = sorted(values - EVENT_TEXTS - NO_EVENT_TEXTS)
    if not others and not column.num_suppressed and values & EVENT_TEXTS:
        return []
    examples = ", ".join(map(repr, others[:3])) or "no 1"
    message = (
        f"holds {examples}: an event is 1 where it was seen and 0 where not, and some must be seen"
    )
    return [Diagnostic(message, True, column=spec.event)]


def _problem(spec: TargetSpec, message: str, option: str = "") -> Diagnostic:
    """Report a problem of the target."""
    return Diagnostic(f"the target {message}", True, column=spec.column, option=option)


def _is_same(label: str, value: str) -> bool:
    """Whether two texts are equal, as texts or as numbers."""
    if label == value:
        return True
    are_numbers = PLAIN_NUMBER.fullmatch(label) and PLAIN_NUMBER.fullmatch(value)
    return bool(are_numbers) and float(label) == float(value)
