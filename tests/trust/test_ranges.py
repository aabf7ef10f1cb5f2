"""Lies beside the model: out of their declared range they cost the liar its place in the round, and
nobody else.
"""

import json
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

from equipoise.core import Capabilities, ClientUpdate, Method, Server, ValueRange
from equipoise.core.report_validation import DEFAULT_RANGE, FRACTION, validate_reports, winsorize
from equipoise.methods import all_methods
from equipoise.methods.page import agents
from equipoise.records import codec as codec_of_records
from equipoise.simulation.executors import Stacked
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig
from equipoise.utils.errors import UsageError
from flower.test_remote import SUPERVISED, Here, federate, spoiled
from helpers import small_task

ROUNDS = 3


def test_a_range_names_the_first_number_outside_it():
    values = torch.tensor(
        [[0.0, 1.0], [0.5, -5.0], [2.0, 3.0], [torch.nan, 0.0], [1 + 1e-9, 0.0]],
        dtype=torch.float64,
    )
    assert torch.equal(
        FRACTION.first_violation(values).nan_to_num(nan=99.0, posinf=1e9),
        torch.tensor([99.0, -5.0, 2.0, 1e9, 99.0], dtype=torch.float64),
    )
    each = ValueRange(0.0, (1.0, 10.0))
    assert each.first_violation(
        torch.tensor([[1.0, 9.0], [2.0, 9.0], [1.0, 11.0]])
    ).isnan().tolist() == [True, False, False]
    assert FRACTION.first_violation(torch.tensor([True, False])).isnan().all()
    assert ValueRange(0.0, 3.0).first_violation(
        torch.tensor([2, 255], dtype=torch.uint8)
    ).isnan().tolist() == [True, False]
    assert FRACTION.first_violation(torch.empty(2, 0)).isnan().all()


def test_what_is_not_declared_has_a_wide_range():
    up = ClientUpdate(
        {}, {"c": {"w": torch.tensor([[0.0], [1e7]])}}, {"x": torch.tensor([-1e30, 0.0])}
    )
    found = validate_reports({}, up)
    assert found == {
        0: f"its x is -1e+30: must lie in {DEFAULT_RANGE}",
        1: f"its c/w is 1e+07: must lie in {DEFAULT_RANGE}",
    }
    assert validate_reports({"c": ValueRange(0, 1e8), "x": ValueRange(-1e38, 0)}, up) == {}


class Lying(Stacked):
    """Client 2 changes its upload before it is sent."""

    lie: ClassVar[object]

    def run_clients(self, request):
        replies = super().run_clients(request)
        self.lie(replies.stack.update, request.round)
        return replies


def simulation(method, lie, **options):
    task = small_task("mlp")
    method.check(task, task.info.training)

    def make(*about):
        executor = Lying(*about)
        executor.lie = lie
        return executor

    return FederatedSimulation(
        method, task, task.info.training, RoundLoopConfig(ROUNDS, 0, 1.0, "stacked", 1, True), make
    )


LIES = {
    "autopilot": ({}, "val", -5.0),
    "fedpolicy": ({"policy": "trained"}, "scores", 1.5),
    "fedpolicy dqn": ({"policy": "dqn"}, "scores", 1e150),
    "page": ({"warmup": 1}, "agent_action", 7.0),
    "page reward": ({"warmup": 1}, "agent_reward", 1e200),
}


@pytest.mark.parametrize("name", LIES)
def test_a_lie_costs_the_liar_its_place_and_nobody_else(name):
    options, metric, value = LIES[name]
    method = all_methods()[name.split()[0]](**options)

    def lie(up, round):
        up.metrics[metric][2] = value

    lied = simulation(method, lie)
    logs = [lied.run_round() for _ in range(ROUNDS)]
    for log in logs:
        assert log.dropped == [2]
        assert log.rejected[2].startswith(f"its {metric} is ")
        assert log.test.global_
        json.loads(codec_of_records.dumps(log), parse_constant=pytest.fail)
    # As if it had sent nothing that could be used.
    absent = simulation(
        method, lambda up, round: [v.__setitem__(2, torch.nan) for v in up.params.values()]
    )
    for log in logs:
        other = absent.run_round()
        assert other.dropped == [2]
        assert other.test == log.test


@pytest.mark.parametrize("name", ["autopilot", "fedpolicy", "page"])
def test_the_same_on_flower(name, tmp_path):
    options, metric, value = LIES[name]
    method, task = SUPERVISED[name](**options), small_task("mlp")
    change = spoiled(lambda tree, about: tree["update"]["metrics"][metric].fill_(value))
    remote = federate(method, task, Here(method, task, tmp_path, change))
    log = remote.run_round()
    assert log.rejected.keys() == {2}


@pytest.mark.parametrize(
    "name", sorted(SUPERVISED.keys() - {"fedbn"})
)  # which needs batch normalisation
def test_every_report_is_declared(name):
    """A method whose clients upload more than models says which numbers are sound."""
    kinds = {"fedpolicy": [{"policy": "trained"}, {"policy": "dqn"}, {"policy": "gate"}]}
    for options in kinds.get(name, [{}]):
        method, seen = SUPERVISED[name](**options), set()
        try:
            method.check(small_task("mlp"), small_task("mlp").info.training)
        except UsageError as reason:
            pytest.skip(str(reason))
        run = simulation(method, lambda up, round, seen=seen: seen.update((*up.metrics, *up.extra)))
        for _ in range(2):
            log = run.run_round()
            assert not log.dropped
        assert seen <= method.report_ranges.keys()


