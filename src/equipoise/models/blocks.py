"""Declared blocks: the parts of a model that travel, move and are installed as one. Frozen parameters are in none."""

from __future__ import annotations

from fnmatch import fnmatchcase

from torch import nn

from equipoise.core import Blocks
from equipoise.models.norm_dropout import batch_norm_layers, running_stat_names
from equipoise.utils.errors import UsageError

NORM = "norm"
"""The block of batch normalisation, where the model or the user names no other."""


_DECLARED = "equipoise_blocks"  # a module of others may have a layer of the name `blocks`


def declare_blocks(module: nn.Module, blocks: Blocks) -> None:
    """Let these be the module's blocks."""
    setattr(module, _DECLARED, blocks)


def _declared(module: nn.Module) -> object:
    own = getattr(module, "blocks", None)
    return getattr(module, _DECLARED, None if isinstance(own, nn.Module) else own)


def with_head(module: nn.Module, head: str) -> nn.Module:
    """Declare the layer named ``head`` as the head and all others as the backbone."""
    names = [name for name, _ in module.named_parameters()]
    kept = tuple(name for name in names if name.startswith(f"{head}."))
    if not kept:
        raise UsageError(
            f"{type(module).__name__} has no layer '{head}' with parameters to be its head"
        )
    declare_blocks(
        module, {"backbone": tuple(name for name in names if name not in kept), "head": kept}
    )
    return module


def model_param_names(module: nn.Module) -> tuple[str, ...]:
    """What a model consists of: all parameters but the frozen ones, then running statistics."""
    learned = tuple(
        name for name, parameter in module.named_parameters() if parameter.requires_grad
    )
    return learned + running_stat_names(module)


def blocks_of(module: nn.Module, patterns: str = "") -> Blocks:
    """Blocks by ``patterns``, else the module's own ``blocks``, else the last layer that has parameters is the head."""
    names = model_param_names(module)
    if not names:
        frozen = next(module.named_parameters(), None)
        what = (
            "has no parameters"
            if frozen is None
            else "has frozen parameters only (requires_grad=False)"
        )
        raise UsageError(f"{type(module).__name__} {what}: there is nothing to learn")
    if patterns:
        return _matched(module, patterns)
    declared = _declared(module)
    if declared is None:
        inside = tuple(f"{layer}." for layer, _ in batch_norm_layers(module))
        norm = tuple(name for name in names if inside and name.startswith(inside))
        others = [name for name in names if name not in norm]
        layer = others[-1].rpartition(".")[0] if others else ""
        head = tuple(name for name in others if name.rpartition(".")[0] == layer)
        body = tuple(name for name in others if name not in head)
        return {"backbone": body, **({NORM: norm} if norm else {}), "head": head}
    if not isinstance(declared, dict):
        raise UsageError(
            f"{type(module).__name__}.blocks must map names of blocks to names of parameters"
        )
    declared = _with_statistics(module, declared)
    _demand_each_once(module, declared)
    return {block: tuple(name for name in own if name in names) for block, own in declared.items()}


def _matched(module: nn.Module, patterns: str) -> Blocks:
    """Blocks as the user writes them: ``base=features.* head=fc.*,classifier.*``."""
    every = [*(name for name, _ in module.named_parameters()), *running_stat_names(module)]
    blocks: dict[str, tuple[str, ...]] = {}
    for text in patterns.split():
        block, equals, wanted = text.partition("=")
        if not (block and equals and wanted):
            raise UsageError(f"blocks has '{text}': write name=pattern, such as head=classifier.*")
        if block in blocks:
            raise UsageError(
                f"block '{block}' is given twice: write its patterns with commas between"
            )
        for pattern in wanted.split(","):
            if not any(fnmatchcase(name, pattern) for name in every):
                raise UsageError(
                    f"pattern '{pattern}' of block '{block}' matches no parameter; the model has {_some(every)}"
                )
        blocks[block] = tuple(
            name for name in every if any(fnmatchcase(name, p) for p in wanted.split(","))
        )
    blocks = _with_statistics(module, blocks)
    _demand_each_once(module, blocks)
    learned = model_param_names(module)
    return {block: tuple(name for name in own if name in learned) for block, own in blocks.items()}


def _with_statistics(module: nn.Module, blocks: Blocks) -> dict[str, tuple[str, ...]]:
    """Running statistics that no block claims are in ``norm``: whoever declares blocks thinks of parameters first."""
    claimed = {name for own in blocks.values() for name in own}
    rest = tuple(name for name in running_stat_names(module) if name not in claimed)
    found = {block: tuple(own) for block, own in blocks.items()}
    return {**found, NORM: found.get(NORM, ()) + rest} if rest else found


def _demand_each_once(module: nn.Module, blocks: Blocks) -> None:
    learned = model_param_names(module)
    every = {*(name for name, _ in module.named_parameters()), *learned}
    given = [name for own in blocks.values() for name in own]
    wrong = []
    if unknown := [name for name in given if name not in every]:
        wrong.append(f"name parameters that it does not have ({_some(unknown)})")
    if twice := [name for name in learned if given.count(name) > 1]:
        wrong.append(f"overlap in {_some(twice)}")
    if missing := [name for name in learned if name not in given]:
        wrong.append(f"leave out {_some(missing)}")
    if wrong:
        raise UsageError(
            f"the blocks of {type(module).__name__} {' and '.join(wrong)}: every parameter that is not frozen must be "
            "in exactly one"
        )


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
