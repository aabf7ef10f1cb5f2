"""Privacy accounting with Google's dp-accounting.

Neighbouring datasets differ in all the data of one client, so a clipped update moves by at most
2 C. Noise of standard deviation sigma C on an upload is a Gaussian mechanism with noise multiplier
sigma / 2. The mean of K uploads moves by 2 C / K and carries noise of sigma C / sqrt(K). A client
that reads it knows its own noise and can subtract it, which leaves sigma sqrt(K - 1) / 2.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from equipoise.core import State
from equipoise.privacy.config import PrivacyConfig
from equipoise.records.rounds import LostRequest, PrivacySpent

RDP_ORDERS = tuple(range(2, 65))


def gaussian_epsilon(mu_squared: float, delta: float) -> float:
    """Return epsilon of a composition of Gaussian mechanisms, exactly (Balle and Wang, 2018).

    Args:
        mu_squared: The sum of 1 / multiplier^2 over the mechanisms.
        delta: The delta at which epsilon is computed.
    """
    # delta(0) is the total variation distance 2 Phi(mu / 2) - 1.
    if math.erf(math.sqrt(mu_squared / 8)) <= delta:
        return 0.0
    from dp_accounting import get_epsilon_gaussian

    with np.errstate(divide="ignore"):  # the library takes the logarithm of a delta of 0
        return float(get_epsilon_gaussian(mu_squared**-0.5, delta))


def upload_cost(noise: float, num_summed: int = 1) -> float:
    """Return 1 / multiplier^2 of one upload as the server sees it.

    Args:
        noise: Standard deviation of the noise over the clipping norm.
        num_summed: Number of uploads in a secure sum; 1 if the server sees each upload.
    """
    return 4 / (noise**2 * num_summed)


class GaussianAccountant:
    """Account for uploads and the means made of them. Without noise epsilon is infinite."""

    def __init__(
        self,
        privacy: PrivacyConfig,
        clients: int,
        cohort: int,
        sends: bool,
        amplified: bool,
        secure: bool = False,
    ) -> None:
        """Start with nothing spent.

        Args:
            privacy: Clipping norm, noise and delta.
            clients: Number of clients.
            cohort: Number of clients in a round.
            sends: Whether clients upload anything.
            amplified: Whether only the server knows who was drawn into a round's cohort.
            secure: Whether the server sees only the sum of the uploads.
        """
        self.privacy = privacy
        self.clients = clients
        self.cohort = cohort
        self.sends = sends
        self.secure = secure
        self.amplified = amplified and cohort < clients
        self.uploads: NDArray[np.int64] = np.zeros(clients, np.int64)
        self.released: NDArray[np.float64] = np.zeros(clients)
        self.replies: list[int] = []

    def after(self, cohort: NDArray[np.int64], replies: int) -> PrivacySpent:
        """Account for a round.

        Args:
            cohort: The clients that were asked.
            replies: The number of uploads in the new model; 0 if the model stayed.

        Returns:
            What all rounds have spent so far.
        """
        self.count_round(cohort, replies)
        return self.privacy_spent()

    def count_round(self, cohort: NDArray[np.int64], replies: int) -> None:
        """Account for a round, as :meth:`after`, without computing epsilon."""
        self.uploads[cohort] += 1
        if self.privacy.has_noise and replies:
            self.released[cohort] += 1 / self._multiplier(replies) ** 2
        self.replies.append(replies)

    def count_lost(self, request: LostRequest) -> None:
        """Account for a round that was asked and lost when the server stopped.

        Args:
            request: The clients that were asked, and what the server could see of their uploads.
        """
        self.uploads[request.clients] += 1
        if self.secure and request.num_summed and self.privacy.has_noise:
            self.released[request.clients] += 1 / self._multiplier(request.num_summed) ** 2

    def privacy_spent(self) -> PrivacySpent:
        """Return what has been spent so far.

        Returns:
            `epsilon` of all models released; `epsilon_server` of all uploads of the client with
            the most uploads.
        """
        privacy = self.privacy
        max_uploads = int(self.uploads.max())
        if not self.sends:
            return PrivacySpent(0.0, 0.0, privacy.dp_delta, 0)
        if not privacy.has_noise:
            return PrivacySpent(None, None, privacy.dp_delta, max_uploads)
        epsilon = gaussian_epsilon(float(self.released.max()), privacy.dp_delta)
        # A server that sees only sums learns no more than a client that takes part, but it knows
        # who was drawn, so sampling does not amplify its epsilon.
        server_epsilon = epsilon
        if not self.secure:
            cost = max_uploads * upload_cost(privacy.dp_noise)
            server_epsilon = gaussian_epsilon(cost, privacy.dp_delta)
        if self.amplified:  # Both are upper bounds: the smaller one holds.
            epsilon = min(epsilon, self._amplified_epsilon())
        return PrivacySpent(epsilon, server_epsilon, privacy.dp_delta, max_uploads)

    def epsilon_after(self, cohort: NDArray[np.int64], replies: int) -> float:
        """Return the epsilon of the models after one more round, without counting it.

        Args:
            cohort: The clients that would be asked.
            replies: The number of uploads in the new model.
        """
        state = self.state()
        epsilon = self.after(cohort, replies).epsilon
        self.load(state)
        return math.inf if epsilon is None else epsilon

    def min_replies_within(self, cohort: NDArray[np.int64], max_epsilon: float) -> int | None:
        """Return how many replies the next round needs, so that epsilon stays within a limit.

        Args:
            cohort: The clients that would be asked.
            max_epsilon: The limit.

        Returns:
            The smallest number of replies; None if even all replies are too few.
        """
        if self.epsilon_after(cohort, len(cohort)) > max_epsilon:
            return None
        low = 0  # too few
        high = len(cohort)
        while high - low > 1:
            middle = (low + high) // 2
            if self.epsilon_after(cohort, middle) > max_epsilon:
                low = middle
            else:
                high = middle
        return high

    def state(self) -> State:
        """Return the state for a checkpoint."""
        return {
            "uploads": torch.from_numpy(self.uploads.copy()),
            "released": torch.from_numpy(self.released.copy()),
            "replies": torch.tensor(self.replies, dtype=torch.int64),
        }

    def load(self, state: State) -> None:
        """Restore a state from `state`."""
        self.uploads = state["uploads"].numpy().copy()
        self.released = state["released"].numpy().copy()
        self.replies = state["replies"].tolist()

    def _multiplier(self, replies: int) -> float:
        """Return the noise multiplier of a mean of uploads, as a participating client sees it."""
        return self.privacy.dp_noise * math.sqrt(max(1, replies - 1)) / 2

    def _amplified_epsilon(self) -> float:
        """Return epsilon under sampling without replacement (Wang et al., 2019)."""
        from dp_accounting.rdp import compute_epsilon

        total = np.zeros(len(RDP_ORDERS))
        for replies in set(self.replies) - {0}:
            round_rdp = _round_rdp(self.clients, self.cohort, self._multiplier(replies))
            total = total + self.replies.count(replies) * round_rdp
        return float(compute_epsilon(RDP_ORDERS, total, self.privacy.dp_delta)[0])


@cache  # It takes half a second, and equal rounds add up.
def _round_rdp(clients: int, cohort: int, multiplier: float) -> NDArray[np.float64]:
    """Return the Rényi divergences of one round, by order."""
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(RDP_ORDERS, dp_accounting.NeighboringRelation.REPLACE_ONE)
    gaussian = dp_accounting.GaussianDpEvent(multiplier)
    accountant.compose(dp_accounting.SampledWithoutReplacementDpEvent(clients, cohort, gaussian))
    return np.asarray(accountant._rdp)


def describe_spent(spent: PrivacySpent) -> str:
    """Return what has been spent as one line of text."""
    if spent.epsilon is None:
        return "uploads are clipped; without noise nothing is guaranteed (epsilon is infinite)"
    return (
        f"epsilon {spent.epsilon:.3g} for the global models, {spent.epsilon_server:.3g} for "
        f"uploads as the server sees them (delta {spent.delta:g}; client-level: all the data of "
        "one client, not one row)"
    )
