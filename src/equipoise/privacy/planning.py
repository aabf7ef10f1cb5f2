"""Plan a private run: the epsilon of planned rounds, and the noise for a given epsilon."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from equipoise.privacy.accountant import GaussianAccountant
from equipoise.privacy.config import PrivacyConfig
from equipoise.records.rounds import PrivacySpent
from equipoise.utils import rng
from equipoise.utils.errors import UsageError

NOISE_DIGITS = 3  # significant digits of a noise that is chosen


@dataclass(frozen=True)
class RoundPlan:
    """The rounds of a run as far as its epsilon depends on them. All clients reply.

    Attributes:
        num_clients: Number of clients.
        participation: Share of the clients that a round asks.
        rounds: Number of rounds.
        seed: Seed of the cohorts.
        amplified: Whether only the server knows who is drawn; not so in a deployment.
        secure: Whether the server sees only sums of uploads.
    """

    num_clients: int
    participation: float
    rounds: int
    seed: int = 0
    amplified: bool = True
    secure: bool = False

    @property
    def cohort_size(self) -> int:
        """Return the number of clients that a round asks."""
        return rng.cohort_size(self.num_clients, self.participation)

    def privacy_spent(self, privacy: PrivacyConfig) -> PrivacySpent:
        """Return what all planned rounds spend.

        Args:
            privacy: Noise and delta.
        """
        accountant = GaussianAccountant(
            privacy, self.num_clients, self.cohort_size, True, self.amplified, self.secure
        )
        for round in range(1, self.rounds + 1):
            ids = rng.sample_cohort(self.seed, round, self.num_clients, self.participation)
            accountant.count_round(ids, len(ids))
        return accountant.privacy_spent()

    def epsilon(self, privacy: PrivacyConfig) -> float:
        """Return the epsilon of the models that all planned rounds release."""
        epsilon = self.privacy_spent(privacy).epsilon
        return math.inf if epsilon is None else epsilon


def choose_noise(plan: RoundPlan, privacy: PrivacyConfig) -> float:
    """Return the smallest noise with which the planned rounds stay within `max_epsilon`.

    Args:
        plan: The rounds.
        privacy: Limit and delta.

    Returns:
        The noise, rounded up to three digits.
    """

    def is_enough(noise: float) -> bool:
        return plan.epsilon(replace(privacy, dp_noise=noise)) <= privacy.max_epsilon

    low = 1.0
    high = 1.0
    while not is_enough(high):
        low = high
        high *= 2
    while low == high or is_enough(low):
        high = low
        low /= 2
    while high / low > 1 + 10.0**-NOISE_DIGITS:
        middle = math.sqrt(low * high)
        if is_enough(middle):
            high = middle
        else:
            low = middle
    return _round_up(high)


def _round_up(noise: float) -> float:
    """Round up to a few digits, so that the noise is easy to write down."""
    unit = 10.0 ** (math.floor(math.log10(noise)) - NOISE_DIGITS + 1)
    return float(f"{math.ceil(noise / unit - 1e-9) * unit:.{NOISE_DIGITS}g}")


def check_one_round(plan: RoundPlan, privacy: PrivacyConfig) -> None:
    """Refuse a limit that does not allow a single round.

    Args:
        plan: The rounds.
        privacy: Limit, noise and delta.

    Raises:
        UsageError: If the first round would pass the limit.
    """
    epsilon = replace(plan, rounds=1).epsilon(privacy)
    if epsilon > privacy.max_epsilon:
        raise UsageError(
            f"max_epsilon is {privacy.max_epsilon:g}, but one round with dp_noise "
            f"{privacy.dp_noise:g} has epsilon {epsilon:.3g} (client-level): leave dp_noise out, "
            "and the noise is chosen for the planned rounds"
        )
