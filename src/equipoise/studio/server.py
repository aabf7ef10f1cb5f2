"""Start the studio: a web server on 127.0.0.1 for one person on this machine."""

from __future__ import annotations

import socket
import threading
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

from equipoise.studio.paths import StudioPaths
from equipoise.utils.errors import UsageError

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from equipoise.studio.security import Secrets

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
        import uvicorn  # noqa: F401

        from equipoise.studio.app import create_app
    except ImportError as error:
        raise UsageError(f"the studio needs {error.name}: {INSTALL_HINT}") from error
    from equipoise.studio.security import Secrets

    try:
        runs.mkdir(parents=True, exist_ok=True)
        (runs / ".studio").mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(f"'{runs}' cannot be used as the folder of runs: {error}") from error
    secrets = Secrets()
    app = create_app(StudioPaths(runs.resolve(), (Path.cwd(),)), secrets)
    return _serve("studio", app, secrets, port, open_browser)


def serve_federation(folder: Path, port: int, open_browser: bool) -> int:
    """Serve the live page of one federation until Ctrl-C.

    Args:
        folder: Folder of the run; it may not have begun.
        port: Port on 127.0.0.1; 0 takes any free one.
        open_browser: Whether to open the page in the browser.

    Returns:
        The exit code.

    Raises:
        UsageError: If a package is missing, or the port is in use.
    """
    try:
        import uvicorn  # noqa: F401

        from equipoise.studio.federation import create_app
    except ImportError as error:
        raise UsageError(f"the live page needs {error.name}: {INSTALL_HINT}") from error
    from equipoise.studio.security import Secrets

    secrets = Secrets()
    app = create_app(folder.resolve(), secrets)
    return _serve("live page", app, secrets, port, open_browser)


def _serve(title: str, app: Starlette, secrets: Secrets, port: int, open_browser: bool) -> int:
    """Print the address of an application and serve it until Ctrl-C."""
    import uvicorn

    listener = _listen(port)
    address = f"http://127.0.0.1:{listener.getsockname()[1]}/?token={secrets.token}"
    print(f"{title}: {address}", flush=True)
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
