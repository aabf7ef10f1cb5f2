"""Models that travel: a folder with weights, preparation and model card, made from a run.

Layout, as on the Hugging Face hub: ``README.md`` (model card), ``config.json`` (how to build and
use the network), ``model.safetensors`` (global model), ``clients/NAME.safetensors`` (personal
models) and ``preparation.json`` (of tables and recordings). Clients are named, and their models
shared, by consent only. Nothing in the folder is code.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from equipoise import __version__
from equipoise.data.tabular.preprocessing import Preprocessor
from equipoise.data.time_series import WindowTransform
from equipoise.experiment.decision import read_decision
from equipoise.experiment.model_card import Card, read_card
from equipoise.experiment.model_files import read_model
from equipoise.experiment.predict import Predictor, parse_preprocessor
from equipoise.privacy.accountant import describe_spent
from equipoise.records.decision import Decision
from equipoise.records.run_dir import RunFolder
from equipoise.records.summary import Summary
from equipoise.utils import io, serialization
from equipoise.utils.errors import PYTHON_OBJECT, UsageError, did_you_mean, install_hint
from equipoise.utils.metrics import format_score
from equipoise.utils.record import from_json

README = "README.md"
CONFIG = "config.json"
WEIGHTS = "model.safetensors"
PREPARATION = "preparation.json"
CLIENTS = "clients"
FILE_NAME = re.compile(r"\w[\w. -]*")
"""Names of clients that can be names of files."""
LIBRARY = "equipoise"


def save_pretrained(
    run: Path, folder: Path, *, license: str, consent: Sequence[str], overwrite: bool
) -> Path:
    """Write the models of a run as a folder for others.

    Args:
        run: Folder of a finished run.
        folder: Folder to write.
        license: Licence of the models, such as ``apache-2.0``; empty if none is stated.
        consent: Clients that agreed to be named and to share their personal models.
        overwrite: Whether to replace a folder that an earlier call wrote.

    Returns:
        The folder.

    Raises:
        UsageError: If the run has no model that can travel, or a client is unknown.
    """
    source = RunFolder(run)
    source.demand()
    card = _card_to_share(source, consent)
    if folder.exists() and not (overwrite and (folder / CONFIG).is_file()):
        raise UsageError(
            f"'{folder}' exists already: choose another folder, or give --overwrite for one that "
            "holds a model"
        )
    summary = source.read_summary()
    known = read_card(source)
    assert known is not None
    has_global = source.model("global").exists()
    if not has_global and not consent:
        raise UsageError(
            f"method '{card.method}' has no global model: name the clients that agreed to share "
            "theirs (consent)"
        )
    io.remove(folder)
    io.make_folder(folder)
    if has_global:
        serialization.write_tensors(folder / WEIGHTS, read_model(source, None), card.facts(None))
    for client in consent:
        io.make_folder(folder / CLIENTS)
        params = read_model(source, known.clients.index(client))
        file = folder / CLIENTS / f"{client}.safetensors"
        serialization.write_tensors(file, params, card.facts(card.clients.index(client)))
    if source.preparation.exists():
        preparation = _preparation_to_share(source, consent)
        io.write_text(folder / PREPARATION, preparation.to_json())
    text = card_text(card, summary, read_decision(run), license, has_global)
    io.write_text(folder / README, text)
    io.write_text(folder / CONFIG, card.write())  # last: it marks the folder as complete
    return folder


def _card_to_share(source: RunFolder, consent: Sequence[str]) -> Card:
    """Return the card of a run without the names of clients that did not agree to be named."""
    card = read_card(source)
    if card is None or card.network() is None or source.read_config().get("pretrained"):
        raise UsageError(
            f"'{source.path}' has no shipped network on data: save your own with torch.save, and a "
            "network of transformers with its own save_pretrained"
        )
    for name in consent:
        if name not in card.clients:
            raise UsageError(f"there is no client '{name}'{did_you_mean(name, card.clients)}")
        if not FILE_NAME.fullmatch(name):
            raise UsageError(f"client '{name}' cannot be the name of a file: rename it in the data")
    return msgspec.structs.replace(card, clients=tuple(consent))


def _preparation_to_share(
    source: RunFolder, consent: Sequence[str]
) -> Preprocessor | WindowTransform:
    """Return the preparation without what it says about clients that did not agree."""
    preprocessor = parse_preprocessor(source.preparation.read_text(), f"'{source.preparation}'")
    if isinstance(preprocessor, WindowTransform):
        return preprocessor
    scales = tuple(one for one in preprocessor.client_scales if one.client in consent)
    dropped = tuple(msgspec.structs.replace(one, reason="") for one in preprocessor.dropped)
    return msgspec.structs.replace(
        preprocessor,
        clients=tuple(consent),
        client_scales=scales,
        served_by=(),
        dropped=dropped,
    )


def card_text(
    card: Card, summary: Summary, decision: Decision | None, license: str, has_global: bool
) -> str:
    """Write the model card, with the fields that the Hugging Face hub reads.

    Args:
        card: Card of the models, with the clients that agreed to be named.
        summary: Summary of the run.
        decision: Scores with intervals, if the run has some.
        license: Licence; empty if none is stated.
        has_global: Whether the folder has a global model.

    Returns:
        The text, in Markdown.
    """
    named = "; the others did not agree to be named" if card.clients else ", which are not named"
    models = ["one global model"] if has_global else []
    if card.clients:
        models.append(f"personal models of {', '.join(card.clients)}")
    tags = ["federated-learning", "equipoise"]
    if card.inputs:
        tags.append("tabular")
    lines = [
        "---",
        f"license: {license or 'unknown'}",
        f"library_name: {LIBRARY}",
        f"tags: [{', '.join(tags)}]",
        "---",
        "",
        f"# {card.method} on {card.task.removeprefix(f'{PYTHON_OBJECT}:')}",
        "",
        f"A `{card.model}` model, trained by federated learning among {summary.clients_seen} "
        f"clients{named}.",
        f"This folder has {' and '.join(models)}.",
        "",
        *_fact_lines(card, summary, license),
        "",
        "## Scores",
        "",
        *_score_lines(card, summary, decision, has_global),
        "",
        "## Use",
        "",
        "```python",
        "import equipoise as eq",
        "",
        'model = eq.load("this-folder")',
        "model.predict(rows)  # raw rows, as in training",
        "```",
        "",
        "The scores are of the clients above and say nothing about other populations: evaluate",
        f"on your own rows first. Written by Equipoise {__version__}.",
        "",
    ]
    return "\n".join(lines)


def _fact_lines(card: Card, summary: Summary, license: str) -> list[str]:
    """Write what the model predicts from what, how it was trained, privacy and licence."""
    target = card.target
    predicts = f"{target.kind} of `{target.name}`" if target.name else target.kind
    if target.name and target.classes:
        predicts += f", one of {', '.join(target.classes)}"
    inputs = "arrays"
    if card.inputs:
        inputs = (
            f"{len(card.inputs)} inputs of a table, prepared from raw columns by `{PREPARATION}`"
        )
    privacy = "none: training was not differentially private"
    if summary.privacy:
        privacy = describe_spent(summary.privacy)
    return [
        f"- Predicts: {predicts}.",
        f"- Takes: {inputs}, shape {list(card.shape)}.",
        f"- Method: `{card.method}`, {summary.rounds} rounds, seed {card.seed}.",
        f"- Privacy spent: {privacy}.",
        f"- Licence: {license or 'not stated; ask the owners before you use it'}.",
    ]


def _score_lines(
    card: Card, summary: Summary, decision: Decision | None, has_global: bool
) -> list[str]:
    """Write the scores on the clients' test rows, with 95 % intervals where there are some."""
    if decision is not None:
        rows = [
            f"| {one.model} | {one.weighted.score_text(decision.metric)} |"
            for one in decision.candidates
            if one.method == card.method or not one.method
        ]
        head = f"| model | {decision.metric}, 95 % interval |"
        note = "On test rows of the clients that took part; every row counts alike."
        return [note, "", head, "|---|---|", *rows]
    scores = {"personal": summary.personal}
    if has_global and summary.global_:
        scores["global"] = summary.global_
    rows = []
    for model, model_scores in scores.items():
        for metric, value in model_scores.items():
            if value is not None:
                rows.append(f"| {model} | {metric} | {format_score(metric, value)} |")
    note = "Means over clients; this run has no intervals."
    return [note, "", "| model | metric | score |", "|---|---|---|", *rows]


