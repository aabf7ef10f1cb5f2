"""The command line, ``equipoise COMMAND``; ``equipoise --help`` names the commands."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from equipoise import __version__
from equipoise.cli.arguments import Parser, add_options, early_options, given_options, own_options
from equipoise.core.errors import UsageError, nearest
from equipoise.methods import all_methods, find_method
from equipoise.models import MODELS
from equipoise.privacy.ledger import in_words
from equipoise.records.folder import Folder
from equipoise.records.rounds import RoundRecord
from equipoise.report import tables
from equipoise.report.page import html
from equipoise.report.terminal.fit import output
from equipoise.report.terminal.progress import Display
from equipoise.report.terminal.results import to_screen
from equipoise.report.trackers.tracking import Tracking
from equipoise.settings.config import Settings
from equipoise.settings.files import read_config
from equipoise.settings.names import options, resolved
from equipoise.tasks import all_tasks, find_task


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 1 failed or interrupted, 2 bad usage or input."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    commands = {
        **{"run": _run, "compare": _compare, "tune": _tune, "resume": _resume, "report": _report},
        **{"watch": _watch, "export": _export, "play": _play},
        **{"certify": _certify, "flower": _flower, "data": _data, "list": _list},
    }
    parser = Parser("equipoise", description=__import__("equipoise").__doc__, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"equipoise {__version__}")
    parser.add_argument("command", choices=list(commands), help="what to do; each has its own --help")
    try:
        if arguments and not arguments[0].startswith("-") and arguments[0] not in commands:
            raise UsageError(f"unknown command '{arguments[0]}'{nearest(arguments[0], commands)}; see equipoise --help")
        chosen = parser.parse(arguments[:1])
        return commands[chosen.command](arguments[1:])
    except UsageError as error:
        print(f"equipoise: {error}", file=sys.stderr)
        return 2


def _run(arguments: list[str]) -> int:
    early = early_options(arguments)
    known = options(find_method(early["method"]), find_task(early["task"]))
    parser = Parser("equipoise run", description="Run one method; the result is a folder.", allow_abbrev=False)
    _add_output(parser, "runs/last")
    add_options(parser, known, early)
    chosen = vars(parser.parse(arguments))
    settings = Settings.of(given_options(early, chosen, known))
    from equipoise.runs.running import run

    out = Path(chosen["out"])
    done = len(Folder(out).records()) if chosen["resume"] else 0
    return _finish(
        out,
        settings,
        chosen["quiet"],
        Tracking(chosen["log"], out, done),
        done,
        lambda watch: run(
            settings,
            out,
            resume=chosen["resume"],
            overwrite=chosen["overwrite"],
            watch=watch,
            tell=_tell(chosen["quiet"]),
        ),
    )


def _resume(arguments: list[str]) -> int:
    parser = Parser("equipoise resume", description="Go on with a run that was stopped.", allow_abbrev=False)
    parser.add_argument("folder", help="the run's folder")
    _add_log(parser)
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")
    chosen = parser.parse(arguments)
    from equipoise.runs.running import resume_run

    out = Path(chosen.folder)
    Folder(out).demand()
    settings = Settings.of(read_config(Folder(out).config))
    done = len(Folder(out).records())
    tracking = Tracking(chosen.log, out, done)
    return _finish(
        out, settings, chosen.quiet, tracking, done, lambda watch: resume_run(out, watch, tell=_tell(chosen.quiet))
    )


def _certify(arguments: list[str]) -> int:
    parser = Parser(
        "equipoise certify",
        description="What any player of a finished run would gain by deviating alone; added to its summary.json.",
        allow_abbrev=False,
    )
    parser.add_argument("folder", help="the run's folder")
    parser.add_argument("--samples", type=int, default=16, help="deviations that each player tries (default: 16)")
    chosen = parser.parse(arguments)
    from equipoise.runs.certify import certify_run

    for line in certify_run(Path(chosen.folder), chosen.samples):
        print(line)
    return 0


def _report(arguments: list[str]) -> int:
    parser = Parser(
        "equipoise report",
        description="One page of HTML for a run or for several; it opens without a network.",
        allow_abbrev=False,
    )
    parser.add_argument("folders", nargs="+", metavar="DIR", help="folders of runs or comparisons, finished or not")
    parser.add_argument(
        "--out",
        help="the page (default: report.html in the folder; of several folders report-NAMES.html beside the first)",
    )
    chosen = parser.parse(arguments)
    folders = [Path(folder) for folder in chosen.folders]
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"'{folder}' is not a folder")
    out = _output_file(chosen.out) if chosen.out else html.place(folders)
    print(html.write(folders, out))
    return 0


def _watch(arguments: list[str]) -> int:
    parser = Parser("equipoise watch", description="A run or comparison as it goes on.", allow_abbrev=False)
    parser.add_argument("folder", help="folder of a run or comparison, under way or finished")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between looks (default: 1)")
    chosen = parser.parse(arguments)
    from equipoise.report.terminal.live import watch

    with contextlib.suppress(KeyboardInterrupt):  # the run itself goes on
        watch(Path(chosen.folder), chosen.every, output())
    return 0


def _export(arguments: list[str]) -> int:
    parser = Parser("equipoise export", description="A model of a run as others deploy it.", allow_abbrev=False)
    parser.add_argument("folder", help="the run's folder")
    parser.add_argument("--client", type=int, help="whose personal model (default: the global model)")
    parser.add_argument("--format", default="safetensors", help="safetensors, onnx or torchscript")
    parser.add_argument("--out", help="the file (default: models/export-… in the run's folder)")
    chosen = parser.parse(arguments)
    from equipoise.runs.export import export

    out = _output_file(chosen.out) if chosen.out else None
    file, gap = export(Path(chosen.folder), chosen.client, chosen.format, out)
    print(f"{file}: predictions agree with the original (logits differ by {gap:.1g} at most)")
    return 0


def _play(arguments: list[str]) -> int:
    parser = Parser("equipoise play", description="An episode of an agent of a finished run.", allow_abbrev=False)
    parser.add_argument("folder", help="the run's folder")
    parser.add_argument("--agent", type=int, default=0, help="whose net and environment (default: 0)")
    parser.add_argument("--episode", type=int, default=0, help="which of its scored episodes (default: 0)")
    parser.add_argument("--video", help="film it into this file: .gif, or .mp4 where ffmpeg is installed")
    chosen = parser.parse(arguments)
    from equipoise.runs.play import play

    video = Path(chosen.video) if chosen.video else None
    total = play(Path(chosen.folder), chosen.agent, chosen.episode, video)
    print(f"agent {chosen.agent}, episode {chosen.episode}: return {total:g}{f'; {video}' if video else ''}")
    return 0


def _tell(quiet: bool) -> Callable[[str], None]:
    """Remarks go beside the results, to standard error."""
    return (lambda remark: None) if quiet else (lambda remark: print(f"note: {remark}", file=sys.stderr))


def _finish(out: Path, settings: Settings, quiet: bool, tracking: Tracking, done: int, go: Any) -> int:
    """Run with progress, then show the table of one row; tell how to go on if interrupted."""
    from equipoise.runs.running import Interrupted

    title = f"{settings.run.method} on {settings.run.task}"
    try:
        with Display(title, settings.run.rounds, quiet, done) as display, tracking:
            summary = go(_both(display, tracking))
    except (Interrupted, KeyboardInterrupt):
        print(f"interrupted; go on with: equipoise resume {out}", file=sys.stderr)
        return 1
    report = html.offer(out)
    if not quiet:
        shown = tables.columns(summary)
        console = output()
        to_screen(title, tables.rows({settings.run.method: [summary]}, shown), shown, console)
        if summary.stopped:
            console.print(f"stopped at round {summary.rounds}: {summary.stopped}", highlight=False)
        if summary.privacy:
            console.print(in_words(summary.privacy), highlight=False)
        if summary.about.executor:
            console.print(f"executor: {summary.about.executor}", highlight=False)
        console.print(f"best by validation: round {summary.best_round}; everything is in {out}", highlight=False)
        console.print(report, highlight=False, markup=False, soft_wrap=True)
    return 0


def _several(arguments: list[str], parser: Parser) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """What stood on the command line of a command for several methods, and each method's own options of it."""
    parser.add_argument(
        "--methods", default="fedavg,local,finetune", help="names with commas between, or 'all' that suit"
    )
    text = parser.parse_known_args([a for a in arguments if a not in ("-h", "--help")])[0].methods
    names = list(all_methods()) if text == "all" else [name for name in text.split(",") if name]
    if not names or len(set(names)) < len(names):
        raise UsageError("--methods must name each method once, separated by commas, or be 'all'")
    early = early_options(arguments)
    each = {name: options(find_method(name), find_task(early["task"])) for name in names}
    known = {option: item for items in each.values() for option, item in items.items() if option != "method"}
    add_options(parser, known, {**early, "method": "' and '".join(names)})
    chosen = vars(parser.parse(arguments))
    del early["method"]
    cells = {
        name: given_options(own_options(early, items), own_options(chosen, items), items)
        for name, items in each.items()
    }
    if text == "all":
        from equipoise.runs.compare import suitable

        cells, refused = suitable(cells)
        for reason in refused.values():
            print(f"left out: {reason}", file=sys.stderr)
    return chosen, cells


