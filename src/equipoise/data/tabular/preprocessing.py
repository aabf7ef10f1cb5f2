"""From raw rows to the inputs of a model: fitted on the statistics of all clients."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from equipoise.data.federated_dataset import AnyArray, Ints, Target
from equipoise.data.tabular.columns import Column
from equipoise.data.tabular.dates import Floats, cyclic_feature_names, cyclic_features
from equipoise.data.tabular.io import table_from_values
from equipoise.data.tabular.table import Table, TableLike
from equipoise.data.tabular.target_spec import TargetSpec
from equipoise.data.transforms import MISSING_INPUT
from equipoise.utils.errors import UsageError
from equipoise.utils.record import Record, from_json, to_json

FORMAT_VERSION = 1


class Number(Record, frozen=True, rename={"marks_missing": "missing"}):
    """Encode a measurement: fill missing values with the median, then shift and scale.

    Attributes:
        name: The column.
        median: The value of missing cells.
        mean: The value that is subtracted.
        scale: The value that is divided by.
        marks_missing: Whether a feature says which values were missing.
    """

    name: str
    median: float
    mean: float
    scale: float
    marks_missing: bool

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features."""
        return (self.name,)

    def is_missing(self, column: Column) -> NDArray[np.bool_]:
        """Whether each cell is filled `[n]`."""
        return np.isnan(column.numbers)

    def fill(self, column: Column) -> Floats:
        """Return the numbers before they are shifted and scaled `[n]`."""
        return np.where(np.isnan(column.numbers), self.median, column.numbers)

    def encode(self, column: Column) -> Floats:
        """Return the features `[n, 1]`."""
        return self.encode_values(self.fill(column))

    def encode_values(self, values: Floats) -> Floats:
        """Return the features `[n, 1]` of known numbers `[n]`."""
        return ((values - self.mean) / self.scale)[:, None]

    def decode(self, features: Floats) -> Floats:
        """Return the numbers `[n]` of features `[n, 1]`."""
        return features[:, 0] * self.scale + self.mean

    @property
    def tree_features(self) -> tuple[str, ...]:
        """The names of the features for trees."""
        return self.features

    def encode_for_trees(self, column: Column) -> Floats:
        """Return the scaled number, NaN where it is missing `[n, 1]`."""
        return ((column.numbers - self.mean) / self.scale)[:, None]


