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

from equipoise.data.tabular.exchange import merge_messages, summarise_site
from equipoise.experiment import runner as runs
from equipoise.experiment.new_rows import predict_file
from equipoise.flower import config as options
from equipoise.flower import project
from equipoise.records.rounds import Bytes, RoundRecord
from equipoise.records.run_dir import RunFolder
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.utils import serialization as checkpoint
from flower_live.harness import Fleet, fleet, free_port, listens, wait_until
from helpers import largest_difference

pytestmark = pytest.mark.slow
RUN = 400  # seconds within which a short run ends, on a machine that is busy
BASE = {
    "task": "synthetic",
    "model": "mlp",
    "clients": 3,
    "rounds": 2,
    "epochs": 1,
    "time_limit": 90.0,
    "wait": 120.0,
}
METHODS: dict[str, dict[str, Any]] = {
    **{"fedavg": {}, "scaffold": {}, "page": {}, "fedpolicy": {"policy": "random"}},
    **{"scaffold in secure sums": {"method": "scaffold", "secure": True}},
}


def same_run_in_loop(folder: Path, given: dict[str, Any]) -> Path:
    settings, _ = options.read_app_config({**given, "out": str(folder)})
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
        path = (
            running.folder
            / f"client-{client}"
            / run
            / f"client-{client}"
            / f"round-{meta['round']}.safetensors"
        )
        kept = checkpoint.load(path)[0]["state"]
        expected = {
            name: _row(value, client) for name, value in here["store"]["trees"]["state"].items()
        }
        assert largest_difference(kept, expected) == 0


def _row(tree: Any, k: int) -> Any:
    return (
        {name: _row(value, k) for name, value in tree.items()}
        if isinstance(tree, dict)
        else tree[k]
    )


def logs_of(app: Path) -> list[RoundRecord]:
    return RunFolder(app / "run").records()


