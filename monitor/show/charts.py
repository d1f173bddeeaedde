"""Small charts of the page, as SVG within it: no script, no library, colours from the style sheet.

Only attributes are used, no style: the page's policy allows none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from monitor.decide.rank_seconds import EVERY_S, TrendPoint
from monitor.model.incident import Incident

WIDTH: Final = 240
HEIGHT: Final = 36
_GAP: Final = 3 * EVERY_S
"""Points further apart are not joined: nobody looked in between."""
_MARKS: Final = 40


@dataclass(frozen=True, slots=True)
class Mark:
    """An incident on a chart."""

    x: float
    width: float
    incident: str
    critical: bool


@dataclass(frozen=True, slots=True)
class Spark:
    """One small line, and where incidents were while it was drawn."""

    name: str
    lines: tuple[str, ...]
    """Points of a `polyline` each."""
    marks: tuple[Mark, ...]
    most: float
    """The value at its top."""
    span_s: float
    """From its left end to its right."""


Values = Sequence[tuple[float, float | None]]
"""Moments and what was measured; None: nothing was."""


def sparks(points: Sequence[TrendPoint], incidents: Sequence[Incident]) -> tuple[Spark, ...]:
    """Pace, and committed steps a minute: of three points, each with two values that are known."""
    if len(points) < 3:
        return ()
    pace = [(one.at_s, 1 / one.step_s if one.step_s else None) for one in points]
    commits: list[tuple[float, float | None]] = []
    for before, after in pairwise(points):
        passed_s = after.at_s - before.at_s
        made = None
        if after.step is not None and before.step is not None and passed_s <= _GAP:
            made = 60 * max(0, after.step - before.step) / passed_s  # it may begin anew
        commits.append((after.at_s, made))
    charts = {"steps a second": pace, "commits a minute": commits}
    told = {name: each for name, each in charts.items() if sum(v is not None for _, v in each) > 1}
    began_s, span_s = points[0].at_s, points[-1].at_s - points[0].at_s
    marks = tuple(_marks(incidents, began_s, span_s))
    return tuple(_spark(name, each, marks, began_s, span_s) for name, each in told.items())


def _marks(incidents: Sequence[Incident], began_s: float, span_s: float) -> Iterator[Mark]:
    for one in incidents[:_MARKS]:
        end_s = began_s + span_s if one.ended_s is None else one.ended_s
        first_s = one.milestones.first_seen_s
        if began_s <= end_s and first_s <= began_s + span_s:
            x = _x(max(first_s, began_s), began_s, span_s)
            width = _x(min(end_s, began_s + span_s), began_s, span_s) - x
            yield Mark(x, max(1.5, round(width, 1)), one.id, one.severity == "critical")


def _spark(
    name: str, values: Values, marks: tuple[Mark, ...], began_s: float, span_s: float
) -> Spark:
    most = max((value for _, value in values if value is not None), default=0.0)
    lines: list[list[str]] = [[]]
    last_s = began_s
    for at_s, value in values:
        if value is None or at_s - last_s > _GAP:
            lines.append([])
        last_s = at_s
        if value is not None:
            y = HEIGHT - 2 - (HEIGHT - 4) * (value / most if most else 0.0)
            lines[-1].append(f"{_x(at_s, began_s, span_s):g},{y:.1f}")
    return Spark(name, tuple(" ".join(one) for one in lines if len(one) > 1), marks, most, span_s)


def _x(at_s: float, began_s: float, span_s: float) -> float:
    return round(WIDTH * (at_s - began_s) / span_s, 1)
