"""Everybody waits across replica groups, and nobody is missing (class H3 between groups).

Theory of operation. When every rank of every group waits for the others and nothing moves, no group
has evidence against it by phases or heads. The records of one rank of each group may name the one
whose GPU or link is behind: then its group is accused. Otherwise all groups tie; that is told,
without accusing anybody, for a wrong guess would evict a sound group and leave the fault in. Who
has not entered is the heads' to say (`outside`): in a new quorum it may still take the weights.
"""

from __future__ import annotations

from statistics import median_low

from monitor.analysis.finding import Fault, Finding
from monitor.detectors.recorded import across, sure
from monitor.detectors.verdict import Confidence, Kind, Verdict
from monitor.detectors.waits import Standing, WaitGraph
from monitor.detectors.wording import groups_of, seconds
from monitor.history import History, RankTrack
from monitor.names import RankName


def all_wait(history: History, graph: WaitGraph) -> tuple[Verdict, ...]:
    """At most one verdict; without culprits where the groups tie."""
    still_s = _still_s(history, graph)
    if still_s is None or still_s < history.config.unwitnessed_factor * _hang_after_s(history):
        return ()
    ranks = history.present()
    culprits: tuple[RankName, ...] = ()
    source = f"phases and heads at {history.config.tick_s:g} s polls"
    named = _named(history, still_s)
    if named is None:
        reason = (
            f"all {len(ranks)} ranks of {len(history.groups())} groups wait for each other across "
            f"groups for {seconds(still_s)} and nobody is missing: the network, the Lighthouse, or "
            "a GPU; nothing tells whose"
        )
        confidence, evidence = Confidence.UNSURE, {"source": source}
    else:
        finding, culprits = named
        reason, confidence = finding.reason, finding.confidence
        evidence = {**finding.evidence, "source": f"flight records, found by {source}"}
    groups = groups_of(culprits)
    return (
        Verdict(
            kind=Kind.DEADLOCK,
            culprits=culprits,
            groups=groups,
            reason=reason,
            confidence=confidence,
            since_s=history.now_s - still_s,
            victims=tuple(track.rank for track in ranks if track.rank not in culprits),
            evidence=evidence,
            signature=f"deadlock:across:{'/'.join(groups)}",
        ),
    )


def wanted(history: History, graph: WaitGraph) -> tuple[RankName, ...]:
    """One rank of each group, when all wait and nobody is missing; sorted."""
    still_s = _still_s(history, graph)
    if still_s is None or still_s < _hang_after_s(history):
        return ()
    return tuple(
        track.rank
        for track in _lane(history)
        if (age_s := history.record_age_s(track.rank)) is None
        or age_s > min(still_s, history.config.record_repeat_s)
    )


def _hang_after_s(history: History) -> float:
    """Of them all: they step together, and one may have learned from a start that was slow."""
    spans = [history.hang_after_s(track) for track in history.present()]
    return median_low(spans) if spans else 0.0


def _still_s(history: History, graph: WaitGraph) -> float | None:
    """How long all have waited across groups at least; None when somebody does not."""
    tracks = history.present()
    alone = len(history.groups()) < 2
    away = history.away is not None or history.unfollowed() is not None  # `lighthouse_away` tells
    if alone or away or history.unseen_s:  # somebody may be missing
        return None
    if any(graph.standing[track.rank] is not Standing.WAITING for track in tracks):
        return None
    if any(history.starting(t) or (t.step is not None and t.step.healing) for t in tracks):
        return None
    return min((track.stall_s for track in tracks), default=None)


def _lane(history: History) -> tuple[RankTrack, ...]:
    """The first rank of each group."""
    return tuple(members[0] for members in history.groups().values())


def _named(history: History, still_s: float) -> tuple[Finding, tuple[RankName, ...]] | None:
    """Whom the records across groups accuse, when it is one group; None otherwise."""
    lane = _lane(history)
    said = across(history, lane, history.now_s - still_s)
    if said is None:
        return None
    here = {track.rank for track in lane}
    found = [
        (one, said.names(one.culprits))
        for one in said.findings
        if sure(one) and one.kind is Fault.GPU_BEHIND
    ]
    found = [(one, names) for one, names in found if set(names) <= here]
    groups = {group for _, names in found for group in groups_of(names)}
    return found[0] if len(groups) == 1 else None
