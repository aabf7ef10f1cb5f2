"""The report: what it shows, that it stays small, that it needs nothing but itself, and that it
never fails a run.
"""

import json
import re
import shutil
from html import unescape
from pathlib import Path

import numpy as np
import pytest
import torch

from equipoise.cli import main
from equipoise.experiment.build import build_task
from equipoise.records.rounds import MeanMinMax
from equipoise.records.run_dir import RoundLog, RunFolder
from equipoise.report import cost_figures, decision_figures, figures, html
from equipoise.report.blocks import TableBlock, TableCell, TableColumn
from equipoise.report.run_data import RunData, RunGroup, find_run_folders, load_groups, load_run
from equipoise.report.statistics import pareto_front
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.tasks.supervised import ExamplesTask
from equipoise.utils.errors import UsageError
from helpers_records import NO_SUMMARY, line, record, scores, trust, write_run
from helpers_report import rendered

pytest.importorskip("plotly", reason="the extra report is not installed")


def drawn(path: Path) -> tuple[str, dict[str, figures.Figure]]:
    page = (path / "report.html").read_text()
    found = re.search(r'id="figures">(.*?)</script>', page, re.S)
    assert found
    return page, json.loads(found[1])


def titles(page: str) -> list[str]:
    return [unescape(title) for title in re.findall(r"<figure><h3>(.*?)</h3>", page)]


def test_run_writes_a_page_with_everything_it_knows(page_run: Path) -> None:
    page, plots = drawn(page_run)
    expected = {
        *(
            "Scores over rounds",
            "Way of the run",
            "Before and after",
            "Classes of each client",
            "Newcomers",
            "Epochs over rounds",
        ),
        *(
            "Epochs that each client chose",
            "Learning rate that each client chose",
            "Score against bytes",
            "Time",
        ),
        "Weight of each client's update in the aggregate",
    }
    assert expected <= set(titles(page))
    assert "Equilibrium certificate" in page
    assert "--holdout-clients 0.2" in page  # the command repeats the run
    assert (
        "--participation" not in page.split("<details><summary>Configuration")[0]
    )  # defaults are left out
    assert len(plots) == len(titles(page))


def test_partition_and_sizes_are_those_of_the_data(tmp_path: Path) -> None:
    options = ["--clients", "5", "--samples", "60", "--classes", "4", "--size-sigma", "0.6"]
    assert main(["run", *options, "--rounds", "1", "--out", str(tmp_path / "r"), "--quiet"]) == 0
    page, plots = drawn(tmp_path / "r")
    by_title = dict(zip(titles(page), plots.values(), strict=True))
    task = build_task(ExperimentConfig.from_options(RunFolder(tmp_path / "r").read_config()))
    assert isinstance(task, ExamplesTask)
    counts = task.label_counts(torch.arange(5)).double()
    share = (counts / counts.sum(1, keepdim=True)).tolist()
    shown = by_title["Classes of each client"]["data"][0]["z"]
    assert sorted(shown) == [pytest.approx(row, abs=1e-3) for row in sorted(share)]
    assert by_title["Training samples of each client"]["data"][0]["y"] == sorted(
        counts.sum(1).tolist(), reverse=True
    )
    assert (
        main(
            [
                "run",
                *options[:-1],
                "0",
                "--rounds",
                "1",
                "--out",
                str(tmp_path / "alike"),
                "--quiet",
            ]
        )
        == 0
    )
    assert "Training samples of each client" not in titles(drawn(tmp_path / "alike")[0])


def test_utilities_have_an_axis_of_their_own(page_run: Path) -> None:
    _, plots = drawn(page_run)
    scores = plots["plot-0"]
    utility = [trace for trace in scores["data"] if trace["name"] == "utility, local"]
    noted = load_run(page_run).logged_by_round("log_utility_local")
    assert utility[0]["yaxis"] == "y2"
    assert utility[0]["y"] == pytest.approx(np.exp(list(noted.values())), rel=1e-3)


