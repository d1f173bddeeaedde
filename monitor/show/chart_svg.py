"""Charts of the job's pace, of its ranks and of one rank's steps, as paths for SVG. Pure.

A column is one unit wide, an SVG 100 high, and the page stretches it (templates/charts.html). What
nobody measured is a gap, and a job that stood is a zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final

from lightkeeper.monitor.decide.tempo import Tempo
from lightkeeper.monitor.model.incident import Incident
from lightkeeper.monitor.model.names import RankName
from lightkeeper.monitor.model.run import RESOLUTIONS, TrendPoint
from lightkeeper.monitor.model.units import grouped, natural, span
from lightkeeper.monitor.model.wording import title_of
from lightkeeper.worker_server.wire import StepRow

_COLUMNS, _MARKS, _APART = 120, 40, 0.85
_Rates = tuple[float, float]
_SLOW: Final = 1.25
"""Times the median of the ranks' own work: it stands out."""
_PHASES: Final = 7
"""Most phases with a colour of their own; the others share one."""


@dataclass(frozen=True, slots=True)
class Chart:
    columns: int
    most: float
    """The value at the top."""
    paths: Mapping[str, str]
    """Class of a shape -> its path."""
    hits: Sequence[str]
    """What the pointer reads over each column."""
    marks: Sequence[tuple[Incident, float, float, str]] = ()
    """Incident, where its fault begins, how wide it is, a title."""
    began_s: float | None = None
    width_s: float = 0.0
    says: str = ""
    legend: tuple[tuple[str, str], ...] = ()
    """Class of a shape, and what it stands for."""


def _bar(x: int, bottom: float, top: float, width: float = 1) -> str:
    """A column between two heights of 0 to 100."""
    return f"M{x} {100 - bottom:.4g}V{100 - top:.4g}h{width:g}V{100 - bottom:.4g}z"


def _bars(tops: Iterable[tuple[int, float]]) -> str:
    return "".join(_bar(x, 0, top) for x, top in tops)


# -- the pace over an hour, a day or a week --------------------------------------------------------


