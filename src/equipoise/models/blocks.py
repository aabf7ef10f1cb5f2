"""Declared blocks: which parameters clients may share (backbone) and which they may keep (head)."""

from __future__ import annotations

from torch import nn

from equipoise.contract import Blocks
from equipoise.core.errors import UsageError


def with_head(module: nn.Module, head: str) -> nn.Module:
    """Declare the layer named ``head`` as the head and all others as the backbone."""
    names = [name for name, _ in module.named_parameters()]
    kept = tuple(name for name in names if name.startswith(f"{head}."))
    if not kept:
        raise UsageError(f"{type(module).__name__} has no layer '{head}' with parameters to be its head")
    module.blocks = {"backbone": tuple(name for name in names if name not in kept), "head": kept}  # type: ignore[assignment]
    return module


def blocks_of(module: nn.Module) -> Blocks:
    """The module's own ``blocks`` if it declares them; else the last layer that has parameters is the head."""
    declared = getattr(module, "blocks", None)
    names = [name for name, _ in module.named_parameters()]
    if declared is not None:
        if set(declared) != {"backbone", "head"} or sorted(n for b in declared.values() for n in b) != sorted(names):
            raise UsageError(
                f"{type(module).__name__}.blocks must assign every parameter to 'backbone' or 'head' exactly once"
            )
        return {block: tuple(declared[block]) for block in ("backbone", "head")}
    if not names:
        raise UsageError(f"{type(module).__name__} has no parameters: there is nothing to learn")
    layer = names[-1].rpartition(".")[0]
    head = tuple(name for name in names if name.rpartition(".")[0] == layer)
    return {"backbone": tuple(name for name in names if name not in head), "head": head}
