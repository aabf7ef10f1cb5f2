"""The verdict on a run or a comparison: which model each site should use, and how sure we are.

All models are scored on the same rows. The choice is made on validation rows; the test rows then
say what it is worth. A difference whose interval contains 0 is a tie, and is called one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

from equipoise.data.federated_dataset import Target
from equipoise.experiment.model_card import read_card
from equipoise.experiment.row_outputs import (
    CONSTANT,
    GLOBAL,
    LOCAL,
    MODELS,
    PERSONAL,
    USED,
    ResampledScores,
    RowOutputs,
    concatenate,
    is_clear,
    is_clearly_lower,
    mean_losses,
    only_class,
    resample,
    site_scores,
)
from equipoise.records import codec
from equipoise.records.decision import Candidate, Decision, Estimate, SiteDecision
from equipoise.records.manifest import CheckedFolder
from equipoise.records.run_dir import ComparisonFolder, RunFolder
from equipoise.records.summary import validation_score
from equipoise.report import html
from equipoise.report.run_data import find_run_folders
from equipoise.training.objectives import objective_of
from equipoise.utils import io
from equipoise.utils.errors import DamagedFile
from equipoise.utils.metrics import (
    format_score,
    higher_is_better,
    metric_info,
)

MIN_TEST_ROWS = 10  # a site with fewer is not judged by itself
MUCH_OF_A_SHARE = 0.03  # seeds whose scores differ by more differ much
MUCH_OF_A_NUMBER = 0.05  # the same of errors, relative to their mean
SMOOTHED_EVALUATIONS = 5  # validation scores in the moving average that chooses rounds
ROUND_TOLERANCE = 0.005  # validation losses that differ by less, relatively, are equal
MIN_FINAL_ROUNDS = 30  # of the final model, see final_rounds
MAX_LISTED_SITES = 8
RANKING_METRICS = ("auc", "average_precision")  # a model of one class can be good at them
MODEL_WORDS = {
    PERSONAL: "personal models",
    GLOBAL: "global model",
    LOCAL: "each site's own model",
    CONSTANT: "a constant",
    USED: "models chosen site by site",
}


@dataclass(frozen=True)
class Entry:
    """One candidate: which outputs are its own, and what people call it."""

    key: str
    """Its name among the outputs."""
    method: str
    model: str

    @property
    def label(self) -> str:
        """Its name for people."""
        words = MODEL_WORDS[self.model]
        return f"{self.method}, {words}" if self.method else words


@dataclass(frozen=True)
class Evidence:
    """Everything that a verdict rests on."""

    target: Target
    metric: str
    test: list[RowOutputs]
    """One for each seed."""
    val: list[RowOutputs]
    entries: list[Entry]
    train_rows: Mapping[str, int]
    """Training rows of each site."""
    folds: int = 0
    source: str = "test rows"
    """Where the rows come from, in words."""
    site_models: Mapping[str, str] | None = None
    """Kind of model that each site uses, if that was decided before."""


# ------------------------------------------------------------------ from folders


def conclude(path: Path) -> str:
    """Write the decision and the report of what has just ended.

    Args:
        path: Folder of a run or a comparison.

    Returns:
        One line that names the report, or says why there is none.
    """
    try:
        write_decision(path)
    except DamagedFile:
        raise
    except Exception as error:  # a verdict never fails a run
        return f"no decision: {type(error).__name__}: {error}; {html.try_write_report(path)}"
    return html.try_write_report(path)


def write_decision(path: Path) -> Decision | None:
    """Decide about the models of a run or a comparison and write ``decision.json``.

    Args:
        path: Folder of a run or a comparison.

    Returns:
        The decision; None if the clients have no names or no test rows, or if the methods were
        not tested on the same rows.

    Raises:
        UsageError: If another process holds the lock of the folder.
    """
    evidence = read_evidence(path)
    if evidence is None:
        return None
    decision = decide(evidence)
    notes = [*_interruption(path), *decision.notes]
    decision = replace(decision, rounds=final_rounds(path, decision), notes=notes)
    with io.locked(path):
        CheckedFolder(path).decision.write(codec.dumps(decision, indent=1))
    return decision


def _interruption(path: Path) -> list[str]:
    """Say which methods of an interrupted comparison lack runs."""
    folder = ComparisonFolder(path)
    if not folder.comparison.exists():
        return []
    summaries = folder.read().summaries
    most = max((len(own) for own in summaries.values()), default=0)
    missing = [label for label, own in summaries.items() if len(own) < most]
    if not missing:
        return []
    return [
        f"The comparison was interrupted: runs of {', '.join(missing)} are missing. "
        f"'equipoise resume {path}' finishes it."
    ]


def read_decision(path: Path) -> Decision | None:
    """Read ``decision.json`` of a folder; None if there is none.

    Raises:
        UsageError: If the file is damaged.
    """
    file = CheckedFolder(path).decision
    return codec.loads(Decision, file.read_text(), file) if file.exists() else None


def runs_by_method(path: Path) -> dict[str, list[RunFolder]]:
    """List the finished runs of a folder by the label of their method.

    Args:
        path: Folder of a run or a comparison.

    Returns:
        The runs, ordered by seed and fold.
    """
    folder = RunFolder(path)
    if folder.has_config():
        return {_method_of(folder): [folder]} if folder.summary.exists() else {}
    found: dict[str, list[RunFolder]] = {}
    for folder in map(RunFolder, find_run_folders(path)):
        parts = folder.path.relative_to(path).parts
        if len(parts) == 2 and folder.summary.exists():
            found.setdefault(parts[0], []).append(folder)
    return found


def read_evidence(path: Path) -> Evidence | None:
    """Read what the models of a run or a comparison say about the clients' rows.

    Args:
        path: Folder of a run or a comparison.

    Returns:
        The evidence; None if there is none, see :func:`write_decision`.
    """
    by_method = {
        label: [run for run in runs if run.outputs("test").exists()]
        for label, runs in runs_by_method(path).items()
    }
    by_method = {label: runs for label, runs in by_method.items() if runs}
    if not by_method:
        return None
    first = next(iter(by_method.values()))[0]
    card = read_card(first)
    if card is None:
        return None
    entries: list[Entry] = []
    parts: dict[str, list[dict[int, RowOutputs]]] = {"test": [], "val": []}
    has_own = any(_method_of(runs[0]) == LOCAL for runs in by_method.values())
    for number, (label, runs) in enumerate(by_method.items()):
        names = _names_of_models(label, _method_of(runs[0]), number == 0, has_own)
        by_seed = _outputs_by_seed(runs, "test", names)
        parts["test"].append(by_seed)
        parts["val"].append(_outputs_by_seed(runs, "val", names))
        available = next(iter(by_seed.values())).outputs
        entries += [
            Entry(key, label if "|" in key else "", model)
            for model, key in names.items()
            if key in available
        ]
    test = _joined(parts["test"])
    if test is None:
        return None
    config = first.read_config()
    return Evidence(
        target=card.target,
        metric=first.read_summary().trained.metric or "acc",
        test=test,
        val=_joined(parts["val"]) or [],
        entries=[replace(entry, model=LOCAL) if entry.key == LOCAL else entry for entry in entries],
        train_rows=_train_rows(first),
        folds=int(config.get("folds", 0)),
    )


def _method_of(run: RunFolder) -> str:
    return str(run.read_config()["method"])


def _names_of_models(label: str, method: str, is_first: bool, has_own: bool) -> dict[str, str]:
    """Name a method's models among all candidates; the local method is each site's own model."""
    if method == LOCAL:
        names = {PERSONAL: LOCAL}
    else:
        names = {PERSONAL: f"{label}|{PERSONAL}", GLOBAL: f"{label}|{GLOBAL}"}
        if not has_own:
            names[LOCAL] = LOCAL
    if is_first:
        names[CONSTANT] = CONSTANT
    return names


def _outputs_by_seed(
    runs: Sequence[RunFolder], split: str, names: Mapping[str, str]
) -> dict[int, RowOutputs]:
    """Read the outputs of a method's runs; the folds of a seed are joined."""
    by_seed: dict[int, list[RowOutputs]] = {}
    for run in runs:
        card = read_card(run)
        if card is None or not run.outputs(split).exists():
            continue
        sites = tuple(run.read_names().values()) or card.clients
        rows = RowOutputs.from_tensors(run.outputs(split).read_tensors(), sites).rename(names)
        config = run.read_config()
        if config.get("folds") and card.target.kind == "survival":
            rows = rows.centred_by_site()
        by_seed.setdefault(int(config["seed"]), []).append(rows)
    return {seed: concatenate(parts) for seed, parts in by_seed.items()}


