"""Names of scores, and which way is better."""

from __future__ import annotations

LOWER_IS_BETTER = ("error", "loss", "ece", "rmse", "mae")  # of any other score, more is better


def higher_is_better(name: str) -> bool:
    return name not in LOWER_IS_BETTER
