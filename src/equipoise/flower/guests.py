"""Sites that take no part in training: they receive the final model, and score or adapt it.

A node with ``role="validate"`` in its ``--node-config`` scores the final global model on its own
``test`` rows. A node with ``role="adapt"`` also fits a personal model to its ``train`` rows, by the
rule of the method, as ``equipoise adapt`` does. Both keep the model in a folder for ``predict`` and
``export``. They answer nothing else: no round, and no question about columns.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from equipoise import __version__
from equipoise.core import Params, State
from equipoise.data.federated_dataset import Target
from equipoise.data.tabular.exchange import find_table
from equipoise.data.tabular.preprocessing import Preprocessor
from equipoise.data.tabular.table import Table
from equipoise.experiment.adapt import adapt_folder
from equipoise.experiment.model_card import read_card
from equipoise.experiment.row_outputs import (
    GLOBAL,
    LOCAL,
    PERSONAL,
    RowOutputs,
    only_class,
    resample,
)
from equipoise.experiment.site_models import RunModels
from equipoise.flower import codec
from equipoise.flower.client_state import ClientStateStore
from equipoise.flower.codec import InvalidMessage, Metadata
from equipoise.flower.config import NodeConfig
from equipoise.flower.egress import EgressCounter
from equipoise.flower.node import encode_error
from equipoise.privacy.budget import PrivacyBudget
from equipoise.records.client_table import table_text
from equipoise.records.decision import Decision, Estimate
from equipoise.records.run_dir import RunFolder
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.tasks.remote_tables import read_numbers
from equipoise.training.objectives import objective_of
from equipoise.utils import io
from equipoise.utils.errors import UsageError
from equipoise.utils.metrics import format_score

LOG = logging.getLogger("equipoise")
MIN_ROWS = 10
"""Rows below which no score leaves, whatever the node's rules say."""
MAX_REPLY_BYTES = 65536
ADAPTED_FOLDER = "adapted"
GAIN = ("gain_over_own", "gain_over_own_low", "gain_over_own_high")


# ------------------------------------------------------------------ at the site


