"""Results in Python: runs, comparisons, their tables and reports."""

from __future__ import annotations

import importlib
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from html import escape
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor, nn

from equipoise.api.callbacks import Callback, Trackers, run_with_callbacks
from equipoise.api.errors import speaks_python
from equipoise.api.frames import Predictions, in_kind_of
from equipoise.api.inputs import (
    GivenMethod,
    label_of,
    merge_options,
    new_folder,
    python_parts,
    resources_from,
)
from equipoise.api.task import Task
from equipoise.clock.config import ClockConfig
from equipoise.core import Method
from equipoise.experiment import export as exporting
from equipoise.experiment import pretrained
from equipoise.experiment.adapt import DEFAULT_NAME, adapt_folder, default_folder
from equipoise.experiment.certificate import certify_run
from equipoise.experiment.choose import choice_sentences
from equipoise.experiment.choose import choose as choose_models
from equipoise.experiment.compare import Cells, cell_folder, method_and_model, num_folds
from equipoise.experiment.compare import compare as compare_cells
from equipoise.experiment.decision import conclude, read_decision
from equipoise.experiment.detailed_scores import DEFAULT_MIN_COUNT, Grouping
from equipoise.experiment.explanation import ExplanationOptions, explain_rows, explain_run
from equipoise.experiment.model_card import Card
from equipoise.experiment.new_rows import Evaluation, evaluate_rows, predict_rows
from equipoise.experiment.predict import Predictor
from equipoise.experiment.runner import resume_run
from equipoise.experiment.site_models import SiteModels, horizon_column, load_models, read_choice
from equipoise.experiment.site_rows import RowSelection
from equipoise.records import codec
from equipoise.records.client_table import parse_names, parse_table
from equipoise.records.decision import Choice, Decision
from equipoise.records.explanation import Explanation
from equipoise.records.rounds import RoundRecord
from equipoise.records.run_dir import RunFolder
from equipoise.records.scores import NAMED
from equipoise.records.summary import Certificate, Summary
from equipoise.report import html, tables
from equipoise.report.statistics import PairedDifference, paired_difference
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.settings.loading import settings_in
from equipoise.training.objectives import objective_of
from equipoise.utils.errors import UsageError, did_you_mean, install_hint

if TYPE_CHECKING:
    import pandas

    _Path = Path
else:
    _Path = type(Path())  # before Python 3.12 only the concrete class can be subclassed


class ReportPath(_Path):
    """Path of an HTML report, which a notebook shows as the page itself."""

    def _repr_html_(self) -> str:
        page = escape(self.read_text(), quote=True)
        style = "width: 100%; height: 45em; border: 0"
        return f'<iframe srcdoc="{page}" sandbox="allow-scripts" style="{style}"></iframe>'


OnRound = Callable[[RoundRecord], str | None]
"""Called after each round with its record; returns a reason to stop the run, or None."""