@dataclass(frozen=True)
class Fragile(Method):
    """Its server fails on negative numbers, and explodes on large ones."""

    name: ClassVar[str] = "fragile"

    def init_server(self, task, params):
        return {"rounds": torch.zeros(())}

    def upload(self, client):
        up, state = super().upload(client)
        return replace(up, metrics={"told": torch.zeros_like(client.hparams.lr)}), state

    def aggregate(self, server, ids, up, weights):
        told = up.metrics["told"]
        if bool((told < 0).any()):
            raise IndexError("no place for it")
        params, state = super().aggregate(server, ids, up, weights)
        if bool((told > 0).any()):
            params = {name: value * 1e300 for name, value in params.items()}
        return params, {**state, "rounds": state["rounds"] + 1}


def told(value):
    def lie(up, round):
        if round == 2:
            up.metrics["told"][2] = value

    return lie


def test_a_reply_that_makes_the_server_fail_is_found_and_left_out():
    run = simulation(Fragile(), told(-1.0))
    logs = [run.run_round() for _ in range(ROUNDS)]
    assert [log.dropped for log in logs] == [[], [2], []]
    assert "IndexError: no place for it" in logs[1].rejected[2]
    assert float(run.server_state["rounds"]) == 3


def test_an_exploded_aggregate_is_blamed_on_the_reply_that_causes_it():
    run = simulation(Fragile(), told(1.0))
    logs = [run.run_round() for _ in range(ROUNDS)]
    assert [log.dropped for log in logs] == [[], [2], []]
    assert "exploded" in logs[1].rejected[2]
    assert max(float(value.abs().max()) for value in run.params.values()) < 1e6


def test_a_round_that_nobody_can_be_blamed_for_is_skipped_and_the_last_good_state_kept():
    @dataclass(frozen=True)
    class Doomed(Fragile):
        capabilities: ClassVar[Capabilities] = replace(
            Fragile.capabilities, aggregates_by_sum=False
        )

        def aggregate(self, server, ids, up, weights):
            params, state = super().aggregate(server, ids, up, weights)
            return params, {
                **state,
                "rounds": state["rounds"] + (torch.nan if server.round == 2 else 0),
            }

    run = simulation(Doomed(), lambda up, round: None)
    first = run.run_round()
    before = run.params
    second = run.run_round()
    assert first.skipped is None
    assert second.skipped == "the server's state is not finite any more"
    assert run.params is before
    assert float(run.server_state["rounds"]) == 1
    third = run.run_round()
    assert third.skipped is None
    assert float(run.server_state["rounds"]) == 2


def test_an_error_of_the_method_itself_is_raised():
    @dataclass(frozen=True)
    class Broken(Method):
        name: ClassVar[str] = "broken"

        def aggregation_weights(self, server, ids, up):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        simulation(Broken(), lambda up, round: None).run_round()

    @dataclass(frozen=True)
    class Refusing(Broken):
        def aggregation_weights(self, server, ids, up):
            raise UsageError("not like this")

    with pytest.raises(UsageError, match="not like this"):
        simulation(Refusing(), lambda up, round: None).run_round()


def test_a_client_that_was_left_out_keeps_what_it_held():
    method = all_methods()["scaffold"]()

    def lie(up, round):
        if round == 2:
            next(iter(up.extra["c"].values()))[2].fill_(1e30)

    run = simulation(method, lie)
    run.run_round()
    held = replace(run.store.client_state(run.store.ids))
    log = run.run_round()
    assert log.dropped == [2]
    after = run.store.client_state(run.store.ids)
    for name, value in held.state["c"].items():
        assert torch.equal(value[2], after.state["c"][name][2])
        assert not torch.equal(value[1], after.state["c"][name][1])


def test_numbers_far_from_all_others_are_moved_nearer():
    """The median is 4, and all but one of ten lie within 4 of it: so 5 x 4 is the most."""
    values = torch.tensor([[float(k), 0.0] for k in (0, 1, 2, 3, 4, 5, 6, 7, 8, 1000)])
    near = winsorize(values)
    assert near[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 24]
    assert torch.equal(near[:9], values[:9])
    assert torch.equal(winsorize(values[-4:]), values[-4:])  # too few to tell
    assert winsorize(torch.tensor([1.0] * 9 + [1e6])).tolist() == [1.0] * 10


def test_a_shared_agent_never_meets_a_lie_that_is_far_from_all_others():
    """Not as a transition that the first round could not have closed, and later not beyond the
    others' reach.
    """
    rewards = torch.tensor([0.1, -0.1, 0.2, 0.0, -0.2, 0.1, 0.0, 200.0], dtype=torch.float64)
    each = {
        "state": rewards[:, None],
        "action": rewards.clamp(-1, 1)[:, None],
        "reward": rewards,
        "next_state": rewards[:, None],
    }
    told = {f"agent_{name}": value for name, value in each.items()} | {
        "agent_completed": torch.ones(8, dtype=torch.bool)
    }
    task = small_task("linear")
    first, later = (Server(task, task.info.training, {}, {}, 0, round, 5) for round in (1, 2))
    assert not len(agents.completed_transitions(first, told)["reward"])
    rows = agents.completed_transitions(later, told)
    assert float(rows["reward"].max()) == pytest.approx(5 * 0.2)
    assert torch.equal(rows["reward"][:7], rewards[:7])
    assert (
        float(agents.completed_transitions(later, told, clip_outliers=False)["reward"].max()) == 200
    )
