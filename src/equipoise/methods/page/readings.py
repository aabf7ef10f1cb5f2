"""Readings of PAGE's game: the paper leaves open what an action means, and which of its utilities a round pays."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from equipoise.methods.page import actions

LEAST_ERROR = 0.02  # a client without errors still counts
LEAST = 0.01  # losses below count as this: validation sets are small, and 1/f would have no bound


@dataclass(frozen=True)
class Reading:
    """One way to read the paper; by default the one under which the game helps."""

    around: bool = True
    """Actions move what is configured, and zero leaves it alone; else they span the paper's whole box, from a random
    start."""
    exponent: bool = True
    """The server's action is one exponent, p_i ~ n_i e_i^kappa with e_i the received model's error at the client; else
    one weight for each client."""
    difference: bool = True
    """A player is paid what the round improved, in log loss, and looks no further; an agent that clients share learns
    from what one gained more than the others. Else the level 1/f, discounted."""
    published: bool = False
    """As in the authors' code: clipped actions, test data, nothing standardised."""

    @property
    def gamma(self) -> float:
        return 0.0 if self.difference else 0.99

    @property
    def split(self) -> str:
        """The clients' data on which states and rewards are measured."""
        return "test" if self.published else "val"

    def kept(self, action: Tensor, low: float, high: float) -> Tensor:
        """An action as its agent remembers it: the authors' code keeps it clipped, and feeds unclipped ones."""
        return actions.published(action, low, high) if self.published else action

    def epochs(self, action: Tensor, configured: Tensor, most: int, high: float) -> Tensor:
        """alpha_i; in the authors' code an action lies within the rates, of which ``high`` is the largest."""
        if self.published:
            return (action / high * most).round().clamp(min=1).long()
        return actions.epochs_near(action, configured, most) if self.around else actions.epochs_of(action, most)

    def rate(self, action: Tensor, configured: Tensor, low: float, high: float) -> Tensor:
        """eta_i."""
        if self.published:
            return action
        return actions.rate_near(action, configured, low, high) if self.around else actions.rate_of(action, low, high)

    def weights(self, action: Tensor, configured: Tensor, error: Tensor | None, lean: float) -> Tensor:
        """p; where errors e_i count, times e_i^(kappa + lean) with the action's kappa and a bias to the server."""
        p, kappa = configured, actions.exponent_of(action) if self.exponent else 0.0
        if not self.exponent:
            near = configured * actions.simplex(action, actions.NEAR_WEIGHT)
            p = near / near.sum() if self.around else actions.simplex(action)
        if error is None:
            return p
        p = p * (error + LEAST_ERROR) ** (kappa + max(0.0, lean))
        return p / p.sum()

    def paid(self, before: Tensor, after: Tensor, lean: float) -> Tensor:
        """r(t) from the losses before and after a move: by how much its logarithm fell, or the level u = 1 / f.

        In the authors' code a bias that leans to the player's side scales it.
        """
        if self.difference:
            return before.clamp(min=LEAST).log() - after.clamp(min=LEAST).log()
        return (10.0 ** max(0.0, lean) if self.published else 1.0) / after.clamp(min=LEAST)


READINGS = {
    "relative": Reading(),
    "paper": Reading(around=False, exponent=False, difference=False),
    "authors-code": Reading(around=False, exponent=False, difference=False, published=True),
}