def pace_chart(
    trend: Mapping[str, Sequence[TrendPoint]], incidents: Iterable[Incident], now_s: float,
    name: str = "1h",
) -> Chart | None:  # fmt: skip
    """Steps a second: the mean of each column, and the lowest within it; None: nothing is known."""
    every_s, kept = RESOLUTIONS[name]
    width_s = every_s * -(-kept // _COLUMNS)
    columns = round(every_s * kept / width_s)
    began_s = (now_s // width_s + 1 - columns) * width_s
    rates = _rates(trend.get(name, ()), began_s, width_s)
    if not rates:
        return None
    most = max(mean for mean, _ in rates.values()) or 1.0
    paths = {
        "mean": _bars((x, 100 * mean / most) for x, (mean, _) in rates.items()),
        "low": _bars((x, 100 * low / most) for x, (_, low) in rates.items()),
        "still": _bars((x, 3) for x, (_, low) in rates.items() if not low),
        "gap": _bars((x, 100) for x in range(columns) if x not in rates),
    }
    hits = [_rate(*rates[x]) if x in rates else "not seen" for x in range(columns)]
    marks = list(_marks(incidents, began_s, now_s, width_s))
    return Chart(columns, most, paths, hits, marks, began_s, width_s)


def _rates(points: Iterable[TrendPoint], began_s: float, width_s: float) -> dict[int, _Rates]:
    """Column -> its mean rate, and its lowest."""
    columns = grouped(
        (int((point.at_s - began_s) // width_s), (point.rate, point.low or 0.0))
        for point in points
        if point.rate is not None and point.at_s >= began_s
    )
    return {x: (fmean(r for r, _ in rates), min(low for _, low in rates))
            for x, rates in columns.items()}  # fmt: skip


def _rate(mean: float, low: float) -> str:
    lowest = f", at the lowest {low:.3g}" if low < 0.9 * mean else ""
    return f"{mean:.3g} steps a second{lowest}"


def _marks(
    incidents: Iterable[Incident], began_s: float, now_s: float, width_s: float
) -> Iterable[tuple[Incident, float, float, str]]:
    fired = (incident for incident in incidents if incident.milestones.firing_s is not None)
    shown = [incident for incident in fired if (incident.ended_s or now_s) >= began_s]
    for incident in shown[:_MARKS]:
        first_s, last_s, bad = incident.began_s, incident.ended_s or now_s, incident.severity
        x = max(0.0, (first_s - began_s) / width_s)
        width, goes_on = max(0.5, (last_s - began_s) / width_s - x), " so far" * incident.open
        title = f"{bad}: {title_of(incident)}, {span(max(0.0, last_s - first_s))}{goes_on}"
        yield incident, round(x, 2), round(width, 2), title


def run_chart(points: Sequence[TrendPoint]) -> Chart | None:
    """Steps a second of a run, in 60 columns; None: less than two paces are known."""
    paces = [(point.at_s, 1 / point.step_s) for point in points if point.step_s]
    if len(paces) < 2:
        return None
    most, began_s = max(pace for _, pace in paces), points[0].at_s
    span_s = max(1.0, points[-1].at_s - began_s)
    columns = grouped((int(59 * (at_s - began_s) / span_s), pace) for at_s, pace in paces)
    low = _bars((x, 100 * median(paces) / most) for x, paces in columns.items())
    return Chart(60, most, {"low": low}, ())


# -- a step of each rank --------------------------------------------------------------------------


def tempo_chart(tempos: Mapping[RankName, Tempo]) -> Chart | None:
    """Seconds a step by rank: own work below, waiting above it. If several ranks share a column, it
    shows the busiest; None: fewer than two ranks move.
    """
    ranks = sorted(tempos, key=natural)
    if len(ranks) < 2:
        return None
    share = -(-len(ranks) // _COLUMNS)
    parts = (ranks[start : start + share] for start in range(0, len(ranks), share))
    some = [max(part, key=lambda rank: tempos[rank].busy_s) for part in parts]
    most = max(max(tempo.step_s, tempo.busy_s) for tempo in tempos.values()) or 1.0
    usual_s = median(tempo.busy_s for tempo in tempos.values())
    slow = {rank for rank in some if tempos[rank].busy_s > _SLOW * usual_s > 0}
    paths = {"wait": "", "busy": "", "slow": ""}
    for x, rank in enumerate(some):
        busy, step = (100 * s / most for s in (tempos[rank].busy_s, tempos[rank].step_s))
        paths["slow" if rank in slow else "busy"] += _bar(x, 0, busy, _APART)
        paths["wait"] += _bar(x, busy, max(busy, step), _APART)
    works = "{}: {:.3g} s of own work, {:.3g} s of waiting a step".format
    hits = [works(r, tempos[r].busy_s, tempos[r].rest_s) + ", slow" * (r in slow) for r in some]
    first = max(some, key=lambda rank: tempos[rank].busy_s)
    says = f"{first} works longest: {tempos[first].busy_s:.3g} s a step, the median {usual_s:.3g} s"
    return Chart(len(some), most, paths, hits, says=says if slow else "all are about even")


# -- the steps of one rank ------------------------------------------------------------------------


def phase_chart(rows: Sequence[StepRow]) -> Chart | None:
    """A bar for each of the last attempts, by seconds in phases; None: none, or without phases."""
    rows = [row for row in rows if row.seconds][-_COLUMNS:]
    total = grouped((phase, s) for row in rows for phase, s in row.seconds.items() if s > 0)
    names = sorted(total, key=lambda phase: -sum(total[phase]))
    if not names:
        return None
    style = {name: f"p{min(number, _PHASES)}" for number, name in enumerate(names)}
    most = max(sum(row.seconds.values()) for row in rows)
    paths: dict[str, str] = dict.fromkeys(style.values(), "")
    for x, row in enumerate(rows):
        bottom = 0.0
        for name in names:
            top = bottom + 100 * row.seconds.get(name, 0.0) / most
            paths[style[name]] += _bar(x, bottom, top, _APART) if top > bottom else ""
            bottom = top
    legend = [(style[name], name) for name in names[: _PHASES + 1]]
    if len(names) > _PHASES + 1:
        legend[-1] = (f"p{_PHASES}", "others")
    return Chart(len(rows), most, paths, [*map(_step, rows)], legend=tuple(legend))


def _step(row: StepRow) -> str:
    longest = sorted(row.seconds, key=lambda phase: -row.seconds[phase])[:_PHASES]
    parts = ", ".join(f"{phase} {row.seconds[phase]:.3g} s" for phase in longest)
    return f"step {row.step}{', not committed' * (not row.committed)}: {parts}"
