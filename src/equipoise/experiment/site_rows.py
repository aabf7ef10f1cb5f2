"""New rows of a table by site: reading, splitting and labelling them for the models of sites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.data.federated_dataset import Ints
from equipoise.data.tabular.io import read_table, table_from_values
from equipoise.data.tabular.preprocessing import Preprocessor
from equipoise.data.tabular.table import Table
from equipoise.experiment.row_outputs import PERSONAL
from equipoise.experiment.site_models import SiteModels, find_site
from equipoise.utils.errors import UsageError, did_you_mean


@dataclass(frozen=True)
class RowSelection:
    """New rows, and what says which site each of them belongs to.

    Attributes:
        rows: A table with the columns of training.
        client: The site of all rows; None if a column says it, or if they belong to no site.
        client_column: Column that names the site of each row. Empty for that of training, if the
            rows have it.
    """

    rows: object
    client: int | None = None
    client_column: str = ""

    def __post_init__(self) -> None:
        """Refuse a site of all rows beside a column of sites.

        Raises:
            UsageError: If both are given.
        """
        if self.client is not None and self.client_column:
            raise UsageError("--client and --client-column exclude each other: leave one out")

    @staticmethod
    def of(
        models: SiteModels, rows: object, client: int | str | None, client_column: str
    ) -> RowSelection:
        """Select rows as users name them.

        Args:
            models: The models.
            rows: A table, or the path of its file.
            client: The site of all rows, by name or number; None for no site.
            client_column: Column that names the site of each row; may be empty.

        Returns:
            The selection.

        Raises:
            UsageError: If there is no such file or site, or the two contradict each other.
        """
        number = find_site(models, client) if isinstance(client, str) else client
        if isinstance(rows, Path):
            rows = read_rows(rows, client_column or models.client_column)
        return RowSelection(rows, number, client_column)

    def table(self, models: SiteModels) -> Table:
        """Return the rows as a table."""
        column = self.client_column or models.client_column
        return table_from_values(self.rows, "the table of rows", column)

    def by_site(
        self, models: SiteModels, table: Table, column: str, dropped: tuple[str, ...] = ()
    ) -> SiteTable:
        """Find the site of each row of a table.

        Args:
            models: The models.
            table: The rows, or some of them.
            column: Column that names the site of each row; empty without one.
            dropped: Further columns that are no inputs.

        Returns:
            The rows and their sites.

        Raises:
            UsageError: If there is no such column, or a row does not name its site.
        """
        sites = split_by_site(models, table, self.client, column)
        return SiteTable(models, table, sites, column, (column, *dropped))

    def site_column(self, models: SiteModels, table: Table) -> str:
        """Return the column of sites: the given one, else that of training if the rows have it."""
        if self.client_column or self.client is not None or models.owner is not None:
            return self.client_column
        return models.client_column if models.client_column in table.columns else ""


@dataclass(frozen=True)
class SiteRows:
    """Rows of one site in a table.

    Attributes:
        name: Name of the site.
        client: Its number in the run; None if training did not have it.
        rows: Places of its rows in the table.
    """

    name: str
    client: int | None
    rows: Ints


def split_by_site(
    models: SiteModels, table: Table, client: int | None, client_column: str
) -> list[SiteRows]:
    """Find out which rows belong to which site.

    Args:
        models: The models.
        table: All rows.
        client: The site of all rows; None if a column says it, or if they belong to no site.
        client_column: Column that names the site of each row; empty without one.

    Returns:
        The sites that have rows, known ones first in the order of training.

    Raises:
        UsageError: If there is no such column, or a row does not name its site.
    """
    everything = np.arange(len(table))
    if not client_column:
        client = models.owner if client is None else client
        name = "all rows" if client is None else models.name_of(client)
        return [SiteRows(name, client, everything)]
    if client_column not in table.columns:
        raise UsageError(
            f"the rows have no column '{client_column}'"
            f"{did_you_mean(client_column, table.columns)}: "
            "see --client-column"
        )
    codes, names = table.columns[client_column].labels
    if (codes < 0).any():
        row = int(table.row_numbers[np.argmax(codes < 0)])
        raise UsageError(f"row {row} has no site in column '{client_column}': fill it")
    known = {name: number for number, name in enumerate(models.card.clients)}
    if not known:
        known = {str(number): number for number in models.members[0].place.get(PERSONAL, {})}
    pools = models.pools
    sites = [
        SiteRows(name, known.get(pools.get(name, name)), np.flatnonzero(codes == code))
        for code, name in enumerate(names)
    ]
    return sorted(sites, key=lambda one: len(known) if one.client is None else one.client)


def read_rows(path: Path, client_column: str) -> Table:
    """Read a table of new rows.

    Raises:
        UsageError: If there is no such file, or it cannot be read.
    """
    if not path.is_file():
        raise UsageError(f"there is no file '{path}'")
    table = read_table(path, client_column)
    if not len(table):
        raise UsageError(f"'{path}' has no rows")
    return table


def feature_columns(models: SiteModels, table: Table, *others: str) -> Table:
    """Remove columns that are no inputs: sites and ids."""
    preprocessor = models.members[0].predictor.preprocessor
    inputs: set[str] = set()
    if isinstance(preprocessor, Preprocessor):
        inputs = {encoder.name for encoder in preprocessor.encoders}
    return table.drop(frozenset(name for name in others if name and name not in inputs))


def labelled_mask(models: SiteModels, table: Table) -> NDArray[np.bool_] | None:
    """Tell which rows have a target ``[n]``; None if the table has no target at all."""
    preprocessor = models.members[0].predictor.preprocessor
    if not isinstance(preprocessor, Preprocessor):
        return None
    spec = preprocessor.target_spec
    if any(name not in table.columns for name in spec.columns):
        return None
    known = spec.is_known(table, preprocessor.target.kind)
    if preprocessor.target.kind != "classification":
        return known
    y = np.full(len(table), -1)
    rows = np.flatnonzero(known)
    y[rows] = preprocessor.transform_target(table.take(rows))
    return y >= 0


def encoded_targets(models: SiteModels, table: Table) -> Tensor:
    """Return the targets of labelled rows."""
    preprocessor = models.members[0].predictor.preprocessor
    assert isinstance(preprocessor, Preprocessor)
    return torch.from_numpy(preprocessor.transform_target(table))


@dataclass(frozen=True)
class SiteTable:
    """Rows of a table, and the site of each.

    Attributes:
        models: The models that the rows are for.
        table: The rows.
        sites: Rows of each site.
        client_column: Column that names the sites; empty without one.
        dropped: Columns that are no inputs.
    """

    models: SiteModels
    table: Table
    sites: Sequence[SiteRows]
    client_column: str
    dropped: tuple[str, ...]

    @property
    def site_names(self) -> tuple[str, ...]:
        """Names of the sites."""
        return tuple(site.name for site in self.sites)

    def site_numbers(self) -> Ints:
        """Return for each row ``[n]`` the place of its site among `sites`."""
        numbers = np.zeros(len(self.table), np.int64)
        for number, site in enumerate(self.sites):
            numbers[site.rows] = number
        return numbers

    def site_cells(self) -> dict[str, list[str]]:
        """Return the column of sites, with the name of each row's; empty without one."""
        if not self.client_column:
            return {}
        names = self.site_names
        return {self.client_column: [names[number] for number in self.site_numbers()]}

    def inputs(self) -> Table:
        """Return all rows with the columns of the models."""
        return feature_columns(self.models, self.table, *self.dropped)

    def inputs_of(self, site: SiteRows) -> Table:
        """Return the rows of a site with the columns of its model."""
        return feature_columns(self.models, self.table.take(site.rows), *self.dropped)


