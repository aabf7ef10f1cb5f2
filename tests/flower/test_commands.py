"""``equipoise flower`` on a machine without Flower, and rows that stay apart."""

from __future__ import annotations

import http.client
import importlib.util
import os
import shutil
import socket
import ssl
import subprocess
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

from equipoise.cli import flower as command
from equipoise.cli import main
from equipoise.flower import audit
from equipoise.flower import config as options
from equipoise.flower.config import NodeConfig
from equipoise.flower.node import Node
from equipoise.tasks.remote_tables import (
    LocalFolderData,
    RemoteTablesConfig,
    RemoteTablesTask,
    build,
)
from equipoise.utils.errors import UsageError


def test_init_writes_an_app_whose_options_come_back(tmp_path: Path) -> None:
    app = tmp_path / "app"
    assert (
        main(
            [
                "flower",
                "init",
                str(app),
                "--method",
                "scaffold",
                "--server-lr",
                "0.5",
                "--min-replies",
                "2",
            ]
        )
        == 0
    )
    about = tomllib.loads((app / "pyproject.toml").read_text())
    assert about["project"]["dependencies"] == []
    settings, deployment = options.read_app_config(about["tool"]["flwr"]["app"]["config"])
    assert settings.method.server_lr == 0.5
    assert settings.run.checkpoint_every == 1
    assert deployment.min_replies == 2
    assert deployment.out == str((app / "run").resolve())


WRONG = [
    (["init", "APP", "--below", "wait"], "must be one of skip, stop"),
    (["init", "APP", "--time-limit", "0"], "must be a number above 0"),
    (["init", "APP", "--time-limit", "soon"], "time_limit is 'soon': must be a number"),
    (["init", "APP", "--time-limit", "nan"], "must be a number above 0"),
    (["init", "APP", "--wait", "-1"], "wait is -1.0"),
    (["init", "APP", "--wait", "inf"], "wait is inf"),
    (["init", "APP", "--min-replies", "0"], "min_replies is 0"),
    (["init", "APP", "--min-replies", "1.5"], "must be a whole number"),
    (["init", "APP", "--out", "here"], "must be an absolute path"),
    (["init", "APP", "--nodes", "here"], "must be an absolute path"),
    (["init", "APP", "--config", "APP"], "there is no config file"),
    (["init", "APP", "--method", "fedavgg"], "unknown method 'fedavgg'"),
    (["init", "APP", "--rounds", "0"], "rounds is 0"),
    (["init", "APP", "--finetune"], "fine-tune at the clients"),
    (["init", "APP", "--dp-noise", "1"], "set dp_clip too"),
    (["init", "APP", "--metod", "fedavg"], "--method"),
    (["init"], "folder"),
    (["strat"], "unknown command 'flower strat'"),
    (["run"], "folder"),
    (["run", "APP"], "is not an app"),
    (["run", "APP", "--simulation"], "is not an app"),
    (["run", "APP", "--superlnk", "x"], "--superlink"),
    (["certs", "APP"], "--host"),
    (["certs", "APP", "--host", ""], "host is ''"),
    (["certs", "APP", "--host", "two words"], "must be a name or an address"),
    (["certs", "APP", "--host", "a", "--nodes", "-1"], "nodes -1"),
    (["certs", "APP", "--host", "a", "--nodes", "many"], "invalid int value: 'many'"),
    (["certs", "APP", "--host", "a", "--days", "0"], "days is 0"),
    (["register", "APP", "--client", "0"], "there is no public key"),
    (["register", "APP", "--client", "-1"], "client is -1"),
    (["register", "APP"], "--client"),
    (["doctor", "--superlink", "nowhere"], "must be host:port"),
    (["doctor", "--superlink", "127.0.0.1:70000"], "must be host:port"),
    (["doctor", "--certs"], "expected one argument"),
    (["proxy", "APP", "--certs", "APP"], "no server.pem"),
    (["proxy", "APP", "--certs", "APP", "--listen", "port"], "listen is 'port'"),
    (["proxy", "APP", "--certs", "APP", "--superlink", ":8000"], "superlink is ':8000'"),
    (["proxy", "APP"], "--certs"),
]


