"""Encoding of messages: a tree of tensors as safetensors, with JSON metadata, and never a pickle.

Content that was received is checked before use: size, names, shapes, types, finiteness.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from equipoise.core import State
from equipoise.utils import serialization

Metadata = dict[str, Any]
"""Plain JSON values."""
NO_REPLY = "no reply in time"
"""Reason of a client that did not answer within the limit."""


class InvalidMessage(Exception):
    """A message that violates the protocol; the text says how."""


class NoReply(InvalidMessage):
    """A client did not reply; the text says why."""


class PreparationMissing(InvalidMessage):
    """A client lacks the preprocessing of raw tables; the server sends it again."""


def encode(tree: State, metadata: Metadata) -> bytes:
    """Encode a message.

    Args:
        tree: Tensors.
        metadata: JSON metadata.

    Returns:
        The message.
    """
    return serialization.encode(tree, metadata)


def decode(data: bytes, limit: int | None = None) -> tuple[State, Metadata]:
    """Decode a message that is not trusted.

    Args:
        data: The message.
        limit: Largest size in bytes.

    Returns:
        Tensors and metadata.

    Raises:
        InvalidMessage: If it is too large or cannot be decoded.
    """
    if limit is not None and len(data) > limit:
        raise InvalidMessage(f"{len(data)} bytes came, at most {limit} were expected")
    try:
        tree, metadata = serialization.decode(data)
    except serialization.MALFORMED as error:
        raise InvalidMessage(f"it cannot be read ({type(error).__name__})") from error
    if not isinstance(metadata, dict):
        raise InvalidMessage("it does not say what it is about")
    return tree, metadata


def decode_reply(
    answer: bytes | str | None, limit: int, **sender: object
) -> tuple[State, Metadata]:
    """Decode a client's reply.

    Args:
        answer: The reply; text is the reason why there is none.
        limit: Largest size in bytes.
        **sender: Metadata that the reply must repeat, such as the client's id.

    Returns:
        Tensors and metadata.

    Raises:
        NoReply: If there is no reply.
        PreparationMissing: If the client lacks the preprocessing of raw tables.
        InvalidMessage: If it is malformed, reports an error, or answers another message.
    """
    if not isinstance(answer, bytes):
        raise NoReply(answer or NO_REPLY)
    tree, metadata = decode(answer, limit)
    if "error" in metadata:
        is_unprepared = metadata.get("unprepared") is True
        error = PreparationMissing if is_unprepared else InvalidMessage
        raise error(f"it reports {str(metadata['error'])[:500]!r}")
    for name, value in sender.items():
        if type(metadata.get(name)) is not type(value) or metadata[name] != value:
            raise InvalidMessage("it answers another message")
    return tree, metadata


def check_like(tree: object, like: State | Tensor, location: str = "reply") -> None:
    """Check that a tree has the names, shapes and types of another.

    Args:
        tree: The tree to check.
        like: The expected tree.
        location: Name of the tree, for error messages.

    Raises:
        InvalidMessage: If it differs.
    """
    if isinstance(like, dict):
        if not isinstance(tree, dict):
            raise InvalidMessage(f"{location} is a tensor, a group of {len(like)} was expected")
        missing = sorted(like.keys() - tree.keys())
        unknown = sorted(tree.keys() - like.keys())
        if missing:
            raise InvalidMessage(f"{location} lacks '{missing[0]}'"[:200])
        if unknown:
            raise InvalidMessage(f"{location} has an unknown '{unknown[0]}'"[:200])
        for name, value in like.items():
            check_like(tree[name], value, f"{location}/{name}")
        return
    if not isinstance(tree, Tensor):
        raise InvalidMessage(f"{location} is a group, a tensor was expected")
    if tree.shape != like.shape:
        raise InvalidMessage(
            f"{location} has shape {tuple(tree.shape)}, expected {tuple(like.shape)}"
        )
    if tree.dtype != like.dtype:
        raise InvalidMessage(f"{location} has type {tree.dtype}, expected {like.dtype}")


def check_finite(tree: State, location: str) -> None:
    """Check that all numbers of a tree are finite.

    Raises:
        InvalidMessage: If a tensor holds NaN or infinity.
    """
    for name, value in tree.items():
        if isinstance(value, dict):
            check_finite(value, f"{location}/{name}")
        elif value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise InvalidMessage(f"{location}/{name} holds NaN or infinity")


def read_numbers(metadata: Metadata, part: str, names: Iterable[str]) -> dict[str, float]:
    """Read a table of finite numbers from metadata; ``None`` in it becomes NaN.

    Args:
        metadata: The metadata.
        part: Name of the table.
        names: Names that it must have, and no others.

    Returns:
        The numbers by name.

    Raises:
        InvalidMessage: If names differ, or a value is no number.
    """
    table = metadata.get(part)
    if not isinstance(table, dict) or table.keys() != set(names):
        raise InvalidMessage(f"its {part} have other names than the task's")
    if not all(
        value is None or (type(value) is float and math.isfinite(value)) for value in table.values()
    ):
        raise InvalidMessage(f"its {part} are no numbers")
    return {name: math.nan if value is None else value for name, value in table.items()}


def read_int(metadata: Metadata, name: str, minimum: int) -> int:
    """Read an integer from metadata.

    Args:
        metadata: Metadata of a message.
        name: Name of the entry.
        minimum: The smallest allowed value.

    Returns:
        The integer.

    Raises:
        InvalidMessage: If it is missing, no integer, or below ``minimum``.
    """
    value = metadata.get(name)
    if type(value) is not int or not minimum <= value < 2**53:
        raise InvalidMessage(
            f"its {name} is {str(value)[:40]}: must be a whole number of at least {minimum}"
        )
    return value
