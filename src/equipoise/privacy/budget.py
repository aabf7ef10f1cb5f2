"""A client's own account of what its uploads cost it, over all runs: the server cannot change it."""

from __future__ import annotations

import json
from pathlib import Path

from equipoise.privacy.accountant import gaussian_epsilon, upload_cost
from equipoise.privacy.config import PrivacyConfig
from equipoise.utils import io as checkpoint
from equipoise.utils.errors import UsageError

DEFAULT_DELTA = 1e-5  # at which a client judges its epsilon, unless it says otherwise


class OverBudget(UsageError):
    """This client allows no such upload; the words may be told to the server."""


class PrivacyBudget:
    """One file; 1 / multiplier^2 of each upload adds up in it. Epsilon is judged at the client's own delta."""

    def __init__(
        self,
        file: Path,
        privacy: PrivacyConfig,
        most_epsilon: float | None,
        most_delta: float = DEFAULT_DELTA,
    ) -> None:
        self.file, self.privacy, self.most, self.delta = file, privacy, most_epsilon, most_delta

    def check(self, among: int = 1) -> None:
        """Refuse the next upload if it would cost more than this client allows.

        ``among``: uploads that the server sees only as a sum, where it sees none by itself.
        """
        if self.most is None:
            return
        if not self.privacy.has_noise:
            raise OverBudget(
                f"this client takes part with max-epsilon={self.most:g} only, and the run has no dp_noise"
            )
        epsilon = gaussian_epsilon(
            self._spent() + upload_cost(self.privacy.dp_noise, among), self.delta
        )
        if epsilon > self.most:
            raise OverBudget(
                f"this upload would take the client's epsilon to {epsilon:.3g} at its own delta of {self.delta:g}, its "
                f"max-epsilon is {self.most:g}"
            )

    def spend(self, among: int = 1) -> None:
        """Before the upload leaves, so that a crash cannot make it free."""
        if self.privacy.has_noise:
            checkpoint.make_folder(self.file.parent, private=True)
            spent = self._spent() + upload_cost(self.privacy.dp_noise, among)
            checkpoint.write_text(self.file, json.dumps({"mu_squared": spent}))

    def _spent(self) -> float:
        if not self.file.exists():
            return 0.0
        try:
            return float(json.loads(self.file.read_text())["mu_squared"])
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"'{self.file}' is damaged: this client's account of its privacy is lost"
            ) from error
