"""Options in files: a user's TOML, and the ``config.json`` of a run."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from equipoise.utils.errors import UsageError
from equipoise.utils.io import write_text

FORMAT = 2
"""Version of the run folder. Raise it when folders that exist can no longer be read."""


def write_config(path: Path, options: Mapping[str, Any]) -> None:
    """Write a run's ``config.json``.

    Args:
        path: The file.
        options: Every option of the run, by name.
    """
    write_text(path, json.dumps({"format": FORMAT, **options}, indent=1))


def read_config(path: Path) -> dict[str, Any]:
    """Read option names and values.

    Args:
        path: A TOML file, where names with a dot are quoted (`"method.alpha" = 0.1`), or the
            `config.json` of a run.

    Returns:
        The options by name, with ``_`` for ``-``.

    Raises:
        UsageError: If the file cannot be read, is not one flat table, or is the `config.json` of a
            run folder with another format.
    """
    try:
        text = path.read_text()
    except FileNotFoundError as error:
        raise UsageError(f"there is no config file '{path}'") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"config file '{path}' cannot be read: {error}") from error
    try:
        values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except ValueError as error:
        raise UsageError(
            f"config file '{path}' is not valid {path.suffix.lstrip('.').upper()}: {error}"
        ) from error
    if not isinstance(values, dict) or any(isinstance(value, dict) for value in values.values()):
        raise UsageError(
            f"config file '{path}' must be one flat table of option names and values; "
            'quote names with a dot: "method.alpha" = 0.1'
        )
    if path.suffix == ".json":
        _check_format(path, values.pop("format", None))
    return {name.replace("-", "_"): value for name, value in values.items()}


def _check_format(path: Path, recorded: object) -> None:
    """Refuse a run folder of another format."""
    if recorded == FORMAT:
        return
    found = "no format" if recorded is None else f"format {recorded}"
    raise UsageError(
        f"'{path}' was written by another version of Equipoise "
        f"({found}, this version reads format {FORMAT}): start a new run, or use that version"
    )
