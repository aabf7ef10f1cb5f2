"""What the clients' privacy has cost so far, by Google's dp-accounting.

Neighbours differ in all the data of one client, so its clipped change moves by 2 C at most: noise of sigma C on an
upload is a Gaussian mechanism of noise multiplier sigma / 2. The mean of K uploads moves by 2 C / K and carries noise
of sigma C / sqrt(K); a client that reads it knows its own noise and takes it off, which leaves sigma sqrt(K - 1) / 2.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from equipoise.core import State
from equipoise.privacy.config import PrivacyConfig
from equipoise.records.rounds import PrivacySpent

ORDERS = tuple(range(2, 65))


def gaussian_epsilon(mu_squared: float, delta: float) -> float:
    """Of Gaussian mechanisms whose 1 / multiplier^2 add up to this: exact (Balle and Wang, 2018)."""
    if mu_squared == 0:
        return 0.0
    from dp_accounting import get_epsilon_gaussian

    return float(get_epsilon_gaussian(mu_squared**-0.5, delta))


def upload_cost(noise: float, among: int = 1) -> float:
    """1 / multiplier^2 of one upload as the server sees it: by itself, or in a secure sum of so many."""
    return 4 / (noise**2 * among)


class PrivacyAccountant:
    """Counts uploads and the means made of them. Without noise there is nothing to count: epsilon is infinite."""

    def __init__(
        self,
        privacy: PrivacyConfig,
        clients: int,
        cohort: int,
        sends: bool,
        amplified: bool,
        secure: bool = False,
    ) -> None:
        """``amplified``: whether nobody but the server knows who was drawn for a round's cohort; ``secure``: whether
        it sees uploads only as their sum."""
        self.privacy, self.clients, self.cohort, self.sends, self.secure = (
            privacy,
            clients,
            cohort,
            sends,
            secure,
        )
        self.amplified = amplified and cohort < clients
        self.uploads: NDArray[np.int64] = np.zeros(clients, np.int64)
        self.released: NDArray[np.float64] = np.zeros(clients)
        self.replies: list[int] = []

    def record_round(self, asked: NDArray[np.int64], replies: int) -> PrivacySpent:
        """Note a round: who was asked, and how many uploads went into the new model (0: it stayed)."""
        self.uploads[asked] += 1
        if self.privacy.has_noise and replies:
            self.released[asked] += 1 / self._multiplier(replies) ** 2
        self.replies.append(replies)
        return self.spent()

    def spent(self) -> PrivacySpent:
        """``epsilon`` of all models released so far; ``epsilon_server`` of all uploads of the client that made most."""
        p, most = self.privacy, int(self.uploads.max())
        if not self.sends:
            return PrivacySpent(0.0, 0.0, p.dp_delta, 0)
        if not p.has_noise:
            return PrivacySpent(None, None, p.dp_delta, most)
        epsilon = gaussian_epsilon(float(self.released.max()), p.dp_delta)
        # A server that sees sums alone knows no more than a reader who takes part, but it knows who was drawn.
        server = (
            epsilon if self.secure else gaussian_epsilon(most * upload_cost(p.dp_noise), p.dp_delta)
        )
        if self.amplified:  # both are upper bounds: the smaller one holds
            epsilon = min(epsilon, self._sampled())
        return PrivacySpent(epsilon, server, p.dp_delta, most)

    def state_dict(self) -> State:
        return {
            "uploads": torch.from_numpy(self.uploads.copy()),
            "released": torch.from_numpy(self.released.copy()),
            "replies": torch.tensor(self.replies, dtype=torch.int64),
        }

    def load_state_dict(self, state: State) -> None:
        self.uploads, self.released = (
            state["uploads"].numpy().copy(),
            state["released"].numpy().copy(),
        )
        self.replies = state["replies"].tolist()

    def _multiplier(self, replies: int) -> float:
        return self.privacy.dp_noise * math.sqrt(max(1, replies - 1)) / 2

    def _sampled(self) -> float:
        """Cohorts drawn without replacement hide who took part (Wang, Balle, Kasiviswanathan, 2019)."""
        from dp_accounting.rdp import compute_epsilon

        total = np.zeros(len(ORDERS))
        for replies in set(self.replies) - {0}:
            one = _cohort_rdp(self.clients, self.cohort, self._multiplier(replies))
            total = total + self.replies.count(replies) * one
        return float(compute_epsilon(ORDERS, total, self.privacy.dp_delta)[0])


@cache
def _cohort_rdp(clients: int, cohort: int, multiplier: float) -> NDArray[np.float64]:
    """Rényi divergences of one round, by order."""
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(ORDERS, dp_accounting.NeighboringRelation.REPLACE_ONE)
    gaussian = dp_accounting.GaussianDpEvent(multiplier)
    accountant.compose(dp_accounting.SampledWithoutReplacementDpEvent(clients, cohort, gaussian))
    return np.asarray(accountant._rdp)  # kept, since it takes half a second and adds up over rounds


def describe_spent(spent: PrivacySpent) -> str:
    """As one line for people."""
    if spent.epsilon is None:
        return "uploads are clipped; without noise nothing is promised (epsilon is infinite)"
    return (
        f"epsilon {spent.epsilon:.3g} for the global models, {spent.epsilon_server:.3g} for uploads as the server "
        f"sees them (delta {spent.delta:g}; client-level: all the data of one client, not one row)"
    )
