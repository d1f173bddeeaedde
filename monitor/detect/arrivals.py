"""Who comes late to collectives, by flight records and each rank's own clock. Pure.

Theory of operation. Between two exits of the same collective every member experiences the same time
(all leave it within moments of each other), so stretches between common collectives can be compared
without common clocks. A rank is busy in the part of such a stretch that it does not spend inside
collectives. A late comer is busy long and inside briefly; its peers wait inside for it
(ALGORITHMS.md section 6). P is the share of a collective's lost time that is late arrival; the rest
is the transfer (`cohort.late_share`). The ring's times are those of the calls; NCCL's are those at
which its watchdog saw them, to about 0.1 s. Collectives launched with async_op=True hold nobody
while the rank keeps working, so the ring's entries for them are left out.

Finding suspects costs nothing: heads at every poll show who is mostly outside collectives while its
peers are mostly inside.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any, Final

import numpy as np

from lightkeeper.monitor.model import cohort
from lightkeeper.monitor.model.names import RankName
from lightkeeper.monitor.records.dump import read_dump
from lightkeeper.monitor.records.job import NONE, Backend
from lightkeeper.monitor.records.safe_pickle import FlightRecordError
from lightkeeper.monitor.records.signature import POINT_TO_POINT, op_name
from lightkeeper.worker_server.wire import FlightRecord

_POLLS: Final = 20
"""Polls that a share outside collectives is computed from: standard error 0.11 at most."""
_POLLS_LEAST: Final = 15
_OUTSIDE: Final = 0.6
"""Share of polls outside that makes a suspect, if the median of its peers is 0.25 lower."""
_LOWER: Final = 0.25
_CHUNKS: Final = 8
"""Stretches of a record's common collectives; their median counts, so one pause is no pace."""
_COMMON_LEAST: Final = 17
_COMMON_MOST: Final = 400
_RECENT_S: Final = 30.0
"""Older entries of a record are no evidence for now. Shorter: few steps of a slow job."""
_READINGS_KEPT: Final = 12
_NCCL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Arrival:
    busy_s: float
    """Median own seconds between two common collectives."""
    low_s: float
    """Only 3 of 10 stretches are lower."""
    inside_s: float
    """Mean seconds inside a collective."""
    usual_s: float
    """Median busy seconds of the others."""
    z: float


@dataclass(frozen=True, slots=True)
class CohortReading:
    """What the records of one cohort, read at about the same time, show."""

    at_s: float
    process_group: str
    collectives: int
    period_s: float
    """Seconds from one common collective to the next."""
    late: float | None
    """P, the median over collectives that lost time; None when none did."""
    resolution_s: float
    """0: the calls' own times."""
    arrivals: Mapping[RankName, Arrival]


@dataclass(slots=True)
class ArrivalBook:
    """Recent polls, and readings of each cohort; bounded."""

    readings: dict[str, deque[CohortReading]] = field(default_factory=dict)
    calm_s: dict[str, float] = field(default_factory=dict)
    """Cohort -> when the polls last showed nobody late in it."""
    _polls: dict[RankName, deque[bool]] = field(default_factory=dict)

    def poll(self, outside: Mapping[RankName, bool]) -> None:
        """Take in one sweep: who was in no collective. Absent ranks are forgotten."""
        self._polls = {
            rank: self._polls.get(rank) or deque(maxlen=_POLLS) for rank in sorted(outside)
        }
        for rank, out in outside.items():
            self._polls[rank].append(out)

    def suspects(self, ranks: Sequence[RankName]) -> bool:
        """True if one rank of this cohort is mostly outside while the others are not."""
        polls = [self._polls.get(rank, ()) for rank in ranks]
        if len(ranks) < 2 or any(len(outside) < _POLLS_LEAST for outside in polls):
            return False
        shares = np.array([sum(outside) / len(outside) for outside in polls])
        late = shares >= _OUTSIDE
        return bool(late.any() and (late & (shares - cohort.usual(shares) >= _LOWER)).any())

    def forget(self) -> None:
        """A rank came or went: earlier observations belong to another fleet."""
        self.readings.clear()
        self._polls.clear()

    def take(
        self, key: str, at_s: float, records: Mapping[RankName, FlightRecord], *, apart_s: float
    ) -> None:
        """Read the records of one cohort, unless that was done less than `apart_s` ago."""
        before = self.readings.get(key)
        if before and at_s - before[-1].at_s < apart_s:
            return
        if (reading := read_cohort(at_s, records)) is not None:
            self.readings.setdefault(key, deque(maxlen=_READINGS_KEPT)).append(reading)


_Place = tuple[str, int]
"""Process group (and quorum), sequence id."""
_Spans = Mapping[_Place, tuple[float, float]]
"""When one rank entered and left each collective."""


