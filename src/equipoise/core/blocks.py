"""Blocks of a model, and the two roles that published methods use.

The `head` is the block of that name, or else the last block that has parameters. The `backbone` is
all the others. A rule such as "the head stays at the client" thus works for any number of blocks.
"""

from __future__ import annotations

from collections.abc import Iterable

from equipoise.core.messages import Blocks
from equipoise.utils.errors import UsageError, nearest

ROLES = ("backbone", "head")


def head_of(blocks: Blocks) -> str:
    """Return the name of the block that has the role of the head."""
    filled = [block for block, names in blocks.items() if names]
    return "head" if "head" in blocks or not filled else filled[-1]


def matching_blocks(blocks: Blocks, wanted: Iterable[str]) -> tuple[str, ...]:
    """Return the blocks with one of these roles or names, in the model's order.

    Args:
        blocks: The model's blocks.
        wanted: Roles (`backbone`, `head`) or names of blocks.
    """
    wanted = set(wanted)
    head = head_of(blocks)
    return tuple(
        block
        for block in blocks
        if ROLES[block == head] in wanted or (block in wanted and block not in ROLES)
    )


def require_blocks(blocks: Blocks, wanted: Iterable[str], who: str) -> None:
    """Check that every wanted name is a role or a block.

    Args:
        blocks: The model's blocks.
        wanted: Roles or names of blocks.
        who: The method that asks, for the message.

    Raises:
        UsageError: If a name is unknown.
    """
    for block in wanted:
        if block not in blocks and block not in ROLES:
            raise UsageError(
                f"{who} names block '{block}', and the model's blocks are "
                f"{', '.join(blocks)}{nearest(block, blocks)}"
            )
