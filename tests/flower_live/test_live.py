"""The real thing: a SuperLink and three SuperNodes as processes. Run by `make test-flower`."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower has an environment of its own: make test-flower")

from equipoise import runs
from equipoise.flower import options, project
from equipoise.methods import all_methods
from equipoise.runtime import checkpoint
from flower_live.harness import Fleet, fleet, free_port, listens, wait_until
from helpers import largest_difference

pytestmark = pytest.mark.slow
RUN = 400  # seconds within which a short run ends, on a machine that is busy
BASE = {"task": "synthetic", "model": "mlp", "clients": 3, "rounds": 2, "epochs": 2, "time_limit": 60.0, "wait": 90.0}
METHODS = [name for name in ("fedavg", "scaffold", "page", "fedper", "fedpolicy") if name in all_methods()]


def clients_start(running: Fleet, clients: int = 3) -> None:
    for client in range(clients):
        running.node(client)


def same_run_in_loop(folder: Path, given: dict[str, Any]) -> Path:
    settings, _ = options.read({**given, "out": str(folder)})
    settings = dataclasses.replace(settings, run=dataclasses.replace(settings.run, executor="loop"))
    runs.run(settings, folder)
    return folder


def assert_same(running: Fleet, app: Path, loop: Path, clients: int = 3) -> None:
    """Server and clients hold what they hold in ``Loop``, in float32, to the bit."""
    there, _ = checkpoint.load(app / "run" / "checkpoint" / "last.safetensors")
    here, meta = checkpoint.load(loop / "checkpoint" / "last.safetensors")
    there, here = there["simulation"], here["simulation"]
    assert largest_difference(there["params"], here["params"]) == 0
    assert largest_difference(there["server"], here["server"]) == 0
    assert here["store"]["ids"].tolist() == list(range(clients))
    run = json.loads((app / "run" / "flower.json").read_text())["run"]
    for client in range(clients):
        path = running.folder / f"client-{client}" / run / f"client-{client}" / f"round-{meta['round']}.safetensors"
        kept = checkpoint.load(path)[0]["state"]
        expected = {name: _row(value, client) for name, value in here["store"]["trees"]["state"].items()}
        assert largest_difference(kept, expected) == 0


def _row(tree: Any, k: int) -> Any:
    return {name: _row(value, k) for name, value in tree.items()} if isinstance(tree, dict) else tree[k]


def logs_of(app: Path) -> list[dict[str, Any]]:
    return runs.Folder(app / "run").logs()


@pytest.fixture(scope="module")
def open_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet(tmp_path_factory.mktemp("fleet") / "f") as running:
        clients_start(running)
        yield running


@pytest.mark.parametrize("method", METHODS)
def test_the_models_are_those_of_loop(method: str, open_fleet: Fleet, tmp_path: Path) -> None:
    given = {**BASE, "method": method}
    project.write(tmp_path / "app", given)
    run = open_fleet.submit(tmp_path / "app")
    wait_until((tmp_path / "app" / "run" / "summary.json").exists, RUN, f"run {run} ends")
    assert all("absent" not in log for log in logs_of(tmp_path / "app"))
    assert_same(open_fleet, tmp_path / "app", same_run_in_loop(tmp_path / "loop", given))


def test_a_killed_server_app_goes_on_at_the_next_round(open_fleet: Fleet, tmp_path: Path) -> None:
    given, app = {**BASE, "method": "scaffold", "rounds": 3}, tmp_path / "app"
    project.write(app, given)
    run = open_fleet.submit(app)
    wait_until(lambda: logs_of(app), RUN, "the first round is over")
    for pid in open_fleet.children("flwr-serverapp"):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: open_fleet.status(run).startswith("finished"), RUN, "the run has failed")
    assert not (app / "run" / "summary.json").exists()
    open_fleet.submit(app)
    wait_until((app / "run" / "summary.json").exists, RUN, "the resumed run ends")
    assert [log["round"] for log in logs_of(app)] == [1, 2, 3]
    assert_same(open_fleet, app, same_run_in_loop(tmp_path / "loop", given))


def test_a_killed_node_costs_a_round_s_limit_and_may_come_back(open_fleet: Fleet, tmp_path: Path) -> None:
    app = tmp_path / "app"
    project.write(app, {**BASE, "rounds": 60, "time_limit": 30.0})
    run = open_fleet.submit(app)
    wait_until(lambda: logs_of(app), RUN, "the first round is over")
    open_fleet.kill("node-2")
    wait_until(lambda: any("2" in log.get("absent", {}) for log in logs_of(app)), RUN, "client 2 is missed")
    missed = next(log for log in logs_of(app) if "absent" in log)
    assert set(missed["absent"]) == {"2"}
    assert missed["seconds"] < 30 + 20
    open_fleet.node(2)
    wait_until(lambda: "absent" not in logs_of(app)[-1], RUN, "client 2 is back")
    open_fleet.flwr("stop", run, "here")


def safely(certs: Path) -> dict[str, Any]:
    """How a fleet is started with TLS and node keys."""
    secure = [f"--ssl-ca-certfile={certs}/ca.pem", f"--ssl-certfile={certs}/server.pem"]
    secure += [f"--ssl-keyfile={certs}/server.key", "--enable-supernode-auth"]
    ca = f"{certs}/ca.pem"
    return {"secure": secure, "node_secure": [f"--root-certificates={ca}"], "connection": {"root-certificates": ca}}


@pytest.fixture(scope="module")
def safe_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("safe")
    certs = folder / "certs"
    assert cli("certs", str(certs), "--host", "127.0.0.1", "--nodes", "3").returncode == 0
    with fleet(folder / "f", **safely(certs)) as running:
        yield running


def cli(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "equipoise.cli", "flower", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=RUN, env=env, check=False)


def test_tls_and_keys_known_nodes_work_and_an_unknown_one_is_refused(safe_fleet: Fleet, tmp_path: Path) -> None:
    certs, app = safe_fleet.folder.parent / "certs", tmp_path / "app"
    for client in range(2):
        done = safe_fleet.flwr("supernode", "register", str(certs / f"node-{client}.pub"), "here")
        assert done.returncode == 0, done.stdout + done.stderr
    for client in range(3):
        safe_fleet.node(client, "--auth-supernode-private-key", str(certs / f"node-{client}"))
    given = {**BASE, "clients": 2}
    project.write(app, given)
    done = cli("run", str(app), "--superlink", safe_fleet.address, "--ca", str(certs / "ca.pem"), env=safe_fleet.env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "round 2: 2 asked" in done.stdout
    assert_same(safe_fleet, app, same_run_in_loop(tmp_path / "loop", given), clients=2)
    assert not (safe_fleet.folder / "client-2").exists()
    assert "Failed to activate SuperNode" in safe_fleet.log("node-2")


def test_the_doctor_sees_a_closed_port_and_good_certificates(safe_fleet: Fleet) -> None:
    certs = safe_fleet.folder.parent / "certs"
    done = cli("doctor", "--superlink", safe_fleet.address, "--certs", str(certs), env=safe_fleet.env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is closed to other machines" in done.stdout
    loud = {name: value for name, value in safe_fleet.env.items() if not name.startswith("FLWR_")}
    done = cli("doctor", "--superlink", safe_fleet.address, env=loud)
    assert done.returncode == 1
    assert "FLWR_TELEMETRY_ENABLED is not 0" in done.stderr


NGINX = os.environ.get("NGINX") or shutil.which("nginx")


@pytest.mark.skipif(not NGINX, reason="there is no nginx here: apt install nginx, or set NGINX")
def test_through_the_proxy_nodes_work_and_the_control_api_is_closed(tmp_path: Path) -> None:
    certs, outside, app = tmp_path / "certs", f"127.0.0.1:{free_port()}", tmp_path / "app"
    assert cli("certs", str(certs), "--host", "127.0.0.1", "--nodes", "2").returncode == 0
    with fleet(tmp_path / "f", **safely(certs)) as running:
        done = cli(
            "proxy", str(tmp_path / "n"), f"--certs={certs}", "--listen", outside, "--superlink", running.address
        )
        assert done.returncode == 0, done.stderr
        proxy = subprocess.Popen([str(NGINX), "-c", str(tmp_path / "n" / "nginx.conf"), "-g", "daemon off;"])
        try:
            wait_until(lambda: listens(outside), 20, "the proxy listens")
            for client in range(2):
                done = running.flwr("supernode", "register", str(certs / f"node-{client}.pub"), "here")
                assert done.returncode == 0, done.stdout + done.stderr
                key = str(certs / f"node-{client}")
                running.node(client, "--auth-supernode-private-key", key, superlink=outside)
            project.write(app, {**BASE, "clients": 2, "rounds": 1})
            closed = cli("run", str(app), "--superlink", outside, "--ca", str(certs / "ca.pem"), env=running.env)
            assert closed.returncode == 2
            assert "did not take the app" in closed.stderr
            running.submit(app)
            wait_until((app / "run" / "summary.json").exists, RUN, "the run ends")
            assert "absent" not in logs_of(app)[0]
        finally:
            proxy.terminate()
            proxy.wait(10)
    seen = (tmp_path / "n" / "nginx-access.log").read_text()
    assert "/v1/control/" in seen
    assert all(" 403 " in line for line in seen.splitlines() if "/v1/fleet/" not in line)


def test_rows_that_stay_on_their_machines(tmp_path: Path) -> None:
    """Three organisations, each with a CSV of its own; a node is told where by its own start, not by the server."""
    for place in ("server", "0", "1", "2"):
        names = ("public", "test") if place == "server" else ("train", "test")
        (tmp_path / place).mkdir()
        for name in names:
            rows = "\n".join(f"{i / 50:.2f},{(i * 7) % 50 / 50:.2f},{int(i >= 25)}" for i in range(50))
            (tmp_path / place / f"{name}.csv").write_text(f"a,b,label\n{rows}\n")
    with fleet(tmp_path / "f") as running:
        for client in range(3):
            running.node(client, data=str(tmp_path / str(client)))
        app = tmp_path / "app"
        given = {"task": "apart", "data": str(tmp_path / "server"), "rounds": 2, "epochs": 5, "lr": 0.5}
        project.write(app, {**given, "time_limit": 60.0, "wait": 90.0})
        running.submit(app)
        wait_until((app / "run" / "summary.json").exists, RUN, "the run ends")
        logs = logs_of(app)
        assert all("absent" not in log for log in logs)
        assert "client,samples" in (app / "run" / "clients.csv").read_text()
        assert logs[-1]["global"]["acc"] > 0.5
