"""What the pages know of runs and comparisons: they read the folders, and nothing else.

The list of runs reads two small files per run and keeps them until they change, so that a thousand
runs are listed without a delay. Whoever uses a model reads it by the commands, which check files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from equipoise.studio.jobs import Job, JobStore
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
        progress: Finished part of the work, 0 to 1.
        score: Personal score in words; empty if there is none yet.
        changed: Unix time of the last change.
    """

    name: str
    kind: str
    state: str
    methods: tuple[str, ...]
    data: str
    progress: float
    score: str
    changed: float


@dataclass(frozen=True)
class CellProgress:
    """One run, alone or within a comparison.

    Attributes:
        folder: Folder of the run.
        method: Label of the method.
        seed: Seed of the run.
        rounds_done: Rounds that have ended.
        rounds: Rounds that were asked for.
        is_finished: Whether the summary is written.
        metric: Name of the score.
        personal: Mean personal score of each evaluated round, with its round number.
        global_: The same for the global model.
    """

    folder: Path
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


@dataclass
class RunLibrary:
    """Reads runs and comparisons below a folder.

    Attributes:
        folder: Folder of runs.
        jobs: Commands that the studio started.
    """

    folder: Path
    jobs: JobStore
    _files: dict[Path, tuple[int, object]] = field(default_factory=dict)
    _logs: dict[Path, _RoundLog] = field(default_factory=dict)

    def entries(self) -> list[RunEntry]:
        """Return all runs and comparisons, the one that changed last first."""
        jobs = self._latest_jobs()
        found = []
        for folder in dict.fromkeys([*self._folders(), *map(Path, jobs)]):
            entry = self._entry(folder, jobs.get(str(folder)))
            if entry is not None:
                found.append(entry)
        return sorted(found, key=lambda entry: entry.changed, reverse=True)

    def entry(self, folder: Path) -> RunEntry | None:
        """Return one run or comparison; None if the folder holds none yet."""
        return self._entry(folder, self.jobs.latest(folder))

    def cells(self, folder: Path) -> list[CellProgress]:
        """Return the runs of a folder: the run itself, or all runs of a comparison."""
        found = [self._cell(run) for run in self._run_folders(folder)]
        return [cell for cell in found if cell is not None]

    def is_comparison(self, folder: Path) -> bool:
        """Return whether a folder holds several runs."""
        return not (folder / "config.json").is_file() and bool(self._run_folders(folder))

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
        found: dict[str, Job] = {}
        for job in self.jobs.all():
            found.setdefault(job.out, job)
        return found

    def _run_folders(self, folder: Path) -> list[Path]:
        """Return the folders with a config: this one, or `METHOD/seed-N` below it."""
        if (folder / "config.json").is_file():
            return [folder]
        return sorted(file.parent for file in folder.glob("*/seed-*/config.json"))

    def _entry(self, folder: Path, job: Job | None) -> RunEntry | None:
        """Describe one folder; None if it holds neither a run nor a job."""
        runs = self._run_folders(folder)
        if not runs and job is None:
            return None
        is_running = job is not None and job.is_running
        is_single = runs[:1] == [folder]
        result = folder / ("summary.json" if is_single else "table.csv")
        is_finished = result.is_file() and not is_running
        configs = [self._json(run / "config.json") for run in runs]
        methods = dict.fromkeys(str(config.get("method", "?")) for config in configs)
        state = "stopped"
        if is_running:
            state = "running"
        elif is_finished:
            state = "finished"
        elif not runs:
            state = "failed"
        done = sum((run / "summary.json").is_file() for run in runs)
        first = configs[0] if configs else {}
        return RunEntry(
            name=folder.name,
            kind="run" if is_single else "comparison",
            state=state,
            methods=tuple(methods),
            data=_data_name(first),
            progress=1.0 if is_finished else done / max(1, len(runs)),
            score=self._final_score(folder) if is_single else "",
            changed=_changed([result, folder]),
        )

    def _final_score(self, folder: Path) -> str:
        """Return the final personal score of a run in words."""
        personal = self._json(folder / "summary.json").get("personal")
        if not isinstance(personal, Mapping):
            return ""
        metric = self._metric(folder, personal)
        value = personal.get(metric)
        return format_score(metric, value) if isinstance(value, int | float) else ""

    def _metric(self, folder: Path, scores: Mapping[str, object]) -> str:
        """Return the metric that the run asked for, else the first one."""
        asked = str(self._json(folder / "config.json").get("metric") or "")
        return asked if asked in scores else next(iter(scores), "")

    def _cell(self, folder: Path) -> CellProgress | None:
        """Read the progress of one run; None if its config is damaged or gone."""
        config = self._json(folder / "config.json")
        if not config:
            return None
        log = self._logs.setdefault(folder, _RoundLog(folder / "rounds.jsonl"))
        log.read_more()
        metric = self._metric(folder, log.first_scores)
        return CellProgress(
            folder=folder,
            method=str(config.get("method", "?")),
            seed=_whole(config.get("seed")),
            rounds_done=log.rounds,
            rounds=_whole(config.get("rounds")),
            is_finished=(folder / "summary.json").is_file(),
            metric=metric,
            personal=log.curve("personal", metric),
            global_=log.curve("global", metric),
        )

    def _json(self, path: Path) -> Mapping[str, object]:
        """Read a small JSON file, again only if it changed; empty if it is damaged or gone."""
        try:
            changed = path.stat().st_mtime_ns
            known = self._files.get(path)
            if known is None or known[0] != changed:
                known = (changed, json.loads(path.read_text()))
                self._files[path] = known
        except (OSError, ValueError, RecursionError):
            return {}
        return known[1] if isinstance(known[1], dict) else {}


