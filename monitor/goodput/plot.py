"""The sweep as one SVG file: effective training time against the number of ranks. Pure.

Written out by hand: two axes and a few lines are not worth a plotting library to a monitor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Final

from monitor.goodput.compare import Outcome

_WIDTH: Final = 800
_HEIGHT: Final = 440
_LEFT: Final = 60
_RIGHT: Final = 250
_TOP: Final = 50
_BOTTOM: Final = 60
_COLOURS: Final = ("#7f7f7f", "#d62728", "#ff7f0e", "#1f77b4", "#2ca02c", "#9467bd", "#8c564b")
_LABEL_GAP: Final = 15.0


def plot(sweep: Sequence[Sequence[Outcome]], title: str, command: str) -> str:
    """Lines are the Poisson closed form, dots the simulation with two standard errors.

    `sweep`: one row of outcomes a size, the same ways in each row. `command` is written into it.
    """
    counts = [row[0].scenario.job.ranks for row in sweep]
    lowest = min(one.poisson for row in sweep for one in row)
    frame = _Frame(min(counts), max(counts), min(0.9, math.floor(lowest * 10.0) / 10.0))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}">',
        '<g font-family="sans-serif" font-size="12">',
        f"<desc>{escape(command)}</desc>",
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_LEFT}" y="24" font-size="14">{escape(title)}</text>',
        *_axes(frame, counts),
    ]
    ends: list[tuple[float, int, str]] = []
    for number in range(len(sweep[0])):
        line = [row[number] for row in sweep]
        parts += _line(frame, line, _COLOURS[number % len(_COLOURS)])
        ends.append((frame.y(line[-1].poisson), number, line[-1].name.strip()))
    parts += _labels(frame, ends)
    return "\n".join([*parts, "</g>", "</svg>", ""])


class _Frame:
    """From ranks (logarithmic) and shares to points."""

    def __init__(self, first: int, last: int, floor: float) -> None:
        self.low, self.span = math.log(first), math.log(last) - math.log(first)
        self.floor = floor
        self.right, self.bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def x(self, ranks: int) -> float:
        return _LEFT + (self.right - _LEFT) * (math.log(ranks) - self.low) / self.span

    def y(self, share: float) -> float:
        return _TOP + (self.bottom - _TOP) * (1.0 - share) / (1.0 - self.floor)


def _axes(frame: _Frame, counts: Sequence[int]) -> list[str]:
    parts = []
    for tenth in range(round(frame.floor * 10), 11):
        y = frame.y(tenth / 10.0)
        parts.append(
            f'<path d="M{_LEFT} {y:.1f}H{frame.right}" stroke="#ddd"/>'
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tenth * 10} %</text>'
        )
    for count in counts:
        x = frame.x(count)
        parts.append(
            f'<path d="M{x:.1f} {frame.bottom}v5" stroke="black"/>'
            f'<text x="{x:.1f}" y="{frame.bottom + 20}" text-anchor="middle">{_short(count)}</text>'
        )
    parts.append(
        f'<path d="M{_LEFT} {_TOP}V{frame.bottom}H{frame.right}" stroke="black" fill="none"/>'
    )
    middle = (_LEFT + frame.right) / 2
    parts.append(
        f'<text x="{middle:.1f}" y="{frame.bottom + 42}" text-anchor="middle">ranks; '
        "lines: Poisson closed form, dots: simulation</text>"
    )
    return parts


def _line(frame: _Frame, line: Sequence[Outcome], colour: str) -> list[str]:
    points = [(frame.x(one.scenario.job.ranks), frame.y(one.poisson)) for one in line]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    parts = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>']
    for (x, _), one in zip(points, line, strict=True):
        if one.simulated is None:
            continue
        y, high = (
            frame.y(one.simulated.goodput),
            frame.y(one.simulated.goodput + one.simulated.error),
        )
        parts.append(
            f'<path d="M{x:.1f} {high:.1f}V{2 * y - high:.1f}" stroke="{colour}"/>'
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>'
        )
    return parts


def _labels(frame: _Frame, ends: Sequence[tuple[float, int, str]]) -> list[str]:
    """Names at the ends of their lines, from above, none upon another."""
    parts, last = [], -math.inf
    for y, number, name in sorted(ends):
        at = max(y, last + _LABEL_GAP)
        last = at
        colour = _COLOURS[number % len(_COLOURS)]
        parts.append(
            f'<text x="{frame.right + 8}" y="{at + 4:.1f}" fill="{colour}">{escape(name)}</text>'
        )
    return parts


def _short(count: int) -> str:
    return f"{count / 1000:g}k" if count >= 1000 else str(count)
