"""FedTD: agents evaluate policies with one value function for all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from equipoise.methods.rl.linear_rep import LinearRepresentation


@dataclass(frozen=True)
class FedTD(LinearRepresentation):
    """V(s) = Phi(s) theta; the server averages both."""

    name: ClassVar[str] = "fedtd"
    learns: ClassVar[str] = "v"
    default_shared_blocks: ClassVar[tuple[str, ...]] = ("backbone", "head")
