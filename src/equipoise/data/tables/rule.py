"""Which column is predicted, or which two classes a threshold makes of it: ``num``, ``num > 0``."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.data.federated_dataset import Kind, Target
from equipoise.data.tables.cells import PLAIN, Column
from equipoise.data.tables.table import Table
from equipoise.utils.errors import UsageError, nearest

SIGNS: dict[str, Callable[[Any, Any], Any]] = {
    **{">=": operator.ge, "<=": operator.le, "==": operator.eq, "!=": operator.ne},
    **{">": operator.gt, "<": operator.lt},
}
OPPOSITE = {">=": "<", "<=": ">", "==": "!=", "!=": "==", ">": "<=", "<": ">="}
WRITTEN = re.compile(r"(.+?)\s*(>=|<=|==|!=|>|<)\s*(.+)")
YES = frozenset({"1", "true", "yes"})
NO = frozenset({"0", "false", "no"})


@dataclass(frozen=True)
class Rule:
    """How ``y`` is read from a table."""

    column: str
    sign: str = ""
    value: str = ""
    event: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that are predicted, and so are no inputs."""
        return (self.column, self.event) if self.event else (self.column,)

    @property
    def name(self) -> str:
        return f"{self.column} {self.sign} {self.value}" if self.sign else self.column

    @property
    def classes(self) -> tuple[str, ...]:
        """Both sides of a threshold."""
        return (f"{self.column} {OPPOSITE[self.sign]} {self.value}", self.name) if self.sign else ()

    def known(self, table: Table, kind: Kind) -> NDArray[np.bool_]:
        """Rows whose target is there."""
        column = table.columns[self.column]
        measured = kind != "classification" or self.sign in (">=", "<=", ">", "<")
        known: NDArray[np.bool_] = ~np.isnan(column.number) if measured else ~column.missing
        return known & ~np.isnan(happened(table.columns[self.event])) if self.event else known

    def read(self, table: Table, target: Target) -> NDArray[Any]:
        """The ``y`` of rows whose target is known."""
        column = table.columns[self.column]
        if self.sign in ("==", "!="):
            codes, texts = column.labels
            hit = [int(_same(text, self.value) == (self.sign == "==")) for text in texts]
            return np.array([*hit, -1], np.int64)[codes]
        if self.sign:
            over: NDArray[np.bool_] = SIGNS[self.sign](column.number, float(self.value))
            return over.astype(np.int64)
        if target.kind == "regression":
            return column.number.astype(np.float32)
        if target.kind == "survival":
            return np.stack([column.number, happened(table.columns[self.event])], axis=1).astype(
                np.float32
            )
        codes, texts = column.labels
        place = {name: i for i, name in enumerate(target.classes)}
        return np.array([*(place.get(text, -1) for text in texts), -1], np.int64)[codes]


def happened(column: Column) -> NDArray[np.float64]:
    """1 where the event was seen, 0 where not, NaN where a cell says neither."""
    codes, texts = column.labels
    said = [1.0 if text.lower() in YES else 0.0 if text.lower() in NO else np.nan for text in texts]
    return np.array([*said, np.nan])[codes]


def find_rule(text: str, event: str, columns: Iterable[str], source: str) -> Rule:
    """From ``--target`` and ``--event``; a column whose own name looks like a threshold is meant as it is."""
    known = list(columns)
    written = None if text in known else WRITTEN.fullmatch(text.strip())
    rule = Rule(text, event=event)
    if written:
        rule = Rule(written[1], written[2], written[3].strip("'\" "), event)
        if rule.sign not in ("==", "!=") and not PLAIN.fullmatch(rule.value):
            raise UsageError(f"target is '{text}': '{rule.value}' is no number to compare with")
    for name in rule.columns:
        if name not in known:
            option = "--event" if name == event else "--target"
            raise UsageError(f"{source} has no column '{name}'{nearest(name, known)}: see {option}")
    return rule


def _same(text: str, value: str) -> bool:
    return text == value or bool(
        PLAIN.fullmatch(text) and PLAIN.fullmatch(value) and float(text) == float(value)
    )
