"""Typed records that are stored and sent as JSON."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from equipoise.utils.errors import UsageError

T = TypeVar("T")


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag=True):
    """Base class of records: immutable, and validated when they are read from JSON.

    The JSON object has the field `type` with the name of the class, and no unknown fields.
    """


def to_json(value: Any) -> str:
    """Encode a record, or a tuple of records, as compact JSON."""
    return msgspec.json.encode(value).decode()


def from_json(record_type: type[T], text: str, source: str) -> T:
    """Decode and validate a record.

    Args:
        record_type: The class of the record.
        text: Its JSON, as `to_json` writes it.
        source: The name of the text in errors.

    Returns:
        The record.

    Raises:
        UsageError: If the text is not JSON or does not fit the fields of the class.
    """
    try:
        return msgspec.json.decode(text, type=record_type)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise UsageError(f"{source} is damaged or of another version: {error}") from error
