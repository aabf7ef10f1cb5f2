"""The faster SuperNode, without Flower."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from equipoise.cli import main
from equipoise.flower.supernode import LAUNCHER, ForkServer, ShortSleep


def test_sleep_has_a_limit_and_the_rest_of_the_module_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    short = ShortSleep(0.5)
    short.sleep(3)
    short.sleep(0.1)
    assert slept == [0.5, 0.1]
    assert short.monotonic is time.monotonic


def launcher(folder: Path, address: Path) -> Path:
    file = folder / "flwr-clientapp"
    python = sys.executable
    file.write_text(LAUNCHER.format(python=python, address=str(address), command="/bin/echo"))
    file.chmod(0o700)
    return file


def test_without_a_fork_server_the_command_itself_is_run(tmp_path: Path) -> None:
    file = launcher(tmp_path, tmp_path / "socket")
    done = subprocess.run([file, "--token", "a b"], capture_output=True, text=True, check=True)
    assert done.stdout == "--token a b\n"


FORKED = """
import sys, time
from pathlib import Path
from equipoise.flower import supernode

def entry(connection):
    arguments = supernode.json.loads(supernode._receive(connection))
    Path(sys.argv[1], "answer").write_text(" ".join(arguments))
    supernode.os._exit(0)

supernode._import_everything = lambda: None
supernode._run_client_app = entry
server = supernode.ForkServer(Path(sys.argv[1], "server"))
server.folder.mkdir()
server.start()
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")
def test_a_request_is_answered_in_a_fork_and_the_server_ends_with_its_parent(
    tmp_path: Path,
) -> None:
    parent = subprocess.Popen([sys.executable, "-c", FORKED, str(tmp_path)], stdin=subprocess.PIPE)
    address = ForkServer(tmp_path / "server").address
    file = launcher(tmp_path, address)
    wait_for(address.exists)
    subprocess.run([file, "--token", "a b"], check=True)
    wait_for((tmp_path / "answer").exists)
    wait_for(lambda: (tmp_path / "answer").read_text() == "--token a b")
    parent.kill()
    parent.communicate()
    wait_for(lambda: not (tmp_path / "server").exists())


def wait_for(holds) -> None:  # type: ignore[no-untyped-def]
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_poll_of_zero_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equipoise.cli.flower.needs_flower", lambda: None)
    assert main(["flower", "node", "--poll", "0"]) == 2
    assert "poll is 0.0: must be a number of seconds above 0" in capsys.readouterr().err
