"""Autopilot: chooses rates, momentum and step sizes; 3 to 6 times FedAvg's time on tables.

Nothing has to be set: every rule uses ratios, signs and the length T of the run. In round t

    client   eta(t) = eta loss_scale(f(t) / f(1)) exp(z) lr_decay(t / T)
    server   D = sum_i p_i (w_i - w),  p_i ~ n_i
             v <- m(T) v + D
             w <- w + v max(1, c r / q)^amplification_decay(t / T)      by coordinate

eta is the configured rate unless a trial in the first round shows that a quarter of Polyak's step
f / |g|^2, or a rate between the two, is much better. The log correction z <= 0 of the rate, the
momentum m and the amplification c follow the clients' validation losses. r is the RMS change of one
client in a layer, q the RMS change of a coordinate over all rounds: coordinates that move little in
each round, because inputs there are small or clients pull apart, catch up.

The file has four sections: schedules, `LrController` rules, the server's step
(:func:`amplified_momentum`), and what clients measure (:func:`client_measurements`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, TypedDict, cast

import torch
from torch import Tensor

from equipoise.core import (
    Capabilities,
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

MIN_EPOCHS = 8  # clients train at least this much
MAX_TRIAL_LR = 1e12  # of a client's own measured rate in the first round
MIN_LR_SHARE = 1e-3  # of the first rate: below it nothing moves any more, and the run ends
POLYAK_SHARE = 0.25  # of Polyak's step
TRIAL_LOSS_RATIO = 0.8  # another rate must leave less than this share of the configured one's loss
MAX_MOMENTUM = 0.97  # momentum looks back over 33 rounds at most
HORIZON = 8.0  # after 8 rounds momentum looks back over an eighth of the others
LOSS_SCALE_START = 0.5  # rates fall when the loss is below this share of the first one
HALVING_LOG_RISE = 0.1  # validation loss above its minimum (in logs) at which the rate is halved
INITIAL_AMPLIFICATION = 0.5
MAX_AMPLIFICATION = 20.0  # of c; its minimum is 1 / 20
GROWTH_LOG_FALL = 0.05  # fall of validation loss (in logs) for which c grows
MOMENTUM_HORIZON = 4.0  # momentum is kept if validation loss falls by (4 / T)^2 in logs
CORRECTION_GAIN = 0.4  # of both inputs of the log correction
CORRECTION_LEAK = 0.9  # a sum that does not leak was found to drift
MAX_REPORT_RATIO = 10.0  # reports are clipped at this many times what nearly all clients report
MAX_COORDINATE_FACTOR = 100.0  # by which a coordinate's step is amplified
RMS_FLOOR_SHARE = 0.1  # of a layer's RMS is added to each q: rounding errors are not amplified
TINY = 1e-12  # losses and squared gradients below count as this


# --- schedules over the rounds --------------------------------------------------------------------


def horizon_share(rounds: float) -> float:
    """Return 8 / rounds, at most 1 and at least 1 - MAX_MOMENTUM."""
    return max(1 - MAX_MOMENTUM, min(1.0, HORIZON / rounds))


def momentum(rounds: int) -> float:
    """Return m = min(0.97, max(0, 1 - 8 / (T - 8))); 0 in runs of up to 16 rounds."""
    return 1 - horizon_share(max(HORIZON, rounds - HORIZON))


def second_half_progress(round: int, rounds: int) -> float:
    """Return 0 in the first half of the run, then linearly up to 1 in the last round."""
    return max(0.0, 2 * round / rounds - 1)


def lr_decay(round: int, rounds: int) -> float:
    """Return the factor of the rate; in the last round one over the rounds that momentum sees."""
    return float((1 - momentum(rounds)) ** second_half_progress(round, rounds))


def amplification_decay(round: int, rounds: int) -> float:
    """Return the exponent of the amplification; 8 / T in the last round.

    No later validation loss would show that the last steps were too large.
    """
    return 1 - (1 - horizon_share(rounds)) * second_half_progress(round, rounds)


# --- the controller of the learning rate ----------------------------------------------------------


class ControllerState(TypedDict):
    """What the server keeps to choose the learning rate. Scalars `[]` in float64."""

    lr: Tensor
    """eta; 0 if not chosen yet."""
    first_loss: Tensor
    """f(1), the cohort's mean training loss of the initial model."""
    loss_scale: Tensor
    """Factor of the rate, see :func:`loss_scale`."""
    log_lr_correction: Tensor
    """z."""
    val: Tensor
    """The last and the lowest mean validation loss `[2]`; infinite before the first round."""
    amplification: Tensor
    """c; 0 without validation data."""


