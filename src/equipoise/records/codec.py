"""Convert records (dataclasses) to JSON and back, by the types of their fields.

A field is written under its name, without the underscore of names that Python reserves
(``global_``). A field that has its default is left out. The entries of a :data:`Flat` field are
merged into those of its owner. JSON has no NaN and no infinity: they become null, and null is read
as NaN where a number is required.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from equipoise.records.scores import Scores
from equipoise.utils.errors import UsageError

T = TypeVar("T")
Flat = Annotated[T, "flat"]
"""Type of a field whose entries are merged into those of its owner."""
TYPE_NAMES = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    list: "a list",
    dict: "a table",
}


def dumps(record: Any, indent: int | None = None) -> str:
    """Return a record as JSON text."""
    tree = encode(record)
    try:
        return json.dumps(tree, indent=indent, allow_nan=False)
    except ValueError:  # rare; the common case needs no search for NaN
        return json.dumps(_finite(tree), indent=indent, allow_nan=False)


def encode(value: Any) -> Any:
    """Return a record as a tree of JSON types; NaN and infinity stay."""
    if is_dataclass(value):
        tree: dict[str, Any] = {}
        for item in fields(value):
            part = getattr(value, item.name)
            if _is_flat(type(value), item):
                tree |= encode(part) or {}
            elif part != _default(item):
                tree[_key(item)] = encode(part)
        return tree
    if isinstance(value, Scores) and not value:
        return None
    if isinstance(value, list):
        return [encode(part) if is_dataclass(part) else part for part in value]
    if isinstance(value, Mapping):
        return {str(key): encode(part) for key, part in value.items()}
    return value


def decode(kind: type[T], tree: Any) -> T:
    """Build a record from a JSON tree.

    Args:
        kind: Type of the record.
        tree: Parsed JSON.

    Returns:
        The record.

    Raises:
        ValueError: If an entry is missing, unknown or of the wrong type.
    """
    record: T = _decode(kind, tree, "")
    return record


def loads(kind: type[T], text: str | bytes, source: object) -> T:
    """Build a record from JSON text.

    Args:
        kind: Type of the record.
        text: JSON.
        source: Name of the text in errors, such as its file.

    Returns:
        The record.

    Raises:
        UsageError: If the text is no JSON, is nested too deeply, or does not fit the type.
    """
    try:
        return decode(kind, json.loads(text))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"'{source}' is damaged or of another version: {error}") from error


def _decode(kind: Any, value: Any, name: str) -> Any:
    """Decode a value of any type; ``name`` is its path, for errors."""
    origin = get_origin(kind)
    inner = get_args(kind)
    if origin is Annotated:
        return _decode(inner[0], value, name)
    if kind is Any:
        return value
    if origin in (Union, UnionType):
        if value is None and NoneType in inner:
            return None
        return _decode_any([one for one in inner if one is not NoneType], value, name)
    if is_dataclass(kind):
        return _decode_record(kind, _require_type(dict, value, name), name)
    if kind is Scores:
        return Scores(_decode(dict[str, float | None], value or {}, name))
    if origin is dict:
        to_key, to_value = inner
        parts = _require_type(dict, value, name).items()
        return {
            to_key(key): _decode(to_value, part, f"{name}.{key}".lstrip(".")) for key, part in parts
        }
    if origin is list:
        return [_decode(inner[0], part, name) for part in _require_type(list, value, name)]
    if kind is float and value is None:
        return math.nan
    return _require_type(kind, value, name)


def _decode_any(kinds: list[Any], value: Any, name: str) -> Any:
    """Decode a union: the first type that fits."""
    for kind in kinds[:-1]:
        try:
            return _decode(kind, value, name)
        except ValueError:
            continue
    return _decode(kinds[-1], value, name)


def _decode_record(kind: Any, tree: dict[str, Any], name: str) -> Any:
    """Decode a dataclass; flat fields take the entries that are left."""
    hints = _hints(kind)
    rest = dict(tree)
    arguments = {}
    flattened = [item for item in fields(kind) if _is_flat(kind, item)]
    for item in fields(kind):
        if item in flattened:
            continue
        key = _key(item)
        if key in rest:
            arguments[item.name] = _decode(
                hints[item.name], rest.pop(key), f"{name}.{key}".lstrip(".")
            )
        elif _default(item) is MISSING:
            raise ValueError(f"'{key}' is missing" + (f" in '{name}'" if name else ""))
    for item in flattened:
        known = set(_names(hints[item.name]))
        mine = {key: rest.pop(key) for key in list(rest) if not known or key in known}
        if mine or _default(item) is MISSING:
            arguments[item.name] = _decode(hints[item.name], mine, name)
    if rest:
        raise ValueError(f"'{next(iter(rest))}' is unknown" + (f" in '{name}'" if name else ""))
    return kind(**arguments)


def _names(kind: Any) -> Iterator[str]:
    """Iterate over the entries of a flat field; none means all that are left."""
    kind = get_args(kind)[0]
    for one in get_args(kind) or (kind,):
        if is_dataclass(one):
            yield from map(_key, fields(one))


def _require_type(kind: Any, value: Any, name: str) -> Any:
    fits = isinstance(value, int | float if kind is float else kind) and (
        kind is bool or not isinstance(value, bool)
    )
    if not fits:
        raise ValueError(
            f"{repr(name) if name else 'it'} must be {TYPE_NAMES.get(kind, kind.__name__)}"
        )
    return value


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _is_flat(kind: Any, item: Field[Any]) -> bool:
    return get_origin(_hints(kind)[item.name]) is Annotated


def _key(item: Field[Any]) -> str:
    return item.name.rstrip("_")


def _default(item: Field[Any]) -> Any:
    return item.default_factory() if item.default_factory is not MISSING else item.default


def _finite(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _finite(part) for key, part in tree.items()}
    if isinstance(tree, list | tuple):
        return [_finite(part) for part in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree
