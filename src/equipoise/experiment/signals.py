"""Context managers: torch thread count; graceful SIGINT and SIGTERM."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator

import torch


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Set the number of torch threads within the context.

    Args:
        count: Threads of one tensor operation.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Handle SIGINT and SIGTERM gracefully within the context.

    The first signal requests a stop after the current round, so that what is saved is complete. The
    second raises ``KeyboardInterrupt``.

    Yields:
        A function that returns whether a stop was requested.
    """
    requested = False

    def handle(number: int, frame: object) -> None:
        nonlocal requested
        if requested:
            raise KeyboardInterrupt
        requested = True
        with contextlib.suppress(OSError):  # standard error may be closed
            os.write(2, b"\nstopping after this round (Ctrl-C again to stop at once)\n")

    try:
        before = {
            number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)
        }
    except ValueError:  # not the main thread, which alone can handle signals
        yield lambda: False
        return
    try:
        yield lambda: requested
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
