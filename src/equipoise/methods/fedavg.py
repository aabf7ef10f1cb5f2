"""FedAvg (McMahan et al., 2017): everybody trains the global model, the server averages by data size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from equipoise.core import Method


@dataclass(frozen=True)
class FedAvg(Method):
    """w_i <- w; E epochs of SGD; w <- sum n_i w_i / sum n_i: the defaults of every decision."""

    name: ClassVar[str] = "fedavg"
    family: ClassVar[str] = "one-model"
