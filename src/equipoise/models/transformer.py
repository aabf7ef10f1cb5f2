"""A small causal transformer for characters.

Vaswani et al., 2017 (arXiv:1706.03762), with layer normalisation before each sublayer (Xiong et
al., 2020, arXiv:2002.04745). Every projection is a plain linear layer, so that adapters reach it by
name and ``torch.func.vmap`` maps the whole model.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from equipoise.models.blocks import require_sequences, with_head

WIDTH = 64
NUM_HEADS = 4
NUM_LAYERS = 3
MLP_RATIO = 4  # width of the hidden layer of each MLP, relative to WIDTH


def transformer(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Build a transformer of width 64 with three causal layers of four heads, and a linear head.

    Args:
        shape: Length of a sequence ``[T]``.
        classes: Number of characters.

    Returns:
        A module with the blocks ``backbone`` and ``head``.

    Raises:
        UsageError: If samples are no sequences.
    """
    require_sequences(shape, "transformer")
    return with_head(CharacterTransformer(shape[0], classes), "head")


class CharacterTransformer(nn.Module):
    """Predict the character after the last one; :meth:`all_logits` predicts after every one."""

    def __init__(self, length: int, characters: int) -> None:
        """Create the model for texts of a length."""
        super().__init__()
        self.embed = nn.Embedding(characters, WIDTH)
        self.place = nn.Embedding(length, WIDTH)
        self.layers = nn.ModuleList(_Layer() for _ in range(NUM_LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, characters)

    def forward(self, x: Tensor) -> Tensor:
        """Map indices ``[B, T]`` to logits ``[B, characters]`` of the next character."""
        return self._logits(x, 1).squeeze(-2)

    def all_logits(self, x: Tensor) -> Tensor:
        """Map indices ``[B, T]`` to logits ``[B, T, characters]``, for pretraining."""
        return self._logits(x, x.shape[-1])

    def _logits(self, x: Tensor, num_last: int) -> Tensor:
        """Compute the logits of the last positions only: the last layer skips the others."""
        h = self.embed(x) + self.place.weight
        for layer in self.layers[:-1]:
            h = layer(h, h.shape[-2])
        logits: Tensor = self.head(self.norm(self.layers[-1](h, num_last)))
        return logits


class _Layer(nn.Module):
    """Causal self-attention and an MLP, each with layer normalisation and a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.LayerNorm(WIDTH)
        self.between = nn.LayerNorm(WIDTH)
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.wide = nn.Linear(WIDTH, MLP_RATIO * WIDTH)
        self.narrow = nn.Linear(MLP_RATIO * WIDTH, WIDTH)

    def forward(self, h: Tensor, num_last: int) -> Tensor:
        """Map states ``[B, T, width]`` to those of the last positions ``[B, num_last, width]``."""
        normed = self.before(h)
        last = h[..., -num_last:, :]
        query = _by_head(self.query(normed[..., -num_last:, :]))
        scores = query @ _by_head(self.key(normed)).transpose(-1, -2) * query.shape[-1] ** -0.5
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=h.device)
        later = mask.triu(h.shape[-2] - num_last + 1)
        mixed = scores.masked_fill(later, -torch.inf).softmax(-1) @ _by_head(self.value(normed))
        last = last + self.out(mixed.transpose(-2, -3).flatten(-2))
        out: Tensor = last + self.narrow(nn.functional.gelu(self.wide(self.between(last))))
        return out


def _by_head(x: Tensor) -> Tensor:
    """Reshape ``[..., T, width]`` to ``[..., heads, T, width / heads]``."""
    heads: Tensor = x.unflatten(-1, (NUM_HEADS, -1)).transpose(-2, -3)
    return heads
