"""Where the lines of a deployment go."""

from __future__ import annotations

import logging


class Printable(logging.Formatter):
    """Text of others in a line cannot move the cursor or begin a line of its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = "".join(c if c.isprintable() else repr(c)[1:-1] for c in record.message)
        return super().formatMessage(record)


def log_to_screen() -> None:
    """Our own lines alone on standard error, where Flower collects them."""
    logger = logging.getLogger("equipoise")
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(Printable("equipoise: %(message)s"))
        logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
