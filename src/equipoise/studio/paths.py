"""Paths that a page may name: files and folders below the directories given at start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from equipoise.utils.errors import UsageError

TABLE_SUFFIXES = (".csv", ".parquet", ".xlsx")
MAX_LISTED_FILES = 500
MAX_DEPTH = 3  # folders below a directory that are searched for tables
UPLOADS = "uploads"


@dataclass(frozen=True)
class StudioPaths:
    """The directories of a studio.

    Attributes:
        runs: Folder that holds runs and comparisons, one folder each.
        data: Folders whose tables may be read.
    """

    runs: Path
    data: tuple[Path, ...]

    @property
    def state(self) -> Path:
        """Folder in which the studio records the commands that it started."""
        return self.runs / ".studio"

    @property
    def uploads(self) -> Path:
        """Folder of files that were dropped onto a page."""
        return self.state / UPLOADS

    def data_path(self, text: str) -> Path:
        """Return a table or a folder of tables.

        Args:
            text: Path as a page names it, absolute or relative to a data folder.

        Raises:
            UsageError: If it does not exist or is outside of the directories.
        """
        return _resolve_below(text, (*self.data, self.uploads, self.runs))

    def run_folder(self, text: str) -> Path:
        """Return the folder of a run or comparison.

        Args:
            text: Path relative to the folder of runs.

        Raises:
            UsageError: If it does not exist or is outside of the folder of runs.
        """
        folder = _resolve_below(text, (self.runs,))
        if folder == self.runs.resolve() or not folder.is_dir():
            raise UsageError(f"there is no run '{text}' in '{self.runs}'")
        return folder

    def new_run_folder(self, name: str) -> Path:
        """Return a folder for a new run, with a number behind the name if it is taken."""
        plain = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in name)
        plain = plain.strip("-_")[:60] or "run"
        folder = self.runs / plain
        number = 1
        while folder.exists():
            number += 1
            folder = self.runs / f"{plain}-{number}"
        return folder

    def tables(self) -> list[str]:
        """List the tables in the data folders, and the folders that hold several.

        Returns:
            Absolute paths, uploads first, at most `MAX_LISTED_FILES`.
        """
        paths: list[str] = []
        for root in (self.uploads, *self.data):
            paths += _tables_below(root.resolve(), MAX_DEPTH, self.runs.resolve())
        return list(dict.fromkeys(paths))[:MAX_LISTED_FILES]


def _tables_below(folder: Path, depth: int, skipped: Path) -> list[str]:
    """List tables and folders of tables below a folder; hidden folders and runs are skipped."""
    try:
        entries = sorted(folder.iterdir())[: 4 * MAX_LISTED_FILES]
    except OSError:
        return []
    files = [entry for entry in entries if entry.suffix.lower() in TABLE_SUFFIXES]
    paths = [str(folder)] if len(files) > 1 else []
    paths += [str(file) for file in files]
    for entry in entries:
        is_hidden = entry.name.startswith((".", "_"))
        if depth == 0 or is_hidden or entry == skipped or entry.is_symlink():
            continue
        if entry.is_dir():
            paths += _tables_below(entry, depth - 1, skipped)
    return paths


def _resolve_below(text: str, roots: tuple[Path, ...]) -> Path:
    """Resolve a path and check that it is below one of the roots."""
    if not text or "\0" in text:
        raise UsageError("no file is chosen")
    for root in roots:
        base = root.resolve()
        try:
            path = (base / text).resolve()
            exists = path.exists()
        except (OSError, RuntimeError):
            continue
        if exists and path.is_relative_to(base):
            return path
    raise UsageError(
        f"'{text}' does not exist, or is outside of the folders that this studio may read: "
        "start it in the folder of your files, or drop the file onto the page"
    )