class Category(
    Record,
    frozen=True,
    rename={"most_frequent": "frequent", "has_other": "other", "marks_missing": "missing"},
):
    """Encode a category one-hot; of two values, the feature of the second is enough.

    A value that no client had is 0 in all features.

    Attributes:
        name: The column.
        values: The values that have a feature.
        most_frequent: The value of missing cells.
        has_other: Whether rare values share a feature.
        marks_missing: Whether a feature says which values were missing.
    """

    name: str
    values: tuple[str, ...]
    most_frequent: str
    has_other: bool
    marks_missing: bool

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features."""
        values = self.values
        if self.has_other:
            values = (*values, "(other)")
        elif len(values) == 2:
            values = values[1:]
        return tuple(f"{self.name} = {value}" for value in values)

    def is_missing(self, column: Column) -> NDArray[np.bool_]:
        """Whether each cell is filled `[n]`."""
        return column.missing

    def encode(self, column: Column) -> Floats:
        """Return the features `[n, f]`."""
        codes, labels = column.labels
        place = {value: i for i, value in enumerate(self.values)}
        places = [place.get(label, len(self.values)) for label in labels]
        return self.encode_values(np.array([*places, place[self.most_frequent]])[codes])

    def encode_values(self, codes: Floats | Ints) -> Floats:
        """Return the features `[n, f]` of codes `[n]`: places in `values`, rare values behind."""
        num_values = len(self.values)
        one_hot: Floats = np.eye(num_values + 1)[:, : num_values + self.has_other]
        return one_hot[codes.astype(np.int64), -len(self.features) :]

    def decode(self, features: Floats) -> Floats:
        """Return the codes `[n]` of features `[n, f]`; NaN for values that no client had."""
        if features.shape[1] < self.num_codes:  # of two values, the feature of the second
            return (features[:, 0] > 0.5).astype(np.float64)
        return np.where((features > 0.5).any(1), features.argmax(1).astype(np.float64), np.nan)

    @property
    def tree_features(self) -> tuple[str, ...]:
        """The names of the features for trees."""
        return (self.name,)

    @property
    def num_codes(self) -> int:
        """The number of codes for trees: one for each value, and one for rare values."""
        return len(self.values) + self.has_other

    def encode_for_trees(self, column: Column) -> Floats:
        """Return the place of the value among all, NaN where it is missing or new `[n, 1]`."""
        codes, labels = column.labels
        place = {value: float(i) for i, value in enumerate(self.values)}
        other = float(len(self.values)) if self.has_other else np.nan
        places = [place.get(label, other) for label in labels]
        return np.array([*places, np.nan])[codes][:, None]


class Date(
    Record,
    frozen=True,
    rename={
        "format": "form",
        "has_time": "timed",
        "fill_value": "middle",
        "marks_missing": "missing",
    },
):
    """Encode a date: its day as a number, and its place in the year, week and day.

    Attributes:
        name: The column.
        format: One of `dates.FORMATS`.
        has_time: Whether dates have a time of day.
        fill_value: The value of missing cells: the mean of all.
        mean: The value that is subtracted from the day.
        scale: The value that the day is divided by.
        marks_missing: Whether a feature says which values were missing.
    """

    name: str
    format: str
    has_time: bool
    fill_value: float
    mean: float
    scale: float
    marks_missing: bool

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features."""
        names = cyclic_feature_names(self.format, self.has_time)
        return (self.name, *(f"{self.name} ({name})" for name in names))

    def is_missing(self, column: Column) -> NDArray[np.bool_]:
        """Whether each cell is filled `[n]`."""
        return np.isnan(column.days(self.format))

    def fill(self, column: Column) -> Floats:
        """Return the days before they are shifted and scaled `[n]`."""
        days = column.days(self.format)
        return np.where(np.isnan(days), self.fill_value, days)

    def encode(self, column: Column) -> Floats:
        """Return the features `[n, f]`."""
        return self.encode_values(self.fill(column))

    def encode_values(self, days: Floats) -> Floats:
        """Return the features `[n, f]` of known days `[n]`."""
        scaled = ((days - self.mean) / self.scale)[:, None]
        return np.concatenate([scaled, cyclic_features(days, self.format, self.has_time)], axis=1)

    def decode(self, features: Floats) -> Floats:
        """Return the days `[n]` of features `[n, f]`."""
        return features[:, 0] * self.scale + self.mean

    @property
    def tree_features(self) -> tuple[str, ...]:
        """The names of the features for trees."""
        return self.features

    def encode_for_trees(self, column: Column) -> Floats:
        """Return the features `[n, f]`, NaN where the date is missing."""
        return np.where(self.is_missing(column)[:, None], np.nan, self.encode(column))


Encoder = Number | Category | Date


class DroppedColumn(Record, frozen=True, tag="LeftOut", rename={"reason": "why"}):
    """A column that is no input of the model.

    Attributes:
        name: The column.
        reason: Why it was dropped.
    """

    name: str
    reason: str


class ClientScale(Record, frozen=True, tag="OwnScale"):
    """Means and scales of one client, where each client is standardised by itself.

    Attributes:
        client: The client's name.
        mean: The mean of each number or date.
        scale: Their standard deviations.
    """

    client: str
    mean: tuple[float, ...]
    scale: tuple[float, ...]


