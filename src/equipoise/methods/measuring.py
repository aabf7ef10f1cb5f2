"""What autopilot's clients measure: of the received model, of three rates on trial, of the trained model."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.contract import Client, ValueRange, State, LocalHParams, Params
from equipoise.contract.ranges import COUNT, LOSS, MAX_LOSS
from equipoise.methods import steering

REPORTS = {
    **dict.fromkeys(("loss", "val", "reached", "own", "trials"), LOSS),
    **{"square": COUNT, "step": COUNT, "later": ValueRange(-1.0, 1.0)},
}
"""What :func:`told` and :func:`validated` upload. ``square``, ``reached`` and ``own`` are checked against their ranges,
so that a client whose training diverged is left out; nothing else is computed from them."""


def empty() -> State:
    """Before a client's first round."""
    measured = {name: torch.zeros((), dtype=torch.float64) for name in ("loss", "square", "val", "half")}
    return measured | {"trials": torch.zeros(3, dtype=torch.float64)}


def judged(client: Client, model: Params) -> Tensor:
    """Validation loss; where there are no such data, training loss."""
    return client.evaluate(model, "val" if client.task.has_split("val") else "train")["loss"].double()


def received(client: Client) -> State:
    """Loss f_i and squared gradient |g|^2 of the received model, and its validation loss."""
    loss, val = client.evaluate(client.start, "train")["loss"].double(), judged(client, client.start)
    return {"loss": loss, "square": client.grad_sq_norm(client.start), "val": val, "half": val}


def trials(client: Client, epochs: Tensor, rates: Tensor) -> Tensor:
    """The losses that training from the received model leaves at each of these rates."""
    losses = [judged(client, client.fit(client.start, hparams=LocalHParams(epochs, rate))) for rate in rates]
    return torch.stack(losses).nan_to_num(nan=MAX_LOSS).clamp(max=MAX_LOSS)


def told(client: Client, state: State) -> Params:
    """What was measured before training, Polyak's step, and the loss that training reached."""
    seen = {name: state[name] for name in ("loss", "square", "val", "trials")}
    step, reached = steering.polyak(state["loss"], state["square"]), client.evaluate(client.trained, "train")["loss"].double()
    return {**seen, "reached": reached, "step": step}


def validated(client: Client, half: Tensor) -> Params:
    """The trained model's validation loss, and whether the later half of training helped."""
    own = judged(client, client.trained)
    return {"own": own, "later": (own - half).sign()}
