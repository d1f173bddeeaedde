"""Inconsistent collectives (class H2): all entered, not the same thing (ALGORITHMS.md 4).

Theory of operation. Phase 1, on ring heads: a collective is suspicious, see `suspicion`. Phase 2,
on flight records of those ranks and of a few in other groups: who called something else
(`differing_call`), or a call too many or too few (`uneven_call`). Last, the whole records of the
group are asked for a second opinion, which may narrow the verdict or make it unsure.
"""

from __future__ import annotations

from dataclasses import replace

from monitor.analysis.finding import Fault
from monitor.detectors.differing_call import differing_call
from monitor.detectors.recorded import opinion, sure
from monitor.detectors.suspicion import Scene, scenes
from monitor.detectors.uneven_call import uneven_call
from monitor.detectors.verdict import Confidence, Kind, Verdict
from monitor.detectors.waits import WaitGraph
from monitor.detectors.wording import listed
from monitor.history import History
from monitor.names import GroupName

_KINDS = (Fault.MISMATCH, Fault.SKIPPED, Fault.EXTRA)


def mismatch(history: History, graph: WaitGraph) -> tuple[Verdict, ...]:
    """At most one verdict for each replica group, on the flight records at hand."""
    found: dict[GroupName, Verdict] = {}
    for scene in scenes(history, graph):
        if scene.group in found:
            continue
        judge = _by_torchs_records if scene.recorded else _by_the_ring
        verdict = judge(history, graph, scene)
        if verdict is not None:
            found[scene.group] = verdict
    return tuple(found[group] for group in sorted(found))


def _by_the_ring(history: History, graph: WaitGraph, scene: Scene) -> Verdict | None:
    records = {
        rank: record
        for rank in scene.members
        if (record := history.record(history.tracks[rank])) is not None
    }
    judge = uneven_call if scene.ahead else differing_call
    verdict = judge(history, graph, scene, records)
    return None if verdict is None else _with_second_opinion(history, verdict, scene.group)


def _by_torchs_records(history: History, graph: WaitGraph, scene: Scene) -> Verdict | None:
    """What the analysis says of a collective that no ring knows, once all have been read."""
    ages_s = [history.record_age_s(track.rank) for track in history.groups()[scene.group]]
    said = opinion(history, scene.group)
    if said is None or any(age_s is None or age_s >= scene.stall_s for age_s in ages_s):
        return None
    found = next((one for one in said.findings if one.kind in _KINDS), None)
    if found is None:
        return None
    between = tuple(rank for side in found.between for rank in side)
    culprits = said.names(found.culprits) or said.names(between) or scene.members
    return Verdict(
        kind=Kind.MISMATCH,
        culprits=culprits,
        groups=(scene.group,),
        reason=found.reason,
        confidence=found.confidence,
        since_s=history.now_s - scene.stall_s,
        victims=tuple(sorted({*graph.victims(scene.members), *scene.members} - set(culprits))),
        evidence=found.evidence,
        signature=f"mismatch:{scene.process_group}:{found.op}",
    )


def _with_second_opinion(history: History, verdict: Verdict, group: GroupName) -> Verdict | None:
    """The same verdict, unless the group's whole records contradict it, or know what it does not.

    The scene is one collective and the habit at its place; the records hold every process group.
    None when they show a circle, which is the deadlock detector's to tell.
    """
    said = opinion(history, group)
    if said is None:
        return verdict
    unsure = verdict.confidence is Confidence.UNSURE
    if unsure and any(one.kind is Fault.ORDER_INVERSION for one in said.findings):
        return None
    findings = [one for one in said.findings if one.kind in _KINDS]
    named = {rank for one in findings if sure(one) for rank in said.names(one.culprits)}
    if not named or named == set(verdict.culprits):
        return verdict
    if unsure and named < set(verdict.culprits):
        found = next(one for one in findings if sure(one))
        return replace(
            verdict,
            culprits=tuple(sorted(named)),
            victims=tuple(sorted({*verdict.victims, *verdict.culprits} - named)),
            confidence=found.confidence,
            reason=found.reason,
        )
    if named & set(verdict.culprits):
        return verdict
    both = tuple(sorted(named | set(verdict.culprits)))
    return replace(
        verdict,
        culprits=both,
        victims=tuple(rank for rank in verdict.victims if rank not in both),
        confidence=Confidence.UNSURE,
        reason=f"{verdict.reason}; but by all their records it is {listed(tuple(sorted(named)))}: "
        "cannot tell",
    )
