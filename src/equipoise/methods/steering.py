"""The rules by which autopilot steers, as plain formulas: ratios, signs and the length of the run, nothing absolute."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from equipoise.contract.ranges import ENOUGH, nearly_most

BOLD = 0.25  # the part of Polyak's step that is taken
LEAST_DROP = 0.3  # of a loss, that is thought possible still
LEAST_ERROR = 0.02  # a client without errors still counts
MOST_MOMENTUM, HORIZON = 0.97, 4.0  # momentum looks back over a quarter of the run, and never over more than 33 rounds
LAST_RATE = 0.1  # the least part of the rate that is left in the last round
WORSE = 0.1  # how far validation loss may lie above its best (in logarithms) before momentum is dropped
TINY = 1e-12
FAR = 10.0  # times what nearly all clients tell: more is not believed


def believed(told: Tensor) -> Tensor:
    """What clients tell of their losses and gradients, each at most ten times what nearly all of them do: one that lies
    within its ranges cannot choose everybody's rate."""
    return told.clamp(max=FAR * nearly_most(told)) if len(told) >= ENOUGH else told


def momentum(rounds: int) -> float:
    """m = min(.97, max(0, 1 - 4/T))."""
    return min(MOST_MOMENTUM, max(0.0, 1 - HORIZON / rounds))


def late(round: int, rounds: int) -> float:
    """0 in the first half of the run, then linearly to 1 in the last round."""
    return max(0.0, 2 * round / rounds - 1)


def decay(round: int, rounds: int) -> float:
    """What is left of the rate: in the last round one over the rounds that momentum sees, but at least a tenth."""
    return float(max(LAST_RATE, 1 - momentum(rounds)) ** late(round, rounds))


def polyak(loss: Tensor, reached: Tensor, square: Tensor) -> Tensor:
    """Polyak's step (f - f*)/|g|^2, with the least training loss that was ever reached for f*."""
    return BOLD * torch.maximum(loss - reached, LEAST_DROP * loss).clamp(min=TINY) / square.clamp(min=TINY)


def correction(z: Tensor, longer: Tensor, rise: Tensor) -> Tensor:
    """z <- .9 z - tanh(.4 (h + r)): h is the mean sign of what the later half of training did to validation loss,
    r the change of the received model's since the round before, in logarithms."""
    return 0.9 * z - torch.tanh(0.4 * (longer + rise.clamp(-1, 1)))


def overshot(val: Tensor, last: Tensor, best: Tensor) -> Tensor:
    """Whether validation loss rises and lies above its best by more than noise: momentum has carried too far."""
    return (val > last) & (val > best * math.exp(WORSE))
