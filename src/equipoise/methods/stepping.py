"""Autopilot's server step: momentum whose small coordinates are amplified, measured by the clients' own changes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.contract import State, Params
from equipoise.methods.steering import TINY

MOST = 100.0  # times that a coordinate is amplified
REST = 0.1  # the part of a layer's mean that is added to each of its coordinates: rounding is not amplified


@dataclass(frozen=True)
class Step:
    """How one step is made: momentum m, how far small coordinates reach, and what is left of their amplification."""

    m: float
    reach: Tensor
    left: float


def start(params: Params) -> State:
    """No momentum and no mean of squared changes yet."""
    zeros = {name: torch.zeros_like(w) for name, w in params.items()}
    return {"v": zeros, "squares": zeros, "steps": torch.zeros((), dtype=torch.float64)}


def lengths(w: Params, uploads: Params) -> Params:
    """r by layer: the root mean square of a client's change there, as the median over clients, so that none sets it."""
    return {name: (each - w[name]).flatten(1).square().mean(1).sqrt().median() for name, each in uploads.items()}


def moved(w: Params, change: Params, r: Params, by: Step, state: State) -> tuple[Params, State]:
    """w + v max(1, c r / q)^left, with v <- m v + D and q the root mean square of D over all rounds, by coordinate.

    Coordinates that move little in each round, because inputs there are small or clients pull apart, catch up.
    """
    steps = state["steps"] + 1
    v = {name: by.m * state["v"][name] + d for name, d in change.items()}
    squares = {
        name: square + (change[name].square() - square) / steps.to(square) for name, square in state["squares"].items()
    }
    new = {name: w[name] + v[name] * amplified(squares[name], by.reach.to(r[name]) * r[name], by.left) for name in w}
    return new, {**state, "v": v, "squares": squares, "steps": steps}


def amplified(squares: Tensor, reach: Tensor, left: float) -> Tensor:
    """What each coordinate of a layer is multiplied by: 1 for those that move as far as asked."""
    q = squares.sqrt() + REST * squares.mean().sqrt() + TINY
    return (reach / q).clamp(1.0, MOST) ** left
