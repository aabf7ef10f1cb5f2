"""The gate: who leaves, what clients take at the end, and the evidence it uses, by hand."""

import pytest
import torch
from torch import Tensor

from equipoise.core import Server, State
from equipoise.methods.fedpolicy import gate
from equipoise.methods.fedpolicy.evidence import (
    certain_head_gain,
    shrunk_advantages,
    update_alignment,
)
from equipoise.methods.fedpolicy.fedpolicy import FedPolicy
from equipoise.methods.fedpolicy.gate import (
    GatePolicy,
    lack_of_alignment,
    leaving_clients,
    mean_alignment,
)
from helpers import largest_difference, simulate, small_task

ROUNDS = 60
SKEWED = [0.6, 0.9, 0.9, 0.9]  # the received head does not fit, the backbone does
ALIKE = [0.9, 0.7, 0.7, 0.6]
OTHER_KIND = [0.3, 0.4, 0.6, 0.8]  # the received backbone is of no use
FULL, BACKBONE, HEAD, NONE = range(4)


def decided(
    scores: list[list[float]],
    round: int,
    left: list[int] | None = None,
    parts: str = "",
    alignment: float | list[float] = 0.15,
    before: list[list[float]] | None = None,
) -> tuple[list[int], list[bool]]:
    """The parts of six clients with these scores, and who has left.

    Their mean scores over four probes are those of `before`, or the same.
    """
    task = small_task(samples=400)
    method = FedPolicy(parts=parts) if parts else FedPolicy()
    agent = method.agent
    assert isinstance(agent, GatePolicy)
    policy_state = agent.init(6)
    policy_state["smoothed_scores"] = torch.tensor(scores, dtype=torch.float64)
    policy_state["score_sum"] = 4 * torch.tensor(before or scores, dtype=torch.float64)
    policy_state["probe_count"][:] = 4
    policy_state["probe_round"] = torch.full((6,), round - 1)
    policy_state["has_left"][left or []] = True
    policy_state["alignment_sum"][:] = 2 * torch.tensor(alignment, dtype=torch.float64)
    policy_state["alignment_count"][:] = 2

    server = Server(task, task.info.training, {}, {}, 0, round, ROUNDS)
    part, new = agent.decide(server, {}, policy_state, torch.arange(6))
    return part.tolist(), new["has_left"].tolist()


def test_the_worst_leave_first_and_at_most_half_at_once() -> None:
    gain = torch.tensor([-0.2, -0.1, 0.1, -0.4, -0.3, -0.02])
    is_worse = gain < -0.05
    shares = torch.tensor([True, True, True, True, True, True])
    first = [True, False, False, True, True, False]
    assert leaving_clients(is_worse, gain, shares).tolist() == first
    one_has_left = torch.tensor([True, True, True, False, True, True])
    second = [True, True, False, False, True, False]
    assert leaving_clients(is_worse, gain, one_has_left).tolist() == second
    side_by_side = torch.stack([shares, one_has_left])
    both = leaving_clients(is_worse.expand(2, 6), gain.expand(2, 6), side_by_side)
    assert both.tolist() == [first, second]
    nobody = torch.zeros(6, dtype=torch.bool)
    assert not leaving_clients(is_worse, gain, nobody).any()
    assert not leaving_clients(nobody, gain, shares).any()


def test_alignment_by_hand() -> None:
    """Three unit updates (1, 0), (0, 1), (0.6, 0.8), in two parameters, and one that is zero."""
    first = torch.tensor([[2.0], [0.0], [3.0], [0.0]])
    second = torch.tensor([[0.0], [5.0], [4.0], [0.0]])
    expected = [
        0.6 / (0.6**2 + 1.8**2) ** 0.5,
        0.8 / (1.6**2 + 0.8**2) ** 0.5,
        1.4 / 2**0.5,
        0.0,
    ]
    assert update_alignment([first, second]).tolist() == pytest.approx(expected)
    side_by_side = [torch.stack([values, -values]) for values in (first, second)]
    assert update_alignment(side_by_side)[1].tolist() == pytest.approx(expected)


