"""The options of differential privacy, and their refusals."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass

from equipoise.config.schema import Options, option
from equipoise.utils.errors import UsageError

BIT_SHARE = 0.05  # of the budget, for the bit by which dp_clip is adapted


@dataclass(frozen=True)
class PrivacyConfig(Options):
    """An upload's change is clipped to norm C; Gaussian noise of standard deviation sigma C is added to it."""

    dp_clip: float = option(
        0.0,
        "L2 norm C to which a client's change of the model is clipped; 0 for no clipping",
        low=0,
        high=math.inf,
    )
    dp_noise: float = option(
        0.0, "standard deviation of the noise on each upload, over C; 0 for none", low=0
    )
    dp_delta: float = option(1e-5, "delta at which epsilon is told", above=0, below=1)
    dp_quantile: float = option(
        0.0,
        "share of the changes that should stay unclipped: dp_clip follows it from round to round; 0 to keep it",
        low=0,
        below=1,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dp_noise and not 0 < self.dp_clip < math.inf:
            raise UsageError(
                "dp_noise protects nobody whose change is not clipped: set dp_clip too"
            )
        if self.dp_quantile and not 0 < self.dp_clip < math.inf:
            raise UsageError("dp_quantile adapts a bound: set dp_clip, from where it starts")
        if self.dp_noise and importlib.util.find_spec("dp_accounting") is None:
            raise UsageError(
                "dp_noise needs the accountant of the extra 'privacy': pip install 'equipoise[privacy]'"
            )

    @property
    def bit_noise(self) -> float:
        """Standard deviation of the noise on the bit that says whether a change was clipped.

        A bit moves by 1 where a change moves by 2 C, so that it costs 1 / bit_noise^2, a share of the 4 / dp_noise^2.
        """
        return self.dp_noise / (2 * math.sqrt(BIT_SHARE))

    @property
    def change_noise(self) -> float:
        """Standard deviation of the noise on a change, over C: what the bit does not cost, the change may."""
        return self.dp_noise / math.sqrt(1 - BIT_SHARE) if self.dp_quantile else self.dp_noise

    @property
    def is_enabled(self) -> bool:
        return self.dp_clip > 0

    @property
    def has_noise(self) -> bool:
        """Whether anything is promised: clipping alone promises nothing."""
        return self.dp_noise > 0

    def refuse_column_statistics(self) -> None:
        """Called where clients would tell of their columns before round 1."""
        if self.has_noise:
            raise UsageError(
                "dp_noise covers the rounds, but before them clients would tell sums and counts of their columns, "
                "which have no bound that noise could hide: leave prepare_by out for the server's rows"
            )
