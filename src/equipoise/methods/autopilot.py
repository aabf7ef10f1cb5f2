"""The rules by which autopilot steers, as plain formulas: ratios, signs and the length of the run, nothing absolute."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.core import (
    Client,
    ClientUpdate,
    LocalHParams,
    Method,
    Params,
    Server,
    ServerMessage,
    State,
    Task,
    TrainingConfig,
    ValueRange,
)
from equipoise.core.method import weighted_mean
from equipoise.core.report_validation import COUNT, LOSS, MAX_LOSS, MIN_COHORT, trimmed_max
from equipoise.utils.errors import UsageError

BOLD = 0.25  # the part of Polyak's step that is taken
MUCH_BETTER = (
    0.8  # the part of the configured rate's loss that another rate must leave to be chosen
)
MOST_MOMENTUM, HORIZON = (
    0.97,
    8.0,
)  # after 8 rounds momentum looks back over an eighth of the others, 33 at most
CONTENT = 0.5  # the part of the first loss below which rates fall
WORSE = (
    0.1  # how far validation loss may lie above its least (in logarithms) before the rate is halved
)
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


def cohort_means(seen: Params, n: Tensor) -> Params:
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


MOST = 100.0  # times that a coordinate is amplified
REST = 0.1  # the part of a layer's mean that is added to each of its coordinates: rounding is not amplified


@dataclass(frozen=True)
class Step:
    """How one step is made: momentum m, how far small coordinates reach, and what is left of their amplification."""

    m: float
    reach: Tensor
    left: float


def start_stepping(params: Params) -> State:
    """No momentum and no mean of squared changes yet."""
    zeros = {name: torch.zeros_like(w) for name, w in params.items()}
    return {"v": zeros, "squares": zeros, "steps": torch.zeros((), dtype=torch.float64)}


def lengths(w: Params, uploads: Params) -> Params:
    """r by layer: the root mean square of a client's change there, as the median over clients, so that none sets it."""
    return {
        name: (each - w[name]).flatten(1).square().mean(1).sqrt().median()
        for name, each in uploads.items()
    }


def moved(w: Params, change: Params, r: Params, by: Step, state: State) -> tuple[Params, State]:
    """w + v max(1, c r / q)^left, with v <- m v + D and q the root mean square of D over all rounds, by coordinate.

    Coordinates that move little in each round, because inputs there are small or clients pull apart, catch up.
    """
    steps = state["steps"] + 1
    v = {name: by.m * state["v"][name] + d for name, d in change.items()}
    squares = {
        name: square + (change[name].square() - square) / steps.to(square)
        for name, square in state["squares"].items()
    }
    new = {
        name: w[name] + v[name] * amplified(squares[name], by.reach.to(r[name]) * r[name], by.left)
        for name in w
    }
    return new, {**state, "v": v, "squares": squares, "steps": steps}


def amplified(squares: Tensor, reach: Tensor, left: float) -> Tensor:
    """What each coordinate of a layer is multiplied by: 1 for those that move as far as asked."""
    q = squares.sqrt() + REST * squares.mean().sqrt() + TINY
    return (reach / q).clamp(1.0, MOST) ** left


REPORTS = {
    **dict.fromkeys(("loss", "val", "reached", "own", "trials"), LOSS),
    **{"square": COUNT, "step": COUNT, "later": ValueRange(-1.0, 1.0)},
}
"""What :func:`told` and :func:`validated` upload. ``square``, ``reached`` and ``own`` are checked against their ranges,
so that a client whose training diverged is left out; nothing else is computed from them."""


def empty() -> State:
    """Before a client's first round."""
    measured = {
        name: torch.zeros((), dtype=torch.float64) for name in ("loss", "square", "val", "half")
    }
    return measured | {"trials": torch.zeros(3, dtype=torch.float64)}


def judged(client: Client, model: Params) -> Tensor:
    """Validation loss; where there are no such data, training loss."""
    return client.evaluate(model, "val" if client.task.has_split("val") else "train")[
        "loss"
    ].double()


def received(client: Client) -> State:
    """Loss f_i and squared gradient |g|^2 of the received model, and its validation loss."""
    loss, val = (
        client.evaluate(client.start, "train")["loss"].double(),
        judged(client, client.start),
    )
    return {"loss": loss, "square": client.grad_sq_norm(client.start), "val": val, "half": val}


def trials(client: Client, epochs: Tensor, rates: Tensor) -> Tensor:
    """The losses that training from the received model leaves at each of these rates."""
    losses = [
        judged(client, client.fit(client.start, hparams=LocalHParams(epochs, rate)))
        for rate in rates
    ]
    return torch.stack(losses).nan_to_num(nan=MAX_LOSS).clamp(max=MAX_LOSS)


