"""Readings of PAGE's game: the paper leaves open what an action means, and which of its utilities a round pays."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from equipoise.methods.page import actions


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

    def weights(self, action: Tensor, configured: Tensor) -> tuple[Tensor, Tensor | float]:
        """The weights before errors count in them, and the exponent with which these do."""
        if self.exponent:
            return configured, actions.exponent_of(action)
        if not self.around:
            return actions.simplex(action), 0.0
        p = configured * actions.simplex(action, actions.NEAR_WEIGHT)
        return p / p.sum(), 0.0


READINGS = {
    "around": Reading(),
    "free-weights": Reading(exponent=False),
    "levels": Reading(difference=False),
    "box": Reading(around=False),
    "paper": Reading(around=False, exponent=False, difference=False),
    "published": Reading(around=False, exponent=False, difference=False, published=True),
}
