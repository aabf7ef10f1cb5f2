"""A report's file that a notebook shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from equipoise.api.inputs import (
    GivenMethod,
    gathered,
    given_in_python,
    given_means,
    label_of,
    new_folder,
)
from equipoise.api.task import Task
from equipoise.clock.config import ClockConfig
from equipoise.core import Method
from equipoise.experiment import export as exporting
from equipoise.experiment.certificate import certify_run
from equipoise.experiment.compare import cell_folder
from equipoise.experiment.compare import compare as compare_cells
from equipoise.experiment.predict import Predictor
from equipoise.experiment.runner import Interrupted, resume_run
from equipoise.records.rounds import RoundRecord
from equipoise.records.run_dir import Folder
from equipoise.records.scores import NAMED
from equipoise.records.summary import Certificate, Summary
from equipoise.report import html, tables
from equipoise.report.statistics import PairedDifference, paired_difference
from equipoise.report.trackers import RunTrackers
from equipoise.settings.loading import settings_in
from equipoise.settings.run_settings import RunSettings
from equipoise.training.objectives import objective_of
from equipoise.utils.config_file import read_config
from equipoise.utils.errors import UsageError, nearest

if TYPE_CHECKING:
    _Path = Path
else:
    _Path = type(
        Path()
    )  # before Python 3.12 only the system's own kind of path can be derived from


class Page(_Path):
    """The path of a page; in a notebook it shows the page itself."""

    def _repr_html_(self) -> str:
        page = escape(self.read_text(), quote=True)
        return f'<iframe srcdoc="{page}" sandbox="allow-scripts" style="width: 100%; height: 45em; border: 0"></iframe>'


OnRound = Callable[[RoundRecord], str | None]
"""Called after each round with its record; gives a reason to stop the run, or ``None``."""


@dataclass(frozen=True)
class Run:
    """A run: its folder, and all that can be done with what is in it. :func:`equipoise.open` gives one of a folder."""

    folder: Path
    method: type[Method] | None = field(default=None, repr=False)
    """The class of its method, where that was given in Python."""
    task: Task | None = field(default=None, repr=False)
    """Its task, where that was made in Python."""

    @property
    def config(self) -> dict[str, Any]:
        """Every option of the run by name."""
        return read_config(self._folder.config)

    @property
    def rounds(self) -> list[RoundRecord]:
        """What happened, one record for each round so far."""
        return self._folder.records()

    @property
    def summary(self) -> Summary:
        """The finished run: scores of the last round and of the best, convergence, bytes and seconds of all rounds."""
        if not self.finished:
            raise UsageError(f"'{self.folder}' is not finished: go on with run.resume()")
        return self._folder.read_summary()

    @property
    def final(self) -> Summary:
        """The same as :attr:`summary`: how it ended."""
        return self.summary

    @property
    def finished(self) -> bool:
        return self._folder.summary.is_file()

    def report(self) -> Page:
        """Draw the run's page; gives its path, which a notebook shows as the page itself."""
        return Page(html.write_report([self.folder], self._folder.report))

    def model(self, client: int | str | None = None) -> nn.Module:
        """The server's model with its trained weights, or the personal one of a client, by name or number."""
        return self._predictor(client).module

    def predict(
        self, rows: Any, client: int | str | None = None, *, probabilities: bool = False
    ) -> NDArray[Any]:
        """Predictions for new rows, by the server's model or the personal one of a client.

        Classes are given by name, if they have names; a regression gives values, survival risks (the logarithm of a
        row's hazard against others').

        Arguments:
            rows: as the task was given them: a table with its feature columns, or an array of samples; of recordings
                raw windows, or their steps one after the other: ``{"x": [n, channels], "length": [of each]}``.
            client: whose model, by name or number; the server's without one.
            probabilities: give one probability for each class instead, ``[rows, classes]``.
        """
        predictor = self._predictor(client)
        target, outputs = predictor.card.target, predictor.outputs(rows)
        if target.kind != "classification":
            if probabilities:
                raise UsageError(
                    f"probabilities are of classes, and the model predicts a {target.kind}: leave it out"
                )
            return np.asarray(objective_of(target).predict(outputs))
        if probabilities:
            return np.asarray(outputs.softmax(-1))
        chosen = np.asarray(outputs.argmax(-1))
        return np.array(target.classes)[chosen] if target.name else chosen

    def resume(
        self,
        *,
        method: type[Method] | None = None,
        task: Task | None = None,
        on_round: OnRound | None = None,
        log: str = "",
        processes: int | None = None,
        client_memory_gib: float | None = None,
    ) -> Run:
        """Go on where the run stopped, to the same end as without a stop; a finished run stays as it is.

        Arguments:
            method, task: what was given in Python, if this is another process than the one that began the run.
            on_round: as in :func:`equipoise.run`.
            log: names of trackers, as in :func:`equipoise.run`.
            processes, client_memory_gib: as in :func:`equipoise.run`; they need not be those that the run began with.
        """
        known = replace(self, method=method or self.method, task=task or self.task)
        folder = known._folder
        settings, means = known._settings(), given_means(processes, client_memory_gib)
        go_on(
            folder,
            log,
            on_round,
            lambda watch: resume_run(folder.path, watch, settings=settings, resources=means),
        )
        return known

    def certify(self, samples: int = 64) -> Certificate:
        """How much any player would gain by deviating alone from its last strategy; also added to the summary.

        Arguments:
            samples: deviations that each player tries.
        """
        return certify_run(self.folder, samples, self._settings())

    def export(self, path: str | Path, *, client: int | str | None = None) -> Path:
        """Write a model as others deploy it: ``.onnx``, ``.pt`` (TorchScript) or ``.safetensors``.

        It is checked to predict as the original. ``client``: whose personal model, by name or number.
        """
        path = Path(path)
        forms = {suffix: form for form, (suffix, _) in exporting.FORMATS.items()}
        if path.suffix not in forms:
            raise UsageError(f"'{path}' must end in {', '.join(forms)}, which names the format")
        settings = self._settings() if self.task else None
        return exporting.export(
            self.folder, self._number(client), forms[path.suffix], path, settings
        )[0]

    @property
    def _folder(self) -> Folder:
        return Folder(self.folder)

    def _settings(self) -> RunSettings:
        return settings_in(self._folder.config, self.method, self.task.spec if self.task else None)

    def _predictor(self, client: int | str | None) -> Predictor:
        return Predictor.of(
            self._folder, self._number(client), self._settings() if self.task else None
        )

    def _number(self, client: int | str | None) -> int | None:
        """A client's number; a name that looks like a number is still a name where clients have names."""
        return self._folder.find_client(client) if isinstance(client, str) else client


