"""Line charts with bands as plain SVG: enough for the figures of q_figures.py, no plotting library needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 400, 60, 190, 34, 46


@dataclass(frozen=True)
class Series:
    label: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    dashed: bool = False


def ticks(low: float, high: float, log: bool) -> list[float]:
    """Round numbers within a range: 1, 2 and 5 times powers of ten, thinned out where they would crowd."""
    if log:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        steps = (1, 2, 5) if high < 2000 * low else (1,)
        return [t for p in powers for m in steps if low <= (t := m * 10.0**p) <= high]
    step = 10.0 ** math.floor(math.log10((high - low) / 2))
    step *= next(m for m in (1, 2, 5, 10) if (high - low) / (m * step) <= 7)
    return [k * step for k in range(math.ceil(low / step), math.floor(high / step + 1e-9) + 1)]


def chart(path: Path, title: str, x_name: str, y_name: str, series: Sequence[Series], log: bool = False) -> None:
    """Write the chart; with `log` both axes are logarithmic."""
    xs = [x for s in series for x in s.x]
    ys = [y for s in series for y in (*s.y, *s.low, *s.high)]
    x_span = (min(xs), max(xs))
    y_span = (min(ys), max(ys)) if log else (0.0, max(ys) * 1.05)

    def place(value: float, span: tuple[float, float], start: float, end: float) -> float:
        a, b, v = (math.log(n) for n in (*span, value)) if log else (*span, value)
        return start + (v - a) / (b - a) * (end - start)

    def point(x: float, y: float) -> str:
        return f"{place(x, x_span, LEFT, WIDTH - RIGHT):.1f},{place(y, y_span, HEIGHT - BOTTOM, TOP):.1f}"

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        f'<style>text {{ font-size: 12px }}</style><rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-weight="bold">{escape(title)}</text>',
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 10}" text-anchor="middle">{escape(x_name)}</text>',
        f'<text transform="translate(16 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">{escape(y_name)}</text>',
    ]
    for t in ticks(*x_span, log):
        x = place(t, x_span, LEFT, WIDTH - RIGHT)
        out.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{t:g}</text>')
    for t in ticks(*y_span, log):
        y = place(t, y_span, HEIGHT - BOTTOM, TOP)
        out.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{t:g}</text>')
    for i, s in enumerate(series):
        if s.low:
            outline = [point(x, y) for x, y in zip(s.x, s.low, strict=True)]
            outline += [point(x, y) for x, y in reversed(list(zip(s.x, s.high, strict=True)))]
            out.append(f'<polygon points="{" ".join(outline)}" fill="{s.colour}" opacity="0.15"/>')
        dash = ' stroke-dasharray="5 4"' if s.dashed else ""
        line = " ".join(point(x, y) for x, y in zip(s.x, s.y, strict=True))
        out.append(f'<polyline points="{line}" fill="none" stroke="{s.colour}" stroke-width="1.8"{dash}/>')
        y = TOP + 16 * i + 8
        out.append(f'<path d="M{WIDTH - RIGHT + 10} {y}h22" stroke="{s.colour}" stroke-width="1.8"{dash}/>')
        out.append(f'<text x="{WIDTH - RIGHT + 38}" y="{y + 4}">{escape(s.label)}</text>')
    path.write_text("\n".join([*out, "</svg>"]) + "\n")
