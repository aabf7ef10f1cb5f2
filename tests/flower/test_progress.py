"""What `equipoise flower run` prints: scores and names, and why a run cannot go on."""

from __future__ import annotations

import json
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import torch

from equipoise.cli import main
from equipoise.experiment.build import build_task
from equipoise.flower import launch
from equipoise.flower.launch import FAILURE, FlowerCli
from equipoise.flower.progress import ProgressLog, describe_clients, describe_round
from equipoise.flower.remote_executor import constant_prediction
from equipoise.records.client_table import table_text
from equipoise.records.rounds import Bytes, RoundRecord
from equipoise.records.run_dir import RunFolder
from equipoise.records.scores import Evaluations, Scores
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.utils.errors import UsageError


def record(**more: Any) -> RoundRecord:
    scores = Evaluations(global_=Scores({"acc": 0.5}), personal=Scores({"acc": 0.75}))
    given = {"round": 2, "clients": 3, "seen": 3, "bytes": Bytes(0, 0), "train": {}, "dropped": []}
    return RoundRecord(**{**given, "seconds": 9.72, "test": scores, **more})


def test_a_round_is_one_line_with_scores_and_names() -> None:
    line = describe_round(record(absent={2: "no reply in time"}), 5, {2: "ms"}, "")
    assert line == (
        "round 2 of 5: client 0, client 1; 9.7 s; global acc 50.0 %; personal acc 75.0 %; "
        "absent: ms (no reply in time)"
    )
    line = describe_round(record(dropped=[0, 1], rejected={1: "too long"}, test=None), 5, {}, "x")
    assert line == (
        "round 2 of 5: client 2; 9.7 s; "
        "left out: client 0 (its numbers are not finite), client 1 (too long); x"
    )
    assert "the model did not change: few" in describe_round(record(skipped="few"), 5, {}, "")
    line = describe_round(record(ids=[0, 2]), 5, {0: "ky", 2: "ms"}, "")
    assert line.startswith("round 2 of 5: ky, ms; 9.7 s; ")
    line = describe_round(record(clients=12, absent={3: "not connected"}), 5, {}, "")
    assert line.startswith("round 2 of 5: 11 of 12 clients; 9.7 s; ")
    nobody = record(clients=1, absent={0: "not connected"}, test=None)
    assert describe_round(nobody, 5, {0: "ky"}, "").startswith("round 2 of 5: nobody; 9.7 s; ")


def test_a_model_that_predicts_one_class_is_named() -> None:
    task = build_task(ExperimentConfig.from_options({"task": "synthetic", "clients": 3}))
    params = {name: torch.zeros_like(value) for name, value in task.init_params(0).items()}
    bias = next(name for name in params if name.endswith("bias"))
    params[bias][3] = 1.0
    x, _ = task.data.server("test")
    text = f"the global model predicts '3' for all {len(x)} test rows of the server"
    assert constant_prediction(task, params) == text
    weight = next(name for name in params if name.endswith("weight"))
    params[weight][1] = 10.0 * torch.ones_like(params[weight][1])
    assert constant_prediction(task, params) == ""


