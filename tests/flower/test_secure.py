"""Secure sums: masks that cancel to the bit whoever drops out, and methods that need no more than
sums.
"""

from __future__ import annotations

import itertools
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.cli import main
from equipoise.core import Method
from equipoise.flower import codec
from equipoise.flower.codec import InvalidMessage
from equipoise.flower.secagg_protocol import PublicKeys, SecAggClient, prg, threshold, unmask
from equipoise.methods import all_methods
from equipoise.privacy.accountant import GaussianAccountant
from equipoise.privacy.config import PrivacyConfig
from equipoise.records.run_dir import RunFolder
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.simulation.executors import CohortRequest, CohortResults, Loop
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig
from equipoise.utils.errors import UsageError
from equipoise.utils.pytree import index
from equipoise.wrappers.differential_privacy import seeded_normal, with_differential_privacy
from equipoise.wrappers.secure_aggregation import MAX_ABS_VALUE, SecureAggregation, decode, encode
from flower.test_remote import ROUNDS, Here, federate, server_side
from helpers import largest_difference, simulate, small_task
from helpers_own import BY_ERROR

WORDS = 7


@cache
def begun(clients: int) -> tuple[dict[int, str], dict[int, PublicKeys], dict[int, Any]]:
    """Clients that have published their keys and shared their secrets: states, keys, letters."""
    members = {id: SecAggClient(id, "run 1") for id in range(1, 3 * clients, 3)}
    published = {id: member.public_keys() for id, member in members.items()}
    letters = {id: member.share_secrets(published) for id, member in members.items()}
    return {id: member.to_json() for id, member in members.items()}, published, letters


def summed(clients: int, quiet: set[int], lost: set[int], silent: set[int]) -> tuple[Any, Any]:
    """The protocol in one process: some say nothing after their keys, some after their letters,
    some at the end.
    """
    draw = np.random.default_rng(clients)
    states, published, letters = begun(clients)
    words = {id: draw.integers(0, 2**64, WORDS, np.uint64) for id in states}
    ids = list(words)
    members: dict[int, SecAggClient] = {}
    joined = [id for place, id in enumerate(ids) if place not in quiet]
    masked = {}
    for id in joined:
        members[id] = SecAggClient.from_json(states[id])  # as a node that is started anew
        masked[id] = members[id].mask({by: letters[by][id] for by in joined if by != id}, words[id])
        assert (masked[id] != words[id]).all()
    replied = [id for place, id in enumerate(ids) if place not in quiet | lost]
    told = {
        id: members[id].reveal(replied)
        for place, id in enumerate(ids)
        if place not in quiet | lost | silent
    }
    total = np.add.reduce([masked[id] for id in replied])
    return unmask(total, published, joined, replied, told, "run 1"), np.add.reduce(
        [words[id] for id in replied]
    )


def test_sums_are_exact_whoever_drops_out_and_whenever() -> None:
    """Every way to lose as many of 7 clients as may be lost, at three moments."""
    clients = 7
    spare = clients - threshold(clients)
    assert spare == 2
    for gone in itertools.combinations(range(clients), spare):
        for moments in itertools.product(range(3), repeat=spare):
            when: list[set[int]] = [set(), set(), set()]
            for who, moment in zip(gone, moments, strict=True):
                when[moment].add(who)
            total, expected = summed(clients, *when)
            assert (total == expected).all()


def test_with_fewer_than_the_threshold_nothing_is_unmasked() -> None:
    assert [threshold(n) for n in (3, 4, 5, 6, 9, 100)] == [3, 3, 4, 5, 7, 67]
    with pytest.raises(InvalidMessage, match="a sum of 4 clients is not unmasked"):
        summed(7, {0}, {1, 2}, set())
    with pytest.raises(InvalidMessage, match="4 clients revealed their shares, 5 are needed"):
        summed(7, {0}, set(), {1, 2})


def three() -> tuple[list[SecAggClient], dict[int, PublicKeys], list[dict[int, bytes]]]:
    members = [SecAggClient(id, "run 1") for id in range(3)]
    published = {member.client: member.public_keys() for member in members}
    return members, published, [member.share_secrets(published) for member in members]