def _joined(methods: Sequence[Mapping[int, RowOutputs]]) -> list[RowOutputs] | None:
    """Join the outputs of all methods, seed by seed; None if they are about different rows."""
    seeds = set(methods[0]).intersection(*methods)
    joined = []
    for seed in sorted(seeds):
        rows = methods[0][seed]
        for other in methods[1:]:
            if not rows.has_rows_of(other[seed]):
                return None
            rows = rows.with_models_of(other[seed])
        joined.append(rows)
    return joined or None


def _train_rows(run: RunFolder) -> dict[str, int]:
    """Return the training rows of each site."""
    names = run.read_names()
    table = run.read_table(run.clients)
    counts = table.get("samples", [])
    return {
        names[int(client)]: int(count)
        for client, count in zip(table.get("client", []), counts, strict=False)
        if int(client) in names
    }


def final_rounds(path: Path, decision: Decision) -> int:
    """Choose the rounds of the final model on validation rows.

    It is the last round whose validation loss, smoothed and averaged over seeds, is as good as
    the best one, and at least ``MIN_FINAL_ROUNDS`` if the runs were allowed as many: the rates of
    the final model follow no validation rows, and need some rounds to fall.

    Args:
        path: Folder of the run or the comparison.
        decision: The decision, which names the method.

    Returns:
        The number of rounds.
    """
    by_method = runs_by_method(path)
    runs = by_method.get(decision.federated_method) or next(iter(by_method.values()))
    curves = [_validation_curve(run, decision.metric) for run in runs]
    common = set(curves[0]).intersection(*curves)
    if not common:
        return int(median(run.read_summary().rounds for run in runs))
    rounds = sorted(common)
    means = [fmean(curve[t] for curve in curves) for t in rounds]
    smooth = [fmean(means[max(0, i - SMOOTHED_EVALUATIONS + 1) : i + 1]) for i in range(len(means))]
    worst_accepted = max(smooth) - ROUND_TOLERANCE * abs(max(smooth))
    good = [t for t, value in zip(rounds, smooth, strict=True) if value >= worst_accepted]
    allowed = min(int(run.read_config()["rounds"]) for run in runs)
    return max(good[-1], min(allowed, MIN_FINAL_ROUNDS))