@speaks_python
@dataclass(frozen=True)
class TrainedModels(ABC):
    """A folder with models of sites: a run, or a choice of models."""

    folder: Path

    @property
    @abstractmethod
    def task(self) -> Task | None:
        """Task, if that was made in Python."""

    def predict(
        self,
        rows: object,
        client: int | str | None = None,
        *,
        client_column: str = "",
        probabilities: bool = False,
        horizon: float | None = None,
    ) -> Predictions:
        """Predict new rows.

        Args:
            rows: Rows as the task has them: a table with its feature columns, or an array of
                samples; of recordings raw windows, or all steps one after the other:
                ``{"x": [n, channels], "length": [recordings]}``.
            client: Client of a personal model, by name or number; None for the global model.
            client_column: Column that names the site of each row: every row is predicted by the
                model of its site, rows of unknown sites by the global one. Empty for none; of a
                choice, for the column of training, if the rows have it.
            probabilities: Whether to return class probabilities ``[rows, classes]``.
            horizon: Of survival, return the probability of the event by this time instead.

        Returns:
            Predictions ``[rows]``: classes in the type of the training labels; values; or of
            survival the log relative hazard. If the rows are a data frame of pandas, polars or
            pyarrow, a series of the same library with the index of the rows, and of probabilities a
            frame with one column for each class; else a NumPy array.

        Raises:
            UsageError: If the rows do not fit, or the model has no probabilities.
        """
        predictor = None if client_column or horizon is not None else self._single_model(client)
        if predictor is not None:
            return as_predictions(predictor.card, predictor.outputs(rows), rows, probabilities)
        models, selection = self._select(rows, client, client_column)
        predictions = predict_rows(models, selection, horizon)
        if horizon is not None:
            return in_kind_of(rows, np.asarray(predictions.columns[horizon_column(horizon)]))
        return as_predictions(models.card, predictions.outputs, rows, probabilities)

    def evaluate(
        self,
        rows: object,
        client: int | str | None = None,
        *,
        client_column: str = "",
        metric: str = "",
        cross_site: bool = False,
        by: str = "",
        min_count: int = DEFAULT_MIN_COUNT,
        horizon: float | None = None,
    ) -> Evaluation:
        """Score the models on labelled rows that training never had.

        Global, personal and local model and a constant are scored on the same rows, with 95 %
        intervals and a verdict in words.

        Args:
            rows: A table with the columns of training and the target.
            client: Site of all rows, by name or number.
            client_column: Column that names the site of each row. Empty for that of training, if
                the rows have it.
            metric: Main metric; empty for that of the run.
            cross_site: Whether to score the model of every site on the rows of every site.
            by: Columns by whose groups rows are scored: ``"sex,age"`` or ``"age:40:65"``.
            min_count: Fewest rows of a group or site whose scores are shown.
            horizon: Of survival, also score the probabilities of the event by this time.

        Returns:
            The scores; ``print`` shows the verdict, ``details`` has the rest.

        Raises:
            UsageError: If the rows do not fit or have no target.
        """
        return evaluate_rows(
            *self._select(rows, client, client_column),
            metric,
            cross_site=cross_site,
            by=Grouping.parse(by),
            min_count=min_count,
            horizon=horizon,
        )

    def explain(
        self,
        rows: object = None,
        client: int | str | None = None,
        *,
        client_column: str = "",
        metric: str = "",
        features: Sequence[str] = (),
        n_repeats: int = ExplanationOptions.n_repeats,
        max_samples: int = ExplanationOptions.max_samples,
        min_count: int = DEFAULT_MIN_COUNT,
    ) -> Explanation:
        """Say which columns of a table matter to the models that sites use, and how.

        Permutation importance and partial dependence are those of ``sklearn.inspection``, at each
        site and as a mean over sites in which every row counts alike.

        Args:
            rows: A table with the columns of training and the target; None for the test rows of
                a run, whose report then shows the result.
            client: Site of all rows, by name or number.
            client_column: Column that names the site of each row. Empty for that of training, if
                the rows have it.
            metric: The score; empty for that of the run.
            features: Columns whose partial dependence is computed; none for the 6 that matter
                most.
            n_repeats: Permutations of each column.
            max_samples: Rows of a site that are used; of more, a random sample.
            min_count: Fewest rows of a site whose figures are shown.

        Returns:
            The explanation; ``print`` shows the importance of all columns.

        Raises:
            UsageError: If the rows do not fit or have no target, or a column is unknown.
        """
        options = ExplanationOptions(
            features=tuple(features),
            n_repeats=n_repeats,
            max_samples=max_samples,
            min_count=min_count,
            metric=metric,
        )
        if rows is None:
            return self._explain_test_rows(options)
        return explain_rows(*self._select(rows, client, client_column), options)

    def adapt(
        self,
        rows: object,
        name: str = DEFAULT_NAME,
        *,
        out: str | Path | None = None,
        overwrite: bool = False,
    ) -> Newcomer:
        """Give a client that joins after the run a personal model, by the rule of the method.

        Args:
            rows: The newcomer's rows with their target: a table, or a pair ``(x, y)`` of arrays
                if the task has arrays.
            name: Name of the newcomer.
            out: Folder to write; None for a new one beside that of the run.
            overwrite: Whether an earlier result in ``out`` is replaced.

        Returns:
            The newcomer's run; ``print`` shows its verdict against the global model and against
            training alone, on held-out rows.

        Raises:
            UsageError: If the rows do not fit, have no target or are too few.
        """
        folder = Path(out) if out is not None else _free_folder(default_folder(self.folder, name))
        settings = self._python_settings()
        adapt_folder(self.folder, rows, folder, name, overwrite=overwrite, settings=settings)
        return Newcomer(folder, task=self.task)

    def _select(
        self, rows: object, client: int | str | None, client_column: str
    ) -> tuple[SiteModels, RowSelection]:
        """Return the model of every site, and new rows with the site of each."""
        models = self._site_models()
        return models, RowSelection.of(models, rows, client, client_column)

    @abstractmethod
    def _explain_test_rows(self, options: ExplanationOptions) -> Explanation:
        """Explain on the test rows of the folder."""

    @abstractmethod
    def _single_model(self, client: int | str | None) -> Predictor | None:
        """Return one model, which takes rows of any kind; None if each site has its own."""

    @abstractmethod
    def _site_models(self) -> SiteModels:
        """Return the model of every site."""

    @abstractmethod
    def _python_settings(self) -> ExperimentConfig | None:
        """Return the options, if a part of the run was made in Python; else the folder's hold."""


