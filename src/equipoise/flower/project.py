"""``equipoise flower init``: a ready Flower app whose options are those of a run."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping
from pathlib import Path

from equipoise.config.schema import to_config_value
from equipoise.flower import config
from equipoise.tasks.remote_tables import RemoteTablesConfig
from equipoise.utils import io
from equipoise.utils.errors import UsageError

PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
description = "A federation of Equipoise"
license = "Apache-2.0"
# Empty on purpose: nothing is installed at run time. Every machine has its own environment with
# equipoise[flower].
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["app"]

[tool.flwr.app]
publisher = "equipoise"

[tool.flwr.app.components]
serverapp = "app.server:app"
clientapp = "app.client:app"

# Options of the run and of the deployment: see `equipoise flower init --help`.
[tool.flwr.app.config]
{table}
"""


def write_app(folder: Path, given: Mapping[str, object]) -> None:
    """Write an app.

    Args:
        folder: New folder of the app.
        given: Options of the run and of the deployment that differ from the defaults.

    Raises:
        UsageError: If the folder exists, an option is wrong, or the server's folder is on this
            machine and lacks a table.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"'{folder}' exists already: choose another folder")
    given = {"out": str((folder / "run").resolve()), **given}
    settings, _ = config.read_app_config(given)
    _check_server_folder(settings.task_config)
    io.make_folder(folder / "app")
    table = "\n".join(
        f"{_key(name)} = {json.dumps(to_config_value(value))}" for name, value in given.items()
    )
    name = re.sub(r"[\W_]", "-", folder.resolve().name.lower()).strip("-") or "federation"
    io.write_text(folder / ".gitignore", "/run/\n")  # Flower leaves out of the app what is ignored
    io.write_text(folder / "app" / "__init__.py", "")
    for side in ("server", "client"):
        text = f"from equipoise.flower import {side}_app\n\napp = {side}_app.app\n"
        io.write_text(folder / "app" / f"{side}.py", text)
    io.write_text(folder / "pyproject.toml", PYPROJECT.format(name=name, table=table))


def _check_server_folder(task_config: object) -> None:
    """Check the server's tables, unless the app is written on another machine than the server."""
    if not isinstance(task_config, RemoteTablesConfig):
        return
    if task_config.data and Path(task_config.data).expanduser().is_dir():
        task_config.check_server_folder()


def _key(name: str) -> str:
    """Return the TOML key of an option; a name with a dot is quoted, or it would open a table."""
    plain = name.replace("_", "-")
    return f'"{plain}"' if "." in plain else plain


HOST_NAME = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]{0,62})(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,62}))*\.?"
)


def parse_address(text: str, option: str) -> tuple[str, int]:
    """Parse ``host:port``.

    Args:
        text: The address.
        option: Name of the option, for the error message.

    Returns:
        Host and port.

    Raises:
        UsageError: If it is no address.
    """
    host, _, port = text.rpartition(":")
    if not is_host(host) or not is_port(port):
        raise UsageError(f"{option} is '{text}': must be host:port, as 127.0.0.1:8000")
    return host, int(port)


def is_port(text: str) -> bool:
    """Return whether a text is the number of a port."""
    return text.isascii() and text.isdigit() and 0 < int(text) < 65536


def is_host(text: str) -> bool:
    """Return whether a text is a host name or an IP address (version 6 in brackets)."""
    try:
        ipaddress.ip_address(text.removeprefix("[").removesuffix("]"))
    except ValueError:
        return HOST_NAME.fullmatch(text) is not None
    return True
