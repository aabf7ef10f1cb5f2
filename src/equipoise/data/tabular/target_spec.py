"""The target: a column (`num`), or two classes that a condition makes of it (`num > 0`)."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from functools import reduce

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from equipoise.data.federated_dataset import AnyArray, Kind, Target
from equipoise.data.tabular.columns import (
    MISSING_NUMBER_TEXTS,
    PLAIN_NUMBER,
    Column,
    column_from_texts,
    format_number,
)
from equipoise.data.tabular.config import ColumnConfig, parse_names
from equipoise.data.tabular.dates import Floats
from equipoise.data.tabular.diagnostics import Diagnostic, list_groups, texts_alike
from equipoise.data.tabular.statistics import ClientStatistics, ColumnStatistics, merge_columns
from equipoise.data.tabular.table import Table
from equipoise.utils.errors import UsageError, did_you_mean
from equipoise.utils.record import Record

COMPARISONS: dict[str, Callable[[Floats, float], NDArray[np.bool_]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
OPPOSITES = {">=": "<", "<=": ">", "==": "!=", "!=": "==", ">": "<=", "<": ">="}
THRESHOLD = re.compile(r"(.+?)\s*(>=|<=|==|!=|>|<)\s*(.+)")
EVENT_TEXTS = frozenset({"1", "true", "yes", "dead", "died", "deceased", "event"})
NO_EVENT_TEXTS = frozenset({"0", "false", "no", "alive", "censored"})
ONE_TWO_EVENTS = frozenset({"1", "2"})
"""How R and SAS often code events: 1 is censored, 2 is an event."""

MAX_CLASS_NUMBERS = 20  # a target with more distinct numbers is hardly a class
MAX_CLASSES = 1000


class Condition(Record, frozen=True):
    """A column, or a question about its cells such as `num > 0` or `status == dead`.

    Attributes:
        column: The column.
        operator: The comparison, such as `>`; empty if the cells are used as they are.
        value: The value that cells are compared with.
    """

    column: str
    operator: str = ""
    value: str = ""

    @property
    def name(self) -> str:
        """The condition as it is written on the command line."""
        return f"{self.column} {self.operator} {self.value}" if self.operator else self.column

    @property
    def needs_number(self) -> bool:
        """Whether only numbers can be compared."""
        return self.operator in COMPARISONS

    def is_true(self, column: Column) -> NDArray[np.bool_]:
        """Whether the condition is true for each cell `[n]`; false where a cell is missing."""
        if self.needs_number:
            return COMPARISONS[self.operator](column.numbers, float(self.value))
        codes, labels = column.labels
        matches = [_is_same(label, self.value) == (self.operator == "==") for label in labels]
        return np.array([*matches, False])[codes]


class TargetSpec(Record, frozen=True):
    """How the target is read from a table.

    Attributes:
        target: The column of the target, or a condition that makes two classes of it.
        event: For survival, where the event was seen. Without an operator, 1, true, yes and dead
            mean that it was seen.
    """

    target: Condition
    event: Condition | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are predicted, and hence are no inputs."""
        return (self.target.column, self.event.column) if self.event else (self.target.column,)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the two classes of a condition."""
        if not self.target.operator:
            return ()
        opposite = replace(self.target, operator=OPPOSITES[self.target.operator])
        return opposite.name, self.target.name

    def needs_number(self, kind: Kind) -> bool:
        """Whether the cells of the target must be numbers."""
        return kind != "classification" or self.target.needs_number

    def is_known(self, table: Table, kind: Kind) -> NDArray[np.bool_]:
        """Whether each row has a target `[n]`."""
        column = table.columns[self.target.column]
        known = ~np.isnan(column.numbers) if self.needs_number(kind) else ~column.missing
        if self.event:
            events = table.columns[self.event.column]
            known &= ~(np.isnan(events.numbers) if self.event.needs_number else events.missing)
        return known

    def invalid_texts(self, table: Table, kind: Kind) -> AnyArray:
        """Return the text of each row `[n]` where a number is needed; empty where nothing is wrong.

        A text that means a missing number is not wrong.
        """
        invalid = np.full(len(table), "", object)
        if not self.needs_number(kind):
            return invalid
        column = table.columns[self.target.column]
        rows = np.flatnonzero(column.codes >= 0)
        texts = column.texts.take(column.codes[rows])
        invalid[rows] = ["" if text.lower() in MISSING_NUMBER_TEXTS else text for text in texts]
        return invalid

    def read(self, table: Table, target: Target) -> AnyArray:
        """Read the targets of rows whose target is known.

        Returns:
            Targets `[n, ...]` as `Target` describes them; -1 for a class that is not in `target`.
        """
        column = table.columns[self.target.column]
        if target.kind == "regression":
            return column.numbers.astype(np.float32)
        if target.kind == "survival":
            assert self.event is not None
            events = _read_events(table.columns[self.event.column], self.event)
            return np.stack([column.numbers, events], axis=1).astype(np.float32)
        if self.target.operator:
            return self.target.is_true(column).astype(np.int64)
        codes, labels = column.labels
        class_of_name = {name: i for i, name in enumerate(target.classes)}
        classes = [class_of_name.get(label, -1) for label in labels]
        return np.array([*classes, -1], np.int64)[codes]


def _read_events(column: Column, event: Condition) -> Floats:
    """Read the events of survival `[n]`: 1 where it was seen, else 0."""
    if event.operator:
        return event.is_true(column).astype(np.float64)
    codes, labels = column.labels
    events = [float(label.lower() in EVENT_TEXTS) for label in labels]
    return np.array([*events, 0.0])[codes]


def parse_target(config: ColumnConfig, columns: Iterable[str], source: str) -> TargetSpec:
    """Parse the options `target` and `event`, and check all options that name columns.

    Args:
        config: The options.
        columns: The names of the columns.
        source: The name of the tables in errors.

    Returns:
        How the target is read.

    Raises:
        UsageError: If there is no such column, or a threshold is not a number.
    """
    known = list(columns)
    target = _parse_condition(config.target, known, "target")
    event = _parse_condition(config.event, known, "event") if config.event else None
    options = {target.column: "target"}
    if event:
        options[event.column] = "event"
    for option in ("categories", "numbers"):
        for name in parse_names(getattr(config, option)):
            options.setdefault(name, option)
    for name, option in options.items():
        if name not in known:
            raise UsageError(
                f"{source} has no column '{name}'{did_you_mean(name, known)}: see --{option}"
            )
    return TargetSpec(target, event)


def _parse_condition(text: str, columns: Sequence[str], option: str) -> Condition:
    """Parse `num > 0`; a column whose own name looks like a condition is meant as it is."""
    match = THRESHOLD.fullmatch(text.strip())
    if text in columns or not match:
        return Condition(text)
    condition = Condition(match[1], match[2], match[3].strip("'\" "))
    if condition.needs_number and not PLAIN_NUMBER.fullmatch(condition.value):
        raise UsageError(f"{option} is '{text}': '{condition.value}' is no number to compare with")
    return condition


def target_kind(config: ColumnConfig) -> Kind:
    """Return the kind of target that the options ask for."""
    if config.target_type == "regression":
        return "regression"
    return "survival" if config.event or config.target_type == "survival" else "classification"


def infer_target(
    messages: Sequence[ClientStatistics], spec: TargetSpec, config: ColumnConfig
) -> tuple[Target | None, TargetSpec, list[Diagnostic]]:
    """Decide what the target is, from the statistics of all clients.

    Args:
        messages: The statistics of each client.
        spec: What the user said of the target.
        config: Options of columns.

    Returns:
        The target (None if there are problems), how it is read, and diagnostics.
    """
    column = merge_columns([message.target[0] for message in messages])
    kind = target_kind(config)
    diagnostics = _check_cells(column, spec, kind)
    if kind == "survival":
        spec, about_events = _infer_events(messages, spec)
        diagnostics += about_events
    if any(diagnostic.is_problem for diagnostic in diagnostics):
        return None, spec, diagnostics
    target, problems = _infer_kind(messages, column, spec, config)
    return target, spec, [*diagnostics, *problems]


def _infer_kind(
    messages: Sequence[ClientStatistics],
    column: ColumnStatistics,
    spec: TargetSpec,
    config: ColumnConfig,
) -> tuple[Target | None, list[Diagnostic]]:
    """Describe a number, a time or classes; None with problems if this is not possible."""
    kind = target_kind(config)
    name = spec.target.name
    if kind == "regression":
        values = reduce(lambda a, b: a + b, [message.train_target for message in messages])
        if not values.m2 > 0:
            return None, [_problem(spec, "has one value only: there is nothing to predict")]
        return Target(kind, name, mean=values.mean, scale=values.std), []
    if kind == "survival":
        if column.histogram and column.histogram[0][0] < 0:
            return None, [_problem(spec, "has times below 0: survival counts from 0 on")]
        return Target(kind, name, event=spec.event.name if spec.event else ""), []
    if spec.target.operator:
        return Target(kind, name, spec.classes), []
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
        message = (
            f"has {num_numbers} or more different numbers: say --target-type regression, or "
            f"--target {_threshold(column, spec)} for two classes, or --target-type classification"
        )
        return None, [_problem(spec, message, "--target-type regression")]
    if column.num_suppressed or not column.histogram_is_exact or num_classes > MAX_CLASSES:
        return None, [_problem(spec, "has too many different values for classes")]
    if num_classes < 2:
        return None, [_problem(spec, "has one value only: there is nothing to tell apart")]
    numbers = [format_number(value) for value, _ in column.histogram]
    texts = [text for text, _ in column.text_counts]
    alike = texts_alike(texts)
    if alike and not config.target_type:
        return None, [_problem(spec, _alike_message(alike, column, spec))]
    target = Target("classification", spec.target.name, (*numbers, *texts))
    if config.target_type or texts or len(numbers) == 2:
        return target, []
    message = (
        f"the target has {len(numbers)} different whole numbers, which are taken as classes "
        f"without an order: --target-type regression predicts a number, --target "
        f"{_threshold(column, spec)} tells two classes apart, --target-type classification "
        "confirms this"
    )
    return target, [Diagnostic(message, column=spec.target.column)]


def _alike_message(
    alike: Sequence[Sequence[str]], column: ColumnStatistics, spec: TargetSpec
) -> str:
    """Say which classes are probably the same, and what to do."""
    listed = list_groups(alike)
    doubtful = {text for group in alike for text in group}
    counts = {text: count for text, count in column.text_counts if text not in doubtful}
    way_out = ""
    if counts:
        other = max(counts, key=lambda text: counts[text])
        way_out = f'ask for two classes by --target "{spec.target.column} != {other}", or '
    return (
        f"has classes that differ in capital letters or spaces alone: {listed}. Correct the "
        f"cells, or {way_out}confirm them by --target-type classification"
    )


def _threshold(column: ColumnStatistics, spec: TargetSpec) -> str:
    """Write two classes about the median, as on the command line."""
    return f'"{spec.target.column} > {format_number(column.median)}"'


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


def _infer_events(
    messages: Sequence[ClientStatistics], spec: TargetSpec
) -> tuple[TargetSpec, list[Diagnostic]]:
    """Decide which values of the column of events mean that the event was seen.

    Returns:
        The target with the meaning of events, and diagnostics.
    """
    if not spec.event:
        message = "is a time of survival, and --event is not given: name the column of events"
        return spec, [_problem(spec, message)]
    name = spec.event.column
    column = merge_columns([message.target[1] for message in messages])
    values = {format_number(value): count for value, count in column.histogram}
    values |= dict(column.text_counts)
    if spec.event.operator:
        if spec.event.is_true(column_from_texts(list(values))).any():
            return spec, []
        message = f"no row has {spec.event.name}: it holds {_examples(values)}"
        return spec, [Diagnostic(message, True, column=name)]
    lower = {value.lower() for value in values}
    if lower == ONE_TWO_EVENTS or lower == {"2"}:
        message = "holds 1 and 2, which are read as in R and SAS: 2 is an event, 1 is none"
        event = Condition(name, "==", "2")
        return replace(spec, event=event), [Diagnostic(message, column=name)]
    is_clear = not column.num_suppressed and lower <= EVENT_TEXTS | NO_EVENT_TEXTS
    if is_clear and lower & EVENT_TEXTS:
        return spec, []
    if is_clear:
        return spec, [Diagnostic("no event was seen: some must be", True, column=name)]
    example = max(values, key=str) if values else "dead"
    message = (
        f"holds {_examples(values)}, and it is not clear which of them is an event: "
        f'say it, for example --event "{name} == {example}"'
    )
    return spec, [Diagnostic(message, True, column=name)]


def _examples(values: Iterable[str]) -> str:
    """Quote the first values."""
    return ", ".join(map(repr, list(values)[:3])) or "too many different texts"


def _problem(spec: TargetSpec, message: str, option: str = "") -> Diagnostic:
    """Report a problem of the target."""
    return Diagnostic(f"the target {message}", True, column=spec.target.column, option=option)


def _is_same(label: str, value: str) -> bool:
    """Whether two texts are equal, as texts or as numbers."""
    if label == value:
        return True
    are_numbers = PLAIN_NUMBER.fullmatch(label) and PLAIN_NUMBER.fullmatch(value)
    return bool(are_numbers) and float(label) == float(value)