class Preprocessor(
    Record,
    frozen=True,
    tag="Preparation",
    rename={
        "encoders": "columns",
        "dropped": "left_out",
        "target_spec": "rule",
        "client_scales": "own",
    },
):
    """Everything that is needed to use a model on new raw rows.

    It is stored as `preparation.json` in the folder of a run.

    Attributes:
        version: The version of the file format.
        encoders: How each input column is encoded.
        dropped: Columns that are no inputs.
        target_spec: How the target is read from a table.
        target: The target.
        clients: The names of the clients.
        client_scales: Scales of each client, if clients are standardised by themselves.
        served_by: Pairs of a client that has no model of its own and the pool of small clients
            whose model serves it; the second is empty if the client was left out.
        for_trees: Whether the model is made of trees: categories are codes, and missing values are
            `MISSING_INPUT`, instead of one-hot features, filled values and marks.
    """

    version: int
    encoders: tuple[Encoder, ...]
    dropped: tuple[DroppedColumn, ...]
    target_spec: TargetSpec
    target: Target
    clients: tuple[str, ...]
    client_scales: tuple[ClientScale, ...] = ()
    served_by: tuple[tuple[str, str], ...] = ()
    for_trees: bool = False

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the model's inputs, in order."""
        if self.for_trees:
            return tuple(name for encoder in self.encoders for name in encoder.tree_features)
        encoded = tuple(name for encoder in self.encoders for name in encoder.features)
        marks = tuple(f"{e.name} is missing" for e in self.encoders if e.marks_missing)
        return encoded + marks

    @property
    def num_categories(self) -> tuple[int, ...]:
        """The number of codes of each input for trees; 0 for numbers."""
        return tuple(
            encoder.num_codes if isinstance(encoder, Category) else 0
            for encoder in self.encoders
            for _ in encoder.tree_features
        )

    def transform(self, rows: TableLike, client: str | None = None) -> NDArray[np.float32]:
        """Convert raw rows to inputs of the model.

        Args:
            rows: A table of pandas or Arrow, or columns by name.
            client: The client whose own scales are used, if it has any.

        Returns:
            Inputs `[n, features]`.

        Raises:
            UsageError: If columns are missing.
        """
        table = table_from_values(rows)
        if absent := self.missing_columns(table):
            quoted = ", ".join(map(repr, absent))
            raise UsageError(f"the rows lack columns that the model needs: {quoted}")
        columns = [table.columns[encoder.name] for encoder in self.encoders]
        parts = [np.zeros((len(table), 0))]
        if self.for_trees:
            for encoder, column in zip(self._encoders_of(client), columns, strict=True):
                parts.append(encoder.encode_for_trees(column))
            inputs = np.nan_to_num(np.concatenate(parts, axis=1), nan=MISSING_INPUT)
            return inputs.astype(np.float32)
        for encoder, column in zip(self._encoders_of(client), columns, strict=True):
            parts.append(encoder.encode(column))
        for encoder, column in zip(self.encoders, columns, strict=True):
            if encoder.marks_missing:
                parts.append(encoder.is_missing(column)[:, None].astype(np.float64))
        return np.concatenate(parts, axis=1).astype(np.float32)

    def feature_places(self, column: str) -> Ints:
        """Return the places of a column's features among the inputs, its mark of missing last."""
        sizes = {
            encoder.name: len(encoder.tree_features if self.for_trees else encoder.features)
            for encoder in self.encoders
        }
        names = list(sizes)
        start = sum(sizes[name] for name in names[: names.index(column)])
        places = list(range(start, start + sizes[column]))
        marked = [e.name for e in self.encoders if e.marks_missing and not self.for_trees]
        if column in marked:
            places.append(sum(sizes.values()) + marked.index(column))
        return np.array(places)

    def encode_values(self, column: str, values: Floats, client: str | None = None) -> Floats:
        """Return the features of a column with known values, such as those of a grid.

        Args:
            column: Name of an input column.
            values: Numbers, days or codes of categories `[n]`.
            client: The client whose own scales are used, if it has any.

        Returns:
            Features `[n, f]` in the order of `feature_places`.
        """
        encoder = self._encoder_of(column, client)
        if self.for_trees and isinstance(encoder, Category):
            return values[:, None]
        features = encoder.encode_values(values)
        if self.for_trees or not encoder.marks_missing:
            return features
        return np.concatenate([features, np.zeros((len(values), 1))], axis=1)

    def decode_values(self, column: str, x: Floats, client: str | None = None) -> Floats:
        """Return the values of a column in inputs of the model: the inverse of `encode_values`.

        Args:
            column: Name of an input column.
            x: Inputs `[n, features]`.
            client: The client whose own scales were used, if it has any.

        Returns:
            Numbers, days or codes `[n]`; NaN where they were missing.
        """
        encoder = self._encoder_of(column, client)
        places = self.feature_places(column)
        features = x[:, places]
        if self.for_trees:
            codes = features[:, 0]
            values = codes if isinstance(encoder, Category) else encoder.decode(features)
            return np.where(codes > MISSING_INPUT / 10, values, np.nan)
        if not encoder.marks_missing:
            return encoder.decode(features)
        return np.where(features[:, -1] > 0.5, np.nan, encoder.decode(features[:, :-1]))

    def _encoder_of(self, column: str, client: str | None) -> Encoder:
        """Return the encoder of a column."""
        return next(one for one in self._encoders_of(client) if one.name == column)

    def transform_target(self, table: Table) -> AnyArray:
        """Read the targets `[n, ...]` of rows whose target is known; see `Target`."""
        return self.target_spec.read(table, self.target)

    def transform_labelled(
        self, table: Table, source: str, client: str | None = None
    ) -> tuple[NDArray[np.float32], AnyArray]:
        """Convert the rows whose target is known.

        Args:
            table: Raw rows with the target.
            source: The name of the rows in errors.
            client: The client whose own scales are used, if it has any.

        Returns:
            Inputs `[n, features]` and targets `[n, ...]`.

        Raises:
            UsageError: If the target is not in the table, or has a class that no client had.
        """
        absent = [name for name in self.target_spec.columns if name not in table.columns]
        if absent:
            raise UsageError(f"{source} lack the column to be predicted, '{absent[0]}'")
        known = table.take(np.flatnonzero(self.target_spec.is_known(table, self.target.kind)))
        y = self.transform_target(known)
        if self.target.kind == "classification" and (y < 0).any():
            row = int(known.row_numbers[np.argmax(y < 0)])
            raise UsageError(
                f"row {row} of {source} has a class that no client had: correct or remove it"
            )
        return self.transform(known, client), y

    def missing_columns(self, table: Table) -> list[str]:
        """Return the inputs that a table does not have."""
        return [encoder.name for encoder in self.encoders if encoder.name not in table.columns]

    def to_json(self) -> str:
        """Return the content of `preparation.json`."""
        return to_json(self)

    @staticmethod
    def load(path: Path) -> Preprocessor:
        """Read `preparation.json`.

        Raises:
            UsageError: If the file cannot be read.
        """
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"'{path}' cannot be read: {error}") from error
        return Preprocessor.from_json(text, f"'{path}'")

    @staticmethod
    def from_json(text: str, source: str) -> Preprocessor:
        """Read the result of `to_json`; `source` is its name in errors.

        Args:
            text: The JSON text.
            source: Its name in errors.

        Returns:
            The preprocessor.

        Raises:
            UsageError: If the text is damaged or of another version.
        """
        preprocessor = from_json(Preprocessor, text, source)
        if preprocessor.version != FORMAT_VERSION:
            raise UsageError(
                f"{source} is of version {preprocessor.version}, "
                f"this program reads version {FORMAT_VERSION}"
            )
        return preprocessor

    def _encoders_of(self, client: str | None) -> list[Encoder]:
        """Return the encoders with the scales of a client, if it has its own."""
        own = next((scale for scale in self.client_scales if scale.client == client), None)
        if own is None:
            return list(self.encoders)
        scales = iter(zip(own.mean, own.scale, strict=True))
        encoders: list[Encoder] = []
        for encoder in self.encoders:
            if isinstance(encoder, Category):
                encoders.append(encoder)
                continue
            mean, scale = next(scales)
            encoders.append(replace(encoder, mean=mean, scale=scale))
        return encoders


def fit_client_scale(client: str, encoders: tuple[Encoder, ...], table: Table) -> ClientScale:
    """Compute one client's means and standard deviations, after missing values are filled.

    Args:
        client: Name of the client.
        encoders: The encoders of all columns, fitted.
        table: The client's training rows.

    Returns:
        Mean and standard deviation of each numeric column.
    """
    means = []
    scales = []
    for encoder in encoders:
        if isinstance(encoder, Category):
            continue
        values = encoder.fill(table.columns[encoder.name])
        std = float(values.std())
        means.append(float(values.mean()))
        scales.append(std if std > 0 else 1.0)
    return ClientScale(client, tuple(means), tuple(scales))
