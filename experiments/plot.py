"""One picture of some lines over an x-axis, as SVG: both axes linear or by powers. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

Point = tuple[float, float]


@dataclass
class Plot:
    """A frame in points, into which values are drawn; `svg` is the picture."""

    title: str
    xs: Point
    """Least and most that is drawn."""
    ys: Point
    by_powers: bool = False
    width: int = 720
    height: int = 420
    left: int = 70
    right: int = 150
    parts: list[str] = field(default_factory=list)
    top: int = 50
    bottom: int = 50

    def _share(self, value: float, ends: Point) -> float:
        low, high, value = (*ends, value) if not self.by_powers else map(math.log, (*ends, value))
        return (value - low) / ((high - low) or 1.0)

    def x(self, value: float) -> float:
        return self.left + (self.width - self.left - self.right) * self._share(value, self.xs)

    def y(self, value: float) -> float:
        return self.height - self.bottom - (
            (self.height - self.top - self.bottom) * self._share(value, self.ys)
        )  # fmt: skip

    def text(
        self, x: float, y: float, words: str, anchor: str = "middle", colour: str = "#333"
    ) -> None:
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">'
            f"{escape(words)}</text>"
        )

    def axes(self, xs: Iterable[tuple[float, str]], ys: Iterable[tuple[float, str]],
             name: str = "") -> None:  # fmt: skip
        """Values with their labels, below and at the left; `name`: of the x-axis."""
        end, foot = self.width - self.right, self.height - self.bottom
        for value, label in ys:
            y = self.y(value)
            self.parts.append(f'<path d="M{self.left} {y:.1f}H{end}" stroke="#ddd"/>')
            self.text(self.left - 8, y + 4, label, "end")
        for value, label in xs:
            x = self.x(value)
            self.parts.append(f'<path d="M{x:.1f} {foot}v5" stroke="#333"/>')
            self.text(x, foot + 20, label)
        self.parts.append(
            f'<path d="M{self.left} {self.top}V{foot}H{end}" fill="none" stroke="#333"/>'
        )
        self.text((self.left + end) / 2, foot + 40, name)

    def line(self, points: Sequence[Point], colour: str, name: str = "",
             dots: Iterable[Point] = ()) -> None:  # fmt: skip
        """One line, its name at its end; `dots`: single values beside it."""
        spots = [(self.x(x), self.y(y)) for x, y in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        self.parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>'
        )
        self.parts += [
            f'<circle cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="2.5" fill="{colour}" '
            'fill-opacity="0.5"/>'
            for x, y in dots
        ]
        if name:
            self.text(spots[-1][0] + 10, spots[-1][1] + 4, name, "start", colour)

    def band(self, begin: float, end: float, name: str) -> None:
        """From here to there something was different."""
        x, width = self.x(begin), max(2.0, self.x(end) - self.x(begin))
        height = self.height - self.top - self.bottom
        self.parts.append(
            f'<rect x="{x:.1f}" y="{self.top}" width="{width:.1f}" height="{height}" '
            'fill="#f3d6d6"/>'
        )
        self.text(x, self.top - 6, name, "start", "#a33")

    def svg(self, command: str) -> str:
        """The picture; `command`, which made it, is written into it."""
        return "\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}">',
            f"<desc>{escape(command)}</desc>",
            '<rect width="100%" height="100%" fill="white"/>',
            '<g font-family="sans-serif" font-size="12">',
            f'<text x="{self.left}" y="22" font-size="14">{escape(self.title)}</text>',
            *self.parts, "</g>", "</svg>", "",
        ])  # fmt: skip
