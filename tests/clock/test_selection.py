"""Policies of decision 0: by hand, as a user writes one, in runs that are interrupted, and what is
refused.
"""

import json
import math
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

import equipoise as eq
from equipoise.cli import main
from equipoise.client_selection import all_selections, find_selection, recorded_name
from equipoise.client_selection.learned import (
    NUM_FEATURES,
    LearnedSelection,
    client_features,
    max_utility_per_second,
)
from equipoise.client_selection.policies import Fair, Oort, PowerOfChoice, Size, Uniform
from equipoise.core import Pool, RoundFeedback, SelectionPolicy
from equipoise.core.client_selection import top_scores
from equipoise.experiment.build import build_task
from equipoise.experiment.runner import run
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.utils.errors import UsageError
from equipoise.utils.rng import sample_cohort
from helpers import cut_and_resumed, timeless

NAN = math.nan


def pool(count=2, clients=5, round=3, **facts):
    ids = torch.arange(clients)
    known = {
        "loss": [NAN] * clients,
        "seconds": [NAN] * clients,
        "last": [0] * clients,
        "replies": [0] * clients,
    }
    given = {name: torch.tensor(values) for name, values in {**known, **facts}.items()}
    return Pool(
        ids,
        given.pop("sizes", torch.full((clients,), 10)),
        **given,
        count=count,
        seed=0,
        round=round,
    )


def chosen(selection, among, state=None):
    return selection.choose(among, selection.init() if state is None else state)[0].tolist()


def test_uniform_is_the_cohort_of_every_method():
    assert chosen(Uniform(), pool(3, 10)) == sample_cohort(0, 3, 10, 0.3).tolist()
    assert chosen(Uniform(), pool(9, 5)) == [0, 1, 2, 3, 4]


def test_the_highest_scores_and_ties_by_chance():
    assert top_scores(pool(2), torch.tensor([0.0, 3.0, 1.0, 2.0, NAN])).tolist() == [
        1,
        4,
    ]  # nothing is known of the last
    drawn = {tuple(top_scores(pool(1, round=t), torch.zeros(5)).tolist()) for t in range(60)}
    assert drawn == {(k,) for k in range(5)}


def test_by_size_chances_are_proportional():
    """One place for sizes 1, 2, 7: the first two get it in 10 and 20 % of the rounds."""
    one = [chosen(Size(), pool(1, 3, t, sizes=[1, 2, 7]))[0] for t in range(1500)]
    assert [one.count(k) / len(one) for k in range(3)] == pytest.approx([0.1, 0.2, 0.7], abs=0.02)


def test_power_of_choice_takes_the_largest_losses_of_its_candidates():
    told = pool(2, loss=[5.0, 1.0, 4.0, 2.0, 3.0])
    assert chosen(PowerOfChoice(candidates=2.5), told) == [0, 2]  # everybody is a candidate
    few = [
        chosen(PowerOfChoice(candidates=1.0), replace(told, round=t)) for t in range(50)
    ]  # candidates are drawn by size
    assert len({tuple(one) for one in few}) > 5
    assert chosen(PowerOfChoice(candidates=2.5), pool(2, loss=[5.0, NAN, 4.0, 2.0, 3.0])) == [
        0,
        1,
    ]  # unknown ones go first


def test_oort_weighs_utility_against_time():
    told = pool(
        1,
        round=400,
        loss=[2.0, 3.0, 1.0, 1.0, 1.0],
        seconds=[1.0, 4.0, 1.0, 1.0, 1.0],
        last=[399] * 5,
    )
    assert chosen(Oort(alpha=0.0), told) == [1]
    assert chosen(Oort(alpha=2.0), told) == [0]  # 3 (1/4)^2 is less than 2
    new = pool(
        2,
        round=400,
        loss=[2.0, 3.0, NAN, 1.0, 1.0],
        seconds=[1.0, 1.0, NAN, 1.0, 1.0],
        last=[399] * 5,
    )
    assert chosen(Oort(), new) == [1, 2]  # a place for somebody new
    assert len(chosen(Oort(), pool(3, round=1))) == 3


def test_fair_goes_in_turn():
    """Whoever never replied first, even if it was asked lately; then whoever waits longest, replies
    or not.
    """
    assert chosen(Fair(), pool(1, round=9, replies=[3, 1, 2, 0, 5], last=[1, 2, 3, 8, 4])) == [3]
    assert chosen(Fair(), pool(2, round=9, replies=[9, 1, 1, 1, 1], last=[2, 7, 3, 8, 8])) == [0, 2]


