"""`python -m tests.sim.plot RUNS.jsonl OUT.svg`: what a monitor costs, as a picture.

Each line of the file is what `python -m tests.sim` printed.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any, Final

WIDTH, HEIGHT, LEFT, FOOT = 720, 380, 70, 50
_COST: Final = "#1f6feb"
_MEMORY: Final = "#bf5b04"


def main() -> int:
    """Both curves over the number of ranks, each axis logarithmic: a straight line is linear."""
    source, target = map(Path, sys.argv[1:3])
    runs = [json.loads(line) for line in source.read_text().splitlines()]
    runs.sort(key=lambda run: run["ranks"])
    cost = [(run["ranks"], run["cores"] * run["tick_s"]) for run in runs]
    memory = [(run["ranks"], run["peak_mib"]) for run in runs]
    parts = [*_axes(), *_curve(cost, _COST, 0.01, "CPU seconds a tick"),
             *_curve(memory, _MEMORY, 10.0, "MiB at the most")]  # fmt: skip
    target.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="12">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>{"".join(parts)}</svg>\n'
    )
    return 0


def _x(ranks: float) -> float:
    """100 to 100,000."""
    return LEFT + (math.log10(ranks) - 2) / 3 * (WIDTH - 2 * LEFT)


def _y(value: float, least: float) -> float:
    """Three powers of ten from the least."""
    return HEIGHT - FOOT - (math.log10(value / least)) / 3 * (HEIGHT - 2 * FOOT)


def _axes() -> list[str]:
    made = []
    for power in range(2, 6):
        x = _x(10**power)
        made.append(f'<path d="M{x:.0f} {FOOT}V{HEIGHT - FOOT}" stroke="#ddd"/>')
        made.append(_text(x, HEIGHT - FOOT + 18, f"{10**power:,} ranks"))
    for power in range(4):
        y = _y(10.0**power, 1.0)
        made.append(f'<path d="M{LEFT} {y:.0f}H{WIDTH - LEFT}" stroke="#ddd"/>')
        made.append(_text(LEFT - 30, y + 4, f"{0.01 * 10**power:g} s", _COST))
        made.append(_text(WIDTH - LEFT + 34, y + 4, f"{10 * 10**power:,} MiB", _MEMORY))
    return made


def _curve(points: list[tuple[int, float]], colour: str, least: float, name: str) -> list[str]:
    spots = [(_x(ranks), _y(value, least)) for ranks, value in points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
    made: list[Any] = [
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
    ]
    made += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in spots]
    x, y = spots[0]
    return [*made, _text(x + 60, y + 20, name, colour)]


def _text(x: float, y: float, words: str, colour: str = "#333") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="middle" fill="{colour}">{words}</text>'


if __name__ == "__main__":
    sys.exit(main())