def go_on(
    folder: Folder, log: str, on_round: OnRound | None, go: Callable[[OnRound], object]
) -> None:
    """Run to the end with trackers and the user's own function told of every round; then draw the report."""
    done = len(folder.records()) if folder.config.is_file() else 0
    with RunTrackers(log, folder.path, done) as trackers:

        def watch(record: RoundRecord) -> str | None:
            trackers(record)
            return on_round(record) if on_round else None

        try:
            go(watch)
        except Interrupted:
            how = f"equipoise.open({str(folder.path)!r}).resume()"
            raise KeyboardInterrupt(f"stopped after a whole round; go on with {how}") from None
    html.try_write_report(folder.path)


@dataclass(frozen=True)
class Table:
    """A row for each method, mean and standard deviation over seeds; ``str`` and notebooks show it."""

    columns: list[str]
    rows: dict[str, list[tables.Cell]]

    def __str__(self) -> str:
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


@dataclass(frozen=True)
class Comparison:
    """Runs of several methods over the same seeds."""

    folder: Path
    runs: dict[str, list[Run]]
    """By the method's label, one run for each seed."""

    def table(self) -> Table:
        """All figures, mean and standard deviation over seeds."""
        columns = self._columns()
        rows = tables.summary_rows(self._summaries(), columns)
        return Table([column.title for column in columns], rows)

    def paired(
        self, score: str = "personal", *, against: str
    ) -> dict[str, PairedDifference | None]:
        """Every other method's score minus that of one of them: mean and 95 % interval over paired seeds.

        Arguments:
            score: ``personal``, ``global``, ``trained`` or ``received``.
            against: the label of the method that is subtracted.

        Returns:
            Differences in the table's unit by label, ``None`` for fewer than two seeds. A method without it is absent.
        """
        if score not in NAMED:
            raise UsageError(
                f"score is '{score}': must be one of {', '.join(NAMED)}{nearest(score, NAMED)}"
            )
        column = next(column for column in self._columns() if column.score == score)
        summaries = self._summaries()
        values = tables.scores_over_seeds(summaries, column)
        if reason := tables.undefined_reason(summaries, column):
            raise UsageError(f"{column.title} is undefined for all methods: {reason}")
        if against not in values:
            raise UsageError(
                f"no method '{against}' with a {score} score is here{nearest(against, values)}"
            )
        return {
            label: paired_difference(found, values[against], column.higher_is_better)
            for label, found in values.items()
            if label != against
        }

    def report(self) -> Page:
        """Draw one page for all runs; gives its path, which a notebook shows as the page itself."""
        return Page(html.write_report([self.folder], self.folder / "report.html"))

    def _summaries(self) -> dict[str, list[Summary]]:
        """By method: one summary per seed."""
        return {label: [run.summary for run in runs] for label, runs in self.runs.items()}

    def _columns(self) -> list[tables.Column]:
        """Columns of the table; time and energy only if a run asked for a clock."""
        first_runs = [runs[0] for runs in self.runs.values()]
        with_clock = any(ClockConfig.requested_in(run.config) for run in first_runs)
        return tables.summary_columns(first_runs[0].summary, with_clock=with_clock)


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
    **options: Any,
) -> Comparison:
    """Run several methods on a task over several seeds.

    Arguments:
        methods: names, classes, instances or wrapped ones. Each is labelled by its name and the options that it sets.
        task: a name, or a :class:`Task`.
        seeds: how many seeds, from ``seed`` on.
        rounds: federated rounds of each run.
        out: the folder of the comparison; without it, a new one under ``runs/``.
        resume: go on with what is in ``out``.
        overwrite: replace what is in ``out``.
        processes, client_memory_gib: what each run may use of the machine, as in :func:`equipoise.run`.
        options: options of all runs, as in :func:`equipoise.run`; those of one method stand in its instance.

    Returns:
        The comparison, whose runs are finished.
    """
    by_label: dict[str, GivenMethod] = {}
    for method in methods:
        label = label_of(method)
        if label in by_label:
            raise UsageError(f"method '{label}' is named twice: leave one out")
        by_label[label] = method
    if not by_label:
        raise UsageError("methods is empty: name at least one")
    common = {**options, "rounds": rounds, "seed": seed}
    cells = {label: gathered(method, task, common) for label, method in by_label.items()}
    name = task.name if isinstance(task, Task) else task
    folder = Path(out) if out is not None else new_folder(f"compare-{name}")
    call = f"equipoise.compare(methods=[{', '.join(by_label)}], task={name}, seeds={seeds})"
    means = given_means(processes, client_memory_gib)
    compare_cells(cells, seeds, folder, [call], resume=resume, overwrite=overwrite, means=means)
    html.try_write_report(folder)
    runs = {
        label: [
            Run(
                folder / cell_folder(label, seed + k),
                *given_in_python(cells[label]["method"], task),
            )
            for k in range(seeds)
        ]
        for label in by_label
    }
    return Comparison(folder, runs)
