"""What of a module a client's model consists of, and weights that were trained before."""

from __future__ import annotations

import copy

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from equipoise.core import Params
from equipoise.models.blocks import model_param_names
from equipoise.utils.errors import UsageError


def model_params(module: nn.Module) -> Params:
    """All that may move of a module, as it is now."""
    held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: held[name].detach().clone() for name in model_param_names(module)}


def frozen_params(module: nn.Module) -> Params:
    """Its frozen parameters."""
    return {name: p.detach() for name, p in module.named_parameters() if not p.requires_grad}


def reinitialised_params(module: nn.Module, seed: int) -> Params:
    """The values of a copy whose layers are drawn anew; a layer that starts at zero stays there."""
    module = copy.deepcopy(module)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for layer in module.modules():
            learned = any(
                p.requires_grad and bool(p.any()) for p in layer.parameters(recurse=False)
            )
            reset = getattr(layer, "reset_parameters", None)
            if callable(reset) and learned:
                reset()
    return model_params(module)


def check_reinitialisable(module: nn.Module) -> None:
    """Refuse a module with parameters that no layer knows how to draw anew."""
    for name, layer in module.named_modules():
        bare = [
            own
            for own, p in layer.named_parameters(recurse=False)
            if p.requires_grad and bool(p.any())
        ]
        if bare and not callable(getattr(layer, "reset_parameters", None)):
            where = f"{name}.{bare[0]}" if name else bare[0]
            raise UsageError(
                f"parameter '{where}' cannot be drawn anew, for its layer has no reset_parameters(): "
                "give it one, or keep the weights (fresh=False)"
            )


def load_weights(module: nn.Module, file: str) -> None:
    """Weights of a file into a module that they fit."""
    try:
        found = load_file(file)
    except (OSError, SafetensorError) as error:
        raise UsageError(
            f"start is '{file}': must be a safetensors file of a model ({error})"
        ) from error
    own = module.state_dict()
    if odd := [
        name for name, value in found.items() if name not in own or own[name].shape != value.shape
    ]:
        raise UsageError(
            f"start is '{file}': its '{odd[0]}' is not in the model, or of another shape"
        )
    if missing := [name for name in own if name not in found]:
        raise UsageError(f"start is '{file}': it lacks '{missing[0]}' of the model")
    module.load_state_dict(found)
