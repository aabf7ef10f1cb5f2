"""What autopilot's clients measure: of the received model, of three rates on trial, of the trained model."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.contract import Client, Range, State, Train, Tree
from equipoise.contract.ranges import COUNT, LOSS, MOST_LOSS
from equipoise.methods import steering

REPORTS = {
    **dict.fromkeys(("loss", "val", "reached", "own", "trials"), LOSS),
    **{"square": COUNT, "step": COUNT, "later": Range(-1.0, 1.0)},
}
"""What :func:`told` and :func:`validated` upload. ``square``, ``reached`` and ``own`` are checked against their ranges,
so that a client whose training diverged is left out; nothing else is computed from them."""


def empty() -> State:
    """Before a client's first round."""
    measured = {name: torch.zeros((), dtype=torch.float64) for name in ("loss", "square", "val", "half")}
    return measured | {"trials": torch.zeros(3, dtype=torch.float64)}


def judged(c: Client, model: Tree) -> Tensor:
    """Validation loss; where there are no such data, training loss."""
    return c.evaluate(model, "val" if c.task.has("val") else "train")["loss"].double()


def received(c: Client) -> State:
    """Loss f_i and squared gradient |g|^2 of the received model, and its validation loss."""
    loss, val = c.evaluate(c.start, "train")["loss"].double(), judged(c, c.start)
    return {"loss": loss, "square": c.steepness(c.start), "val": val, "half": val}


def trials(c: Client, epochs: Tensor, rates: Tensor) -> Tensor:
    """The losses that training from the received model leaves at each of these rates."""
    losses = [judged(c, c.fit(c.start, train=Train(epochs, rate))) for rate in rates]
    return torch.stack(losses).nan_to_num(nan=MOST_LOSS).clamp(max=MOST_LOSS)


def told(c: Client, state: State) -> Tree:
    """What was measured before training, Polyak's step, and the loss that training reached."""
    seen = {name: state[name] for name in ("loss", "square", "val", "trials")}
    step, reached = steering.polyak(state["loss"], state["square"]), c.evaluate(c.trained, "train")["loss"].double()
    return {**seen, "reached": reached, "step": step}


def validated(c: Client, half: Tensor) -> Tree:
    """The trained model's validation loss, and whether the later half of training helped."""
    own = judged(c, c.trained)
    return {"own": own, "later": (own - half).sign()}
