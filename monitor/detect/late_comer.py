"""Slow ranks of a job that reports no phases (class S1): late at every collective.

Theory of operation. Heads at polls raise suspicion, flight records of the cohort decide, see
`arrivals`. A cohort is the same group rank in the other replica groups; in a job of one group it is
the group, provided that every collective of it includes all ranks: with smaller process groups or
sends the ranks have roles that nobody reports (a heavier pipeline stage is no fault). The same rank
has to be late in several consecutive readings, ten seconds apart; in a cohort under 4 in more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from lightkeeper.monitor.detect.arrivals import Arrival, CohortReading
from lightkeeper.monitor.detect.history import History
from lightkeeper.monitor.model import cohort
from lightkeeper.monitor.model.names import RankName
from lightkeeper.monitor.model.verdict import Confidence, Kind, Verdict
from lightkeeper.monitor.model.wording import does, seconds

_SHARE_OF_PERIOD = 0.1
"""Least excess, as a share of the time between two collectives."""
_READINGS = 3
_READINGS_SMALL = 5
_AGE = 3.0
"""Readings older than this multiple of `record_repeat_s` are no evidence for now."""
_ALMOST = 2 / 3
"""Ranks at least this share as busy as the busiest are also late."""


def late_comer(history: History) -> Iterable[Verdict]:
    """Ranks that have been late for several readings; one verdict for each cohort."""
    for key, members in history.cohorts():
        yield from _judge(history, members, list(history.arrivals.readings.get(key, ())))


def late_records(history: History) -> tuple[RankName, ...]:
    """Ranks of cohorts in which a rank seems late, every `record_repeat_s`; sorted."""
    return tuple(
        sorted(
            rank
            for _, members in history.cohorts()
            if history.arrivals.suspects(members)
            for rank in members
            if history.record_age_s(rank) >= history.config.record_repeat_s
        )
    )


def _judge(
    history: History, members: Sequence[RankName], readings: Sequence[CohortReading]
) -> Iterable[Verdict]:
    needed = _READINGS if len(members) >= cohort.SMALL else _READINGS_SMALL
    last = readings[-needed:]
    newest_s = _AGE * history.config.record_repeat_s
    if len(last) < needed or history.now_s - last[-1].at_s > newest_s:
        return
    late = [_late(history, reading) for reading in last]
    culprits = tuple(rank for rank in late[-1] if all(rank in ranks for ranks in late))
    if culprits and not history.disturbed:
        yield _verdict(history, culprits, readings, last)


def _late(history: History, reading: CohortReading) -> tuple[RankName, ...]:
    """Ranks that are late in one reading, those about as busy as the busiest; sorted."""
    if reading.late is None or reading.late < 0.5:
        return ()  # the transfer is what takes long
    slow = {
        rank: arrival
        for rank, arrival in reading.arrivals.items()
        if _slow(history, reading, arrival)
    }
    most_s = max((arrival.busy_s for arrival in slow.values()), default=0.0)
    return tuple(
        sorted(rank for rank, arrival in slow.items() if arrival.busy_s >= _ALMOST * most_s)
    )


def _slow(history: History, reading: CohortReading, arrival: Arrival) -> bool:
    coarse = arrival.busy_s - arrival.usual_s <= 2 * reading.resolution_s
    return not coarse and bool(
        cohort.slower(
            arrival.low_s,
            arrival.usual_s,
            step=reading.period_s,
            score=arrival.z,
            members=len(reading.arrivals),
            ratio=history.config.straggler_ratio,
            share=_SHARE_OF_PERIOD,
            least_score=history.config.straggler_z,
        )
    )


def _verdict(
    history: History,
    culprits: tuple[RankName, ...],
    readings: Sequence[CohortReading],
    last: Sequence[CohortReading],
) -> Verdict:
    reading = last[-1]
    worst = max(culprits, key=lambda rank: (reading.arrivals[rank].busy_s, rank))
    arrival = reading.arrivals[worst]
    since_s = _since_s(history, worst, readings)
    excess = median(
        [1 - earlier.arrivals[worst].usual_s / earlier.arrivals[worst].busy_s for earlier in last]
    )
    peers = len(reading.arrivals) - 1
    group = reading.process_group.partition("@")[0]
    resolution = "times of the calls"
    if reading.resolution_s:
        resolution = f"times seen by NCCL's watchdog, to about {reading.resolution_s:g} s"
    return Verdict(
        kind=Kind.STRAGGLER,
        culprits=culprits,
        reason=f"{does(culprits, 'comes')} late to the collectives of "
        f"{group!r}: {seconds(arrival.busy_s)} of work between two where {peers} "
        f"{'peer takes' if peers == 1 else 'peers take'} {seconds(arrival.usual_s)} and "
        f"{'waits' if peers == 1 else 'wait'} inside, in {len(last)} records on end",
        confidence=Confidence.LIKELY if len(culprits) == 1 else Confidence.UNSURE,
        since_s=since_s,
        victims=tuple(rank for rank in reading.arrivals if rank not in culprits),
        evidence={
            rank: f"busy {reading.arrivals[rank].busy_s:.4f} s, inside "
            f"{reading.arrivals[rank].inside_s:.4f} s a collective"
            for rank in reading.arrivals
        }
        | {
            "slow at": "its own work: no phases are reported",
            "late arrival": f"P {reading.late or 0.0:.2f} over {reading.collectives} collectives",
            "source": f"flight records, {resolution}; suspected by heads at "
            f"{history.config.tick_s:g} s polls",
        },
        lost_s=excess * (history.now_s - since_s),
        signature=f"straggler:{worst}",
    )


def _since_s(history: History, rank: RankName, readings: Sequence[CohortReading]) -> float:
    since_s = readings[-1].at_s
    for reading in reversed(readings):
        if rank not in _late(history, reading):
            break
        since_s = reading.at_s
    return since_s
