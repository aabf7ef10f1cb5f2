"""Predict and evaluate new rows with the models of a run, or with the models of a choice.

All models of a site (constant, local, global, personal) see the same rows, so that their scores
can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call

from equipoise.core import Params
from equipoise.data.federated_dataset import Ints, Target
from equipoise.data.tabular.io import read_table, table_from_values
from equipoise.data.tabular.preprocessing import Preprocessor
from equipoise.data.tabular.table import Table
from equipoise.data.time_series import WindowTransform
from equipoise.experiment.decision import Entry, Evidence, judge
from equipoise.experiment.detailed_scores import (
    DEFAULT_MIN_COUNT,
    Grouping,
    calibration_curves,
    group_scores,
    hidden_groups,
)
from equipoise.experiment.hazard import BaselineHazard, horizon_scores, read_hazard
from equipoise.experiment.model_card import Card, read_card
from equipoise.experiment.model_files import refuse_remote_model
from equipoise.experiment.predict import ROWS_PER_BATCH, Predictor, predict_recordings
from equipoise.experiment.row_outputs import (
    CONSTANT,
    GLOBAL,
    LOCAL,
    MODELS,
    PERSONAL,
    USED,
    RowOutputs,
    resample,
    site_scores,
)
from equipoise.records import codec
from equipoise.records.client_table import csv_text
from equipoise.records.decision import Choice, Decision, Estimate
from equipoise.records.evaluation import CrossSite, EvaluationDetails
from equipoise.records.manifest import CheckedFile, CheckedFolder
from equipoise.records.run_dir import ComparisonFolder, RunFolder
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.training.objectives import objective_of
from equipoise.utils import io as files
from equipoise.utils.errors import UsageError, did_you_mean

CHOICE_FILE = "choice.json"
CHOICE_FOLDER = "chosen"
"""Folder of a choice below that of its comparison."""
MAX_LISTED_NAMES = 20
MAX_CROSS_SITE_MODELS = 100


@dataclass(frozen=True)
class RunModels:
    """All models of one run, read once.

    Attributes:
        predictor: Network without weights, card and preprocessing.
        global_: Parameters of the global model; empty if there is none.
        stacks: Parameters ``[K, ...]`` of ``personal`` and ``local`` models, if there are any.
        constants: Outputs ``[K, outputs]`` of the constants; None if there are none.
        place: Place of each client in the stacks.
        hazard: Baseline hazard of survival; None without one.
    """

    predictor: Predictor
    global_: Params
    stacks: Mapping[str, Params]
    constants: Tensor | None
    place: Mapping[str, Mapping[int, int]]
    hazard: BaselineHazard | None = None

    @staticmethod
    def read(folder: RunFolder, settings: ExperimentConfig | None = None) -> RunModels:
        """Read the models of a finished run.

        Args:
            folder: Folder of the run.
            settings: Options of a run whose task was made in Python.

        Raises:
            UsageError: If the folder holds no finished run with models.
        """
        folder.demand()
        predictor = Predictor.without_weights(folder, settings)
        frozen = _tensors(folder.model("frozen"))
        predictor.module.load_state_dict(frozen, strict=False)
        global_ = _tensors(folder.model("global"))
        stacks: dict[str, Params] = {}
        place: dict[str, dict[int, int]] = {}
        constants = None
        owner = predictor.card.owner_id
        if owner is not None:  # its own model is in the place of the global one
            stacks[PERSONAL] = {name: value[None] for name, value in global_.items()}
            place[PERSONAL] = {owner: 0}
            global_ = _tensors(folder.model("federation"))
        if personal := _tensors(folder.model("personal")):
            place[PERSONAL] = _places(personal.pop("client_ids"))
            stacks[PERSONAL] = personal
        if tensors := _tensors(folder.baselines):
            place[CONSTANT] = _places(tensors.pop("client_ids"))
            constants = tensors.pop(CONSTANT)
            if tensors:
                prefix = f"{LOCAL}."
                stacks[LOCAL] = {name.removeprefix(prefix): v for name, v in tensors.items()}
                place[LOCAL] = place[CONSTANT]
        if not (global_ or stacks):
            raise UsageError(
                f"'{folder.path}' has no models: the run is not finished, or kept none "
                "(--no-save-personal)"
            )
        hazard = read_hazard(folder)
        return RunModels(predictor, global_, stacks, constants, place, hazard)

    @property
    def card(self) -> Card:
        """Card of the models."""
        return self.predictor.card

    @property
    def owner(self) -> int | None:
        """The site whose folder this is; None for a run of many sites."""
        return self.card.owner_id

    def models_of(self, client: int | None) -> list[str]:
        """List the kinds of models for a client; a stranger (None) has the global one alone."""
        found = [GLOBAL] if self.global_ else []
        found += [name for name, places in self.place.items() if client in places]
        return [name for name in MODELS if name in found]

    def inputs(self, rows: object, client: int | None) -> Tensor:
        """Convert raw rows of a client to inputs of the network."""
        return replace(self.predictor, client=client).inputs(rows)

    def outputs(self, model: str, client: int | None, x: Tensor) -> Tensor:
        """Return what a model says about inputs.

        Args:
            model: Kind of model.
            client: Whose model it is.
            x: Inputs ``[n, ...]``.

        Returns:
            Outputs ``[n, outputs]``.
        """
        if model == GLOBAL:
            return self._forward(self.global_, x)
        assert client is not None
        row = self.place[model][client]
        if model == CONSTANT:
            assert self.constants is not None
            return self.constants[row].expand(len(x), -1)
        params = {name: value[row] for name, value in self.stacks[model].items()}
        return self._forward(params, x)

    def probability(
        self, model: str, client: int | None, outputs: Tensor, horizon: float
    ) -> NDArray[np.float64]:
        """Return the probability of the event by a horizon ``[n]``.

        Args:
            model: Kind of model.
            client: Whose model it is.
            outputs: Its outputs ``[n, 1]``.
            horizon: Time after the start, in the unit of the target.

        Raises:
            UsageError: If there is no baseline hazard, or the horizon is beyond the follow-up.
        """
        if self.card.target.kind != "survival":
            raise UsageError(
                f"--horizon is for survival, and the target is read as {self.card.target.kind}: "
                "leave it out"
            )
        if self.hazard is None:
            raise UsageError(
                "--horizon needs a baseline hazard, and the folder has none: the clients of the "
                "run have no names, or the run was a deployment without a verdict"
            )
        log_risk = outputs.double().squeeze(-1).numpy()
        return self.hazard.probability(model, client, log_risk, horizon)

    def _forward(self, params: Params, x: Tensor) -> Tensor:
        with torch.no_grad():
            parts = [
                functional_call(self.predictor.module, params, (part,))
                for part in x.split(ROWS_PER_BATCH)
            ]
        return torch.cat(parts)


def _tensors(file: CheckedFile) -> Params:
    """Read a file of tensors; empty if there is none."""
    return file.read_tensors() if file.exists() else {}


def _places(ids: Tensor) -> dict[int, int]:
    return {int(client): place for place, client in enumerate(ids)}


@dataclass(frozen=True)
class SiteModels:
    """The models that sites use: those of one run, or of the members of a choice.

    Attributes:
        path: The folder that the user named.
        members: Models of each member; several members are an ensemble.
        client_column: Column that named the clients of the training table; empty if none did.
        metric: Main metric.
        choice: The choice; None if the folder is a run.
    """

    path: Path
    members: tuple[RunModels, ...]
    client_column: str
    metric: str
    choice: Choice | None = None

    @property
    def card(self) -> Card:
        """Card of the first member."""
        return self.members[0].card

    @property
    def target(self) -> Target:
        """What is predicted."""
        return self.card.target

    @property
    def owner(self) -> int | None:
        """The site whose folder this is: all rows are its own; None for a run of many sites."""
        return self.members[0].owner

    @property
    def is_by_site(self) -> bool:
        """Whether the user chose models site by site."""
        return self.choice is not None

    def model_of(self, client: int | None) -> str:
        """Return the kind of model that a site uses.

        Args:
            client: The site; None if training did not have it.

        Raises:
            UsageError: If there is no model for it.
        """
        available = self.members[0].models_of(client)
        if client is None:
            wanted = GLOBAL
        elif self.choice is None:
            wanted = PERSONAL
        else:
            wanted = self.choice.sites.get(self.name_of(client), self.choice.model)
        if wanted in available:
            return wanted
        if GLOBAL in available:
            return GLOBAL
        if self.owner is not None:
            raise UsageError(
                f"'{self.path}' has the model of {self.card.owner} alone: leave --client and "
                "--client-column out"
            )
        raise UsageError(
            f"'{self.path}' has no global model, and hence none for sites that did not take part"
        )

    @property
    def pools(self) -> Mapping[str, str]:
        """Small sites without a model of their own, and the pool whose model serves each."""
        preprocessor = self.members[0].predictor.preprocessor
        return dict(preprocessor.served_by) if isinstance(preprocessor, Preprocessor) else {}

    def name_of(self, client: int) -> str:
        """Return the name of a client, or its number if clients have no names."""
        return self.card.clients[client] if self.card.clients else str(client)

    def outputs(self, model: str, client: int | None, rows: object) -> Tensor:
        """Return what a kind of model says about raw rows, averaged over the members."""
        inputs = [member.inputs(rows, client) for member in self.members]
        return self.outputs_of_inputs(model, client, inputs)

    def outputs_of_inputs(self, model: str, client: int | None, inputs: Sequence[Tensor]) -> Tensor:
        """Return what a kind of model says about inputs of each member, averaged over them."""
        parts = [
            member.outputs(model, client, x) for member, x in zip(self.members, inputs, strict=True)
        ]
        return _averaged(parts, [member.card.target for member in self.members])

    def probability(
        self, model: str, client: int | None, rows: object, horizon: float
    ) -> NDArray[np.float64]:
        """Return the probability of the event by a horizon ``[n]``, the mean over the members."""
        parts = [
            member.probability(
                model, client, member.outputs(model, client, member.inputs(rows, client)), horizon
            )
            for member in self.members
        ]
        return np.asarray(np.mean(parts, axis=0))


def horizon_column(horizon: float) -> str:
    """Return the name of the column with probabilities at a horizon."""
    return f"p(event by {horizon:g})"


def _averaged(parts: Sequence[Tensor], targets: Sequence[Target]) -> Tensor:
    """Average outputs of an ensemble: probabilities of classes, values, or risks."""
    if len(parts) == 1:
        return parts[0]
    first = targets[0]
    if first.kind == "classification":
        return torch.stack([part.double().softmax(-1) for part in parts]).mean(0).log().float()
    if first.kind == "regression":
        values = [
            part.double() * target.scale + target.mean
            for part, target in zip(parts, targets, strict=True)
        ]
        return ((torch.stack(values).mean(0) - first.mean) / first.scale).float()
    return torch.stack(list(parts)).mean(0)


def load_models(path: Path, settings: ExperimentConfig | None = None) -> SiteModels:
    """Load the models of a run, of a choice, or of the choice of a comparison.

    Args:
        path: Folder of the run, the choice or the comparison.
        settings: Options of a run whose task was made in Python.

    Returns:
        The models.

    Raises:
        UsageError: If the folder holds none of these, or a comparison without a choice.
    """
    path = find_models(path)
    choice = None
    folders = [RunFolder(path)]
    if (path / CHOICE_FILE).is_file():
        choice = read_choice(path)
        folders = [RunFolder(path / member) for member in choice.members]
    members = tuple(RunModels.read(folder, settings) for folder in folders)
    config = folders[0].read_config()
    metric = str(config.get("metric") or "")
    target = members[0].card.target
    return SiteModels(
        path,
        members,
        str(config.get("client_column", "")),
        metric or objective_of(target).default_metrics[0],
        choice,
    )


def find_models(path: Path) -> Path:
    """Return the folder of a run or a choice; of a comparison, that of its choice.

    Raises:
        UsageError: If the folder is a comparison without a choice; the text says what to do.
    """
    if (path / CHOICE_FILE).is_file() or not ComparisonFolder(path).begun():
        return path
    chosen = path / CHOICE_FOLDER
    if (chosen / CHOICE_FILE).is_file():
        return chosen
    example = next(iter(sorted(path.glob("*/seed-*"))), path / "METHOD" / "seed-0")
    raise UsageError(
        f"'{path}' is a comparison of several methods: choose one with "
        f"'equipoise choose {path}', or name one of its runs, such as '{example}'"
    )


def read_choice(path: Path) -> Choice:
    """Read ``choice.json``; raise ``UsageError`` if it is damaged."""
    file = CheckedFolder(path).file(CHOICE_FILE)
    if not file.exists():
        raise UsageError(f"'{path}' holds no choice: make one with 'equipoise choose'")
    return codec.loads(Choice, file.read_text(), file)


# ------------------------------------------------------------------ rows by site


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


def _usual_column(models: SiteModels, table: Table, client: int | None, given: str) -> str:
    """Return the column of sites: the given one, else that of training if the rows have it."""
    if given or client is not None or models.owner is not None:
        return given
    return models.client_column if models.client_column in table.columns else ""


def _features(models: SiteModels, table: Table, *others: str) -> Table:
    """Remove columns that are no inputs: sites and ids."""
    preprocessor = models.members[0].predictor.preprocessor
    inputs: set[str] = set()
    if isinstance(preprocessor, Preprocessor):
        inputs = {encoder.name for encoder in preprocessor.encoders}
    return table.drop(frozenset(name for name in others if name and name not in inputs))


def _is_labelled(models: SiteModels, table: Table) -> NDArray[np.bool_] | None:
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


def _targets(models: SiteModels, table: Table) -> Tensor:
    """Return the targets of labelled rows."""
    preprocessor = models.members[0].predictor.preprocessor
    assert isinstance(preprocessor, Preprocessor)
    return torch.from_numpy(preprocessor.transform_target(table))


@dataclass(frozen=True)
class LabelledRows:
    """Rows whose target is known, and the site of each.

    Attributes:
        models: The models that the rows are for.
        table: The rows.
        sites: Rows of each site.
        targets: Targets ``[n]`` or ``[n, 2]``.
        client_column: Column that names the sites; empty without one.
        dropped: Columns that are no inputs.
    """

    models: SiteModels
    table: Table
    sites: Sequence[SiteRows]
    targets: Tensor
    client_column: str
    dropped: tuple[str, ...]

    def inputs_of(self, site: SiteRows) -> Table:
        """Return the rows of a site with the columns of its model."""
        return _features(self.models, self.table.take(site.rows), *self.dropped)


def refuse_other_data(models: SiteModels) -> None:
    """Raise ``UsageError`` for models of images, texts or recordings, which have no columns."""
    if not isinstance(models.members[0].predictor.preprocessor, Preprocessor):
        raise UsageError(f"'{models.path}' is no run on tables: only rows of tables can be given")


def select_labelled(
    models: SiteModels,
    table: Table,
    client: int | None,
    client_column: str,
    dropped: tuple[str, ...] = (),
) -> LabelledRows:
    """Select the rows that have a target, and find the site of each.

    Args:
        models: The models.
        table: All rows.
        client: The site of all rows; None if a column says it.
        client_column: Column that names the site of each row. Empty for that of training, if the
            rows have it.
        dropped: Further columns that are no inputs.

    Raises:
        UsageError: If the models are not of tables, no row has a target, or rows are of other
            sites.
    """
    refuse_other_data(models)
    column = _usual_column(models, table, client, client_column)
    labelled = _is_labelled(models, table)
    if labelled is None or not labelled.any():
        raise UsageError(
            f"the rows have no target '{models.target.name}': without it nothing can be scored; "
            "see 'equipoise predict'"
        )
    known = table.take(np.flatnonzero(labelled))
    if client is not None:
        _refuse_other_sites(models, known, client)
    sites = split_by_site(models, known, client, column)
    return LabelledRows(models, known, sites, _targets(models, known), column, (column, *dropped))


# ------------------------------------------------------------------ evaluation


@dataclass(frozen=True)
class Evaluation:
    """Scores of all kinds of models on new rows.

    Attributes:
        decision: Verdict and scores with intervals in the main metric.
        metrics: All metrics by kind of model, means over sites in which every row counts alike.
        num_unlabelled: Rows without a target, which were left out.
        details: Calibration, and what was asked for: every model at every site, groups of rows.
    """

    decision: Decision
    metrics: Mapping[str, Mapping[str, float]]
    num_unlabelled: int
    details: EvaluationDetails

    def __str__(self) -> str:
        """Return the decision and its notes."""
        return "\n".join([self.decision.headline, *self.decision.notes])


def evaluate_rows(
    models: SiteModels,
    rows: object,
    client: int | None = None,
    client_column: str = "",
    metric: str = "",
    *,
    cross_site: bool = False,
    by: Sequence[Grouping] = (),
    min_count: int = DEFAULT_MIN_COUNT,
    horizon: float | None = None,
) -> Evaluation:
    """Score all models on labelled rows that training never had.

    Args:
        models: The models.
        rows: A table with the columns of training and the target.
        client: The site of all rows; None if a column says it.
        client_column: Column that names the site of each row. Empty for that of training, if the
            rows have it.
        metric: Main metric; empty for that of the run.
        cross_site: Whether to score the model of every site on the rows of every site.
        by: Columns by whose groups the rows are scored.
        min_count: Fewest rows of a group, or of a site in ``cross_site``, that is shown.
        horizon: Of survival, also score the probabilities of the event by this time.

    Returns:
        The scores and the verdict.

    Raises:
        UsageError: If rows do not fit, have no target, or belong to no known site.
    """
    table = table_from_values(rows, "the table of rows", client_column or models.client_column)
    group_columns = tuple(grouping.column for grouping in by)
    labelled = select_labelled(models, table, client, client_column, group_columns)
    known = labelled.table
    sites = labelled.sites
    dropped = labelled.dropped
    target = models.target
    objective = objective_of(target)
    names = objective.with_primary_metric(metric or models.metric)
    for grouping in by:
        grouping.assign(known)
    outputs = _all_outputs(models, labelled)
    site_models = {site.name: models.model_of(site.client) for site in sites}
    if models.card.method == LOCAL:  # its personal models are each site's own
        outputs = outputs.renamed({CONSTANT: CONSTANT, PERSONAL: LOCAL, USED: USED})
        site_models = dict.fromkeys(site_models, LOCAL)
    evidence = _evidence(models, outputs, names[0], site_models)
    scores = resample(evidence.test, target, names[0])
    decision = judge(evidence, scores, _used_entry(models, evidence))
    strangers = [site.name for site in sites if site.client is None]
    notes = list(decision.notes)
    if labelled.client_column and strangers:
        notes.insert(
            0,
            f"{len(strangers)} of {len(sites)} sites took no part in training and have the global "
            f"model alone: {', '.join(strangers[:MAX_LISTED_NAMES])}.",
        )
    metrics = {
        name: {
            entry.model if entry.key != USED else USED: _weighted_mean(
                outputs, objective, entry.key, name
            )
            for entry in evidence.entries
        }
        for name in (names[0], *(one for one in objective.metric_names if one != names[0]))
    }
    decision = replace(decision, notes=notes)
    kinds = [entry.key for entry in evidence.entries if entry.model != CONSTANT]
    details = EvaluationDetails(
        title=f"{len(known)} new rows, models of {models.path.name} ({models.card.method})",
        decision=decision,
        calibration=calibration_curves(evidence.test[0], target, kinds),
        groups=group_scores(evidence.test[0], target, names[0], known, by, min_count),
        min_count=min_count,
    )
    if cross_site:
        matrix = _cross_site(models, known, sites, dropped, outputs, names[0], min_count)
        details = replace(details, cross_site=matrix)
    if horizon is not None:
        probabilities = _probabilities(models, outputs, sites, horizon)
        times = outputs.y.double().numpy()
        scored, curves = horizon_scores(times, probabilities, horizon)
        details = replace(details, horizon=scored, calibration=curves)
    return Evaluation(decision, metrics, len(table) - len(known), details)


def _probabilities(
    models: SiteModels, outputs: RowOutputs, sites: Sequence[SiteRows], horizon: float
) -> dict[str, NDArray[np.float64]]:
    """Return the probability of the event by a horizon for all rows, by kind of model.

    Risks of several members are averaged before, as for other scores.
    """
    first = models.members[0]
    found: dict[str, NDArray[np.float64]] = {}
    for kind in outputs.outputs:
        if kind == USED:
            continue
        source = PERSONAL if models.card.method == LOCAL and kind == LOCAL else kind
        values = np.full(len(outputs.y), np.nan)
        for site in sites:
            if source in first.models_of(site.client):
                risks = outputs.outputs[kind][torch.from_numpy(site.rows)]
                values[site.rows] = first.probability(source, site.client, risks, horizon)
        found[kind] = values
    return found


def _cross_site(
    models: SiteModels,
    table: Table,
    sites: Sequence[SiteRows],
    dropped: Sequence[str],
    rows: RowOutputs,
    metric: str,
    min_count: int,
) -> CrossSite:
    """Score the model of every site on the rows of every site.

    Args:
        models: The models.
        table: Labelled rows.
        sites: Rows of each site.
        dropped: Columns that are no inputs.
        rows: The same rows with their targets.
        metric: The score.
        min_count: Sites with fewer rows have no scores.

    Raises:
        UsageError: If there are too many models.
    """
    first = models.members[0]
    owners = sorted(first.place.get(PERSONAL, {}))
    if len(owners) > MAX_CROSS_SITE_MODELS:
        raise UsageError(
            f"--cross-site with {len(owners)} models: a matrix of more than "
            f"{MAX_CROSS_SITE_MODELS} cannot be read; name one site with --client"
        )
    inputs = _features(models, table, *dropped)
    outputs: dict[str, Tensor] = {}
    if first.global_:
        outputs[GLOBAL] = models.outputs(GLOBAL, None, inputs)
    for client in owners:
        outputs[models.name_of(client)] = models.outputs(PERSONAL, client, inputs)
    scores = resample([replace(rows, outputs=outputs)], models.target, metric)
    counts = np.array([len(site.rows) for site in sites])
    hidden = hidden_groups(counts, min_count)
    unknown = Estimate(math.nan)
    return CrossSite(
        metric=metric,
        models=list(outputs),
        sites=[site.name for site in sites],
        rows=[None if hidden[k] else int(count) for k, count in enumerate(counts)],
        scores=[
            [unknown if hidden[k] else scores.at_site(name, k) for k in range(len(sites))]
            for name in outputs
        ],
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


def _all_outputs(models: SiteModels, labelled: LabelledRows) -> RowOutputs:
    """Collect what all kinds of models say about the rows of their sites."""
    table = labelled.table
    sites = labelled.sites
    num_outputs = models.target.outputs
    kinds = [
        kind for kind in MODELS if any(kind in models.members[0].models_of(s.client) for s in sites)
    ]
    outputs = {kind: torch.full((len(table), num_outputs), torch.nan) for kind in (*kinds, USED)}
    site = np.zeros(len(table), np.int64)
    for number, one in enumerate(sites):
        site[one.rows] = number
        rows = torch.from_numpy(one.rows)
        own = labelled.inputs_of(one)
        used = models.model_of(one.client)
        for kind in models.members[0].models_of(one.client):
            outputs[kind][rows] = models.outputs(kind, one.client, own)
        outputs[USED][rows] = outputs[used][rows]
    names = tuple(one.name for one in sites)
    return RowOutputs(names, site, np.arange(len(table)), labelled.targets, outputs)


def _evidence(
    models: SiteModels, outputs: RowOutputs, metric: str, site_models: Mapping[str, str]
) -> Evidence:
    """Describe the candidates: all kinds of models, and the mixture that the sites use."""
    method = models.card.method
    if models.choice is not None and models.choice.decision is not None:
        method = models.choice.decision.federated_method or method  # as the comparison called it
    entries = [
        Entry(kind, "" if kind in (CONSTANT, LOCAL) else method, kind)
        for kind in outputs.outputs
        if kind != USED
    ]
    same = [
        kind
        for kind in outputs.outputs
        if kind != USED and torch.equal(outputs.outputs[kind], outputs.outputs[USED])
    ]
    kept = dict(outputs.outputs)
    if same:
        del kept[USED]
    else:
        entries.append(Entry(USED, method, USED))
    return Evidence(
        target=models.target,
        metric=metric,
        test=[replace(outputs, outputs=kept)],
        val=[],
        entries=entries,
        train_rows={},
        source="new rows",
        site_models=site_models,
    )


def _used_entry(models: SiteModels, evidence: Evidence) -> Entry:
    """Return the candidate that the sites use."""
    mixture = next((entry for entry in evidence.entries if entry.key == USED), None)
    if mixture is not None:
        return mixture
    wanted = PERSONAL if models.choice is None else models.choice.model
    for kind in (wanted, GLOBAL, LOCAL):
        found = next((entry for entry in evidence.entries if entry.key == kind), None)
        if found is not None:
            return found
    raise UsageError(f"'{models.path}' has no model for these rows")


def _weighted_mean(rows: RowOutputs, objective: Any, key: str, metric: str) -> float:
    """Return the mean of a metric over sites in which every row counts alike."""
    if key not in rows.outputs:
        return float("nan")
    values = site_scores(rows, objective, key, metric).numpy()
    counts = np.bincount(rows.site, minlength=len(rows.sites))
    known = np.isfinite(values)
    return float(np.average(values[known], weights=counts[known])) if known.any() else float("nan")


# ------------------------------------------------------------------ prediction


@dataclass(frozen=True)
class Predictions:
    """Predictions for the rows of a table, in their order.

    Attributes:
        columns: Columns ``[n]`` by name.
        outputs: Outputs ``[n, outputs]`` of the networks.
        sites: Rows of each site.
        models: Kind of model that each site uses, by its name.
    """

    columns: Mapping[str, NDArray[Any]]
    outputs: Tensor
    sites: Sequence[SiteRows]
    models: Mapping[str, str]


def predict_rows(
    models: SiteModels,
    table: Table,
    client: int | None = None,
    client_column: str = "",
    horizon: float | None = None,
) -> Predictions:
    """Predict rows, each by the model of its site.

    Args:
        models: The models.
        table: Rows with the inputs of training.
        client: The site of all rows; None for the global model, unless a column says it.
        client_column: Column that names the site of each row; empty without one.
        horizon: Of survival, also predict the probability of the event by this time.

    Returns:
        The predictions.

    Raises:
        UsageError: If the rows do not fit, or a site has no model.
    """
    sites = split_by_site(models, table, client, client_column)
    outputs = torch.zeros(len(table), models.target.outputs)
    used: dict[str, str] = {}
    probability = np.zeros(len(table))
    for one in sites:
        own = _features(models, table.take(one.rows), client_column)
        used[one.name] = models.model_of(one.client)
        outputs[torch.from_numpy(one.rows)] = models.outputs(used[one.name], one.client, own)
        if horizon is not None:
            kind = used[one.name]
            probability[one.rows] = models.probability(kind, one.client, own, horizon)
    columns = objective_of(models.target).prediction_columns(outputs)
    if horizon is not None:
        columns[horizon_column(horizon)] = probability
    return Predictions(columns, outputs, sites, used)


def predict_file(
    path: Path,
    rows: Path,
    out: Path,
    *,
    client: str | None = None,
    client_column: str = "",
    id_column: str = "",
    horizon: float | None = None,
    overwrite: bool = False,
) -> list[str]:
    """Write predictions for the rows of a file, in their order.

    Args:
        path: Folder of a run, a choice, or a comparison with a choice.
        rows: Table with the columns of training, or archive of recordings.
        out: CSV file to write.
        client: Name or number of the site of all rows.
        client_column: Column that names the site of each row.
        id_column: Column that is copied to the predictions.
        horizon: Of survival, also predict the probability of the event by this time.
        overwrite: Whether an existing file may be replaced.

    Returns:
        Lines that say what was written; with scores, if the rows have targets.

    Raises:
        UsageError: If a file is missing or exists already, or the rows do not fit.
    """
    if out.exists() and not overwrite:
        raise UsageError(f"'{out}' exists already: choose another --out, or give --overwrite")
    if client and client_column:
        raise UsageError("--client and --client-column exclude each other: leave one out")
    if not rows.is_file():
        raise UsageError(f"there is no file '{rows}'")
    models = load_models(path)
    number = None if client is None else find_site(models, client)
    if number is not None and models.choice is None:
        refuse_remote_model(RunFolder(models.path), number)
    predictor = models.members[0].predictor
    if isinstance(predictor.preprocessor, WindowTransform):
        found = predict_recordings(Predictor.of(RunFolder(models.path), number), rows)
        _write_csv(out, found)
        return [f"{out}: {len(next(iter(found.values())))} predictions"]
    if predictor.preprocessor is None and predictor.texts is None:
        raise UsageError(
            f"'{models.path}' is no run on tables: "
            "predict from Python, by equipoise.open(...).predict"
        )
    column = client_column
    table = read_rows(rows, column or models.client_column)
    if models.is_by_site:
        column = _usual_column(models, table, number, client_column)
    inputs = _features(models, table, id_column)
    predictions = predict_rows(models, inputs, number, column, horizon)
    head: dict[str, Any] = {}
    if id_column:
        head[id_column] = _texts(read_rows(rows, id_column), id_column)
    head["row"] = table.row_numbers
    if column:
        head[column] = _site_names(predictions, len(table))
    _write_csv(out, {**head, **predictions.columns})
    lines = [f"{out}: {len(table)} predictions, {_used_models(models, predictions)}"]
    return lines + _score_predictions(models, table, predictions)


def _score_predictions(models: SiteModels, table: Table, predictions: Predictions) -> list[str]:
    """Say how good the predictions are, if the rows have targets."""
    labelled = _is_labelled(models, table)
    if labelled is None or not labelled.any():
        return []
    site = np.zeros(len(table), np.int64)
    for number, one in enumerate(predictions.sites):
        site[one.rows] = number
    known = np.flatnonzero(labelled)
    names = tuple(one.name for one in predictions.sites)
    outputs = {USED: predictions.outputs[torch.from_numpy(known)]}
    y = _targets(models, table.take(known))
    rows = RowOutputs(names, site[known], np.arange(len(known)), y, outputs)
    scores = resample([rows], models.target, models.metric)
    mean = scores.mean(USED, scores.known_sites([USED]), weighted=True)
    return [
        f"{len(known)} of these rows have a target: {models.metric} "
        f"{mean.score_text(models.metric)}; 'equipoise evaluate' compares this with other models"
    ]


def find_site(models: SiteModels, wanted: str) -> int:
    """Find a site by name or number.

    Raises:
        UsageError: If training had no such site.
    """
    names = models.card.clients
    if wanted in names:
        return names.index(wanted)
    members = [""] if models.choice is None else models.choice.members
    return RunFolder(models.path / members[0]).find_client(wanted)


def model_to_export(path: Path, client: str | None) -> tuple[RunFolder, int | None, bool]:
    """Find the model that a user wants to export.

    Args:
        path: Folder of a run, a choice, or a comparison with a choice.
        client: Name or number of a site; None for the global model.

    Returns:
        Folder of the run, client (None for the global model), and whether it is the model that
        the client trained alone.

    Raises:
        UsageError: If there is no such model, or it is an ensemble, which is no single network.
    """
    path = find_models(path)
    if not (path / CHOICE_FILE).is_file():
        folder = RunFolder(path)
        card = read_card(folder) if folder.card.exists() else None
        if client is None or (card is not None and card.owner == client):
            return folder, None, False
        return folder, folder.find_client(client), False
    choice = read_choice(path)
    if len(choice.members) > 1:
        raise UsageError(
            f"'{path}' is an ensemble of {len(choice.members)} models, which is no single "
            f"network: export its members, such as '{path / choice.members[0]}'"
        )
    models = load_models(path)
    folder = RunFolder(path / choice.members[0])
    if client is None:
        if choice.model != GLOBAL:
            raise UsageError(
                f"sites use different models here: name one with --client, such as "
                f"'{models.card.clients[0]}'"
            )
        return folder, None, False
    number = find_site(models, client)
    kind = models.model_of(number)
    return folder, None if kind == GLOBAL else number, kind == LOCAL


def _texts(table: Table, column: str) -> list[str]:
    """Return the cells of a column as they were written."""
    if column not in table.columns:
        raise UsageError(
            f"the rows have no column '{column}'{did_you_mean(column, table.columns)}: see --id"
        )
    codes, labels = table.columns[column].labels
    return ["" if code < 0 else labels[code] for code in codes]


def _site_names(predictions: Predictions, num_rows: int) -> list[str]:
    """Return the site of each row."""
    names = [""] * num_rows
    for site in predictions.sites:
        for row in site.rows:
            names[row] = site.name
    return names


def _used_models(models: SiteModels, predictions: Predictions) -> str:
    """Say which models were used."""
    by_model: dict[str, list[str]] = {}
    for site in predictions.sites:
        by_model.setdefault(predictions.models[site.name], []).append(site.name)
    if len(predictions.sites) == 1:
        client = predictions.sites[0].client
        kind = next(iter(by_model))
        owner = "" if client is None or kind == GLOBAL else f" of {models.name_of(client)}"
        return f"by the {kind} model{owner}"
    parts = [
        f"{len(names)} sites by {'the global model' if kind == GLOBAL else f'their {kind} models'}"
        for kind, names in by_model.items()
    ]
    strangers = [site.name for site in predictions.sites if site.client is None]
    text = ", ".join(parts)
    if strangers:
        listed = ", ".join(strangers[:MAX_LISTED_NAMES])
        text += f" (took no part in training: {listed})"
    return text


def _write_csv(out: Path, columns: Mapping[str, Sequence[Any] | NDArray[Any]]) -> None:
    """Write columns as CSV; no text is written that a spreadsheet would take for a formula."""
    out.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(out, csv_text(columns))
