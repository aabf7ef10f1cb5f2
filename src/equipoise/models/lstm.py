"""Models for text: positions in an alphabet ``[T]``."""

from __future__ import annotations

from torch import Tensor, nn

from equipoise.models.blocks import with_head
from equipoise.utils.errors import UsageError

EMBEDDED, HIDDEN, LAYERS = 8, 100, 2  # appendix C of PAGE


def lstm(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Characters embedded in 8 dimensions, two LSTM layers of 100 units (backbone), classifier (head)."""
    if len(shape) != 1:
        raise UsageError(
            f"model 'lstm' takes sequences of characters, and samples have shape {list(shape)}"
        )
    return with_head(_CharacterLstm(classes), "head")


class _CharacterLstm(nn.Module):
    def __init__(self, characters: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(characters, EMBEDDED)
        self.lstm = nn.LSTM(EMBEDDED, HIDDEN, LAYERS, batch_first=True)
        self.head = nn.Linear(HIDDEN, characters)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(self.embed(x))
        out: Tensor = self.head(states[:, -1])
        return out
