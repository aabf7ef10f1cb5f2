"""The power goes off at every operation of a run: what was not synced is forgotten, the run goes on
from the rest.
"""

import json

import pytest

from equipoise.cli import main
from equipoise.utils import io, serialization
from helpers_disk import Died, Forgetful, on
from trust.test_faults import RUN, result, same


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    monkeypatch.setattr("equipoise.report.html.try_write_report", lambda path: "")


def cut(arguments, disk):
    """Run until the power goes off; false if it stayed on to the end."""
    try:
        with on(disk):
            main(arguments)
    except Died:
        disk.cut()
        return True
    disk.cut()
    return False


def test_the_disk_of_these_tests_forgets_what_a_file_system_may(tmp_path):
    old, new, folder = tmp_path / "old", tmp_path / "new", tmp_path / "folder"
    old.write_bytes(b"before")
    with on(Forgetful(tmp_path)) as disk:
        disk.append(old, b" and after")
        disk.fill(new, lambda path: path.write_bytes(b"content"))
        disk.make_folder(folder)
    disk.cut()
    assert old.read_bytes() == b"before"
    assert not new.exists()
    assert not folder.exists()
    for names, expected in ((False, None), (True, b"")):  # a name may survive without the content
        disk = Forgetful(tmp_path, names=names)
        disk.fill(new, lambda path: path.write_bytes(b"content"))
        disk.cut()
        assert (new.read_bytes() if new.exists() else None) == expected
        new.unlink(missing_ok=True)
    with on(Forgetful(tmp_path)) as disk:
        io.write_text(new, "content")
    disk.cut()
    assert new.read_text() == "content"


@pytest.mark.parametrize("names", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_run_goes_on_after_a_power_cut_at_any_operation(names, tmp_path):
    whole, root = tmp_path / "whole", tmp_path / "disk"
    assert main([*RUN, "--out", str(whole)]) == 0
    expected = result(whole)
    n = 0
    while True:
        n += 1
        out = root / str(n) / "run"
        out.parent.mkdir(parents=True)
        more = cut([*RUN, "--out", str(out)], Forgetful(out.parent, n, names))
        assert main([*RUN, "--out", str(out), "--resume"]) == 0, n
        same(result(out), expected)
        if not more:
            break
    assert n > 30


def test_a_saved_round_is_never_lost(tmp_path):
    """After the power comes back, the run goes on from the last checkpoint that was reported, not
    from the start.
    """
    out = tmp_path / "run"
    disk = Forgetful(tmp_path)
    with on(disk):
        assert main([*RUN, "--out", str(out)]) == 0
    disk.cut()
    assert len((out / "rounds.jsonl").read_text().splitlines()) == 3
    assert serialization.load(out / "checkpoint" / "last.safetensors")[1]["round"] == 3
    assert json.loads((out / "summary.json").read_text())["rounds"] == 3