@speaks_python
@dataclass(frozen=True)
class Run(TrainedModels):
    """A run, finished or not; :func:`equipoise.open` returns the run of a folder."""

    method: type[Method] | None = field(default=None, repr=False)
    """Class of the method, if that was given in Python."""
    task: Task | None = field(default=None, repr=False)
    """Task, if that was made in Python."""

    @property
    def config(self) -> dict[str, object]:
        """All options of the run by name."""
        return self._folder.read_config()

    @property
    def rounds(self) -> list[RoundRecord]:
        """Records of all rounds so far."""
        return self._folder.records()

    @property
    def summary(self) -> Summary:
        """Summary of the finished run: scores, convergence, bytes and seconds.

        Raises:
            UsageError: If the run is not finished.
        """
        if not self.is_finished:
            raise UsageError(f"'{self.folder}' is not finished: go on with run.resume()")
        return self._folder.read_summary()

    @property
    def final(self) -> Summary:
        """Same as :attr:`summary`."""
        return self.summary

    @property
    def is_finished(self) -> bool:
        """Whether the run is finished."""
        return self._folder.summary.exists()

    def rounds_frame(self) -> pandas.DataFrame:
        """Return one row per round; nested numbers have names such as ``personal.acc``."""
        return _frame([codec.encode(record) for record in self.rounds])

    def clients_frame(self) -> pandas.DataFrame:
        """Return one row per client: name, rows, scores and traffic of ``clients.csv``."""
        text = self._folder.clients.read_text()
        names = parse_names(text, self._folder.clients)
        columns = parse_table(text, self._folder.clients)
        frame = _pandas().DataFrame(columns)
        if names:
            frame.insert(1, "name", [names[int(client)] for client in frame["client"]])
        return frame

    def report(self) -> ReportPath:
        """Write the HTML report; return its path, which a notebook shows as the page itself."""
        return ReportPath(html.write_report([self.folder], self._folder.report))

    def model(self, client: int | str | None = None) -> nn.Module:
        """Return a trained model.

        Args:
            client: Client of a personal model, by name or number; None for the global model.

        Returns:
            The module with its weights.
        """
        return self._single_model(client).module

    def resume(
        self,
        *,
        method: type[Method] | None = None,
        task: Task | None = None,
        on_round: OnRound | None = None,
        callbacks: Sequence[Callback] = (),
        log: str = "",
        processes: int | None = None,
        client_memory_gib: float | None = None,
    ) -> Run:
        """Continue the run where it stopped; the result is that of a run without a stop.

        Args:
            method: Class of the method, if it was given in Python by another process.
            task: Task, if it was made in Python by another process.
            on_round: Called after each round, as in :func:`equipoise.run`.
            callbacks: Callbacks, as in :func:`equipoise.run`.
            log: Names of trackers, as in :func:`equipoise.run`.
            processes: Number of processes; may differ from the first part of the run.
            client_memory_gib: Memory for client state; may differ from the first part.

        Returns:
            The finished run.
        """
        known = replace(self, method=method or self.method, task=task or self.task)
        settings = known._settings()
        resources = resources_from(processes, client_memory_gib)
        train = partial(resume_run, known._folder.path, settings=settings, resources=resources)
        trackers = [Trackers(log)] if log else []
        run_with_callbacks(known, settings.run.rounds, [*callbacks, *trackers], on_round, train)
        return known

    def certify(self, samples: int = 64) -> Certificate:
        """Measure how much a player would gain by deviating alone from its last strategy.

        Args:
            samples: Deviations that each player tries.

        Returns:
            The certificate, which is also added to the summary.
        """
        return certify_run(self.folder, samples, self._settings())

    def export(self, path: str | Path, *, client: int | str | None = None) -> Path:
        """Export a model and check that it predicts as the original.

        Args:
            path: File ending in ``.onnx``, ``.pt`` (TorchScript), ``.safetensors`` or, of trees,
                ``.txt`` (LightGBM).
            client: Client of a personal model, by name or number; None for the global model.

        Returns:
            The file.

        Raises:
            UsageError: If the ending is unknown.
        """
        path = Path(path)
        forms = {suffix: form for form, (suffix, _) in exporting.FORMATS.items()}
        if path.suffix not in forms:
            raise UsageError(f"'{path}' must end in {', '.join(forms)}, which names the format")
        settings = self._settings() if self.task else None
        return exporting.export(
            self.folder, self._client_number(client), forms[path.suffix], path, settings
        )[0]

    def save_pretrained(
        self,
        folder: str | Path,
        *,
        license: str = "",
        consent: Sequence[str] = (),
        overwrite: bool = False,
    ) -> Path:
        """Write the models as a folder that others load with :func:`equipoise.load`.

        The folder has a model card with data shapes, scores with intervals, method and privacy
        spent. It names no client, and has no personal model, without consent.

        Args:
            folder: Folder to write.
            license: Licence of the models, such as ``apache-2.0``.
            consent: Clients that agreed to be named and to share their personal models.
            overwrite: Whether to replace an earlier folder of this kind.

        Returns:
            The folder.

        Raises:
            UsageError: If the run has no model that can travel, or a client is unknown.
        """
        return pretrained.save_pretrained(
            self.folder, Path(folder), license=license, consent=consent, overwrite=overwrite
        )

    def push_to_hub(
        self,
        repository: str,
        *,
        license: str = "",
        consent: Sequence[str] = (),
        private: bool = True,
    ) -> str:
        """Upload what :meth:`save_pretrained` writes to the Hugging Face hub (extra ``hub``).

        Args:
            repository: Name of the repository, such as ``hospital/heart``.
            license: Licence of the models.
            consent: Clients that agreed to be named and to share their personal models.
            private: Whether a new repository is private.

        Returns:
            Address of the model.

        Raises:
            UsageError: If the extra is not installed, or the hub refuses.
        """
        with tempfile.TemporaryDirectory() as folder:
            saved = self.save_pretrained(Path(folder) / "model", license=license, consent=consent)
            return pretrained.push_to_hub(saved, repository, private)

    @property
    def _folder(self) -> RunFolder:
        return RunFolder(self.folder)

    def _settings(self) -> ExperimentConfig:
        return settings_in(
            self._folder.read_config(), self.method, self.task.spec if self.task else None
        )

    def _single_model(self, client: int | str | None) -> Predictor:
        return Predictor.of(
            self._folder, self._client_number(client), self._settings() if self.task else None
        )

    def _explain_test_rows(self, options: ExplanationOptions) -> Explanation:
        return explain_run(self.folder, options, self._python_settings())

    def _python_settings(self) -> ExperimentConfig | None:
        return self._settings() if self.task or self.method else None

    def _site_models(self) -> SiteModels:
        return load_models(self.folder, self._settings() if self.task else None)

    def _client_number(self, client: int | str | None) -> int | None:
        """Return the number of a client that is given by name or number."""
        return self._folder.find_client(client) if isinstance(client, str) else client


