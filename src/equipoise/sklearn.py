"""Scikit-learn estimators over clients: `fit(X, y, clients=...)`, `predict(X, clients=...)`.

Each row belongs to a client, such as a hospital. `fit` trains one global model and one personal
model per client, as `equipoise.run` does; `predict` uses the personal model of each row's client.
Raw columns go in as they are: missing values, categories and dates are prepared by the task.
Needs the extra ``sklearn``.
"""

from __future__ import annotations

import atexit
import copy
import dataclasses
import shutil
import tempfile
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.exceptions import NotFittedError
    from sklearn.utils import assert_all_finite, check_consistent_length, check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import (
        check_array,
        check_is_fitted,
        column_or_1d,
        validate_data,
    )
except ImportError as error:
    raise ImportError(
        "equipoise.sklearn needs scikit-learn: pip install 'equipoise[sklearn]', "
        "in a clone pip install -e '.[sklearn]'"
    ) from error

from equipoise.api.errors import in_python_words
from equipoise.api.frames import Predictions, in_kind_of, is_frame
from equipoise.api.inputs import GivenMethod, merge_options
from equipoise.api.results import Comparison, Run, compare
from equipoise.api.task import Task
from equipoise.data.tabular.config import format_names
from equipoise.experiment.predict import Predictor
from equipoise.experiment.runner import run as run_settings
from equipoise.records.run_dir import RunFolder
from equipoise.settings.loading import settings_of
from equipoise.training.metrics import concordance
from equipoise.utils.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    import pandas

__all__ = ["FederatedClassifier", "FederatedRegressor", "FederatedSurvival"]

MIN_ROWS = 4  # of one client; smaller clients are trained together
ONLY_CLIENT = "all"
"""Name of the client if `fit` is called without clients."""
TARGET = "target"
EVENT = "event"
Array = NDArray[Any]
CONTAINERS = ("default", "input", "pandas", "polars", "pyarrow")
"""Values of `set_output`."""


class ClientModel:
    """Predictions of one model: the global one, or that of a client."""

    def __init__(self, estimator: _FederatedEstimator, predictor: Predictor) -> None:
        """Create the view.

        Args:
            estimator: The fitted estimator.
            predictor: The model with its preparation.
        """
        self._estimator = estimator
        self._predictor = predictor

    def predict(self, X: object) -> Predictions:
        """Predict rows with this model alone."""
        outputs = _double_outputs(self._predictor, self._estimator._read_columns(X, reset=False))
        return self._estimator._container(self._estimator._decode(outputs), X)

    def predict_proba(self, X: object) -> Predictions:
        """Return the class probabilities of rows with this model alone."""
        outputs = _double_outputs(self._predictor, self._estimator._read_columns(X, reset=False))
        return self._estimator._container(_softmax(outputs), X)

    @property
    def module(self) -> torch.nn.Module:
        """The network, in double precision."""
        return self._predictor.module