# ------------------------------------------------------------------ reading


def read_pretrained(folder: Path) -> Card:
    """Read the card of a folder that :func:`save_pretrained` wrote.

    Raises:
        UsageError: If it holds no model.
    """
    file = folder / CONFIG
    if not file.is_file():
        raise UsageError(f"'{folder}' holds no model: it has no {CONFIG}")
    card = from_json(Card, io.read_text(file), f"'{file}'")
    if card.network() is None:
        raise UsageError(f"'{file}' names the model '{card.model}', which is not shipped here")
    return card


def load_predictor(folder: Path, client: str | None) -> Predictor:
    """Load a model of a folder that :func:`save_pretrained` wrote.

    Args:
        folder: The folder.
        client: Client of a personal model; None for the global model.

    Returns:
        The model, which takes raw rows.

    Raises:
        UsageError: If there is no such model, or a file does not fit.
    """
    card = read_pretrained(folder)
    if client is not None and client not in card.clients:
        raise UsageError(
            f"'{folder}' has no model of client '{client}'{did_you_mean(client, card.clients)}"
        )
    file = folder / WEIGHTS if client is None else folder / CLIENTS / f"{client}.safetensors"
    if not file.is_file():
        raise UsageError(
            f"'{folder}' has no global model: choose one of the clients {', '.join(card.clients)}"
        )
    module = card.network()
    assert module is not None
    try:
        module.load_state_dict(serialization.read_tensors(file)[0])
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"'{file}' is damaged or of another model: {reason}") from error
    preprocessor = None
    if (folder / PREPARATION).is_file():
        text = io.read_text(folder / PREPARATION)
        preprocessor = parse_preprocessor(text, f"'{folder / PREPARATION}'")
    known: frozenset[str] = frozenset()
    if isinstance(preprocessor, Preprocessor):
        names = {column.name for column in (*preprocessor.encoders, *preprocessor.dropped)}
        known = frozenset({*names, *preprocessor.target_spec.columns})
    number = None if client is None else card.clients.index(client)
    return Predictor(module, card, preprocessor, number, known)


def push_to_hub(folder: Path, repository: str, private: bool) -> str:
    """Upload a folder that :func:`save_pretrained` wrote to the Hugging Face hub.

    Args:
        folder: The folder.
        repository: Name of the repository, such as ``hospital/heart``.
        private: Whether a new repository is private.

    Returns:
        Address of the model.

    Raises:
        UsageError: If huggingface_hub is not installed, or the hub refuses.
    """
    read_pretrained(folder)
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise UsageError(f"uploading needs huggingface_hub: {install_hint('hub')}") from error
    api = HfApi(library_name=LIBRARY, library_version=__version__)
    try:
        address = api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=str(folder))
    except Exception as error:  # of the network, the account or the name
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UsageError(
            f"the hub did not take '{repository}': {reason}; log in with 'hf auth login', or share "
            "the folder of save_pretrained"
        ) from error
    return str(address)
