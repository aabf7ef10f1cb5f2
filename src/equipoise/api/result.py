"""A run, finished or not, as a thing that can be used: records, report, models, predictions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from equipoise.api.given import given_means
from equipoise.api.page import Page
from equipoise.api.task import Task
from equipoise.contract import Method
from equipoise.core.config_file import read_config
from equipoise.core.errors import UsageError
from equipoise.learners.targets import objective_of
from equipoise.records.folder import Folder
from equipoise.records.results import Certificate
from equipoise.records.rounds import RoundRecord
from equipoise.records.summary import Summary
from equipoise.report.page import html
from equipoise.report.trackers.tracking import Tracking
from equipoise.runs import export as exporting
from equipoise.runs.certify import certify_run
from equipoise.runs.predict import Predictor
from equipoise.runs.running import Interrupted, resume_run
from equipoise.settings.config import RunSettings
from equipoise.settings.given import settings_in

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
        return Page(html.write([self.folder], self._folder.report))

    def model(self, client: int | str | None = None) -> nn.Module:
        """The server's model with its trained weights, or the personal one of a client, by name or number."""
        return self._predictor(client).module

    def predict(self, rows: Any, client: int | str | None = None, *, probabilities: bool = False) -> NDArray[Any]:
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
                raise UsageError(f"probabilities are of classes, and the model predicts a {target.kind}: leave it out")
            return np.asarray(objective_of(target).predicted(outputs))
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
        state_memory: float | None = None,
    ) -> Run:
        """Go on where the run stopped, to the same end as without a stop; a finished run stays as it is.

        Arguments:
            method, task: what was given in Python, if this is another process than the one that began the run.
            on_round: as in :func:`equipoise.run`.
            log: names of trackers, as in :func:`equipoise.run`.
            processes, state_memory: as in :func:`equipoise.run`; they need not be those that the run began with.
        """
        known = replace(self, method=method or self.method, task=task or self.task)
        folder = known._folder
        settings, means = known._settings(), given_means(processes, state_memory)
        go_on(folder, log, on_round, lambda watch: resume_run(folder.path, watch, settings=settings, resources=means))
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
        return exporting.export(self.folder, self._number(client), forms[path.suffix], path, settings)[0]

    @property
    def _folder(self) -> Folder:
        return Folder(self.folder)

    def _settings(self) -> RunSettings:
        return settings_in(self._folder.config, self.method, self.task.spec if self.task else None)

    def _predictor(self, client: int | str | None) -> Predictor:
        return Predictor.of(self._folder, self._number(client), self._settings() if self.task else None)

    def _number(self, client: int | str | None) -> int | None:
        """A client's number; a name that looks like a number is still a name where clients have names."""
        return self._folder.find_client(client) if isinstance(client, str) else client


def go_on(folder: Folder, log: str, on_round: OnRound | None, go: Callable[[OnRound], object]) -> None:
    """Run to the end with trackers and the user's own function told of every round; then draw the report."""
    done = len(folder.records()) if folder.config.is_file() else 0
    with Tracking(log, folder.path, done) as tracking:

        def watch(record: RoundRecord) -> str | None:
            tracking(record)
            return on_round(record) if on_round else None

        try:
            go(watch)
        except Interrupted:
            how = f"equipoise.open({str(folder.path)!r}).resume()"
            raise KeyboardInterrupt(f"stopped after a whole round; go on with {how}") from None
    html.offer(folder.path)