class _FederatedEstimator(BaseEstimator):  # type: ignore[misc]
    """What the three estimators share.

    Args:
        method: Federated method: a name, a class or an instance.
        rounds: Federated rounds.
        model: Name of the model; the default of the task if None.
        val_share: Share of each client's rows that chooses rounds and rates; the others train.
        options: Any other options of `equipoise.run`, by name.
        out: Folder of the run. If None, it is a temporary folder until this process ends.
        random_state: Seed, or a NumPy generator from which it is drawn.
    """

    _kind = ""

    def __init__(
        self,
        method: GivenMethod = "autopilot",
        *,
        rounds: int = 40,
        model: str | None = None,
        val_share: float = 0.1,
        options: Mapping[str, object] | None = None,
        out: str | Path | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.method = method
        self.rounds = rounds
        self.model = model
        self.val_share = val_share
        self.options = options
        self.out = out
        self.random_state = random_state

    # ---------------------------------------------------------------- fitting

    def _fit(
        self, columns: Mapping[str, Array], targets: Mapping[str, Array], clients: object
    ) -> Self:
        """Train on the rows of all clients.

        Args:
            columns: Columns of the rows, by name.
            targets: Columns of the target, by name.
            clients: Client of each row; None if all rows belong to one.
        """
        names = _client_names(columns, clients)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        if isinstance(self.random_state, int):
            seed = self.random_state
        self._tables = _split_tables({**columns, **targets}, names)
        folder = Path(self.out) if self.out is not None else _temporary_folder()
        given = {"rounds": self.rounds, "model": self.model, "seed": seed, **(self.options or {})}
        shares = {"test_share": 0.0, "val_share": self.val_share, "server_rows": "never"}
        try:
            task = self._task(self._tables)
            settings = settings_of(merge_options(self.method, task, {**shares, **given}))
            run_settings(settings, folder, overwrite=self.out is None)
        except UsageError as error:
            raise ValueError(in_python_words(str(error))) from error
        self.run_ = Run(folder)
        self._load_models(RunFolder(folder), names)
        return self

    def _task(self, tables: Mapping[str, Mapping[str, Array]]) -> Task:
        """Return the task of these tables."""
        options: dict[str, Any] = {"small_clients": "pool", "min_rows": MIN_ROWS}
        if not hasattr(self, "feature_names_in_"):
            options["numbers"] = format_names(self._array_names())
        if self._kind == "survival":
            options["event"] = EVENT
        return Task.from_tables(tables, target=TARGET, target_type=self._kind, **options)

    def _array_names(self) -> list[str]:
        """Return names for the columns of an array."""
        return [f"x{place}" for place in range(self.n_features_in_)]

    def _read_columns(self, X: object, reset: bool) -> dict[str, Array]:
        """Return the columns of rows by name; a frame keeps its raw cells.

        Args:
            X: An array or a data frame.
            reset: Whether the rows define the columns (in `fit`) or must have the same.
        """
        frame = _as_frame(X)
        if frame is not None:
            validate_data(self, frame, reset=reset, skip_check_array=True)
            if not len(frame.columns) or not len(frame):
                raise ValueError(
                    f"Found array with {len(frame)} sample(s) and {len(frame.columns)} feature(s) "
                    f"while a minimum of {MIN_ROWS if reset else 1} is required."
                )
            names = list(map(str, frame.columns))
            if not hasattr(self, "feature_names_in_"):
                names = self._array_names()
            cells = [frame[name].to_numpy() for name in frame.columns]
            return dict(zip(names, cells, strict=True))
        array = validate_data(
            self,
            X,
            reset=reset,
            dtype="numeric",
            ensure_all_finite="allow-nan",
            ensure_min_samples=MIN_ROWS if reset else 1,
        )
        names = list(map(str, getattr(self, "feature_names_in_", self._array_names())))
        return {name: array[:, place] for place, name in enumerate(names)}

    def _load_models(self, folder: RunFolder, names: Array) -> None:
        """Read the trained models, so that predictions need no folder."""
        self.clients_ = np.unique(names)
        self._global: Predictor | None = None
        if (folder.path / "models" / "global.safetensors").is_file():
            self._global = _in_double(Predictor.of(folder))
        known = Predictor.of(folder, 0)
        stored = {name: number for number, name in enumerate(known.card.clients)}
        served_by = getattr(known.preprocessor, "served_by", None) or {}
        loaded: dict[str, Predictor] = {}
        self._personal: dict[str, Predictor] = {}
        for client in self.clients_:
            owner = dict(served_by).get(str(client), str(client))
            if owner not in loaded:
                loaded[owner] = _in_double(Predictor.of(folder, stored[owner]))
            self._personal[str(client)] = loaded[owner]

    # ---------------------------------------------------------------- predicting

    def predict(self, X: object, clients: object = None) -> Predictions:
        """Predict each row: its class, its number, or its log relative hazard.

        Args:
            X: Rows `[rows, columns]`.
            clients: Client of each row, whose personal model is used. An unknown client, and rows
                without clients, get the global model.

        Returns:
            Predictions `[rows]`: classes in the type that `fit` was given, numbers, or risks, of
            which a higher one means an earlier event.
        """
        return self._container(self._decode(self._outputs(X, clients)), X)

    def _outputs(self, X: object, clients: object) -> Array:
        """Return the outputs of each row's model `[rows, outputs]`."""
        check_is_fitted(self, "run_")
        columns = self._read_columns(X, reset=False)
        if clients is None:
            return _double_outputs(self._default_model(), columns)
        names = _client_names(columns, clients)
        known, place = np.unique(names, return_inverse=True)
        gathered: Array | None = None
        for number, client in enumerate(known):
            rows = np.flatnonzero(place == number)
            part = {name: cells[rows] for name, cells in columns.items()}
            outputs = _double_outputs(self._model_of(str(client)), part)
            if gathered is None:
                gathered = np.empty((len(place), outputs.shape[1]))
            gathered[rows] = outputs
        assert gathered is not None
        return gathered

    def _default_model(self) -> Predictor:
        """Return the model of rows without a client."""
        if self._global is not None:
            return self._global
        if len(self._personal) == 1:
            return next(iter(self._personal.values()))
        raise ValueError("this method has no global model: give the client of each row")

    def _model_of(self, client: str) -> Predictor:
        """Return the personal model of a client, else the global one with a warning."""
        if client in self._personal:
            return self._personal[client]
        model = self._default_model()
        close = did_you_mean(client, self._personal)
        warnings.warn(
            f"client '{client}' was not in the training rows{close}: it gets the global model",
            UserWarning,
            stacklevel=4,
        )
        return model

    def _decode(self, outputs: Array) -> Array:
        """Turn outputs of the network into predictions."""
        raise NotImplementedError

    def set_output(self, *, transform: str | None = None) -> Self:
        """Choose the container of predictions.

        Args:
            transform: `pandas`, `polars` or `pyarrow` for series and frames of that library;
                `input` for the kind of data frame that the rows are; `default` for NumPy arrays,
                which scorers of scikit-learn need. Of pandas the index of the rows is kept. None
                changes nothing.
        """
        if transform not in (None, *CONTAINERS):
            raise ValueError(f"transform is {transform!r}: must be one of {', '.join(CONTAINERS)}")
        if transform is not None:
            self._output_container = transform
        return self

    def _container(self, values: Array, X: object) -> Predictions:
        """Return predictions in the container that `set_output` chose."""
        container = getattr(self, "_output_container", "default")
        if container == "default":
            return values
        kind = "" if container == "input" else container
        return in_kind_of(X, values, getattr(self, "classes_", ()), kind)

    # ---------------------------------------------------------------- models and results

    @property
    def global_(self) -> ClientModel:
        """The global model alone, which serves everybody and newcomers."""
        check_is_fitted(self, "run_")
        if self._global is None:
            raise NotFittedError(f"method {self.method!r} has no global model")
        return ClientModel(self, self._global)

    @property
    def personal_(self) -> dict[str, ClientModel]:
        """The model of each client by its name."""
        check_is_fitted(self, "run_")
        return {name: ClientModel(self, model) for name, model in self._personal.items()}

    def leaderboard(
        self,
        methods: Iterable[GivenMethod] = ("fedavg", "local"),
        *,
        seeds: int = 3,
        out: str | Path | None = None,
    ) -> pandas.DataFrame:
        """Compare this estimator's method with others on the training rows.

        Each method trains on a part of each client's rows and is scored on the others.

        Args:
            methods: Other methods.
            seeds: Number of splits and seeds.
            out: Folder of the comparison; a temporary one if None.

        Returns:
            One row per method: mean personal and global scores with their standard deviations, and
            the 95 % interval of the paired difference to this estimator's method.
        """
        check_is_fitted(self, "run_")
        if not hasattr(self, "_tables"):
            raise ValueError("the training rows are not part of a pickled estimator: fit it again")
        result = self._compare([self.method, *methods], seeds, out)
        return _leaderboard_frame(result)

    def _compare(
        self, methods: list[GivenMethod], seeds: int, out: str | Path | None
    ) -> Comparison:
        """Run methods on the training rows, in a temporary folder if none is given."""
        options: dict[str, Any] = {
            "rounds": self.rounds,
            "model": self.model,
            **(self.options or {}),
        }
        try:
            return compare(
                methods,
                self._task(self._tables),
                seeds=seeds,
                out=Path(out) if out is not None else _temporary_folder(),
                overwrite=out is None,
                **{name: value for name, value in options.items() if value is not None},
            )
        except UsageError as error:
            raise ValueError(in_python_words(str(error))) from error

    def __getstate__(self) -> dict[str, Any]:
        """Leave the training rows out of a pickle."""
        state = dict(super().__getstate__())
        state.pop("_tables", None)
        return state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        return tags


class FederatedClassifier(ClassifierMixin, _FederatedEstimator):  # type: ignore[misc]
    """Classifier with one global model and one personal model per client.

    Attributes:
        classes_: The classes.
        clients_: Names of the clients.
        n_features_in_: Number of columns.
        feature_names_in_: Names of the columns, if the rows were a frame with text names.
        run_: The run, with its rounds and summary.

    Example:
        >>> model = FederatedClassifier().fit(X, y, clients=hospital)
        >>> model.predict(X_new, clients=hospital_new)
    """

    _kind = "classification"

    def fit(self, X: object, y: object, clients: object = None) -> Self:
        """Train on the rows of all clients.

        Args:
            X: Rows `[rows, columns]`: an array, or a data frame of raw columns.
            y: Class of each row.
            clients: Client of each row; None if all rows belong to one.

        Returns:
            The estimator itself.

        Raises:
            ValueError: If rows, classes or options cannot be used.
        """
        columns = self._read_columns(X, reset=True)
        labels = _column(y)
        check_classification_targets(labels)
        check_consistent_length(*columns.values(), labels)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"y has 1 class ({self.classes_[0]!r}): a classifier needs at least 2 classes"
            )
        # Names that sort like the classes keep their order in the model.
        width = len(str(len(self.classes_)))
        names = np.array([f"class {place:0{width}d}" for place in range(len(self.classes_))])
        return self._fit(columns, {TARGET: names[codes]}, clients)

    def predict_proba(self, X: object, clients: object = None) -> Predictions:
        """Return the probability of each class `[rows, classes]`; see `predict`."""
        return self._container(_softmax(self._outputs(X, clients)), X)

    def score(self, X: object, y: object, clients: object = None) -> float:
        """Return the accuracy; see `predict`.

        Args:
            X: Rows `[n, ...]`.
            y: Classes `[n]`.
            clients: Client of each row; see `predict`.
        """
        return float(np.mean(np.asarray(self.predict(X, clients)) == _column(y)))

    def _decode(self, outputs: Array) -> Array:
        chosen: Array = self.classes_[outputs.argmax(1)]
        return chosen


