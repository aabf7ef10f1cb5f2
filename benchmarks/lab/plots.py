"""Figures of studies, drawn so that the same data give the same file (extra ``plot``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "equipoise",
}


@dataclass(frozen=True)
class Series:
    label: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    dashed: bool = False


@contextmanager
def drawing(
    path: Path, columns: int = 1, size: tuple[float, float] = (6.4, 4.0)
) -> Iterator[Sequence[Any]]:
    """The axes of a figure, which is written when the block ends."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained", facecolor="white")
        yield figure.subplots(1, columns, squeeze=False)[0]
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def lines(
    axis: Any, series: Sequence[Series], title: str, x: str, y: str, log: bool = False
) -> None:
    """Lines with their bands; with ``log`` both axes are logarithmic."""
    for one in series:
        axis.plot(one.x, one.y, "--" if one.dashed else "-", color=one.colour, label=one.label)
        if one.low:
            axis.fill_between(one.x, one.low, one.high, color=one.colour, alpha=0.15, linewidth=0)
    axis.set(title=title, xlabel=x, ylabel=y)
    axis.set(xscale="log", yscale="log") if log else None
    axis.legend(frameon=False, fontsize=7)
