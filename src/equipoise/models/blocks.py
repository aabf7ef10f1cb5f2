"""Blocks: named groups of a model's parameters that are shared, trained and installed together.

Frozen parameters (``requires_grad=False``) belong to no block.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from torch import nn

from equipoise.core import Blocks
from equipoise.models.norm_dropout import batch_norm_layers, running_stat_names
from equipoise.utils.errors import UsageError

NORM = "norm"
"""Block of batch normalisation, unless the model or the user names another."""

# Not `blocks`: a module of a user may have a layer of that name.
_BLOCKS_ATTRIBUTE = "equipoise_blocks"
_MAX_LISTED_NAMES = 4


def declare_blocks(module: nn.Module, blocks: Blocks) -> None:
    """Set the blocks of a module.

    Args:
        module: The module.
        blocks: Names of parameters by block.
    """
    setattr(module, _BLOCKS_ATTRIBUTE, blocks)


def require_sequences(shape: tuple[int, ...], model: str) -> None:
    """Refuse samples that are no sequences of characters.

    Args:
        shape: Shape of a sample; of a sequence ``[T]``.
        model: Name of the model, for the message.

    Raises:
        UsageError: If samples have another number of axes than one.
    """
    if len(shape) != 1:
        raise UsageError(
            f"model '{model}' takes sequences of characters, and samples have shape {list(shape)}"
        )


def with_head(module: nn.Module, head: str) -> nn.Module:
    """Declare one layer as block ``head`` and all others as ``backbone``.

    Args:
        module: The module, changed in place.
        head: Name of the layer.

    Returns:
        The module.

    Raises:
        UsageError: If there is no such layer with parameters.
    """
    names = [name for name, _ in module.named_parameters()]
    head_names = tuple(name for name in names if name.startswith(f"{head}."))
    if not head_names:
        raise UsageError(
            f"{type(module).__name__} has no layer '{head}' with parameters to be its head"
        )
    backbone = tuple(name for name in names if name not in head_names)
    declare_blocks(module, {"backbone": backbone, "head": head_names})
    return module


def model_param_names(module: nn.Module) -> tuple[str, ...]:
    """Return the names of all parameters that are not frozen, then of all running statistics."""
    learned = tuple(
        name for name, parameter in module.named_parameters() if parameter.requires_grad
    )
    return learned + running_stat_names(module)


def check_trainable(module: nn.Module) -> None:
    """Check that a module has something to learn.

    Raises:
        UsageError: If it has no parameters, or only frozen ones.
    """
    if model_param_names(module):
        return
    problem = "has no parameters"
    if next(module.named_parameters(), None) is not None:
        problem = "has frozen parameters only (requires_grad=False)"
    raise UsageError(f"{type(module).__name__} {problem}: there is nothing to learn")


def blocks_of(module: nn.Module, patterns: str = "") -> Blocks:
    """Return the blocks of a module, without frozen parameters.

    Args:
        module: The module.
        patterns: Blocks as a user writes them, such as ``base=features.* head=fc.*``. Without
            patterns, the module's own declaration is used. Without that, the last layer with
            parameters is the head, and batch normalisation is a block of its own.

    Returns:
        Names of parameters and running statistics by block.

    Raises:
        UsageError: If the blocks do not contain every parameter exactly once.
    """
    if patterns:
        blocks: Blocks = _parse_patterns(module, patterns)
    else:
        declared = _declared_blocks(module)
        if declared is None:
            return _default_blocks(module)
        if not isinstance(declared, dict):
            raise UsageError(
                f"{type(module).__name__}.blocks must map names of blocks to names of parameters"
            )
        blocks = declared
    blocks = _with_running_stats(module, blocks)
    _check_each_once(module, blocks)
    learned = model_param_names(module)
    return {
        block: tuple(name for name in names if name in learned) for block, names in blocks.items()
    }


def _declared_blocks(module: nn.Module) -> object:
    """Return the declared blocks, or the module's attribute ``blocks`` if it is not a layer."""
    own = getattr(module, "blocks", None)
    return getattr(module, _BLOCKS_ATTRIBUTE, None if isinstance(own, nn.Module) else own)


def _default_blocks(module: nn.Module) -> Blocks:
    """Return backbone, batch normalisation (if there is any) and the last layer as head."""
    names = model_param_names(module)
    prefixes = tuple(f"{layer}." for layer, _ in batch_norm_layers(module))
    norm = tuple(name for name in names if prefixes and name.startswith(prefixes))
    others = [name for name in names if name not in norm]
    last_layer = others[-1].rpartition(".")[0] if others else ""
    head = tuple(name for name in others if name.rpartition(".")[0] == last_layer)
    backbone = tuple(name for name in others if name not in head)
    if not norm:
        return {"backbone": backbone, "head": head}
    return {"backbone": backbone, NORM: norm, "head": head}


def _parse_patterns(module: nn.Module, patterns: str) -> dict[str, tuple[str, ...]]:
    """Parse blocks as a user writes them: ``base=features.* head=fc.*,classifier.*``."""
    all_names = [name for name, _ in module.named_parameters()]
    all_names += running_stat_names(module)
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
            if not any(fnmatchcase(name, pattern) for name in all_names):
                raise UsageError(
                    f"pattern '{pattern}' of block '{block}' matches no parameter; the model has "
                    f"{_list_names(all_names)}"
                )
        blocks[block] = tuple(
            name for name in all_names if any(fnmatchcase(name, p) for p in wanted.split(","))
        )
    return blocks


def _with_running_stats(module: nn.Module, blocks: Blocks) -> Blocks:
    """Add running statistics that are in no block to ``norm``.

    Users who declare blocks think of parameters only.
    """
    claimed = {name for names in blocks.values() for name in names}
    rest = tuple(name for name in running_stat_names(module) if name not in claimed)
    extended = {block: tuple(names) for block, names in blocks.items()}
    if rest:
        extended[NORM] = extended.get(NORM, ()) + rest
    return extended


def _check_each_once(module: nn.Module, blocks: Blocks) -> None:
    """Refuse blocks that do not contain every parameter that is not frozen exactly once."""
    learned = model_param_names(module)
    all_names = {*(name for name, _ in module.named_parameters()), *learned}
    declared = [name for names in blocks.values() for name in names]
    problems = []
    if unknown := [name for name in declared if name not in all_names]:
        problems.append(f"name parameters that it does not have ({_list_names(unknown)})")
    if twice := [name for name in learned if declared.count(name) > 1]:
        problems.append(f"overlap in {_list_names(twice)}")
    if missing := [name for name in learned if name not in declared]:
        problems.append(f"leave out {_list_names(missing)}")
    if problems:
        raise UsageError(
            f"the blocks of {type(module).__name__} {' and '.join(problems)}: every parameter that "
            "is not frozen must be in exactly one"
        )


def _list_names(names: list[str]) -> str:
    """List the first names, and count the rest."""
    text = ", ".join(names[:_MAX_LISTED_NAMES])
    if len(names) > _MAX_LISTED_NAMES:
        text += f" and {len(names) - _MAX_LISTED_NAMES} more"
    return text
