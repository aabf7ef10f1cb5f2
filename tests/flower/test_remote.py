"""Clients behind messages give the run that ``Loop`` gives: every method, through the real codec and the real disk."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from equipoise.contract import Method, Task
from equipoise.flower.node import Node
from equipoise.flower.options import NodeConfig
from equipoise.flower.remote import Remote
from equipoise.methods import all_methods
from equipoise.runtime.round import Schedule, Simulation
from helpers import largest_difference, simulate, small_task

SUPERVISED = {name: method for name, method in all_methods().items() if method.__module__.split(".")[1] != "frl"}
ROUNDS = 3


class Here:
    """A wire within this process. ``spoil`` may change a reply, or hold it back (``None``)."""

    def __init__(self, method: Method, task: Task, folder: Path, spoil: Any = None) -> None:
        options = {item.name: getattr(method, item.name) for item in dataclasses.fields(method)}
        given = {"method": method.name, "rounds": ROUNDS, **dataclasses.asdict(task.training), **options}
        self.nodes = [Node(given, NodeConfig(client, folder, ""), task) for client in range(task.clients)]
        self.away: set[int] = set()
        self.spoil = spoil or (lambda client, reply: reply)
        self.sent: list[dict[int, bytes]] = []

    def present(self) -> dict[int, int]:
        return {client: 1 for client in range(len(self.nodes)) if client not in self.away}

    def exchange(self, messages: dict[int, bytes], limit: float) -> dict[int, bytes | str]:
        self.sent.append(messages)
        replies = {client: self.spoil(client, self.nodes[client].answer(data)) for client, data in messages.items()}
        return {client: reply for client, reply in replies.items() if reply is not None}


def federate(method: Method, task: Task, wire: Here, participation: float = 1.0, fewest: int = 1) -> Simulation:
    def make(*about: Any) -> Remote:
        return Remote(*about, wire=wire, run="test", time_limit=1.0, fewest=fewest)

    return Simulation(method, task, task.training, Schedule(ROUNDS, 0, participation, "loop", 1, True), make)


def server_side(simulation: Simulation) -> Any:
    return {"params": simulation.params, "server": simulation.server_state, "scores": simulation.store.tree("scores")}


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("name", SUPERVISED)
def test_remote_equals_loop_to_the_bit(name: str, participation: float, tmp_path: Path) -> None:
    method, task = SUPERVISED[name](), small_task("mlp")
    loop = simulate(method, task, ROUNDS, "loop", participation)
    remote = federate(method, task, Here(method, task, tmp_path), participation)
    logs = [remote.round() for _ in range(ROUNDS)]
    assert largest_difference(server_side(loop), server_side(remote)) == 0
    for one, other in zip(loop.logs, logs, strict=True):
        assert {k: v for k, v in one.items() if k != "seconds"} == {k: v for k, v in other.items() if k != "seconds"}