class GuestNode:
    """A node that takes no part in training."""

    def __init__(self, given: Mapping[str, object], config: NodeConfig) -> None:
        """Set up the node.

        Args:
            given: Options of the run; the node's own ``data`` folder replaces theirs.
            config: Configuration of the node.
        """
        settings = ExperimentConfig.from_options(given)
        if "data" in settings.to_dict:
            settings = ExperimentConfig.from_options({**given, "data": config.data})
        self.settings = settings
        self.config = config

    def answer(self, data: bytes) -> bytes:
        """Answer a message; an error is sent as one sentence."""
        config = self.config
        try:
            tree, metadata = codec.decode(data)
            kind = metadata.get("kind")
            about = {"client": config.client, "name": config.name}
            if kind == "hello":
                hello = {"samples": 1, "version": __version__, "role": config.role}
                return codec.encode({}, {**about, **hello})
            if kind != "model":
                raise InvalidMessage(
                    f"this node takes no part in training (role {config.role}): it answers no "
                    f"'{str(kind)[:20]}'"
                )
            io.make_folder(config.state_dir, private=True)
            with io.exclusive(config.state_dir):
                values = self._use_model(tree, metadata)
            return codec.encode({}, {**about, "run": metadata["run"], "values": values})
        except Exception as error:
            LOG.exception("node of role %s cannot answer", config.role)
            return encode_error(error)

    def _use_model(self, tree: State, metadata: Metadata) -> dict[str, float | None]:
        """Keep the model, score it, and adapt it if that is this node's role."""
        if self.settings.privacy.has_noise:
            raise InvalidMessage("under dp_noise this node tells no scores")
        config = self.config
        PrivacyBudget(
            config.state_dir / "privacy.json",
            self.settings.privacy,
            config.max_epsilon,
            config.max_delta,
        ).check()
        run = str(metadata.get("run"))
        disk = ClientStateStore(config.state_dir, run, config.client)
        EgressCounter(config.state_dir / "egress.json", config.rules).count_round(run)
        _save_model(disk, tree, metadata, self.settings)
        card = read_card(disk.folder)
        assert card is not None
        metric = str(metadata.get("metric"))
        if metric not in objective_of(card.target).metric_names:
            raise InvalidMessage(f"there is no metric '{metric[:40]}'")
        values = self._scores(disk.folder, metric)
        names = guest_columns(card.target, metric, config.role)
        if config.role == "adapt":
            values |= self._adapt(disk, metric)
        LOG.info("the model of run %s is in '%s'", run, disk.path)
        return self._withhold({name: values[name] for name in names}, card.target, metric)

    def _scores(self, folder: RunFolder, metric: str) -> dict[str, float]:
        """Score the global model on this node's test rows."""
        models = RunModels.read(folder)
        target = models.card.target
        x, y = _labelled_rows(self._data, models, "test")
        output = models.outputs(GLOBAL, None, x)
        objective = objective_of(target)
        values = objective.score(output[None], y[None], None, objective.metric_names)
        places = np.arange(len(x))
        rows = RowOutputs(("here",), np.zeros_like(places), places, y, {GLOBAL: output})
        interval = resample([rows], target, metric).at_site(GLOBAL, 0)
        return {
            "rows": float(len(x)),
            **{name: float(value[0]) for name, value in values.items()},
            f"{metric}_low": interval.low,
            f"{metric}_high": interval.high,
            "one_class": float(bool(only_class(rows, target, GLOBAL))),
        }

    def _adapt(self, disk: ClientStateStore, metric: str) -> dict[str, float]:
        """Fit a personal model to this node's training rows and return what it gains."""
        models = RunModels.read(disk.folder)
        rows: Table | tuple[Tensor, Tensor]
        if isinstance(models.predictor.preprocessor, Preprocessor):
            rows = _table(self._data, "train")
        else:
            rows = _labelled_rows(self._data, models, "train")
        name = self.config.name or f"client {self.config.client}"
        out = disk.path / ADAPTED_FOLDER
        adapted = adapt_folder(disk.path, rows, out, name, overwrite=True)
        for line in str(adapted).splitlines():
            LOG.info("%s", line)
        LOG.info("this site's own model is in '%s'", out)
        return _adapted_values(adapted.decision, metric)

    @property
    def _data(self) -> Path:
        folder = Path(self.config.data).expanduser()
        if not self.config.data or not folder.is_dir():
            raise UsageError(f"there is no data folder '{folder}': give it by data=\"...\"")
        return folder

    def _withhold(
        self, values: Mapping[str, float], target: Target, metric: str
    ) -> dict[str, float | None]:
        """Replace what may not leave, or is not defined, by ``None``."""
        rules = self.config.rules
        num_rows = int(values["rows"])
        metrics = objective_of(target).metric_names
        passed: dict[str, float | None] = {}
        for name, value in values.items():
            # Intervals and gains follow the main metric.
            may_leave = rules.may_leave(name if name in metrics else metric, num_rows)
            if name == "rows":
                may_leave = rules.samples
            is_sent = may_leave and num_rows >= MIN_ROWS and math.isfinite(value)
            passed[name] = value if is_sent else None
        return passed


def guest_columns(target: Target, metric: str, role: str) -> list[str]:
    """Return the names of what a site outside training sends.

    Args:
        target: What is predicted.
        metric: Main metric.
        role: ``validate`` or ``adapt``.

    Returns:
        Number of rows, all metrics of the global model, interval of the main one, whether the model
        predicts one class; of a site that adapts also its personal model, training alone and the
        gain, on held-out rows of its own.
    """
    names = ["rows", *objective_of(target).metric_names, f"{metric}_low", f"{metric}_high"]
    names.append("one_class")
    if role == "adapt":
        names += [f"{PERSONAL}_{metric}", f"{LOCAL}_{metric}", *GAIN]
    return names


def _save_model(
    disk: ClientStateStore, tree: State, metadata: Metadata, settings: ExperimentConfig
) -> None:
    """Write the folder of the model that the server sent."""
    text = metadata.get("preparation")
    if isinstance(text, str) and text:
        disk.save_preparation(Preprocessor.from_json(text, "the server's preparation").to_json())
    card = metadata.get("card")
    params = tree.get("params")
    frozen = tree.get("frozen", {})
    if not isinstance(card, str) or not isinstance(params, dict) or not isinstance(frozen, dict):
        raise InvalidMessage("the message has no model")
    codec.check_finite(params, "model")
    disk.save_model(params, frozen, card, settings.to_dict)


def _table(folder: Path, split: str) -> Table:
    """Read a table of this node."""
    table = find_table(folder, split)
    if table is None:
        raise UsageError(f"'{folder}' has no table '{split}'")
    return table


def _labelled_rows(folder: Path, models: RunModels, split: str) -> tuple[Tensor, Tensor]:
    """Read rows of this node as inputs ``[n, features]`` and targets ``[n, ...]``."""
    preprocessor = models.predictor.preprocessor
    if not isinstance(preprocessor, Preprocessor):
        return read_numbers(folder, split, models.card.target.outputs)
    source = f"the {split} rows in '{folder}'"
    x, y = preprocessor.transform_labelled(_table(folder, split), source)
    return torch.from_numpy(x), torch.from_numpy(y)


