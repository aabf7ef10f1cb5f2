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

from equipoise.experiment.build import build_task
from equipoise.flower import config
from equipoise.flower.doctor import ENVIRONMENT
from equipoise.flower.progress import ProgressLog
from equipoise.flower.project import parse_address
from equipoise.simulation.executor_selection import available_cores
from equipoise.utils.errors import UsageError, install_hint

FAILURE = "equipoise: the run cannot go on: "
"""Begins the line in the log of a server app that says why it failed."""
STATUS_INTERVAL = 10.0  # seconds between questions about the run's status
SIMULATION_ENVIRONMENT = {
    **ENVIRONMENT,
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def run_app(app: Path, address: str, ca: Path | None) -> int:
    """Start an app on a SuperLink and print its rounds.

    Args:
        app: Folder of the app.
        address: Address of the SuperLink.
        ca: Certificate of the CA; without it the connection is not encrypted.

    Returns:
        0 if the run finished, 1 if it failed or the user stopped waiting.

    Raises:
        UsageError: If an option is wrong, or the SuperLink refuses the app.
    """
    settings, deployment = config.read_app_config(read_app_options(app))
    progress = ProgressLog(Path(deployment.out))
    with tempfile.TemporaryDirectory() as home:
        link = FlowerCli(home, address, ca)
        answer_json = link.run_json("did not take the app", "run", str(app.resolve()))
        number = str(answer_json["run-id"])
        print(
            f"run {number} of {settings.run.method} on {address}; results in {deployment.out}",
            flush=True,
        )
        try:
            status = _follow(link, number, progress)
        except KeyboardInterrupt:
            print("not waiting any longer; the run goes on ('flwr stop' ends it)", file=sys.stderr)
            return 1
        if status == "finished:completed":
            print(f"finished; everything is in {deployment.out}")
            return 0
        next_step = "go on after the last whole round" if progress.read() else "start it again"
        print(
            f"equipoise: the run ended as '{status}': {link.failure(number)}\n"
            f"{next_step} with: {link.run_command(app)}",
            file=sys.stderr,
        )
        return 1


def read_app_options(app: Path) -> dict[str, Any]:
    """Return the options in the ``pyproject.toml`` of an app.

    Raises:
        UsageError: If the folder is not an app.
    """
    try:
        project = tomllib.loads((app / "pyproject.toml").read_text())
        table: dict[str, Any] = project["tool"]["flwr"]["app"]["config"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"'{app}' is not an app: make one with 'equipoise flower init {app}'"
        ) from error
    return table


def _follow(link: FlowerCli, number: str, progress: ProgressLog) -> str:
    """Print the lines of the server app as they are written, and return the run's last status."""
    num_printed = len(progress.read())
    asked = 0.0
    status = ""
    while True:
        if time.monotonic() - asked > STATUS_INTERVAL:
            asked = time.monotonic()
            status = link.status(number)
        # Read after the status, so that all lines of a finished run are printed.
        lines = progress.read()
        for line in lines[num_printed:]:
            print(line, flush=True)
        num_printed = max(num_printed, len(lines))
        if status == "unknown" or status.startswith("finished"):
            return status
        time.sleep(1)


COLOUR_VARIABLES = frozenset({"FORCE_COLOR", "PY_COLORS", "TTY_COMPATIBLE"})
"""Variables that let Flower colour its JSON, which then cannot be read."""


class FlowerCli:
    """Flower's own command line, with a temporary configuration.

    Attributes:
        address: Address of the SuperLink.
        ca: Certificate of the CA.
    """

    def __init__(self, home: str, address: str, ca: Path | None) -> None:
        """Write the configuration.

        Args:
            home: Temporary folder.
            address: Address of the SuperLink.
            ca: Certificate of the CA; without it the connection is not encrypted.

        Raises:
            UsageError: If the address is none, or the certificate is missing.
        """
        parse_address(address, "superlink")
        if ca is not None and not ca.is_file():
            raise UsageError(f"there is no certificate '{ca}'")
        self.address = address
        self.ca = ca
        plain = {name: value for name, value in os.environ.items() if name not in COLOUR_VARIABLES}
        self._env = {**plain, **ENVIRONMENT, "FLWR_HOME": home}
        safe = f"root-certificates = {json.dumps(str(ca.resolve()))}" if ca else "insecure = true"
        Path(home, "config.toml").write_text(
            f"[superlink.link]\naddress = {json.dumps(address)}\n{safe}\n"
        )

    def run_json(self, refusal: str, *command: str) -> dict[str, Any]:
        """Run a command and return the JSON object that it prints.

        Args:
            refusal: What the SuperLink did not do if the command fails, for the error message.
            *command: The command.

        Returns:
            The object.

        Raises:
            UsageError: If the command fails.
        """
        answer = self._query(*command)
        if not answer.get("success"):
            reason = " ".join(str(answer.get("error-message", answer)).split())
            text = f"the SuperLink at {self.address} {refusal}: {reason}"[:400]
            raise UsageError(text + self._tls_hint(reason))
        return answer

    def run_command(self, app: Path) -> str:
        """Return the command that starts or resumes an app on this SuperLink."""
        ca = f" --ca {self.ca}" if self.ca else ""
        return f"equipoise flower run {app} --superlink {self.address}{ca}"

    def _tls_hint(self, reason: str) -> str:
        """Return what to do if a connection failed, perhaps because only one side uses TLS."""
        if "unavailable" not in reason.lower():
            return ""
        if self.ca is None:
            return "; if it uses TLS, give its CA: --ca certs/ca.pem"
        return f"; if it runs, check that it uses TLS with a certificate of '{self.ca}'"

    def status(self, number: str) -> str:
        """Return the status of a run."""
        runs = self._query("list", "--run-id", number).get("runs")
        return str(runs[0]["status"]) if runs else "unknown"

    def failure(self, number: str) -> str:
        """Return why a run failed: the sentence of the server app, or the end of its log."""
        lines = self._call("log", number, "link", "--show").stdout.splitlines()
        for line in reversed(lines):
            _, marker, reason = line.partition(FAILURE)
            if marker:
                return reason
        return "its last lines:\n" + "\n".join(lines[-15:])

    def _query(self, *command: str) -> dict[str, Any]:
        """Run a command; if it does not print JSON, return its output as an error message."""
        process = self._call(*command, "link", "--format", "json")
        try:
            answer: dict[str, Any] = json.loads(process.stdout)
        except ValueError:
            return {"error-message": process.stdout + process.stderr}
        return answer

    def _call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).parent / "flwr"), *arguments]
        return subprocess.run(
            command, env=self._env, capture_output=True, text=True, timeout=120, check=False
        )