@pytest.mark.parametrize(("arguments", "says"), WRONG)
def test_bad_input_is_one_line(
    arguments: list[str],
    says: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "needs_flower", lambda: None)
    if arguments[0] == "certs":
        pytest.importorskip("cryptography", reason="comes with Flower: make test-flower")
    app = str(tmp_path / "app")
    assert main(["flower", *(app if a == "APP" else a for a in arguments)]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    assert not Path(app).exists()


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--superlink", "here"], "superlink is 'here'"),
        (["--ca", "nowhere.pem"], "there is no certificate 'nowhere.pem'"),
    ],
)
def test_a_run_that_cannot_reach_a_superlink_is_one_line(
    more: list[str],
    says: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "needs_flower", lambda: None)
    assert main(["flower", "init", str(tmp_path / "app")]) == 0
    assert main(["flower", "run", str(tmp_path / "app"), *more]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("name", ["run", "certs", "register"])
def test_without_flower_it_says_how_to_get_it(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if importlib.util.find_spec("flwr"):
        pytest.skip("Flower is here")
    more = {"certs": ["--host", "a"], "register": ["--client", "0"], "run": []}[name]
    assert main(["flower", name, str(tmp_path / "x"), *more]) == 2
    assert "pip install 'equipoise[flower]'" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 0}', '{"1": -1}', '{"1": "0"}'])
def test_a_damaged_file_of_nodes_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "nodes.json").write_text(text)
    with pytest.raises(UsageError, match=r"nodes\.json"):
        audit.read_node_register(tmp_path / "nodes.json")


def test_init_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert main(["flower", "init", str(tmp_path)]) == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        ((), "no public and no test table"),
        (("test.csv",), "no public table"),
        (("public.parquet",), "no test table"),
    ],
)
def test_init_refuses_a_server_without_its_tables(
    names: tuple[str, ...], missing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = tmp_path / "server"
    server.mkdir()
    for name in names:
        (server / name).write_text("age,ill\n1,0\n")
    given = ["--task", "remote-tables", "--target", "ill", "--data", str(server)]
    assert main(["flower", "init", str(tmp_path / "app"), *given]) == 2
    error = capsys.readouterr().err
    assert f"'{server}' has {missing}" in error
    assert "public.csv" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "app").exists()


def test_init_does_not_ask_for_tables_of_another_machine(tmp_path: Path) -> None:
    given = ["--task", "remote-tables", "--target", "ill", "--data", "/on/the/server"]
    assert main(["flower", "init", str(tmp_path / "app"), *given]) == 0


@pytest.mark.parametrize(
    "table",
    [
        {},
        {"client-id": -1},
        {"client-id": 0},
        {"client-id": 0, "state-dir": "here"},
        {"client-id": True},
    ],
)
def test_a_node_that_does_not_say_who_it_is_is_refused(table: dict) -> None:
    with pytest.raises(UsageError, match="--node-config"):
        NodeConfig.from_dict(table)


@pytest.mark.parametrize("most", [0, -1.0, "much", True])
def test_a_limit_that_is_none_is_refused(most: object) -> None:
    with pytest.raises(UsageError, match="max-epsilon"):
        NodeConfig.from_dict({"client-id": 0, "state-dir": "/tmp/x", "max-epsilon": most})


@pytest.mark.parametrize("name", [7, "v" * 101])
def test_a_node_s_name_is_a_short_text(name: object) -> None:
    assert NodeConfig.from_dict({"client-id": 0, "state-dir": "/tmp/x", "name": "va"}).name == "va"
    with pytest.raises(UsageError, match="must be a text of at most 100 letters"):
        NodeConfig.from_dict({"client-id": 0, "state-dir": "/tmp/x", "name": name})


def rows(folder: Path, name: str, n: int) -> None:
    folder.mkdir(exist_ok=True)
    x = np.random.default_rng(n).normal(size=(n, 2))
    lines = [f"{a:.4f},{b:.4f},{int(a > 0)}" for a, b in x]
    (folder / f"{name}.csv").write_text("a,b,label\n" + "\n".join(lines) + "\n")


