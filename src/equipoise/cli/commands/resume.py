"""``equipoise resume``: continue a run or a comparison that was stopped."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from equipoise.cli.parser import Parser, add_log, add_means, add_quiet, means_of


def main(arguments: list[str]) -> int:
    parser = Parser(
        "resume",
        "Continue a run or a comparison that was stopped; of a finished one the result is shown.",
    )
    parser.add_argument("folder", help="folder of the run or comparison")
    add_log(parser)
    add_means(parser)
    add_quiet(parser)
    chosen = parser.parse(arguments)
    means = means_of(vars(chosen))
    from equipoise.cli.showing import telling, to_the_end
    from equipoise.experiment.runner import resume_run
    from equipoise.records.run_dir import Folder
    from equipoise.report.trackers import RunTrackers
    from equipoise.settings.run_config import ResourceConfig
    from equipoise.settings.run_settings import RunSettings
    from equipoise.utils.config_file import read_config

    out = Path(chosen.folder)
    if (out / "compare.json").is_file() and not Folder(out).config.is_file():
        from equipoise.cli.commands import compare

        how = [
            *(["--log", chosen.log] if chosen.log else []),
            *(["--quiet"] if chosen.quiet else []),
        ]
        own = {
            name: value
            for name, value in asdict(means).items()
            if value != getattr(ResourceConfig, name)
        }
        using = [
            text
            for name, value in own.items()
            for text in (f"--{name.replace('_', '-')}", str(value))
        ]
        return compare.main(["--resume", "--out", chosen.folder, *how, *using])
    Folder(out).demand()
    settings = RunSettings.from_options(read_config(Folder(out).config))
    done = len(Folder(out).records())
    trackers = RunTrackers(chosen.log, out, done)
    tell = telling(chosen.quiet)
    return to_the_end(
        out,
        settings,
        chosen.quiet,
        trackers,
        done,
        lambda watch: resume_run(out, watch, on_message=tell, resources=means),
    )
