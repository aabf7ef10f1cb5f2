"""Commands for trained models: choose, evaluate, explain, predict and export.

Imports that load PyTorch are inside the functions: ``--help`` of these commands is quick.
"""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from equipoise.cli.json_output import add_json, existing_file, print_json
from equipoise.cli.parser import Parser, add_quiet, output_file
from equipoise.utils.errors import UsageError

if TYPE_CHECKING:
    from equipoise.experiment.new_rows import Evaluation
    from equipoise.experiment.site_models import SiteModels
    from equipoise.experiment.site_rows import RowSelection

MODEL_HELP = "folder of a run, of 'equipoise choose', or of a comparison with a choice"


def choose(arguments: list[str]) -> int:
    """Choose the models of all sites and train them on all rows.

    Args:
        arguments: Folder and options of the command.

    Returns:
        The exit code.
    """
    values = _choose_parser().parse(arguments)
    from equipoise.experiment.choose import choice_sentences
    from equipoise.experiment.choose import choose as choose_models
    from equipoise.experiment.runner import OnRoundEnd
    from equipoise.records.run_dir import RunFolder
    from equipoise.report.decision_text import print_decision
    from equipoise.report.terminal import ProgressDisplay, make_console
    from equipoise.settings.experiment_config import ExperimentConfig

    current_run = contextlib.ExitStack()  # display of the run under way

    def announce(settings: ExperimentConfig, folder: Path) -> OnRoundEnd:
        current_run.close()
        title = f"{settings.run.method} on all rows, seed {settings.run.seed}"
        display = ProgressDisplay(
            title,
            settings.run.rounds,
            values.quiet or values.json,
            read_names=RunFolder(folder).read_prepared_names,
        )
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
    if values.json:
        print_json(folder=str(out), choice=choice)
        return 0
    if values.quiet or choice.decision is None:
        return 0
    console = make_console()
    print_decision(choice.decision, console)
    for sentence in choice_sentences(choice)[1 : -len(choice.decision.notes) or None]:
        console.print(sentence, highlight=False, markup=False)
    console.print(f"models: {out}; try 'equipoise evaluate {out} ROWS.csv'", highlight=False)
    return 0


def _choose_parser() -> Parser:
    """Return the options of `choose`."""
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
    add_json(parser)
    return parser


def adapt(arguments: list[str]) -> int:
    """Give a newcomer a personal model.

    Args:
        arguments: Folder, file of rows and options of the command.

    Returns:
        The exit code.
    """
    parser = Parser(
        "adapt",
        "Give a site that joins after the run a personal model, by the rule of the method: "
        "fine-tuning, its own head, its own trees. It is compared with the global model and with "
        "training alone on held-out rows, with 95 % intervals. The folder can be given to "
        "predict, evaluate, export and report.",
    )
    parser.add_argument("model", help=f"{MODEL_HELP}, or of a Flower node")
    parser.add_argument("rows", help="CSV or Parquet file of the newcomer, with the target")
    parser.add_argument("--name", default="newcomer", help="name of the site (default: newcomer)")
    parser.add_argument("--out", help="folder to write (default: MODEL-NAME)")
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier result")
    add_quiet(parser)
    add_json(parser)
    values = parser.parse(arguments)
    from equipoise.experiment.adapt import Federated, adapt_folder, default_folder
    from equipoise.experiment.site_rows import read_rows
    from equipoise.records.run_dir import RunFolder
    from equipoise.report.decision_text import print_decision
    from equipoise.report.html import try_write_report
    from equipoise.report.terminal import make_console

    path = Path(values.model)
    out = Path(values.out) if values.out else default_folder(path, values.name)
    table = read_rows(Path(values.rows), Federated.read(path).client_column)
    adapted = adapt_folder(path, table, out, values.name, overwrite=values.overwrite)
    report = try_write_report(out)
    if values.json:
        page = existing_file(RunFolder(out).report)
        print_json(folder=str(out), decision=adapted.decision, report=page)
        return 0
    if values.quiet:
        return 0
    console = make_console()
    print_decision(adapted.decision, console)
    console.print(f"model: {out}; try 'equipoise predict {out} ROWS.csv'", highlight=False)
    console.print(report, highlight=False)
    return 0


