"""The gate: who leaves, what clients take at the end, and the evidence it uses, by hand."""

import pytest
import torch
from torch import Tensor

from equipoise.core import Server, State
from equipoise.methods.fedpolicy import policies
from equipoise.methods.fedpolicy.fedpolicy import FedPolicy
from equipoise.methods.fedpolicy.policies import GatePolicy, leaving_clients
from helpers import largest_difference, simulate, small_task

ROUNDS = 60
SKEWED = [0.6, 0.9, 0.9, 0.9]  # the received head does not fit, the backbone does
ALIKE = [0.9, 0.7, 0.7, 0.6]
OTHER_KIND = [0.3, 0.4, 0.6, 0.8]  # the received backbone is of no use
FULL, BACKBONE, HEAD, NONE = range(4)


def decided(
    scores: list[list[float]], round: int, left: list[int] | None = None, parts: str = ""
) -> tuple[list[int], list[bool]]:
    """The parts of six clients with these scores, and who has left."""
    task = small_task(samples=400)
    method = FedPolicy(parts=parts) if parts else FedPolicy()
    gate = method.agent
    assert isinstance(gate, GatePolicy)
    policy_state = gate.init(6)
    policy_state["smoothed_scores"] = torch.tensor(scores, dtype=torch.float64)
    policy_state["probe_round"] = torch.full((6,), round - 1)
    policy_state["has_left"][left or []] = True

    server = Server(task, task.info.training, {}, {}, 0, round, ROUNDS)
    part, new = gate.decide(server, {}, policy_state, torch.arange(6))
    return part.tolist(), new["has_left"].tolist()


def test_the_worst_leave_first_and_at_most_half_at_once() -> None:
    advantage = torch.tensor([-0.2, -0.1, 0.1, -0.4, -0.3, -0.02])
    shares = torch.tensor([True, True, True, True, True, True])
    assert leaving_clients(advantage, advantage, shares).tolist() == [
        *(True, False, False, True, True, False)
    ]
    shares[3] = False
    assert leaving_clients(advantage, advantage, shares).tolist() == [
        *(True, True, False, False, True, False)
    ]
    nobody = torch.zeros(6, dtype=torch.bool)
    assert not leaving_clients(advantage, advantage, nobody).any()
    slightly = torch.full((6,), -policies.LEAVE_MARGIN + 1e-9)
    assert not leaving_clients(slightly, slightly, torch.ones(6, dtype=torch.bool)).any()


@pytest.mark.parametrize("scores", [SKEWED, ALIKE, OTHER_KIND])
def test_everybody_takes_full_before_the_second_probe(scores: list[float]) -> None:
    assert decided([scores] * 6, 6) == ([FULL] * 6, [False] * 6)


def test_skewed_labels_keep_full_then_backbone_then_none() -> None:
    assert decided([SKEWED] * 6, 11)[0] == [FULL] * 6
    assert decided([SKEWED] * 6, 41)[0] == [FULL] * 6
    assert decided([SKEWED] * 6, 46)[0] == [BACKBONE] * 6
    assert decided([SKEWED] * 6, 56)[0] == [NONE] * 6


def test_clients_that_are_alike_keep_full_to_the_end() -> None:
    for round in (11, 46, 56):
        assert decided([ALIKE] * 6, round) == ([FULL] * 6, [False] * 6)


def test_clients_of_another_kind_leave_early_and_take_what_scores_best() -> None:
    mixed = [SKEWED, SKEWED, SKEWED, SKEWED, OTHER_KIND, OTHER_KIND]
    assert decided(mixed, 11) == ([FULL] * 4 + [NONE] * 2, [False] * 4 + [True] * 2)
    assert decided([OTHER_KIND] * 6, 11)[1] == [True] * 3 + [False] * 3  # half of them at once
    assert decided([OTHER_KIND] * 6, 16, left=[0, 1, 2])[0] == [NONE] * 5 + [FULL]
    # Who has left returns where the received model suits it again; nobody leaves at the end.
    assert decided([ALIKE] * 6, 21, left=[0])[0] == [FULL] * 6
    assert decided([OTHER_KIND] * 6, 46)[1] == [False] * 6


def test_the_global_model_does_not_become_that_of_one_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scores = [OTHER_KIND] * 5 + [ALIKE]
    assert decided(scores, 31, left=[0, 1, 2, 3, 4])[0] == [NONE] * 5 + [FULL]  # one of six
    monkeypatch.setattr(policies, "MIN_SHARERS", 0.2)
    assert decided(scores, 31, left=[0, 1, 2, 3, 4])[0] == [NONE] * 6


def test_parts_that_are_not_allowed_are_not_taken() -> None:
    assert decided([SKEWED] * 6, 46, parts="full,none")[0] == [NONE] * 6
    assert decided([SKEWED] * 6, 56, parts="full,backbone")[0] == [BACKBONE] * 6
    assert decided([OTHER_KIND] * 6, 56, parts="full,head")[0] == [HEAD] * 6


def test_probes_are_smoothed() -> None:
    task = small_task()
    gate = FedPolicy().agent
    state: State = gate.init(2)
    ids = torch.arange(2)

    def probed(state: State, scores: Tensor, round: int, who: list[bool]) -> State:
        server = Server(task, task.info.training, {}, {}, 0, round, ROUNDS)
        state = {**state, "probe_requested": torch.tensor(who)}
        return gate.record_probes(server, state, ids, scores)

    first, second = torch.rand(2, 4, dtype=torch.float64), torch.rand(2, 4, dtype=torch.float64)
    state = probed(state, first, 5, [True, True])
    assert largest_difference(state["smoothed_scores"], first) == 0
    state = probed(state, second, 10, [True, False])
    assert largest_difference(state["smoothed_scores"][0], (first[0] + second[0]) / 2) < 1e-15
    assert largest_difference(state["smoothed_scores"][1], first[1]) == 0
    assert largest_difference(state["scores"][0], second[0]) == 0


def test_both_executors_and_few_clients_a_round_agree() -> None:
    for participation in (1.0, 0.5):
        loop, stacked = (
            simulate(FedPolicy(), small_task(), 14, executor, participation)
            for executor in ("loop", "stacked")
        )
        assert largest_difference(loop.state_dict(), stacked.state_dict()) < 1e-7
    assert {part for log in stacked.logs for part in log.logged["part"]} <= set(range(4))
