"""The rules by which autopilot steers, as plain formulas: ratios, signs and the length of the run, nothing absolute."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from equipoise.contract import State, Params
from equipoise.contract.ranges import MIN_COHORT, trimmed_max

BOLD = 0.25  # the part of Polyak's step that is taken
MUCH_BETTER = 0.8  # the part of the configured rate's loss that another rate must leave to be chosen
MOST_MOMENTUM, HORIZON = 0.97, 8.0  # after 8 rounds momentum looks back over an eighth of the others, 33 at most
CONTENT = 0.5  # the part of the first loss below which rates fall
WORSE = 0.1  # how far validation loss may lie above its least (in logarithms) before the rate is halved
NEAR, FAR_OUT = 0.5, 20.0  # the reach c of small coordinates before the first round, and at most
STEEP = 0.05  # how far validation loss must fall (in logarithms) for c to grow
HASTE = 4.0  # validation loss must fall by (4/T)^2 for momentum to be kept: the shorter the run, the steeper
GAIN = 0.4  # of the correction, for both of its inputs
TINY = 1e-12
POOLED = ("loss", "val", "trials")
FAR = 10.0  # times what nearly all clients tell: more is not believed


def believed(told: Tensor) -> Tensor:
    """What clients tell of their losses and gradients, each at most ten times what nearly all of them do: one that lies
    within its ranges cannot choose everybody's rate."""
    return told.clamp(max=FAR * trimmed_max(told)) if len(told) >= MIN_COHORT else told


def pooled(seen: Params, n: Tensor) -> Params:
    """Means over the cohort by data size n, of what is believed; of ``later``, a sign, as told."""

    def mean(told: Tensor) -> Tensor:
        return (n @ believed(told) / n.sum()).clamp(min=TINY)

    means = {
        name: mean(told) if told.dim() == 1 else torch.stack([mean(part) for part in told.T])
        for name, told in seen.items()
        if name in POOLED
    }
    if "later" in seen:
        means["later"] = n @ seen["later"] / n.sum()
    return means


def share(rounds: float) -> float:
    """Eight rounds as a part of so many: at most 1, and at least one of the 33 that momentum may see."""
    return max(1 - MOST_MOMENTUM, min(1.0, HORIZON / rounds))


def momentum(rounds: int) -> float:
    """m = min(.97, max(0, 1 - 8/(T - 8))), and 0 in runs of up to 16 rounds."""
    return 1 - share(max(HORIZON, rounds - HORIZON))


def late(round: int, rounds: int) -> float:
    """0 in the first half of the run, then linearly to 1 in the last round."""
    return max(0.0, 2 * round / rounds - 1)


def decay(round: int, rounds: int) -> float:
    """What is left of the rate: in the last round one over the rounds that momentum sees."""
    return float((1 - momentum(rounds)) ** late(round, rounds))


def faded(round: int, rounds: int) -> float:
    """What is left of the amplification's exponent: in the last round 8/T, for nobody sees how that one went."""
    return 1 - (1 - share(rounds)) * late(round, rounds)


def polyak(loss: Tensor, square: Tensor) -> Tensor:
    """A quarter of Polyak's step f/|g|^2, as if all loss could go."""
    return BOLD * loss.clamp(min=TINY) / square.clamp(min=TINY)


def on_trial(configured: Tensor, measured: Tensor) -> Tensor:
    """Three rates: the configured one, the measured one, and the one between, since they may lie orders apart."""
    return torch.stack([configured, (configured * measured).sqrt(), measured])


def chosen(rates: Tensor, losses: Tensor) -> Tensor:
    """Of rates on trial the one that left the least loss, if that is much less than the first one's; else the first."""
    best = losses.argmin(0, keepdim=True)
    much = losses.gather(0, best) < MUCH_BETTER * losses[:1]
    return torch.where(much, rates.gather(0, best), rates[:1])[0]


def need(loss: Tensor, first: Tensor) -> Tensor:
    """The part of the rate for a cohort whose loss lies below half of the first one's: the root of their ratio."""
    return (loss / (CONTENT * first)).sqrt().clamp(max=1.0)


def start() -> State:
    """Nothing is known yet: no rate, nothing that validation losses (last and least) could rise above."""
    zero = torch.zeros((), dtype=torch.float64)
    unseen = torch.full((2,), torch.inf, dtype=torch.float64)
    return {"rate": zero, "first": zero, "need": zero + 1, "z": zero, "val": unseen, "reach": zero}


def reach(c: Tensor, fell: bool, rose: bool) -> Tensor:
    """c: a half before the first round; times the root of 2 where validation loss fell much, halved where it rose."""
    c = torch.where(c > 0, c, NEAR) * (0.5 if rose else math.sqrt(2) if fell else 1.0)
    return c.clamp(1 / FAR_OUT, FAR_OUT)


def corrected(state: State, means: Params, chance: Tensor, rounds: int) -> tuple[State, bool]:
    """The state after a round with these means, and whether validation loss fell far enough for momentum to be kept;
    ``chance`` is what a cohort's loss moves by itself.

    z follows :func:`correction`, and the rate is halved where validation loss lies far above its least.
    """
    (last, least), val = state["val"], means["val"]
    z = correction(state["z"], means["later"], rise(val, last))
    rose = risen(val, last, chance)
    if rose and risen(val, least, chance + WORSE):
        z = z - math.log(2)
    c = reach(state["reach"], risen(last, val, chance + STEEP), rose)
    known = {"val": torch.stack([val, torch.minimum(least, val)]), "reach": c, "z": z}
    return {**state, **known}, not risen(val, last, chance - (HASTE / rounds) ** 2)


def rise(val: Tensor, last: Tensor) -> Tensor:
    """Change of a validation loss since the round before, in logarithms within -1 and 1; zero in the first round."""
    if not bool(last.isfinite()):
        return torch.zeros_like(val)
    return (val / last).log().clamp(-1, 1)


def correction(z: Tensor, later: Tensor, rise: Tensor) -> Tensor:
    """z <- min(0, .9 z - tanh(.4 (later + rise))): a sum that leaks, since one that does not was found to drift.

    ``later`` is the mean sign of what the later half of training did to validation loss.
    """
    return (0.9 * z + torch.tanh(-GAIN * later - GAIN * rise)).clamp(max=0.0)


def noise(told: Tensor, clients: int) -> Tensor:
    """Two standard errors of the mean of a cohort's losses, relative to it; none where the cohort is everybody."""
    losses = believed(told)
    spread = losses.std(correction=0) / losses.mean().clamp(min=TINY)
    return 2 * spread * math.sqrt((1 - len(losses) / clients) / len(losses))


def risen(val: Tensor, earlier: Tensor, room: Tensor) -> bool:
    """Whether a validation loss lies above an earlier one by more than this room, in logarithms."""
    return bool(val > earlier * room.exp())
