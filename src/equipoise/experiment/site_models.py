"""The models of a run or of a choice, by site: reading them, and their outputs for new rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call

from equipoise.core import Params
from equipoise.data.federated_dataset import Target
from equipoise.data.tabular.preprocessing import Preprocessor
from equipoise.experiment.hazard import BaselineHazard, read_hazard
from equipoise.experiment.model_card import Card, read_card
from equipoise.experiment.predict import ROWS_PER_BATCH, Predictor
from equipoise.experiment.row_outputs import (
    CONSTANT,
    GLOBAL,
    LOCAL,
    MODELS,
    PERSONAL,
)
from equipoise.records import codec
from equipoise.records.decision import Choice
from equipoise.records.manifest import CheckedFile, CheckedFolder
from equipoise.records.run_dir import ComparisonFolder, RunFolder
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.training.objectives import objective_of
from equipoise.utils.errors import UsageError

CHOICE_FILE = "choice.json"
CHOICE_FOLDER = "chosen"
"""Folder of a choice below that of its comparison."""


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

        Returns:
            The models.

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
            place[PERSONAL] = _row_by_client(personal.pop("client_ids"))
            stacks[PERSONAL] = personal
        if tensors := _tensors(folder.baselines):
            place[CONSTANT] = _row_by_client(tensors.pop("client_ids"))
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
        kinds = [GLOBAL] if self.global_ else []
        kinds += [name for name, places in self.place.items() if client in places]
        return [name for name in MODELS if name in kinds]

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


def _row_by_client(ids: Tensor) -> dict[int, int]:
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
        """Return what a kind of model says about raw rows, averaged over the members.

        Args:
            model: Kind of model: global, personal or local.
            client: Number of the client; None for the global model.
            rows: Raw rows, as a table or arrays.

        Returns:
            Outputs `[n, ...]`.
        """
        inputs = [member.inputs(rows, client) for member in self.members]
        return self.outputs_of_inputs(model, client, inputs)

    def outputs_of_inputs(self, model: str, client: int | None, inputs: Sequence[Tensor]) -> Tensor:
        """Return what a kind of model says about inputs of each member, averaged over them.

        Args:
            model: Kind of model: global, personal or local.
            client: Number of the client; None for the global model.
            inputs: The same rows, as each member's preparation encodes them.

        Returns:
            Outputs `[n, ...]`.
        """
        parts = [
            member.outputs(model, client, x) for member, x in zip(self.members, inputs, strict=True)
        ]
        return _ensemble_mean(parts, [member.card.target for member in self.members])

    def probability(
        self, model: str, client: int | None, rows: object, horizon: float
    ) -> NDArray[np.float64]:
        """Return the probability of the event by a horizon ``[n]``, the mean over the members.

        Args:
            model: Kind of model: global, personal or local.
            client: Number of the client; None for the global model.
            rows: Raw rows, as a table or arrays.
            horizon: The time up to which the event counts.
        """
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


def _ensemble_mean(parts: Sequence[Tensor], targets: Sequence[Target]) -> Tensor:
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
    if (path / CHOICE_FILE).is_file() or not ComparisonFolder(path).has_begun():
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
    """Read ``choice.json``; raise ``UsageError`` if it is damaged.

    Args:
        path: The folder of the choice.

    Returns:
        The choice.

    Raises:
        UsageError: If the file is missing or damaged.
    """
    file = CheckedFolder(path).file(CHOICE_FILE)
    if not file.exists():
        raise UsageError(f"'{path}' holds no choice: make one with 'equipoise choose'")
    return codec.loads(Choice, file.read_text(), file)


def find_site(models: SiteModels, name: str) -> int:
    """Find a site by name or number.

    Raises:
        UsageError: If training had no such site.
    """
    names = models.card.clients
    if name in names:
        return names.index(name)
    members = [""] if models.choice is None else models.choice.members
    return RunFolder(models.path / members[0]).find_client(name)


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
