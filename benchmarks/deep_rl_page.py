"""The page of deep_rl.py: tables and pictures from the cells that there are."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from deep_rl_tuning import chosen, means

Cell = dict[str, Any]
MAIN = ("dqn", "dqnavg", "perdqnavg", "pfeddqn-rep")
COLOURS = {"dqn": "#7F7F7F", "dqnavg": "#0072B2", "perdqnavg": "#009E73", "pfeddqn-rep": "#D55E00"}
TITLES = {
    "cartpole": "CartPole",
    "acrobot": "Acrobot",
    "hopper": "Hopper (DDPG agents)",
    "half-cheetah": "HalfCheetah (DDPG agents)",
}
OFFERED = {
    "dqn": "nothing: DQN from scratch",
    "dqnavg": "the whole net, tuned on",
    "perdqnavg": "the whole net, frozen; the embedding is learned",
    "pfeddqn-rep": "the body, frozen; the head is learned",
}


def write_page(results: Path, models: Path) -> None:
    cells = [json.loads(file.read_text()) for file in sorted(results.glob("*-seed*.json"))]
    if not cells:
        return
    text = [HEAD, _tuning(results)]
    for task in TITLES:
        own = [cell for cell in cells if cell["task"] == task and "curve" in cell]
        if not any(cell["name"] in MAIN for cell in own):
            continue
        agents = len(own[0]["agents"])
        text.append(f"## {TITLES[task]}, {agents} agents\n\n{_size(own)}\n\n{_table(own, MAIN)}")
        if _draw(lambda axes, own=own: _curves(axes, own), results / f"{task}-curves.svg", 2):
            text.append(f"![Return curves]({task}-curves.svg)\n\n{CURVES}")
        if _draw(lambda axes, own=own: _bars(axes, own), results / f"{task}-agents.svg", 1):
            text.append(f"![Per agent]({task}-agents.svg)\n\n{BARS}")
    for task in ("cartpole", "acrobot"):
        own = [cell for cell in cells if cell["task"] == task and "curve" in cell]
        if shared := sorted({cell["name"] for cell in own if "shared" in cell["name"]}):
            text.append(f"## What to share ({TITLES[task]})\n\n{SHARING}\n\n{_table(own, [*MAIN, *shared])}")
    text += _sections([cell for cell in cells if cell["task"] == "cartpole"])
    text += [
        _newcomers(TITLES[task], own)
        for task in TITLES
        if (own := [cell for cell in cells if cell["task"] == task and "newcomers" in cell])
    ]
    text += _pictures(results, models)
    (results / "README.md").write_text("\n\n".join(text) + "\n")


HEAD = """# Federated deep Q-learning: results

Written by `python benchmarks/deep_rl.py` from the cells in this folder; do not edit. Returns are of greedy policies
over five fixed episodes an agent (MuJoCo: three), mean ± standard deviation over seeds; *last* is the mean of the last
three evaluations of the trained nets, *received* the same of what agents hold before they train on, *area* the mean of
all evaluations (how fast it was learned), *worst* the worst of the agents at the end. Higher is better: CartPole ends
at 500, Acrobot at 0 (-500 is never having swung up). `±` is missing where there is one seed alone. Three seeds do not
separate methods whose ranges overlap."""
TUNING = """## How the settings were chosen

`python benchmarks/deep_rl.py --tune`: five settings of each method (Acrobot: four) on seeds 1 and 2, which are not
reported, at the full length of a run; the best mean return over the second half of the evaluations was taken (bold).
Where nothing is named the task's own setting holds (CartPole: lr 0.001, target rate 0.01, rates that fall with t0 = 10;
Acrobot: lr 0.001, target rate 0.1, constant rates). Those had been chosen earlier on other seeds with dqn and dqnavg;
width, discount, copies, batch and exploration too, and they were not tuned again. MuJoCo's tasks were not tuned at
all. The order of operations in Adam was changed while tuning ran: a repeated row may differ. Before it, trials on
Acrobot with the same two seeds (three of pfeddqn-rep, one each of dqnavg and dqn) had led to the default of moving body
and head in every step: so much more than its share was spent on pfeddqn-rep."""
CURVES = "Mean over agents with the range of the seeds (left), and the worst agent (right)."
BARS = "Each agent at the end, mean over seeds; agents by growing length."
SHARING = """Body or head, both in every step or in the rhythm of K steps of the head and one of the body; each at the
settings of dqn, dqnavg or pfeddqn-rep, whichever it varies."""
ABSENCE = """30 % of the agents absent in each round: they neither act nor learn then, so they take 30 % fewer steps in
all. Late (`--delay`, `--late`): everybody acts and learns in time, but the nets of late agents reach the mean so many
rounds after they were sent; who is late stays so."""
DECIDING = """Over dqnavg at its settings; reward = return on three episodes of their own. Always full is dqnavg to the
bit; always backbone is *body shared, both in every step* but for the rates, and with the same `head_steps` above 0 it
is pfeddqn-rep to the bit (tested)."""
NEW = """Six agents whose lengths nobody trained with: what they are given, and the return after so many environment
steps of their own, explored and learned as in training, but at a constant rate."""
REPRESENTATION = """## The learned representation (CartPole, pfeddqn-rep)

![Representation](representation.png)

The 128 shared features over the plane of angle and angular speed (cart still, in the middle), on their first two
principal components; coloured by angle (left) and by the value that one agent's head reads from them (right)."""
ROLLOUT = """## A rollout: personalised and averaged

![Rollout](rollout.gif)

The agent with the shortest pole, from one start off the middle: left with its personalised net (pfeddqn-rep), right
with the averaged one (dqnavg, trained on)."""


def _sections(cart: list[Cell]) -> list[str]:
    text: list[str] = []
    names = list(dict.fromkeys(cell["name"] for cell in cart if "curve" in cell and cell["name"] not in MAIN))

    def some(title: str, words: str, chosen: list[str], beside: Sequence[str]) -> None:
        if chosen:
            text.append(f"## {title}\n\n{words}\n\n{_table(cart, [*beside, *chosen])}")

    some(
        "Absent agents and late means (CartPole)",
        ABSENCE,
        [name for name in names if "absent" in name or "late" in name],
        ("dqnavg", "pfeddqn-rep"),
    )
    policies = [name for name in names if name.startswith("fedpolicy")]
    some(
        "FedPolicy decides who gets which part (CartPole)",
        DECIDING,
        policies,
        ("dqnavg", "pfeddqn-rep", *[n for n in names if n == "body shared, both in every step"]),
    )
    for name in policies:
        found = [cell["parts"] for cell in cart if cell["name"] == name]
        shares = ", ".join(f"{part} {100 * fmean(cell[part] for cell in found):.0f} %" for part in found[0])
        text.append(f"{name} gave: {shares}.")
    return text


def _tuning(results: Path) -> str:
    lines = ["| task | method | settings tried: mean return |", "|---|---|---|"]
    best = chosen(results)
    for (task, method), tried in means(results).items():
        told = []
        for setting, value in tried:
            words = f"{', '.join(f'{name} {number:g}' for name, number in setting.items()) or 'as it is'}: {value:.0f}"
            told.append(f"**{words}**" if setting == best[task, method] else words)
        lines.append(f"| {TITLES[task]} | {method} | {'; '.join(told)} |")
    return f"{TUNING}\n\n" + "\n".join(lines)


def _size(cells: list[Cell]) -> str:
    one = next(cell for cell in cells if cell["name"] in MAIN)
    seeds, spent = sorted({cell["seed"] for cell in cells}), sum(cell["cpu_seconds"] for cell in cells)
    steps, rounds, epochs = int(one["curve"][-1]["steps"]), one["options"]["rounds"], one["options"]["epochs"]
    return (
        f"{rounds} rounds of {epochs} steps: {steps:,} environment steps and {rounds * epochs:,} gradient steps of "
        f"each agent. Seeds {', '.join(map(str, seeds))}; {spent:.0f} CPU seconds."
    )