@dataclass
class _RoundLog:
    """The rounds of a run, read as they are written.

    Attributes:
        path: The file `rounds.jsonl`.
        rounds: Rounds read so far.
        first_scores: Personal scores of the first evaluated round.
    """

    path: Path
    rounds: int = 0
    first_scores: Mapping[str, object] = field(default_factory=dict)
    _position: int = 0
    _scores: list[tuple[int, dict[str, Mapping[str, object]]]] = field(default_factory=list)

    def read_more(self) -> None:
        """Read the whole lines that were added; start again if the file was replaced."""
        try:
            size = self.path.stat().st_size
            if size < self._position:
                self._reset()
            if size == self._position:
                return
            with open(self.path, "rb") as file:
                file.seek(self._position)
                text = file.read()
        except OSError:
            self._reset()
            return
        whole = text[: text.rfind(b"\n") + 1]
        self._position += len(whole)
        for line in whole.splitlines():
            self._add(line)

    def curve(self, name: str, metric: str) -> tuple[tuple[int, float], ...]:
        """Return the score of each evaluated round, thinned out to `MAX_POINTS`."""
        points = []
        for round, scores in self._scores:
            value = scores.get(name, {}).get(metric)
            if isinstance(value, int | float):
                points.append((round, float(value)))
        step = max(1, len(points) // MAX_POINTS)
        return tuple(points[::step] + (points[-1:] if step > 1 else []))

    def _reset(self) -> None:
        self.rounds = 0
        self.first_scores = {}
        self._position = 0
        self._scores = []

    def _add(self, line: bytes) -> None:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            return
        if not isinstance(record, dict):
            return
        self.rounds = _whole(record.get("round")) or self.rounds + 1
        scores = {
            name: record[name]
            for name in ("personal", "global")
            if isinstance(record.get(name), dict)
        }
        if scores:
            self._scores.append((self.rounds, scores))
            self.first_scores = self.first_scores or scores.get("personal", {})


def _data_name(config: Mapping[str, object]) -> str:
    """Return the name of the data file, else that of the task."""
    data = config.get("data")
    return Path(str(data)).name if data else str(config.get("task", ""))


def _whole(value: object) -> int:
    """Return a whole number; 0 for anything else."""
    return value if isinstance(value, int) else 0


def _changed(paths: list[Path]) -> float:
    """Return the time of the last change of the files that exist."""
    times = [0.0]
    for path in paths:
        try:
            times.append(path.stat().st_mtime)
        except OSError:
            continue
    return max(times)
