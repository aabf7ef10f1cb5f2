"""What of a module a client's model consists of, and weights that were trained before."""

from __future__ import annotations

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from equipoise.contract import Tree
from equipoise.core.errors import UsageError
from equipoise.models.blocks import moving


def values(module: nn.Module) -> Tree:
    """All that may move of a module, as it is now."""
    held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: held[name].detach().clone() for name in moving(module)}


def frozen(module: nn.Module) -> Tree:
    """Its frozen parameters."""
    return {name: p.detach() for name, p in module.named_parameters() if not p.requires_grad}


def load(module: nn.Module, file: str) -> None:
    """Weights of a file into a module that they fit."""
    try:
        found = load_file(file)
    except (OSError, SafetensorError) as error:
        raise UsageError(f"start is '{file}': must be a safetensors file of a model ({error})") from error
    own = module.state_dict()
    if odd := [name for name, value in found.items() if name not in own or own[name].shape != value.shape]:
        raise UsageError(f"start is '{file}': its '{odd[0]}' is not in the model, or of another shape")
    if missing := [name for name in own if name not in found]:
        raise UsageError(f"start is '{file}': it lacks '{missing[0]}' of the model")
    module.load_state_dict(found)
