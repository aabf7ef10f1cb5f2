"""An app on Flower's own simulation runtime: every client a virtual node on this machine, computed by Ray.

For trying an app before it meets real nodes; `equipoise run` simulates the same federation much faster.
"""

from __future__ import annotations

import importlib.util
import os
import warnings
from functools import partial
from pathlib import Path
from typing import Any

from equipoise.core.errors import UsageError
from equipoise.flower import launch, options
from equipoise.runs.running import build_task
from equipoise.runtime.device import available_cores

QUIET = {**launch.QUIET, "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


def run(app: Path) -> int:
    """To the end of the run, or of what is left of it."""
    table = launch.table_of(app)
    settings, deployment = options.read(table)
    if importlib.util.find_spec("ray") is None:
        raise UsageError("this needs Flower's simulation runtime: pip install 'equipoise[flower-simulation]'")
    if deployment.nodes:
        raise UsageError("nodes is for deployments: virtual nodes have no keys")
    clients = build_task(settings).num_clients
    os.environ.update(QUIET)
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    server, client = ServerApp(), ClientApp()
    server.main()(partial(_serve, table))
    answer = partial(_answer, table, str(Path(deployment.out) / "clients"))
    client.train()(answer)
    client.query()(answer)
    here = {"num_cpus": available_cores(), "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
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

    return answer(message, table, {"client-id": int(context.node_config["partition-id"]), "state-dir": state})
