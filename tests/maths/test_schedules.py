"""Schedules: closed forms, text and back, and runs that follow them."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from equipoise.config.schema import constant, cosine, linear, parse_schedule, steps
from equipoise.core import Method, Schedule, TrainingConfig
from equipoise.experiment.runner import run
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.fedopt import FedAvgM
from equipoise.methods.fedprox import FedProx
from equipoise.methods.page.page import Page
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.simulation.server_loop import FederatedSimulation
from equipoise.simulation.server_loop import RoundLoopConfig as Rounds
from equipoise.utils.errors import UsageError
from helpers import cut_and_resumed, largest_difference, simulate, small_task

PLAIN = TrainingConfig(epochs=2, lr=0.05, batch_size=8)


def test_a_cosine_goes_along_half_a_wave_and_meets_both_ends_exactly() -> None:
    falling = cosine(0.1, 0.001)
    assert (falling.at(1, 101), falling.at(101, 101)) == (0.1, 0.001)
    assert falling.at(51, 101) == pytest.approx(0.0505)
    assert falling.at(26, 101) == pytest.approx(0.001 + 0.099 * (1 + math.cos(math.pi / 4)) / 2)


def test_a_line_goes_by_equal_steps() -> None:
    assert [linear(1, 3).at(t, 5) for t in range(1, 6)] == [1, 1.5, 2, 2.5, 3]


def test_steps_count_the_rounds_that_are_done() -> None:
    assert [steps({0: 1, 2: 5, 4: 2}).at(t, 6) for t in range(1, 7)] == [1, 1, 5, 5, 2, 2]


@pytest.mark.parametrize(
    "one", [cosine(0.3, 0.1), linear(0.3, 0.1), steps({0: 0.3, 5: 0.1}), constant(0.3)]
)
def test_one_round_has_the_first_value_and_what_comes_after_the_last_has_the_last(
    one: Schedule,
) -> None:
    assert one.at(1, 1) == 0.3
    assert one.at(12, 11) == one.at(11, 11)


@pytest.mark.parametrize(
    "one",
    [
        cosine(0.1, 1e-3),
        linear(-2, 3),
        steps({50: 5, 0: 1}),
        constant(1 / 3),
        cosine(1e300, 1e-300),
    ],
)
def test_a_text_says_all(one: Schedule) -> None:
    assert parse_schedule(str(one)) == one
    assert hash(parse_schedule(f"  {one} ")) == hash(one)


def test_texts_are_short() -> None:
    assert str(cosine(1.0, 0.001)) == "cosine(1, 0.001)"
    assert str(steps({50: 5, 0: 1})) == "steps({0: 1, 50: 5})"
    assert cosine(1, 0) != linear(1, 0)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "cosine(1)",
            "cosine(1, 2, 3)",
            "cosine(1, inf)",
            "cosine(1, 'a')",
            "cosine(start=1, end=2)",
            "cosin(1, 2)",
        ),
        *(
            "steps({1: 2})",
            "steps({})",
            "steps({0: True})",
            "steps(3)",
            "steps({0: 1, -1: 2})",
            "cosine(1, 2",
            "",
        ),
        *("__import__('os')", "cosine(1, exit())", "(" * 10_000),
    ],
)
def test_what_is_no_schedule_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_schedule(text)


def test_whole_numbers_are_rounded_to_the_nearest() -> None:
    training = TrainingConfig(epochs=linear(1, 3))
    assert [training.at(t, 5).epochs for t in range(1, 6)] == [1, 2, 2, 3, 3]
    assert type(training.at(1, 5).epochs) is int


def test_without_a_schedule_nothing_is_made_anew() -> None:
    training, method, over = TrainingConfig(), FedProx(), Page(base="fedprox", controls="alpha,eta")
    assert training.at(3, 5) is training
    assert method.at(3, 5) is method
    assert over.at(3, 5) is over


def test_a_base_follows_its_schedule_too() -> None:
    over = Page(base="fedprox", base_options="mu=linear(0,1)", controls="alpha,eta")
    assert [over.at(t, 3).inner for t in (1, 2, 3)] == [
        FedProx(mu=0.0),
        FedProx(mu=0.5),
        FedProx(mu=1.0),
    ]


@pytest.mark.parametrize(
    "how",
    [
        {"lr": cosine(0.1, 0)},
        {"lr": steps({0: 0.1, 7: -1})},
        {"epochs": linear(0, 3)},
        {"momentum": linear(0, 1)},
        {"weight_decay": cosine(-0.1, 0.1)},
    ],
)
def test_bounds_hold_in_every_round(how: dict[str, Schedule]) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(how))} is .*in every round"):
        TrainingConfig(**how)  # type: ignore[arg-type]


def test_an_option_that_is_one_number_takes_no_schedule() -> None:
    with pytest.raises(UsageError, match="alpha is 'cosine"):
        ExperimentConfig.from_options({"method": "feddyn", "method.alpha": "cosine(0.1, 0.01)"})


def test_the_method_is_checked_on_the_numbers_of_every_round() -> None:
    from equipoise.experiment.build import build_task

    fine = {"method": "fedprox", "clients": 4, "rounds": 4, "lr": 0.5}
    build_task(ExperimentConfig.from_options({**fine, "mu": "steps({0: 0, 3: 3})"}))
    with pytest.raises(UsageError, match=r"mu=5 and lr=0\.5"):
        build_task(ExperimentConfig.from_options({**fine, "mu": "steps({0: 0, 3: 5})"}))
    with pytest.raises(UsageError, match="momentum"):
        build_task(
            ExperimentConfig.from_options(
                {**fine, "method": "scaffold", "momentum": "steps({0: 0, 3: 0.5})"}
            )
        )


def _by_hand(
    method: list[Method], training: list[TrainingConfig], executor: str
) -> FederatedSimulation:
    """A run whose constants are exchanged between rounds."""
    task = small_task()
    parts = [
        FederatedSimulation(m, task, t, Rounds(len(method), 0, 1.0, executor, 1, True))
        for m, t in zip(method, training, strict=True)
    ]
    for before, after in pairwise(parts):
        before.run_round()
        after.load_state_dict(before.state_dict(), before.rounds_done)
    parts[-1].run_round()
    return parts[-1]


@pytest.mark.parametrize("executor", ["loop", "stacked"])
@pytest.mark.parametrize(
    ("method", "training", "methods", "trainings"),
    [
        (
            FedAvg(),
            replace(PLAIN, lr=steps({0: 0.1, 2: 0.01}), epochs=steps({0: 1, 1: 3})),
            [FedAvg()] * 4,
            [
                replace(PLAIN, lr=lr, epochs=e)
                for lr, e in ((0.1, 1), (0.1, 3), (0.01, 3), (0.01, 3))
            ],
        ),
        (
            FedAvg(),
            replace(PLAIN, momentum=linear(0, 0.75), weight_decay=linear(0.75, 0)),
            [FedAvg()] * 4,
            [replace(PLAIN, momentum=m, weight_decay=0.75 - m) for m in (0.0, 0.25, 0.5, 0.75)],
        ),
        (
            FedProx(mu=linear(0, 3)),
            PLAIN,
            [FedProx(mu=mu) for mu in (0.0, 1.0, 2.0, 3.0)],
            [PLAIN] * 4,
        ),
        (
            FedAvgM(server_momentum=steps({0: 0.9, 2: 0.5})),
            PLAIN,
            [FedAvgM(server_momentum=m) for m in (0.9, 0.9, 0.5, 0.5)],
            [PLAIN] * 4,
        ),
    ],
)
def test_a_schedule_is_a_run_whose_constants_are_exchanged(
    executor: str,
    method: Method,
    training: TrainingConfig,
    methods: list[Method],
    trainings: list[TrainingConfig],
) -> None:
    followed = FederatedSimulation(
        method, small_task(), training, Rounds(4, 0, 1.0, executor, 1, True)
    )
    for _ in range(4):
        followed.run_round()
    by_hand = _by_hand(methods, trainings, executor)
    assert largest_difference(followed.params, by_hand.params) == 0
    assert (
        largest_difference(
            followed.params, _by_hand([methods[0]] * 4, [trainings[0]] * 4, executor).params
        )
        > 0
    )


def test_a_constant_schedule_is_the_number_to_the_bit() -> None:
    scheduled = replace(PLAIN, lr=constant(0.05), epochs=constant(2), momentum=constant(0.3))
    plain = replace(PLAIN, momentum=0.3)
    one = simulate(FedProx(mu=0.2), small_task(training=plain))
    other = FederatedSimulation(FedProx(mu=constant(0.2)), small_task(), scheduled, one.schedule)
    logs = [other.run_round() for _ in range(3)]
    assert largest_difference(one.params, other.params) == 0
    for log, same in zip(logs, one.logs, strict=True):  # type: ignore[attr-defined]
        assert replace(log, seconds=same.seconds) == same


def test_participation_may_change() -> None:
    schedule = Rounds(4, 0, steps({0: 0.5, 2: 1}), "stacked", 1, True)
    simulation = FederatedSimulation(FedAvg(), small_task(), PLAIN, schedule)
    assert [simulation.run_round().clients for _ in range(4)] == [3, 3, 6, 6]


def test_a_run_goes_on_in_the_middle_of_its_schedules(tmp_path: Path) -> None:
    settings = ExperimentConfig.from_options(
        {
            "method": "fedprox",
            "mu": linear(0, 1),
            "clients": 5,
            "rounds": 8,
            "lr": "cosine(0.1, 0.001)",
            "participation": "steps({0: 0.4, 4: 1})",
        }
    )
    assert settings.to_dict["lr"] == "cosine(0.1, 0.001)"
    assert settings.to_dict["mu"] == "linear(0, 1)"
    assert ExperimentConfig.from_options(settings.to_dict) == settings
    whole = run(settings, tmp_path / "whole")
    again = cut_and_resumed(settings, tmp_path / "cut", at=5)
    assert replace(again, seconds=whole.seconds) == whole
    for file in ("global.safetensors", "personal.safetensors"):
        assert (tmp_path / "cut/models" / file).read_bytes() == (
            tmp_path / "whole/models" / file
        ).read_bytes()


def test_cohorts_of_changing_size_are_not_offered_with_privacy() -> None:
    with pytest.raises(UsageError, match="participation must be one number"):
        ExperimentConfig.from_options({"dp_clip": 1.0, "participation": "linear(0.1, 1)"})