@dataclass(frozen=True)
class Newcomer(Run):
    """The personal model of a client that joined after the run.

    ``predict``, ``evaluate``, ``export``, ``model`` and ``report`` are those of its own model.
    """

    @property
    def decision(self) -> Decision:
        """Verdict on held-out rows against the global model and training alone.

        Raises:
            UsageError: If the folder has no decision.
        """
        decision = read_decision(self.folder)
        if decision is None:
            raise UsageError(f"'{self.folder}' has no decision.json: adapt again")
        return decision

    def __str__(self) -> str:
        """Return the verdict and its notes."""
        return "\n".join([self.decision.headline, *self.decision.notes])


def _free_folder(folder: Path) -> Path:
    """Return the folder, or the first with a number behind that does not exist."""
    number = 2
    free = folder
    while free.exists():
        free = folder.with_name(f"{folder.name}-{number}")
        number += 1
    return free


def _pandas() -> ModuleType:
    """Import pandas, or say how to install it."""
    try:
        return importlib.import_module("pandas")
    except ImportError as error:
        raise UsageError(f"data frames need pandas: {install_hint('sklearn')}") from error


def _frame(rows: Sequence[Mapping[str, object]]) -> pandas.DataFrame:
    """Return records as a frame, with a dot between the names of nested numbers."""
    return _pandas().json_normalize(list(rows))


