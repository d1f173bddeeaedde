"""Hangs that phases do not show (classes H1 and H2): heads point, records decide.

Theory of operation. Heads at every tick show who is missing (`outside`). They do not show every
wait: DDP's reducer calls collectives from C++. So the records of the group are asked for once the
rank has stood still for half the floor, and judged by the analysis that also judges dumps: what it
names is accused. They are asked for as well where a whole group stands still and no head shows a
wait: then it is they that point, see `recorded_wait`. Where they have nothing to say, because the
wait lies between replica groups, stacks are the witness: those missing ranks are accused that stand
at one place of their own. Without any a single missing rank is accused, and several of one group
are "cannot tell".
"""

from __future__ import annotations

from collections.abc import Iterable

from monitor.analysis.finding import Fault, Finding
from monitor.detectors.patience import works
from monitor.detectors.recorded import Opinion, opinion, sure
from monitor.detectors.recorded_wait import MISSING
from monitor.detectors.sentence import hangs, waits_for
from monitor.detectors.signature import of_hang
from monitor.detectors.verdict import Confidence, Kind, Verdict
from monitor.detectors.waits import Standing, WaitGraph, patience
from monitor.detectors.wording import listed, seconds
from monitor.history import History, RankTrack
from monitor.names import GroupName, RankName
from worker_server.wire import Doing

_MISMATCHED = (Fault.MISMATCH, Fault.SKIPPED, Fault.EXTRA)


def unphased(history: History, graph: WaitGraph) -> tuple[Verdict, ...]:
    """At most one verdict for each replica group that misses a rank without phases."""
    by_group: dict[GroupName, list[RankTrack]] = {}
    for rank in graph.roots:
        if graph.standing[rank] is Standing.OUTSIDE:
            track = history.tracks[rank]
            by_group.setdefault(track.group, []).append(track)
    judged = (_judge(history, graph, group, roots) for group, roots in by_group.items())
    return tuple(verdict for verdict in judged if verdict is not None)


def wanted(history: History, graph: WaitGraph) -> tuple[RankName, ...]:
    """Ranks whose records would tell whether those missing are to blame; sorted."""
    groups = set(graph.quiet) | {
        history.tracks[rank].group
        for rank in graph.suspects
        if graph.standing[rank] is Standing.OUTSIDE
    }
    members = (history.groups().get(group, ()) for group in sorted(groups))
    return tuple(track.rank for group in members for track in _unread(history, group))


def _unread(history: History, members: Iterable[RankTrack]) -> list[RankTrack]:
    """Members without a record of this stall; when all have one, those whose is due again.

    Only so many are read in a tick: in a large group the first would be due before the last was.
    """
    there = [track for track in members if track.fresh is not None]
    lacking = [track for track in there if not _has(history, track, track.stall_s)]
    repeat_s = history.config.record_repeat_s
    return lacking or [track for track in there if not _has(history, track, repeat_s)]


def _has(history: History, track: RankTrack, within_s: float) -> bool:
    age_s = history.record_age_s(track.rank)
    return history.answer(track) is not None and age_s is not None and age_s <= within_s


def _judge(  # noqa: PLR0911 - one source of evidence after another
    history: History, graph: WaitGraph, group: GroupName, roots: list[RankTrack]
) -> Verdict | None:
    still_s = min(track.stall_s for track in roots)
    ages_s = [history.record_age_s(track.rank) for track in history.groups()[group]]
    read = all(age_s is not None and age_s <= still_s for age_s in ages_s)
    said = opinion(history, group) if read else None
    names = tuple(track.rank for track in roots)
    told = None if said is None else _told(said, names)
    young = still_s < history.config.long_phase_budget_s
    at_work = tuple(track.rank for track in roots if young and works(track))
    if told is not None and not (told[0].kind in MISSING and set(told[1]) <= set(at_work)):
        finding, culprits = told
        kind = Kind.MISMATCH if finding.kind in _MISMATCHED else Kind.NOT_ENTERED
        return _verdict(
            history, graph, roots, culprits,
            confidence=finding.confidence, kind=kind, records=finding,
        )  # fmt: skip
    if said is not None and _names_another(said, names):
        return None  # it is given its time still, and these may wait for it
    if at_work:
        budget = seconds(history.config.long_phase_budget_s)
        spare = f"the kernel sees {listed(at_work)} at work there, which may take {budget}"
        return _verdict(history, graph, roots, at_work, confidence=Confidence.UNSURE, spare=spare)
    seen = tuple(track.rank for track in roots if _stands(track))
    if seen:
        return _verdict(history, graph, roots, seen, confidence=Confidence.LIKELY)
    if _may_wait_for_others(history, graph, group, names):
        return None
    if said is None:
        patient_s = max(patience(history, graph, track).span_s for track in roots)
        if still_s < history.config.unwitnessed_factor * patient_s:
            return None
        doubt = "; its records cannot be read, so it may wait where heads do not show it"
        return _verdict(history, graph, roots, names, confidence=Confidence.UNSURE, doubt=doubt)
    if said.findings:
        between = tuple(r for one in said.findings for side in one.between for r in side)
        culprits = said.names(between) or names
        return _verdict(
            history, graph, roots, culprits, confidence=Confidence.UNSURE, records=said.findings[0]
        )
    if any(set(names) & set(stuck.absent) for stuck in graph.stuck):
        return None  # the records do not show what heads do: something still moves
    alone = Confidence.LIKELY if len(names) == 1 else Confidence.UNSURE
    return _verdict(history, graph, roots, names, confidence=alone)


