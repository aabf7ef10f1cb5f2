"""``equipoise resume``: continue a run that was stopped."""

from __future__ import annotations

from pathlib import Path

from equipoise.cli.parser import Parser, add_log, add_quiet


def main(arguments: list[str]) -> int:
    parser = Parser("resume", "Continue a run that was stopped; a finished one is shown.")
    parser.add_argument("folder", help="the run's folder")
    add_log(parser)
    add_quiet(parser)
    chosen = parser.parse(arguments)
    from equipoise.cli.showing import telling, to_the_end
    from equipoise.records.folder import Folder
    from equipoise.report.trackers.tracking import Tracking
    from equipoise.runs.running import resume_run
    from equipoise.settings.config import Settings
    from equipoise.settings.files import read_config

    out = Path(chosen.folder)
    Folder(out).demand()
    settings = Settings.of(read_config(Folder(out).config))
    done = len(Folder(out).records())
    tracking = Tracking(chosen.log, out, done)
    tell = telling(chosen.quiet)
    return to_the_end(out, settings, chosen.quiet, tracking, done, lambda watch: resume_run(out, watch, tell=tell))