class CohortMeans(NamedTuple):
    """Means of a round's measurements over the clients, weighted by data size."""

    loss: Tensor
    """f(t), the training loss of the received model."""
    val: Tensor
    """Its validation loss."""
    trials: Tensor
    """Losses after training at the three rates on trial `[3]`; zeros after the first round."""
    second_half_sign: Tensor | None
    """h, see :func:`next_log_lr_correction`; None without validation data."""


def init_controller() -> ControllerState:
    """Return the controller's state before the first round."""
    zero = torch.zeros((), dtype=torch.float64)
    return {
        "lr": zero,
        "first_loss": zero,
        "loss_scale": zero + 1,
        "log_lr_correction": zero,
        "val": torch.full((2,), torch.inf, dtype=torch.float64),
        "amplification": zero,
    }


def clip_outliers(reports: Tensor) -> Tensor:
    """Clip reports `[K]` at ten times what nearly all clients report.

    A single client whose report is within its range cannot choose the rate of all.
    """
    if len(reports) < MIN_COHORT:
        return reports
    return reports.clamp(max=MAX_REPORT_RATIO * trimmed_max(reports))


def cohort_means(measurements: Params, num_examples: Tensor) -> CohortMeans:
    """Return means over the cohort; losses are clipped, signs are not.

    Args:
        measurements: The clients' measurements, `[K]` or `[K, 3]`.
        num_examples: Data sizes `[K]`.

    Returns:
        The means, weighted by data size.
    """

    def mean_loss(losses: Tensor) -> Tensor:
        return (num_examples @ clip_outliers(losses) / num_examples.sum()).clamp(min=TINY)

    signs = measurements.get("second_half_sign")
    return CohortMeans(
        loss=mean_loss(measurements["loss"]),
        val=mean_loss(measurements["val"]),
        trials=torch.stack([mean_loss(losses) for losses in measurements["trials"].T]),
        second_half_sign=None if signs is None else num_examples @ signs / num_examples.sum(),
    )


def polyak_lr(loss: Tensor, grad_sq_norm: Tensor) -> Tensor:
    """Return a quarter of Polyak's step f / |g|^2, as if all loss could vanish."""
    return POLYAK_SHARE * loss.clamp(min=TINY) / grad_sq_norm.clamp(min=TINY)


def trial_lrs(configured: Tensor, measured: Tensor) -> Tensor:
    """Return three rates `[3, ...]`: configured, their geometric mean, and measured."""
    return torch.stack([configured, (configured * measured).sqrt(), measured])


def select_lr(rates: Tensor, losses: Tensor) -> Tensor:
    """Return the rate with the least loss if that is below 0.8 of the first one's; else the first.

    Args:
        rates: Rates `[3, ...]`.
        losses: The losses that training at these rates left `[3, ...]`.
    """
    best = losses.argmin(0, keepdim=True)
    is_much_better = losses.gather(0, best) < TRIAL_LOSS_RATIO * losses[:1]
    return torch.where(is_much_better, rates.gather(0, best), rates[:1])[0]


def loss_scale(loss: Tensor, first_loss: Tensor) -> Tensor:
    """Return min(1, sqrt(f / (0.5 f(1)))): steps are smaller where less is left to learn."""
    return (loss / (LOSS_SCALE_START * first_loss)).sqrt().clamp(max=1.0)