class FederatedRegressor(RegressorMixin, _FederatedEstimator):  # type: ignore[misc]
    """Regressor with one global model and one personal model per client.

    Attributes:
        clients_: Names of the clients.
        n_features_in_: Number of columns.
        feature_names_in_: Names of the columns, if the rows were a frame with text names.
        run_: The run, with its rounds and summary.
    """

    _kind = "regression"

    def fit(self, X: object, y: object, clients: object = None) -> Self:
        """Train on the rows of all clients.

        Args:
            X: Rows `[rows, columns]`: an array, or a data frame of raw columns.
            y: Number of each row.
            clients: Client of each row; None if all rows belong to one.

        Returns:
            The estimator itself.

        Raises:
            ValueError: If rows, numbers or options cannot be used.
        """
        columns = self._read_columns(X, reset=True)
        values = check_array(_column(y), ensure_2d=False, dtype=np.float64)
        check_consistent_length(*columns.values(), values)
        return self._fit(columns, {TARGET: values}, clients)

    def score(self, X: object, y: object, clients: object = None) -> float:
        """Return R²; see `predict`.

        Args:
            X: Rows `[n, ...]`.
            y: Numbers `[n]`.
            clients: Client of each row; see `predict`.
        """
        from sklearn.metrics import r2_score

        return float(r2_score(_column(y), np.asarray(self.predict(X, clients))))

    def _decode(self, outputs: Array) -> Array:
        target = self._default_or_first().card.target
        return np.asarray(outputs[:, 0] * target.scale + target.mean)

    def _default_or_first(self) -> Predictor:
        return self._global if self._global is not None else next(iter(self._personal.values()))


