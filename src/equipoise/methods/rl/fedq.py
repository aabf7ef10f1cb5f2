"""FedQ with local steps: agents learn one Q-function for all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from equipoise.methods.rl.linear_rep import LinearControl


@dataclass(frozen=True)
class FedQ(LinearControl):
    """Q(s,a) = Phi(s,a) theta; the server averages both."""

    name: ClassVar[str] = "fedq"
    default_shared_blocks: ClassVar[tuple[str, ...]] = ("backbone", "head")
