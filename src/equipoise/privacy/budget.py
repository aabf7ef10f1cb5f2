"""A client's own record of its privacy loss over all runs, which the server cannot change."""

from __future__ import annotations

from pathlib import Path

from equipoise.privacy.accountant import gaussian_epsilon, upload_cost
from equipoise.privacy.config import PrivacyConfig
from equipoise.utils.errors import UsageError
from equipoise.utils.sealed_json import read_sealed, write_sealed

DEFAULT_DELTA = 1e-5
"""The delta at which a client computes its epsilon, unless it sets another."""


class OverBudget(UsageError):
    """An upload would exceed the client's budget. The message may be sent to the server."""


class PrivacyBudget:
    """The sum of 1 / multiplier^2 over a client's uploads, in one file."""

    def __init__(
        self,
        file: Path,
        privacy: PrivacyConfig,
        max_epsilon: float | None,
        delta: float = DEFAULT_DELTA,
    ) -> None:
        """Open a budget.

        Args:
            file: The file of the record; it is created with the first upload.
            privacy: The run's noise.
            max_epsilon: The largest epsilon that the client allows; None for no limit.
            delta: The client's own delta, at which epsilon is computed.
        """
        self.file = file
        self.privacy = privacy
        self.max_epsilon = max_epsilon
        self.delta = delta

    def check(self, num_summed: int = 1) -> None:
        """Check that the budget allows one more upload.

        Args:
            num_summed: Number of uploads in a secure sum; 1 if the server sees each upload.

        Raises:
            OverBudget: If the upload would exceed the largest epsilon, or has no noise.
        """
        if self.max_epsilon is None:
            return
        if not self.privacy.has_noise:
            raise OverBudget(
                f"this client takes part with max-epsilon={self.max_epsilon:g} only, and the run "
                "has no dp_noise"
            )
        epsilon = gaussian_epsilon(self._spent_after(num_summed), self.delta)
        if epsilon > self.max_epsilon:
            raise OverBudget(
                f"this upload would take the client's epsilon to {epsilon:.3g} at its own delta "
                f"of {self.delta:g}, its max-epsilon is {self.max_epsilon:g}"
            )

    def spend(self, num_summed: int = 1) -> None:
        """Record one upload. Call it before the upload leaves, so that a crash cannot hide it.

        Args:
            num_summed: Number of uploads in a secure sum; 1 if the server sees each upload.
        """
        if not self.privacy.has_noise:
            return
        write_sealed(self.file, {"mu_squared": self._spent_after(num_summed)})

    def _spent_after(self, num_summed: int) -> float:
        """Return the sum of 1 / multiplier^2 with one more upload."""
        return self._read_spent() + upload_cost(self.privacy.dp_noise, num_summed)

    def _read_spent(self) -> float:
        """Read the sum of 1 / multiplier^2 from the file."""
        table = read_sealed(self.file, "this client's record of its privacy loss is lost")
        return 0.0 if table is None else float(table["mu_squared"])