def test_the_set_with_the_most_worth_per_second():
    """Worth 1 each and times 1, 2, 10: two bring 2 in 2 seconds; the third would have to be worth
    more.
    """
    three, nobody = pool(2, 3, seconds=[1.0, 2.0, 10.0]), torch.zeros(3, dtype=torch.bool)
    assert max_utility_per_second(three, torch.tensor([1.0, 1.0, 1.0]), nobody).tolist() == [0, 1]
    assert max_utility_per_second(three, torch.tensor([1.5, 1.0, 20.0]), nobody).tolist() == [0, 2]
    assert max_utility_per_second(
        pool(5), torch.ones(5), torch.zeros(5, dtype=torch.bool)
    ).tolist() == [
        0,
        1,
        2,
        3,
        4,
    ]


def test_whoever_is_due_is_asked_and_the_rest_fills_its_time():
    """The slow one must be in it, so the other place goes to the most worth
    within its ten seconds.
    """
    four = pool(2, 4, seconds=[1.0, 2.0, 10.0, 9.0])
    due = torch.tensor([False, False, True, False])
    assert max_utility_per_second(four, torch.tensor([1.0, 1.0, 0.1, 1.5]), due).tolist() == [2, 3]


def test_everybody_is_asked_at_least_so_often():
    """Uniform cohorts of 2 of 5 ask everybody once in 2.5 rounds; a quarter of that is once in 10;
    slow ones first.
    """
    waiting = pool(2, round=21, last=[20, 11, 10, 10, 10], seconds=[1.0, 2.0, 3.0, 5.0, 4.0])
    assert LearnedSelection(floor=0.25).overdue(waiting).tolist() == [
        False,
        False,
        False,
        True,
        True,
    ]
    assert LearnedSelection(floor=0.25).overdue(replace(waiting, round=20)).tolist() == [False] * 5
    assert not LearnedSelection(floor=0.0).overdue(waiting).any()
    assert chosen(LearnedSelection(control="zero"), waiting) == [3, 4]


def test_slow_clients_are_not_left_behind():
    """One client takes a thousand times as long as the others: it is asked once in 5 / 0.25 rounds,
    no more.
    """
    learner, last = LearnedSelection(control="zero"), torch.zeros(5, dtype=torch.int64)
    asked = []
    for t in range(1, 101):
        among = replace(pool(1, round=t, seconds=[1.0, 1.0, 1.0, 1.0, 1000.0]), last=last.clone())
        asked += chosen(learner, among)
        last[asked[-1]] = t
    assert [t + 1 for t, client in enumerate(asked) if client == 4] == [21, 42, 63, 84]
    assert min(asked.count(client) for client in range(4)) > 4


def test_the_bandit_learns_what_brings_progress():
    """A reply brings 1 + 0.5 of the client's loss beside the others': that is what the regression
    finds.
    """
    learner = LearnedSelection(forgetting=1.0)
    state = learner.init()
    for t in range(1, 400):
        everybody = pool(
            2,
            6,
            t,
            loss=torch.rand(6, generator=torch.Generator().manual_seed(t)).tolist(),
            last=[0] * 6,
        )
        came = torch.arange(6) == t % 6
        progress = float(0.01 * (1 + 0.5 * client_features(everybody)[came][0, 2]))
        state = learner.observe(
            RoundFeedback(everybody, came, 1.0, progress),
            {**state, "scale": torch.tensor(0.01).double()},
        )
    assert torch.linalg.solve(state["A"], state["b"]).tolist() == pytest.approx(
        [0, 0, 0.5, 0], abs=0.01
    )


def test_regression_by_hand():
    """One round of equal clients with usual progress changes nothing: y - 1 = 0."""
    learner, everybody = LearnedSelection(), torch.ones(5, dtype=torch.bool)
    state = learner.observe(RoundFeedback(pool(5), everybody, 2.0, 0.3), learner.init())
    assert torch.equal(state["b"], torch.zeros(NUM_FEATURES, dtype=torch.float64))
    assert float(state["A"][0, 0]) == 2.0
    # Then half of that: the scale is 0.98 * 0.3 + 0.02 * 0.15 = 0.297, y = 0.15 / 0.297 - 1.
    state = learner.observe(RoundFeedback(pool(5), everybody, 2.0, 0.15), state)
    assert float(state["b"][0]) == pytest.approx(0.15 / 0.297 - 1, rel=1e-12)
    assert learner.observe(RoundFeedback(pool(5), ~everybody, 2.0, 1.0), state) is state