def _validation_curve(run: RunFolder, metric: str) -> dict[int, float]:
    """Return the validation score of a run by round; higher is better.

    The loss decides, as it does about patience: on few rows another score jumps to its best by
    chance in an early round. The metric decides where there is no loss.
    """
    records = list(run.stream())
    for name in ("loss", metric):
        higher = higher_is_better(name)
        scores = {record.round: validation_score(record, name, higher) for record in records}
        curve = {t: score for t, score in scores.items() if score is not None}
        if curve:
            return curve
    return {}


# ------------------------------------------------------------------ the decision


def decide(evidence: Evidence) -> Decision:
    """Choose a model on validation rows, and judge it on test rows.

    Args:
        evidence: Outputs of all candidates.

    Returns:
        The decision.
    """
    scores = resample(evidence.test, evidence.target, evidence.metric)
    validation = {entry.key: _validation(evidence, entry) for entry in evidence.entries}
    chosen = _best_by_validation(evidence)
    is_switched = False
    ahead = _clearly_ahead(evidence, scores, chosen)
    if ahead is not None:
        chosen = ahead
        is_switched = True
    decision = judge(evidence, scores, chosen, validation)
    notes = list(decision.notes)
    if is_switched:
        notes.insert(
            0,
            "The validation rows alone do not show this one ahead, but the test rows do; its score "
            "is therefore slightly optimistic.",
        )
    return replace(decision, notes=notes)


