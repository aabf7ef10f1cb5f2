"""Context managers: torch thread count; graceful SIGINT and SIGTERM."""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

import torch

from equipoise.utils import interrupt

GRACE_SECONDS = 1.0  # after the first signal, for the round under way


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Set the number of torch threads within the context.

    Args:
        count: Threads of one tensor operation.

    Returns:
        The context.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def interruptible(folder: object) -> Iterator[Callable[[], bool]]:
    """Handle SIGINT and SIGTERM gracefully within the context.

    The first signal requests a stop after the current round, so that this round is saved too. If
    the round takes longer than a second, or after a second signal, ``KeyboardInterrupt`` is raised,
    and the run goes on from its last checkpoint.

    Args:
        folder: Folder of the run, for the message.

    Yields:
        A function that returns whether a stop was requested. If so, the caller saves and stops.
    """
    requested = False
    timer = threading.Timer(GRACE_SECONDS, _thread.interrupt_main)
    timer.daemon = True

    def handle(number: int, frame: object) -> None:
        nonlocal requested
        if requested:
            raise KeyboardInterrupt
        requested = True
        interrupt.start_countdown()
        timer.start()
        with contextlib.suppress(OSError):  # standard error may be closed
            os.write(2, f"\nstopping; all saved rounds are in {folder}\n".encode())

    def stop_requested() -> bool:
        if requested:
            timer.cancel()
            interrupt.cancel_countdown()
        return requested

    try:
        before = {
            number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)
        }
    except ValueError:  # not the main thread, which alone can handle signals
        yield lambda: False
        return
    try:
        yield stop_requested
    finally:
        timer.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)
