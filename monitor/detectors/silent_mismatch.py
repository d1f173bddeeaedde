"""Mismatches that hang nothing (class H2): the numbers are wrong and training goes on.

Gloo moves bytes: a rank that sums the same bytes as integers where its peers sum floats stops
nobody (ALGORITHMS.md section 4). No suspicion leads there, so the records of small groups are read
in turn, one group a tick at most, and what all of a group completed is compared by the analysis. A
group whose sum is not finite though its parts were comes first.

Such a call is the program's, and an eviction would not take it back: it is shown, nobody goes.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Final

from monitor.analysis.finding import Confidence, Fault, Finding
from monitor.detectors.not_finite import spells
from monitor.detectors.recorded import Opinion, opinion, sure
from monitor.detectors.verdict import Kind, Verdict
from monitor.detectors.waits import WaitGraph
from monitor.flight_recorder.job import NONE
from monitor.history import History, RankTrack
from monitor.names import GroupName, RankName

LARGEST: Final = 8
"""Ranks of a group that is sampled: a tick parses and compares some 4,096 calls of each."""
_TOLD_TICKS: Final = 3.5
"""A fresh reading speaks for so many ticks: enough sweeps to fire, few analyses."""
_SPARE: Final = (
    "nothing hangs, and a group that is put out would do the same again: look at the call"
)


def silent_mismatch(history: History) -> tuple[Verdict, ...]:
    """At most one verdict for each replica group whose records were just read."""
    found: dict[GroupName, Verdict] = {}
    for group, members in history.groups().items():
        if _just_read(history, members):
            verdict = _judge(history, group)
            if verdict is not None:
                found[group] = verdict
    return tuple(found[group] for group in sorted(found))


def sampled_records(history: History, graph: WaitGraph) -> tuple[RankName, ...]:
    """Ranks of the one healthy group whose turn it is to have its flight records read; sorted."""
    if not history.config.sample_s or graph.suspects:
        return ()
    spoilt = _spoilt_since(history)
    late = {
        group: _late_s(history, members, spoilt.get(group, inf))
        for group, members in history.groups().items()
        if _calm(history, members)
    }
    latest = max(late, key=lambda group: (late[group], group), default=None)
    if latest is None or late[latest] < 0:
        return ()
    return tuple(sorted(track.rank for track in history.groups()[latest]))


def _late_s(history: History, members: tuple[RankTrack, ...], spoilt_s: float) -> float:
    """Seconds since a group's records were due; at once when they are older than `spoilt_s`."""
    if max(_age_s(history, track) for track in members) > spoilt_s:
        return inf
    return max(_age_s(history, track) - history.sample_after_s(track) for track in members)


def _spoilt_since(history: History) -> Mapping[GroupName, float]:
    """Groups whose sum of finite numbers was not finite, and for how many seconds: read at once."""
    return {
        one.group: history.now_s - one.since_s
        for one in spells(history)
        if one.spoilt.where == "group"
    }


def _calm(history: History, members: tuple[RankTrack, ...]) -> bool:
    whole = 1 < len(members) == members[0].identity.world_size <= LARGEST
    return whole and all(history.participating(track) for track in members)


def _age_s(history: History, track: RankTrack) -> float:
    age_s = history.record_age_s(track.rank)
    return inf if age_s is None or history.record(track) is None else age_s


def _just_read(history: History, members: tuple[RankTrack, ...]) -> bool:
    config = history.config
    if not config.sample_s or not 1 < len(members) <= LARGEST:
        return False
    if any(track.stall_s >= config.stall_floor_s / 2 for track in members):
        return False  # read on a suspicion: others judge that
    oldest_s = max(_age_s(history, track) for track in members)
    return oldest_s <= _TOLD_TICKS * config.tick_s


def _judge(history: History, group: GroupName) -> Verdict | None:
    said = opinion(history, group)
    if said is None:
        return None
    for one in said.findings:
        since_s = _since_s(said, one) if one.kind is Fault.SILENT_MISMATCH else None
        if since_s is not None and history.now_s - since_s <= 2 * history.config.sample_s:
            return _verdict(group, said, one, since_s)
    return None


def _since_s(said: Opinion, found: Finding) -> float | None:
    """When it was called, by the clock of the monitor; None when the records do not say."""
    columns = said.job.columns
    calls = (columns["group"] == found.group) & (columns["seq"] == found.sequence)
    times = [ns for ns in columns["created_ns"][calls].tolist() if ns != NONE]
    return min(times) / 1e9 if times else None


def _verdict(group: GroupName, said: Opinion, found: Finding, since_s: float) -> Verdict:
    between = tuple(rank for side in found.between for rank in side)
    culprits = said.names(found.culprits) or said.names(between)
    label = "?" if found.group is None else said.job.groups[found.group].label
    return Verdict(
        kind=Kind.MISMATCH,
        culprits=culprits,
        groups=(group,),
        reason=found.reason,
        confidence=found.confidence if sure(found) else Confidence.UNSURE,
        since_s=since_s,
        evidence=dict(found.evidence),
        signature=f"mismatch:silent:{label}:{found.op}",
        spare=_SPARE,
    )
