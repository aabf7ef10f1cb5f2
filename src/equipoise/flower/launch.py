"""Start an app on a SuperLink and follow it to its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

from equipoise.core.errors import UsageError
from equipoise.flower import options
from equipoise.flower.address import host_port
from equipoise.records.folder import Folder

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
LOOK = 10.0  # seconds between questions about the run's status


def run(app: Path, address: str, ca: Path | None) -> int:
    """0 when the run finished, 1 when it failed or the user stopped waiting."""
    settings, deployment = options.read(table_of(app))
    folder = Folder(Path(deployment.out))
    with tempfile.TemporaryDirectory() as home:
        link = Link(home, address, ca)
        done = link.ask("run", str(app.resolve()), "link", "--format", "json")
        if not done.get("success"):
            reason = " ".join(str(done.get("error-message", done)).split())
            raise UsageError(f"the SuperLink at {address} did not take the app: {reason}")
        number = str(done["run-id"])
        print(f"run {number} of {settings.run.method} on {address}; results in {folder.path}", flush=True)
        try:
            status = _follow(link, number, folder)
        except KeyboardInterrupt:
            print("not waiting any longer; the run goes on ('flwr stop' ends it)", file=sys.stderr)
            return 1
        if status == "finished:completed":
            print(f"finished; everything is in {folder.path}")
            return 0
        print(f"equipoise: the run ended as '{status}'; its last lines:\n{link.tail(number)}", file=sys.stderr)
        print(f"go on after the last whole round with: equipoise flower run {app}", file=sys.stderr)
        return 1


def table_of(app: Path) -> dict[str, Any]:
    """The options of an app, as they stand in its ``pyproject.toml``."""
    try:
        table: dict[str, Any] = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"'{app}' is not an app: make one with 'equipoise flower init {app}'") from error
    return table


def _follow(link: Link, number: str, folder: Folder) -> str:
    """Print rounds as they are written; give the run's last status."""
    shown, asked, status = len(folder.records()), 0.0, ""
    while True:
        if time.monotonic() - asked > LOOK:
            asked = time.monotonic()
            runs = link.ask("list", "link", "--run-id", number, "--format", "json").get("runs", [])
            status = str(runs[0]["status"]) if runs else "unknown"
        records = folder.records()  # after the status, so that a run that is over has all its rounds shown
        for record in records[shown:]:
            absent = f"; absent: {', '.join(map(str, record.absent))}" if record.absent else ""
            print(f"round {record.round}: {record.clients} asked, {record.seconds:.1f} s{absent}", flush=True)
        shown = max(shown, len(records))
        if status == "unknown" or status.startswith("finished"):
            return status
        time.sleep(1)


class Link:
    """Flower's own command line, with a configuration that is used once."""

    def __init__(self, home: str, address: str, ca: Path | None) -> None:
        host_port(address, "superlink")
        if ca is not None and not ca.is_file():
            raise UsageError(f"there is no certificate '{ca}'")
        self.env = {**os.environ, **QUIET, "FLWR_HOME": home}
        safe = f"root-certificates = {json.dumps(str(ca.resolve()))}" if ca else "insecure = true"
        Path(home, "config.toml").write_text(f"[superlink.link]\naddress = {json.dumps(address)}\n{safe}\n")

    def ask(self, *arguments: str) -> dict[str, Any]:
        done = self._call(*arguments)
        try:
            answer: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            return {"error-message": done.stdout + done.stderr}
        return answer

    def tail(self, number: str) -> str:
        done = self._call("log", number, "link", "--show")
        return "\n".join(done.stdout.splitlines()[-15:])

    def _call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).parent / "flwr"), *arguments]
        return subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=120, check=False)
