"""Options of tables."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass

from equipoise.config.schema import Options, option
from equipoise.data.federated_dataset import KINDS
from equipoise.data.splits import UserRowShares
from equipoise.utils.errors import UsageError


@dataclass(frozen=True)
class ColumnConfig(Options):
    """The target, and how columns are read."""

    target: str = option(
        "label",
        "column to be predicted, or two classes of it by a threshold: 'num > 0'",
    )
    target_type: str = option(
        "",
        "what the target is; empty for survival with an event, else classes",
        choices=("", *KINDS),
    )
    event: str = option(
        "",
        "for survival: column that is 1 where the event was seen at the target's time, else 0; "
        "or what says so: 'status == 2'",
    )
    ignore_columns: str = option("", "columns to drop before anything else, separated by commas")
    categories: str = option("", "columns whose numbers are categories, separated by commas")
    numbers: str = option(
        "", "columns that are numbers, though they look like categories or row numbers"
    )
    missing: str = option(
        "keep", "keep (fill and mark) or refuse missing values", choices=("keep", "refuse")
    )
    standardise: str = option(
        "federation",
        "whose mean and standard deviation are used to standardise numbers",
        choices=("federation", "client", "none"),
    )
    preprocess_from: str = option(
        "",
        "what decides how columns are prepared: sums and counts that clients send, or the server's "
        "rows alone; empty for clients, but under dp_noise the server",
        choices=("", "clients", "server"),
    )

    def __post_init__(self) -> None:
        """Refuse options that contradict each other.

        Raises:
            UsageError: If they do.
        """
        super().__post_init__()
        if self.event and self.target_type not in ("", "survival"):
            raise UsageError(
                f"event is for survival, but target_type is '{self.target_type}': "
                "leave one of them out"
            )


@dataclass(frozen=True)
class TableConfig(ColumnConfig, UserRowShares):
    """Options where the tables of all clients are on this machine."""

    small_clients: str = option(
        "refuse",
        "what to do with clients that have fewer than min_rows rows; pool merges them",
        choices=("refuse", "drop", "pool", "keep"),
    )
    missing_site: str = option(
        "refuse",
        "what to do with rows that do not say which client they belong to",
        choices=("refuse", "drop"),
    )
    split_column: str = option(
        "", "column that says which rows are train, test and optionally val; others are dropped"
    )


def format_names(names: Iterable[str]) -> str:
    """Join names by commas, so that `parse_names` splits them again."""
    return ",".join(f'"{name}"' if "," in name else name for name in names)


def parse_names(text: str) -> tuple[str, ...]:
    """Split names at commas; a name that contains a comma is in quotation marks."""
    names = next(csv.reader([text], skipinitialspace=True), [])
    return tuple(name.strip() for name in names if name.strip())
