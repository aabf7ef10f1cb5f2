"""Where the weights of autopilot's correction come from: set by hand, trained beforehand, or a user's own file."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from equipoise.core import files
from equipoise.core.errors import UsageError
from equipoise.methods.steering import RULE, SEEN

LEARNED = Path(__file__).with_name("learned.safetensors")


def row(policy: str) -> Tensor:
    """The weights that an option names, one for each entry of :data:`~equipoise.methods.steering.SEEN`."""
    if policy == "rule":
        return torch.tensor(RULE, dtype=torch.float64)
    return read(LEARNED if policy == "learned" else Path(policy))[0]


def read(file: Path) -> tuple[Tensor, dict[str, str]]:
    """Weights of a file of ``train-policy``, and how they were trained; another file is refused."""
    if not file.is_file():
        raise UsageError(f"policy is '{file}': must be rule, learned or a file that equipoise train-policy wrote")
    tensors, about = files.read_tensors(file)
    weights = tensors.get("rate")
    if about.get("seen") != " ".join(SEEN) or weights is None or weights.shape != (len(SEEN),):
        raise UsageError(f"'{file}' is no policy of this version: it must hold 'rate', one weight for each of {SEEN}")
    if not bool(weights.isfinite().all()):
        raise UsageError(f"'{file}' holds a weight that is not a number: train the policy again")
    return weights.double(), about


def write(file: Path, weights: Tensor, about: dict[str, str]) -> None:
    """What :func:`read` reads."""
    files.write_tensors(file, {"rate": weights.double()}, {**about, "seen": " ".join(SEEN)})
