"""Bases of the studies `adapters` and `roles`: models that were trained before, on rows that none
of its clients has.

    python -m benchmarks.pretraining

They are made where they are missing, once per machine, and lie in the cache of data
(``$EQUIPOISE_CACHE``). A base that was cut off goes on where it last wrote itself down.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from benchmarks.lab.cell import built
from equipoise.data.datasets.shakespeare import ALPHABET, SHAKESPEARE, WINDOW
from equipoise.data.sources import cache_folder, load_dataset
from equipoise.models import MODELS
from equipoise.models.transformer import CharacterTransformer
from equipoise.tasks.supervised import ExamplesTask

SMALL_ROLES = 8000  # characters: roles with fewer are no clients of the studies
BATCH, SEED = 32, 0
PLAYS_EPOCHS, PIXELS_EPOCHS, ROLES_STEPS = 4, 10, 4000
SHAPE = {"n_embd": 160, "n_layer": 3, "n_head": 4}  # GPT-2's, of 953,760 parameters
SAVE_EVERY = 200  # steps
PIXELS: dict[str, Any] = {"task": "fmnist", "model": "mlp", "pool": 2}


def file_of(name: str) -> Path:
    """Where a base lies, or will: a file of weights, or for `gpt2` the folder of a model and its
    tokenizer.
    """
    return cache_folder() / ("base-gpt2" if name == "gpt2" else f"base-{name}.safetensors")


def base(name: str) -> Path:
    """Where a base lies; it is made first if it is missing."""
    file = file_of(name)
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        {"plays": _plays, "pixels": _pixels, "lstm": _lstm, "gpt2": _gpt2}[name](file)
    return file


def digest(name: str) -> str:
    """What tells one base from another."""
    found = base(name)
    file = found / "model.safetensors" if found.is_dir() else found
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def _plays(file: Path) -> None:
    """The transformer on what small roles say, all places of a window at once."""
    torch.manual_seed(SEED)
    model, text = (
        CharacterTransformer(WINDOW, len(ALPHABET)),
        torch.from_numpy(_said_by_small_roles()),
    )

    def loss() -> Tensor:
        at = torch.randint(len(text) - WINDOW - 1, (BATCH,))
        rows = text[at[:, None] + torch.arange(WINDOW + 1)]
        return F.cross_entropy(model.all_logits(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    _train(model, loss, PLAYS_EPOCHS * len(text) // (BATCH * WINDOW), file)
    save_file(model.state_dict(), file)


def _gpt2(folder: Path) -> None:
    """A transformer over characters in the shape of GPT-2, on what small roles say."""
    torch.manual_seed(SEED)
    library: Any = importlib.import_module("transformers")  # whose classes have no types
    tokenizers: Any = importlib.import_module("tokenizers")
    off = {
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    model = library.GPT2LMHeadModel(
        library.GPT2Config(vocab_size=len(ALPHABET), n_positions=WINDOW, **SHAPE, **off)
    )
    _train(
        model,
        _next_characters(lambda x: model(input_ids=x).logits),
        ROLES_STEPS,
        folder,
        2e-3,
        warm=True,
    )
    model.save_pretrained(folder)
    codes = {character: code for code, character in enumerate(ALPHABET)}
    characters = tokenizers.Tokenizer(tokenizers.models.BPE(codes, merges=[]))
    library.PreTrainedTokenizerFast(tokenizer_object=characters).save_pretrained(folder)


def _lstm(file: Path) -> None:
    """The LSTM that ships, on the same text for as many steps."""
    torch.manual_seed(SEED)
    model: Any = MODELS["lstm"]((WINDOW,), len(ALPHABET))
    logits = _next_characters(lambda x: model.head(model.lstm(model.embed(x))[0]))
    _train(model, logits, ROLES_STEPS, file, 2e-3, warm=True)
    save_file(model.state_dict(), file)


def _next_characters(logits: Callable[[Tensor], Tensor]) -> Callable[[], Tensor]:
    """The loss of every place of a few windows, drawn anew with each call."""
    text = torch.from_numpy(_said_by_small_roles())

    def loss() -> Tensor:
        at = torch.randint(len(text) - WINDOW, (BATCH,))
        rows = text[at[:, None] + torch.arange(WINDOW)]
        return F.cross_entropy(logits(rows)[:, :-1].flatten(0, 1), rows[:, 1:].flatten())

    return loss


def _said_by_small_roles() -> np.ndarray[Any, np.dtype[np.int64]]:
    arrays = load_dataset(SHAKESPEARE, "")
    small = np.repeat(arrays["sizes"] < SMALL_ROLES, arrays["sizes"])
    return arrays["codes"][small].astype(np.int64)


def _pixels(file: Path) -> None:
    """The perceptron on the original test images of Fashion-MNIST, upright; clients have training
    images.
    """
    torch.manual_seed(SEED)
    _, task = built(PIXELS)
    assert isinstance(task, ExamplesTask)
    parts = [task.data.server(name) for name in ("public", "test")]
    x, y = (torch.cat([part[i] for part in parts]) for i in (0, 1))
    model = task.module
    model.load_state_dict(task.init_params(SEED))

    def loss() -> Tensor:
        at = torch.randint(len(x), (BATCH,))
        return F.cross_entropy(model(task.prepare(x[at])), y[at])

    _train(model, loss, PIXELS_EPOCHS * len(x) // BATCH, file)
    save_file(model.state_dict(), file)


def _train(
    model: nn.Module,
    loss: Callable[[], Tensor],
    steps: int,
    final: Path,
    lr: float = 1e-3,
    warm: bool = False,
) -> None:
    """Adam, whose rate goes to zero; if ``warm``, after it has risen for a
    twentieth of the steps.
    """
    optimiser = torch.optim.Adam(model.parameters(), lr)
    schedule: Any = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    if warm:
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimiser, lr, steps, pct_start=0.05, cycle_momentum=False
        )
    held: tuple[Any, ...] = (model, optimiser, schedule)
    unfinished = final.with_suffix(".unfinished")
    first = 0
    if unfinished.exists():
        kept = torch.load(unfinished)
        first = kept["step"]
        torch.set_rng_state(kept["random"])
        for part, state in zip(held, kept["states"], strict=True):
            part.load_state_dict(state)
    for step in range(first, steps):
        if step % SAVE_EVERY == 0:
            states = [part.state_dict() for part in held]
            torch.save(
                {"step": step, "random": torch.get_rng_state(), "states": states}, unfinished
            )
        now = loss()
        optimiser.zero_grad()
        now.backward()
        optimiser.step()
        schedule.step()
        if step % SAVE_EVERY == 0:
            print(f"step {step} of {steps}: loss {now.item():.3f}", flush=True)
    unfinished.unlink()


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in ("pixels", "plays", "lstm", "gpt2"):
        print(f"{base(name)}: {digest(name)}")