class FederatedSurvival(_FederatedEstimator):
    """Cox model with one global model and one personal model per client.

    Attributes:
        clients_: Names of the clients.
        n_features_in_: Number of columns.
        run_: The run, with its rounds and summary.
    """

    _kind = "survival"

    def fit(self, X: object, y: object, clients: object = None) -> Self:
        """Train on the rows of all clients.

        Args:
            X: Rows `[rows, columns]`: an array, or a data frame of raw columns.
            y: Event and time of each row: a structured array with a field of booleans and one of
                times, as in scikit-survival, or an array `[rows, 2]` of event and time.
            clients: Client of each row; None if all rows belong to one.

        Returns:
            The estimator itself.

        Raises:
            ValueError: If rows, times or options cannot be used.
        """
        columns = self._read_columns(X, reset=True)
        event, time = _event_and_time(y)
        check_consistent_length(*columns.values(), time)
        return self._fit(columns, {TARGET: time, EVENT: event.astype(np.int64)}, clients)

    def score(self, X: object, y: object, clients: object = None) -> float:
        """Return Harrell's concordance index of the predicted risks.

        Args:
            X: Rows `[n, ...]`.
            y: Times and events.
            clients: Client of each row; see `predict`.
        """
        event, time = _event_and_time(y)
        risk = torch.from_numpy(np.asarray(self.predict(X, clients)))[None]
        target = torch.from_numpy(np.stack([time, event.astype(np.float64)], 1))[None]
        return float(concordance(risk, target, torch.ones_like(risk, dtype=torch.bool))[0])

    def _decode(self, outputs: Array) -> Array:
        risks: Array = outputs[:, 0]
        return risks