def test_no_phase_is_answered_twice_or_out_of_order() -> None:
    (one, *_), published, (_, second, third) = three()
    with pytest.raises(InvalidMessage, match="this phase of the sum is over"):
        one.share_secrets(published)
    with pytest.raises(InvalidMessage, match="not yet reached"):
        one.reveal([0, 1, 2])
    words = np.arange(3, dtype=np.uint64)
    one.mask({1: second[0], 2: third[0]}, words)
    with pytest.raises(InvalidMessage, match="is over"):
        one.mask({1: second[0], 2: third[0]}, words)
    one.reveal([0, 1, 2])
    with pytest.raises(
        InvalidMessage, match="is over"
    ):  # else a server would learn both secrets of one client
        one.reveal([0, 1, 2])


def test_what_a_server_must_not_do_is_refused() -> None:
    published = {id: SecAggClient(id, "run 1").public_keys() for id in range(3)}
    with pytest.raises(InvalidMessage, match="has not this client's own"):
        SecAggClient(0, "run 1").share_secrets(published)
    own = SecAggClient(0, "run 1")
    with pytest.raises(InvalidMessage, match="too short"):
        own.share_secrets({0: own.public_keys(), 1: published[1]})
    with pytest.raises(InvalidMessage, match="has one twice"):
        own.share_secrets({0: own.public_keys(), 1: published[1], 2: published[1]})
    with pytest.raises(InvalidMessage, match="32 bytes"):
        PublicKeys(b"short", bytes(32))
    with pytest.raises(InvalidMessage, match="a public key is none"):
        own.share_secrets(
            {0: own.public_keys(), 1: PublicKeys(bytes(32), b"x" * 32), 2: published[2]}
        )
    (one, *_), _, (_, second, _) = three()
    with pytest.raises(InvalidMessage, match="shares of 1 clients"):
        one.mask({1: second[0]}, np.arange(3, dtype=np.uint64))
    one.mask({1: second[0], 2: b"y" * 48}, np.arange(3, dtype=np.uint64))
    with pytest.raises(InvalidMessage, match="shares of client 2 are not what it sent"):
        one.reveal([0, 1, 2])


def test_streams_are_those_of_their_seed_and_round() -> None:
    assert (prg(b"a" * 16, "run 1", 9)[:5] == prg(b"a" * 16, "run 1", 5)).all()
    for other in (prg(b"b" * 16, "run 1", 9), prg(b"a" * 16, "run 2", 9)):
        assert (prg(b"a" * 16, "run 1", 9) != other).all()


def test_fixed_point_by_hand() -> None:
    unfit = encode(torch.tensor([float("nan"), float("inf"), -(2.0**20) - 1]))
    assert unfit.tolist() == [2**62] * 3
    numbers = torch.tensor([1.5, -0.25, 2.0**-32, -(2.0**20), 2.0**-34], dtype=torch.float64)
    assert encode(numbers).tolist() == [3 * 2**31, -(2**30), 1, -(2**52), 0]
    assert decode(encode(numbers)).tolist() == [1.5, -0.25, 2.0**-32, -(2.0**20), 0]
    assert 2**10 * encode(torch.tensor(MAX_ABS_VALUE)).item() < 2**63  # a whole cohort at the bound


def offered() -> dict[str, Method]:
    """Methods that need only sums, found by asking each."""
    found = {}
    for name, kind in all_methods().items():
        try:
            if kind().capabilities.learner_kind == "gradient":
                SecureAggregation(kind()).check(small_task("mlp"), small_task("mlp").info.training)
                found[name] = kind()
        except UsageError:
            pass
    return found


OFFERED = offered()


def test_who_is_offered_and_who_is_not() -> None:
    assert OFFERED.keys() >= {
        "fedavg",
        "fedavgm",
        "fedprox",
        "scaffold",
        "feddyn",
        "fedper",
        "fedrep",
        "ditto",
        "pfedme",
    }
    assert not OFFERED.keys() & {"page", "fedpolicy", "autopilot", "local"}


@pytest.mark.parametrize("name", sorted(OFFERED))
def test_a_secure_sum_changes_a_method_by_no_more_than_rounding(name: str) -> None:
    task, method = small_task("mlp"), OFFERED[name]
    plain, secure = (
        simulate(method, task, 2, "stacked"),
        simulate(SecureAggregation(method), task, 2, "stacked"),
    )
    assert largest_difference(plain.params, secure.params) < 2e-6
    loop = simulate(SecureAggregation(method), task, 2, "loop", participation=0.7)
    stacked = simulate(SecureAggregation(method), task, 2, "stacked", participation=0.7)
    assert largest_difference(stacked.params, loop.params) < 2e-5


