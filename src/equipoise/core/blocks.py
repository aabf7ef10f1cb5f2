"""Blocks of a model, and the two roles by which published methods speak of them.

The ``head`` is the block of that name, or else the last one that has parameters; the ``backbone`` is all the others.
So a rule such as "the head stays at the client" means something for any number of blocks.
"""

from __future__ import annotations

from collections.abc import Iterable

from equipoise.core.messages import Blocks
from equipoise.utils.errors import UsageError, nearest

ROLES = ("backbone", "head")


def head_of(blocks: Blocks) -> str:
    """The block that has the role of the head."""
    filled = [block for block, names in blocks.items() if names]
    return "head" if "head" in blocks or not filled else filled[-1]


def matching_blocks(blocks: Blocks, wanted: Iterable[str]) -> tuple[str, ...]:
    """The blocks that have one of these roles or else one of these names, in the model's order."""
    wanted, head = set(wanted), head_of(blocks)
    return tuple(
        block
        for block in blocks
        if ROLES[block == head] in wanted or (block in wanted and block not in ROLES)
    )


def require_blocks(blocks: Blocks, wanted: Iterable[str], who: str) -> None:
    """Refuse a name that no block has."""
    for block in wanted:
        if block not in blocks and block not in ROLES:
            raise UsageError(
                f"{who} names block '{block}', and the model's blocks are {', '.join(blocks)}{nearest(block, blocks)}"
            )