def next_amplification(c: Tensor, has_fallen: bool, has_risen: bool) -> Tensor:
    """Return c, times sqrt(2) after a clear fall of validation loss, halved after a rise.

    Args:
        c: The amplification so far; 0 before it is first set.
        has_fallen: Whether the validation loss has clearly fallen.
        has_risen: Whether it has clearly risen.
    """
    factor = 1.0
    if has_risen:
        factor = 0.5
    elif has_fallen:
        factor = math.sqrt(2)
    started = torch.where(c > 0, c, INITIAL_AMPLIFICATION)
    return (started * factor).clamp(1 / MAX_AMPLIFICATION, MAX_AMPLIFICATION)


def log_rise(val: Tensor, last: Tensor) -> Tensor:
    """Return log(val / last) within [-1, 1]; 0 in the first round."""
    if not bool(last.isfinite()):
        return torch.zeros_like(val)
    return (val / last).log().clamp(-1, 1)


def next_log_lr_correction(z: Tensor, second_half_sign: Tensor, rise: Tensor) -> Tensor:
    """Return z <- min(0, 0.9 z - tanh(0.4 (h + d))).

    Args:
        z: The correction.
        second_half_sign: h, the mean sign of the change of validation loss in the second half of
            local training.
        rise: d, the log rise of the received model's validation loss.
    """
    change = torch.tanh(-CORRECTION_GAIN * second_half_sign - CORRECTION_GAIN * rise)
    return (CORRECTION_LEAK * z + change).clamp(max=0.0)


def sampling_noise(losses: Tensor, num_clients: int) -> Tensor:
    """Return two relative standard errors of a cohort's mean loss; 0 if all clients take part."""
    clipped = clip_outliers(losses)
    spread = clipped.std(correction=0) / clipped.mean().clamp(min=TINY)
    return 2 * spread * math.sqrt((1 - len(clipped) / num_clients) / len(clipped))


def significantly_higher(val: Tensor, earlier: Tensor, margin: Tensor) -> bool:
    """Return whether a validation loss is above an earlier one by more than a log margin.

    Args:
        val: Validation loss of this round.
        earlier: An earlier validation loss.
        margin: How far above it must be, in logarithms.
    """
    return bool(val > earlier * margin.exp())


def update_controller(
    state: AutopilotState, val: Tensor, second_half_sign: Tensor, noise: Tensor, rounds: int
) -> tuple[AutopilotState, bool]:
    """Update the correction, the amplification and the validation losses.

    The rate is also halved where validation loss is far above its minimum.

    Args:
        state: The server's state.
        val: Mean validation loss of the received model.
        second_half_sign: h, see :func:`next_log_lr_correction`.
        noise: Relative noise of `val`.
        rounds: The number T of rounds.

    Returns:
        The new state, and whether validation loss fell enough to keep momentum.
    """
    last, lowest = state["val"]
    z = next_log_lr_correction(state["log_lr_correction"], second_half_sign, log_rise(val, last))
    has_risen = significantly_higher(val, last, noise)
    if has_risen and significantly_higher(val, lowest, noise + HALVING_LOG_RISE):
        z = z - math.log(2)
    has_fallen = significantly_higher(last, val, noise + GROWTH_LOG_FALL)
    keeps_momentum = not significantly_higher(val, last, noise - (MOMENTUM_HORIZON / rounds) ** 2)
    new_state: AutopilotState = {
        **state,
        "val": torch.stack([val, torch.minimum(lowest, val)]),
        "amplification": next_amplification(state["amplification"], has_fallen, has_risen),
        "log_lr_correction": z,
    }
    return new_state, keeps_momentum


# --- the server's step ----------------------------------------------------------------------------


class StepConfig(NamedTuple):
    """Coefficients of one server step."""

    momentum: float
    """m."""
    amplification: Tensor
    """c."""
    exponent: float
    """Exponent of the amplification, see :func:`amplification_decay`."""


class MomentumState(TypedDict):
    """What the server keeps for its step."""

    momentum: Params
    """v."""
    mean_sq_change: Params
    """q^2, the mean of D^2 over rounds."""
    num_steps: Tensor
    """Rounds in that mean `[]`."""


class AutopilotState(ControllerState, MomentumState):
    """The server's state."""


