"""``equipoise data describe``: counts that are right, a picture, and JSON."""

import json

from data import files
from equipoise.cli import main


def test_counts_and_picture(tmp_path, capsys):
    files.write_fmnist(tmp_path, train=300, test=50)
    arguments = ["data", "describe", "--task", "fmnist", "--data", str(tmp_path), "--clients", "5"]
    assert main([*arguments, "--partition", "classes", "--classes-per-client", "2"]) == 0
    shown = capsys.readouterr().out
    assert "5 clients, samples of 1 x 28 x 28, 10 classes" in shown
    assert "trains on 2 classes (median)" in shown
    lines = [line for line in shown.splitlines() if line.startswith("client")]
    assert len(lines) == 5
    assert all(
        sum(mark != " " for mark in line.split("|")[1]) == 4 for line in lines
    )  # two classes, two marks each
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(rows["total"] for rows in found["rows"].values()) == 300
    assert found["server"] == {"public": 5, "test": 45}
    assert sum(map(sum, found["label_counts"])) == found["rows"]["train"]["total"]


def test_many_clients_and_classes_are_cut(capsys):
    assert (
        main(
            [
                "data",
                "describe",
                "--task",
                "synthetic",
                "--clients",
                "50",
                "--samples",
                "20",
                "--classes",
                "70",
            ]
        )
        == 0
    )
    assert "(10 clients and 10 classes more)" in capsys.readouterr().out


def test_environments_have_no_data(capsys):
    assert main(["data", "describe", "--task", "two-state"]) == 2
    assert "environments, not data" in capsys.readouterr().err