def _compare(arguments: list[str]) -> int:
    parser = Parser("equipoise compare", description="Compare methods over seeds.", allow_abbrev=False)
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, from --seed on (default: 3)")
    parser.add_argument("--tuned", help="folder of 'equipoise tune': use the options that it found for each method")
    _add_output(parser, "runs/compare")
    chosen, cells = _several(arguments, parser)
    from equipoise.runs.compare import compare
    from equipoise.runs.running import Interrupted, Watch
    from equipoise.runs.tune import read_best

    if chosen["tuned"]:
        for name, given in cells.items():
            known = options(find_method(name), find_task(given["task"]))
            cells[name] = {**resolved(known, read_best(Path(chosen["tuned"]), name)), **given}
    out, quiet = Path(chosen["out"]), chosen["quiet"]
    cell = contextlib.ExitStack()  # what watches the cell under way

    def announce(settings: Settings, folder: Path) -> Watch:
        cell.close()
        done = len(Folder(folder).records()) if chosen["resume"] else 0
        title = f"{settings.run.method}, seed {settings.run.seed}"
        display = cell.enter_context(Display(title, settings.run.rounds, quiet, done))
        return _both(display, cell.enter_context(Tracking(chosen["log"], folder, done)))

    again = {"resume": chosen["resume"], "overwrite": chosen["overwrite"]}
    try:
        with cell:
            by_method, shown = compare(
                cells, chosen["seeds"], out, ["equipoise", "compare", *arguments], announce=announce, **again
            )
    except (Interrupted, KeyboardInterrupt):
        print("interrupted; go on with the same command and --resume", file=sys.stderr)
        return 1
    report = html.offer(out)
    if not quiet:
        console = output()
        to_screen("mean ± standard deviation over seeds", tables.rows(by_method, shown), shown, console)
        console.print(f"tables and runs are in {out}", highlight=False)
        console.print(report, highlight=False, markup=False, soft_wrap=True)
    return 0