def init_momentum(params: Params) -> MomentumState:
    """Return zero momentum and no history of changes."""
    zeros = {name: torch.zeros_like(w) for name, w in params.items()}
    return {
        "momentum": zeros,
        "mean_sq_change": zeros,
        "num_steps": torch.zeros((), dtype=torch.float64),
    }


def median_update_rms(w: Params, uploads: Params) -> Params:
    """Return r by layer: the median over clients of the RMS of w_i - w, so that none sets it."""
    return {
        name: (stack - w[name]).flatten(1).square().mean(1).sqrt().median()
        for name, stack in uploads.items()
    }


def amplified_momentum(
    w: Params, change: Params, r: Params, step: StepConfig, state: MomentumState
) -> tuple[Params, MomentumState]:
    """Return w + v max(1, c r / q)^exponent, with v <- m v + D, and the new state.

    Args:
        w: The global model.
        change: D, the weighted mean of the clients' changes.
        r: By layer, see :func:`median_update_rms`.
        step: The coefficients.
        state: The state of :func:`init_momentum`.

    Returns:
        The new model, and the new state.
    """
    num_steps = state["num_steps"] + 1
    velocity: Params = {}
    mean_sq_change: Params = {}
    new: Params = {}
    for name, d in change.items():
        velocity[name] = step.momentum * state["momentum"][name] + d
        old = state["mean_sq_change"][name]
        mean_sq_change[name] = old + (d.square() - old) / num_steps.to(old)
        target = step.amplification.to(r[name]) * r[name]
        factors = amplification_factors(mean_sq_change[name], target, step.exponent)
        new[name] = w[name] + velocity[name] * factors
    return new, {
        "momentum": velocity,
        "mean_sq_change": mean_sq_change,
        "num_steps": num_steps,
    }


def amplification_factors(mean_sq_change: Tensor, target: Tensor, exponent: float) -> Tensor:
    """Return max(1, c r / q)^exponent for each coordinate of a layer, with a base of at most 100.

    Args:
        mean_sq_change: q^2, the mean squared change of each coordinate over rounds.
        target: c r, a scalar.
        exponent: Exponent of the factor, see :func:`amplification_decay`.

    Returns:
        Factors in the shape of the layer.
    """
    q = mean_sq_change.sqrt() + RMS_FLOOR_SHARE * mean_sq_change.mean().sqrt() + TINY
    return (target / q).clamp(1.0, MAX_COORDINATE_FACTOR) ** exponent


# --- what clients measure -------------------------------------------------------------------------

REPORT_RANGES: Mapping[str, ValueRange] = {
    "loss": LOSS,  # training loss of the received model
    "val": LOSS,  # its validation loss
    "trials": LOSS,  # losses after training at three rates `[3]`, first round only
    "grad_sq_norm": COUNT,  # |g|^2 of the received model
    "step": COUNT,  # a quarter of Polyak's step
    "val_loss_after": LOSS,
    "second_half_sign": ValueRange(-1.0, 1.0),  # of the change of validation loss
}
"""Ranges of :func:`client_measurements` and :func:`validation_measurements`.

`grad_sq_norm` and `val_loss_after` are only checked against their ranges, so that a client whose
training diverged is left out.
"""


class Measurements(TypedDict):
    """A client's state: what it measured in this round. Scalars `[]` in float64."""

    loss: Tensor
    """Training loss of the received model."""
    grad_sq_norm: Tensor
    """|g|^2 of the received model on training data."""
    val: Tensor
    """Validation loss of the received model."""
    val_loss_half: Tensor
    """Validation loss after the first half of local training."""
    trials: Tensor
    """Losses after training at the three rates on trial `[3]`; zeros before a trial."""


def init_measurements() -> Measurements:
    """Return a client's state before its first round."""
    zero = torch.zeros((), dtype=torch.float64)
    return {
        "loss": zero,
        "grad_sq_norm": zero,
        "val": zero,
        "val_loss_half": zero,
        "trials": torch.zeros(3, dtype=torch.float64),
    }


