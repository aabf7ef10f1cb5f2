"""Disks that fail, tear, die or forget, in the place of the one that
everything is written through.
"""

import contextlib
import errno
import os
from pathlib import Path

from equipoise.utils import io
from equipoise.utils.io import Disk

OPERATIONS = ("make_folder", "fill", "append", "sync", "rename", "remove", "lock")


class Died(BaseException):
    """The process is gone: nothing after this reaches the disk."""


class Quick(Disk):
    """Nobody cuts the power of a test: what takes longest is left out."""

    def sync(self, path):
        os.stat(path)


class Faulty(Quick):
    """The n-th operation goes wrong (from 1; 0: none does, and ``count`` tells how many there are).

    ``full``: it fails and leaves nothing. ``torn``: half of the content is written, then it fails.
    ``dies``: as torn, and the process is gone. ``after``: it succeeds, then the process is gone.
    """

    def __init__(self, n=0, how="full"):
        self.n, self.how, self.count, self.dead = n, how, 0, False


def _wrapped(name):
    def operation(self, path, *arguments):
        if self.dead:
            raise Died
        self.count += 1
        if self.count != self.n:
            return getattr(Quick, name)(self, path, *arguments)
        self.dead = self.how in ("dies", "after")
        if self.how == "after":
            done = getattr(Quick, name)(self, path, *arguments)
            if name == "lock":
                os.close(done)  # as the death of its owner does
        elif self.how in ("torn", "dies") and name == "fill":
            Disk.fill(self, path, *arguments)
            os.truncate(path, path.stat().st_size // 2)
        elif self.how in ("torn", "dies") and name == "append":
            Disk.append(self, path, arguments[0][: len(arguments[0]) // 2])
        if self.dead:
            raise Died
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    return operation


for _name in OPERATIONS:
    setattr(Faulty, _name, _wrapped(_name))


class Forgetful(Quick):
    """Below ``root``: what was not synced is gone after :meth:`cut`, as far as a file system is
    free to forget it.

    The power goes off at the n-th operation. ``names``: whether changes of names that were not
    synced survive, so that a file stands there with the content that was synced, or with none.
    """

    def __init__(self, root, n=0, names=False):
        self.root, self.n, self.names, self.count, self.dead = root, n, names, 0, False
        # Path: the file now, a list whose one item is its synced content; folders have None.
        self._there = {}
        self._kept = {}  # the same as far as names are synced
        for path in sorted(root.rglob("*")):
            self._there[path] = None if path.is_dir() else [path.read_bytes()]
        self._kept = dict(self._there)

    def cut(self):
        """Leave on the real disk what a machine would find after the power is back."""
        kept = self._there if self.names else self._kept
        for path in sorted(self.root.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        for path in sorted(kept):
            if path.parent == self.root or path.parent.is_dir():
                path.mkdir() if kept[path] is None else path.write_bytes(kept[path][0])

    def _next(self):
        if self.dead:
            raise Died
        self.count += 1
        if self.count == self.n:
            self.dead = True
            raise Died

    def make_folder(self, path, mode=0o777):
        self._next()
        super().make_folder(path, mode)
        self._there[path] = None

    def fill(self, path, write):
        self._next()
        super().fill(path, write)
        self._there[path] = [b""]

    def append(self, path, data):
        self._next()
        super().append(path, data)

    def sync(self, path):
        self._next()
        super().sync(path)
        if path.is_dir():
            inside = {p for p in (*self._there, *self._kept) if p.parent == path}
            for p in inside:
                if p in self._there:
                    self._kept[p] = self._there[p]
                else:
                    del self._kept[p]
        elif path in self._there:
            self._there[path][0] = path.read_bytes()

    def rename(self, source, target):
        self._next()
        super().rename(source, target)
        moved = {p: f for p, f in self._there.items() if p == source or source in p.parents}
        for p, f in moved.items():
            del self._there[p]
            self._there[target / p.relative_to(source)] = f

    def remove(self, path):
        self._next()
        super().remove(path)
        self._there.pop(path, None)

    def lock(self, path):
        self._next()
        return super().lock(path)


@contextlib.contextmanager
def on(disk):
    """Everything is written through ``disk`` meanwhile; gives it back."""
    before, io.DISK = io.DISK, disk
    try:
        yield disk
    finally:
        io.DISK = before


def contents(folder: Path):
    """All that is in a folder."""
    return {
        path.relative_to(folder): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