def _names_another(said: Opinion, names: tuple[RankName, ...]) -> bool:
    """Whether the records accuse a rank that is no root (yet)."""
    accused = (said.names(one.culprits) for one in said.findings if sure(one))
    return any(set(culprits) - set(names) for culprits in accused)


def _may_wait_for_others(
    history: History, graph: WaitGraph, group: GroupName, names: tuple[RankName, ...]
) -> bool:
    """Whether another rank of the group stands outside of what it is seen waiting in as well.

    A wait inside of a backward pass looks like work: who computes may wait for that one.
    """
    outside = (Standing.OUTSIDE, Standing.UNKNOWN, Standing.TRACED)
    return any(
        graph.standing[track.rank] in outside
        and track.rank not in names
        and track.stall_s >= history.config.stall_floor_s / 2
        for track in history.groups()[group]
    )


def _stands(track: RankTrack) -> bool:
    """Whether its stacks show it at one place of its own, where it waits for no other rank.

    One that computes is no such witness: another rank of its group may wait for it, or it for them
    in a backward pass, and the stack of Python looks the same.
    """
    witness = track.witness
    return witness is not None and witness.doing not in (Doing.UNKNOWN, Doing.COLLECTIVE)


def _told(
    said: Opinion, names: tuple[RankName, ...]
) -> tuple[Finding, tuple[RankName, ...]] | None:
    """Whom the records accuse; None when they accuse nobody, or contradict the heads."""
    for one in said.findings:
        if sure(one) and one.kind in (*MISSING, *_MISMATCHED):
            culprits = said.names(one.culprits)
            if one.kind in _MISMATCHED or set(culprits) <= set(names):
                return one, culprits
    return None


def _verdict(
    history: History,
    graph: WaitGraph,
    roots: list[RankTrack],
    culprits: tuple[RankName, ...],
    *,
    confidence: Confidence,
    doubt: str = "",
    kind: Kind = Kind.NOT_ENTERED,
    records: Finding | None = None,
    spare: str = "",
) -> Verdict:
    tracks = [history.tracks[rank] for rank in culprits if rank in history.tracks] or roots
    names = tuple(track.rank for track in tracks)
    waiting = tuple(
        rank
        for rank in graph.victims((*culprits, *(t.rank for t in roots)))
        if rank not in culprits
    )
    still_s = min(track.stall_s for track in roots)
    if kind is Kind.MISMATCH and records is not None:
        reason = records.reason
    else:
        reason = f"{hangs(history, tracks, graph.standing, still_s)}; "
        reason += waits_for(history, waiting, names) + doubt
    stacked = records is None and any(_stands(track) for track in tracks)
    allowed = max((patience(history, graph, t) for t in roots), key=lambda one: one.span_s)
    polls = f"heads at {history.config.tick_s:g} s polls"
    silent = graph.by_records.issuperset(culprits)
    found = "read because all of the group stood still" if silent else f"found by {polls}"
    also = {} if records is None else dict(records.evidence)
    return Verdict(
        kind=kind,
        culprits=culprits,
        groups=(roots[0].group,),
        reason=reason,
        confidence=confidence,
        since_s=min((t.report_s or t.seen_s) - t.stall_s for t in roots),
        victims=waiting,
        evidence=also
        | ({} if records is None else {"records": records.reason})
        | {
            "source": f"flight records, {found}" if records is not None
            else f"stacks from outside, {found}" if stacked else polls,
            "threshold": str(allowed),
        },
        signature=f"{kind.value}:{culprits[0]}:{roots[0].doing}"
        if kind is Kind.MISMATCH else of_hang(tracks),
        spare=spare,
    )  # fmt: skip
