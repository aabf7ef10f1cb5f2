"""Options of differential privacy."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass

from equipoise.config.schema import Options, option
from equipoise.utils.errors import UsageError, install_hint

BIT_SHARE = 0.05
"""Share of the privacy budget for the bit that adapts dp_clip."""
MIN_NOISE = 1e-3
"""The least dp_noise. It costs epsilon 2,000,000 per upload, so that less protects nobody, and the
accountant would overflow."""


@dataclass(frozen=True)
class PrivacyConfig(Options):
    """Clip each client's update to norm C and add Gaussian noise of standard deviation sigma C."""

    dp_clip: float = option(
        0.0,
        "L2 norm C to which a client's update of the model is clipped; 0 for no clipping",
        low=0,
        high=math.inf,
    )
    dp_noise: float = option(
        0.0, "standard deviation of the noise on each upload, over C; 0 for none", low=0
    )
    dp_delta: float = option(1e-5, "delta at which epsilon is reported", above=0, below=1)
    max_epsilon: float = option(
        0.0,
        "end the run before the (client-level) epsilon of the global models passes this; without "
        "dp_noise, choose the noise that the planned rounds need; 0 for no limit",
        low=0,
    )
    dp_quantile: float = option(
        0.0,
        "share of the updates that should stay unclipped: dp_clip follows it from round to round; "
        "0 for a constant dp_clip",
        low=0,
        below=1,
    )

    def __post_init__(self) -> None:
        """Refuse noise or adaptation without clipping, and noise without the accountant."""
        super().__post_init__()
        is_clipped = 0 < self.dp_clip < math.inf
        if self.dp_noise and not is_clipped:
            raise UsageError(
                "dp_noise protects nobody whose update is not clipped: set dp_clip too"
            )
        if 0 < self.dp_noise < MIN_NOISE:
            raise UsageError(
                f"dp_noise is {self.dp_noise:g}: must be 0 or at least {MIN_NOISE:g}, less "
                "protects nobody"
            )
        if self.max_epsilon and not is_clipped:
            raise UsageError(
                "max_epsilon is a limit for clipped and noised updates: set dp_clip too"
            )
        if self.dp_quantile and not is_clipped:
            raise UsageError("dp_quantile adapts a bound: set dp_clip, from where it starts")
        if self.has_noise and importlib.util.find_spec("dp_accounting") is None:
            raise UsageError(
                f"dp_noise needs the accountant of the extra 'privacy': {install_hint('privacy')}"
            )

    @property
    def bit_noise(self) -> float:
        """Return the standard deviation of the noise on the bit "was not clipped".

        The bit moves by 1 where an update moves by 2 C, so it costs 1 / bit_noise^2, which is
        BIT_SHARE of the 4 / dp_noise^2 of an upload.
        """
        return self.dp_noise / (2 * math.sqrt(BIT_SHARE))

    @property
    def change_noise(self) -> float:
        """Return the standard deviation of the noise on an update, over C.

        With an adaptive dp_clip the update gets the budget that the bit leaves.
        """
        if not self.dp_quantile:
            return self.dp_noise
        return self.dp_noise / math.sqrt(1 - BIT_SHARE)

    @property
    def is_enabled(self) -> bool:
        """Return whether updates are clipped."""
        return self.dp_clip > 0

    @property
    def has_noise(self) -> bool:
        """Return whether there is a guarantee: clipping alone gives none."""
        return self.dp_noise > 0 or self.max_epsilon > 0

    @property
    def needs_noise(self) -> bool:
        """Return whether the noise follows from `max_epsilon` and is not chosen yet."""
        return self.max_epsilon > 0 and self.dp_noise == 0

    def refuse_column_statistics(self) -> None:
        """Refuse statistics of columns before round 1, which noise does not protect.

        Raises:
            UsageError: If there is noise.
        """
        if self.has_noise:
            raise UsageError(
                "dp_noise covers the rounds, but before them clients would send sums and counts of "
                "their columns, which have no bound that noise could hide: leave preprocess_from "
                "out for the server's rows"
            )
