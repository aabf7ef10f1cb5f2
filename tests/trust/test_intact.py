"""Damage is noticed and named: headers, config, log, models; other formats are refused; folders are
never shared.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import save_file

import equipoise
from equipoise.cli import main
from equipoise.utils import io, serialization
from equipoise.utils.config_file import FORMAT
from equipoise.utils.errors import UsageError
from helpers_disk import contents
from helpers_records import unfinish
from trust.test_faults import SMALL

RUN = ["run", "--rounds", "3", "--method", "fedavg", *SMALL]


@pytest.fixture
def unfinished(tmp_path):
    """A run whose summary is not written yet."""
    out = tmp_path / "run"
    assert main([*RUN, "--out", str(out)]) == 0
    unfinish(out)
    return out


def refused(arguments, capsys):
    capsys.readouterr()
    code = main(arguments)
    errors = capsys.readouterr().err
    assert code in (1, 2)
    assert errors.startswith("equipoise: ")
    assert errors.count("\n") == 1
    return errors


def header_changed(path, old, new):
    data = path.read_bytes()
    assert data.count(old) == 1
    assert len(old) == len(new)
    path.write_bytes(data.replace(old, new))


def test_a_changed_round_number_in_a_checkpoint_is_refused(unfinished, capsys):
    header_changed(
        unfinished / "checkpoint" / "last.safetensors", rb"\"round\": 3", rb"\"round\": 2"
    )
    before = contents(unfinished)
    assert "checksum" in refused(["resume", str(unfinished)], capsys)
    assert contents(unfinished) == before


@pytest.mark.parametrize("part", ["metadata", "content", "names"])
def test_every_part_of_a_tensor_file_is_covered(part, tmp_path):
    path = tmp_path / "x.safetensors"
    serialization.write_tensors(
        path, {"aa": torch.ones(4), "bb": torch.zeros(4)}, {"about": "this"}
    )
    if part == "metadata":
        header_changed(path, b'"this"', b'"that"')
    elif part == "names":
        data = path.read_bytes()
        path.write_bytes(data.replace(b'"aa"', b'"cc"'))
    else:
        data = bytearray(path.read_bytes())
        data[-3] ^= 4
        path.write_bytes(bytes(data))
    with pytest.raises(UsageError, match="checksum"):
        serialization.read_tensors(path)


def test_flipped_bytes_of_a_model_are_not_exported(tmp_path, capsys):
    out = tmp_path / "run"
    assert main([*RUN, "--out", str(out)]) == 0
    for name, client in (("global", []), ("personal", ["--client", "1"])):
        model = out / "models" / f"{name}.safetensors"
        data = bytearray(model.read_bytes())
        data[-2] ^= 1
        model.write_bytes(bytes(data))
        assert f"{name}.safetensors" in refused(["export", str(out), *client], capsys)
    assert not list((out / "models").glob("*export*"))


def test_an_edited_config_is_refused(unfinished, capsys):
    config = unfinished / "config.json"
    config.write_text(config.read_text().replace('"lr": ', '"lr": 1'))
    assert "config.json" in refused(["resume", str(unfinished)], capsys)
    assert "config.json" in refused(["report", str(unfinished)], capsys)


@pytest.mark.parametrize("damage", ["edited", "cut", "not text"])
def test_a_damaged_log_is_refused(damage, unfinished, capsys):
    log = unfinished / "rounds.jsonl"
    text = log.read_bytes()
    changed = {
        "edited": re.sub(rb'"seen": \d', b'"seen": 9', text, count=1),
        "cut": text[: text.index(b"\n") + 1],
        "not text": text.replace(b"seen", b"se\xff\xfe"),
    }
    log.write_bytes(changed[damage])
    for command in ("resume", "report"):
        assert "rounds.jsonl" in refused([command, str(unfinished)], capsys)
    assert log.read_bytes() == changed[damage]


@pytest.mark.parametrize("name", ["config.json", "summary.json", "clients.csv"])
def test_what_is_not_text_is_refused_in_one_line(name, tmp_path, capsys):
    out = tmp_path / "run"
    assert main([*RUN, "--out", str(out)]) == 0
    (out / name).write_bytes(b"\xff\xfe\x00nothing")
    refused(["report", str(out)], capsys)
    if name != "clients.csv":
        refused(["resume", str(out)], capsys)


OPENERS = ("resume", "report", "export", "certify", "watch", "predict")


@pytest.mark.parametrize("recorded", [None, 1, FORMAT + 1], ids=["none", "earlier", "later"])
def test_a_folder_of_another_version_is_refused_in_one_line(recorded, unfinished, capsys):
    config = json.loads((unfinished / "config.json").read_text())
    assert config.pop("format") == FORMAT
    other = {"format": recorded} if recorded else {}
    (unfinished / "config.json").write_text(json.dumps({**other, **config}))
    before = contents(unfinished)
    out = ["--out", str(unfinished)]
    commands = {name: [name, str(unfinished)] for name in OPENERS}
    rows = unfinished.parent / "rows.csv"
    rows.write_text("x\n1\n")
    commands["predict"] += [str(rows), "--out", "predicted.csv"]
    for command in (
        *commands.values(),
        [*RUN, "--resume", *out],
        ["run", "--config", str(unfinished / "config.json")],
    ):
        assert "config.json' was written by another version of Equipoise" in refused(
            command, capsys
        )
    with pytest.raises(UsageError, match="another version of Equipoise"):
        equipoise.open(unfinished)
    assert contents(unfinished) == before
    assert main([*RUN, "--overwrite", *out]) == 0  # to begin anew is allowed


def test_a_tensor_file_without_a_checksum_is_refused(tmp_path):
    save_file({"a": torch.ones(4)}, tmp_path / "x.safetensors")
    with pytest.raises(UsageError, match="checksum"):
        serialization.read_tensors(tmp_path / "x.safetensors")


def test_two_runs_never_share_a_folder(tmp_path, capsys):
    out = tmp_path / "run"
    out.mkdir()
    with io.locked(out):
        for arguments in ([*RUN, "--out", str(out)], [*RUN, "--out", str(out), "--overwrite"]):
            assert f"process {os.getpid()}" in refused(arguments, capsys)
    assert main([*RUN, "--out", str(out)]) == 0
    with io.locked(out):
        for command in (
            ["certify", "--quiet", "--samples", "1"],
            ["run", *RUN[1:], "--overwrite", "--out"],
        ):
            assert "in use" in refused([*command, str(out)], capsys)
    unfinish(out)
    with io.locked(out):
        assert "in use" in refused(["resume", str(out)], capsys)
    assert main(["resume", str(out), "--quiet"]) == 0
    assert not (out / io.LOCK_FILE).exists()


def test_the_lock_of_a_dead_process_is_taken_over(tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / io.LOCK_FILE).write_text("999999")
    assert main([*RUN, "--out", str(out)]) == 0


@pytest.mark.parametrize(
    "left", [[], ["checkpoint"], [io.LOCK_FILE], [".tmp-config.json", "checkpoint", io.LOCK_FILE]]
)
def test_a_kill_before_the_config_does_not_block_the_folder(left, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    for name in left:
        (out / name).mkdir() if name == "checkpoint" else (out / name).write_bytes(b"{")
    assert main([*RUN, "--out", str(out)]) == 0


def test_a_folder_with_other_things_is_left_alone(tmp_path, capsys):
    out = tmp_path / "run"
    out.mkdir()
    (out / "thesis.txt").write_text("years of work")
    refused([*RUN, "--out", str(out)], capsys)
    refused([*RUN, "--out", str(out), "--overwrite"], capsys)
    assert contents(out).keys() == {(out / "thesis.txt").relative_to(out)}


def test_sigterm_saves_and_says_how_to_go_on(tmp_path):
    out = tmp_path / "run"
    command = [
        sys.executable,
        "-m",
        "equipoise",
        *RUN,
        "--rounds",
        "2000",
        "--checkpoint-every",
        "1000",
    ]
    process = subprocess.Popen([*command, "--out", str(out)], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (
        (out / "rounds.jsonl").exists() and (out / "rounds.jsonl").read_text()
    ):
        time.sleep(0.002)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"equipoise resume {out}" in errors
    saved = serialization.load(out / "checkpoint" / "last.safetensors")[1]["round"]
    assert saved == len((out / "rounds.jsonl").read_text().splitlines())


def test_a_folder_deleted_under_a_run_ends_it_in_one_line(tmp_path, capsys, monkeypatch):
    import shutil

    from equipoise.simulation.server_loop import FederatedSimulation

    out, rounds = tmp_path / "run", FederatedSimulation.run_round

    def round(self):
        log = rounds(self)
        if log.round == 2:
            shutil.rmtree(out)
        return log

    monkeypatch.setattr(FederatedSimulation, "run_round", round)
    errors = refused([*RUN, "--out", str(out)], capsys)
    assert "rounds.jsonl" in errors


def test_a_disk_that_cannot_be_written_ends_in_one_line(tmp_path, capsys):
    out = "/proc/nothing/run"  # not even root makes a folder there
    assert "/proc/nothing" in refused([*RUN, "--out", out], capsys)
