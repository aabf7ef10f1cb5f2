"""Models of the ``transformers`` library: rows of tokens in, plain tensors out.

All rows have one length; positions after the end of a text are -1. The library's attention dropout
is off, because no seed of ours reproduces it; its dropout layers are replaced by ours, like those
of any module.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.utils.errors import UsageError
from equipoise.utils.huggingface import import_library, load_pretrained

DESCRIPTION = "the pretrained model"  # for error messages
MASKED_SCORE = torch.finfo(torch.float32).min / 2  # added to the attention scores of padding


def text_classifier(name: str, classes: int, seed: int) -> nn.Module:
    """Load a pretrained model with a classification head.

    Args:
        name: Folder, or name on the Hugging Face hub.
        classes: Number of classes.
        seed: Seed of a head that the pretrained model lacks.

    Returns:
        A module that maps tokens ``[B, T]`` to logits ``[B, classes]``.
    """
    model = _load(
        "AutoModelForSequenceClassification",
        name,
        seed,
        num_labels=classes,
        ignore_mismatched_sizes=True,
    )
    if model.config.pad_token_id is None:
        # Some models find the end of a text by this token.
        model.config.pad_token_id = model.config.eos_token_id
    return TextClassifier(model)


def causal_lm(name: str, seed: int) -> nn.Module:
    """Load a pretrained causal language model.

    Args:
        name: Folder, or name on the Hugging Face hub.
        seed: Seed of weights that the pretrained model lacks.

    Returns:
        A module that maps tokens ``[B, T]`` to loss and accuracy ``[B, 2]`` of each text.

    Raises:
        UsageError: If the model is not causal.
    """
    module = NextTokenModel(_load("AutoModelForCausalLM", name, seed))
    with torch.no_grad():
        # Two texts that differ in their last token only: earlier logits must not differ.
        first, second = module.logits(torch.tensor([[1, 1, 1], [1, 1, 2]]))
    if not torch.allclose(first[:2], second[:2], rtol=1e-4, atol=1e-5):
        raise UsageError(
            f"{DESCRIPTION} '{name}' sees the tokens that it is to predict: give a causal language "
            "model (such as GPT-2), or --kind classification"
        )
    return module


def _load(auto_class: str, name: str, seed: int, **options: Any) -> Any:
    """Load a model by one of the library's ``Auto`` classes."""
    transformers = import_library("transformers", "task 'text'")
    # torch.func.vmap can map plain matrix products over clients, but not fused attention.
    options |= {"attn_implementation": "eager", "dtype": torch.float32}
    with torch.random.fork_rng(devices=[]), _silence(transformers.utils.logging):
        torch.manual_seed(seed)
        from_pretrained = getattr(transformers, auto_class).from_pretrained
        model = load_pretrained(DESCRIPTION, name, lambda place: from_pretrained(place, **options))
    model.config.use_cache = False
    return model.eval()


@contextmanager
def _silence(logging: Any) -> Iterator[None]:
    """Turn off the progress bar, and the warning about a new head, which is intended."""
    verbosity = logging.get_verbosity()
    shows_bar = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shows_bar:
            logging.enable_progress_bar()


class _TextModel(nn.Module):
    """A model of the library, and the kind of attention mask that it takes.

    Attributes:
        model: The library's model.
        full_mask: Whether it is given a full mask ``[B, 1, T, T]`` rather than ``[B, T]``.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.full_mask = self._accepts_full_mask()

    def logits(self, x: Tensor) -> Tensor:
        """Map tokens ``[B, T]`` to the model's logits."""
        mask = self._attention_bias(x) if self.full_mask else (x >= 0).long()
        logits: Tensor = self.model(input_ids=x.clamp(min=0), attention_mask=mask).logits
        return logits

    def _attention_bias(self, x: Tensor) -> Tensor:
        """Return the term ``[B, 1, T, T]`` of attention scores that hides padding."""
        bias = torch.where(x >= 0, 0.0, MASKED_SCORE)[:, None, None, :]
        return bias.expand(-1, 1, x.shape[-1], -1)

    def _accepts_full_mask(self) -> bool:
        """Return whether a full mask gives the same logits as a plain one.

        That is so for bidirectional models. These branch on the values of a plain mask, which
        vmap cannot map over clients, so they get the full one.
        """
        x = torch.tensor([[1, 2, 1, 1, 2], [1, 1, 2, -1, -1]])
        with torch.no_grad():
            self.full_mask = False
            plain = self.logits(x)
            try:
                self.full_mask = True
                return torch.allclose(self.logits(x), plain, rtol=1e-4, atol=1e-5)
            except (RuntimeError, ValueError, IndexError):
                return False


class TextClassifier(_TextModel):
    """Classify texts."""

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens ``[B, T]`` to logits ``[B, classes]``."""
        return self.logits(x)


class NextTokenModel(_TextModel):
    """Measure how well next tokens are predicted."""

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens ``[B, T]`` to mean loss and accuracy of each text's next tokens ``[B, 2]``."""
        logits = self.logits(x)[..., :-1, :]
        targets = x[..., 1:]
        is_real = (targets >= 0).to(logits.dtype)
        count = is_real.sum(-1).clamp(min=1)
        losses = F.cross_entropy(logits.transpose(-1, -2), targets.clamp(min=0), reduction="none")
        correct = (logits.argmax(-1) == targets).to(logits.dtype)
        loss = (losses * is_real).sum(-1) / count
        accuracy = (correct * is_real).sum(-1) / count
        return torch.stack([loss, accuracy], -1)


def vocab_size(module: nn.Module) -> int:
    """Return the size of a model's vocabulary."""
    assert isinstance(module, _TextModel)
    size = module.model.get_input_embeddings().num_embeddings
    assert isinstance(size, int)
    return size


def check_tokens(module: nn.Module, max_token: int, max_length: int, name: str) -> None:
    """Check that tokens fit a model.

    Args:
        module: The model.
        max_token: Highest token in the data.
        max_length: Tokens of the longest text.
        name: Name of the pretrained model.

    Raises:
        UsageError: If the tokenizer belongs to another model, or texts are too long.
    """
    assert isinstance(module, _TextModel)
    if max_token >= vocab_size(module):
        raise UsageError(
            f"the tokenizer in '{name}' gives token {max_token}, and the model knows "
            f"{vocab_size(module)}: give a folder in which both belong together"
        )
    limit = getattr(module.model.config, "max_position_embeddings", None)
    if limit is not None and max_length > limit:
        raise UsageError(
            f"texts have up to {max_length} tokens, and the model reads {limit}: give --length "
            f"{limit}"
        )
