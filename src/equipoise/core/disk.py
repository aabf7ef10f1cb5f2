"""The disk, as everything here writes to it: a few operations, so that tests can fail, tear or forget any of them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows: there, two runs in one folder are the user's affair
    fcntl = None  # type: ignore[assignment]


class Disk:
    """What is done to a disk. Content or names that were not synced may be lost in a power cut."""

    def make_folder(self, path: Path, mode: int = 0o777) -> None:
        """``mode``: who may do what there, less what the user's umask forbids."""
        os.mkdir(path, mode)

    def fill(self, path: Path, write: Callable[[Path], None]) -> None:
        """Make a file, or empty it, and let ``write`` write its content."""
        write(path)

    def append(self, path: Path, data: bytes) -> None:
        """Add to a file that is there: one that was deleted meanwhile does not come back with half its content."""
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(file, view) :]
        finally:
            os.close(file)

    def sync(self, path: Path) -> None:
        """Of a file its content; of a folder the names in it."""
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def remove(self, path: Path) -> None:
        """A file, a link, or an empty folder."""
        os.rmdir(path) if path.is_dir() and not path.is_symlink() else os.unlink(path)

    def lock(self, path: Path) -> int | None:
        """A lock that the operating system frees when this process ends; ``None`` if another has it."""
        while True:
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                if fcntl is not None:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(file).st_ino == _number(path):  # else its owner removed it in between: try the new one
                    os.ftruncate(file, 0)
                    os.write(file, str(os.getpid()).encode())
                    return file
            except OSError as error:
                os.close(file)
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    return None
                raise
            os.close(file)

    def unlock(self, path: Path, file: int) -> None:
        try:
            os.unlink(path)
        except OSError:  # the folder is gone, or cannot be written to: closing frees the lock too
            pass
        finally:
            os.close(file)


def _number(path: Path) -> int | None:
    try:
        return os.stat(path).st_ino
    except FileNotFoundError:
        return None