def _validation(evidence: Evidence, entry: Entry) -> float | None:
    """Return the mean over seeds of a candidate's score on validation rows."""
    values = []
    for rows in evidence.val:
        if entry.key not in rows.outputs:
            return None
        values.append(_weighted_score(evidence, rows, entry.key))
    known = [value for value in values if math.isfinite(value)]
    return fmean(known) if known else None


def _weighted_score(
    evidence: Evidence, rows: RowOutputs, key: str, sites: NDArray[np.bool_] | None = None
) -> float:
    """Return the mean over sites in which every row counts alike; NaN if no site has a score."""
    values = site_scores(rows, objective_of(evidence.target), key, evidence.metric).numpy()
    counts = np.bincount(rows.site, minlength=len(rows.sites))
    counted = np.isfinite(values)
    if sites is not None:
        counted &= sites
    if not counted.any():
        return math.nan
    return float(np.average(values[counted], weights=counts[counted]))


def _best_by_validation(evidence: Evidence) -> Entry:
    """Return the first candidate that no other one clearly beats on validation rows.

    Another one beats it if it is better by more than one standard error in the losses of rows and
    in the score. Validation rows are few: of candidates that they do not tell apart, the best one
    is so by chance (Breiman et al., 1984). The score alone is mostly chance at sites with a few
    rows; the loss alone prefers models that know the level of each site, though an AUC is no
    better for it. Without validation rows it is the first candidate.
    """
    candidates = in_order_of_preference(evidence.entries)
    losses = mean_losses(evidence.val, evidence.target, [entry.key for entry in candidates])
    if not losses:
        return candidates[0]
    scores = resample(evidence.val, evidence.target, evidence.metric)
    sign = 1 if higher_is_better(evidence.metric) else -1
    return next(
        entry
        for entry in candidates
        if entry.key in losses
        and not any(
            is_clearly_lower(losses[other], losses[entry.key])
            and _is_clearly_ahead(scores, other, entry.key, sign)
            for other in losses
        )
    )


def _is_clearly_ahead(scores: ResampledScores, model: str, other: str, sign: int) -> bool:
    """Tell whether a model's score is better than another's by more than one standard error.

    Where no site has a score of both, the losses decide alone.
    """
    sites = scores.known_sites([model, other])
    if not sites.any():
        return True
    lead = sign * scores.difference(model, other, sites, weighted=True).value
    return is_clear(lead, scores.standard_error(model, other, sites))


def in_order_of_preference(entries: Sequence[Entry]) -> list[Entry]:
    """Order the candidates: methods as they were named, of each the global model first.

    Each site's own model is last, wherever it was named: where nothing speaks against it, sites
    learn together. A constant is no candidate.
    """
    methods = list(dict.fromkeys(entry.method for entry in entries if entry.method))
    candidates = [entry for entry in entries if entry.model != CONSTANT]

    def place(entry: Entry) -> tuple[int, int]:
        method = methods.index(entry.method) if entry.method else len(methods)
        return method, MODELS.index(entry.model)

    return sorted(candidates, key=place)


