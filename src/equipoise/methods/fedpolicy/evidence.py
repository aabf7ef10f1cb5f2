"""Evidence on what a client needs: scores of its probes pooled over clients, and its updates.

Symbols: C clients, P parts; `...` are federations side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.methods.fedpolicy.state import TINY
from equipoise.rl.nn import DTYPE

ROW_VARIANCE = 0.1  # of the difference of two scores on one row: how often two models disagree


class Advantages(NamedTuple):
    """Advantages of parts over the client's own model, relative to the clients' best accuracy.

    Attributes:
        center: Mean over the clients that have probed `[..., 1, P - 1]`.
        deviation: A client's own deviation from it, shrunk `[..., C, P - 1]`.
        noise: Variance of a client's advantage by its validation rows `[..., C, 1]`.
        top: The clients' mean best accuracy, which is the unit `[..., 1, 1]`.
    """

    center: Tensor
    deviation: Tensor
    noise: Tensor
    top: Tensor


def shrunk_advantages(accuracy: Tensor, is_known: Tensor, num_val_rows: Tensor) -> Advantages:
    """Pool the evidence of all clients on every part.

    Few validation rows say little about one client, so its deviation from the clients' mean is
    shrunk by tau^2 / (tau^2 + s_i^2): tau^2 is the variance over clients beyond the noise s_i^2 of
    the rows (empirical Bayes).

    Args:
        accuracy: Of the model after installing each part `[..., C, P]`; the last is the own model.
        is_known: Whether the client has probed `[..., C]`.
        num_val_rows: Validation rows `[..., C]`.

    Returns:
        The advantages, with their uncertainty.
    """
    known = is_known.to(DTYPE)[..., None]
    top = mean_of_known(accuracy.max(-1, keepdim=True).values, known).clamp(min=TINY)
    advantage = (accuracy[..., :-1] - accuracy[..., -1:]) / top
    center = mean_of_known(advantage, known)
    variance = mean_of_known((advantage - center).square(), known)
    noise = ROW_VARIANCE / num_val_rows.to(DTYPE).clamp(min=1.0)[..., None] / top.square()
    tau_sq = (variance - mean_of_known(noise, known)).clamp(min=0.0)
    deviation = (advantage - center) * tau_sq / (tau_sq + noise)
    return Advantages(center, deviation, noise, top)


def certain_head_gain(mean_accuracy: Tensor, is_known: Tensor, advantages: Advantages) -> Tensor:
    """Return the gain of the received head over clients' own heads, less its standard error.

    Both sit on the received backbone, so that the gain is positive where clients share a label
    distribution and negative where each has its own. It is pooled over clients and relative.

    Args:
        mean_accuracy: Of the model after installing each part, over all probes `[..., C, P]`; the
            first part is the whole model, the second one the backbone.
        is_known: Whether the client has probed `[..., C]`.
        advantages: The advantages of parts at this time.

    Returns:
        The gain `[..., 1]`.
    """
    known = is_known.to(DTYPE)[..., None]
    gain = (mean_accuracy[..., :1] - mean_accuracy[..., 1:2]) / advantages.top
    # The rows are the same in every probe, so that more probes do not make it more certain.
    variance = mean_of_known(advantages.noise, known) / known.sum(-2, keepdim=True).clamp(min=1.0)
    return (mean_of_known(gain, known) - variance.sqrt())[..., 0]


def mean_of_known(values: Tensor, known: Tensor) -> Tensor:
    """Return the mean of values `[..., C, F]` over the clients with weight one in `[..., C, 1]`."""
    return (values * known).sum(-2, keepdim=True) / known.sum(-2, keepdim=True).clamp(min=1.0)


def update_alignment(changes: Sequence[Tensor]) -> Tensor:
    """Return the cosine `[..., C]` of each client's update with the sum of the others', as units.

    It is near zero for a client whose inputs or labels mean something else, and positive where
    clients share a task; no validation rows are needed.

    Args:
        changes: Uploads less the common start, of each parameter `[..., C, n]`.
    """
    squares = [change.to(DTYPE).square().sum(-1) for change in changes]
    norm = torch.stack(squares).sum(0).sqrt()
    has_moved = (norm > 0).to(DTYPE)
    scale = (1.0 / norm.clamp(min=TINY))[..., None]
    onto_total = torch.zeros_like(norm)
    total_square = torch.zeros_like(norm[..., :1])
    for change in changes:
        unit = change.to(DTYPE) * scale
        total = unit.sum(-2, keepdim=True)
        onto_total += (unit * total).sum(-1)
        total_square += total.square().sum(-1)
    # Of the sum without the client itself, whose unit update has the square one.
    onto_others = onto_total - has_moved
    others_square = total_square - 2.0 * onto_total + has_moved
    return onto_others / others_square.clamp(min=TINY).sqrt()