def test_alignment_is_that_of_the_rounds_before_a_client_is_decided_for() -> None:
    done = simulate(FedPolicy(), small_task(), 24)  # a hold lasts two rounds
    policy_state = done.server_state["policy_state"]
    assert policy_state["alignment_count"].tolist() == [2.0] * 6
    assert bool((mean_alignment(policy_state).abs() <= 1.0).all())
    longer = simulate(FedPolicy(), small_task(), 84)  # a hold lasts seven rounds, five count
    assert longer.server_state["policy_state"]["alignment_count"].tolist() == [5.0] * 6
    few = simulate(FedPolicy(), small_task(clients=4), 24)  # three others are too few
    policy_state = few.server_state["policy_state"]
    assert policy_state["alignment_count"].tolist() == [0.0] * 4
    assert mean_alignment(policy_state).tolist() == [1.0] * 4


def test_clients_whose_updates_are_aligned_do_not_leave() -> None:
    assert decided([OTHER_KIND] * 6, 11, alignment=0.19)[1] == [True] * 3 + [False] * 3
    assert decided([OTHER_KIND] * 6, 11, alignment=gate.ALIGNED)[1] == [False] * 6
    # A received backbone that seems as good does not keep a client whose updates are at odds.
    assert decided([SKEWED] * 6, 11, alignment=-0.1)[1] == [True] * 3 + [False] * 3


def test_a_client_far_less_aligned_than_the_others_may_leave() -> None:
    """0.21 is aligned where the others have 0.3, and not where they have 0.8."""
    scores = [SKEWED] * 5 + [OTHER_KIND]
    assert decided(scores, 11, alignment=[0.3] * 5 + [0.21])[1] == [False] * 6
    assert decided(scores, 11, alignment=[0.8] * 5 + [0.21])[1] == [False] * 5 + [True]


def test_lack_of_alignment_by_hand() -> None:
    alignment = torch.tensor([0.9, 0.8, 0.3, 0.1, 1.0])
    is_known = torch.tensor([True, True, True, True, False])
    assert lack_of_alignment(alignment, is_known).tolist() == pytest.approx([0, 0, 0, 0.1, 0])
    side_by_side = torch.stack([alignment, alignment + torch.tensor([0, 0, 0.3, 0, 0])])
    both = lack_of_alignment(side_by_side, is_known.expand(2, 5))
    assert both[1].tolist() == pytest.approx([0, 0, 0, 0.2, 0])
    nobody = torch.zeros(5, dtype=torch.bool)
    assert lack_of_alignment(alignment, nobody).tolist() == [0.0] * 5


def test_skewed_labels_keep_full_then_backbone_then_none() -> None:
    assert decided([SKEWED] * 6, 11)[0] == [FULL] * 6
    assert decided([SKEWED] * 6, 41)[0] == [FULL] * 6
    assert decided([SKEWED] * 6, 46)[0] == [BACKBONE] * 6
    assert decided([SKEWED] * 6, 56)[0] == [NONE] * 6


def test_clients_that_are_alike_keep_full_to_the_end() -> None:
    for round in (11, 46, 56):
        assert decided([ALIKE] * 6, round) == ([FULL] * 6, [False] * 6)


def test_few_clients_do_not_make_the_head_theirs_at_the_end() -> None:
    before = [ALIKE] * 6
    half = [ALIKE] * 3 + [SKEWED] * 3
    assert decided(half, 46, alignment=0.3, before=before)[0] == [FULL] * 3 + [BACKBONE] * 3
    fewer = [ALIKE] * 2 + [SKEWED] * 4
    assert decided(fewer, 46, alignment=0.3, before=before)[0] == [BACKBONE] * 6
    # Who has left does not count.
    mixed = [OTHER_KIND] * 2 + fewer[:4]
    assert decided(mixed, 46, left=[0, 1], alignment=0.3, before=before)[0] == [
        *(NONE, NONE, FULL, FULL, BACKBONE, BACKBONE)
    ]


