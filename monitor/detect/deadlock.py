"""Deadlocks: every member of a replica group waits inside of collectives, and nothing moves.

Theory of operation. The wait-for graph has no root then: nobody is alone, dead or unseen. Whether
the members wait for each other in a circle (order inversion), for a send that nobody receives, or
are all inside the same collective (class H3) is told by their flight records, see `recorded`.
Inconsistent calls are the mismatch detector's; they too can stand in a circle, and explain it.

Of those all inside the same collective the records may name the rank whose GPU is behind, and of a
circle who called out of order. Where they do not, it is still the group that is stuck, as long as
it is the only one and all others are seen waiting for it. Then the group is accused as a whole,
once it lasts longer than any healthy collective. Two stuck groups are "cannot tell": they may share
a switch.
"""

from __future__ import annotations

from typing import Final

from monitor.detect.history import History
from monitor.detect.recorded import Opinion, opinion, sure
from monitor.detect.track import INSIDE
from monitor.detect.waits import Stuck, WaitGraph
from monitor.model.names import GroupName, RankName
from monitor.model.verdict import Confidence, Kind, RankStanding, Verdict
from monitor.records.findings import Fault, Finding

_KINDS: Final = (
    Fault.ORDER_INVERSION, Fault.POINT_TO_POINT, Fault.GPU_BEHIND, Fault.STUCK_INSIDE,
    Fault.TIMED_OUT,
)  # fmt: skip
_THE_GROUPS: Final = (
    Fault.STUCK_INSIDE, Fault.TIMED_OUT, Fault.POINT_TO_POINT, Fault.ORDER_INVERSION,
)  # fmt: skip
"""Told of a group where no rank of it can be told."""
_EXCUSES: Final = (RankStanding.DEAD, RankStanding.SILENT)


def deadlock(history: History, graph: WaitGraph) -> tuple[Verdict, ...]:
    """At most one verdict for each replica group, on the flight records at hand."""
    if graph.suspects or any(standing in _EXCUSES for standing in graph.standing.values()):
        return ()
    found: dict[GroupName, Verdict] = {}
    for stuck in graph.stuck:
        if stuck.group not in found and _patient(history, stuck):
            verdict = _judge(history, graph, stuck)
            if verdict is not None:
                found[stuck.group] = verdict
    return tuple(found[group] for group in sorted(found))


def _patient(history: History, stuck: Stuck) -> bool:
    allowed_s = max(history.hang_after_s(history.tracks[rank]) for rank in stuck.joined)
    usual_s = max(usual_inside_s(history, rank) for rank in stuck.joined)
    patient_s = allowed_s * history.config.unwitnessed_factor
    enough_s = max(allowed_s, history.config.stuck_inside_s)
    return stuck.stall_s >= max(min(patient_s, enough_s), usual_s)


def usual_inside_s(history: History, rank: RankName) -> float:
    """Twice the longest that a collective all were in has lasted in this job."""
    role = history.tracks[rank].identity.group_rank
    known = history.habits.learned(role, INSIDE, history.now_s, None)
    return 0.0 if known is None else history.config.habit_factor * known.span_s


def _group_alone(history: History, graph: WaitGraph, stuck: Stuck) -> bool:
    """Whether this group is stuck for long, no other is, and all of the others wait for it."""
    longest_s = history.config.stuck_inside_s
    others = [track for track in history.present() if track.group != stuck.group]
    still_s = history.config.stall_floor_s / 2
    return (
        stuck.stall_s >= longest_s
        and bool(others)
        and {one.group for one in graph.stuck if one.stall_s >= still_s} == {stuck.group}
        and all(
            graph.standing[track.rank] is RankStanding.WAITING and track.stall_s >= still_s
            for track in others
            if track.participating or not track.phased
        )
        and any(graph.standing[track.rank] is RankStanding.WAITING for track in others)
    )


def _judge(history: History, graph: WaitGraph, stuck: Stuck) -> Verdict | None:
    members = tuple(track.rank for track in history.groups()[stuck.group])
    if any(graph.standing[rank] is not RankStanding.HELD for rank in members):
        return None
    ages_s = [history.record_age_s(rank) for rank in members]
    if any(age_s is None or age_s >= stuck.stall_s for age_s in ages_s):
        return None  # a record from before the stall shows another moment
    said = opinion(history, stuck.group)
    if said is None:
        return None
    if not said.findings or any(one.kind not in _KINDS for one in said.findings):
        return None  # nothing, or another detector's
    first = min(said.findings, key=lambda one: _KINDS.index(one.kind))
    return _verdict(history, graph, stuck, said, first)


def _verdict(
    history: History, graph: WaitGraph, stuck: Stuck, said: Opinion, found: Finding
) -> Verdict:
    members = tuple(track.rank for track in history.groups()[stuck.group])
    culprits = said.involved(found) or members
    track = history.tracks[culprits[0]]
    confidence, reason = found.confidence if sure(found) else Confidence.UNSURE, found.reason
    if not sure(found) and found.kind in _THE_GROUPS and _group_alone(history, graph, stuck):
        confidence, culprits = Confidence.LIKELY, members
        reason = (
            f"{reason} Every other group waits for {stuck.group}, so it is in this group, "
            "whichever of its ranks."
        )
    return Verdict(
        kind=Kind.DEADLOCK,
        culprits=culprits,
        groups=(stuck.group,),
        reason=reason,
        confidence=confidence,
        since_s=(history.now_s if track.report_s is None else track.report_s) - stuck.stall_s,
        victims=tuple(sorted({*graph.victims(culprits), *members} - set(culprits))),
        evidence=dict(found.evidence)
        | {"source": f"flight records, found by heads at {history.config.tick_s:g} s polls"},
        signature=f"deadlock:{found.kind}:{stuck.process_group}:{'/'.join(stuck.ops)}",
    )
