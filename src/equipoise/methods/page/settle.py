"""When a game has settled: neither utility evolves any more.

Per round two utilities, as logarithms: the global one, of the model that the clients received, and the local one, of
their trained models. Settled means that the mean of each over the last ``window`` rounds differs from its mean over
the ``window`` rounds before by less than ``tolerance``: a relative change, as these are logarithms.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.contract import State


def empty(window: int) -> State:
    rows = max(1, 2 * window)
    return {"utilities": torch.zeros(rows, 2, dtype=torch.float64), "rounds": torch.zeros((), dtype=torch.int64)}


def record(history: State, received_loss: Tensor, trained_loss: Tensor, least: float) -> tuple[Tensor, State]:
    """The round's two utilities, one over the clients' mean loss on validation data, and the history with them."""
    losses = torch.stack([received_loss.double().mean(), trained_loss.double().mean()])
    newest = -losses.clamp(min=least).log()
    utilities = torch.cat([history["utilities"], newest.unsqueeze(0)])[1:]
    return newest, {"utilities": utilities, "rounds": history["rounds"] + 1}


def settled(history: State, tolerance: float, not_before: int = 0) -> bool:
    """Whether both windows are full, start after round ``not_before``, and agree."""
    utilities = history["utilities"]
    window = len(utilities) // 2
    if window == 0 or int(history["rounds"]) < 2 * window + not_before:
        return False
    change = utilities[window:].mean(0) - utilities[:window].mean(0)
    return bool((change.abs() < tolerance).all())
