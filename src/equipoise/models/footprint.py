"""What a model keeps in memory for its gradient."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from equipoise.contract import Params


def activation_bytes(module: nn.Module, learned: Params, forward: Callable[[Params], Tensor]) -> int:
    """Bytes that ``forward`` keeps for the gradient of what is ``learned``, beside the model's own tensors."""
    model = (*module.parameters(), *module.buffers(), *learned.values())
    own = {tensor.untyped_storage().data_ptr() for tensor in model}
    kept: dict[int, tuple[Tensor, int]] = {}  # tensors stay referenced, so that no address is used twice

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = tensor, storage.nbytes()
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        forward({name: value.detach().requires_grad_() for name, value in learned.items()})
    return sum(size for _, size in kept.values())
