"""Start an app on a SuperLink, or in Flower's simulation, and follow it to its end."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
import tomllib
import warnings
from functools import partial
from pathlib import Path
from typing import Any

from equipoise.experiment.runner import build_task
from equipoise.flower import config
from equipoise.flower.project import parse_address
from equipoise.records.run_dir import Folder
from equipoise.simulation.executor_selection import available_cores
from equipoise.utils.errors import UsageError

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
LOOK = 10.0  # seconds between questions about the run's status


def run_app(app: Path, address: str, ca: Path | None) -> int:
    """0 when the run finished, 1 when it failed or the user stopped waiting."""
    settings, deployment = config.read_app_config(read_app_options(app))
    folder = Folder(Path(deployment.out))
    with tempfile.TemporaryDirectory() as home:
        link = FlowerCli(home, address, ca)
        done = link.run_json("run", str(app.resolve()), "link", "--format", "json")
        if not done.get("success"):
            reason = " ".join(str(done.get("error-message", done)).split())
            raise UsageError(f"the SuperLink at {address} did not take the app: {reason}")
        number = str(done["run-id"])
        print(
            f"run {number} of {settings.run.method} on {address}; results in {folder.path}",
            flush=True,
        )
        try:
            status = _follow(link, number, folder)
        except KeyboardInterrupt:
            print("not waiting any longer; the run goes on ('flwr stop' ends it)", file=sys.stderr)
            return 1
        if status == "finished:completed":
            print(f"finished; everything is in {folder.path}")
            return 0
        print(
            f"equipoise: the run ended as '{status}'; its last lines:\n{link.last_log_lines(number)}",
            file=sys.stderr,
        )
        print(f"go on after the last whole round with: equipoise flower run {app}", file=sys.stderr)
        return 1


def read_app_options(app: Path) -> dict[str, Any]:
    """The options of an app, as they stand in its ``pyproject.toml``."""
    try:
        table: dict[str, Any] = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"][
            "app"
        ]["config"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"'{app}' is not an app: make one with 'equipoise flower init {app}'"
        ) from error
    return table


def _follow(link: FlowerCli, number: str, folder: Folder) -> str:
    """Print rounds as they are written; give the run's last status."""
    shown, asked, status = len(folder.records()), 0.0, ""
    while True:
        if time.monotonic() - asked > LOOK:
            asked = time.monotonic()
            runs = link.run_json("list", "link", "--run-id", number, "--format", "json").get(
                "runs", []
            )
            status = str(runs[0]["status"]) if runs else "unknown"
        records = (
            folder.records()
        )  # after the status, so that a run that is over has all its rounds shown
        for record in records[shown:]:
            absent = f"; absent: {', '.join(map(str, record.absent))}" if record.absent else ""
            print(
                f"round {record.round}: {record.clients} asked, {record.seconds:.1f} s{absent}",
                flush=True,
            )
        shown = max(shown, len(records))
        if status == "unknown" or status.startswith("finished"):
            return status
        time.sleep(1)


class FlowerCli:
    """Flower's own command line, with a configuration that is used once."""

    def __init__(self, home: str, address: str, ca: Path | None) -> None:
        parse_address(address, "superlink")
        if ca is not None and not ca.is_file():
            raise UsageError(f"there is no certificate '{ca}'")
        self.env = {**os.environ, **QUIET, "FLWR_HOME": home}
        safe = f"root-certificates = {json.dumps(str(ca.resolve()))}" if ca else "insecure = true"
        Path(home, "config.toml").write_text(
            f"[superlink.link]\naddress = {json.dumps(address)}\n{safe}\n"
        )

    def run_json(self, *arguments: str) -> dict[str, Any]:
        done = self._call(*arguments)
        try:
            answer: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            return {"error-message": done.stdout + done.stderr}
        return answer

    def last_log_lines(self, number: str) -> str:
        done = self._call("log", number, "link", "--show")
        return "\n".join(done.stdout.splitlines()[-15:])

    def _call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).parent / "flwr"), *arguments]
        return subprocess.run(
            command, env=self.env, capture_output=True, text=True, timeout=120, check=False
        )


class PrintableFormatter(logging.Formatter):
    """Text of others in a line cannot move the cursor or begin a line of its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = "".join(c if c.isprintable() else repr(c)[1:-1] for c in record.message)
        return super().formatMessage(record)


def log_to_screen() -> None:
    """Our own lines alone on standard error, where Flower collects them."""
    logger = logging.getLogger("equipoise")
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(PrintableFormatter("equipoise: %(message)s"))
        logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


SIMULATION_ENV = {
    **QUIET,
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def simulate_app(app: Path) -> int:
    """To the end of the run, or of what is left of it."""
    table = read_app_options(app)
    settings, deployment = config.read_app_config(table)
    if importlib.util.find_spec("ray") is None:
        raise UsageError(
            "this needs Flower's simulation runtime: pip install 'equipoise[flower-simulation]'"
        )
    if deployment.nodes:
        raise UsageError("nodes is for deployments: virtual nodes have no keys")
    clients = build_task(settings).num_clients
    os.environ.update(SIMULATION_ENV)
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    server, client = ServerApp(), ClientApp()
    server.main()(partial(_serve, table))
    answer = partial(_answer, table, str(Path(deployment.out) / "clients"))
    client.train()(answer)
    client.query()(answer)
    here = {
        "num_cpus": available_cores(),
        "include_dashboard": False,
        "_node_ip_address": "127.0.0.1",
    }
    backend: Any = {"client_resources": {"num_cpus": 1.0}, "init_args": here}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of libraries that we do not maintain
        run_simulation(server, client, num_supernodes=clients, backend_config=backend)
    print(f"finished; everything is in {deployment.out}")
    return 0


def _serve(table: dict[str, Any], grid: Any, context: Any) -> None:
    from equipoise.flower.server_app import serve

    serve(grid, table)


def _answer(table: dict[str, Any], state: str, message: Any, context: Any) -> Any:
    from equipoise.flower.client_app import answer

    return answer(
        message, table, {"client-id": int(context.node_config["partition-id"]), "state-dir": state}
    )