def read_cohort(at_s: float, records: Mapping[RankName, FlightRecord]) -> CohortReading | None:
    """What these records show together; None when they have too little in common."""
    spans: dict[RankName, _Spans] = {}
    resolution_s = 0.0
    for rank, record in sorted(records.items()):
        nccl = _nccl(record)
        resolution_s = max(resolution_s, _NCCL_S if nccl else 0.0)
        spans[rank] = nccl or _ring(record)
    if len(spans) < 2:
        return None
    first = next(iter(spans.values()))
    places = sorted(set.intersection(*map(set, spans.values())))  # that all ranks left
    of_group = (list(group) for _, group in groupby(places, key=itemgetter(0)))
    groups = [_recent(group, first) for group in of_group]
    common = max(groups, key=len, default=[])
    if len(common) < _COMMON_LEAST:
        return None
    rows = [_stretches(one_rank, common) for one_rank in spans.values()]
    busy = np.array([own_s for own_s, _ in rows]).T  # stretches x ranks
    period_s = float(np.median([between_s for _, between_s in rows]))
    middle = np.median(busy, axis=0)
    low = np.quantile(busy, 0.3, axis=0, method="lower")
    usual, scores = cohort.usual(middle), cohort.z_scores(middle, low)
    inside = _inside(spans.values(), common)
    arrivals = {
        rank: Arrival(
            busy_s=float(middle[place]),
            low_s=float(low[place]),
            inside_s=float(inside[:, place].mean()),
            usual_s=float(usual[place]),
            z=float(scores[place]),
        )
        for place, rank in enumerate(spans)
    }
    losses = [_late(_inside(spans.values(), group), period_s) for group in groups]
    (late, _), most = max(zip(losses, groups, strict=True), key=lambda loss: loss[0][1])
    return CohortReading(at_s, most[0][0], len(most), period_s, late, resolution_s, arrivals)


def _ring(record: FlightRecord) -> _Spans:
    return {
        (f"{entry.group}@{entry.quorum}", entry.seq): (-entry.enter_age_s, -entry.exit_age_s)
        for entry in record.ring
        if entry.exit_age_s is not None
        and entry.error is None
        and not entry.is_async
        and op_name(entry.op) not in POINT_TO_POINT
    }


def _nccl(record: FlightRecord) -> _Spans:
    """Spans on the GPU, as the watchdog saw them; empty if torch's records have none."""
    spans: dict[_Place, tuple[float, float]] = {}
    for _, part in record.parts:
        try:
            dump = None if part.record is None else read_dump(part.record)
        except FlightRecordError:
            continue
        if dump is None or dump.backend is not Backend.NCCL:
            continue
        names = ("group", "seq", "started_ns", "completed_ns", "p2p")
        columns: list[list[Any]] = [dump.columns[name].tolist() for name in names]
        spans |= {
            (dump.groups[group].name, seq): (start / 1e9, end / 1e9)
            for group, seq, start, end, p2p in zip(*columns, strict=True)
            if NONE not in (start, end) and not p2p
        }
    return spans


def _recent(places: list[_Place], spans: _Spans) -> list[_Place]:
    """Those of the last half minute, or more if a reading needs more."""
    since_s = spans[places[-1]][1] - _RECENT_S
    recent = sum(spans[place][1] >= since_s for place in places)
    return places[-max(recent, _COMMON_LEAST) :][-_COMMON_MOST:]


def _inside(spans: Iterable[_Spans], common: Sequence[_Place]) -> cohort.Floats:
    """Seconds inside each of these collectives: a row per collective, a column per rank."""
    return np.array(
        [[one_rank[place][1] - one_rank[place][0] for one_rank in spans] for place in common]
    )


def _stretches(spans: _Spans, common: Sequence[_Place]) -> tuple[list[float], float]:
    """Own seconds per collective in each stretch, and the seconds from one to the next."""
    ordered = sorted(spans.values())
    enters = np.array([enter_s for enter_s, _ in ordered])
    edges = np.linspace(0, len(common) - 1, _CHUNKS + 1).astype(int)
    own: list[float] = []
    for first, last in pairwise(edges.tolist()):
        begin, end = spans[common[first]][1], spans[common[last]][1]
        within = ordered[int(np.searchsorted(enters, begin)) : int(np.searchsorted(enters, end))]
        covered = _covered((max(enter, begin), min(leave, end)) for enter, leave in within)
        own.append(max(0.0, end - begin - covered) / (last - first))
    span_s = spans[common[-1]][1] - spans[common[0]][1]
    return own, span_s / (len(common) - 1)


def _covered(intervals: Iterable[tuple[float, float]]) -> float:
    """Length of the union of intervals in order of their beginnings."""
    total_s, until = 0.0, float("-inf")
    for begin, end in intervals:
        total_s += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total_s


def _late(inside: cohort.Floats, period_s: float) -> tuple[float | None, float]:
    """P over the collectives that lost more than 3 MAD and 5 % of the period, and the sum lost."""
    most, least = inside.max(axis=1), inside.min(axis=1)
    base = float(np.median(least))
    noise = 3 * float(np.median(np.abs(least - base)))
    lost = most - base > max(noise, 0.05 * period_s)
    if not lost.any():
        return None, 0.0
    share = float(np.median(cohort.late_share(inside[lost], np.array(base))))
    return share, float((most - base)[lost].sum())
