"""HTML reports: one self-contained file for a run, a comparison or several of them."""

from __future__ import annotations

import base64
import gzip
import shlex
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from equipoise import __version__
from equipoise.config.schema import to_config_value
from equipoise.methods import find_method
from equipoise.records import codec
from equipoise.records.decision import Decision
from equipoise.records.explanation import Explanation
from equipoise.records.manifest import CheckedFile, CheckedFolder
from equipoise.records.run_dir import ComparisonFolder, RunFolder
from equipoise.report.client_gains import gains_sentence
from equipoise.report.decision_text import decision_blocks
from equipoise.report.evaluation_page import is_site_folder, render_site
from equipoise.report.explanation_page import explanation_section
from equipoise.report.figures import MetricDisplay
from equipoise.report.run_data import Config, RunGroup, explain_damaged_files, load_groups
from equipoise.report.sections import report_sections
from equipoise.settings.option_registry import options
from equipoise.tasks import find_task
from equipoise.utils import io
from equipoise.utils.errors import UsageError, install_hint

if TYPE_CHECKING:
    from jinja2 import Environment

MAX_NAME_LENGTH = 100  # characters of the folders' names in the name of their report
INSTALL_HINT = f"{install_hint('report')}, then 'equipoise report DIR'"


def write_report(paths: Sequence[Path], out: Path) -> Path:
    """Write the report of some runs.

    Args:
        paths: Folders of runs or comparisons.
        out: File to write.

    Returns:
        The file.

    Raises:
        UsageError: There is nothing to report, a file is damaged, or an extra is not installed.
    """
    with explain_damaged_files(paths[0]):
        if len(paths) == 1 and is_site_folder(paths[0]):
            io.write_text(out, render_site(paths[0]))
            return out
        groups = load_groups(paths)
        page = render_report(groups, _command(paths, groups), _decision(paths), _explanation(paths))
    io.write_text(out, page)
    return out


def try_write_report(path: Path) -> str:
    """Write the report of what has just ended, into its folder. A report never fails a run.

    Args:
        path: Folder of a run or a comparison.

    Returns:
        One line that names the report, or says why there is none.
    """
    out = RunFolder(path).report
    try:
        if not _is_newer(
            out,
            [RunFolder(path).summary, ComparisonFolder(path).comparison, RunFolder(path).decision],
        ):
            write_report([path], out)
        return f"report: {out}"
    except UsageError as error:
        return f"no report: {error}"
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        return f"no report: drawing it failed ({reason}); try again: equipoise report {path}"


def _decision(paths: Sequence[Path]) -> Decision | None:
    """Read the decision of a run or a comparison; there is none for several folders."""
    file = CheckedFolder(paths[0]).decision
    if len(paths) > 1 or not file.exists():
        return None
    return codec.loads(Decision, file.read_text(), file)


def _explanation(paths: Sequence[Path]) -> Explanation | None:
    """Read which inputs matter to the models of a run; there is nothing for several folders."""
    file = RunFolder(paths[0]).explanation
    if len(paths) > 1 or not file.exists():
        return None
    return codec.loads(Explanation, file.read_text(), file)


def _is_newer(report: Path, results: Sequence[CheckedFile]) -> bool:
    """Tell whether a report shows these results already, as after resuming a finished run."""
    if not report.exists():
        return False
    last = max(file.modified_ns() for file in results)
    return 0 < last < report.stat().st_mtime_ns


def default_report_path(paths: Sequence[Path]) -> Path:
    """Return the file of a report: in the folder if it is one, else beside the first folder."""
    if len(paths) == 1:
        return RunFolder(paths[0]).report
    names = "-".join(path.resolve().name for path in paths)
    return paths[0].resolve().parent / f"report-{names[:MAX_NAME_LENGTH]}.html"


def _command(paths: Sequence[Path], groups: Sequence[RunGroup]) -> str:
    """Return the command that the user typed for a comparison, or one that repeats each run."""
    comparison = ComparisonFolder(paths[0])
    if len(paths) == 1 and comparison.comparison.exists():
        return shlex.join(comparison.read().command)
    return "\n".join(run_command(run.config) for group in groups for run in group.runs)


def run_command(config: Config) -> str:
    """Return the command that repeats a run, without options that have their default."""
    words = ["equipoise", "run", "--method", config["method"], "--task", config["task"]]
    try:
        known = options(find_method(config["method"]), find_task(config["task"]))
    except UsageError:  # a user's own method or task that is not installed here
        known = {}
    for name, value in config.items():
        is_default = name in known and to_config_value(known[name].default) == value
        if name in ("method", "task") or is_default:
            continue
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", str(value)]
    return shlex.join(words)


# ------------------------------------------------------------------ templates


@cache
def template_environment() -> Environment:
    """Return the Jinja environment of all pages. It escapes whatever a template inserts.

    Raises:
        UsageError: If Jinja2 is not installed.
    """
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError as error:
        raise UsageError(f"it needs Jinja2: {INSTALL_HINT}") from error
    loader = PackageLoader("equipoise.report", "templates")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment


@cache
def plotly_script() -> str:
    """Return Plotly's own script, compressed to a third of its size; the browser unpacks it.

    Raises:
        UsageError: If Plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise UsageError(f"it needs Plotly: {INSTALL_HINT}") from error
    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()


def render_report(
    groups: Sequence[RunGroup],
    command: str,
    decision: Decision | None = None,
    explanation: Explanation | None = None,
) -> str:
    """Render the report of some groups of runs.

    With a decision, the first screen is for whoever decides: verdict, candidates and sites. The
    rest is folded, and is not printed.

    Args:
        groups: Runs to show; several groups are compared.
        command: Command that repeats them.
        decision: The verdict, if the clients have names and were tested on the same rows.
        explanation: Which inputs matter, if somebody asked by ``equipoise explain``.

    Returns:
        The page.
    """
    display = MetricDisplay(groups[0].first_run.metric)
    sections, figures = report_sections(groups, display, command)
    if explanation is not None:
        section, more = explanation_section(explanation)
        sections.insert(-1, section)  # before configuration and command
        figures |= more
    template = template_environment().get_template("report.html.j2")
    return template.render(
        title=_title(groups),
        subtitle=_subtitle(groups),
        verdict=decision.headline if decision else gains_sentence(groups, display),
        first_screen=decision_blocks(decision) if decision else [],
        sections=sections,
        figures=figures,
        plotly_script=plotly_script(),
        version=__version__,
    )


def _title(groups: Sequence[RunGroup]) -> str:
    methods = groups[0].label if len(groups) == 1 else f"{len(groups)} methods"
    return f"{methods} on {data_name(groups[0].first_run.config)}"


def data_name(config: Config) -> str:
    """Return the name of the user's own file or folder, else that of the task."""
    if config["task"] == "tables" and config.get("data"):
        return Path(str(config["data"])).name
    return str(config["task"])


def _subtitle(groups: Sequence[RunGroup]) -> str:
    config = groups[0].first_run.config
    model = f", model {config['model']}" if config.get("model") else ""
    rounds = max(run.last_round for group in groups for run in group.runs)
    seeds = max(len(group.runs) for group in groups)
    plural = "s" if seeds > 1 else ""
    subtitle = f"Task {config['task']}{model}; up to {rounds} rounds; {seeds} seed{plural}."
    unfinished = sum(run.summary is None for group in groups for run in group.runs)
    if unfinished:
        verb = "is" if unfinished == 1 else "are"
        subtitle += f" {unfinished} of the runs {verb} not finished."
    return subtitle