def test_comparison_names_methods_in_their_order_and_marks_the_best(comparison: Path) -> None:
    page, plots = drawn(comparison)
    rows = re.findall(r"<tr><td>(\w+)</td>(.*?)</tr>", page)
    assert [name for name, _ in rows][:3] == ["local", "fedavg", "finetune"]
    summaries = json.loads((comparison / "compare.json").read_text())["summaries"]
    means = {m: np.mean([s["personal"]["acc"] for s in found]) for m, found in summaries.items()}
    bold = [name for name, cells in rows[:3] if 'class="best"' in cells.split("</td>")[1]]
    assert bold == [name for name, mean in means.items() if mean == max(means.values())]
    assert "equipoise compare --methods local,fedavg,finetune" in page
    assert "Pareto front" in json.dumps(plots)
    assert not list(comparison.rglob("seed-*/report.html"))  # one page tells of all cells


def test_tabular_run_shows_error_against_theory(tabular_run: Path) -> None:
    page, plots = drawn(tabular_run)
    assert "Error against theory" in titles(page)
    assert "Coverage of the agents" in page
    [theory] = [
        plot
        for plot in plots.values()
        if plot["layout"]["xaxis"]["title"]["text"] == "steps of an agent"
    ]
    assert theory["data"][0]["x"] == [5.0 * t for t in range(1, 9)]
    slope = theory["data"][1]
    assert slope["y"][0] / slope["y"][-1] == pytest.approx(np.sqrt(8), rel=1e-3)


def test_page_needs_nothing_from_outside(comparison: Path) -> None:
    page = (comparison / "report.html").read_text()
    own = re.sub(r'id="plotly">.*?</script>', "", page, flags=re.S)
    assert not re.search(r'(?:src|href)="(?!#|data:)', own)
    assert "http://" not in own
    assert "https://" not in own


def test_grid_is_a_mean_and_bounded() -> None:
    grid = decision_figures.ClientRoundGrid(1000, 1000)
    ids = np.arange(1000)
    for t in range(1, 1001):
        grid.add(t, ids, ids + 1000.0 * (t > 500))
    mean = grid.mean()
    assert mean.shape == (decision_figures.MAX_GRID_CLIENTS, decision_figures.MAX_GRID_ROUNDS)
    assert mean[0, 0] == np.mean(range(5))  # five clients a row, before the step
    assert mean[-1, -1] == 1000 + np.mean(range(995, 1000))


def test_lists_of_a_cohort_go_to_their_clients(tmp_path: Path) -> None:
    logs = [
        record(1, clients=2, ids=[0, 3], logged={"p": [0.25, 0.75], "part": [0, 3]}),
        record(2, clients=2, ids=[1, 3], dropped=[1], logged={"p": [1.0]}),
    ]
    RoundLog(RunFolder(tmp_path), logs)
    run = RunData(RunFolder(tmp_path), {}, logs, None, {"client": [0.0, 1.0, 2.0, 3.0]}, {})
    found = decision_figures.decision_grids(run)
    expected = [
        [0.25, np.nan],
        [np.nan] * 2,
        [np.nan] * 2,
        [0.75, 1.0],
    ]  # the dropped client has no weight
    np.testing.assert_array_equal(found["p"].mean(), expected)
    assert found[decision_figures.GIVEN_BLOCK.format("backbone")].mean()[[0, 3], 0].tolist() == [
        1.0,
        0.0,
    ]  # full, none