def test_one_lucky_probe_does_not_make_clients_with_skewed_labels_keep_full() -> None:
    for round, part in ((46, BACKBONE), (56, NONE)):
        assert decided([ALIKE] * 6, round, before=[SKEWED] * 6)[0] == [part] * 6
        # A gain of the received head that is within its standard error is none.
        barely = [0.91, 0.90, 0.7, 0.6]
        assert decided([ALIKE] * 6, round, before=[barely] * 6)[0] == [part] * 6
        clearly = [0.95, 0.80, 0.7, 0.6]
        assert decided([ALIKE] * 6, round, before=[clearly] * 6)[0] == [FULL] * 6


def test_gain_of_the_received_head_by_hand() -> None:
    """Gains 0.2 and -0.1 of two clients, and one that has not probed; 10 and 40 rows."""
    accuracy = torch.tensor(
        [[0.8, 0.6, 0.5, 0.4], [0.5, 0.6, 0.6, 0.7], [0.0, 0.0, 0.0, 0.0]], dtype=torch.float64
    )
    is_known = torch.tensor([True, True, False])
    found = shrunk_advantages(accuracy, is_known, torch.tensor([10, 40, 10]))
    top = (0.8 + 0.7) / 2
    variance = (0.1 / 10 + 0.1 / 40) / 2 / top**2 / 2
    expected = (0.2 - 0.1) / 2 / top - variance**0.5
    assert certain_head_gain(accuracy, is_known, found).tolist() == pytest.approx([expected])
    side_by_side = shrunk_advantages(
        accuracy.expand(2, 3, 4), is_known.expand(2, 3), torch.tensor([10, 40, 10])
    )
    both = certain_head_gain(accuracy.expand(2, 3, 4), is_known.expand(2, 3), side_by_side)
    assert both.tolist() == [pytest.approx([expected])] * 2


def test_clients_of_another_kind_leave_early_and_take_what_scores_best() -> None:
    mixed = [SKEWED, SKEWED, SKEWED, SKEWED, OTHER_KIND, OTHER_KIND]
    assert decided(mixed, 11, alignment=0.19) == ([FULL] * 4 + [NONE] * 2, [False] * 4 + [True] * 2)
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
    monkeypatch.setattr(gate, "MIN_SHARERS", 0.2)
    assert decided(scores, 31, left=[0, 1, 2, 3, 4])[0] == [NONE] * 6


def test_parts_that_are_not_allowed_are_not_taken() -> None:
    assert decided([SKEWED] * 6, 46, parts="full,none")[0] == [NONE] * 6
    assert decided([SKEWED] * 6, 56, parts="full,backbone")[0] == [BACKBONE] * 6
    assert decided([OTHER_KIND] * 6, 56, parts="full,head")[0] == [HEAD] * 6


def test_probes_are_smoothed() -> None:
    task = small_task()
    agent = FedPolicy().agent
    state: State = agent.init(2)
    ids = torch.arange(2)

    def probed(state: State, scores: Tensor, round: int, who: list[bool]) -> State:
        server = Server(task, task.info.training, {}, {}, 0, round, ROUNDS)
        state = {**state, "probe_requested": torch.tensor(who)}
        return agent.record_probes(server, state, ids, scores)

    first, second = torch.rand(2, 4, dtype=torch.float64), torch.rand(2, 4, dtype=torch.float64)
    state = probed(state, first, 5, [True, True])
    assert largest_difference(state["smoothed_scores"], first) == 0
    state = probed(state, second, 10, [True, False])
    assert largest_difference(state["smoothed_scores"][0], (first[0] + second[0]) / 2) < 1e-15
    assert largest_difference(state["smoothed_scores"][1], first[1]) == 0
    assert largest_difference(state["scores"][0], second[0]) == 0
    assert largest_difference(state["score_sum"][0], first[0] + second[0]) == 0
    assert state["probe_count"].tolist() == [2.0, 1.0]


def test_both_executors_and_few_clients_a_round_agree() -> None:
    for participation in (1.0, 0.5):
        loop, stacked = (
            simulate(FedPolicy(), small_task(), 14, executor, participation)
            for executor in ("loop", "stacked")
        )
        assert largest_difference(loop.state_dict(), stacked.state_dict()) < 1e-7
    assert {part for log in stacked.logs for part in log.logged["part"]} <= set(range(4))
