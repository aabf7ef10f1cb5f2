"""FedAvg: local SGD at the clients, and the mean of their models weighted by data size.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017 (arXiv:1602.05629), algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from equipoise.core import Capabilities, Method


@dataclass(frozen=True)
class FedAvg(Method):
    """Train the global model at every client and average: w <- sum_i n_i w_i / sum_i n_i.

    These are the defaults of every hook of `Method`, so the class adds only its name.
    """

    name: ClassVar[str] = "fedavg"
    family: ClassVar[str] = "one-model"
    capabilities: ClassVar[Capabilities] = Capabilities(aggregates_by_sum=True)
