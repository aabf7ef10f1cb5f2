"""``equipoise flower`` on a machine without Flower, and rows that stay apart."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

from equipoise.cli import main
from equipoise.errors import UsageError
from equipoise.flower import options
from equipoise.flower.node import Node
from equipoise.flower.options import NodeConfig
from equipoise.tasks.apart import Apart, ApartConfig, OwnFolder, build


def test_init_writes_an_app_whose_options_come_back(tmp_path: Path) -> None:
    app = tmp_path / "app"
    assert main(["flower", "init", str(app), "--method", "scaffold", "--server-lr", "0.5", "--min-replies", "2"]) == 0
    about = tomllib.loads((app / "pyproject.toml").read_text())
    assert about["project"]["dependencies"] == []
    settings, deployment = options.read(about["tool"]["flwr"]["app"]["config"])
    assert settings.method.server_lr == 0.5
    assert settings.run.checkpoint_every == 1
    assert deployment.min_replies == 2
    assert deployment.out == str((app / "run").resolve())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["init", "APP", "--below", "wait"], "choose skip or stop"),
        (["init", "APP", "--time-limit", "0"], "must be a number of seconds above 0"),
        (["init", "APP", "--out", "here"], "must be an absolute path"),
        (["init", "APP", "--finetune"], "fine-tune at the clients"),
        (["init", "APP", "--metod", "fedavg"], "--method"),
        (["strat"], "unknown command 'flower strat'"),
        (["doctor", "--superlink", "nowhere"], "must be host:port"),
        (["proxy", "APP", "--certs", "APP"], "no server.pem"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    app = str(tmp_path / "app")
    assert main(["flower", *(app if a == "APP" else a for a in arguments)]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    assert not Path(app).exists()


def test_init_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert main(["flower", "init", str(tmp_path)]) == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize("table", [{}, {"client-id": -1}, {"client-id": 0}, {"client-id": 0, "state-dir": "here"}])
def test_a_node_that_does_not_say_who_it_is_is_refused(table: dict) -> None:
    with pytest.raises(UsageError, match="--node-config"):
        NodeConfig.of(table)


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
    given = {"task": "apart", "clients": 2, "data": str(tmp_path / "nowhere")}
    node = Node(given, NodeConfig(1, tmp_path / "state", str(tmp_path / "client")))
    assert node._introduction()["samples"] == 36
    config = ApartConfig(str(tmp_path / "server"), clients=2)
    server = build(config, "linear", node.task.training, 0)
    assert isinstance(server, Apart)
    server.reported |= {1: 36}
    assert server.sizes(torch.tensor([0, 1])).tolist() == [0, 36]


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
        OwnFolder(ApartConfig(str(tmp_path)), 0)
