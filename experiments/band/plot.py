"""The loss of three runs as an SVG: what evictions change, beside what another seed changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from experiments.band import judge

_WIDTH: Final = 860
_HEIGHT: Final = 460
_LEFT: Final = 60
_RIGHT: Final = 20
_TOP: Final = 50
_BOTTOM: Final = 50
_COLOURS: Final = ("#1f77b4", "#d62728", "#9e9e9e")


def draw(runs: Sequence[Mapping[str, Any]], command: str) -> str:
    """One line a run, smoothed; a band where a group was away. `command` is written into it."""
    lines = [judge.smoothed(dict(run["loss"])) for run in runs]
    last = max(max(line) for line in lines)
    low = min(min(line.values()) for line in lines)
    high = max(max(line.values()) for line in lines)

    def at(step: float, loss: float) -> tuple[float, float]:
        x = _LEFT + (_WIDTH - _LEFT - _RIGHT) * step / last
        y = _TOP + (_HEIGHT - _TOP - _BOTTOM) * (high - loss) / (high - low)
        return round(x, 1), round(y, 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}">',
        f"<desc>{escape(command)}</desc>",
        '<rect width="100%" height="100%" fill="white"/>',
        '<g font-family="sans-serif" font-size="12">',
        (
            f'<text x="{_LEFT}" y="20" font-size="14">Loss, mean of {judge.WINDOW} committed steps '
            "(nats a byte): 2 groups x 2 ranks, FSDP2 and TorchFT</text>"
        ),
    ]
    for eviction in (eviction_row for run in runs for eviction_row in run["evictions"]):
        x, _ = at(eviction["at"], high)
        width = max(2.0, at(eviction["back"], high)[0] - x)
        parts.append(
            f'<rect x="{x}" y="{_TOP}" width="{width:.1f}" height="{_HEIGHT - _TOP - _BOTTOM}" '
            f'fill="#f3d6d6"/><text x="{x}" y="{_TOP - 6}" fill="#a33">{eviction["kind"]}</text>'
        )
    parts += _axes(at, last, low, high)
    for number in (2, 0, 1):  # what is compared lies on top
        points = " ".join(f"{x},{y}" for x, y in (at(*pair) for pair in lines[number].items()))
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{_COLOURS[number]}" '
            'stroke-width="1.6"/>'
        )
    for number, run in enumerate(runs):
        y = _TOP + 20 + 18 * number
        parts.append(
            f'<rect x="{_WIDTH - 260}" y="{y - 9}" width="18" height="4" '
            f'fill="{_COLOURS[number]}"/><text x="{_WIDTH - 236}" y="{y - 3}">'
            f"{escape(run['run'])}</text>"
        )
    y = _TOP + 20 + 18 * len(runs)
    parts.append(
        f'<rect x="{_WIDTH - 260}" y="{y - 13}" width="18" height="12" fill="#f3d6d6"/>'
        f'<text x="{_WIDTH - 236}" y="{y - 3}">a group is sick, evicted, away</text>'
    )
    return "\n".join([*parts, "</g>", "</svg>", ""])


def _axes(at: Any, last: int, low: float, high: float) -> list[str]:
    bottom = _HEIGHT - _BOTTOM
    parts = [
        f'<path d="M{_LEFT} {_TOP}V{bottom}H{_WIDTH - _RIGHT}" fill="none" stroke="#333"/>',
        f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 12}" text-anchor="middle">committed step</text>',
    ]
    for step in range(0, last + 1, 50):
        x, _ = at(step, low)
        parts.append(f'<text x="{x}" y="{bottom + 18}" text-anchor="middle">{step}</text>')
    tick = round(low + 0.05, 1)
    while tick <= high:
        _, y = at(0, tick)
        parts.append(
            f'<path d="M{_LEFT - 4} {y}h4" stroke="#333"/>'
            f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{tick:.1f}</text>'
        )
        tick += 0.2
    return parts