def told(client: Client, state: State) -> Params:
    """What was measured before training, Polyak's step, and the loss that training reached."""
    seen = {name: state[name] for name in ("loss", "square", "val", "trials")}
    step, reached = (
        polyak(state["loss"], state["square"]),
        client.evaluate(client.trained, "train")["loss"].double(),
    )
    return {**seen, "reached": reached, "step": step}


def validated(client: Client, half: Tensor) -> Params:
    """The trained model's validation loss, and whether the later half of training helped."""
    own = judged(client, client.trained)
    return {"own": own, "later": (own - half).sign()}


EPOCHS = 8  # the least that clients train


@dataclass(frozen=True)
class Autopilot(Method):
    """eta(t) = eta need(f(t)/f(1)) exp(z) decay(t/T);  p_i ~ n_i;  D = sum p_i (w_i - w);  v <- m(T) v + D;
    w <- w + v max(1, c r/q)^left(t/T).

    eta is the configured rate unless a trial shows that f / (4 |g|^2), or one between, is much better; z, m, c follow
    validation loss.
    """

    name: ClassVar[str] = "autopilot"
    family: ClassVar[str] = "controller"
    report_ranges: ClassVar[Mapping[str, ValueRange]] = REPORTS
    runs_trial_training: ClassVar[bool] = True

    def check(self, task: Task, training: TrainingConfig) -> None:
        super().check(task, training)
        if type(task).grad_sq_norm is Task.grad_sq_norm:
            raise UsageError(
                f"{self.name} measures gradients, and task '{task.name}' has none: choose another method"
            )

    # --- client -----------------------------------------------------------------------------------------------------

    def init_client(self, task: Task, params: Params) -> State:
        return empty()

    def configure_training(self, client: Client) -> tuple[LocalHParams, State]:
        state = {**client.state, **received(client)}
        epochs, rate = client.hparams.epochs.clamp(min=EPOCHS), client.hparams.lr.double()
        if client.message.hparams is None:  # nobody has chosen a rate yet
            rates = on_trial(rate, polyak(state["loss"], state["square"]))
            state["trials"] = trials(client, epochs, rates)
            rate = chosen(rates, state["trials"])
        return LocalHParams(epochs, rate * decay(client.round, client.num_rounds)), state

    def train(self, client: Client) -> tuple[Params, State]:
        """In two halves, to see whether the later one still helps on validation data."""
        early = client.hparams.epochs // 2
        half = client.fit(client.start, hparams=LocalHParams(early, client.hparams.lr))
        trained = client.fit(
            half, hparams=LocalHParams(client.hparams.epochs - early, client.hparams.lr), stream=1
        )
        return trained, {**client.state, "half": judged(client, half)}

    def upload(self, client: Client) -> tuple[ClientUpdate, State]:
        up, state = super().upload(client)
        up.metrics |= told(client, state)
        if client.task.has_split("val"):
            up.metrics |= validated(client, state["half"])
        return up, state

    # --- server -----------------------------------------------------------------------------------------------------

    def init_server(self, task: Task, params: Params) -> State:
        return {**start_stepping(params), **start()}

    def distribute(self, server: Server, ids: Tensor) -> tuple[ServerMessage, State]:
        """The rate with its correction, once it is chosen."""
        down, state = super().distribute(server, ids)
        rate = (state["rate"] * state["need"] * state["z"].exp()).expand(len(ids))
        train = LocalHParams(torch.full_like(ids, server.training.epochs), rate)
        return replace(down, hparams=train if float(state["rate"]) > 0 else None), state

    def aggregate(
        self, server: Server, ids: Tensor, updates: ClientUpdate, weights: Tensor | Params
    ) -> tuple[Params, State]:
        state, m = self.steer(server, ids, updates.metrics)
        w, mean = server.params, weighted_mean(updates.params, weights)
        change = {name: mean[name] - w[name] for name in w}
        by = Step(m, state["reach"], faded(server.round, server.num_rounds))
        new, state = moved(w, change, lengths(w, updates.params), by, state)
        return server.with_client_batch_stats(new, mean), state

    def steer(self, server: Server, ids: Tensor, seen: Params) -> tuple[State, float]:
        """What this round's measurements mean for the next; and this round's momentum."""
        pooled = cohort_means(seen, server.task.num_examples(ids).double())
        state, m = {**server.state}, momentum(server.num_rounds)
        if float(state["rate"]) == 0:
            rates = on_trial(
                torch.full_like(state["rate"], server.training.lr), seen["step"].median()
            )
            state |= {"rate": chosen(rates, pooled["trials"]), "first": pooled["loss"]}
        state["need"] = need(pooled["loss"], state["first"])
        server.logged |= {"rate": state["rate"], "validation_loss": pooled["val"]}
        if "later" not in pooled:
            return state, m
        chance = noise(seen["val"], server.task.num_clients)
        state, fell = corrected(state, pooled, chance, server.num_rounds)
        server.logged |= {"z": state["z"], "reach": state["reach"]}
        return state, m if fell else 0.0