def _clearly_ahead(evidence: Evidence, scores: ResampledScores, chosen: Entry) -> Entry | None:
    """Return the best candidate that is clearly ahead on the test rows, if there is one."""
    known = scores.known_sites([entry.key for entry in evidence.entries])
    if not known.any():
        return None
    sign = 1 if higher_is_better(evidence.metric) else -1
    found: list[tuple[float, Entry]] = []
    for entry in evidence.entries:
        if entry.model == CONSTANT or entry.key == chosen.key:
            continue
        difference = scores.difference(entry.key, chosen.key, known, weighted=True)
        score = scores.mean(chosen.key, known, weighted=True).value
        is_tie = difference.is_tie(evidence.metric, score)
        if not is_tie and sign * difference.value > 0:
            found.append((sign * difference.value, entry))
    return max(found, key=lambda pair: pair[0])[1] if found else None


def judge(
    evidence: Evidence,
    scores: ResampledScores,
    chosen: Entry,
    validation: Mapping[str, float | None] | None = None,
) -> Decision:
    """Judge one candidate against all others on the same rows.

    Args:
        evidence: Outputs of all candidates.
        scores: Their scores on the rows.
        chosen: The candidate to judge.
        validation: Scores on validation rows by key.

    Returns:
        The decision.
    """
    candidates = _candidates(evidence, scores, chosen, validation or {})
    method = chosen.method or next((one.method for one in candidates if one.method), "")
    sites = _sites(evidence, scores, chosen, method)
    decision = Decision(
        metric=evidence.metric,
        higher_is_better=higher_is_better(evidence.metric),
        method=chosen.method,
        model=chosen.model,
        seeds=len(evidence.test),
        folds=evidence.folds,
        headline="",
        notes=[],
        candidates=candidates,
        sites=sites,
        rounds=0,
    )
    headline = _headline(decision)
    return replace(decision, headline=headline, notes=_notes(decision, evidence))


def _candidates(
    evidence: Evidence,
    scores: ResampledScores,
    chosen: Entry,
    validation: Mapping[str, float | None],
) -> list[Candidate]:
    """Score all candidates on the sites where all of them have a score."""
    entries = [
        entry for entry in evidence.entries if np.isfinite(scores.scores[entry.key][0]).any()
    ]
    known = scores.known_sites([entry.key for entry in entries]) if entries else np.zeros(0, bool)
    found = []
    for entry in entries:
        difference = None
        verdict = "chosen"
        if entry.key != chosen.key:
            difference = scores.difference(entry.key, chosen.key, known, weighted=True)
            score = scores.mean(entry.key, known, weighted=True).value
            verdict = _verdict(difference, evidence.metric, score)
        found.append(
            Candidate(
                label=entry.label,
                method=entry.method,
                model=entry.model,
                weighted=scores.mean(entry.key, known, weighted=True),
                unweighted=scores.mean(entry.key, known, weighted=False),
                difference=difference,
                verdict=verdict,
                validation=validation.get(entry.key),
                seeds=_scores_by_seed(evidence, entry, known),
                one_class=_one_class(evidence, entry),
            )
        )
    sign = -1 if higher_is_better(evidence.metric) else 1
    baselines_last = {CONSTANT: 1}
    return sorted(
        found,
        key=lambda one: (
            one.verdict != "chosen",
            baselines_last.get(one.model, 0),
            sign * one.weighted.value,
        ),
    )


def _scores_by_seed(evidence: Evidence, entry: Entry, known: NDArray[np.bool_]) -> list[float]:
    """Return the weighted mean over sites with each seed."""
    scores = [_weighted_score(evidence, rows, entry.key, known) for rows in evidence.test]
    return [score for score in scores if math.isfinite(score)]


def _one_class(evidence: Evidence, entry: Entry) -> str:
    """Return the class that a candidate predicts for every row with every seed."""
    if entry.model == CONSTANT:
        return ""
    found = {only_class(rows, evidence.target, entry.key) for rows in evidence.test}
    return found.pop() if len(found) == 1 else ""


