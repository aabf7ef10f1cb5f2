"""LSTM for characters, given as indices into an alphabet ``[T]``; sizes of appendix C of PAGE."""

from __future__ import annotations

from torch import Tensor, nn

from equipoise.models.blocks import require_sequences, with_head

EMBEDDING_SIZE = 8
HIDDEN_SIZE = 100
NUM_LAYERS = 2


def lstm(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Build an LSTM: embedding of size 8, two layers of 100 units (backbone), linear head.

    Args:
        shape: Length of a sequence ``[T]``.
        classes: Number of characters.

    Returns:
        A module with the blocks ``backbone`` and ``head``.

    Raises:
        UsageError: If samples are no sequences.
    """
    require_sequences(shape, "lstm")
    return with_head(_CharacterLstm(classes), "head")


class _CharacterLstm(nn.Module):
    """Predict the next character from the last hidden state."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(characters, EMBEDDING_SIZE)
        self.lstm = nn.LSTM(EMBEDDING_SIZE, HIDDEN_SIZE, NUM_LAYERS, batch_first=True)
        self.head = nn.Linear(HIDDEN_SIZE, characters)

    def forward(self, x: Tensor) -> Tensor:
        """Map indices ``[B, T]`` to logits ``[B, characters]``."""
        states, _ = self.lstm(self.embed(x))
        out: Tensor = self.head(states[:, -1])
        return out
