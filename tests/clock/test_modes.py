"""Rounds by the clock: FedBuff by hand, identities with rounds without a clock, resume, executors,
refusals.
"""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from equipoise.cli import main
from equipoise.clock.config import ClockConfig
from equipoise.clock.devices import SECONDS_PER_HOUR, DevicePopulation
from equipoise.core import TrainingConfig
from equipoise.experiment.build import build_task
from equipoise.experiment.runner import Interrupted, resume_run, run
from equipoise.methods import find_method
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig
from equipoise.utils.errors import UsageError
from helpers import cut_and_resumed, largest_difference, simulate, small_task, timeless
from helpers_own import BY_ERROR
from helpers_quadratic import Quadratic

HALVING = TrainingConfig(
    epochs=1, lr=0.5, batch_size=1
)  # with a = 1 a step goes halfway: y_i = (w + b_i) / 2
FAST, SLOW = 1.0, 0.4  # samples per second: one and two and a half seconds for a step


def world(tmp_path, **more):
    """Two classes, as good as without links."""
    lines = [f"fast,1,{FAST}", f"slow,1,{SLOW}"]
    columns, values = ",".join(["name", "share", "speed", *more]), ",".join(map(str, more.values()))
    file = tmp_path / "two.csv"
    file.write_text(
        "\n".join(
            [f"{columns},up,down", *(f"{line}{',' * bool(more)}{values},1e9,1e9" for line in lines)]
        )
    )
    return str(file)


def clocked(method, task, timing, rounds, executor="stacked", participation=1.0, seed=0):
    method = find_method(method)() if isinstance(method, str) else method
    schedule = RoundLoopConfig(rounds, seed, participation, executor, 1, True)
    simulation = FederatedSimulation(
        method, task, task.info.training, schedule, clock_config=timing
    )
    simulation.logs = [simulation.run_round() for _ in range(rounds)]
    return simulation


def first_seed(timing):
    """A seed with which client 0 is fast and client 1 slow."""
    return next(
        s
        for s in itertools.count()
        if DevicePopulation(timing.device_classes, s).class_index(np.arange(2)).tolist() == [0, 1]
    )


def test_fedbuff_by_hand(tmp_path):
    """A buffer of one; the fast client has b = 8, the slow one b = -4, and both start at w = 0.

    1 s: the fast one brings (0 + 8)/2, w = 4. 2 s: (4 + 8)/2, w = 6. 2.5 s: the slow one brings a
    change of -2 that is two models late: w = 6 - 2/sqrt(3). 3 s: the fast one, which began at 6,
    brings a change of 1, one model late.
    """
    timing = ClockConfig(devices=world(tmp_path), mode="async", buffer=1)
    seed = first_seed(timing)
    task = Quadratic([1.0, 1.0], [[8.0], [-4.0]], HALVING)
    schedule = RoundLoopConfig(4, seed, 1.0, "stacked", 1, True)
    run = FederatedSimulation(
        find_method("fedavg")(), task, task.info.training, schedule, clock_config=timing
    )
    found = []
    for _ in range(4):
        log = run.run_round()
        found.append((float(run.params["w"][0]), log.clock, log.staleness.max, log.ids))
    third = 6 - 2 / math.sqrt(3)
    expected = [
        (4.0, 1.0, 0, [0]),
        (6.0, 2.0, 0, [0]),
        (third, 2.5, 2, [1]),
        (third + 1 / math.sqrt(2), 3.0, 1, [0]),
    ]
    for got, wanted in zip(found, expected, strict=True):
        assert got[:3] == pytest.approx(wanted[:3], rel=1e-6)
        assert got[3] == wanted[3]


def test_semi_synchronous_by_hand(tmp_path):
    """Two seconds at most; the slow one comes in the second round, one model late, and that ends
    with the fast one.
    """
    timing = ClockConfig(devices=world(tmp_path), mode="semi", deadline="2s", staleness=1.0)
    task = Quadratic([1.0, 1.0], [[8.0], [-4.0]], HALVING)
    run = clocked("fedavg", task, timing, 2, seed=first_seed(timing))
    assert [(round(log.clock, 6), log.ids) for log in run.logs] == [(2.0, [0]), (3.0, None)]
    # After the first round w = 4. Then the mean of (4 + 8)/2 = 6 and 4 + (-2)/2 = 3.
    assert float(run.params["w"][0]) == pytest.approx(4.5, rel=1e-6)