def _verdict(difference: Estimate, metric: str, score: float) -> str:
    """Return ``tie``, ``ahead`` or ``behind``."""
    if difference.is_tie(metric, score):
        return "tie"
    return "ahead" if (difference.value > 0) == higher_is_better(metric) else "behind"


def _sites(
    evidence: Evidence, scores: ResampledScores, chosen: Entry, method: str
) -> list[SiteDecision]:
    """Score the models of each site; a site keeps the common choice unless another is clear.

    Args:
        evidence: Outputs of all candidates.
        scores: Their scores.
        chosen: The common choice.
        method: Method whose global and personal models are shown.
    """
    keys = {LOCAL: LOCAL, CONSTANT: CONSTANT}
    for entry in evidence.entries:
        if entry.method and entry.method == method:
            keys[entry.model] = entry.key
    keys = {model: keys[model] for model in MODELS if keys.get(model) in scores.scores}
    higher = higher_is_better(evidence.metric)
    found = []
    for site, name in enumerate(scores.sites):
        num_rows = int(scores.num_rows[site])
        model = _model_of_site(evidence, scores, keys, chosen, site)
        gain = Estimate(math.nan)
        rival = model
        if model == LOCAL:  # what the best federated method would give this site
            rival = PERSONAL if PERSONAL in keys else GLOBAL
        own_score = math.nan
        if LOCAL in keys and rival in keys:
            own_score = scores.at_site(LOCAL, site).value
            pair = (keys[rival], LOCAL) if higher else (LOCAL, keys[rival])
            gain = scores.site_difference(*pair, site)
        found.append(
            SiteDecision(
                name=name,
                train_rows=evidence.train_rows.get(name),
                test_rows=num_rows,
                model=model,
                scores={one: scores.at_site(key, site) for one, key in keys.items()},
                gain=gain,
                verdict=site_verdict(
                    gain, num_rows, evidence.metric, own_score, has_own=LOCAL in keys
                ),
            )
        )
    return found


def _model_of_site(
    evidence: Evidence,
    scores: ResampledScores,
    keys: Mapping[str, str],
    chosen: Entry,
    site: int,
) -> str:
    """Return the kind of model that a site should use."""
    if evidence.site_models is not None:
        return evidence.site_models[scores.sites[site]]
    usable = [model for model, key in keys.items() if np.isfinite(scores.scores[key][0, site])]
    if chosen.model == LOCAL or not usable:
        return chosen.model
    if chosen.model not in usable and GLOBAL in usable:
        return GLOBAL
    if chosen.model not in usable or int(scores.num_rows[site]) < MIN_TEST_ROWS:
        return chosen.model
    if len(evidence.test) < 2 and not evidence.folds:
        return chosen.model  # a difference between two trainings, which another seed may reverse
    sign = 1 if higher_is_better(evidence.metric) else -1
    num_comparisons = max(1, len(scores.sites) * (len(usable) - 1))
    best = (0.0, chosen.model)
    for model in usable:
        if model in (chosen.model, CONSTANT):
            continue
        found = scores.site_difference(keys[model], chosen.key, site, max(2, num_comparisons))
        score = scores.at_site(chosen.key, site).value
        is_clear = not found.is_tie(evidence.metric, score) and _holds_in_every_seed(
            evidence, keys[model], chosen.key, site, sign
        )
        if is_clear and sign * found.value > best[0]:
            best = (sign * found.value, model)
    return best[1]


def _holds_in_every_seed(evidence: Evidence, key: str, other: str, site: int, sign: int) -> bool:
    """Tell whether a model is better than another at a site with every seed that scores both."""
    objective = objective_of(evidence.target)
    differences = [
        float(
            site_scores(rows, objective, key, evidence.metric)[site]
            - site_scores(rows, objective, other, evidence.metric)[site]
        )
        for rows in evidence.test
    ]
    return all(sign * value > 0 for value in differences if math.isfinite(value))