def validation_loss(client: Client, model: Params) -> Tensor:
    """Return the validation loss; the training loss where there are no validation data."""
    split = "val" if client.task.has_split("val") else "train"
    return client.evaluate(model, split)["loss"].double()


def measure_received_model(client: Client) -> State:
    """Return training loss, squared gradient norm and validation loss of the received model."""
    val = validation_loss(client, client.start)
    return {
        "loss": client.evaluate(client.start, "train")["loss"].double(),
        "grad_sq_norm": client.grad_sq_norm(client.start),
        "val": val,
        "val_loss_half": val,
    }


def trial_losses(client: Client, epochs: Tensor, rates: Tensor) -> Tensor:
    """Return the losses `[3]` after training from the received model at each rate.

    Args:
        client: The client.
        epochs: Epochs of each trial, a scalar.
        rates: The three learning rates.
    """
    losses = [
        validation_loss(client, client.fit(client.start, hparams=LocalHParams(epochs, rate)))
        for rate in rates
    ]
    return torch.stack(losses).nan_to_num(nan=MAX_LOSS).clamp(max=MAX_LOSS)


def client_measurements(state: State) -> Params:
    """Return what a client uploads beside its model, with or without validation data."""
    return {
        "loss": state["loss"],
        "grad_sq_norm": state["grad_sq_norm"],
        "val": state["val"],
        "trials": state["trials"],
        "step": polyak_lr(state["loss"], state["grad_sq_norm"]),
    }


def validation_measurements(client: Client, val_loss_half: Tensor) -> Params:
    """Return the trained model's validation loss, and whether the second half of training hurt."""
    val_loss_after = validation_loss(client, client.trained)
    return {
        "val_loss_after": val_loss_after,
        "second_half_sign": (val_loss_after - val_loss_half).sign(),
    }