class Missing(Loop):
    """Clients whose replies never come, by round."""

    missing: dict[int, int]

    def run_clients(self, request: CohortRequest) -> CohortResults:
        replies = super().run_clients(request)
        keep = replies.arrived != self.missing.get(request.round, -1)
        return CohortResults(replies.arrived[keep], index(replies.stack, keep))


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "feddyn", "fedrep"])
def test_masked_sums_of_nodes_are_the_plain_ones_to_the_bit(name: str, tmp_path: Path) -> None:
    """One node is lost in each round, after its keys, after its letters, after its words: in the
    sum only the last.
    """
    task, method = small_task("mlp"), OFFERED[name]
    kinds = {1: "share", 2: "mask", 3: "reveal"}

    class Losing(Here):
        def exchange(self, messages: dict[int, bytes], limit: float) -> dict[int, bytes | str]:
            about = codec.decode(next(iter(messages.values())))[1]
            replies = super().exchange(messages, limit)
            if about["kind"] == kinds[about["round"]]:
                replies.pop(about["round"])
            return replies

    def plain(*about: Any) -> Missing:
        executor = Missing(*about)
        executor.missing = {1: 1, 2: 2}
        return executor

    wire = Losing(method, task, tmp_path, more={"secure": True})
    remote = federate(SecureAggregation(method), task, wire)
    logs = [remote.run_round() for _ in range(ROUNDS)]
    local = FederatedSimulation(
        SecureAggregation(method),
        task,
        task.info.training,
        RoundLoopConfig(ROUNDS, 0, 1.0, "loop", 1, True),
        plain,
    )
    for _ in range(ROUNDS):
        local.run_round()
    assert largest_difference(server_side(local), server_side(remote)) == 0
    assert [sorted(log.absent) for log in logs] == [[1], [2], []]
    assert "in the secure sum: no reply in time" in logs[0].absent[1]
    sums = 2 if name in ("scaffold", "feddyn") else 1
    words = (
        sums * sum(local.params[shared].numel() for shared in method.shared_param_names(task)) + 1
    )  # and its weight
    assert logs[0].bytes.up == 8 * words * (task.info.num_clients - 1)


def test_nothing_that_leaves_a_node_tells_its_part(tmp_path: Path) -> None:
    task, method = small_task("mlp"), OFFERED["fedavg"]
    sent: list[tuple[str, bytes]] = []

    class Watched(Here):
        def exchange(self, messages: dict[int, bytes], limit: float) -> dict[int, bytes | str]:
            replies = super().exchange(messages, limit)
            sent.extend(
                (codec.decode(messages[client])[1]["kind"], reply)
                for client, reply in replies.items()
            )
            return replies

    federate(
        SecureAggregation(method), task, Watched(method, task, tmp_path, more={"secure": True})
    ).run_round()
    kinds = [kind for kind, _ in sent]
    assert kinds == [
        kind for kind in ("round", "share", "mask", "reveal") for _ in range(task.info.num_clients)
    ]
    for kind, data in sent:
        tree, _ = codec.decode(data)
        if kind == "round":
            assert tree["update"] == {"params": {}, "extra": {}, "metrics": {}}
        elif kind == "mask":  # masked words are spread over all 64 bits: models are not
            assert (tree["words"].abs() > 2**56).float().mean() > 0.9
        else:
            assert tree == {}
    assert not list(tmp_path.glob("**/member-*"))
    assert not list(tmp_path.glob("**/part-*"))


def test_too_few_change_nothing_and_the_run_goes_on(tmp_path: Path) -> None:
    task, method = small_task("mlp"), OFFERED["fedavg"]
    silent = set(range(task.info.num_clients - threshold(task.info.num_clients) + 1))

    class Losing(Here):
        def exchange(self, messages: dict[int, bytes], limit: float) -> dict[int, bytes | str]:
            about = codec.decode(next(iter(messages.values())))[1]
            replies = super().exchange(messages, limit)
            lost = silent if (about["kind"], about["round"]) == ("mask", 1) else set()
            return {client: reply for client, reply in replies.items() if client not in lost}

    remote = federate(
        SecureAggregation(method), task, Losing(method, task, tmp_path, more={"secure": True})
    )
    before = remote.params
    log = remote.run_round()
    assert largest_difference(before, remote.params) == 0
    assert len(log.absent) == task.info.num_clients
    assert any("are left for the secure sum" in reason for reason in log.absent.values())
    assert not remote.run_round().absent
    assert largest_difference(before, remote.params) > 0


