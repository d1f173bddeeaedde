"""A rank that died of what another group called (class H2 across replica groups).

Gloo ends a rank whose neighbour sends more or less than it expects: who dies has met the mismatch,
and need not have made it. The records of the ranks that share the process group tell what each has
called there; those of the dead are in its black box. Asked for at such a death alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from monitor.analysis.finding import Fault
from monitor.detectors.recorded import across, lane, sure, unread
from monitor.detectors.signature import of_peers
from monitor.detectors.verdict import Kind, Verdict
from monitor.detectors.wording import groups_of
from monitor.history import History, RankTrack
from monitor.names import RankName

_MOST = 64
"""Ranks of a lane whose records are asked for."""


def differing_across(history: History) -> tuple[Verdict, ...]:
    """At most one verdict for each lane: its records are read once, however many died of them."""
    last = {track.identity.group_rank: track for track in _torn(history)}
    judged = (_judge(history, track) for track in last.values())
    return tuple(verdict for verdict in judged if verdict is not None)


def wanted(history: History) -> tuple[RankName, ...]:
    """Ranks whose records would tell, if they have not been read since the death."""
    return tuple(
        rank
        for track in _torn(history)
        for rank in unread(history, lane(history, track.identity.group_rank), _died_s(track))
    )


def _torn(history: History) -> Iterable[RankTrack]:
    """Dead ranks whose exception speaks of others, with ranks of other groups to compare."""
    for track in history.present():
        report = track.report
        if report is None or report.process.alive or report.ending is None:
            continue
        said = report.ending.exception
        others = len(lane(history, track.identity.group_rank))
        if said is not None and of_peers(said) and 1 < others <= _MOST:
            yield track


def _died_s(track: RankTrack) -> float:
    return track.seen_s if track.died_s is None else track.died_s


def _judge(history: History, dead: RankTrack) -> Verdict | None:
    tracks = lane(history, dead.identity.group_rank)
    said = across(history, tracks, _died_s(dead))
    if said is None:
        return None
    here = {track.rank for track in tracks}
    for one in said.findings:
        culprits = said.names(one.culprits)
        if one.kind is Fault.MISMATCH and sure(one) and set(culprits) <= here:
            return Verdict(
                kind=Kind.MISMATCH,
                culprits=culprits,
                groups=groups_of(culprits),
                reason=f"{one.reason} {dead.rank} died of it",
                confidence=one.confidence,
                since_s=_died_s(dead),
                victims=tuple(sorted(here - set(culprits))),
                evidence={**one.evidence, "source": "flight records across groups"},
                signature=f"mismatch:across:{one.op}",
                settled=True,
            )
    return None
