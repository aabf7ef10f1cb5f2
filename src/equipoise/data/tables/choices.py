"""What people say about their tables."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass

from equipoise.config.schema import Options, option
from equipoise.data.federated_dataset import KINDS
from equipoise.data.own import OwnShares
from equipoise.utils.errors import UsageError


@dataclass(frozen=True)
class ColumnChoices(Options):
    """What is predicted, and how columns are taken."""

    target: str = option(
        "label", "column to be predicted, or two classes of it by a threshold: 'num > 0'"
    )
    kind: str = option(
        "",
        "what the target is; empty for survival with an event, else classes",
        choices=("", *KINDS),
    )
    event: str = option(
        "", "for survival: column that is 1 where the event was seen at the target's time, else 0"
    )
    ignore_columns: str = option(
        "", "columns to leave out before anything else, with commas between"
    )
    categories: str = option(
        "", "columns whose numbers are names of categories, with commas between"
    )
    numbers: str = option(
        "", "columns that are numbers, though they look like categories or row numbers"
    )
    missing: str = option(
        "keep", "whether missing values are filled and marked as such", choices=("keep", "refuse")
    )
    standardise: str = option(
        "federation",
        "whose mean and deviation numbers are measured by",
        choices=("federation", "client", "none"),
    )
    prepare_by: str = option(
        "",
        "what decides how columns are prepared: sums and counts that clients tell, or the server's rows alone; "
        "empty for clients, but under dp_noise the server",
        choices=("", "clients", "server"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.event and self.kind not in ("", "survival"):
            raise UsageError(
                f"event is for survival, and kind is '{self.kind}': leave one of them out"
            )


@dataclass(frozen=True)
class TableChoices(ColumnChoices, OwnShares):
    """The same where tables of all clients are here: who takes part, and which rows are for what."""

    small: str = option(
        "refuse",
        "what becomes of clients with fewer than min_rows rows; pool makes one client of them",
        choices=("refuse", "drop", "pool", "keep"),
    )
    split_column: str = option(
        "", "column that says which rows are train, test and perhaps val; others are left out"
    )


def written(names: Iterable[str]) -> str:
    """The inverse of :func:`listed`."""
    return ",".join(f'"{name}"' if "," in name else name for name in names)


def listed(text: str) -> tuple[str, ...]:
    """Names with commas between; a name that holds a comma stands in quotation marks."""
    names = next(csv.reader([text], skipinitialspace=True), [])
    return tuple(name.strip() for name in names if name.strip())
