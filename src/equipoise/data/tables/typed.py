"""Typed values as JSON and back: dataclasses, tuples of them, and plain values; what does not fit is refused."""

from __future__ import annotations

import dataclasses
import json
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from equipoise.utils.errors import UsageError

T = TypeVar("T")


def to_json(value: Any) -> str:
    """A dataclass as compact JSON, which is also what is billed when it travels."""
    return json.dumps(_plain(value), allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def of_json(kind: type[T], text: str, where: str) -> T:
    """The inverse of :func:`to_json`; ``where`` names the text in errors."""
    try:
        value: T = _typed(kind, json.loads(text))
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{where} is damaged or of another version: {error}") from error
    return value


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            item.name: _plain(getattr(value, item.name)) for item in dataclasses.fields(value)
        }
        return {"type": type(value).__name__, **fields}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _typed(kind: Any, value: Any) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is UnionType:
        kinds = {item.__name__: item for item in arguments}
        return _typed(kinds[value["type"]], value)
    if origin is tuple:
        if not isinstance(value, list):
            raise TypeError(f"{value!r} is no list")
        each = [arguments[0]] * len(value) if arguments[1:] == (...,) else arguments
        return tuple(_typed(item, part) for item, part in zip(each, value, strict=True))
    if origin is Literal:
        if value not in arguments:
            raise ValueError(f"{value!r} is none of {arguments}")
        return value
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        names = [item.name for item in dataclasses.fields(kind)]
        unknown = set(value) - {"type", *names}
        if unknown:
            raise KeyError(f"{kind.__name__} has no '{min(unknown)}'")  # type: ignore[union-attr]
        return kind(**{name: _typed(hints[name], value[name]) for name in names})  # type: ignore[operator]
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise TypeError(f"{value!r} is not of type {kind.__name__}")
    return value