def _table(cells: list[Cell], names: Sequence[str]) -> str:
    lines = ["| | last | received | area | worst | spread over agents | MB up | seeds |", "|" + "---|" * 8]
    for name in names:
        own = [cell for cell in cells if cell["name"] == name]
        if own:
            last = _pm([fmean(point["mean"] for point in cell["curve"][-3:]) for cell in own])
            received = _pm([fmean(point["received"] for point in cell["curve"][-3:]) for cell in own])
            area = _pm([fmean(point["mean"] for point in cell["curve"]) for cell in own])
            worst = _pm([cell["curve"][-1]["worst"] for cell in own])
            spread = f"{fmean(cell['curve'][-1]['std'] for cell in own):.0f}"
            sent = f"{fmean(cell['bytes']['up'] for cell in own) / 1e6:.1f}"
            lines.append(f"| {name} | {last} | {received} | {area} | {worst} | {spread} | {sent} | {len(own)} |")
    return "\n".join(lines)


def _newcomers(title: str, cells: list[Cell]) -> str:
    marks = list(cells[0]["newcomers"])
    lines = [f"## Newcomers in unseen environments ({title})", NEW]
    table = [f"| from | a newcomer gets | {' | '.join(f'{int(mark):,} steps' for mark in marks)} | seeds |"]
    table.append("|" + "---|" * (len(marks) + 3))
    for name in MAIN:
        own = [cell["newcomers"] for cell in cells if cell["name"] == f"newcomers of {name}"]
        if own:
            figures = " | ".join(_pm([fmean(cell[mark]) for cell in own]) for mark in marks)
            table.append(f"| {name} | {OFFERED[name]} | {figures} | {len(own)} |")
    return "\n\n".join([*lines, "\n".join(table)])


def _pm(values: list[float]) -> str:
    return f"{fmean(values):.0f}" + (f" ± {stdev(values):.0f}" if len(values) > 1 else "")


def _draw(paint: Callable[[Any], bool], file: Path, columns: int) -> bool:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "equipoise"
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, columns, figsize=(4.6 * columns + (3 if columns == 1 else 0), 3), squeeze=False)
    painted = paint(axes[0])
    if painted:
        figure.tight_layout()
        figure.savefig(file, metadata={"Date": None})
    plt.close(figure)
    return painted


def _curves(axes: Any, cells: list[Cell]) -> bool:
    for name in MAIN:
        own = [cell for cell in cells if cell["name"] == name]
        if not own:
            continue
        steps = [point["steps"] for point in own[0]["curve"]]
        for axis, key in zip(axes, ("mean", "worst"), strict=True):
            runs = list(zip(*[[point[key] for point in cell["curve"]] for cell in own], strict=True))
            axis.plot(steps, [fmean(run) for run in runs], color=COLOURS[name], label=name)
            low, high = [min(run) for run in runs], [max(run) for run in runs]
            axis.fill_between(steps, low, high, color=COLOURS[name], alpha=0.15, linewidth=0)
            axis.set_xlabel("environment steps of an agent")
            axis.set_ylabel(f"return, {'mean over agents' if key == 'mean' else 'worst agent'}")
    axes[0].legend(frameon=False, fontsize=8)
    return True


def _bars(axes: Any, cells: list[Cell]) -> bool:
    axis, shown = axes[0], [name for name in MAIN if any(cell["name"] == name for cell in cells)]
    for number, name in enumerate(shown):
        own = [cell["agents"] for cell in cells if cell["name"] == name]
        means = [fmean(values) for values in zip(*own, strict=True)]
        places = [k + 0.2 * (number - 1.5) for k in range(len(means))]
        axis.bar(places, means, 0.18, color=COLOURS[name], label=name)
    axis.set_xlabel("agent")
    axis.set_ylabel("return at the end")
    axis.set_xticks(range(len(means)))
    axis.legend(frameon=False, fontsize=8, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return True


def _pictures(results: Path, models: Path) -> list[str]:
    """Pictures that need the trained nets; where they are gone, the pictures of the last time stay."""
    from deep_rl_pictures import animate, project

    text = []
    shared, averaged = models / "cartpole-pfeddqn-rep.npz", models / "cartpole-dqnavg.npz"
    if shared.exists():
        _draw(lambda axes: project(axes, shared), results / "representation.png", 2)
    if shared.exists() and averaged.exists():
        animate(results / "rollout.gif", shared, averaged)
    if (results / "representation.png").exists():
        text.append(REPRESENTATION)
    if (results / "rollout.gif").exists():
        text.append(ROLLOUT)
    return text