def test_a_deadline_leaves_the_slow_one_out_and_overselectionion_too(tmp_path):
    task = Quadratic([1.0, 1.0], [[8.0], [-4.0]], HALVING)
    late = ClockConfig(devices=world(tmp_path), deadline="2s")
    run = clocked("fedavg", task, late, 2, seed=first_seed(late))
    assert [(log.clock, log.ids) for log in run.logs] == [(2.0, [0]), (4.0, [0])]
    assert run.logs[0].absent == {1: "its reply came too late"}
    assert float(run.params["w"][0]) == 6.0
    # Fast: one second at 5 W each round; slow: stopped after two of its two and a half seconds.
    assert run.logs[0].energy == pytest.approx(5.0 + 2.0 * 5.0, rel=1e-6)
    assert run.logs[0].bytes.down == 2 * run.logs[0].bytes.up
    over = ClockConfig(devices=world(tmp_path), overselection=2.0)
    run = clocked("fedavg", task, over, 2, participation=0.5, seed=first_seed(over))
    assert [(round(log.clock, 6), log.clients, log.ids) for log in run.logs] == [
        (1.0, 2, [0]),
        (2.0, 2, [0]),
    ]


METHODS = ["fedavg", "fedper", "fedavgm", "ditto", "fedadam", BY_ERROR]


@pytest.mark.parametrize(
    ("name", "executor"), [*((name, "stacked") for name in METHODS), ("fedper", "loop")]
)
@pytest.mark.parametrize(
    "timing",
    [ClockConfig(), ClockConfig(mode="async", buffer=6)],
    ids=["sync", "buffer of everybody"],
)
def test_equal_devices_are_the_rounds_without_a_clock_to_the_bit(name, executor, timing):
    task = small_task(size_sigma=0.0)
    plain, timed = (
        simulate(find_method(name)(), task, 3, executor),
        clocked(name, task, timing, 3, executor),
    )
    assert largest_difference(timed.params, plain.params) == 0
    assert largest_difference(timed.server_state, plain.server_state) == 0
    assert largest_difference(timed.store.state_dict(), plain.store.state_dict()) == 0
    assert [log.personal for log in timed.logs] == [log.personal for log in plain.logs]


@pytest.mark.parametrize("name", METHODS)
def test_one_client_at_a_time_is_a_cohort_of_one_to_the_bit(name):
    task = small_task()
    one = clocked(name, task, ClockConfig(mode="async", buffer=1), 8, participation=1 / 6)
    plain = simulate(find_method(name)(), task, 8, participation=1 / 6)
    assert largest_difference(one.params, plain.params) == 0
    assert largest_difference(one.store.state_dict(), plain.store.state_dict()) == 0
    assert [log.ids for log in one.logs] == [log.ids for log in plain.logs]
    assert all(log.staleness.max == 0 for log in one.logs)


@pytest.mark.parametrize(
    "mode", [{"mode": "async", "buffer": 2}, {"mode": "semi", "deadline": "1s"}]
)
def test_executors_agree_in_every_mode(mode):
    task = small_task()
    ends = [
        clocked("fedper", task, ClockConfig(devices="phones", **mode), 10, executor)
        for executor in ("stacked", "loop")
    ]
    assert [log.ids for log in ends[0].logs] == [log.ids for log in ends[1].logs]
    assert [log.clock for log in ends[0].logs] == [log.clock for log in ends[1].logs]
    assert largest_difference(ends[0].params, ends[1].params) < 1e-12
    assert any(log.staleness and log.staleness.max > 0 for log in ends[0].logs)


def test_nobody_is_asked_twice_before_it_has_replied():
    run = clocked(
        "fedavg", small_task(), ClockConfig(devices="phones", mode="async", buffer=1), 30, seed=1
    )
    asked = sum(log.clients for log in run.logs)
    gone = sum(len(log.absent) for log in run.logs)
    assert asked == sum(run.store.counts["rounds"].tolist()) + gone + run.clock.num_in_flight
    assert run.clock.num_in_flight <= 6


def test_where_nobody_is_there_time_passes(tmp_path):
    """Devices that are there at six in the morning only: rounds begin then,
    as long as it is six.
    """
    present = " ".join(str(int(hour == 6)) for hour in range(24))
    (tmp_path / "six.csv").write_text(
        f"name,share,speed,present,up,down\nowl,1,0.001,{present},1e9,1e9\n"
    )
    task = Quadratic([1.0, 1.0], [[8.0], [-4.0]], HALVING)
    run = clocked("fedavg", task, ClockConfig(devices=str(tmp_path / "six.csv")), 5)
    clocks = [log.clock / SECONDS_PER_HOUR for log in run.logs]
    step = 1000 / SECONDS_PER_HOUR
    assert clocks == pytest.approx(
        [6 + step, 6 + 2 * step, 6 + 3 * step, 6 + 4 * step, 30 + step], rel=1e-9
    )


OPTIONS = {
    "clients": 8,
    "samples": 40,
    "epochs": 2,
    "rounds": 7,
    "devices": "phones",
    "participation": 0.6,
}