def test_a_part_that_does_not_fit_is_left_out_by_name() -> None:
    task = small_task("mlp")
    simulation = FederatedSimulation(
        SecureAggregation(OFFERED["fedavg"]),
        task,
        task.info.training,
        RoundLoopConfig(1, 0, 1.0, "stacked", 1, True),
    )
    simulation.params = {name: value + 2.0**21 for name, value in simulation.params.items()}
    log = simulation.run_round()
    assert log.dropped == list(range(task.info.num_clients))
    assert "its words/weighted/mean/" in log.rejected[0]


def test_noise_in_secure_sums_equals_the_loop_and_costs_what_the_models_cost(
    tmp_path: Path,
) -> None:
    privacy, task, method = (
        PrivacyConfig(dp_clip=1.0, dp_noise=0.5, dp_delta=1e-6),
        small_task("mlp"),
        OFFERED["fedavg"],
    )
    policy = SecureAggregation(with_differential_privacy(method, privacy, seeded_normal))
    wire = Here(
        method,
        task,
        tmp_path,
        privacy=privacy,
        most_epsilon=1e6,
        more={"secure": True},
        max_clients=task.info.num_clients,
    )
    remote = federate(policy, task, wire)
    logs = [remote.run_round() for _ in range(ROUNDS)]
    assert not any(log.absent for log in logs)
    loop = simulate(policy, task, ROUNDS, "loop")
    assert largest_difference(loop.params, remote.params) == 0
    assert (
        largest_difference(
            simulate(
                with_differential_privacy(method, privacy, seeded_normal), task, ROUNDS, "loop"
            ).params,
            loop.params,
        )
        < 2e-6
    )
    spent = json.loads((tmp_path / "0" / "privacy.json").read_text())["mu_squared"]
    assert spent == pytest.approx(ROUNDS * 4 / (0.5**2 * threshold(task.info.num_clients)))


def test_both_epsilons_of_the_page_on_privacy() -> None:
    """100 clients, 50 rounds, sigma 0.8: 231 against the server that sees uploads, 8.6 against one
    that sees sums.
    """
    everybody = np.arange(100)
    spent = {}
    for secure in (False, True):
        ledger = GaussianAccountant(
            PrivacyConfig(dp_clip=1.0, dp_noise=0.8), 100, 100, True, amplified=True, secure=secure
        )
        for _ in range(50):
            spent[secure] = ledger.after(everybody, 100)
    assert spent[False].epsilon == spent[True].epsilon == spent[True].epsilon_server
    assert spent[True].epsilon_server == pytest.approx(8.6, abs=0.05)
    assert spent[False].epsilon_server == pytest.approx(231, abs=0.5)


REFUSED = [
    (
        "--method page",
        "page is not offered with --secure: its server must see the upload of every client",
    ),
    (f"--method {BY_ERROR}", "beside its model a client reports 'error'"),
    ("--method local", "its clients upload no model"),
    ("--robust trust", "secure is not offered with robust"),
    ("--clients 2", "secure is for 3 to 1024 clients per round, here are 2"),
]


@pytest.mark.parametrize(("words", "reason"), REFUSED)
def test_what_is_refused(
    words: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [
        "run",
        "--secure",
        "--clients",
        "6",
        "--rounds",
        "1",
        *words.split(),
        "--out",
        str(tmp_path / "run"),
    ]
    assert main(given) != 0
    assert reason in capsys.readouterr().err


def test_secure_from_the_command_line(tmp_path: Path) -> None:
    given = ["--clients", "6", "--rounds", "2", "--dp-clip", "1", "--dp-noise", "1", "--out"]
    assert main(["run", "--secure", *given, str(tmp_path / "sum")]) == 0
    assert main(["run", *given, str(tmp_path / "each")]) == 0
    told = {
        name: json.loads((tmp_path / name / "summary.json").read_text())["privacy"]
        for name in ("sum", "each")
    }
    assert told["sum"]["epsilon"] == told["each"]["epsilon"] == told["sum"]["epsilon_server"]
    assert told["sum"]["epsilon_server"] < told["each"]["epsilon_server"]
    assert ExperimentConfig.from_options(RunFolder(tmp_path / "sum").read_config()).run.secure