@pytest.fixture(scope="module")
def open_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Without encryption.

    Each client has rows of its own, which tasks that make theirs do not read.
    """
    folder = tmp_path_factory.mktemp("fleet")
    for client in range(3):
        write_rows(folder / f"rows-{client}", "train", "test")
    with fleet(folder / "f") as running:
        for client in range(3):
            running.node(client, data=str(folder / f"rows-{client}"))
        yield running


def write_rows(folder: Path, *names: str) -> None:
    folder.mkdir()
    rows = "\n".join(f"{i / 50:.2f},{(i * 7) % 50 / 50:.2f},{int(i >= 25)}" for i in range(50))
    for name in names:
        (folder / f"{name}.csv").write_text(f"a,b,label\n{rows}\n")


@pytest.fixture(scope="module")
def beside_billed() -> dict[str, float]:
    """Bytes that a run of each method costs beside those that its log bills: names, shapes,
    Flower's own.
    """
    return {}


@pytest.mark.parametrize("method", METHODS)
def test_the_models_are_those_of_loop(
    method: str, open_fleet: Fleet, tmp_path: Path, beside_billed: dict[str, float]
) -> None:
    given = {**BASE, "method": method, **METHODS[method]}
    project.write_app(tmp_path / "app", given)
    run = open_fleet.submit(tmp_path / "app")
    wait_until((tmp_path / "app" / "run" / "summary.json").exists, RUN, f"run {run} ends")
    logs, loop = logs_of(tmp_path / "app"), same_run_in_loop(tmp_path / "loop", given)
    assert all(not log.absent for log in logs)
    assert_same(open_fleet, tmp_path / "app", loop)
    assert [log.bytes for log in logs] == [log.bytes for log in RunFolder(loop).records()]
    audit = [
        json.loads(line) for line in (tmp_path / "app" / "run-audit.jsonl").read_text().splitlines()
    ]
    assert sorted(line["client"] for line in audit if line["event"] == "joined") == [0, 1, 2]
    assert [line["contributed"] for line in audit if line["event"] == "round"] == [
        "all others"
    ] * len(logs)
    own = [
        json.loads(line)
        for line in (open_fleet.folder / "client-0" / "audit.jsonl").read_text().splitlines()
    ]
    there = {
        (line["sent"], line["reply"])
        for line in audit
        if line["event"] == "exchange" and line["client"] == 0
    }
    assert there <= {(line["asked"], line["sent"]) for line in own}
    assert (tmp_path / "app" / "run").stat().st_mode & 0o777 == 0o700
    billed = sum(log.bytes.total for log in logs)
    beside_billed[method] = open_fleet.traffic(run) - billed
    if (
        method == "fedpolicy"
    ):  # what it saves on paper is really not sent: what is beside it stays what it is
        whole = sum(log.bytes.up for log in logs)
        saved = whole - sum(log.bytes.down for log in logs)
        assert saved > 0
        assert beside_billed[method] - beside_billed["fedavg"] < saved / 2


def test_a_killed_server_app_goes_on_at_the_next_round(open_fleet: Fleet, tmp_path: Path) -> None:
    given, app = {**BASE, "method": "scaffold", "rounds": 3}, tmp_path / "app"
    project.write_app(app, given)
    run = open_fleet.submit(app)
    wait_until(lambda: logs_of(app), RUN, "the first round is over")
    for pid in open_fleet.children("flwr-serverapp"):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: open_fleet.status(run).startswith("finished"), RUN, "the run has failed")
    assert not (app / "run" / "summary.json").exists()
    open_fleet.submit(app)
    wait_until((app / "run" / "summary.json").exists, RUN, "the resumed run ends")
    assert [log.round for log in logs_of(app)] == [1, 2, 3]
    assert_same(open_fleet, app, same_run_in_loop(tmp_path / "loop", given))


def test_rows_that_stay_on_their_machines(open_fleet: Fleet, tmp_path: Path) -> None:
    """Three organisations, each with a CSV of its own; a node is told where by its own start, not
    by the server.
    """
    write_rows(tmp_path / "server", "public", "test")
    app = tmp_path / "app"
    given = {
        "task": "remote-tables",
        "data": str(tmp_path / "server"),
        "rounds": 1,
        "epochs": 20,
        "lr": 0.5,
    }
    project.write_app(app, {**given, "time_limit": 90.0, "wait": 120.0})
    open_fleet.submit(app)
    wait_until((app / "run" / "summary.json").exists, RUN, "the run ends")
    logs = logs_of(app)
    assert all(not log.absent for log in logs)
    assert (app / "run" / "clients.csv").read_text().splitlines()[1].startswith("0,45,")
    assert logs[-1].global_.acc > 0.5


def test_raw_tables_are_prepared_by_what_clients_tell(open_fleet: Fleet, tmp_path: Path) -> None:
    """As if each site had written its file and somebody had merged them; the folder then predicts
    new rows.
    """
    write_rows(tmp_path / "server", "public", "test")
    app = tmp_path / "app"
    given = {
        "task": "remote-tables",
        "data": str(tmp_path / "server"),
        "target": "label",
        "numbers": "a,b",
        "rounds": 2,
    }
    project.write_app(app, {**given, "metric": "auc", "time_limit": 90.0, "wait": 120.0})
    write_rows(tmp_path / "guest", "test")  # no training rows
    open_fleet.node(9, data=str(tmp_path / "guest"), role="validate")
    run = open_fleet.submit(app)
    wait_until(lambda: open_fleet.status(run).startswith("finished"), RUN, "the run ends")
    open_fleet.kill("node-9")
    folder = RunFolder(app / "run")
    assert folder.read_table(folder.validation)["rows"] == [50]
    assert all(value == value for value in folder.read_table(folder.clients)["gain_over_own"])
    said = (app / "run" / "progress.log").read_text()
    assert "validate node 9 (validate): the global model has auc" in said
    assert "training alone" in said
    config = ExperimentConfig.from_options(given).task_config
    told = {
        f"client {k}": summarise_site(open_fleet.folder.parent / f"rows-{k}", str(k), config)
        for k in range(3)
    }
    made = merge_messages(told, config)[0].to_json()
    assert (app / "run" / "preparation.json").read_text() == made
    summary = RunFolder(app / "run").read_summary()
    assert summary.bytes_before == Bytes(sum(len(text) for text in told.values()), 3 * len(made))
    assert not any(log.absent for log in logs_of(app))
    columns = RunFolder(app / "run").read_table(
        RunFolder(app / "run").clients
    )  # each client's own words, after the last round
    bounds = zip(
        columns["personal_auc_low"],
        columns["personal_auc"],
        columns["personal_auc_high"],
        strict=True,
    )
    assert [low <= own <= high for low, own, high in bounds] == [True] * 3
    (tmp_path / "new.csv").write_text("a,b\n0.1,0.4\n0.9,0.2\n")
    out = tmp_path / "predicted.csv"
    assert "2 predictions" in predict_file(app / "run", tmp_path / "new.csv", out)[0]
    assert out.read_text().startswith("row,predicted,p(0),p(1)\n2,")


def test_nodes_grow_trees_from_sums(open_fleet: Fleet, tmp_path: Path) -> None:
    """One exchange per level; only new trees are sent, and the folder predicts new rows."""
    pytest.importorskip("numba", reason="trees need the extra `trees`")
    write_rows(tmp_path / "server", "public", "test")
    app = tmp_path / "app"
    given = {
        "task": "remote-tables",
        "data": str(tmp_path / "server"),
        "target": "label",
        "numbers": "a,b",
        "method": "fedtrees",
        "model": "trees",
        "trees": 2,
        "tree_depth": 2,
        "leaf_rows": 5,
        "eval_every": 7,
    }
    project.write_app(app, {**given, "metric": "auc", "time_limit": 90.0, "wait": 120.0})
    open_fleet.submit(app)
    wait_until((app / "run" / "summary.json").exists, RUN, "the run ends")
    logs = logs_of(app)
    assert not any(log.absent or log.rejected for log in logs)
    assert logs[-1].global_.auc > 0.9
    grown = [log.bytes.down for log in logs if 4 <= log.round <= len(logs)]
    assert max(grown) < logs[2].bytes.down  # bins are sent once, in the third round
    (tmp_path / "new.csv").write_text("a,b\n0.1,0.4\n0.9,0.2\n")
    out = tmp_path / "predicted.csv"
    assert "2 predictions" in predict_file(app / "run", tmp_path / "new.csv", out)[0]


def test_under_privacy_epsilon_is_in_the_log_and_nothing_but_the_model_comes(
    open_fleet: Fleet, tmp_path: Path
) -> None:
    app = tmp_path / "app"
    project.write_app(app, {**BASE, "rounds": 1, "dp_clip": 1.0, "dp_noise": 2.0})
    open_fleet.submit(app)
    wait_until((app / "run" / "summary.json").exists, RUN, "the run ends")
    (log,) = logs_of(app)
    assert 0 < log.privacy.epsilon < log.privacy.epsilon_server
    assert not log.has_client_scores
    assert log.global_.acc >= 0
    assert (open_fleet.folder / "client-0" / "privacy.json").exists()


def test_a_killed_node_costs_a_round_s_limit_and_may_come_back(
    open_fleet: Fleet, tmp_path: Path
) -> None:
    """That a round never waits longer than its limit is tested by the clock of test_wire.py, not by
    this machine's.
    """
    app = tmp_path / "app"
    project.write_app(app, {**BASE, "rounds": 60, "time_limit": 40.0})
    run = open_fleet.submit(app)
    wait_until(lambda: logs_of(app), RUN, "the first round is over")
    open_fleet.kill("node-2")
    wait_until(lambda: any(2 in log.absent for log in logs_of(app)), RUN, "client 2 is missed")
    missed = next(log for log in logs_of(app) if 2 in log.absent)
    reason = missed.absent[2]
    assert reason in ("no reply in time", "not connected") or reason.startswith(
        "Flower reports error"
    )
    assert missed.bytes.up > 0
    open_fleet.node(2)
    wait_until(lambda: 2 not in logs_of(app)[-1].absent, RUN, "client 2 is back")
    open_fleet.flwr("stop", run, "here")


def safely(certs: Path) -> dict[str, Any]:
    """How a fleet is started with TLS and node keys."""
    secure = [f"--ssl-ca-certfile={certs}/ca.pem", f"--ssl-certfile={certs}/server.pem"]
    secure += [f"--ssl-keyfile={certs}/server.key", "--enable-supernode-auth"]
    ca = f"{certs}/ca.pem"
    return {
        "secure": secure,
        "node_secure": [f"--root-certificates={ca}"],
        "connection": {"root-certificates": ca},
    }


NGINX = os.environ.get("NGINX") or shutil.which("nginx")


@pytest.fixture(scope="module")
def safe_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """TLS and keys; where there is an nginx, nodes come through the proxy."""
    folder = tmp_path_factory.mktemp("safe")
    certs, outside = folder / "certs", f"127.0.0.1:{free_port()}"
    assert (
        cli(
            "certs", str(certs), "--host", "fl.example.org", "--host", "127.0.0.1", "--nodes", "4"
        ).returncode
        == 0
    )
    with fleet(folder / "f", **safely(certs)) as running:
        if not NGINX:
            yield running
            return
        conf = [
            "proxy",
            str(folder / "n"),
            f"--certs={certs}",
            "--listen",
            outside,
            "--superlink",
            running.address,
        ]
        assert cli(*conf).returncode == 0
        proxy = subprocess.Popen(
            [str(NGINX), "-c", str(folder / "n" / "nginx.conf"), "-g", "daemon off;"]
        )
        try:
            wait_until(lambda: listens(outside), 60, "the proxy listens")
            running.outside = outside
            yield running
        finally:
            proxy.terminate()
            proxy.wait(10)


def cli(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "equipoise", "flower", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=RUN, env=env, check=False
    )


def test_known_nodes_work_an_unknown_key_is_refused_and_so_is_another_s_place(
    safe_fleet: Fleet, tmp_path: Path
) -> None:
    """Keys 0 and 1 are registered for clients 0 and 1, key 3 for client 2; key 2 is unknown, and 3
    says it is 1.
    """
    certs, app, nodes = (
        safe_fleet.folder.parent / "certs",
        tmp_path / "app",
        tmp_path / "nodes.json",
    )
    where = ["--superlink", safe_fleet.address, "--ca", str(certs / "ca.pem")]
    for key, client in ((0, 0), (1, 1), (3, 2)):
        pub = str(certs / f"node-{key}.pub")
        done = cli(
            "register",
            pub,
            "--client",
            str(client),
            "--nodes",
            str(nodes),
            *where,
            env=safe_fleet.env,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    done = cli(
        "register", str(certs / "node-2.pub"), "--client", "0", "--nodes", str(nodes), *where
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "client 0 has a node" in done.stderr
    keys = {0: 0, 1: 1, 2: 2, 3: 1}  # key: the client that its node says it is
    for key, client in keys.items():
        safe_fleet.node(
            client, "--auth-supernode-private-key", str(certs / f"node-{key}"), name=f"key-{key}"
        )
    given = {**BASE, "clients": 2}
    project.write_app(app, {**given, "nodes": str(nodes)})
    done = cli("run", str(app), *where, env=safe_fleet.env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "round 2 of 2: client 0, client 1; " in done.stdout
    assert_same(safe_fleet, app, same_run_in_loop(tmp_path / "loop", given), clients=2)
    assert not (safe_fleet.folder / "client-2").exists()
    assert "Failed to activate SuperNode" in safe_fleet.log("key-2")
    wait_until(
        lambda: "its key is registered for client 2" in safe_fleet.app_log(),
        60,
        "the log names the impostor",
    )


def test_the_doctor_sees_a_closed_port_and_good_certificates(safe_fleet: Fleet) -> None:
    certs = safe_fleet.folder.parent / "certs"
    done = cli(
        "doctor", "--superlink", safe_fleet.address, "--certs", str(certs), env=safe_fleet.env
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is closed to other machines" in done.stdout
    loud = {name: value for name, value in safe_fleet.env.items() if not name.startswith("FLWR_")}
    done = cli("doctor", "--superlink", safe_fleet.address, env=loud)
    assert done.returncode == 1
    assert "FLWR_TELEMETRY_ENABLED is not 0" in done.stderr


@pytest.mark.skipif(not NGINX, reason="there is no nginx here: apt install nginx, or set NGINX")
def test_through_the_proxy_the_control_api_is_closed(safe_fleet: Fleet, tmp_path: Path) -> None:
    certs, app = safe_fleet.folder.parent / "certs", tmp_path / "app"
    project.write_app(app, {**BASE, "clients": 2})
    closed = cli(
        "run",
        str(app),
        "--superlink",
        safe_fleet.outside,
        "--ca",
        str(certs / "ca.pem"),
        env=safe_fleet.env,
    )
    assert closed.returncode == 2
    assert "did not take the app" in closed.stderr
    seen = (safe_fleet.folder.parent / "n" / "nginx-access.log").read_text().splitlines()
    assert any("/v1/fleet/" in line and " 200 " in line for line in seen)
    assert any("/v1/control/" in line for line in seen)
    assert all(" 403 " in line for line in seen if "/v1/fleet/" not in line)


def test_the_simulation_runtime_gives_the_same_models(tmp_path: Path) -> None:
    pytest.importorskip(
        "ray", reason="there is no Ray here: pip install 'equipoise[flower-simulation]'"
    )
    app = tmp_path / "app"
    given = {
        **BASE,
        "method": "fedper",
        "rounds": 2,
        "wait": 240.0,
    }  # a busy machine takes minutes to start its actors
    project.write_app(app, given)
    done = cli("run", str(app), "--simulation")
    if "timed out during startup" in done.stderr:
        pytest.skip("Ray gives itself 30 s to start, which this machine was too busy for")
    assert done.returncode == 0, done.stdout + done.stderr
    loop = same_run_in_loop(tmp_path / "loop", given)
    there, here = (
        checkpoint.load(p / "checkpoint" / "last.safetensors")[0] for p in (app / "run", loop)
    )
    assert largest_difference(there["simulation"]["params"], here["simulation"]["params"]) == 0
