"""A second device, pretended: its tensors hold real numbers, but refuse to meet those of main
memory.

PyTorch's ``meta`` device lends its name; what is moved there is wrapped, what is moved back is
unwrapped.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

FAR = torch.device("meta")
HERE = torch.device("cpu")


class FarTensor(torch.Tensor):
    """Numbers on the other device."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> FarTensor:
        far = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=FAR,
        )
        far.inner = inner
        return far

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        for value in pytree.tree_leaves((args, kwargs)):
            if isinstance(value, torch.Tensor) and not isinstance(value, FarTensor) and value.dim():
                raise RuntimeError(f"{func} mixes tensors of two devices")
        home = kwargs.get("device") == HERE
        if kwargs.get("device") == FAR:
            kwargs["device"] = HERE
        inner = pytree.tree_map_only(FarTensor, lambda value: value.inner, (args, kwargs))
        out = func(*inner[0], **inner[1])
        if home:
            return out
        out = pytree.tree_map_only(torch.Tensor, FarTensor, out)
        return return_and_correct_aliasing(func, args, kwargs, out)


class Pretended(TorchDispatchMode):
    """While it is on, tensors can be moved to the other device and made there."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("device") == FAR and not any(issubclass(kind, FarTensor) for kind in types):
            return pytree.tree_map_only(
                torch.Tensor, FarTensor, func(*args, **{**kwargs, "device": HERE})
            )
        return func(*args, **kwargs)
