"""Models of the ``transformers`` library as federated networks: rows of tokens in, plain outputs out.

Rows have one length; what is behind a text's end is -1. The libraries' random attention dropout is off, for no seed of
ours repeats it; their dropout layers are replaced by ours like those of any module.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.utils.errors import UsageError
from equipoise.utils.huggingface import library, loaded

WHAT = "the pretrained model"
HIDDEN = torch.finfo(torch.float32).min / 2  # what attention adds where nobody may look


def text_classifier(name: str, classes: int, seed: int) -> nn.Module:
    """A model that gives a logit per class; a head that the pretrained model lacks is drawn by ``seed``."""
    model = _load(
        "AutoModelForSequenceClassification",
        name,
        seed,
        num_labels=classes,
        ignore_mismatched_sizes=True,
    )
    if model.config.pad_token_id is None:
        model.config.pad_token_id = (
            model.config.eos_token_id
        )  # by which some models look for a text's end
    return TextClassifier(model)


def causal_lm(name: str, seed: int) -> nn.Module:
    """A causal language model that gives each text's loss and share of next tokens that it has right."""
    module = NextTokenModel(_load("AutoModelForCausalLM", name, seed))
    with torch.no_grad():
        one, other = module.logits(torch.tensor([[1, 1, 1], [1, 1, 2]]))
    if not torch.allclose(one[:2], other[:2], rtol=1e-4, atol=1e-5):
        raise UsageError(
            f"{WHAT} '{name}' sees the tokens that it is to predict: give a causal language model (such as GPT-2), or "
            "--kind classification"
        )
    return module


def _load(kind: str, name: str, seed: int, **how: Any) -> Any:
    transformers = library("transformers", "task 'text'")
    # Plain products of matrices are what torch.func.vmap maps over clients.
    how |= {"attn_implementation": "eager", "dtype": torch.float32}
    with torch.random.fork_rng(devices=[]), _silence(transformers.utils.logging):
        torch.manual_seed(seed)
        found = loaded(
            WHAT, name, lambda place: getattr(transformers, kind).from_pretrained(place, **how)
        )
    found.config.use_cache = False
    return found.eval()


@contextmanager
def _silence(logging: Any) -> Iterator[None]:
    """Without its progress bar, and without its warning of a head that is drawn anew, which is what is wanted."""
    before, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bar:
            logging.enable_progress_bar()


class _Text(nn.Module):
    """A model of the library, and how it is told where texts end."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.whole_mask = self._same_by_whole_mask()

    def logits(self, x: Tensor) -> Tensor:
        mask = self._mask(x) if self.whole_mask else (x >= 0).long()
        found: Tensor = self.model(input_ids=x.clamp(min=0), attention_mask=mask).logits
        return found

    def _mask(self, x: Tensor) -> Tensor:
        """What is added to scores of attention ``[B, 1, T, T]``, where everybody may look at the text."""
        hidden = torch.where(x >= 0, 0.0, HIDDEN)[:, None, None, :]
        return hidden.expand(-1, 1, x.shape[-1], -1)

    def _same_by_whole_mask(self) -> bool:
        """Whether every token sees the whole text: such models branch on the values of a plain mask, which cannot be
        mapped over clients, so they are given the finished one."""
        x = torch.tensor([[1, 2, 1, 1, 2], [1, 1, 2, -1, -1]])
        with torch.no_grad():
            self.whole_mask = False
            plain = self.logits(x)
            try:
                self.whole_mask = True
                return torch.allclose(self.logits(x), plain, rtol=1e-4, atol=1e-5)
            except (RuntimeError, ValueError, IndexError):
                return False


class TextClassifier(_Text):
    """Logits ``[B, classes]``."""

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x)


class NextTokenModel(_Text):
    """``[B, 2]``: the mean loss of a text's next tokens, and the share of them that has the highest logit."""

    def forward(self, x: Tensor) -> Tensor:
        logits, wanted = self.logits(x)[..., :-1, :], x[..., 1:]
        real = (wanted >= 0).to(logits.dtype)
        count = real.sum(-1).clamp(min=1)
        losses = F.cross_entropy(logits.transpose(-1, -2), wanted.clamp(min=0), reduction="none")
        right = (logits.argmax(-1) == wanted).to(logits.dtype)
        return torch.stack([(losses * real).sum(-1) / count, (right * real).sum(-1) / count], -1)


def vocab_size(module: nn.Module) -> int:
    """Different tokens that a model knows."""
    assert isinstance(module, _Text)
    size = module.model.get_input_embeddings().num_embeddings
    assert isinstance(size, int)
    return size


def check_tokens(module: nn.Module, highest: int, longest: int, name: str) -> None:
    """Refuse a tokenizer that does not belong to the model, and texts that are longer than it reads."""
    assert isinstance(module, _Text)
    if highest >= vocab_size(module):
        raise UsageError(
            f"the tokenizer in '{name}' gives token {highest}, and the model knows {vocab_size(module)}: "
            "give a folder in which both belong together"
        )
    most = getattr(module.model.config, "max_position_embeddings", None)
    if most is not None and longest > most:
        raise UsageError(
            f"texts have up to {longest} tokens, and the model reads {most}: give --length {most}"
        )
