"""Start the studio: a web server on 127.0.0.1 for one person on this machine."""

from __future__ import annotations

import socket
import threading
import webbrowser
from pathlib import Path

from equipoise.studio.paths import StudioPaths
from equipoise.utils.errors import UsageError

INSTALL_HINT = "pip install -e '.[studio]' in a clone, else pip install 'equipoise[studio]'"


def serve(runs: Path, port: int, open_browser: bool) -> int:
    """Serve the pages until Ctrl-C.

    Args:
        runs: Folder of runs; created if it does not exist.
        port: Port on 127.0.0.1; 0 takes any free one.
        open_browser: Whether to open the first page in the browser.

    Returns:
        The exit code.

    Raises:
        UsageError: If a package is missing, the port is in use, or the folder cannot be written.
    """
    try:
        import uvicorn

        from equipoise.studio.app import create_app
    except ImportError as error:
        raise UsageError(f"the studio needs {error.name}: {INSTALL_HINT}") from error
    from equipoise.studio.security import Secrets

    try:
        runs.mkdir(parents=True, exist_ok=True)
        (runs / ".studio").mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(f"'{runs}' cannot be used as the folder of runs: {error}") from error
    listener = _listen(port)
    secrets = Secrets()
    address = f"http://127.0.0.1:{listener.getsockname()[1]}/?token={secrets.token}"
    app = create_app(StudioPaths(runs.resolve(), (Path.cwd(),)), secrets)
    print(f"studio: {address}", flush=True)
    print("It listens on this machine only. Runs go on when it ends. Stop it with Ctrl-C.")
    if open_browser:
        threading.Timer(0.5, webbrowser.open, [address]).start()
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, timeout_graceful_shutdown=1, server_header=False
    )
    uvicorn.Server(config).run(sockets=[listener])
    return 0


def _listen(port: int) -> socket.socket:
    """Return a socket that listens on 127.0.0.1."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise UsageError(
            f"port {port} on 127.0.0.1 cannot be used ({error}): choose another --port, or 0"
        ) from error
    listener.listen()
    return listener
