"""Commands for the results of runs: certify, list, play, report and watch.

Imports that load PyTorch are inside the functions: ``--help`` of these commands is quick.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from pathlib import Path

from equipoise.cli.json_output import Output, add_json, print_json
from equipoise.cli.parser import Parser, add_quiet, output_file
from equipoise.utils.errors import UsageError


def certify(arguments: list[str]) -> int:
    """Measure what a player of a finished run would gain by deviating alone.

    Args:
        arguments: Folder and options of the command.

    Returns:
        The exit code.
    """
    parser = Parser(
        "certify",
        "Measure how much any client, or the server, would gain by choosing differently while all "
        "others stay. The result is a relative gain in utility: 0 % means that nobody would "
        "change alone, which is an equilibrium. It is printed and added to the run's summary.json.",
    )
    parser.add_argument("folder", help="folder of a finished run")
    parser.add_argument(
        "--samples", type=int, default=16, help="other choices that each player tries (default: 16)"
    )
    add_quiet(parser)
    add_json(parser)
    values = parser.parse(arguments)
    output = Output(values.quiet, values.json)
    from equipoise.experiment.certificate import certify_run, describe
    from equipoise.report.terminal import step_progress

    folder = Path(values.folder)
    with step_progress("other choices tried", not output.for_people) as update:
        certificate = certify_run(folder, values.samples, on_progress=update)
    if output.json:
        print_json(folder=str(folder), certificate=certificate)
    elif output.for_people:
        print("\n".join([*describe(certificate), f"Added to summary.json in {folder}."]))
    return 0


def list_names(arguments: list[str]) -> int:
    """List the methods by family, the tasks or the models.

    Args:
        arguments: What to list.

    Returns:
        The exit code.
    """
    parser = Parser("list", "List what there is, one line each.")
    parser.add_argument("what", choices=["methods", "tasks", "models"])
    add_json(parser)
    values = parser.parse(arguments)
    from equipoise.methods.families import by_family
    from equipoise.models import MODELS
    from equipoise.tasks import all_tasks

    if values.what != "methods":
        lists: dict[str, dict[str, str | None]] = {
            "tasks": {name: spec.help for name, spec in all_tasks().items()},
            "models": {name: build.__doc__ for name, build in MODELS.items()},
        }
        entries = _first_lines(lists[values.what])
        if values.json:
            print_json(**{values.what: [{"name": name, "help": entries[name]} for name in entries]})
        else:
            _print_entries(entries)
        return 0
    families = {
        family: _first_lines(
            {name: sys.modules[method.__module__].__doc__ for name, method in methods.items()}
        )
        for family, methods in by_family().items()
    }
    if values.json:
        print_json(
            methods=[
                {"name": name, "family": family.title, "help": help}
                for family, entries in families.items()
                for name, help in entries.items()
            ]
        )
        return 0
    for family, entries in families.items():
        print(f"\n{family.title}: {family.advice}")
        _print_entries(entries)
    print(
        "\nWhich one to use: docs/which-method.md; "
        "options of one: equipoise run --method NAME --help"
    )
    return 0


def _first_lines(entries: Mapping[str, str | None]) -> dict[str, str]:
    """Return the first line of each description."""
    return {name: (text or "").strip().splitlines()[0] for name, text in entries.items()}


def _print_entries(entries: Mapping[str, str]) -> None:
    """Print names with their descriptions, aligned."""
    width = max(map(len, entries))
    for name, text in entries.items():
        print(f"  {name:<{width}}  {text}")


def play(arguments: list[str]) -> int:
    """Play an episode of an agent of a finished run, and film it.

    Args:
        arguments: Folder and options of the command.

    Returns:
        The exit code.
    """
    parser = Parser(
        "play", "Play an episode of an agent of a finished run with its personal net, and film it."
    )
    parser.add_argument("folder", help="the run's folder")
    parser.add_argument(
        "--agent", type=int, default=0, help="whose net and environment (default: 0)"
    )
    parser.add_argument(
        "--episode", type=int, default=0, help="which of its scored episodes (default: 0)"
    )
    parser.add_argument(
        "--video", help="film it into this file: .gif, or .mp4 where ffmpeg is installed"
    )
    add_json(parser)
    values = parser.parse(arguments)
    from equipoise.experiment.play import play as play_episode

    video = Path(values.video) if values.video else None
    total = play_episode(Path(values.folder), values.agent, values.episode, video)
    if values.json:
        print_json(
            agent=values.agent,
            episode=values.episode,
            total_reward=total,
            video=str(video) if video else None,
        )
        return 0
    where = f"; {video}" if video else ""
    print(f"agent {values.agent}, episode {values.episode}: return {total:g}{where}")
    return 0


def report(arguments: list[str]) -> int:
    """Write one HTML page about one run or several.

    Args:
        arguments: Folders and options of the command.

    Returns:
        The exit code.

    Raises:
        UsageError: If one of the folders does not exist.
    """
    parser = Parser(
        "report", "One page of HTML for a run or for several; it opens without a network."
    )
    parser.add_argument(
        "folders", nargs="+", metavar="DIR", help="folders of runs or comparisons, finished or not"
    )
    parser.add_argument(
        "--out",
        help="the page (default: report.html in the folder; for several folders "
        "report-NAMES.html beside the first)",
    )
    add_json(parser)
    values = parser.parse(arguments)
    folders = [Path(folder) for folder in values.folders]
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"'{folder}' is not a folder")
    from equipoise.report import html

    out = output_file(values.out) if values.out else html.default_report_path(folders)
    html.write_report(folders, out)
    if values.json:
        print_json(report=str(out))
    else:
        print(out)
    return 0


def watch(arguments: list[str]) -> int:
    """Follow a run or a comparison from another terminal.

    Args:
        arguments: Folder and options of the command.

    Returns:
        The exit code.
    """
    parser = Parser("watch", "Follow a run or a comparison; Ctrl-C ends the watching, not the run.")
    parser.add_argument("folder", help="folder of a run or comparison, under way or finished")
    parser.add_argument(
        "--every", type=float, default=1.0, help="seconds between looks (default: 1)"
    )
    parser.add_argument(
        "--serve",
        action="store_true",
        help="a live page of one federation in the browser, on this machine only (127.0.0.1): "
        "rounds, clients, lateness, refusals, budgets, scores",
    )
    parser.add_argument(
        "--port", type=int, default=0, help="port of --serve (default: 0, any free one)"
    )
    parser.add_argument(
        "--no-browser", action="store_true", help="print the address, but open no browser"
    )
    add_json(parser)
    values = parser.parse(arguments)
    if values.serve:
        from equipoise.studio.server import serve_federation

        return serve_federation(Path(values.folder), values.port, not values.no_browser)
    from equipoise.report.terminal import make_console
    from equipoise.report.terminal_live import runs_so_far
    from equipoise.report.terminal_live import watch as watch_folder

    if values.json:  # a program looks once, as often as it likes
        print_json(runs=runs_so_far(Path(values.folder)))
        return 0
    with contextlib.suppress(KeyboardInterrupt):  # the run itself goes on
        watch_folder(Path(values.folder), values.every, make_console())
    return 0
