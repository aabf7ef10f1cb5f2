"""Options from files: a user's TOML, or the ``config.json`` of a run."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from equipoise.core.errors import UsageError


def read_config(path: Path) -> dict[str, Any]:
    """Option names and values; a name with a dot stands in quotes in TOML: ``"method.alpha" = 0.1``."""
    try:
        text = path.read_text()
    except FileNotFoundError as error:
        raise UsageError(f"there is no config file '{path}'") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"config file '{path}' cannot be read: {error}") from error
    try:
        values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except ValueError as error:
        raise UsageError(f"config file '{path}' is not valid {path.suffix.lstrip('.').upper()}: {error}") from error
    if not isinstance(values, dict) or any(isinstance(value, dict) for value in values.values()):
        raise UsageError(
            f"config file '{path}' must be one flat table of option names and values; quote names with a dot: "
            '"method.alpha" = 0.1'
        )
    return {name.replace("-", "_"): value for name, value in values.items()}