def evaluate(arguments: list[str]) -> int:
    """Score models on new rows of a table.

    Args:
        arguments: Folder, file of rows and options of the command.

    Returns:
        The exit code.

    Raises:
        UsageError: If an option is wrong or the rows cannot be used.
    """
    values = _evaluate_parser().parse(arguments)
    from equipoise.experiment.detailed_scores import Grouping
    from equipoise.experiment.new_rows import evaluate_rows
    from equipoise.experiment.site_models import load_models
    from equipoise.report.decision_text import write_sites_csv
    from equipoise.report.evaluation_page import render_evaluation
    from equipoise.utils import io

    out = _new_file(values.out, values.overwrite)
    page = _new_file(values.report, values.overwrite)
    if values.min_count < 1:
        raise UsageError(f"--min-count is {values.min_count}: must be at least 1")
    groupings = Grouping.parse(values.by)
    models = load_models(Path(values.model))
    evaluation = evaluate_rows(
        models,
        _selection(models, values),
        values.metric,
        cross_site=values.cross_site,
        by=groupings,
        min_count=values.min_count,
        horizon=values.horizon,
    )
    if page is not None:
        io.write_text(page, render_evaluation(evaluation.details))
    if out is not None:
        write_sites_csv(evaluation.decision, out)
    if values.json:
        print_json(
            decision=evaluation.decision,
            metrics=evaluation.metrics,
            calibration=evaluation.details.calibration,
            cross_site=evaluation.details.cross_site,
            groups=evaluation.details.groups,
            horizon=evaluation.details.horizon,
            unlabelled=evaluation.num_unlabelled,
            scores=str(out) if out else None,
            report=str(page) if page else None,
        )
        return 0
    _print_evaluation(evaluation, out, page)
    return 0