def _adapted_values(decision: Decision, metric: str) -> dict[str, float]:
    """Return scores and gain of a personal model, as columns."""
    site = decision.sites[0]
    unknown = Estimate(math.nan)
    scores = {
        f"{kind}_{metric}": site.scores.get(kind, unknown).value for kind in (PERSONAL, LOCAL)
    }
    gains = (site.gain.value, site.gain.low, site.gain.high)
    return {**scores, **dict(zip(GAIN, gains, strict=True))}


# ------------------------------------------------------------------ at the server


class Guest(NamedTuple):
    """A connected site that takes no part in training."""

    node: int
    """Its node id."""
    client: int
    """The number that it gave itself."""
    name: str
    role: str

    @property
    def label(self) -> str:
        """Name for people."""
        return self.name or f"{self.role} node {self.client}"


class GuestWire(Protocol):
    """How messages reach sites that take no part in training."""

    def guests(self) -> list[Guest]:
        """Return those that are connected."""

    def ask_guests(self, messages: Mapping[Guest, bytes], limit: float) -> dict[Guest, bytes | str]:
        """Send messages and return the replies within ``limit`` seconds, or reasons."""


def offer_model(
    wire: GuestWire, folder: RunFolder, run: str, metric: str, limit: float
) -> list[str]:
    """Send the final model to sites outside training, and write what they say of it.

    Args:
        wire: Connection to them.
        folder: Folder of the finished run; gets ``validation.csv``.
        run: Id of the run.
        metric: Main metric of the task.
        limit: Seconds to wait for replies.

    Returns:
        One line for each site.
    """
    guests = wire.guests()
    card = read_card(folder)
    if not guests:
        return []
    if card is None or not folder.model("global").exists():
        return ["sites outside training get nothing: the method has no global model"]
    tree: dict[str, Params] = {"params": folder.model("global").read_tensors()}
    if folder.model("frozen").exists():
        tree["frozen"] = folder.model("frozen").read_tensors()
    metadata: Metadata = {"kind": "model", "run": run, "metric": metric, "card": card.write()}
    if folder.preparation.exists():
        metadata["preparation"] = folder.preparation.read_text()
    message = codec.encode(tree, metadata)
    answers = wire.ask_guests(dict.fromkeys(guests, message), limit)
    lines = []
    guest_scores: list[tuple[Guest, dict[str, float]]] = []
    for guest in guests:
        try:
            values = _read_values(answers.get(guest), guest, run, card.target, metric)
        except InvalidMessage as error:
            lines.append(f"{guest.label} ({guest.role}): {error}")
            continue
        guest_scores.append((guest, values))
        lines.append(f"{guest.label} ({guest.role}): {_sentence(values, metric)}")
    if guest_scores:
        folder.validation.write(_table_text(guest_scores))
    return lines


def _read_values(
    answer: bytes | str | None, guest: Guest, run: str, target: Target, metric: str
) -> dict[str, float]:
    """Decode a site's numbers; what it keeps is NaN."""
    _, metadata = codec.decode_reply(answer, MAX_REPLY_BYTES, client=guest.client, run=run)
    return codec.read_numbers(metadata, "values", guest_columns(target, metric, guest.role))


def _sentence(values: Mapping[str, float], metric: str) -> str:
    """Describe what the models are worth at one site."""
    score = Estimate(values[metric], values[f"{metric}_low"], values[f"{metric}_high"])
    if not math.isfinite(score.value):
        return f"it tells no {metric}"
    rows = values["rows"]
    tested = f" on {rows:.0f} test rows" if math.isfinite(rows) else ""
    text = f"the global model has {metric} {score.score_text(metric)}{tested}"
    if values["one_class"] == 1:
        text += "; it predicts one class for all of them"
    personal = values.get(f"{PERSONAL}_{metric}", math.nan)
    if math.isfinite(personal):
        gain = Estimate(*(values[name] for name in GAIN))
        text += (
            f"; its own model has {format_score(metric, personal)} on held-out rows, gain over "
            f"training alone {gain.difference_text(metric, personal)}"
        )
    return text


def _table_text(scores: Sequence[tuple[Guest, dict[str, float]]]) -> str:
    """Return ``validation.csv``."""
    names = dict.fromkeys(name for _, values in scores for name in values)
    columns: dict[str, list[float | str]] = {
        "client": [guest.client for guest, _ in scores],
        "name": [guest.label for guest, _ in scores],
    }
    columns |= {name: [values.get(name, math.nan) for _, values in scores] for name in names}
    return table_text(columns)
