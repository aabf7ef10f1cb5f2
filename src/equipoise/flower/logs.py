"""Where the lines of a deployment go."""

from __future__ import annotations

import logging


def log_to_screen() -> None:
    """Our own lines alone on standard error, where Flower collects them."""
    logger = logging.getLogger("equipoise")
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("equipoise: %(message)s"))
        logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
