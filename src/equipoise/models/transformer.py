"""A small transformer over characters (Vaswani et al., 2017), layers normalised before they act (Xiong et al., 2020).

Every projection is a plain linear layer, so that adapters reach it by name and ``torch.func.vmap`` maps the whole.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from equipoise.models.blocks import with_head
from equipoise.utils.errors import UsageError

WIDTH, HEADS, LAYERS, WIDER = 64, 4, 3, 4


def transformer(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Characters and their places in 64 dimensions, three causal layers of four heads (backbone), classifier (head)."""
    if len(shape) != 1:
        raise UsageError(
            f"model 'transformer' takes sequences of characters, and samples have shape {list(shape)}"
        )
    return with_head(CharacterTransformer(shape[0], classes), "head")


class CharacterTransformer(nn.Module):
    """Logits of the character that follows the last one; :meth:`each` gives them for every place."""

    def __init__(self, length: int, characters: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(characters, WIDTH), nn.Embedding(length, WIDTH)
        self.layers = nn.ModuleList(_Layer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, characters)

    def forward(self, x: Tensor) -> Tensor:
        return self._states(x, 1).squeeze(-2)

    def all_logits(self, x: Tensor) -> Tensor:
        """Logits ``[B, T, characters]`` of what follows each character: what pretraining descends."""
        return self._states(x, x.shape[-1])

    def _states(self, x: Tensor, wanted: int) -> Tensor:
        """Logits of the last ``wanted`` places, which are all that the last layer computes."""
        h = self.embed(x) + self.place.weight
        for layer in self.layers[:-1]:
            h = layer(h, h.shape[-2])
        logits: Tensor = self.head(self.norm(self.layers[-1](h, wanted)))
        return logits


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.wide, self.narrow = nn.Linear(WIDTH, WIDER * WIDTH), nn.Linear(WIDER * WIDTH, WIDTH)

    def forward(self, h: Tensor, wanted: int) -> Tensor:
        seen, last = self.before(h), h[..., -wanted:, :]
        query = _by_head(self.query(seen[..., -wanted:, :]))
        scores = query @ _by_head(self.key(seen)).transpose(-1, -2) * query.shape[-1] ** -0.5
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=h.device).triu(
            h.shape[-2] - wanted + 1
        )
        mixed = scores.masked_fill(later, -torch.inf).softmax(-1) @ _by_head(self.value(seen))
        last = last + self.out(mixed.transpose(-2, -3).flatten(-2))
        out: Tensor = last + self.narrow(nn.functional.gelu(self.wide(self.between(last))))
        return out


def _by_head(x: Tensor) -> Tensor:
    """``[..., T, width]`` as ``[..., heads, T, width / heads]``."""
    heads: Tensor = x.unflatten(-1, (HEADS, -1)).transpose(-2, -3)
    return heads