@dataclass(frozen=True)
class LabelledRows(SiteTable):
    """Rows whose target is known, and the site of each.

    Attributes:
        targets: Targets ``[n]`` or ``[n, 2]``.
        num_unlabelled: Rows without a target, which were left out.
    """

    targets: Tensor
    num_unlabelled: int


def refuse_other_data(models: SiteModels) -> None:
    """Raise ``UsageError`` for models of images, texts or recordings, which have no columns.

    Args:
        models: Models of a run or of a choice.

    Raises:
        UsageError: If they are of images, texts or recordings, which have no columns.
    """
    if not isinstance(models.members[0].predictor.preprocessor, Preprocessor):
        raise UsageError(f"'{models.path}' is no run on tables: only rows of tables can be given")


def select_labelled(
    models: SiteModels, selection: RowSelection, dropped: tuple[str, ...] = ()
) -> LabelledRows:
    """Select the rows that have a target, and find the site of each.

    Args:
        models: The models.
        selection: All rows.
        dropped: Further columns that are no inputs.

    Returns:
        The rows, with their targets and sites.

    Raises:
        UsageError: If the models are not of tables, no row has a target, or rows are of other
            sites.
    """
    refuse_other_data(models)
    table = selection.table(models)
    column = selection.site_column(models, table)
    labelled = labelled_mask(models, table)
    if labelled is None or not labelled.any():
        raise UsageError(
            f"the rows have no target '{models.target.name}': without it nothing can be scored; "
            "see 'equipoise predict'"
        )
    known = table.take(np.flatnonzero(labelled))
    if selection.client is not None:
        _refuse_other_sites(models, known, selection.client)
    by_site = selection.by_site(models, known, column, dropped)
    return LabelledRows(
        **vars(by_site),
        targets=encoded_targets(models, known),
        num_unlabelled=len(table) - len(known),
    )


def _refuse_other_sites(models: SiteModels, table: Table, client: int) -> None:
    """Refuse rows that belong to other sites by the column of training."""
    column = models.client_column
    if column not in table.columns:
        return
    codes, names = table.columns[column].labels
    wanted = models.name_of(client)
    for place, code in enumerate(codes):
        if code >= 0 and names[code] != wanted:
            raise UsageError(
                f"row {table.row_numbers[place]} belongs to '{names[code]}' (column '{column}'), "
                f"not to '{wanted}': leave --client out, and each row is scored at its site"
            )


def column_texts(table: Table, column: str) -> list[str]:
    """Return the cells of a column as they were written.

    Args:
        table: The rows.
        column: Name of the column.

    Raises:
        UsageError: If there is no such column.
    """
    if column not in table.columns:
        raise UsageError(
            f"the rows have no column '{column}'{did_you_mean(column, table.columns)}: see --id"
        )
    codes, labels = table.columns[column].labels
    return ["" if code < 0 else labels[code] for code in codes]