def test_a_client_reads_its_own_folder_and_the_server_only_learns_its_size(tmp_path: Path) -> None:
    for name, n in (("train", 40), ("test", 20)):
        rows(tmp_path / "client", name, n)
    for name, n in (("public", 30), ("test", 30)):
        rows(tmp_path / "server", name, n)
    given = {"task": "remote-tables", "clients": 2, "data": str(tmp_path / "nowhere")}
    node = Node(given, NodeConfig(1, tmp_path / "state", str(tmp_path / "client")))
    assert node._introduction()["samples"] == 36
    config = RemoteTablesConfig(data=str(tmp_path / "server"), clients=2)
    server = build(config, "linear", node.task.info.training, 0)
    assert isinstance(server, RemoteTablesTask)
    server.reported_sizes |= {1: 36}
    assert server.num_examples(torch.tensor([0, 1])).tolist() == [0, 36]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b,label\n1,2,7\n", "labels outside"),
        ("a,b,label\n1,x,0\n", "cannot be read"),
        ("a,b,label\n1,nan,0\n", "NaN"),
    ],
)
def test_bad_rows_are_refused_by_file(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_text(text)
    with pytest.raises(UsageError, match=says):
        LocalFolderData(RemoteTablesConfig(data=str(tmp_path)), 0)


@pytest.mark.parametrize(
    ("hosts", "name"),
    [
        (["127.0.0.1", "fl.example.org"], "fl.example.org"),
        (["127.0.0.1"], "127.0.0.1"),
        (["a.b", "c.d"], "a.b"),
    ],
)
def test_the_proxy_checks_the_superlink_by_a_name_that_nginx_can_compare(
    hosts: list[str], name: str, tmp_path: Path
) -> None:
    """nginx never compares a certificate's addresses: only its names or, where it has none, its
    subject.
    """
    pytest.importorskip("cryptography", reason="comes with Flower: make test-flower")
    from equipoise.flower import certificates, proxy

    certificates.write_certificates(tmp_path / "certs", hosts, 0, 30)
    text = proxy.write_nginx_config(
        tmp_path / "proxy", "127.0.0.1:9443", "127.0.0.1:8000", tmp_path / "certs"
    ).read_text()
    assert f"proxy_ssl_name {name};" in text


NGINX = os.environ.get("NGINX") or shutil.which("nginx")


@pytest.mark.skipif(not NGINX, reason="there is no nginx here: apt install nginx, or set NGINX")
def test_the_proxy_refuses_paths_that_mean_another_one_and_bodies_that_are_too_large(
    tmp_path: Path,
) -> None:
    """Behind it is no SuperLink: 502 is what a request gets that is let through."""
    pytest.importorskip("cryptography", reason="comes with Flower: make test-flower")
    from equipoise.flower import certificates, proxy

    certificates.write_certificates(tmp_path / "certs", ["localhost"], 0, 30)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    file = proxy.write_nginx_config(
        tmp_path / "proxy", f"127.0.0.1:{port}", "127.0.0.1:1", tmp_path / "certs"
    )
    process = subprocess.Popen([str(NGINX), "-c", str(file), "-g", "daemon off;"])
    context = ssl.create_default_context(cafile=str(tmp_path / "certs" / "ca.pem"))

    def code(path: str, length: int = 0) -> int:
        deadline = time.monotonic() + 20
        while True:
            connection = http.client.HTTPSConnection("localhost", port, context=context, timeout=20)
            try:
                connection.putrequest("POST", path)
                connection.putheader("Content-Length", str(length))
                connection.endheaders()
                with connection.getresponse() as response:
                    return response.status
            except ConnectionRefusedError:  # nginx is not up yet
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            finally:
                connection.close()

    try:
        assert code("/v1/fleet/pull-messages") == 502
        for path in (
            "/v1/fleet/%2e%2e/control",
            "/v1/fleet/../control",
            "/v1/fleet//x",
            "/v1/control/start-run",
        ):
            assert code(path) == 403
        assert code("/v1/fleet/push-object", 40_000_000) == 413
    finally:
        process.terminate()
        process.wait(10)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (["--nodes", "1"], "nodes is 1: must be from 2 to 20"),
        (["--minutes", "0"], "minutes is 0.0: must be a number above 0"),
        (["--out", "FULL"], "is not empty: choose another --out"),
        (["--nods", "3"], "unknown argument '--nods'"),
    ],
)
def test_a_wrong_rehearsal_is_refused_before_anything_starts(
    given: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    given = [str(tmp_path) if text == "FULL" else text for text in given]
    assert main(["flower", "rehearse", *given]) == 2
    assert reason in capsys.readouterr().err
