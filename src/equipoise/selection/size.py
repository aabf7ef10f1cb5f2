"""Chances by the number of training samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from equipoise.contract import Pool, SelectionPolicy


@dataclass(frozen=True)
class Size(SelectionPolicy):
    """Drawn one after another without replacement, each with a chance by its size (Gumbel's trick)."""

    name: ClassVar[str] = "size"
    is_stateful: ClassVar[bool] = False

    def scores(self, pool: Pool) -> Tensor:
        return pool.sizes.double().clamp(min=1).log() - (-pool.uniform().clamp(min=1e-300).log()).log()
