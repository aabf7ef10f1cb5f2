"""Shakespeare by LEAF's rules: a client is a role of a play, a sample is 80 characters and the one that follows.

The text is Project Gutenberg's etext 100 of January 1994; later editions mark speakers differently.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from equipoise.data.cache import Arrays
from equipoise.data.sources import DatasetFiles, DatasetSource
from equipoise.utils.errors import UsageError

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
WINDOW = 80
FEWEST_LINES = 3  # LEAF drops roles with two lines or fewer
FILES = ("pg100-1994-01.txt", "raw_data.txt", "100.txt")

_ROLE = re.compile(r"^  ([a-zA-Z][a-zA-Z ]*)\. (.*)")
_FURTHER = re.compile(r"^    (.*)")
_ROLE_IN_ERRORS = re.compile(
    r"^([a-zA-Z][a-zA-Z ]*)\. (.*)"
)  # The Comedy of Errors is indented two less
_FURTHER_IN_ERRORS = re.compile(
    r"^(.*)"
)  # so LEAF takes any line there, also directions and blank ones
_AUTHOR = "by William Shakespeare"

Roles = dict[str, list[str]]


def plays(text: str) -> list[tuple[str, Roles]]:
    """Title and lines by role (in capitals) of every work with more than one role; the first work is the Sonnets."""
    lines = text.splitlines()
    found: list[tuple[str, Roles]] = []
    roles: Roles = {}
    speaker, role, further, errors = None, _ROLE, _FURTHER, False
    for i, line in enumerate(lines):
        if _AUTHOR in line:
            title = next(
                (
                    above.strip()
                    for above in reversed(lines[max(0, i - 7) : max(0, i - 1)])
                    if above.strip()
                ),
                "",
            )
            roles, speaker, errors = {}, None, title == "THE COMEDY OF ERRORS"
            role, further = (_ROLE_IN_ERRORS, _FURTHER_IN_ERRORS) if errors else (_ROLE, _FURTHER)
            found.append((title, roles))
        elif match := role.match(line):
            speaker = match.group(1).upper()
            if errors and speaker.startswith("ACT "):
                speaker = None
            else:
                roles.setdefault(speaker, []).append(match.group(2))
        elif speaker and (match := further.match(line)):
            if errors and match.group(1).startswith("<"):
                speaker = None
            else:
                roles[speaker].append(match.group(1))
    return [(title, roles) for title, roles in found[1:] if len(roles) > 1]


def speeches(text: str) -> dict[tuple[str, str], str]:
    """All that a role says, as one line with single spaces, for roles that give at least one sample."""
    spoken = {}
    for title, roles in plays(text):
        for role, lines in roles.items():
            words = re.sub(
                r"   *", " ", " ".join([*lines, ""])
            )  # every line ends in a line break, which is a space
            if len(lines) >= FEWEST_LINES and len(words) > WINDOW:
                spoken[title, role] = words
    return spoken


def encode(text: str) -> NDArray[np.uint8]:
    """Positions in :data:`ALPHABET`; a character outside it becomes a space."""
    table = np.full(256, ALPHABET.index(" "), np.uint8)
    table[np.frombuffer(ALPHABET.encode("ascii"), np.uint8)] = np.arange(
        len(ALPHABET), dtype=np.uint8
    )
    return table[np.frombuffer(text.encode("latin1", "replace"), np.uint8)]


def windows(codes: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Every sample of a text: ``[n, 80]`` inputs (a view) and the next characters ``[n]``."""
    inputs = np.lib.stride_tricks.sliding_window_view(codes[:-1], WINDOW)
    return inputs, codes[WINDOW:]


def find_shakespeare(folder: Path) -> DatasetFiles | None:
    path = next((folder / name for name in FILES if (folder / name).is_file()), None)
    return None if path is None else DatasetFiles([path], lambda: _read(path))


def _read(path: Path) -> Arrays:
    text = path.read_bytes().decode("latin1")
    spoken = speeches(text)
    if not spoken:
        raise UsageError(
            f"'{path}' holds no play marked as LEAF expects: it must be etext 100 of January 1994, not a later edition"
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
    advice="unzip http://www.gutenberg.org/files/100/old/1994-01-100.zip and put '100.txt' into 'shakespeare' below "
    "the folder that you give with --data",
)
