"""A report's file that a notebook shows."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    _Path = Path
else:
    _Path = type(Path())  # before Python 3.12 only the system's own kind of path can be derived from


class Page(_Path):
    """The path of a page; in a notebook it shows the page itself."""

    def _repr_html_(self) -> str:
        page = escape(self.read_text(), quote=True)
        return f'<iframe srcdoc="{page}" sandbox="allow-scripts" style="width: 100%; height: 45em; border: 0"></iframe>'
