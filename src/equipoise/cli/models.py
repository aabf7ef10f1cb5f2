"""Commands for trained models: choose, evaluate, predict and export.

Imports that load PyTorch are inside the functions: ``--help`` of these commands is quick.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from equipoise.cli.parser import Parser, add_quiet, output_file

MODEL_HELP = "folder of a run, of 'equipoise choose', or of a comparison with a choice"


def choose(arguments: list[str]) -> int:
    """Choose the models of all sites and train them on all rows.

    Args:
        arguments: Folder and options of the command.

    Returns:
        The exit code.
    """
    parser = Parser(
        "choose",
        "Say in words which method and model each site should use, with paired intervals and ties "
        "called ties; train it on all rows; write one folder for predict, evaluate and export.",
    )
    parser.add_argument("runs", metavar="RUNS", help="folder of a comparison or of a run")
    parser.add_argument(
        "--refit",
        default="all",
        help="all: train the final model on all rows of each site, without a test split; "
        "none: take the trained models as they are (default: all)",
    )
    parser.add_argument(
        "--ensemble", action="store_true", help="train one model for each seed and average them"
    )
    parser.add_argument("--out", help="folder to write (default: chosen in RUNS)")
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier choice")
    add_quiet(parser)
    values = parser.parse(arguments)

    from equipoise.experiment.choose import choice_sentences
    from equipoise.experiment.choose import choose as choose_models
    from equipoise.experiment.runner import OnRoundEnd
    from equipoise.report.decision_text import print_decision
    from equipoise.report.terminal import ProgressDisplay, make_console
    from equipoise.settings.experiment_config import ExperimentConfig

    current_run = contextlib.ExitStack()  # display of the run under way

    def announce(settings: ExperimentConfig, rounds: int) -> OnRoundEnd:
        current_run.close()
        title = f"{settings.run.method} on all rows, seed {settings.run.seed}"
        display = ProgressDisplay(title, rounds, values.quiet)
        current_run.enter_context(display)
        return lambda record: display(record)

    with current_run:
        choice, out = choose_models(
            Path(values.runs),
            Path(values.out) if values.out else None,
            refit=values.refit,
            ensemble=values.ensemble,
            overwrite=values.overwrite,
            announce=announce,
        )
    if values.quiet or choice.decision is None:
        return 0
    console = make_console()
    print_decision(choice.decision, console)
    for sentence in choice_sentences(choice)[1 : -len(choice.decision.notes) or None]:
        console.print(sentence, highlight=False, markup=False)
    console.print(f"models: {out}; try 'equipoise evaluate {out} ROWS.csv'", highlight=False)
    return 0


def evaluate(arguments: list[str]) -> int:
    """Score models on new rows of a table.

    Args:
        arguments: Folder, file of rows and options of the command.

    Returns:
        The exit code.
    """
    parser = Parser(
        "evaluate",
        "Score models on labelled rows that training never had: global, personal, the site's own "
        "and a constant beside each other, on the same rows, with 95 %% intervals.",
    )
    parser.add_argument("model", help=MODEL_HELP)
    parser.add_argument("rows", help="CSV or Parquet file with the columns of training")
    _add_sites(parser, "(default: the column of training, if the rows have it)")
    parser.add_argument("--metric", default="", help="main score (default: that of the run)")
    parser.add_argument("--out", help="also write the scores of all sites to this CSV file")
    parser.add_argument("--overwrite", action="store_true", help="replace the file if there is one")
    values = parser.parse(arguments)
    from equipoise.experiment.new_rows import evaluate_rows, find_site, load_models, read_rows
    from equipoise.report.decision_text import print_decision, write_sites_csv
    from equipoise.report.terminal import make_console
    from equipoise.utils.errors import UsageError

    out = Path(values.out) if values.out else None
    if out is not None and out.exists() and not values.overwrite:
        raise UsageError(f"'{out}' exists already: choose another --out, or give --overwrite")
    models = load_models(Path(values.model))
    client = None if values.client is None else find_site(models, values.client)
    table = read_rows(Path(values.rows), values.client_column or models.client_column)
    found = evaluate_rows(models, table, client, values.client_column, values.metric)
    console = make_console()
    print_decision(found.decision, console, found.metrics)
    if found.num_unlabelled:
        console.print(f"{found.num_unlabelled} rows have no known target and are not scored.")
    if out is not None:
        write_sites_csv(found.decision, out)
        console.print(f"scores of all sites: {out}", highlight=False)
    return 0


def predict(arguments: list[str]) -> int:
    """Predict new rows of a table.

    Args:
        arguments: Folder, file of rows and options of the command.

    Returns:
        The exit code.
    """
    parser = Parser(
        "predict",
        "Predict new rows of a table, by the global model, by that of one site, or each row by the "
        "model of its site. Rows with a known target are scored too.",
    )
    parser.add_argument("folder", help=MODEL_HELP)
    parser.add_argument(
        "rows",
        help="CSV or Parquet file with the columns of training, target aside; or recordings (.npz)",
    )
    _add_sites(parser, "")
    parser.add_argument("--id", default="", help="column that is copied to the predictions")
    parser.add_argument(
        "--out", default="predictions.csv", help="the file (default: predictions.csv)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the file if there is one")
    values = parser.parse(arguments)
    from equipoise.experiment.new_rows import predict_file

    lines = predict_file(
        Path(values.folder),
        Path(values.rows),
        Path(values.out),
        client=values.client,
        client_column=values.client_column,
        id_column=values.id,
        overwrite=values.overwrite,
    )
    print("\n".join(lines))
    return 0


def export(arguments: list[str]) -> int:
    """Write a model of a run in a format that other programs load.

    Args:
        arguments: Folder and options of the command.

    Returns:
        The exit code.
    """
    parser = Parser("export", "Write a model of a run in a format that other programs load.")
    parser.add_argument("folder", help=MODEL_HELP)
    _add_client(parser)
    parser.add_argument("--format", default="safetensors", help="safetensors, onnx or torchscript")
    parser.add_argument("--out", help="the file (default: models/export-… in the run's folder)")
    values = parser.parse(arguments)
    from equipoise.experiment.export import export as export_model
    from equipoise.experiment.model_card import read_card
    from equipoise.experiment.new_rows import model_to_export

    out = output_file(values.out) if values.out else None
    folder, client, is_local = model_to_export(Path(values.folder), values.client)
    file, gap = export_model(folder.path, client, values.format, out, is_local=is_local)
    card = read_card(folder)
    description = f"{card.describe(client)}; " if card else ""
    print(f"{file}: {description}predictions agree with the original within {gap:.1g}")
    return 0


def _add_sites(parser: Parser, default: str) -> None:
    """Add the options that say which rows belong to which site."""
    _add_client(parser)
    parser.add_argument(
        "--client-column",
        default="",
        help=f"column that names the site of each row: many sites at once {default}".rstrip(),
    )


def _add_client(parser: Parser) -> None:
    """Add ``--client``, which chooses between a personal and the global model."""
    parser.add_argument(
        "--client", help="whose personal model, by name or number (default: the global model)"
    )