@speaks_python
@dataclass(frozen=True)
class Chosen(TrainedModels):
    """The models that sites should use; :func:`equipoise.open_choice` reads those of a folder."""

    task: Task | None = field(default=None, repr=False)
    """Task, if that was made in Python."""

    @property
    def choice(self) -> Choice:
        """Which model each site uses, and the decision that led to it."""
        return read_choice(self.folder)

    def __str__(self) -> str:
        """Return the table as aligned text."""
        return "\n".join(choice_sentences(self.choice))

    def _explain_test_rows(self, options: ExplanationOptions) -> Explanation:
        raise UsageError("a choice has no test rows of its own: give a table with the target")

    def _single_model(self, client: int | str | None) -> None:
        return None

    def _site_models(self) -> SiteModels:
        return load_models(self.folder, self._python_settings())

    def _python_settings(self) -> ExperimentConfig | None:
        """Return the options of the final run, if its task was made in Python."""
        if self.task is None:
            return None
        options = RunFolder(self.folder / self.choice.members[0]).read_config()
        return settings_in(options, None, self.task.spec)


def as_predictions(card: Card, outputs: Tensor, rows: object, probabilities: bool) -> Predictions:
    """Return predictions as users expect them: classes, values or risks, in the kind of frame.

    Args:
        card: Card of the model.
        outputs: Outputs ``[rows, outputs]`` of its network.
        rows: The rows as they were given.
        probabilities: Whether to return class probabilities.

    Raises:
        UsageError: If the model has no probabilities.
    """
    target = card.target
    if target.kind != "classification":
        if probabilities:
            raise UsageError(
                f"probabilities are of classes, and the model predicts a {target.kind}: leave "
                "it out"
            )
        return in_kind_of(rows, np.asarray(objective_of(target).predict(outputs)))
    if probabilities:
        return in_kind_of(rows, np.asarray(outputs.softmax(-1)), card.labels.tolist())
    return in_kind_of(rows, card.labels[np.asarray(outputs.argmax(-1))])


