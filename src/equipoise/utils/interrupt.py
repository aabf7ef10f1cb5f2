"""Bounded reaction to Ctrl-C: a command that does not end by itself is ended.

Everything on disk is safe at any moment, so that ending a process loses no saved round.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
from collections.abc import Iterator

EXIT_SECONDS = 1.8  # after the first Ctrl-C; time for finally-blocks and for saving
_state = {"is_command": False, "was_interrupted": False}


def start_countdown() -> None:
    """End the process soon, also if it computes outside of Python; no effect in a library."""
    if not _state["is_command"]:
        return
    _state["was_interrupted"] = True
    # A thread of C that needs no lock of Python: it also ends a process within one long call.
    faulthandler.dump_traceback_later(EXIT_SECONDS, exit=True, file=_nowhere())


def cancel_countdown() -> None:
    """Let the process live on: what it does now must come to its end."""
    if _state["is_command"]:
        faulthandler.cancel_dump_traceback_later()


@contextlib.contextmanager
def command_process() -> Iterator[None]:
    """Bound the reaction to Ctrl-C of this process, which runs one command and then ends."""
    _state["is_command"] = True

    def handle(number: int, frame: object) -> None:
        if _is_loading_libraries():
            os.write(2, b"equipoise: interrupted\n")
            os._exit(1)
        start_countdown()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, handle)
    yield


def _is_loading_libraries() -> bool:
    """Return whether NumPy or PyTorch is being imported.

    An exception that passes through their compiled start-up code aborts the process. Nothing has
    been written by then, so that the process can end at once.
    """
    modules = [sys.modules.get(name) for name in ("numpy", "torch")]
    return any(getattr(module.__spec__, "_initializing", False) for module in modules if module)


def exit_if_interrupted(code: int) -> None:
    """End the process at once if Ctrl-C was pressed and everything is saved.

    Without this Python would first take PyTorch apart, which costs half a second of CPU time.

    Args:
        code: Exit code.
    """
    if not _state["was_interrupted"]:
        return
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # its reader may have closed it
            stream.flush()
    os._exit(code)


_NOWHERE: list[int] = []


def _nowhere() -> int:
    """Return a file descriptor that discards what is written."""
    if not _NOWHERE:
        _NOWHERE.append(os.open(os.devnull, os.O_WRONLY))
    return _NOWHERE[0]
