"""FedQ with local steps: agents learn one Q-function for all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from equipoise.frl.methods.linear_rep import LinearRepresentation


@dataclass(frozen=True)
class FedQ(LinearRepresentation):
    """Q(s,a) = Phi(s,a) theta; the server averages both."""

    name: ClassVar[str] = "fedq"
    learns: ClassVar[str] = "q"
    shares: ClassVar[tuple[str, ...]] = ("backbone", "head")
