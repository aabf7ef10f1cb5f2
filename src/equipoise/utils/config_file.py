"""Options in files: a user's YAML, TOML or JSON, and the ``config.json`` of a run.

Files may be flat (``rounds: 50``, ``method.mu: 0.1``) or nested. ``method: {name: page, reading:
paper}`` and ``task: {...}`` name the method or task and its options; sections such as ``training:
{lr: 0.1}`` only group options.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from equipoise.utils.errors import UsageError, did_you_mean

FORMAT = 3
"""Version of the run folder. Raise it when folders that exist can no longer be read."""
MAX_CONFIG_BYTES = 2**20  # a config file is a few kilobytes; parsing more can take gigabytes
MAX_KEY_DOTS = 32  # in one name: memory grows with the square of this number
_KEY_PART = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')"""
YAML_SUFFIXES = (".yaml", ".yml")
NAMED_SECTIONS = ("method", "task")
"""Sections that name a method or task and hold its options."""
PLAIN_SECTIONS = ("run", "training", "timing", "privacy")
"""Sections that only group options."""
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

    The config of a run is read by ``RunFolder.read_config``, which also checks it.

    Args:
        path: A YAML, TOML or JSON file, flat or with sections, or the `config.json` of a run.

    Returns:
        The options by name, with ``_`` for ``-``.

    Raises:
        UsageError: If the file cannot be read, has unknown sections, or is the `config.json` of a
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
        values = _parse_text(text, path.suffix.lower())
    except RecursionError as error:
        raise UsageError(f"config file '{path}' is nested too deeply for {form}") from error
    except ValueError as error:
        raise UsageError(f"config file '{path}' is not valid {form}: {error}") from error
    if not isinstance(values, dict):
        raise UsageError(f"config file '{path}' must hold option names and values")
    if path.suffix == ".json" and "format" in values:
        _check_format(path, values.pop("format"))
    elif path.name == "config.json":
        _check_format(path, None)
    return flatten_sections(values, f"config file '{path}'")


def flatten_sections(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Turn the sections of a config into full names of options.

    Args:
        values: Options and sections.
        source: What they come from, for errors.

    Returns:
        The options by name, with ``_`` for ``-``.

    Raises:
        UsageError: If a section is unknown, or an option is given twice.
    """
    flat: dict[str, Any] = {}
    for name, value in values.items():
        key = str(name).replace("-", "_")
        if not isinstance(value, dict):
            pairs = {key: value}
        elif key in NAMED_SECTIONS:
            inner = {str(option).replace("-", "_"): inner for option, inner in value.items()}
            pairs = {key: inner.pop("name")} if "name" in inner else {}
            pairs |= {f"{key}.{option}": inner_value for option, inner_value in inner.items()}
        elif key in PLAIN_SECTIONS:
            pairs = {str(option).replace("-", "_"): inner for option, inner in value.items()}
        else:
            sections = (*NAMED_SECTIONS, *PLAIN_SECTIONS)
            raise UsageError(
                f"{source} has an unknown section '{name}'{did_you_mean(key, sections)}: "
                f"sections are {', '.join(sections)}"
            )
        for option, inner_value in pairs.items():
            if isinstance(inner_value, dict):
                raise UsageError(f"{source} nests '{option}' too deeply: give it a plain value")
            if option in flat:
                raise UsageError(f"{source} gives '{option}' twice")
            flat[option] = inner_value
    return flat


def parse_assignment(text: str) -> tuple[str, str]:
    """Split ``NAME=VALUE`` of the option ``--set``.

    Raises:
        UsageError: If there is no name or no equals sign.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise UsageError(f"--set is '{text}': must be NAME=VALUE, such as method.mu=0.1")
    return name.strip().replace("-", "_"), value


def _parse_text(text: str, suffix: str) -> Any:
    """Parse the text of a config file by its suffix."""
    if suffix == ".json":
        return json.loads(text)
    if suffix in YAML_SUFFIXES:
        return _parse_yaml(text)
    return _parse_toml(text)


def _parse_yaml(text: str) -> Any:
    """Parse YAML without aliases, which a small file could expand to gigabytes."""
    import yaml

    try:
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):
            raise ValueError("aliases (*name) are not read: write the value itself")
        return yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error


def _parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML; refuse names of very many parts before they cost memory."""
    if LONG_KEY.search(text):
        raise ValueError(f"a name has more than {MAX_KEY_DOTS} dots")
    return tomllib.loads(text)


def _check_format(path: Path, recorded: object) -> None:
    """Refuse a run folder of another format."""
    if recorded == FORMAT:
        return
    description = "no format" if recorded is None else f"format {recorded}"
    raise UsageError(
        f"'{path}' was written by another version of Equipoise "
        f"({description}, this version reads format {FORMAT}): start a new run, or use that version"
    )
