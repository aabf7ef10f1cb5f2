"""What the pages know of runs and comparisons: they read the folders, and nothing else.

Files are read through the manifest of their folder, as by all commands: a damaged one is not shown.
What was read is kept until the manifest changes: a thousand runs are listed without a delay.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from equipoise.records.manifest import MANIFEST_FILE
from equipoise.records.rounds import RoundRecord
from equipoise.records.run_dir import LogFollower, RunFolder
from equipoise.records.scores import Scores
from equipoise.studio.jobs import Job, JobStore
from equipoise.utils.errors import UsageError
from equipoise.utils.metrics import format_score

MAX_POINTS = 400  # of a curve


@dataclass(frozen=True)
class RunEntry:
    """One row of the list of runs.

    Attributes:
        name: Folder, relative to the folder of runs.
        kind: `run` or `comparison`.
        state: `running`, `finished`, `stopped` or `failed`.
        methods: Names of the methods.
        data: Name of the data file or of the task.
        score: Personal score in words; empty if there is none yet.
        changed: Unix time of the last change.
    """

    name: str
    kind: str
    state: str
    methods: tuple[str, ...]
    data: str
    score: str
    changed: float


@dataclass(frozen=True)
class CellProgress:
    """One run, alone or within a comparison.

    Attributes:
        method: Label of the method.
        seed: Seed of the run.
        rounds_done: Rounds that have ended.
        rounds: Rounds that were asked for.
        is_finished: Whether the summary is written.
        metric: Name of the score.
        personal: Mean personal score of each evaluated round, with its round number.
        global_: The same for the global model.
    """

    method: str
    seed: int
    rounds_done: int
    rounds: int
    is_finished: bool
    metric: str
    personal: tuple[tuple[int, float], ...]
    global_: tuple[tuple[int, float], ...]

    @property
    def fraction(self) -> float:
        """Finished part of the work, 0 to 1."""
        return 1.0 if self.is_finished else min(1.0, self.rounds_done / max(1, self.rounds))

    @property
    def last_score(self) -> str:
        """Last personal score in words."""
        if not self.personal:
            return ""
        return format_score(self.metric, self.personal[-1][1])


class RunFacts(NamedTuple):
    """What the list of runs shows of one run.

    Attributes:
        changed: Time of the manifest's last change, in nanoseconds.
        config: Options of the run; empty if they are damaged.
        is_finished: Whether the run has a summary.
        score: Final personal score in words; empty if there is none.
    """

    changed: int
    config: Mapping[str, object]
    is_finished: bool
    score: str


@dataclass
class RunLibrary:
    """Reads runs and comparisons below a folder.

    Attributes:
        folder: Folder of runs.
        jobs: Commands that the studio started.
    """

    folder: Path
    jobs: JobStore
    _facts: dict[Path, RunFacts] = field(default_factory=dict)
    _logs: dict[Path, LogFollower] = field(default_factory=dict)

    def entries(self) -> list[RunEntry]:
        """Return all runs and comparisons, the one that changed last first."""
        jobs = self._latest_jobs()
        run_entries = []
        for folder in dict.fromkeys([*self._folders(), *map(Path, jobs)]):
            entry = self._entry(folder, jobs.get(str(folder)))
            if entry is not None:
                run_entries.append(entry)
        return sorted(run_entries, key=lambda entry: entry.changed, reverse=True)

    def entry(self, folder: Path) -> RunEntry | None:
        """Return one run or comparison; None if the folder holds none yet."""
        return self._entry(folder, self.jobs.latest(folder))

    def cells(self, folder: Path) -> list[CellProgress]:
        """Return the runs of a folder: the run itself, or all runs of a comparison."""
        progress = [self._cell(run, run == folder) for run in self._run_folders(folder)]
        return [cell for cell in progress if cell is not None]

    # ---------------------------------------------------------------- reading

    def _folders(self) -> list[Path]:
        """Return the folders of runs and comparisons."""
        try:
            entries = [entry for entry in self.folder.iterdir() if not entry.name.startswith(".")]
        except OSError:
            return []
        return [entry for entry in entries if entry.is_dir()]

    def _latest_jobs(self) -> dict[str, Job]:
        """Return the newest job of each folder."""
        latest: dict[str, Job] = {}
        for job in self.jobs.all():
            latest.setdefault(job.out, job)
        return latest

    def _run_folders(self, folder: Path) -> list[Path]:
        """Return the folders of runs: this one, or `METHOD/seed-N` below it."""
        if RunFolder(folder).has_config():
            return [folder]
        return sorted(path for path in folder.glob("*/seed-*") if RunFolder(path).has_config())

    def _entry(self, folder: Path, job: Job | None) -> RunEntry | None:
        """Describe one folder; None if it holds neither a run nor a job."""
        runs = self._run_folders(folder)
        if not runs and job is None:
            return None
        facts = [self._run_facts(run) for run in runs]
        is_single = runs[:1] == [folder]
        is_finished = bool(runs) and all(item.is_finished for item in facts)
        if not is_single:  # a comparison writes its report when its last run has ended
            is_finished = is_finished and RunFolder(folder).report.is_file()
        state = "stopped"
        if job is not None and job.is_running:
            state = "running"
        elif is_finished:
            state = "finished"
        elif not runs:
            state = "failed"
        labels = [
            _label(run, item.config, is_single) for run, item in zip(runs, facts, strict=True)
        ]
        return RunEntry(
            name=folder.name,
            kind="run" if is_single else "comparison",
            state=state,
            methods=tuple(dict.fromkeys(labels)),
            data=_data_name(facts[0].config) if facts else "",
            score=facts[0].score if is_single else "",
            changed=max([job.time if job else 0.0, *(item.changed / 1e9 for item in facts)]),
        )

    def _run_facts(self, path: Path) -> RunFacts:
        """Read config and final score of a run, again only if its manifest changed."""
        try:
            changed = (path / MANIFEST_FILE).stat().st_mtime_ns
        except OSError:
            return RunFacts(0, {}, False, "")
        known = self._facts.get(path)
        if known is not None and known.changed == changed:
            return known
        facts = RunFacts(changed, {}, False, "")
        folder = RunFolder(path)
        try:
            facts = facts._replace(config=folder.read_config())
            if folder.summary.exists():
                facts = facts._replace(is_finished=True)
                facts = facts._replace(score=_score_text(folder.read_summary().personal))
        except UsageError:  # damaged: the commands say what is wrong
            pass
        self._facts[path] = facts
        return facts

    def _cell(self, path: Path, is_single: bool) -> CellProgress | None:
        """Read the progress of one run; None if its config is damaged or gone."""
        facts = self._run_facts(path)
        if not facts.config:
            return None
        log = self._logs.setdefault(path, RunFolder(path).follow())
        with contextlib.suppress(UsageError, OSError):  # damaged: what came before is shown
            log.poll()
        metric = next((r.personal.metric for r in log.records if r.personal), None) or ""
        return CellProgress(
            method=_label(path, facts.config, is_single),
            seed=_int_or_zero(facts.config.get("seed")),
            rounds_done=len(log.records),
            rounds=_int_or_zero(facts.config.get("rounds")),
            is_finished=facts.is_finished,
            metric=metric,
            personal=_curve(log.records, "personal", metric),
            global_=_curve(log.records, "global", metric),
        )


def _label(path: Path, config: Mapping[str, object], is_single: bool) -> str:
    """Return the method of a run; in a comparison with its model, as in `autopilot@linear`."""
    return str(config.get("method", "?")) if is_single else path.parent.name


def _curve(records: Sequence[RoundRecord], name: str, metric: str) -> tuple[tuple[int, float], ...]:
    """Return the score of each evaluated round, thinned out to `MAX_POINTS`."""
    points = []
    for record in records:
        value = record.evaluation(name).get(metric)
        if value is not None:
            points.append((record.round, float(value)))
    step = max(1, len(points) // MAX_POINTS)
    return tuple(points[::step] + (points[-1:] if step > 1 else []))


def _score_text(scores: Scores) -> str:
    """Return the main score in words; empty if there is none."""
    metric = scores.metric
    if metric is None or scores[metric] is None:
        return ""
    return format_score(metric, scores[metric])


def _data_name(config: Mapping[str, object]) -> str:
    """Return the name of the data file, else that of the task."""
    data = config.get("data")
    return Path(str(data)).name if data else str(config.get("task", ""))


def _int_or_zero(value: object) -> int:
    """Return a whole number; 0 for anything else."""
    return value if isinstance(value, int) else 0
