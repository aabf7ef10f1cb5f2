"""Independent double DQN (van Hasselt et al., 2016): every agent learns alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from equipoise.methods.rl.deep import DeepQ


@dataclass(frozen=True)
class Dqn(DeepQ):
    """y = r + gamma Q'_i(s', argmax_a Q_i(s', a)); no block travels."""

    name: ClassVar[str] = "dqn"
    default_shared_blocks: ClassVar[tuple[str, ...]] = ()
    needs_previous_model: ClassVar[bool] = True