class PrintableFormatter(logging.Formatter):
    """Escape control characters, so that text of others cannot move the cursor or fake a line."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        record.message = "".join(c if c.isprintable() else repr(c)[1:-1] for c in record.message)
        return super().formatMessage(record)


def log_to_screen() -> None:
    """Log our own lines to standard error, where Flower collects them."""
    logger = logging.getLogger("equipoise")
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(PrintableFormatter("equipoise: %(message)s"))
        logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


def simulate_app(app: Path) -> int:
    """Run an app in Flower's simulation, from its last checkpoint if there is one.

    Args:
        app: Folder of the app.

    Returns:
        0 when the run is finished.

    Raises:
        UsageError: If an option is wrong, or Ray is missing.
    """
    table = read_app_options(app)
    settings, deployment = config.read_app_config(table)
    if importlib.util.find_spec("ray") is None:
        raise UsageError(
            f"this needs Flower's simulation runtime: {install_hint('flower-simulation')}"
        )
    if deployment.nodes:
        raise UsageError("nodes is for deployments: virtual nodes have no keys")
    clients = build_task(settings).info.num_clients
    os.environ.update(SIMULATION_ENVIRONMENT)
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    server = ServerApp()
    client = ClientApp()
    server.main()(partial(_serve, table))
    answer = partial(_answer, table, str(Path(deployment.out) / "clients"))
    client.train()(answer)
    client.query()(answer)
    local = {
        "num_cpus": available_cores(),
        "include_dashboard": False,
        "_node_ip_address": "127.0.0.1",
    }
    backend: Any = {"client_resources": {"num_cpus": 1.0}, "init_args": local}
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