def test_partial_participation_logs_who_replied(tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = (
        "--clients 6 --epochs 1 --rounds 2 --participation 0.5 --executor stacked --quiet".split()
    )
    assert main(["run", *options, "--out", str(out)]) == 0
    assert all(len(log.ids or []) == 3 == log.clients for log in RunFolder(out).stream())


@pytest.mark.parametrize(
    ("clients", "rounds"), [(1000, 100), pytest.param(1000, 1000, marks=pytest.mark.slow)]
)
def test_a_thousand_clients_and_rounds_stay_small(
    clients: int, rounds: int, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    each = {"acc": 0.5, "loss": 1.0, "std": 0.1, "p10": 0.2}
    test = scores(global_={"acc": 0.5, "loss": 1.0}, received=each, trained=each, personal=each)
    lines = []
    for t in range(1, rounds + 1):
        decisions = {"epochs": rng.integers(1, 20, clients).tolist()}
        notes = {"part": rng.integers(0, 4, clients).tolist()}
        train = {"epochs": MeanMinMax(10, 1, 20)}
        lines.append(
            line(t, clients=clients, test=test, train=train, decisions=decisions, logged=notes)
        )
    table = ["client,received_acc,trained_acc", *(f"{i},0.5,{i / clients}" for i in range(clients))]
    held = [
        f"{i}," + ",".join(map(str, row))
        for i, row in enumerate(rng.integers(0, 50, (clients, 10)).tolist())
    ]
    write_run(
        tmp_path,
        {"method": "page", "task": "synthetic", "seed": 0},
        "".join(lines),
        clients_csv="\n".join(table),
        labels_csv="\n".join(["client,0,1,2,3,4,5,6,7,8,9", *held]),
    )
    page = html.render_report(load_groups([tmp_path]), "")
    assert len(page) - len(html.plotly_script()) < 3_000_000
    assert "not finished" in page
    assert {
        "Parts given, over rounds",
        "Parts given, by evenness of labels",
        "Classes of each client",
    } <= set(titles(page))


def test_parts_are_counted_by_round_and_by_client(tmp_path: Path) -> None:
    logs = [
        record(1, clients=4, logged={"part": [0, 0, 1, 3]}),
        record(2, clients=2, ids=[0, 3], logged={"part": [2, 3]}),
    ]
    RoundLog(RunFolder(tmp_path), logs)
    # Client 0 has one class, clients 1 and 2 two alike, client 3 one in four of the other.
    labels = {"client": [0.0, 1.0, 2.0, 3.0], "0": [8.0, 4.0, 2.0, 3.0], "1": [0.0, 4.0, 2.0, 1.0]}
    run = RunData(RunFolder(tmp_path), {}, logs, None, {"client": [0.0, 1.0, 2.0, 3.0]}, labels)
    found = decision_figures.part_counts(run)
    assert found
    assert found[0].tolist() == [[2, 1, 0, 1], [0, 0, 1, 1]]
    assert found[1].tolist() == [[1, 0, 1, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 2]]
    over = {
        trace["name"]: trace["y"]
        for trace in decision_figures.parts_over_rounds(found[0], 2)["data"]
    }
    assert over == {"full": [50, 0], "backbone": [25, 0], "head": [0, 50], "none": [25, 50]}
    ids, even = decision_figures.label_evenness(labels)
    assert ids.tolist() == [0, 1, 2, 3]
    assert even == pytest.approx([0, 1, 1, 0.811278], abs=1e-6)  # the last: entropy of 1/4 in bits
    bars = decision_figures.parts_by_evenness(found[1], labels)
    assert bars
    by_part = {trace["name"]: trace["y"] for trace in bars["data"]}
    assert by_part == {
        "full": [50, 0, 100, 0],
        "backbone": [0, 0, 0, 100],
        "head": [50, 0, 0, 0],
        "none": [0, 100, 0, 0],
    }


def test_fedpolicy_shows_who_got_what(policy_run: Path) -> None:
    page, plots = drawn(policy_run)
    expected = {
        *(
            "Who was given the backbone (share of rounds)",
            "Who was given the head (share of rounds)",
        ),
        *("Parts given, over rounds", "Parts given, by evenness of labels", "Score against bytes"),
    }
    assert expected <= set(titles(page))
    stacked = next(
        plot for plot in plots.values() if any(trace.get("stackgroup") for trace in plot["data"])
    )
    np.testing.assert_allclose(
        np.sum([trace["y"] for trace in stacked["data"]], axis=0), 100, atol=0.1
    )


def test_an_energy_budget_shows_what_was_spent(tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = (
        "--clients 4 --rounds 3 --executor stacked --server-clients 20 --quiet "
        "--energy-budget default"
    ).split()
    assert main(["run", "--method", "page", *options, "--out", str(out)]) == 0
    page, _ = drawn(out)
    section = page[page.index('<section id="resources">') :].partition("</section>")[0]
    assert "Energy that each client spent, J" in section
    assert "Energy above the budget, as a part of it" in section


def test_long_lines_are_thinned_and_keep_their_ends() -> None:
    kept = figures.thin(range(1, 10_001))
    assert len(kept) <= figures.MAX_LINE_POINTS
    assert (kept[0], kept[-1]) == (1, 10_000)
    [band, line] = figures.line_trace([{1: 0.2, 2: 0.4}, {1: 0.4, 2: 0.4}], "x", 0, scale=100)
    assert line["y"] == [30.0, 40.0]
    assert band["y"] == [20.0, 40.0, 40.0, 40.0]


def test_five_seeds_have_a_band_of_the_95_percent_interval() -> None:
    """1 to 5: mean 3, spread sqrt(2.5), half of the interval 2.776 sqrt(2.5 / 5)."""
    band, line = figures.line_trace([{1: float(v), 2: 5.0} for v in range(1, 6)], "x", 0)
    assert line["y"] == [3.0, 5.0]
    half = 2.776 * 0.5**0.5
    assert band["y"] == pytest.approx([3 - half, 5.0, 5.0, 3 + half], rel=1e-3)


def test_fewer_seeds_have_a_band_of_their_range() -> None:
    """The interval of 1, 2, 3 would reach from -0.5 to 4.5 and flatten all lines."""
    band, _ = figures.line_trace([{1: 1.0, 2: 5.0}, {1: 2.0, 2: 5.0}, {1: 3.0, 2: 5.0}], "x", 0)
    assert band["y"] == [1.0, 5.0, 5.0, 3.0]


@pytest.mark.parametrize(
    ("metric", "seeds", "low", "high"),
    [
        ("acc", (0.02, 0.02, 0.5, 0.98, 0.98), 0.0, 100.0),  # without the clip -10 % to 110 %
        ("auc", (0.05, 0.05, 0.9, 0.9, 0.9), 0.0, 1.0),
        ("rmse", (0.0, 0.0, 0.0, 3.0, 3.0), 0.0, 1.2 + 2.776 * (2.7 / 5) ** 0.5),
        ("r2", (0.0, 0.0, 0.5, 1.0, 1.0), 0.5 - 2.776 * (0.25 / 5) ** 0.5, 1.0),
        ("return", (1.0, 2.0, 3.0, 4.0, 5.0), 3 - 2.776 * 0.5**0.5, 3 + 2.776 * 0.5**0.5),
    ],
)
def test_bands_stay_within_the_range_of_the_metric(
    metric: str, seeds: tuple[float, ...], low: float, high: float
) -> None:
    runs = []
    for seed in seeds:
        test = scores(global_={metric: seed}, trained={metric: seed}, personal={metric: seed})
        records = [record(1, test=test), record(2, test=test)]
        runs.append(RunData(RunFolder(Path()), {"method": "m"}, records, None, {}, {}))
    groups = [RunGroup("m", runs), RunGroup("n", runs)]
    found = figures.score_of_methods(groups, figures.MetricDisplay(metric), "global")
    assert found
    band = found["data"][0]
    assert "fill" in band
    assert band["y"] == pytest.approx([low, low, high, high], rel=1e-3)


def test_error_bars_stay_within_the_range_of_the_metric() -> None:
    """Accuracies 80, 100 and 100 %: mean 93.33, deviation 11.55, and 6.67 up to the end of the
    range.
    """
    runs = []
    for seed in (0.8, 1.0, 1.0):
        test = scores(global_={"acc": seed}, trained={"acc": seed}, personal={"acc": seed})
        runs.append(RunData(RunFolder(Path()), {"method": "m"}, [record(test=test)], None, {}, {}))
    groups = [RunGroup("m", runs), RunGroup("n", runs)]
    found = figures.global_against_personal(groups, figures.MetricDisplay("acc"))
    assert found
    bars = [trace["error_x"] for trace in found["data"] if "error_x" in trace]
    assert bars[0]["array"] == pytest.approx([20 / 3], rel=1e-3)
    assert bars[0]["arrayminus"] == pytest.approx([20 / 3**0.5], rel=1e-3)


def test_bands_on_a_logarithmic_axis_end_at_the_lowest_seed() -> None:
    """0 has no place on such an axis: a band that reached it would not be drawn."""
    display = figures.MetricDisplay("error")
    [band, _] = figures.line_trace(
        [{1: v, 2: v} for v in (0.1, 0.1, 0.2, 5.0, 5.0)], "x", 0, **display.line_options
    )
    assert min(band["y"]) == 0.1


def test_time_and_energy_are_shown_where_a_clock_was_asked_for(
    comparison: Path, tmp_path: Path
) -> None:
    """Every run has a simulated clock; one that nobody asked for is neither in tables nor in
    pictures.
    """
    page, _ = drawn(comparison)
    clocked = ("Score against time", "Score against energy")
    assert not set(clocked) & set(titles(page))
    words = ("clock s", "kJ", "energy")
    assert not [word for word in words if word in page.split('<section id="repeat">')[0]]
    for name in ("table.md", "table.csv"):
        assert not [word for word in words if word in (comparison / name).read_text()]
    assert "MB to 90 %" in (comparison / "table.md").read_text()  # bytes need no clock
    out = tmp_path / "run"
    options = "--clients 4 --samples 40 --epochs 1 --rounds 2 --quiet --out".split()
    assert main(["run", *options, str(out / "plain")]) == 0
    assert "clock s" not in drawn(out / "plain")[0]
    assert main(["run", *options, str(out / "clock"), "--devices", "phones"]) == 0
    page, _ = drawn(out / "clock")
    assert "clock s<b" in page
    assert set(clocked) <= set(titles(page))


def test_lower_errors_are_the_front() -> None:
    def group(label: str, ours: float, theirs: float) -> RunGroup:
        test = scores(
            global_={"error": ours}, personal={"error": theirs}, trained={"error": theirs}
        )
        return RunGroup(label, [RunData(RunFolder(Path()), {}, [record(test=test)], None, {}, {})])

    found = figures.global_against_personal(
        [group("a", 0.1, 0.2), group("b", 0.3, 0.4)], figures.MetricDisplay("error")
    )
    assert found
    assert found["data"][0]["x"] == [0.1]


def test_the_front_of_errors_is_below() -> None:
    points = {"a": (0.1, 0.4), "b": (0.2, 0.2), "c": (0.3, 0.3)}
    assert pareto_front(points) == ["a", "c"]
    assert pareto_front(points, higher_is_better=False) == ["a", "b"]


def test_a_comparison_of_errors_draws_the_front_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numba", reason="the extra rl is not installed")
    seen = []
    monkeypatch.setattr(
        figures,
        "write_pareto_svg",
        lambda points, title, path, unit, higher: seen.append((unit, higher)),
    )
    options = "--agents 2 --tau 5 --steps 10 --sims 2 --seeds 1 --quiet".split()
    methods = ["--task", "two-state", "--methods", "fedasynq-eq,fedasynq-im"]
    assert main(["compare", *methods, *options, "--out", str(tmp_path / "x")]) == 0
    assert set(seen) == {("error", False)}


def test_labels_tell_equal_methods_apart(tmp_path: Path) -> None:
    for lr in (0.1, 0.2):
        options = {"method": "fedavg", "task": "synthetic", "seed": 0, "lr": lr}
        lines = line(test=scores(trained={"acc": 1.0})) + '{"round": 2, "tra'
        write_run(tmp_path / str(lr), options, lines)
    groups = load_groups([tmp_path])
    assert [group.label for group in groups] == ["fedavg lr=0.1", "fedavg lr=0.2"]
    assert len(groups[0].first_run.records) == 1  # the line that was cut short does not count


def test_command_says_what_is_not_default() -> None:
    config = {
        "method": "fedprox",
        "task": "synthetic",
        "rounds": 100,
        "mu": 0.5,
        "save_personal": False,
    }
    assert (
        html.run_command(config)
        == "equipoise run --method fedprox --task synthetic --mu 0.5 --no-save-personal"
    )


def test_script_in_a_name_stays_text() -> None:
    hostile = TableBlock([TableColumn("<script>", True)], [[TableCell("<script>")]])
    assert rendered(hostile).count("&lt;script&gt;") == 2
    assert "<script>" not in rendered(hostile)


def test_a_hostile_label_stays_text(tmp_path: Path) -> None:
    """Options stand in labels where two runs differ in them: titles, legends, tables, summaries of
    details.
    """
    hostile = "<script>alert(1)</script>"
    each = {"acc": 0.5}
    for name in (hostile, "&'\"<b>"):
        config = {"method": "fedavg", "task": "synthetic", "seed": 0, "model": name, "rounds": 1}
        write_run(
            tmp_path / str(len(name)),
            config,
            line(test=scores(global_=each, received=each, trained=each)),
            clients_csv=f'client,name,received_acc,trained_acc\n0,"{hostile}",0.5,0.5\n',
        )
    page = html.render_report(load_groups([tmp_path]), hostile)
    assert "alert(1)" in page
    assert hostile not in page
    assert "<b>" not in page.replace("<b></", "")


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert "is not a folder" in capsys.readouterr().err
    assert main(["report", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", b"{}"),
        ("rounds.jsonl", b'{"round": 1}\n'),
        ("rounds.jsonl", b"\xff\xfe\x00\n"),
        ("rounds.jsonl", line(bytes={"up": "many", "down": 0}).encode()),
        ("rounds.jsonl", line(train={"lr": {"mean": 1, "min": 1, "max": 1, "mode": 1}}).encode()),
        ("summary.json", b"[1]"),
        ("summary.json", b'{"method": "fedavg"'),
        ("summary.json", b'{"method": "fedavg"}'),
        ("summary.json", json.dumps({**NO_SUMMARY, "rounds": "1"}).encode()),
        ("summary.json", json.dumps({**NO_SUMMARY, "personal": {"acc": True}}).encode()),
        (
            "summary.json",
            json.dumps({**NO_SUMMARY, "bytes": {"up": 1, "down": 2, "sideways": 3}}).encode(),
        ),
        ("clients.csv", b"client,samples\n1\n"),
        ("labels.csv", b""),
    ],
)
def test_damaged_files_are_one_line(
    comparison: Path, tmp_path: Path, name: str, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(comparison / "fedavg" / "seed-0", tmp_path / "run")
    (tmp_path / "run" / name).write_bytes(content)
    commands = ["report"]
    if name in ("config.json", "rounds.jsonl"):
        commands.append("watch")
    for is_trusted in (False, True):  # also if the manifest was made for the damaged file
        if is_trusted:
            trust(tmp_path / "run")
        for command in commands:
            assert main([command, str(tmp_path / "run")]) == 2
            error = capsys.readouterr().err
            assert re.fullmatch(r"equipoise: .*(is damaged|another version).*\n", error)
            assert name in error


def test_a_folder_above_a_comparison_and_a_run_holds_all_their_runs(
    comparison: Path, tmp_path: Path
) -> None:
    """The manifests of comparisons, searches and other folders are none of runs."""
    shutil.copytree(comparison / "local", tmp_path / "all" / "cmp" / "local")
    for name in ("compare.json", "manifest.json"):
        shutil.copy(comparison / name, tmp_path / "all" / "cmp" / name)
    shutil.copytree(comparison / "fedavg" / "seed-0", tmp_path / "all" / "run")
    found = find_run_folders(tmp_path / "all")
    assert [str(one.relative_to(tmp_path / "all")) for one in found] == [
        *("cmp/local/seed-0", "cmp/local/seed-1", "run")
    ]
    (tmp_path / "all" / "run" / "config.json").unlink()
    assert tmp_path / "all" / "run" in find_run_folders(tmp_path / "all")
    with pytest.raises(UsageError, match=r"run' is not a run folder: it has no config.json"):
        load_groups([tmp_path / "all"])


def test_a_page_of_several_runs_overwrites_none_of_theirs(
    comparison: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [tmp_path / name for name in ("a", "b")]
    for folder, method in zip(folders, ("fedavg", "local"), strict=True):
        shutil.copytree(comparison / method / "seed-0", folder)
        (folder / "report.html").write_text("its own")
    assert main(["report", *map(str, folders)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'report-a-b.html'}\n"
    assert "2 methods on synthetic" in (tmp_path / "report-a-b.html").read_text()
    assert [(folder / "report.html").read_text() for folder in folders] == ["its own"] * 2
    with pytest.raises(SystemExit):
        main(["report", "--help"])
    assert "report-NAMES.html" in capsys.readouterr().out


def test_without_plotly_a_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> str:
        raise UsageError("it needs Plotly: pip install 'equipoise[report]'")

    monkeypatch.setattr(html, "plotly_script", missing)
    options = [
        "--clients",
        "4",
        "--epochs",
        "1",
        "--rounds",
        "1",
        "--executor",
        "stacked",
        "--out",
        str(tmp_path / "a"),
    ]
    assert main(["run", *options]) == 0
    assert "no report: it needs Plotly: pip install 'equipoise[report]'" in capsys.readouterr().out
    assert not (tmp_path / "a" / "report.html").exists()


def test_a_failing_picture_does_not_fail_the_run(
    page_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost_figures, "seconds_per_round", lambda groups: 1 / 0)
    assert html.try_write_report(page_run).startswith("report: ")  # drawn already
    (page_run / "summary.json").touch()
    assert html.try_write_report(page_run).startswith(
        "no report: drawing it failed (ZeroDivisionError"
    )