def site_verdict(gain: Estimate, num_rows: int, metric: str, score: float, has_own: bool) -> str:
    """Say in words what a site gains over its own model.

    Args:
        gain: Paired gain over the site's own model; positive is better.
        num_rows: Rows of the site that both models were tested on.
        metric: The score.
        score: Score of one of the two models.
        has_own: Whether there is an own model.

    Returns:
        `better`, `worse`, `tie`, why there is no verdict, or nothing without an own model.
    """
    if num_rows == 0:
        return "no test rows"
    if not has_own:
        return ""
    if num_rows < MIN_TEST_ROWS:
        return "too few rows to judge"
    if not math.isfinite(gain.value):
        return f"{metric} has no value"
    if gain.is_tie(metric, score):
        return "tie"
    return "better" if gain.value > 0 else "worse"


# ------------------------------------------------------------------ words


def _headline(decision: Decision) -> str:
    """Write the verdict in one or two sentences."""
    metric = decision.metric
    chosen = next((one for one in decision.candidates if one.verdict == "chosen"), None)
    if chosen is None or not math.isfinite(chosen.weighted.value):
        condition = metric_info(metric).undefined_if or "its value is not a finite number"
        return f"Nothing can be said: {metric} has no value at any site ({condition})."
    score = f"{metric} {chosen.weighted.score_text(metric)}"
    own = next((one for one in decision.candidates if one.model == LOCAL), None)
    if chosen.model == LOCAL:
        best = next((one for one in decision.candidates if one.method), None)
        if best is None or best.difference is None:
            return f"Each site's own model: {score}."
        if best.verdict == "tie":
            return (
                f"Each site may keep its own model ({score}): the best federated one, "
                f"{best.label}, ties with it ({_difference_text(metric, best)})."
            )
        return (
            f"Each site should keep its own model ({score}): the best federated one, "
            f"{best.label}, is behind by {_size_text(metric, best)}."
        )
    if own is None or own.difference is None:
        return f"Use {chosen.label}: {score}."
    words = own.difference.reversed.difference_text(metric, own.weighted.value)
    size = _size_text(metric, own)
    if own.verdict == "tie":
        return (
            f"Use {chosen.label} ({score}), or keep each site's own model: they tie, the "
            f"difference is {words}."
        )
    if own.verdict == "behind":
        return f"Use {chosen.label} ({score}): better than each site's own model by {size}."
    return f"Keep each site's own model: {chosen.label} ({score}) is behind it by {size}."


def _difference_text(metric: str, rival: Candidate) -> str:
    """Write how far a rival is from the chosen candidate."""
    return (
        rival.difference.difference_text(metric, rival.weighted.value) if rival.difference else ""
    )


def _size_text(metric: str, rival: Candidate) -> str:
    """Write how large a clear difference is, without its sign, which the words give."""
    difference = rival.difference or Estimate(math.nan)
    positive = difference if difference.value > 0 else difference.reversed
    return positive.difference_text(metric, rival.weighted.value).replace("+", "")


