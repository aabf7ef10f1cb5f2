"""Options in files: a user's TOML, and the ``config.json`` of a run."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from equipoise.utils.errors import UsageError

FORMAT = 3
"""Version of the run folder. Raise it when folders that exist can no longer be read."""
MAX_CONFIG_BYTES = 2**20  # a config file is a few kilobytes; parsing more can take gigabytes
MAX_KEY_DOTS = 32  # in one name: memory grows with the square of this number
_KEY_PART = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')"""
LONG_KEY = re.compile(rf"(?<![\w-]){_KEY_PART}(?:\s*+\.\s*+{_KEY_PART}){{{MAX_KEY_DOTS + 1}}}")
"""A dotted name that is too long, in TOML."""


def config_text(options: Mapping[str, Any]) -> str:
    """Return the content of a run's ``config.json``.

    Args:
        options: Every option of the run, by name.

    Returns:
        JSON with the format of the folder.
    """
    return json.dumps({"format": FORMAT, **options}, indent=1)


def parse_config(path: Path) -> dict[str, Any]:
    """Read option names and values from a file.

    The config of a run is read by ``Folder.read_config``, which also checks it.

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
        size = path.stat().st_size
        text = path.read_text(encoding="utf-8") if size <= MAX_CONFIG_BYTES else ""
    except FileNotFoundError as error:
        raise UsageError(f"there is no config file '{path}'") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"config file '{path}' cannot be read: {error}") from error
    if size > MAX_CONFIG_BYTES:
        raise UsageError(
            f"config file '{path}' has {size} bytes: at most {MAX_CONFIG_BYTES} are read"
        )
    form = path.suffix.lstrip(".").upper()
    try:
        values = json.loads(text) if path.suffix == ".json" else _parse_toml(text)
    except RecursionError as error:
        raise UsageError(f"config file '{path}' is nested too deeply for {form}") from error
    except ValueError as error:
        raise UsageError(f"config file '{path}' is not valid {form}: {error}") from error
    if not isinstance(values, dict) or any(isinstance(value, dict) for value in values.values()):
        raise UsageError(
            f"config file '{path}' must be one flat table of option names and values; "
            'quote names with a dot: "method.alpha" = 0.1'
        )
    if path.suffix == ".json":
        _check_format(path, values.pop("format", None))
    return {name.replace("-", "_"): value for name, value in values.items()}


def _parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML; refuse names of very many parts before they cost memory."""
    if LONG_KEY.search(text):
        raise ValueError(f"a name has more than {MAX_KEY_DOTS} dots")
    return tomllib.loads(text)


def _check_format(path: Path, recorded: object) -> None:
    """Refuse a run folder of another format."""
    if recorded == FORMAT:
        return
    found = "no format" if recorded is None else f"format {recorded}"
    raise UsageError(
        f"'{path}' was written by another version of Equipoise "
        f"({found}, this version reads format {FORMAT}): start a new run, or use that version"
    )