def test_controls_differ_from_what_is_learned():
    state = {
        **LearnedSelection().init(),
        "b": torch.tensor([0.0, 0.0, 5.0, 0.0], dtype=torch.float64),
    }
    told = pool(1, loss=[0.1, 0.1, 0.1, 0.1, 9.0], seconds=[1.0] * 5)
    assert all(
        chosen(LearnedSelection(exploration=0.0), replace(told, round=t), state) == [4]
        for t in range(5)
    )
    for control in ("zero", "random"):
        drawn = {
            tuple(chosen(LearnedSelection(control=control), replace(told, round=t), state))
            for t in range(30)
        }
        assert len(drawn) > 2


OPTIONS = {
    "clients": 12,
    "samples": 40,
    "epochs": 1,
    "rounds": 7,
    "participation": 0.3,
    "devices": "phones",
}


@pytest.mark.parametrize("name", [name for name in all_selections() if name != "uniform"])
@pytest.mark.parametrize("mode", [{}, {"mode": "async", "buffer": 2}], ids=["sync", "async"])
def test_every_policy_runs_and_resumes_to_the_bit(name, mode, tmp_path):
    settings = ExperimentConfig.from_options({**OPTIONS, **mode, "selection": name})
    whole = run(settings, tmp_path / "whole")
    assert timeless(cut_and_resumed(settings, tmp_path / "cut", 5)) == timeless(whole)


def test_telling_costs_one_number_per_upload(tmp_path):
    plain, told = (
        run(
            ExperimentConfig.from_options({**OPTIONS, "devices": "default", "selection": name}),
            tmp_path / name,
        )
        for name in ("fair", "loss")
    )
    uploads = 7 * 4
    assert told.bytes.up - plain.bytes.up == 4 * uploads
    assert told.bytes.down == plain.bytes.down


class Quickest(eq.SelectionPolicy):
    def scores(self, pool):
        return -pool.seconds


@dataclass(frozen=True)
class Wrong(SelectionPolicy):
    name: ClassVar[str] = "wrong"

    def choose(self, pool, state):
        return pool.ids[:1].repeat(2), state


def test_a_policy_of_ones_own(tmp_path):
    own = eq.run(
        tmp_path / "own",
        selection=Quickest,
        clients=12,
        samples=40,
        participation=0.25,
        rounds=12,
        devices="phones",
    )
    times = [record.clock for record in own.rounds]
    assert times[-1] - times[-2] < times[1] - times[0]
    file = tmp_path / "mine.py"
    file.write_text(
        "import equipoise as eq\n\n"
        "class Quickest(eq.SelectionPolicy):\n"
        "    def scores(self, pool):\n        return -pool.seconds\n"
    )
    typed = [
        "--clients",
        "12",
        "--samples",
        "40",
        "--participation",
        "0.25",
        "--rounds",
        "12",
        "--devices",
        "phones",
    ]
    assert (
        main(
            [
                "run",
                *typed,
                "--selection",
                f"{file}:Quickest",
                "--out",
                str(tmp_path / "typed"),
                "--quiet",
            ]
        )
        == 0
    )
    assert json.loads((tmp_path / "typed" / "summary.json").read_text())["clock"] == own.final.clock


def test_names():
    assert list(all_selections()) == ["fair", "learned", "loss", "oort", "size", "uniform"]
    assert all(find_selection(name) is kind for name, kind in all_selections().items())
    assert recorded_name(PowerOfChoice) == "loss"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"selection": "ort"}, "selection is 'ort': must be one of fair, .*did you mean 'oort'"),
        (
            {"selection": "nowhere.py:Mine"},
            "there is no file 'nowhere.py' to take selection 'Mine' from",
        ),
        (
            {"selection": "equipoise.client_selection.policies:Fare"},
            "'equipoise.client_selection.policies' has no class 'Fare' that is a Sel",
        ),
        ({"selection": 3}, "give a name, or a subclass of equipoise.Selection"),
        ({"selection": "fair", "dp_clip": 1.0}, "selection fair is not offered with dp_clip"),
        ({"selection": "oort", "secure": True}, "selection oort is not offered with secure"),
        (
            {"selection": "oort", "task": "two-state", "method": "fedasynq-im"},
            "selection oort reads losses",
        ),
    ],
)
def test_refusals(options, words):
    with pytest.raises(UsageError, match=words):
        build_task(ExperimentConfig.from_options(options))


def test_a_policy_that_errs_is_told_so(tmp_path):
    with pytest.raises(
        UsageError, match=r"Wrong.choose must give at most 4 of the pool's clients, each once"
    ):
        run(ExperimentConfig.from_options({**OPTIONS, "selection": Wrong}), tmp_path / "w")
