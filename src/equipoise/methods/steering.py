"""The rules by which autopilot steers, as plain formulas: ratios, signs and the length of the run, nothing absolute."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from equipoise.contract import Tree
from equipoise.contract.ranges import ENOUGH, nearly_most

BOLD = 0.25  # the part of Polyak's step that is taken
MUCH_BETTER = 0.8  # the part of the configured rate's loss that the measured rate must leave to be chosen
LEAST_ERROR = 0.02  # a client without errors still counts
MOST_MOMENTUM, HORIZON = 0.97, 8.0  # momentum looks back over an eighth of the run, and never over more than 33 rounds
LEAST_RATE = 0.1  # the least part of the rate that is left in the last round, or for clients with little loss
WORSE = 0.1  # how far validation loss may lie above its least (in logarithms) before the rate is halved
TINY = 1e-12
FAR = 10.0  # times what nearly all clients tell: more is not believed


def believed(told: Tensor) -> Tensor:
    """What clients tell of their losses and gradients, each at most ten times what nearly all of them do: one that lies
    within its ranges cannot choose everybody's rate."""
    return told.clamp(max=FAR * nearly_most(told)) if len(told) >= ENOUGH else told


def momentum(rounds: int) -> float:
    """m = min(.97, max(0, 1 - 8/T))."""
    return min(MOST_MOMENTUM, max(0.0, 1 - HORIZON / rounds))


def late(round: int, rounds: int) -> float:
    """0 in the first half of the run, then linearly to 1 in the last round."""
    return max(0.0, 2 * round / rounds - 1)


def decay(round: int, rounds: int) -> float:
    """What is left of the rate: in the last round one over the rounds that momentum sees, but at least a tenth."""
    return float(max(LEAST_RATE, 1 - momentum(rounds)) ** late(round, rounds))


def polyak(loss: Tensor, square: Tensor) -> Tensor:
    """A quarter of Polyak's step f/|g|^2, as if all loss could go."""
    return BOLD * loss.clamp(min=TINY) / square.clamp(min=TINY)


def much_better(trials: Tensor) -> Tensor:
    """Of the losses that training left at the configured and at the measured rate: whether the second is much less."""
    return trials[1] < MUCH_BETTER * trials[0]


def need(loss: Tensor, mean: Tensor) -> Tensor:
    """The part of the rate that a client takes: the root of its loss by the mean of all, from a tenth to one."""
    return (loss / mean.clamp(min=TINY)).sqrt().clamp(LEAST_RATE, 1.0)


SEEN = ("one", "later", "rise", "above", "rate", "time", "gained", "gap", "dropped")
"""What the correction of the rate is a function of; see :func:`view`."""
RULE = (0.0, -0.4, -0.4, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
"""The weights of these that were set by hand."""


def view(pooled: Tree, last: Tensor, least: Tensor, rate: Tensor, time: float) -> Tensor:
    """What the cohort's measurements say, free of scales, by the names of :data:`SEEN`.

    ``later``: mean sign of what the later half of training did to validation loss. ``rise`` and ``above``: validation
    loss of the received model against that of the round before and the least so far. ``rate``: the step against
    Polyak's. ``gained``: what training does to validation loss. ``gap``: validation against training loss.
    ``dropped``: what training does to training loss. All but the first two and ``time`` are logarithms of ratios.
    """
    val, loss = pooled["val"], pooled["loss"]
    one = torch.ones_like(val)
    rise, above = (_log(val / earlier) if bool(earlier.isfinite()) else 0 * one for earlier in (last, least))
    step = (rate * pooled["square"] / loss).clamp(min=TINY).log() / 3
    ratios = (pooled["own"] / val, val / loss, pooled["reached"] / loss)
    seen = (one, pooled["later"], rise, above.clamp(min=0), step.clamp(-2, 2), time * one, *map(_log, ratios))
    return torch.stack(seen)


def _log(ratio: Tensor) -> Tensor:
    return ratio.log().clamp(-1, 1)


def correction(z: Tensor, row: Tensor, seen: Tensor) -> Tensor:
    """z <- min(0, .9 z + tanh(row . seen)): a sum that leaks, since one that does not was found to drift."""
    return (0.9 * z + torch.tanh(row @ seen)).clamp(max=0.0)


def noise(losses: Tensor, clients: int) -> Tensor:
    """Two standard errors of the mean of a cohort's losses, relative to it; none where the cohort is everybody."""
    spread = losses.std(correction=0) / losses.mean().clamp(min=TINY)
    return 2 * spread * math.sqrt((1 - len(losses) / clients) / len(losses))


def risen(val: Tensor, earlier: Tensor, room: Tensor) -> bool:
    """Whether a validation loss lies above an earlier one by more than this room, in logarithms."""
    return bool(val > earlier * room.exp())


def worse(errors: Tensor, losses: Tensor, rows: Tensor) -> Tensor:
    """1 if the second of two models is worse than the first, -1 if it is better: by error where that differs by more
    than its standard error on so many rows, else by loss, which over-confident models spoil."""
    error, gap = errors.mean(), errors[1] - errors[0]
    chance = (error * (1 - error) / rows.clamp(min=1)).clamp(min=0).sqrt()
    return torch.where(gap.abs() > chance, gap, losses[1] - losses[0]).sign()