def _tune(arguments: list[str]) -> int:
    parser = Parser("equipoise tune", description="Search options of methods on validation data.", allow_abbrev=False)
    parser.add_argument("--trials", type=int, default=12, help="settings tried for each method (default: 12)")
    parser.add_argument("--out", default="runs/tune", help="folder of the searches (default: runs/tune)")
    parser.add_argument("--config", help="TOML file with options that stay fixed")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")
    chosen, cells = _several(arguments, parser)
    from equipoise.runs.tune import tune

    def told(method: str, number: int, score: float | None, tried: dict[str, Any]) -> None:
        if not chosen["quiet"]:
            text = "  ".join(f"{k}={v:.4g}" for k, v in tried.items())
            print(f"{method}  trial {number}/{chosen['trials']}  {'—' if score is None else f'{score:.4f}'}  {text}")

    for method, given in cells.items():
        best = tune(method, given, chosen["trials"], Path(chosen["out"]) / method, told)
        if not chosen["quiet"]:
            print(f"{method}: best " + "  ".join(f"--{k.replace('_', '-')} {v:.4g}" for k, v in best.items()))
    return 0


def _flower(arguments: list[str]) -> int:
    from equipoise.cli.flower import main as flower

    return flower(arguments)


def _data(arguments: list[str]) -> int:
    early = early_options(arguments)
    known = options(find_method(early["method"]), find_task(early["task"]))
    parser = Parser("equipoise data", description="A task's data, as a run would share them out.", allow_abbrev=False)
    parser.add_argument("what", choices=["describe"], help="rows of everybody, and who holds which classes")
    parser.add_argument("--config", help="TOML file with options, or the config.json of a run")
    parser.add_argument("--json", action="store_true", help="as JSON")
    add_options(parser, known, early)
    chosen = vars(parser.parse(arguments))
    from equipoise.report.terminal.describe import describe, in_words
    from equipoise.runs.running import build_task

    found = describe(build_task(Settings.of(given_options(early, chosen, known))))
    print(json.dumps(found) if chosen["json"] else in_words(found))
    return 0


def _list(arguments: list[str]) -> int:
    parser = Parser("equipoise list", description="What there is.", allow_abbrev=False)
    parser.add_argument("what", choices=["methods", "tasks", "models"])
    what = parser.parse(arguments).what
    entries: dict[str, str | None]
    if what == "methods":
        entries = {name: sys.modules[method.__module__].__doc__ for name, method in all_methods().items()}
    elif what == "tasks":
        entries = {name: spec.help for name, spec in all_tasks().items()}
    else:
        entries = {name: build.__doc__ for name, build in MODELS.items()}
    width = max(map(len, entries))
    for name, text in entries.items():
        print(f"{name:<{width}}  {(text or '').strip().splitlines()[0]}")
    return 0


def _add_output(parser: Parser, default: str) -> None:
    parser.add_argument("--out", default=default, help=f"folder of the result (default: {default})")
    parser.add_argument("--config", help="TOML file with options, or the config.json of a run")
    parser.add_argument("--resume", action="store_true", help="go on with what is in the folder")
    parser.add_argument("--overwrite", action="store_true", help="replace what is in the folder")
    _add_log(parser)
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")


def _output_file(name: str) -> Path:
    """A file to be written, in a folder that is there."""
    file = Path(name)
    if file.is_dir():
        raise UsageError(f"'{name}' is a folder: --out must name a file")
    if not file.parent.is_dir():
        raise UsageError(f"there is no folder '{file.parent}': --out must name a file in one")
    return file


def _add_log(parser: Parser) -> None:
    parser.add_argument("--log", default="", help="trackers told of every round: tensorboard, mlflow, wandb")


def _both(display: Display, tracking: Tracking) -> Callable[[RoundRecord], None]:
    def watch(record: RoundRecord) -> None:
        display(record)
        tracking(record)

    return watch


if __name__ == "__main__":
    sys.exit(main())