def _notes(decision: Decision, evidence: Evidence) -> list[str]:
    """Write what else a reader must know before using the models."""
    metric = decision.metric
    notes = []
    rivals = [one for one in decision.candidates if one.method and one.verdict != "chosen"]
    ties = [one.label for one in rivals if one.verdict == "tie"]
    if ties:
        notes.append(f"Ties with it: {'; '.join(ties)}.")
    ahead = [
        f"{one.label} ({_difference_text(metric, one)})" for one in rivals if one.verdict == "ahead"
    ]
    if ahead:
        notes.append(f"Ahead of it on these rows: {'; '.join(ahead)}.")
    behind = [
        f"{one.label} ({_difference_text(metric, one)})"
        for one in rivals
        if one.verdict == "behind"
    ]
    if behind:
        notes.append(f"Behind it: {'; '.join(behind)}.")
    constant = next((one for one in decision.candidates if one.model == CONSTANT), None)
    if constant is not None and constant.verdict in ("tie", "ahead"):
        advice = ""
        if metric == "acc" and len(evidence.target.classes) == 2:
            advice = " Compare by --metric auc to see whether it puts rows in the right order."
        notes.append(f"It is no better than a constant prediction.{advice}")
    ranks = metric in RANKING_METRICS
    aside = (
        f"; {metric} scores the order of its probabilities" if ranks else ", as a constant would"
    )
    notes += [
        f"{one.label}: predicts '{one.one_class}' for every row{aside}."
        for one in decision.candidates
        if one.one_class
    ]
    others = [f"{site.name} ({MODEL_WORDS[site.model]})" for site in _exceptions(decision)]
    if others:
        notes.append(f"Another model is clearly better at {_some(others)}.")
    notes += _site_notes(decision)
    notes += _seed_notes(decision)
    rows = sum(site.test_rows for site in decision.sites)
    lower = "" if decision.higher_is_better else f"; a lower {metric} is better"
    notes.append(
        f"Scores are of {rows:,} {evidence.source} of {_sites_text(len(decision.sites))}"
        f"{_how_tested(decision)}; every row counts alike; intervals are 95 %, over rows{lower}."
    )
    return notes


def _sites_text(count: int) -> str:
    return "1 site" if count == 1 else f"{count} sites"


def _exceptions(decision: Decision) -> list[SiteDecision]:
    """Return the sites that should use another model than the common choice."""
    return [
        site
        for site in decision.sites
        if decision.model != USED
        and site.model != decision.model
        and math.isfinite(site.scores[site.model].value)
        and decision.model in site.scores
        and math.isfinite(site.scores[decision.model].value)
    ]


def _how_tested(decision: Decision) -> str:
    if decision.folds:
        return f", each row tested once by {decision.folds}-fold cross-validation"
    if decision.seeds > 1:
        return f", in {decision.seeds} random splits"
    return ""


def _site_notes(decision: Decision) -> list[str]:
    """Count the sites whose score is undefined, and those with too few rows."""
    notes = []
    undefined = [
        site.name
        for site in decision.sites
        if site.test_rows and not any(math.isfinite(one.value) for one in site.scores.values())
    ]
    if undefined:
        condition = metric_info(decision.metric).undefined_if or "its value is not finite"
        notes.append(
            f"{decision.metric} has no value at {len(undefined)} of {len(decision.sites)} sites "
            f"({condition}): {_some(undefined)}. They are not in the means."
        )
    tiny = [site.name for site in decision.sites if site.test_rows < MIN_TEST_ROWS]
    if tiny:
        notes.append(
            f"{len(tiny)} of {len(decision.sites)} sites have fewer than {MIN_TEST_ROWS} test "
            f"rows and are not judged by themselves: {_some(tiny)}."
        )
    return notes


def _seed_notes(decision: Decision) -> list[str]:
    """Say that the seeds differ much, if they do."""
    chosen = next((one for one in decision.candidates if one.verdict == "chosen"), None)
    if chosen is None or len(chosen.seeds) < 2 or not seeds_differ(decision.metric, chosen.seeds):
        return []
    low = format_score(decision.metric, min(chosen.seeds))
    high = format_score(decision.metric, max(chosen.seeds))
    return [
        f"The {len(chosen.seeds)} seeds differ much: {decision.metric} from {low} to {high}. "
        "'equipoise choose --ensemble' averages a model of each seed."
    ]


def seeds_differ(metric: str, scores: Sequence[float]) -> bool:
    """Tell whether the scores of the seeds differ much."""
    spread = max(scores) - min(scores)
    if math.isfinite(metric_info(metric).highest):
        return spread > MUCH_OF_A_SHARE
    return spread > MUCH_OF_A_NUMBER * abs(fmean(scores))


def _some(names: Sequence[str]) -> str:
    """List names; of many, the first ones."""
    shown = ", ".join(names[:MAX_LISTED_SITES])
    rest = len(names) - MAX_LISTED_SITES
    return f"{shown} and {rest} more" if rest > 0 else shown
