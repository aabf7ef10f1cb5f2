"""The rehearsal as a user starts it: everything is survived, and nothing is left behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower has an environment of its own: make test-flower")

pytestmark = pytest.mark.slow
MINUTES = 14  # on a machine that is busy


@pytest.mark.skipif(sys.platform != "linux", reason="a rehearsal needs Linux")
def test_a_rehearsal_survives_every_accident(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "equipoise", "flower", "rehearse", "--nodes", "2"]
    command += ["--minutes", str(MINUTES), "--out", str(tmp_path / "out")]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60 * MINUTES + 120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": survived (") == 5
    assert "none twice and none missing" in done.stdout
    left = [
        entry
        for entry in Path("/proc").glob("[0-9]*")
        if str(tmp_path / "out").encode() in _read(entry / "environ") + _read(entry / "cmdline")
    ]
    assert not left


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""