def _evaluate_parser() -> Parser:
    """Return the options of `evaluate`."""
    parser = Parser(
        "evaluate",
        "Score models on labelled rows that training never had: global, personal, the site's own "
        "and a constant beside each other, on the same rows, with 95 % intervals.",
    )
    _add_rows(parser, "CSV or Parquet file with the columns of training and the target")
    parser.add_argument("--metric", default="", help="main score (default: that of the run)")
    parser.add_argument(
        "--cross-site",
        action="store_true",
        help="also score the model of every site on the rows of every site",
    )
    parser.add_argument(
        "--by",
        default="",
        metavar="COLUMNS",
        help="also score groups of rows: sex,age (numbers by quarters) or age:40:65 (cut there)",
    )
    _add_min_count(parser, "group or site whose scores are shown")
    _add_horizon(parser, "also score probabilities of the event by this time: Brier score, AUC")
    parser.add_argument("--out", help="also write the scores of all sites to this CSV file")
    parser.add_argument(
        "--report", help="also write a page of HTML: calibration curves, heat map, groups"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace files that exist")
    add_json(parser)
    return parser


def _print_evaluation(evaluation: Evaluation, out: Path | None, page: Path | None) -> None:
    """Print scores and verdict, and the files that were written."""
    from equipoise.report.decision_text import print_decision
    from equipoise.report.evaluation_page import print_details
    from equipoise.report.terminal import make_console

    console = make_console()
    print_decision(evaluation.decision, console, evaluation.metrics)
    print_details(evaluation.details, console)
    if evaluation.num_unlabelled:
        console.print(f"{evaluation.num_unlabelled} rows have no known target and are not scored.")
    if out is not None:
        console.print(f"scores of all sites: {out}", highlight=False)
    if page is not None:
        console.print(f"report: {page}", highlight=False)


def explain(arguments: list[str]) -> int:
    """Say which inputs matter to models of tables, and how.

    Args:
        arguments: Folder, file of rows and options of the command.

    Returns:
        The exit code.

    Raises:
        UsageError: If an option is wrong or the rows cannot be used.
    """
    values = _explain_parser().parse(arguments)
    from equipoise.data.tabular.config import parse_names
    from equipoise.experiment.explanation import ExplanationOptions, explain_rows, explain_run
    from equipoise.experiment.site_models import load_models
    from equipoise.records.run_dir import RunFolder
    from equipoise.report.explanation_page import print_explanation, render_explanation
    from equipoise.report.html import write_report
    from equipoise.report.terminal import make_console
    from equipoise.utils import io

    page = _new_file(values.report, values.overwrite)
    options = ExplanationOptions(
        features=tuple(parse_names(values.features)),
        n_repeats=values.n_repeats,
        max_samples=values.max_samples,
        min_count=values.min_count,
        metric=values.metric,
    )
    path = Path(values.model)
    written: Path | None
    if values.rows is None:
        if values.client is not None or values.client_column:
            raise UsageError("--client and --client-column are for rows of a file: give ROWS")
        explanation = explain_run(path, options)
        run_page = write_report([path], RunFolder(path).report)
        written = page or run_page
    else:
        models = load_models(path)
        explanation = explain_rows(models, _selection(models, values), options)
        written = page
    if page is not None:
        io.write_text(page, render_explanation(explanation))
    if values.json:
        print_json(explanation=explanation, report=str(written) if written else None)
        return 0
    console = make_console()
    print_explanation(explanation, console)
    if written is not None:
        console.print(f"report: {written}", highlight=False)
    return 0


def _explain_parser() -> Parser:
    """Return the options of `explain`."""
    parser = Parser(
        "explain",
        "Say which columns matter: by how much the score falls if a column is permuted "
        "(permutation importance), and the mean prediction by the value of a column (partial "
        "dependence), for all rows and at each site. Without ROWS these are the test rows of the "
        "run, and its report shows the result.",
    )
    _add_rows(
        parser,
        "CSV or Parquet file with the columns of training and the target (default: the test rows "
        "of the run)",
        is_optional=True,
    )
    parser.add_argument("--metric", default="", help="the score (default: that of the run)")
    parser.add_argument(
        "--features",
        default="",
        metavar="COLUMNS",
        help="columns whose partial dependence is computed: age,dose (default: the 6 that matter "
        "most)",
    )
    parser.add_argument(
        "--n-repeats", type=int, default=5, help="permutations of each column (default: 5)"
    )
    parser.add_argument(
        "--max-samples",
        type=int,
        default=1000,
        help="rows of a site that are used; of more, a random sample (default: 1000)",
    )
    _add_min_count(parser, "site whose figures are shown")
    parser.add_argument("--report", help="also write a page of HTML")
    parser.add_argument("--overwrite", action="store_true", help="replace files that exist")
    add_json(parser)
    return parser


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
    _add_rows(
        parser,
        "CSV or Parquet file with the columns of training, target aside; or recordings (.npz)",
        "of a choice the column of training, if the rows have it",
    )
    parser.add_argument("--id", default="", help="column that is copied to the predictions")
    _add_horizon(parser, "also predict the probability of the event by this time")
    parser.add_argument(
        "--out", default="predictions.csv", help="the file (default: predictions.csv)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the file if there is one")
    add_json(parser)
    values = parser.parse(arguments)
    from equipoise.experiment.new_rows import predict_file

    lines = predict_file(
        Path(values.model),
        Path(values.rows),
        Path(values.out),
        client=values.client,
        client_column=values.client_column,
        id_column=values.id,
        horizon=values.horizon,
        overwrite=values.overwrite,
    )
    if values.json:
        print_json(predictions=values.out, notes=lines)
    else:
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
    parser.add_argument(
        "--format",
        default="safetensors",
        help="safetensors, onnx, torchscript or, of trees, lightgbm",
    )
    parser.add_argument("--out", help="the file (default: models/export-… in the run's folder)")
    add_json(parser)
    values = parser.parse(arguments)
    from equipoise.experiment.export import export as export_model
    from equipoise.experiment.model_card import read_card
    from equipoise.experiment.site_models import model_to_export

    out = output_file(values.out) if values.out else None
    folder, client, is_local = model_to_export(Path(values.folder), values.client)
    file, gap = export_model(folder.path, client, values.format, out, is_local=is_local)
    card = read_card(folder)
    description = f"{card.describe(client)}; " if card else ""
    if values.json:
        print_json(file=str(file), model=card.describe(client) if card else "", gap=gap)
        return 0
    print(f"{file}: {description}predictions agree with the original within {gap:.1g}")
    return 0


def _new_file(name: str | None, overwrite: bool) -> Path | None:
    """Return the file to write, if one is named.

    Raises:
        UsageError: If it exists and may not be replaced, or cannot be written there.
    """
    if not name:
        return None
    file = output_file(name)
    if file.exists() and not overwrite:
        raise UsageError(f"'{file}' exists already: choose another, or give --overwrite")
    return file


def _add_rows(
    parser: Parser,
    help: str,
    default_column: str = "the column of training, if the rows have it",
    is_optional: bool = False,
) -> None:
    """Add the arguments of a command on new rows: the models, the rows, and the site of each.

    Args:
        parser: Parser of the command.
        help: What the rows are.
        default_column: Column of sites where none is given.
        is_optional: Whether the rows may be left out.
    """
    parser.add_argument("model", help=MODEL_HELP)
    parser.add_argument("rows", nargs="?" if is_optional else None, help=help)
    _add_client(parser)
    parser.add_argument(
        "--client-column",
        default="",
        help="column that names the site of each row: many sites at once "
        f"(default: {default_column})",
    )


def _selection(models: SiteModels, values: argparse.Namespace) -> RowSelection:
    """Return the rows that the arguments of :func:`_add_rows` name."""
    from equipoise.experiment.site_rows import RowSelection

    return RowSelection.of(models, Path(values.rows), values.client, values.client_column)


def _add_client(parser: Parser) -> None:
    """Add ``--client``, which chooses between a personal and the global model."""
    parser.add_argument(
        "--client", help="whose personal model, by name or number (default: the global model)"
    )


def _add_min_count(parser: Parser, shown: str) -> None:
    """Add ``--min-count``."""
    parser.add_argument(
        "--min-count", type=int, default=10, help=f"fewest rows of a {shown} (default: 10)"
    )


def _add_horizon(parser: Parser, help: str) -> None:
    """Add ``--horizon``, a time after the start in the unit of the target."""
    parser.add_argument(
        "--horizon", type=float, metavar="TIME", help=f"of survival: {help} (such as 1825)"
    )
