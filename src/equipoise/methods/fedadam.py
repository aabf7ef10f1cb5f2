"""FedAdam (Reddi et al., 2021): FedAvg whose server steps as Adam does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from equipoise.contract import option
from equipoise.methods.adaptive import AdaptiveServer


@dataclass(frozen=True)
class FedAdam(AdaptiveServer):
    """v <- b2 v + (1 - b2) D^2."""

    name: ClassVar[str] = "fedadam"
    family: ClassVar[str] = "one-model"
    search_space: ClassVar[Mapping[str, tuple[float, float]]] = {"server_rate": (0.001, 1.0)}
    beta_two: float = option(0.99, "decay b2 of the squared changes", low=0, below=1)

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta_two * v + (1 - self.beta_two) * square
