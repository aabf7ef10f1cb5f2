"""DQNAvg (Jin et al., 2022): one Q-network for all environments, averaged after every round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from equipoise.methods.rl.deep import DeepQ


@dataclass(frozen=True)
class DqnAvg(DeepQ):
    """Q_i <- Q; local DQN; Q <- sum_i Q_i / N. Memory, target net and Adam stay with the agent."""

    name: ClassVar[str] = "dqnavg"
