"""Parameters of a module: current values, new random values, and values from a file."""

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
    """Return copies of all parameters that are not frozen, and of all running statistics."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: tensors[name].detach().clone() for name in model_param_names(module)}


def frozen_params(module: nn.Module) -> Params:
    """Return the frozen parameters of a module."""
    return {name: p.detach() for name, p in module.named_parameters() if not p.requires_grad}


def reinitialised_params(module: nn.Module, seed: int) -> Params:
    """Return the parameters of a copy of the module whose layers are initialised again.

    A layer whose parameters are all zero (such as a LoRA factor B) stays at zero.

    Args:
        module: The module, which does not change.
        seed: Seed of the initialisation.
    """
    module = copy.deepcopy(module)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for layer in module.modules():
            reset = getattr(layer, "reset_parameters", None)
            if callable(reset) and _learned_nonzero(layer):
                reset()
    return model_params(module)


def check_reinitialisable(module: nn.Module) -> None:
    """Check that every layer with parameters can be initialised again.

    Raises:
        UsageError: If a layer has parameters but no ``reset_parameters()``.
    """
    for name, layer in module.named_modules():
        learned = _learned_nonzero(layer)
        if learned and not callable(getattr(layer, "reset_parameters", None)):
            tensor_name = f"{name}.{learned[0]}" if name else learned[0]
            raise UsageError(
                f"parameter '{tensor_name}' cannot be drawn anew, for its layer has no "
                "reset_parameters(): give it one, or keep the weights (fresh=False)"
            )


def _learned_nonzero(layer: nn.Module) -> list[str]:
    """Return the layer's own parameters that are neither frozen nor all zero."""
    own = layer.named_parameters(recurse=False)
    return [name for name, p in own if p.requires_grad and bool(p.any())]


def load_weights(module: nn.Module, file: str) -> None:
    """Load a safetensors file into a module.

    Args:
        module: The module, changed in place.
        file: Path of the file, which must have exactly the module's tensors.

    Raises:
        UsageError: If the file cannot be read or does not fit.
    """
    try:
        tensors = load_file(file)
    except (OSError, SafetensorError) as error:
        raise UsageError(
            f"init_weights is '{file}': must be a safetensors file of a model ({error})"
        ) from error
    own = module.state_dict()
    for name, value in tensors.items():
        if name not in own or own[name].shape != value.shape:
            raise UsageError(
                f"init_weights is '{file}': its '{name}' is not in the model, or of another shape"
            )
    if missing := [name for name in own if name not in tensors]:
        raise UsageError(f"init_weights is '{file}': it lacks '{missing[0]}' of the model")
    module.load_state_dict(tensors)