@dataclass(frozen=True)
class SummaryTable:
    """One row per method with mean and standard deviation over seeds."""

    columns: list[str]
    rows: dict[str, list[tables.Cell]]

    def __repr__(self) -> str:
        """Return the table as aligned text, which a terminal shows."""
        return str(self)

    def __str__(self) -> str:
        """Return the table as aligned text."""
        shown = {label: [str(cell) for cell in cells] for label, cells in self.rows.items()}
        lines = [("method", self.columns), *shown.items()]
        widths = [max(len(cells[k]) for _, cells in lines) for k in range(len(self.columns))]
        first = max(len(label) for label, _ in lines)
        return "\n".join(
            "  ".join(
                [
                    f"{label:<{first}}",
                    *(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)),
                ]
            )
            for label, cells in lines
        )

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(title)}</th>" for title in ("method", *self.columns))
        body = "".join(
            f"<tr><td>{escape(method)}</td>"
            + "".join(f"<td>{escape(str(cell))}</td>" for cell in cells)
            + "</tr>"
            for method, cells in self.rows.items()
        )
        return f"<table><tr>{head}</tr>{body}</table>"


@speaks_python
@dataclass(frozen=True)
class Comparison:
    """Runs of several methods over the same seeds."""

    folder: Path
    runs: dict[str, list[Run]]
    """By the method's label, one run for each seed (and fold)."""

    def table(self) -> SummaryTable:
        """All figures, mean and standard deviation over seeds."""
        columns = self._columns()
        rows = tables.summary_rows(self._summaries(), columns)
        return SummaryTable([column.title for column in columns], rows)

    def frame(self) -> pandas.DataFrame:
        """Return one row per run: ``method`` and ``seed``, then all numbers of its summary."""
        rows = []
        for label, runs in self.runs.items():
            rows += [{**codec.encode(run.summary), "method": label} for run in runs]
        return _frame(rows)

    def paired(
        self, score: str = "personal", *, against: str
    ) -> dict[str, PairedDifference | None]:
        """Compare all methods with one of them over paired seeds.

        Args:
            score: ``personal``, ``global``, ``trained`` or ``received``.
            against: Label of the method that is subtracted.

        Returns:
            Mean difference and 95 % interval by label, in the unit of the table; None for fewer
            than two seeds. A method without this score is absent.

        Raises:
            UsageError: If there is no such score or method.
        """
        if score not in NAMED:
            raise UsageError(
                f"score is '{score}': must be one of {', '.join(NAMED)}{did_you_mean(score, NAMED)}"
            )
        column = next(column for column in self._columns() if column.score == score)
        summaries = self._summaries()
        values = tables.scores_over_seeds(summaries, column)
        if reason := tables.undefined_reason(summaries, column):
            raise UsageError(f"{column.title} is undefined for all methods: {reason}")
        if against not in values:
            raise UsageError(
                f"no method '{against}' with a {score} score is here{did_you_mean(against, values)}"
            )
        return {
            label: paired_difference(scores, values[against], column.higher_is_better)
            for label, scores in values.items()
            if label != against
        }

    def decision(self) -> Decision | None:
        """Return the verdict; None if the clients have no names or no test rows."""
        return read_decision(self.folder)

    def choose(
        self,
        out: str | Path | None = None,
        *,
        refit: str = "all",
        ensemble: bool = False,
        overwrite: bool = False,
    ) -> Chosen:
        """Decide which model each site should use, and train it on all rows.

        Args:
            out: Folder to write; ``chosen`` in that of the comparison if None.
            refit: ``all`` trains the final model on all rows, without a test split; ``none``
                takes the trained models as they are.
            ensemble: Whether to train one model for each seed and average them.
            overwrite: Whether to replace an earlier choice.

        Returns:
            The chosen models; ``print`` says in words what was chosen.

        Raises:
            UsageError: If nothing can be chosen.
        """
        decision = self.decision()
        label = (
            decision.method if decision and decision.method in self.runs else next(iter(self.runs))
        )
        run = self.runs[label][0]
        _, folder = choose_models(
            self.folder,
            Path(out) if out is not None else None,
            refit=refit,
            ensemble=ensemble,
            overwrite=overwrite,
            method=run.method,
            task=run.task.spec if run.task else None,
        )
        return Chosen(folder, run.task)

    def report(self) -> ReportPath:
        """Write one HTML report for all runs; return its path."""
        return ReportPath(html.write_report([self.folder], self.folder / "report.html"))

    def _summaries(self) -> dict[str, list[Summary]]:
        """By method: one summary per seed."""
        return {label: [run.summary for run in runs] for label, runs in self.runs.items()}

    def _columns(self) -> list[tables.SummaryColumn]:
        """Columns of the table; time and energy only if a run asked for a clock."""
        first_runs = [runs[0] for runs in self.runs.values()]
        with_clock = any(ClockConfig.requested_in(run.config) for run in first_runs)
        return tables.summary_columns(first_runs[0].summary, with_clock=with_clock)


