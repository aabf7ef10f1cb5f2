"""FedAdagrad (Reddi et al., 2021): FedAvg whose server steps as Adagrad does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from equipoise.contract import option
from equipoise.methods.adaptive import AdaptiveServer


@dataclass(frozen=True)
class FedAdagrad(AdaptiveServer):
    """v <- v + D^2; no momentum, as in the paper."""

    name: ClassVar[str] = "fedadagrad"
    family: ClassVar[str] = "one-model"
    search_space: ClassVar[Mapping[str, tuple[float, float]]] = {"server_rate": (0.001, 1.0)}
    beta_one: float = option(0.0, "decay b1 of the mean change", low=0, below=1)

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square
