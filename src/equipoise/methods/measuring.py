"""What autopilot's clients measure: of the received model, of two rates on trial, and of models that they trained."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.contract import Client, Range, State, Train, Tree
from equipoise.contract.ranges import COUNT, LOSS, MOST_LOSS, SHARE
from equipoise.methods import steering

REPORTS = {
    **dict.fromkeys(("loss", "val", "reached", "own", "trials", "whole"), LOSS),
    **dict.fromkeys(("error", "errors", "tried"), SHARE),
    **{"square": COUNT, "step": COUNT, "rows": COUNT, "later": Range(-1.0, 1.0)},
}
"""What :func:`told` and :func:`compared` upload, and whether a client tried the correction (safe.py)."""


def empty() -> State:
    """Before a client's first round."""
    measured = {name: torch.zeros((), dtype=torch.float64) for name in ("error", "loss", "square", "val", "half")}
    return measured | {"trials": torch.zeros(2, dtype=torch.float64)}


def judged(c: Client, model: Tree) -> Tensor:
    """Validation loss; where there are no such data, training loss."""
    return c.evaluate(model, "val" if c.task.has("val") else "train")["loss"].double()


def received(c: Client) -> State:
    """Error, loss f_i and squared gradient |g|^2 of the received model, and its validation loss."""
    train, val = c.evaluate(c.start, "train"), judged(c, c.start)
    error, loss = 1 - c.task.merit(train)[0].double(), train["loss"].double()
    return {"error": error, "loss": loss, "square": c.steepness(c.start), "val": val, "half": val}


def trials(c: Client, epochs: Tensor, rates: tuple[Tensor, Tensor]) -> Tensor:
    """The losses that training from the received model leaves at each of two rates."""
    losses = [judged(c, c.fit(c.start, train=Train(epochs, rate))) for rate in rates]
    return torch.stack(losses).nan_to_num(nan=MOST_LOSS).clamp(max=MOST_LOSS)


def told(c: Client, state: State) -> Tree:
    """What was measured before training, Polyak's step, and the loss that training reached."""
    seen = {name: state[name] for name in ("error", "loss", "square", "val", "trials")}
    step, reached = steering.polyak(state["loss"], state["square"]), c.evaluate(c.trained, "train")["loss"].double()
    return {**seen, "reached": reached, "step": step}


def compared(c: Client, half: Tensor, models: tuple[Tree, Tree]) -> Tree:
    """Two trained models on validation data: their losses and errors, and whether the later half of training helped."""
    scores = [c.evaluate(model) for model in models]
    own, whole = (score["loss"].double() for score in scores)
    errors = torch.stack([1 - c.task.merit(score)[0].double() for score in scores])
    return {"own": own, "later": (own - half).sign(), "whole": whole, "errors": errors, "rows": c.rows("val").double()}


def at_whole_rate(c: Client) -> Tree:
    """A model trained as the upload is, but for decay, need and z."""
    return c.fit(c.start, train=Train(c.train.epochs, c.down.extra["rate"].expand_as(c.train.lr)), stream=2)