# ------------------------------------------------------------------ rows


def _as_frame(X: Any) -> Any:
    """Return a pandas frame of rows that are a data frame of any kind; None for arrays."""
    if hasattr(X, "iloc"):
        return X if hasattr(X, "columns") else None
    if not is_frame(X):
        return None
    import narwhals

    return narwhals.from_native(X, eager_only=True).to_pandas()


def _client_names(columns: Mapping[str, Array], clients: object) -> Array:
    """Return the name of each row's client."""
    count = len(next(iter(columns.values())))
    if clients is None:
        return np.full(count, ONLY_CLIENT)
    names = np.asarray(clients).astype(str)
    if names.shape != (count,):
        raise ValueError(
            f"clients has shape {names.shape}: give one name for each of the {count} rows"
        )
    return names


def _column(y: object) -> Array:
    """Return a target as one column of known values."""
    if y is None:
        raise ValueError("requires y to be passed, but the target y is None")
    column: Array = column_or_1d(y, warn=True)
    if column.dtype.kind == "f":
        assert_all_finite(column, input_name="y")
    return column


def _event_and_time(y: object) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Return events and times of a survival target."""
    array = np.asarray(y)
    if array.dtype.names:
        fields = [array[name] for name in array.dtype.names]
        events = [field for field in fields if field.dtype.kind == "b"]
        times = [field for field in fields if field.dtype.kind != "b"]
        if len(events) != 1 or len(times) != 1:
            raise ValueError("y must have one field of booleans (event) and one of times")
        return events[0], times[0].astype(np.float64)
    if array.ndim != 2 or array.shape[1] != 2:
        raise ValueError("y must be a structured array of event and time, or of shape [rows, 2]")
    return array[:, 0].astype(bool), array[:, 1].astype(np.float64)


def _split_tables(columns: Mapping[str, Array], clients: Array) -> dict[str, dict[str, Array]]:
    """Split columns by client."""
    tables = {}
    for client in np.unique(clients):
        rows = clients == client
        tables[str(client)] = {name: cells[rows] for name, cells in columns.items()}
    return tables


# ------------------------------------------------------------------ models


def _in_double(predictor: Predictor) -> Predictor:
    """Return a predictor whose outputs of a row do not depend on the rows beside it."""
    return dataclasses.replace(predictor, module=copy.deepcopy(predictor.module).double())


def _double_outputs(predictor: Predictor, columns: Mapping[str, Array]) -> Array:
    """Return the outputs `[rows, outputs]` of a model in double precision."""
    with torch.no_grad():
        outputs = predictor.module(predictor.inputs(columns).double())
    return np.asarray(outputs.numpy())


def _softmax(outputs: Array) -> Array:
    return np.asarray(torch.from_numpy(outputs).softmax(1).numpy())


def _temporary_folder() -> Path:
    """Return a new folder that exists until this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="equipoise-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder / "run"


def _leaderboard_frame(comparison: Comparison) -> pandas.DataFrame:
    """Return the scores of a comparison as a frame, the best personal score first."""
    import pandas

    first = next(iter(comparison.runs))
    table = comparison.table()
    frame = pandas.DataFrame(
        {
            column: [cells[k].mean for cells in table.rows.values()]
            for k, column in enumerate(table.columns)
        },
        index=list(table.rows),
    )
    paired = comparison.paired("personal", against=first) if len(comparison.runs[first]) > 1 else {}
    low = {label: item.low for label, item in paired.items() if item is not None}
    high = {label: item.high for label, item in paired.items() if item is not None}
    frame[f"personal - {first}, low"] = pandas.Series(low)
    frame[f"personal - {first}, high"] = pandas.Series(high)
    return frame
