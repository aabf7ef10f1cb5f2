"""The commands and files that a page prints, as a reader types and saves them."""

from __future__ import annotations

import re
from pathlib import Path

SET_UP = ("pip", "python3", ".", "make", "export")
"""Commands of installation, done before."""
FILE = re.compile(r"```(?:yaml|python)\n# (\S+\.(?:yaml|py))\n(.*?)```", re.DOTALL)
"""A block whose first line names the file in which a reader saves it."""


def commands(page: Path, *languages: str) -> list[str]:
    """Return the commands of a page's blocks, one line each, without those of installation.

    Args:
        page: A Markdown file.
        languages: ``sh`` for blocks that run anywhere, ``bash`` for those that need Flower.
    """
    block = re.compile(rf"```(?:{'|'.join(languages)})\n(.*?)```", re.DOTALL)
    blocks = block.findall(page.read_text().replace("\\\n", " "))
    lines = [line.strip() for text in blocks for line in text.splitlines()]
    return [line for line in lines if line and line.split()[0] not in SET_UP]


def save_files(page: Path, folder: Path) -> None:
    """Save the files that a page prints.

    Args:
        page: A Markdown file.
        folder: Where to save them.
    """
    for name, text in FILE.findall(page.read_text()):
        (folder / name).write_text(text)
