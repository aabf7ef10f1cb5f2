"""The real thing, asynchronously: a node that is slower than the others, and one that is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower has an environment of its own: make test-flower")

from equipoise.flower import project
from equipoise.records.rounds import RoundRecord
from equipoise.records.run_dir import RunFolder
from flower_live.harness import fleet, wait_until

pytestmark = pytest.mark.slow
WAIT = 400  # seconds, on a machine that is busy
GIVEN = {
    **{
        "task": "synthetic",
        "model": "mlp",
        "clients": 3,
        "rounds": 300,
        "epochs": 1,
        "mode": "async",
        "buffer": 2,
    },
    **{"time_limit": 90.0, "wait": 120.0},
}


def test_late_replies_count_later_and_a_killed_node_stops_nobody(tmp_path: Path) -> None:
    app = tmp_path / "app"
    project.write_app(app, GIVEN)

    def logs() -> list[RoundRecord]:
        return RunFolder(app / "run").records()

    with fleet(tmp_path / "fleet") as running:
        nodes = [running.node(client) for client in range(3)]
        run = running.submit(app)
        wait_until(lambda: len(logs()) >= 2, WAIT, "two rounds are over")
        os.killpg(nodes[1].pid, signal.SIGSTOP)  # as slow as can be: the others go on without it
        before = len(logs())
        wait_until(lambda: len(logs()) >= before + 2, WAIT, "the others have gone on")
        os.killpg(nodes[1].pid, signal.SIGCONT)
        wait_until(lambda: any(_late(log) for log in logs()), WAIT, "a late reply has counted")
        late = next(log for log in logs() if _late(log))
        assert late.bytes.up > 0
        assert late.dropped == []
        running.kill("node-2")
        before = len(logs())
        wait_until(lambda: len(logs()) >= before + 2, WAIT, "rounds are over without client 2")
        running.flwr("stop", run, "here")


def _late(log: RoundRecord) -> bool:
    return log.staleness is not None and log.staleness.max >= 1
