"""Clients behind messages give the run that ``Loop`` gives: every method, through the real codec
and the real disk.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch

from equipoise.core import Method, Task
from equipoise.experiment.build import build_task
from equipoise.flower import codec
from equipoise.flower.client_state import ClientStateStore
from equipoise.flower.config import NodeConfig
from equipoise.flower.node import Node
from equipoise.flower.remote_executor import RemoteExecutor
from equipoise.methods import all_methods
from equipoise.privacy.config import PrivacyConfig
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig
from equipoise.utils import serialization as checkpoint
from equipoise.utils.errors import UsageError
from equipoise.wrappers.differential_privacy import NormalSampler, seeded_normal
from helpers import largest_difference, simulate, small_task, timeless

SUPERVISED = {
    name: method
    for name, method in all_methods().items()
    if method().capabilities.learner_kind == "gradient"
}
ROUNDS = 3


class Here:
    """A wire within this process. ``spoil`` may change a reply, or hold it back (``None``)."""

    def __init__(
        self,
        method: Method,
        task: Task,
        folder: Path,
        spoil: Any = None,
        of: str = "synthetic",
        privacy: PrivacyConfig = PrivacyConfig(),  # noqa: B008 (it cannot change)
        draw: NormalSampler = seeded_normal,
        most_epsilon: float | None = None,
        more: Mapping[str, Any] = MappingProxyType({}),
        max_clients: int | None = None,
    ) -> None:
        options = {
            f"method.{item.name}": getattr(method, item.name) for item in dataclasses.fields(method)
        }
        given = {
            "method": method.name,
            "task": of,
            "rounds": ROUNDS,
            **dataclasses.asdict(task.info.training),
            **options,
        }
        given |= {**dataclasses.asdict(privacy), **more}
        self.nodes = [
            Node(
                given,
                NodeConfig(client, folder / f"{client}", "", most_epsilon, max_clients=max_clients),
                task,
                draw,
            )
            for client in range(task.info.num_clients)
        ]
        self.away: set[int] = set()
        self.spoil = spoil or (lambda client, reply: reply)
        self.sent: list[dict[int, bytes]] = []

    def present(self) -> dict[int, int]:
        return {client: 1 for client in range(len(self.nodes)) if client not in self.away}

    def exchange(self, messages: dict[int, bytes], limit: float) -> dict[int, bytes | str]:
        self.sent.append(messages)
        replies = {
            client: self.spoil(client, self.nodes[client].answer(data))
            for client, data in messages.items()
        }
        return {client: reply for client, reply in replies.items() if reply is not None}


def federate(
    method: Method,
    task: Task,
    wire: Here,
    participation: float = 1.0,
    min_replies: int = 1,
    run: str = "test",
) -> FederatedSimulation:
    def make(*about: Any) -> RemoteExecutor:
        return RemoteExecutor(*about, wire=wire, run=run, time_limit=1.0, min_replies=min_replies)

    return FederatedSimulation(
        method,
        task,
        task.info.training,
        RoundLoopConfig(ROUNDS, 0, participation, "loop", 1, True),
        make,
    )


def server_side(simulation: FederatedSimulation) -> Any:
    return {
        "params": simulation.params,
        "server": simulation.server_state,
        "scores": simulation.store.scores,
    }


EVERYBODY = ("fedavg", "scaffold", "fedper", "page", "autopilot", "fedpolicy")
"""Methods that are tried with all clients too; absent clients are the harder case."""


@pytest.mark.parametrize(
    ("name", "participation"),
    [*((name, 0.5) for name in SUPERVISED), *((name, 1.0) for name in EVERYBODY)],
)
def test_remote_equals_loop_to_the_bit(name: str, participation: float, tmp_path: Path) -> None:
    method, task = SUPERVISED[name](), small_task("mlp", samples=24)
    loop = simulate(method, task, ROUNDS, "loop", participation)
    remote = federate(method, task, Here(method, task, tmp_path), participation)
    logs = [remote.run_round() for _ in range(ROUNDS)]
    assert largest_difference(server_side(loop), server_side(remote)) == 0
    for one, other in zip(loop.logs, logs, strict=True):
        assert timeless(one) == timeless(other)


WORLDS: list[tuple[str, dict[str, Any]]] = [
    ("two-state", {}),
    ("planted", {"agents": 3, "model": "v"}),
    ("planted", {"agents": 3, "model": "q"}),
    (
        "cartpole",
        {
            "agents": 2,
            "width": 8,
            "episodes": 1,
            "capacity": 200,
            "learning_starts": 16,
            "epochs": 3,
        },
    ),
]


def world_of(name: str) -> tuple[str, dict[str, Any], Method, Task]:
    """The first task that this learner can work on."""
    for world, small in WORLDS:
        with contextlib.suppress(UsageError):
            settings = ExperimentConfig.from_options(
                {"method": name, "task": world, "rounds": ROUNDS, **small}
            )
            return world, small, settings.method, build_task(settings)
    raise AssertionError(f"none of {WORLDS} suits {name}")


AGENTS = {name for name, method in all_methods().items() if method.family == "agents"}
"""Trees travel in tests/trees."""


@pytest.mark.parametrize("name", sorted(AGENTS))
def test_learners_that_are_agents_travel_too(name: str, tmp_path: Path) -> None:
    world, small, method, task = world_of(name)
    loop = simulate(method, task, ROUNDS, "loop")
    remote = federate(method, task, Here(method, task, tmp_path, of=world, more=small))
    for _ in range(ROUNDS):
        assert not remote.run_round().absent
    assert largest_difference(server_side(loop), server_side(remote)) == 0


def test_blocks_that_are_not_sent_are_not_in_the_message(tmp_path: Path) -> None:
    method, task = SUPERVISED["fedper"](), small_task("mlp")
    wire = Here(method, task, tmp_path)
    federate(method, task, wire).run_round()
    tree, _ = codec.decode(wire.sent[0][0])
    assert sorted(tree["params"]) == sorted(task.info.blocks["backbone"])


def test_adapters_travel_over_a_base_that_every_node_has(tmp_path: Path) -> None:
    """The base never travels; a node whose base is another is left out, with the reason."""
    method, task = SUPERVISED["fedavg"](), small_task("mlp").with_network("", "rank=2", "", 0)
    loop = simulate(method, task, ROUNDS, "loop")
    wire = Here(method, task, tmp_path)
    remote = federate(method, task, wire)
    assert not any(remote.run_round().absent for _ in range(ROUNDS))
    assert largest_difference(server_side(loop), server_side(remote)) == 0
    assert not set(codec.decode(wire.sent[0][0])[0]["params"]) & set(task.frozen)
    wire.nodes[2].task = small_task("mlp").with_network("", "rank=2", "", 1)
    del wire.nodes[2]._frozen
    told = federate(method, task, wire).run_round().absent
    assert list(told) == [2]
    assert "its frozen parameters are not the server's" in told[2]


def spoiled(change: Any) -> Any:
    """Client 2 replies something else."""

    def spoil(client: int, reply: bytes) -> bytes:
        if client != 2:
            return reply
        tree, about = codec.decode(reply)
        change(tree, about)
        return codec.encode(tree, about)

    return spoil


HOSTILE = {
    "not a number": (lambda t, a: t["update"]["params"]["0.weight"].fill_(torch.nan), "holds NaN"),
    "a wrong shape": (
        lambda t, a: t["update"]["params"].update({"0.weight": torch.zeros(1)}),
        "has shape",
    ),
    "a wrong type": (
        lambda t, a: t["update"]["params"].update(
            {"0.weight": t["update"]["params"]["0.weight"].int()}
        ),
        "has type",
    ),
    "another name": (lambda t, a: t["update"]["params"].update(x=torch.zeros(1)), "unknown 'x'"),
    "too much": (lambda t, a: t["update"]["extra"].update(x=torch.zeros(10**6)), "bytes came"),
    "negative epochs": (lambda t, a: t["hparams"]["epochs"].fill_(-1), "negative"),
    "another client": (lambda t, a: a.update(client=1), "answers another message"),
    "an old round": (lambda t, a: a.update(round=7), "answers another message"),
    "another run": (lambda t, a: a.update(run="other"), "answers another message"),
    "no run": (lambda t, a: a.pop("run"), "answers another message"),
    "its own failure": (lambda t, a: a.update(error="disk full"), "disk full"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_reply_is_refused_named_and_leaves_the_others_alone(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    change, reason = HOSTILE[name]
    method, task = SUPERVISED["fedavg"](), small_task("mlp")
    honest = federate(
        method, task, Here(method, task, tmp_path / "a", lambda c, r: None if c == 2 else r)
    )
    run = federate(method, task, Here(method, task, tmp_path / "b", spoiled(change)))
    honest.run_round()
    log = run.run_round()
    assert reason in log.absent[2]
    assert "nothing from client 2" in caplog.text
    assert largest_difference(honest.params, run.params) == 0


def test_garbage_instead_of_a_reply_is_refused(tmp_path: Path) -> None:
    method, task = SUPERVISED["fedavg"](), small_task("mlp")
    run = federate(
        method, task, Here(method, task, tmp_path, lambda c, r: b"\x80\x04garbage" if c == 0 else r)
    )
    assert "cannot be read" in run.run_round().absent[0]


def test_weights_are_renormalised_over_those_who_replied(tmp_path: Path) -> None:
    method, task = SUPERVISED["fedavg"](), small_task("mlp")
    wire = Here(method, task, tmp_path)
    wire.away = {1, 4}
    run = federate(method, task, wire)
    log = run.run_round()
    assert log.absent == {1: "not connected", 4: "not connected"}
    here = [0, 2, 3, 5]
    n = task.num_examples(torch.tensor(here)).double()
    uploads = [
        codec.decode(wire.nodes[c].answer(wire.sent[0][c]))[0]["update"]["params"]["0.weight"]
        for c in here
    ]
    expected = sum(w * u for w, u in zip(n / n.sum(), uploads, strict=True))
    assert torch.allclose(run.params["0.weight"], expected, atol=1e-12)


def test_bytes_of_clients_that_were_not_reached_are_not_billed(tmp_path: Path) -> None:
    method, task = SUPERVISED["fedavg"](), small_task("mlp")
    wire = Here(method, task, tmp_path)
    run = federate(method, task, wire)
    everybody = run.run_round().bytes
    wire.away = {0, 1, 2}
    half = run.run_round().bytes
    assert (2 * half.up, 2 * half.down) == (everybody.up, everybody.down)


def test_below_the_minimum_nothing_changes_and_the_round_says_so(tmp_path: Path) -> None:
    method, task = SUPERVISED["scaffold"](), small_task("mlp")
    wire = Here(method, task, tmp_path)
    run = federate(method, task, wire, min_replies=4)
    before = run.params
    wire.away = {0, 1, 2}
    assert run.run_round().skipped == "3 usable replies, 4 are needed"
    assert run.params is before
    wire.away = set(range(6))
    assert run.run_round().skipped.startswith("0 usable")


def test_a_reply_that_was_lost_did_not_happen_on_either_side(tmp_path: Path) -> None:
    """SCAFFOLD's c must stay the mean of all c_i: a client whose upload was lost goes back to the
    state before it.
    """
    method, task = SUPERVISED["scaffold"](), small_task("mlp")
    lost = {"round": 0}

    def spoil(client: int, reply: bytes) -> bytes | None:
        return None if client == 3 and lost["round"] == 2 else reply

    wire = Here(method, task, tmp_path, spoil)
    run = federate(method, task, wire)
    for lost["round"] in (1, 2, 3):
        run.run_round()
    c = [
        _state_of(tmp_path, client, ROUNDS)["c"]["0.weight"]
        for client in range(task.info.num_clients)
    ]
    assert torch.allclose(run.server_state["c"]["0.weight"], torch.stack(c).mean(0), atol=1e-12)


def _state_of(folder: Path, client: int, round: int) -> Any:
    return checkpoint.load(
        folder / f"{client}" / "test" / f"client-{client}" / f"round-{round}.safetensors"
    )[0]["state"]


@pytest.mark.parametrize("name", ["scaffold", "page", "fedrep", "ditto", "autopilot"])
def test_a_server_that_dies_after_asking_resumes_to_the_same_run(name: str, tmp_path: Path) -> None:
    method, task = SUPERVISED[name](), small_task("mlp")
    whole = federate(method, task, Here(method, task, tmp_path / "a"))
    for _ in range(ROUNDS):
        whole.run_round()
    wire = Here(method, task, tmp_path / "b")
    first = federate(method, task, wire)
    first.run_round()
    saved = copy.deepcopy(first.state_dict())
    first.run_round()  # clients worked for nothing: the server dies before it saves
    second = federate(method, task, wire)
    second.load_state_dict(saved, 1)
    for _ in range(ROUNDS - 1):
        second.run_round()
    assert largest_difference(server_side(whole), server_side(second)) == 0


def test_a_client_that_lost_its_disk_says_so_and_starts_afresh(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    method, task = SUPERVISED["scaffold"](), small_task("mlp")
    run = federate(method, task, Here(method, task, tmp_path))
    run.run_round()
    shutil.rmtree(tmp_path / "1" / "test" / "client-1")
    log = run.run_round()
    assert "client 1 has lost its state" in caplog.text
    assert not log.absent


def test_a_client_keeps_two_rounds_and_its_model(tmp_path: Path) -> None:
    method, task = SUPERVISED["ditto"](), small_task("mlp")
    run = federate(method, task, Here(method, task, tmp_path))
    for _ in range(ROUNDS):
        run.run_round()
    folder = tmp_path / "0" / "test" / "client-0"
    assert sorted(path.name for path in folder.glob("round-*")) == [
        "round-2.safetensors",
        "round-3.safetensors",
    ]
    assert sorted(path.name for path in (folder / "models").iterdir()) == [
        "card.json",
        "global.safetensors",
    ]


def test_a_damaged_state_file_counts_as_lost(tmp_path: Path) -> None:
    disk = ClientStateStore(tmp_path, "run", 0)
    disk.save(1, {"local": {"w": torch.ones(4)}}, 0)
    file = disk.path / "round-1.safetensors"
    file.write_bytes(file.read_bytes()[:-3])
    assert disk.load(1) is None


def test_a_run_id_that_is_a_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="must be letters and digits"):
        ClientStateStore(tmp_path, "../elsewhere", 0)
