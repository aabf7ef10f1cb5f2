"""Buffered rounds of clients behind messages: everybody in time is the synchronous run; late, lost
and given up.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise.clock.config import ClockConfig
from equipoise.core import Method, Task
from equipoise.experiment.build import build_task
from equipoise.experiment.runner import RunSession
from equipoise.flower import async_executor
from equipoise.flower.async_executor import AsyncRemoteExecutor
from equipoise.methods import find_method
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.simulation.executor_selection import ExecutorPlan
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig
from equipoise.utils.errors import UsageError
from flower.test_remote import ROUNDS, Here
from helpers import largest_difference, simulate, small_task

LIMIT = 60.0


class Clock:
    """Time passes only in waiting."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


class Slow(Here):
    """A wire within this process: ``pace`` tells how many seconds each client takes, ``None`` for
    ever.
    """

    def __init__(
        self, method: Method, task: Task, folder: Path, pace: dict[int, float | None], clock: Clock
    ) -> None:
        super().__init__(method, task, folder)
        self.pace, self.clock = pace, clock
        self.coming: list[tuple[float, int, bytes]] = []

    def post(self, messages: dict[int, bytes], limit: float) -> None:
        self.sent.append(messages)
        for client, data in messages.items():
            if (seconds := self.pace.get(client, 1.0)) is not None:
                self.coming.append(
                    (self.clock.now + seconds, client, self.nodes[client].answer(data))
                )
        self.coming.sort()

    def gather(self, wanted: int, limit: float) -> dict[int, bytes | str]:
        end, answers = self.clock.now + limit, dict[int, bytes | str]()
        while len(answers) < wanted and self.coming and self.coming[0][0] <= end:
            at, client, answer = self.coming.pop(0)
            self.clock.now, answers[client] = max(self.clock.now, at), answer
        if len(answers) < wanted:
            self.clock.now = end
        return answers


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(async_executor, "time", clock)
    return clock


def federate(
    name: str, folder: Path, clock: Clock, pace: dict[int, float | None], timing: ClockConfig
) -> FederatedSimulation:
    method, task = find_method(name)(), small_task("mlp")
    wire = Slow(method, task, folder, pace, clock)

    def make(*about: Any) -> AsyncRemoteExecutor:
        return AsyncRemoteExecutor(
            *about, timing=timing, wire=wire, run="test", time_limit=LIMIT, min_replies=1
        )

    return FederatedSimulation(
        method, task, task.info.training, RoundLoopConfig(ROUNDS, 0, 1.0, "loop", 1, True), make
    )


@pytest.mark.parametrize("name", ["fedavg", "fedper", "fedavgm", "ditto"])
def test_a_buffer_of_everybody_is_the_synchronous_run_to_the_bit(
    name: str, tmp_path: Path, clock: Clock
) -> None:
    loop = simulate(find_method(name)(), small_task("mlp"), ROUNDS, "loop")
    run = federate(name, tmp_path, clock, {2: 7.0}, ClockConfig(mode="async", buffer=6))
    logs = [run.run_round() for _ in range(ROUNDS)]
    assert largest_difference(run.params, loop.params) == 0
    assert [log.personal for log in logs] == [log.personal for log in loop.logs]
    assert [log.bytes for log in logs] == [log.bytes for log in loop.logs]


def test_a_late_reply_counts_with_its_staleness(tmp_path: Path, clock: Clock) -> None:
    """Client 2 takes five seconds, the others one: with a buffer of five its reply comes in the
    sixth round.
    """
    run = federate(
        "fedavg", tmp_path, clock, {2: 4.5}, ClockConfig(mode="async", buffer=5, staleness=0.5)
    )
    logs = [run.run_round() for _ in range(5)]
    assert [log.clients for log in logs] == [6, 5, 5, 5, 5]
    assert [2 in (log.ids or []) for log in logs] == [False, False, False, False, True]
    assert logs[4].staleness is not None
    assert (logs[4].staleness.max, logs[4].seen) == (4.0, 6)
    assert all(not log.absent for log in logs)


def test_one_late_change_by_hand(tmp_path: Path, clock: Clock) -> None:
    """A buffer of one: what the late client brings is (1 + s)^-a of its change, on the model of
    now.
    """
    timing = ClockConfig(mode="async", buffer=1, staleness=1.0)
    run = federate(
        "fedavg", tmp_path, clock, {0: 1.0, 1: 1.5, **dict.fromkeys(range(2, 6))}, timing
    )
    start = run.params
    run.run_round()  # client 0
    before = run.params
    log = run.run_round()  # client 1, one model late
    assert (log.ids, log.staleness.max if log.staleness else None) == ([1], 1.0)
    alone = simulate(find_method("fedavg")(), small_task("mlp"), 1, "loop").store.local_params
    for name, now in run.params.items():
        assert torch.allclose(now, before[name] + (alone[name][1] - start[name]) / 2, atol=1e-12)


def test_a_dead_client_is_given_up_and_asked_again(tmp_path: Path, clock: Clock) -> None:
    run = federate("fedavg", tmp_path, clock, {2: None}, ClockConfig(mode="async", buffer=6))
    log = run.run_round()
    assert (log.absent, clock.now) == ({2: "no reply in time"}, LIMIT)
    wire: Any = run.executor.wire  # type: ignore[attr-defined]
    wire.pace = {}
    log = run.run_round()
    assert (log.clients, log.absent, log.seen) == (6, {}, 6)


def test_while_one_is_silent_the_others_go_on(tmp_path: Path, clock: Clock) -> None:
    run = federate("fedavg", tmp_path, clock, {2: None}, ClockConfig(mode="async", buffer=5))
    logs = [run.run_round() for _ in range(3)]
    assert clock.now == 3.0  # nobody waits for client 2
    assert [log.clients for log in logs] == [6, 5, 5]


def test_what_a_deployment_cannot_do_is_refused() -> None:
    for options in (
        {"devices": "phones"},
        {"mode": "semi", "deadline": "3s"},
        {"until": "2h"},
        {"selection": "fair"},
    ):
        settings = ExperimentConfig.from_options(options)
        with pytest.raises(UsageError, match="are for simulations"):
            RunSession(
                settings, build_task(settings), None, ExecutorPlan("stacked"), lambda *_: None
            )  # type: ignore[arg-type]
    assert not ExperimentConfig.from_options(
        {"mode": "async", "buffer": 3, "staleness": 1.0}
    ).timing.needs_simulated_clock