@speaks_python
def compare(
    methods: Iterable[GivenMethod],
    task: str | Task = "synthetic",
    *,
    seeds: int = 3,
    seed: int = 0,
    rounds: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    processes: int | None = None,
    client_memory_gib: float | None = None,
    **options: object,
) -> Comparison:
    """Run several methods on a task over several seeds.

    Args:
        methods: Names, classes, instances or wrapped methods. The label of each is its name with
            the options that it sets. ``autopilot@linear`` is a method with a model of its own.
        task: A name, or a :class:`Task`.
        seeds: Number of seeds.
        seed: First seed.
        rounds: Federated rounds of each run.
        out: Folder of the comparison; a new one under ``runs/`` if None.
        resume: Whether to continue the comparison in ``out``.
        overwrite: Whether to replace the comparison in ``out``.
        processes: Processes of each run, as in :func:`equipoise.run`.
        client_memory_gib: Memory for client state, as in :func:`equipoise.run`.
        options: Options of all runs, as in :func:`equipoise.run`; those of one method belong in
            its instance.

    Returns:
        The finished comparison.

    Raises:
        UsageError: If no method is given, or one is given twice.
    """
    by_label = _methods_by_label(methods)
    common = {**options, "rounds": rounds, "seed": seed}
    cells: Cells = {}
    for label, method in by_label.items():
        name, model = method_and_model(method) if isinstance(method, str) else (method, "")
        own = {**common, "model": model} if model else common
        cells[label] = merge_options(name, task, own)
    task_name = task.name if isinstance(task, Task) else task
    folder = Path(out) if out is not None else new_folder(f"compare-{task_name}")
    call = f"equipoise.compare(methods=[{', '.join(by_label)}], task={task_name}, seeds={seeds})"
    resources = resources_from(processes, client_memory_gib)
    compare_cells(
        cells, seeds, folder, [call], resume=resume, overwrite=overwrite, resources=resources
    )
    conclude(folder)
    runs: dict[str, list[Run]] = {}
    for label, given in cells.items():
        folds = num_folds(given)
        runs[label] = [
            Run(
                folder / cell_folder(label, seed + k, fold, folds),
                *python_parts(given["method"], task),
            )
            for k in range(seeds)
            for fold in range(max(1, folds))
        ]
    return Comparison(folder, runs)


def _methods_by_label(methods: Iterable[GivenMethod]) -> dict[str, GivenMethod]:
    """Return the methods of a comparison by the labels of their rows.

    Raises:
        UsageError: If there are none, or two have the same label.
    """
    by_label: dict[str, GivenMethod] = {}
    for method in methods:
        label = label_of(method)
        if label in by_label:
            raise UsageError(f"method '{label}' is named twice: leave one out")
        by_label[label] = method
    if not by_label:
        raise UsageError("methods is empty: name at least one")
    return by_label
