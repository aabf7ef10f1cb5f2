"""Shakespeare by LEAF's rules (Caldas et al., 2018, arXiv:1812.01097).

A client is a role of a play; a sample is 80 characters and the next one. The text is Project
Gutenberg's etext 100 of January 1994; later editions mark speakers differently.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from equipoise.data.sources import Arrays, DatasetFiles, DatasetSource
from equipoise.utils.errors import UsageError

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
WINDOW = 80  # characters of one sample
MIN_LINES = 3  # LEAF drops roles with two lines or fewer
FILES = ("pg100-1994-01.txt", "raw_data.txt", "100.txt")

_AUTHOR = "by William Shakespeare"
_SPEAKER = re.compile(r"^  ([a-zA-Z][a-zA-Z ]*)\. (.*)")
_CONTINUED = re.compile(r"^    (.*)")
# The Comedy of Errors is indented by two characters less, so LEAF takes any line there, also stage
# directions and blank lines.
_COMEDY_SPEAKER = re.compile(r"^([a-zA-Z][a-zA-Z ]*)\. (.*)")
_COMEDY_CONTINUED = re.compile(r"^(.*)")

Roles = dict[str, list[str]]
"""Lines of each role of a play."""


def plays(text: str) -> list[tuple[str, Roles]]:
    """Parse all plays.

    Args:
        text: The whole etext. Its first work, the Sonnets, is left out.

    Returns:
        Title, and lines by role (in capitals), of every work with more than one role.
    """
    lines = text.splitlines()
    works: list[tuple[str, Roles]] = []
    roles: Roles = {}
    role: str | None = None
    is_comedy_of_errors = False
    for number, line in enumerate(lines):
        if _AUTHOR in line:
            title = _title_above(lines, number)
            is_comedy_of_errors = title == "THE COMEDY OF ERRORS"
            roles = {}
            role = None
            works.append((title, roles))
            continue
        speaker = _COMEDY_SPEAKER if is_comedy_of_errors else _SPEAKER
        continued = _COMEDY_CONTINUED if is_comedy_of_errors else _CONTINUED
        if match := speaker.match(line):
            role = match.group(1).upper()
            if is_comedy_of_errors and role.startswith("ACT "):
                role = None
            else:
                roles.setdefault(role, []).append(match.group(2))
        elif role and (match := continued.match(line)):
            if is_comedy_of_errors and match.group(1).startswith("<"):
                role = None
            else:
                roles[role].append(match.group(1))
    return [(title, roles) for title, roles in works[1:] if len(roles) > 1]


def _title_above(lines: list[str], number: int) -> str:
    """Return the last line with text among those 2 to 7 lines above line ``number``."""
    for line in reversed(lines[max(0, number - 7) : max(0, number - 1)]):
        if line.strip():
            return line.strip()
    return ""


def speeches(text: str) -> dict[tuple[str, str], str]:
    """Join the lines of each role, for roles that give at least one sample.

    Args:
        text: The whole etext.

    Returns:
        By (title, role), all that the role says, as one line with single spaces.
    """
    spoken = {}
    for title, roles in plays(text):
        for role, lines in roles.items():
            # Every line ends in a line break, which counts as a space.
            words = re.sub(r"   *", " ", " ".join([*lines, ""]))
            if len(lines) >= MIN_LINES and len(words) > WINDOW:
                spoken[title, role] = words
    return spoken


def encode(text: str) -> NDArray[np.uint8]:
    """Encode characters as indices into :data:`ALPHABET`; unknown characters become spaces."""
    table = np.full(256, ALPHABET.index(" "), np.uint8)
    known = np.frombuffer(ALPHABET.encode("ascii"), np.uint8)
    table[known] = np.arange(len(ALPHABET), dtype=np.uint8)
    return table[np.frombuffer(text.encode("latin1", "replace"), np.uint8)]


def windows(codes: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Cut an encoded text into samples.

    Args:
        codes: Encoded characters ``[n + 80]``.

    Returns:
        Inputs ``[n, 80]`` (a view) and next characters ``[n]``.
    """
    inputs = np.lib.stride_tricks.sliding_window_view(codes[:-1], WINDOW)
    return inputs, codes[WINDOW:]


def find_shakespeare(folder: Path) -> DatasetFiles | None:
    """Find the text in a folder."""
    path = next((folder / name for name in FILES if (folder / name).is_file()), None)
    if path is None:
        return None
    return DatasetFiles([path], lambda: _read_shakespeare(path))


def _read_shakespeare(path: Path) -> Arrays:
    """Parse and encode the text: all roles' characters, their lengths, and their names."""
    text = path.read_bytes().decode("latin1")
    spoken = speeches(text)
    if not spoken:
        raise UsageError(
            f"'{path}' holds no play marked as LEAF expects: it must be etext 100 of January 1994, "
            "not a later edition"
        )
    if "THE END" not in text[text.rindex(_AUTHOR) :]:
        raise UsageError(
            f"'{path}' is truncated: its last work has no 'THE END'; download it again"
        )
    return {
        "codes": encode("".join(spoken.values())),
        "sizes": np.array([len(words) for words in spoken.values()], np.int64),
        "names": np.array([f"{title}: {role}" for title, role in spoken]),
    }


SHAKESPEARE = DatasetSource(
    name="shakespeare",
    find=find_shakespeare,
    folders=("shakespeare",),
    advice="unzip http://www.gutenberg.org/files/100/old/1994-01-100.zip and put '100.txt' into "
    "'shakespeare' below the folder that you give with --data",
)