# --- the method -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Autopilot(Method):
    """The method; its equations are at the top of this file.

    The server's state is an `AutopilotState`, a client's are its `Measurements`.
    """

    name: ClassVar[str] = "autopilot"
    family: ClassVar[str] = "controller"
    capabilities: ClassVar[Capabilities] = Capabilities(runs_trial_training=True)
    report_ranges: ClassVar[Mapping[str, ValueRange]] = REPORT_RANGES

    def check(self, task: Task, training: TrainingConfig) -> None:
        """Check that the task has gradients.

        Raises:
            UsageError: If it has none.
        """
        super().check(task, training)
        if type(task).grad_sq_norm is Task.grad_sq_norm:
            raise UsageError(
                f"{self.name} measures gradients, and task '{task.info.name}' has none: "
                "choose another method"
            )

    # ------------------------------------------------------------------ client

    def init_client(self, task: Task, params: Params) -> State:
        """Return empty measurements."""
        return {**init_measurements()}

    def configure_training(self, client: Client) -> tuple[LocalHParams, State]:
        """Train at the server's rate; in the first round at the best of three rates on trial."""
        state = {**client.state, **measure_received_model(client)}
        epochs = client.hparams.epochs.clamp(min=MIN_EPOCHS)
        rate = client.hparams.lr.double()
        if client.message.hparams is None:  # the server has not chosen a rate yet
            rates = trial_lrs(rate, polyak_lr(state["loss"], state["grad_sq_norm"]))
            state["trials"] = trial_losses(client, epochs, rates)
            rate = select_lr(rates, state["trials"])
        return LocalHParams(epochs, rate * lr_decay(client.round, client.num_rounds)), state

    def allowed_hparams(
        self, task: Task, proposed: LocalHParams, round: int, num_rounds: int, server_chose: bool
    ) -> tuple[LocalHParams, LocalHParams]:
        """Allow the server's rate; before it chose one, any that a trial may favour."""
        epochs = proposed.epochs.clamp(min=MIN_EPOCHS)
        decay = lr_decay(round, num_rounds)
        low = proposed.lr.double() * decay
        high = low
        if not server_chose:
            low = torch.zeros_like(low)
            high = torch.full_like(high, MAX_TRIAL_LR)
        return LocalHParams(epochs, low), LocalHParams(epochs, high)

    def train(self, client: Client) -> tuple[Params, State]:
        """Train in two halves, to see whether the second one still helps on validation data."""
        lr = client.hparams.lr
        half_epochs = client.hparams.epochs // 2
        half = client.fit(client.start, hparams=LocalHParams(half_epochs, lr))
        rest = LocalHParams(client.hparams.epochs - half_epochs, lr)
        trained = client.fit(half, hparams=rest, stream=1)
        return trained, {**client.state, "val_loss_half": validation_loss(client, half)}

    def upload(self, client: Client) -> tuple[ClientUpdate, State]:
        """Add the measurements."""
        update, state = super().upload(client)
        update.metrics |= client_measurements(state)
        if client.task.has_split("val"):
            update.metrics |= validation_measurements(client, state["val_loss_half"])
        return update, state

    # ------------------------------------------------------------------ server

    def init_server(self, task: Task, params: Params) -> State:
        """Return the state of momentum and controller."""
        return {**init_momentum(params), **init_controller()}

    def distribute(self, server: Server, ids: Tensor) -> tuple[ServerMessage, State]:
        """Send the rate with its corrections, once it is chosen."""
        message, state = super().distribute(server, ids)
        if float(state["lr"]) == 0:
            return replace(message, hparams=None), state
        lr = state["lr"] * state["loss_scale"] * state["log_lr_correction"].exp()
        epochs = torch.full_like(ids, server.training.epochs)
        return replace(message, hparams=LocalHParams(epochs, lr.expand(len(ids)))), state

    def aggregate(
        self, server: Server, ids: Tensor, updates: ClientUpdate, weights: Tensor | Params
    ) -> tuple[Params, State]:
        """Update the controller, then make a step with momentum and amplification."""
        state, m = self.steer(server, ids, updates.metrics)
        w = server.params
        mean = weighted_mean(updates.params, weights)
        change = {name: mean[name] - w[name] for name in w}
        r = median_update_rms(w, updates.params)
        exponent = amplification_decay(server.round, server.num_rounds)
        step = StepConfig(m, state["amplification"], exponent)
        new, momentum_state = amplified_momentum(w, change, r, step, state)
        return server.with_client_batch_stats(new, mean), {**state, **momentum_state}

    def should_stop(self, server: Server) -> str | None:
        """Stop when the next round's rate would be below a thousandth of the first one's."""
        state = server.state
        share = state["loss_scale"] * state["log_lr_correction"].exp()
        next_round = min(server.round + 1, server.num_rounds)
        if float(share) * lr_decay(next_round, server.num_rounds) < MIN_LR_SHARE:
            return "the learning rate is below a thousandth of the first: nothing moves any more"
        return super().should_stop(server)

    def steer(
        self, server: Server, ids: Tensor, measurements: Params
    ) -> tuple[AutopilotState, float]:
        """Update the controller by a round's measurements.

        Args:
            server: The server in this round.
            ids: The clients that replied `[K]`.
            measurements: What they measured, `[K]` or `[K, 3]`.

        Returns:
            The new state, and this round's momentum.
        """
        means = cohort_means(measurements, server.task.num_examples(ids).double())
        state = cast(AutopilotState, dict(server.state))
        m = momentum(server.num_rounds)
        if float(state["lr"]) == 0:  # the first round: choose eta
            configured = torch.full_like(state["lr"], server.training.lr)
            rates = trial_lrs(configured, measurements["step"].median())
            state["lr"] = select_lr(rates, means.trials)
            state["first_loss"] = means.loss
        state["loss_scale"] = loss_scale(means.loss, state["first_loss"])
        server.logged |= {"rate": state["lr"], "validation_loss": means.val}
        if means.second_half_sign is None:
            return state, m
        noise = sampling_noise(measurements["val"], server.task.info.num_clients)
        state, keeps_momentum = update_controller(
            state, means.val, means.second_half_sign, noise, server.num_rounds
        )
        server.logged["log_lr_correction"] = state["log_lr_correction"]
        server.logged["amplification"] = state["amplification"]
        return state, m if keeps_momentum else 0.0
