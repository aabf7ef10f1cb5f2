"""The two customers in one picture: every method a point, global score against personal score, and the front."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from equipoise.utils import io

Point = tuple[float, float]


def front(points: Mapping[str, Point], higher: bool = True) -> list[str]:
    """Methods that no other one matches or beats on both sides, from left to right; ``higher``: more is better."""
    sign = 1.0 if higher else -1.0
    signed = {name: (sign * x, sign * y) for name, (x, y) in points.items()}

    def beaten(here: Point) -> bool:
        return any(
            there != here and there[0] >= here[0] and there[1] >= here[1]
            for there in signed.values()
        )

    return sorted(
        (name for name, point in signed.items() if not beaten(point)), key=lambda name: points[name]
    )


def draw(
    points: Mapping[str, Point], title: str, path: Path, unit: str = "%", higher: bool = True
) -> bool:
    """Write an SVG; false where the extra ``plot`` (Matplotlib) is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(8, 5.5), layout="constrained")
    axes = figure.subplots()
    best = front(points, higher)
    way = "" if higher else " (less is better)"
    axes.plot(
        [points[name][0] for name in best],
        [points[name][1] for name in best],
        "--",
        color="#999999",
        zorder=1,
    )
    for name, (x, y) in points.items():
        axes.scatter([x], [y], color="#D55E00" if name in best else "#0072B2", zorder=2)
        axes.annotate(name, (x, y), xytext=(5, 4), textcoords="offset points", fontsize=8)
    axes.set_xlabel(f"global model on the server's test set, {unit}{way}")
    axes.set_ylabel(f"personal models on their own test sets, {unit}{way}")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    io.write_with(path, lambda file: figure.savefig(file, metadata={"Date": None}))
    return True