@pytest.mark.parametrize(
    "mode",
    [
        {"mode": "async", "buffer": 2},
        {"mode": "semi", "deadline": "40s", "eval_every": 2},
        {"overselection": 1.5},
    ],
    ids=lambda mode: mode.get("mode", "sync"),
)
@pytest.mark.parametrize("method", ["fedavg", "fedper"])
def test_a_run_resumes_to_the_bit_in_the_middle(method, mode, tmp_path):
    settings = ExperimentConfig.from_options({"method": method, "model": "mlp", **OPTIONS, **mode})
    whole = run(settings, tmp_path / "whole")
    assert timeless(cut_and_resumed(settings, tmp_path / "cut", 5)) == timeless(whole)
    lines = [
        (tmp_path / name / "rounds.jsonl").read_text().splitlines() for name in ("whole", "cut")
    ]
    logs = [[{**json.loads(line), "seconds": 0, "crc": ""} for line in text] for text in lines]
    assert logs[0] == logs[1]
    assert [log["clock"] for log in logs[0]] == sorted(log["clock"] for log in logs[0])


def test_a_run_goes_on_with_the_devices_that_it_began_with(tmp_path):
    table = Path(world(tmp_path))
    text = table.read_text()
    settings = ExperimentConfig.from_options(
        {"clients": 3, "samples": 40, "rounds": 4, "epochs": 1, "devices": str(table)}
    )

    def stop(log):
        if log.round == 2:
            table.write_text(text.replace("fast,1,1.0", "fast,1,2.0"))
            raise Interrupted

    with pytest.raises(Interrupted):
        run(settings, tmp_path / "run", on_round_end=stop)
    with pytest.raises(
        UsageError, match=r"devices in '.*two.csv' have changed since the run in '.*run' began"
    ):
        resume_run(tmp_path / "run")
    table.write_text(text.replace(",", " , "))  # spaces change nothing
    assert resume_run(tmp_path / "run").rounds == 4


def test_agents_in_environments_have_a_clock_too(tmp_path):
    settings = ExperimentConfig.from_options(
        {
            "method": "fedasynq-im",
            "task": "two-state",
            "rounds": 6,
            "devices": "silos",
            "mode": "async",
        }
    )
    assert run(settings, tmp_path / "a").clock > 0


@pytest.mark.parametrize("name", ["scaffold", "feddyn", "page", "fedex", "autopilot", "fedpolicy"])
def test_methods_that_count_on_prompt_replies_are_refused(name):
    with pytest.raises(
        UsageError,
        match="is not offered in mode async: its server counts on replies to what it sent",
    ):
        build_task(ExperimentConfig.from_options({"method": name, "mode": "async", "model": "mlp"}))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "async", "dp_clip": 1.0}, "not offered with robust, secure or dp_clip"),
        ({"mode": "async", "robust": "median"}, "not offered with robust, secure or dp_clip"),
        ({"mode": "async", "method": "joint", "model": "mlp"}, "is not offered in mode async"),
        ({"devices": "phones", "dp_clip": 1.0, "dp_noise": 1.0}, "devices that are away at times"),
    ],
)
def test_combinations_that_are_not_sound(options, words):
    with pytest.raises(UsageError, match=words):
        build_task(ExperimentConfig.from_options(options))


def test_the_command_line_ends_a_run_by_the_clock(tmp_path, capsys):
    out = tmp_path / "run"
    typed = [
        "--rounds",
        "500",
        "--clients",
        "5",
        "--samples",
        "40",
        "--devices",
        "silos",
        "--until",
        "1s",
    ]
    assert main(["run", *typed, "--out", str(out), "--quiet"]) == 0
    logs = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    assert logs[-1]["clock"] >= 1.0 > logs[-2]["clock"]
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["stopped"], summary["clock"]) == ("the clock has reached 1s", logs[-1]["clock"])
    assert summary["energy"] == pytest.approx(sum(log["energy"] for log in logs))
    assert main(["run", "--until", "2 hours", "--mode", "semi", "--out", str(tmp_path / "no")]) == 2
    told = capsys.readouterr().err
    assert "until is '2 hours'" in told
    assert "set deadline" in told


def test_what_did_not_come_in_time_leaves_no_trace(tmp_path):
    """A deadline that nobody keeps: the model stays, clients stay as they were, and the log says
    why.
    """
    task = small_task()
    run = clocked("fedper", task, ClockConfig(devices="phones", deadline="0.001s"), 2)
    assert largest_difference(run.params, run.initial_params) == 0
    assert run.logs[0].skipped == "nobody's reply came before the round ended"
    assert (run.logs[0].bytes.up, run.logs[1].seen) == (0, 0)
    assert torch.equal(run.store.counts["rounds"], torch.zeros_like(run.store.counts["rounds"]))
