"""Tables, figures and tuned settings of the study deep_rl."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import fsum
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.lab import Record, Results
from benchmarks.lab.plots import Series, drawing, lines
from benchmarks.lab.tables import spread, table

MAIN = ("dqn", "dqnavg", "perdqnavg", "pfeddqn-rep")
COLOURS = {"dqn": "#7F7F7F", "dqnavg": "#0072B2", "perdqnavg": "#009E73", "pfeddqn-rep": "#D55E00"}
OFFERED = {
    "dqn": "nothing: DQN from scratch",
    "dqnavg": "the whole net, tuned on",
    "perdqnavg": "the whole net, frozen; the embedding is learned",
    "pfeddqn-rep": "the body, frozen; the head is learned",
}
TUNED = {"cartpole": "CartPole", "acrobot": "Acrobot"}
Setting = dict[str, float]
RATES: tuple[Setting, ...] = ({}, {"lr": 5e-4}, {"lr": 2e-3})  # the task's own settings come first
ELSE: dict[str, tuple[Setting, ...]] = {
    "cartpole": ({"target_rate": 0.05}, {"slow_after": 0}),
    "acrobot": ({"target_rate": 0.03},),
}
RHYTHMS: dict[str, tuple[Setting, ...]] = {  # what pfeddqn-rep has and the others have not
    "cartpole": ({"body_rate": 0.3}, {"head_steps": 1}),
    "acrobot": ({"body_rate": 0.3},),
}


def settings_of(task: str, method: str) -> dict[str, Setting]:
    """As many for every method, by their words: three rates, and one or two of what matters most to it beside."""
    tried = (*RATES, *(RHYTHMS if method == "pfeddqn-rep" else ELSE)[task])
    return {", ".join(f"{name} {value:g}" for name, value in one.items()) or "as it is": one for one in tried}


def score(curve: Sequence[dict[str, float]]) -> float:
    """Mean return over the second half of the evaluations: less noisy than the end alone."""
    return fmean(point["mean"] for point in curve[len(curve) // 2 :])


def tried(results: Results, task: str, method: str) -> dict[str, float]:
    """The mean score of each setting over the tuning seeds, of those that are finished."""
    found = {
        words: results.where(stage="tuning", task=task, method=method, setting=words)
        for words in settings_of(task, method)
    }
    return {words: fmean(r["score"] for r in records) for words, records in found.items() if len(records) == 2}


def chosen(results: Results) -> dict[tuple[str, str], Setting]:
    """The best setting of each task and method whose tuning is finished."""
    best = {}
    for task in TUNED:
        for method in MAIN:
            scores, settings = tried(results, task, method), settings_of(task, method)
            if len(scores) == len(settings):
                best[task, method] = settings[max(scores, key=scores.__getitem__)]
    return best


def tuning(results: Results) -> list[str]:
    rows, best = [], chosen(results)
    for task, title in TUNED.items():
        for method in MAIN:
            settings = settings_of(task, method)
            words = [f"{words}: {value:.0f}" for words, value in tried(results, task, method).items()]
            marks = ["**" * (setting == best[task, method]) for setting in settings.values()]
            rows.append([title, method, "; ".join(f"{m}{w}{m}" for m, w in zip(marks, words, strict=True))])
    return table(["task", "method", "settings tried: mean return"], rows)


def returns(task: str, *variants: str) -> Callable[[Results], list[str]]:
    head = ("", "last", "received", "area", "worst", "spread over agents", "MB up", "seeds")

    def made(results: Results) -> list[str]:
        rows: list[list[Any]] = []
        for variant in variants:
            own = results.where(task=task, variant=variant)
            if own:
                curves = [r["curve"] for r in own]
                last, received = (
                    spread([fmean(p[name] for p in curve[-3:]) for curve in curves], 0) for name in ("mean", "received")
                )
                area = spread([fmean(p["mean"] for p in curve) for curve in curves], 0)
                worst, apart = spread([min(r["agents"]) for r in own], 0), fmean(curve[-1]["std"] for curve in curves)
                sent = fmean(r["bytes"]["up"] for r in own) / 1e6
                rows.append([variant, last, received, area, worst, f"{apart:.0f}", f"{sent:.1f}", len(own)])
        return table(head, rows)

    return made


def size(task: str) -> Callable[[Results], list[str]]:
    def made(results: Results) -> list[str]:
        own = [r for r in results.where(task=task) if "variant" in r.axes]
        one = next(r for r in own if r["variant"] in MAIN)
        seeds, rounds, epochs = sorted({str(r["seed"]) for r in own}), one["rounds"], one["epochs"]
        spent = fsum(r.result.get("cpu_seconds", r.seconds or 0.0) for r in own)
        return [
            f"{rounds} rounds of {epochs} steps: {int(one['curve'][-1]['steps']):,} environment steps and "
            f"{rounds * epochs:,} gradient steps of each agent. Seeds {', '.join(seeds)}; {spent:.0f} CPU seconds."
        ]

    return made


def parts(results: Results) -> list[str]:
    """What FedPolicy gave."""
    found = {p: results.where(task="cartpole", variant=f"fedpolicy {p}") for p in ("dqn", "learned", "random")}
    rows = []
    for policy, own in found.items():
        shares = {part: fmean(r["parts"][part] for r in own) for part in own[0]["parts"]} if own else {}
        rows.append([f"fedpolicy {policy}", *(f"{100 * shares[part]:.0f} %" for part in shares)])
    return table(["gave", "full", "backbone", "head"], rows)


def newcomers(task: str) -> Callable[[Results], list[str]]:
    def made(results: Results) -> list[str]:
        rows: list[list[Any]] = []
        marks: list[str] = []
        for variant in MAIN:
            own = [r["newcomers"] for r in results.where(task=task, variant=variant) if "newcomers" in r.result]
            if own:
                marks = list(own[0])
                figures = [spread([fmean(each[mark]) for each in own], 0) for mark in marks]
                rows.append([variant, OFFERED[variant], *figures, len(own)])
        return table(["from", "a newcomer gets", *(f"{int(mark):,} steps" for mark in marks), "seeds"], rows)

    return made


def over_seeds(own: Sequence[Record], variant: str, key: str) -> Series:
    runs = list(zip(*[[point[key] for point in r["curve"]] for r in own], strict=True))
    steps, means = [point["steps"] for point in own[0]["curve"]], [fmean(values) for values in runs]
    return Series(variant, steps, means, COLOURS[variant], [min(v) for v in runs], [max(v) for v in runs])


def curves(task: str) -> Callable[[Results, Path], None]:
    """Mean over agents, and the worst agent where cells hold it."""

    def draw(results: Results, path: Path) -> None:
        found = {variant: results.where(task=task, variant=variant) for variant in MAIN}
        with drawing(path, 2, (9.2, 3)) as axes:
            for axis, key, words in zip(axes, ("mean", "worst"), ("mean over agents", "worst agent"), strict=True):
                known = {v: [r for r in own if all(key in point for point in r["curve"])] for v, own in found.items()}
                series = [over_seeds(own, variant, key) for variant, own in known.items() if own]
                lines(axis, series, "", "environment steps of an agent", f"return, {words}")

    return draw


def agents(task: str) -> Callable[[Results, Path], None]:
    """Each agent at the end, mean over seeds."""

    def draw(results: Results, path: Path) -> None:
        with drawing(path, 1, (7.6, 3)) as (axis,):
            for number, variant in enumerate(MAIN):
                own = [r["agents"] for r in results.where(task=task, variant=variant)]
                means = [fmean(values) for values in zip(*own, strict=True)]
                places = [k + 0.2 * (number - 1.5) for k in range(len(means))]
                axis.bar(places, means, 0.18, color=COLOURS[variant], label=variant if own else None)
            axis.set(xlabel="agent", ylabel="return at the end")
            axis.legend(frameon=False, fontsize=8, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))

    return draw


SHARED: tuple[str, ...] = (
    *MAIN,
    "all shared, K = 1",
    "body shared, both in every step",
    "body shared, K = 1",
    "head shared",
)
SHARED += ("none shared, K = 1",)
LATE = [f"{name}, {how}" for name in MAIN for how in ("30 % absent", "half of them 5 rounds late")]
DECIDED = ("dqnavg", "pfeddqn-rep", "body shared, both in every step")
TASKS = ("cartpole", "acrobot", "hopper", "half-cheetah")
TABLES = {
    "tuning": tuning,
    **{f"{task.replace('-', '_')}_size": size(task) for task in TASKS},
    **{task.replace("-", "_"): returns(task, *MAIN) for task in TASKS},
    "cartpole_sharing": returns("cartpole", *SHARED),
    "absence": returns("cartpole", "dqnavg", "pfeddqn-rep", *LATE),
    "deciding": returns("cartpole", *DECIDED, *(f"fedpolicy {p}" for p in ("dqn", "learned", "random"))),
    "parts": parts,
    **{f"{task}_newcomers": newcomers(task) for task in TUNED},
}
FIGURES = {f"{task}-curves.svg": curves(task) for task in TASKS} | {
    f"{task}-agents.svg": agents(task) for task in TASKS
}