def test_each_client_is_named_with_its_score_and_interval(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    unknown = float("nan")
    columns: dict[str, list[Any]] = {
        "client": [0, 1],
        "name": ["ky", "ms"],
        "personal_auc": [0.8125, unknown],
        "personal_auc_low": [0.7, unknown],
        "personal_auc_high": [0.9, unknown],
        "constant_auc": [0.5, 0.5],
    }
    folder.clients.write(table_text(columns))
    assert describe_clients(folder, "auc", {}) == [
        "ky: its own model has auc 0.812 [0.700, 0.900]; a constant prediction has 0.500",
        "ms: the score of its own model is not known",
        "means over clients are of the 1 of 2 with a score",
    ]


def test_each_client_has_a_verdict_against_training_alone(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    columns: dict[str, list[Any]] = {
        "client": [0, 1, 2, 3],
        "personal_auc": [0.8, 0.8, 0.8, 0.8],
        "test_rows": [50, 50, 50, 9],
        "local_auc": [0.7, 0.9, 0.79, 0.7],
        "global_auc": [0.75] * 4,
        "gain_over_own": [0.1, -0.1, 0.01, 0.1],
        "gain_over_own_low": [0.05, -0.2, -0.02, 0.05],
        "gain_over_own_high": [0.15, -0.05, 0.04, 0.15],
        "one_class": [1, 1, 1, 1],
    }
    folder.clients.write(table_text(columns))
    lines = describe_clients(folder, "auc", {0: "ky"})
    assert lines[0] == (
        "ky: its own model has auc 0.800 on 50 test rows; better than training alone (0.700): "
        "gain +0.100 [+0.050, +0.150]; the global model has 0.750; it predicts one class for all "
        "of them"
    )
    assert "worse than training alone (0.900), which it should keep: gain -0.100" in lines[1]
    assert lines[1].startswith("client 1: ")
    assert "ties with training alone (0.790): gain +0.010" in lines[2]
    assert "too few rows to judge: training alone has 0.700, gain +0.100" in lines[3]
    assert lines[4].startswith("every client's own model predicts one class")
    assert len(lines) == 5


def test_lines_are_whole_and_names_cannot_move_the_cursor(tmp_path: Path) -> None:
    log = ProgressLog(tmp_path)
    assert log.read() == []
    log.append("round 1: absent: \x1b[2J")
    with log.file.open("a") as file:
        file.write("half a li")
    assert log.read() == ["round 1: absent: \\x1b[2J"]


class Answering(FlowerCli):
    """Flower's command line with known answers."""

    answers: dict[str, str]

    def _call(self, *arguments: str) -> Any:
        return type("Done", (), {"stdout": self.answers[arguments[0]], "stderr": ""})()


def cli(tmp_path: Path, ca: Path | None, **answers: str) -> Answering:
    link = Answering(str(tmp_path), "127.0.0.1:8000", ca)
    link.answers = answers
    return link


def test_a_connection_that_fails_says_which_option_may_be_missing(tmp_path: Path) -> None:
    answer = json.dumps({"error-message": "Connection to the SuperLink is unavailable."})
    with pytest.raises(UsageError, match=r"if it uses TLS, give its CA: --ca certs/ca.pem"):
        cli(tmp_path, None, run=answer).run_json("did not take the app", "run")
    ca = tmp_path / "ca.pem"
    ca.write_text("")
    with pytest.raises(UsageError, match="uses TLS with a certificate of"):
        cli(tmp_path, ca, run=answer).run_json("did not take the app", "run")
    refused = json.dumps({"error-message": "no such run"})
    with pytest.raises(UsageError, match=r"no such run$"):
        cli(tmp_path, None, run=refused).run_json("did not take the app", "run")


def test_the_next_step_has_all_options_of_this_one(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text("")
    command = cli(tmp_path, ca).run_command(Path("hospital"))
    assert command == f"equipoise flower run hospital --superlink 127.0.0.1:8000 --ca {ca}"
    assert "--ca" not in cli(tmp_path, None).run_command(Path("hospital"))


def test_a_failed_run_is_one_sentence_not_a_traceback(tmp_path: Path) -> None:
    log = f"INFO: x\n{FAILURE}column 'age' of client 'ms': it is missing here\nTraceback\n  File\n"
    link = cli(tmp_path, None, log=log)
    assert link.failure("7") == "column 'age' of client 'ms': it is missing here"
    link.answers = {"log": "one\ntwo\n"}
    assert link.failure("7") == "its last lines:\none\ntwo"


def test_help_of_init_shows_its_own_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["flower", "init", "--help"])
    text = capsys.readouterr().out
    for name in ("clients", "nodes", "time-limit", "min-replies", "target", "data", "out", "wait"):
        assert f"--{name} " in text


def test_the_app_tells_the_command_to_start_it_with_ca(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("public", "test"):
        (tmp_path / f"{name}.csv").write_text("age,ill\n1,0\n")
    given = ["--data", str(tmp_path), "--clients", "2", "--target", "ill"]
    assert main(["flower", "init", str(tmp_path / "app"), *given]) == 0
    assert "flower run " in (text := capsys.readouterr().out)
    assert "--ca certs/ca.pem" in text
    assert launch.read_app_options(tmp_path / "app")["task"] == "remote-tables"


def test_flower_is_not_let_to_colour_its_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    seen: dict[str, str] = {}

    def call(*_: Any, env: dict[str, str], **__: Any) -> CompletedProcess[str]:
        seen.update(env)
        return CompletedProcess([], 0, '{"runs": [{"status": "running"}]}', "")

    monkeypatch.setattr(launch.subprocess, "run", call)
    assert FlowerCli(str(tmp_path), "127.0.0.1:8000", None).status("7") == "running"
    assert "FORCE_COLOR" not in seen
    assert "PATH" in seen
