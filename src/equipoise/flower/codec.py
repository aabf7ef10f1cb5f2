"""What crosses the network: a tree of tensors as safetensors, a JSON object beside it, and never a pickle.

What comes from elsewhere is checked before use: size, names, shapes, types, finiteness.
"""

from __future__ import annotations

import json
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from equipoise.core import State
from equipoise.utils.io import number_leaves, restore_leaves, unshared

Metadata = dict[str, Any]
"""Plain JSON values."""


class InvalidMessage(Exception):
    """Content that is not what was agreed; the text says what is wrong with it."""


def encode(tree: State, about: Metadata) -> bytes:
    tensors: dict[str, Tensor] = {}
    shape = number_leaves(tree, tensors)
    data: bytes = safetensors.torch.save(
        unshared(tensors), {"shape": json.dumps(shape), "about": json.dumps(about)}
    )
    return data


def decode(data: bytes, limit: int | None = None) -> tuple[State, Metadata]:
    """The inverse of :func:`encode`, for content that nobody vouches for."""
    if limit is not None and len(data) > limit:
        raise InvalidMessage(f"{len(data)} bytes came, at most {limit} were expected")
    try:
        end = 8 + int.from_bytes(data[:8], "little")
        texts = json.loads(data[8:end])["__metadata__"]
        shape, about = json.loads(texts["shape"]), json.loads(texts["about"])
        tree = restore_leaves(shape, safetensors.torch.load(data))
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
        safetensors.SafetensorError,
    ) as error:
        raise InvalidMessage(f"it cannot be read ({type(error).__name__})") from error
    if not isinstance(about, dict):
        raise InvalidMessage("it does not say what it is about")
    return tree, about


def check_like(tree: Any, like: Any, where: str = "reply") -> None:
    """Refuse a tree that differs from ``like`` in names, shapes or types."""
    if isinstance(like, dict):
        if not isinstance(tree, dict):
            raise InvalidMessage(f"{where} is a tensor, a group of {len(like)} was expected")
        missing, unknown = sorted(like.keys() - tree.keys()), sorted(tree.keys() - like.keys())
        if missing or unknown:
            named = f"lacks '{missing[0]}'" if missing else f"has an unknown '{unknown[0]}'"
            raise InvalidMessage(f"{where} {named}"[:200])
        for name, value in like.items():
            check_like(tree[name], value, f"{where}/{name}")
        return
    if not isinstance(tree, Tensor):
        raise InvalidMessage(f"{where} is a group, a tensor was expected")
    for what, got, wanted in (
        ("shape", tuple(tree.shape), tuple(like.shape)),
        ("type", tree.dtype, like.dtype),
    ):
        if got != wanted:
            raise InvalidMessage(f"{where} has {what} {got}, expected {wanted}")


def check_finite(tree: State, where: str) -> None:
    for name, value in tree.items():
        if isinstance(value, dict):
            check_finite(value, f"{where}/{name}")
        elif value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise InvalidMessage(f"{where}/{name} holds NaN or infinity")


def read_int(about: Metadata, name: str, least: int) -> int:
    """A whole number out of ``about``, of at least so much."""
    value = about.get(name)
    if type(value) is not int or not least <= value < 2**53:
        raise InvalidMessage(
            f"its {name} is {str(value)[:40]}: must be a whole number of at least {least}"
        )
    return value
