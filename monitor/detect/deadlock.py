"""Deadlocks: a replica group, all groups, or the job stands still, and no rank alone causes it.

Theory of operation, for a group whose members all wait inside collectives. The wait-for graph has
no root then: no rank is alone, dead or unseen. Whether the members wait for each other in a cycle
(order inversion), for a send that nobody receives, or are all inside the same collective (class H3)
is shown by their flight records, see `recorded`. Inconsistent calls are the mismatch detector's;
they too can form a cycle, and explain it.

If all are inside the same collective, the records may name the rank whose GPU is behind; for a
cycle, the rank that called out of order. If they name none, the group is still stuck, as long as it
is the only one and all others are seen waiting for it. Then the group is accused as a whole, once
it lasts longer than any healthy collective. With two stuck groups the verdict is "cannot tell":
they may share a switch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median_low
from typing import Final

from lightkeeper.monitor.detect.graph import Stuck, WaitGraph
from lightkeeper.monitor.detect.history import History
from lightkeeper.monitor.detect.patience import BLOCKS, allowance, at_work, out_of_sight, works_long
from lightkeeper.monitor.detect.recorded import Opinion, due, opinion, opinion_across
from lightkeeper.monitor.detect.track import INSIDE, RankTrack
from lightkeeper.monitor.detect.wording import hidden_errors, what_they_do, where_they_wait
from lightkeeper.monitor.model.names import GroupName, RankName
from lightkeeper.monitor.model.verdict import Confidence, Kind, RankStanding, Verdict
from lightkeeper.monitor.model.wording import groups_of, listed, seconds
from lightkeeper.monitor.records.findings import Fault, Finding
from lightkeeper.worker_server.wire import Doing

_KINDS: Final = (
    Fault.ORDER_INVERSION, Fault.POINT_TO_POINT, Fault.GPU_BEHIND, Fault.STUCK_INSIDE,
    Fault.TIMED_OUT,
)  # fmt: skip
_THE_GROUPS: Final = (
    Fault.STUCK_INSIDE, Fault.TIMED_OUT, Fault.POINT_TO_POINT, Fault.ORDER_INVERSION,
)  # fmt: skip
"""Reported for a group if none of its ranks can be named."""
_CIRCLES: Final = (Fault.ORDER_INVERSION, Fault.POINT_TO_POINT)
_EXCUSES: Final = (RankStanding.DEAD, RankStanding.SILENT)


def deadlock(history: History, graph: WaitGraph) -> Iterable[Verdict]:
    """Groups that stand still in a circle or in one collective, by the flight records at hand. One
    verdict for each replica group.
    """
    verdicts: dict[GroupName, Verdict] = {}
    for circle in graph.circles:
        group = history.tracks[circle[0]].group
        if group not in verdicts and (verdict := _circle(history, graph, circle)) is not None:
            verdicts[group] = verdict
    if graph.suspects or any(standing in _EXCUSES for standing in graph.standing.values()):
        return verdicts.values()
    for stuck in (*graph.stuck, *graph.quiet):
        if stuck.group not in verdicts and _patient(history, stuck):
            verdict = _judge(history, graph, stuck)
            if verdict is not None:
                verdicts[stuck.group] = verdict
    return verdicts.values()


def _circle(history: History, graph: WaitGraph, circle: tuple[RankName, ...]) -> Verdict | None:
    """A circle that the records of its group confirm; None: not now."""
    tracks = [history.tracks[rank] for rank in circle]
    still_s = min(track.stall_s for track in tracks)
    if still_s < max(history.hang_after_s(track) for track in tracks):
        return None
    said = opinion(history, tracks[0].group, within_s=still_s)
    for finding in said.findings:
        if finding.kind in _CIRCLES and set(said.involved(finding)) & set(circle):
            stuck = next(s for s in graph.stuck if set(s.joined) & set(circle))
            return _verdict(history, graph, stuck, said, finding)
    return None


def _patient(history: History, stuck: Stuck) -> bool:
    allowed_s = max(history.hang_after_s(history.tracks[rank]) for rank in stuck.joined)
    usual_s = max(usual_inside_s(history, rank) for rank in stuck.joined)
    patient_s = allowed_s * history.config.unwitnessed_factor
    enough_s = max(allowed_s, history.config.stuck_inside_s)
    return stuck.stall_s >= max(min(patient_s, enough_s), usual_s)


def usual_inside_s(history: History, rank: RankName) -> float:
    """Twice the longest duration of a collective with all ranks inside, in this job."""
    role = history.tracks[rank].identity.group_rank
    usual = history.habits.learned(role, INSIDE, history.now_s)
    return 0.0 if usual is None else history.config.habit_factor * usual.span_s


def _group_alone(history: History, graph: WaitGraph, stuck: Stuck) -> bool:
    """True if this group has long been stuck, no other is, and all others wait for it."""
    longest_s = history.config.stuck_inside_s
    others = [track for track in history.present() if track.group != stuck.group]
    still_s = history.still_after_s
    return (
        stuck.stall_s >= longest_s
        and bool(others)
        and {other.group for other in graph.stuck if other.stall_s >= still_s} == {stuck.group}
        and all(
            graph.standing[track.rank] is RankStanding.WAITING and track.stall_s >= still_s
            for track in others
            if track.participating or not track.phased
        )
        and any(graph.standing[track.rank] is RankStanding.WAITING for track in others)
    )


def _judge(history: History, graph: WaitGraph, stuck: Stuck) -> Verdict | None:
    members = tuple(track.rank for track in history.groups()[stuck.group])
    held = all(graph.standing[rank] is RankStanding.HELD for rank in members)
    if not held and stuck not in graph.quiet:
        return None
    said = opinion(history, stuck.group, within_s=stuck.stall_s)
    if not said.findings or any(f.kind not in _KINDS for f in said.findings):
        return None  # nothing, or another detector's
    first = min(said.findings, key=lambda finding: _KINDS.index(finding.kind))
    return _verdict(history, graph, stuck, said, first)


def _verdict(
    history: History, graph: WaitGraph, stuck: Stuck, said: Opinion, finding: Finding
) -> Verdict:
    members = tuple(track.rank for track in history.groups()[stuck.group])
    circle = finding.kind is Fault.POINT_TO_POINT and not finding.culprits
    involved = said.involved(finding) or members
    culprits = () if circle else involved
    track = history.tracks[involved[0]]
    confidence, reason = finding.confidence, finding.reason
    if not finding.culprits and finding.kind in _THE_GROUPS and _group_alone(history, graph, stuck):
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
        brief=""
        if culprits
        else f"{listed(involved)} wait for each other in a circle of sends and receives",
        victims=tuple(sorted({*graph.victims(involved), *members} - set(culprits))),
        evidence=dict(finding.evidence)
        | {"source": f"flight records, found by heads at {history.config.tick_s:g} s polls"},
        signature=f"deadlock:{finding.kind}:{stuck.process_group}:{'/'.join(stuck.ops)}",
    )


# -- all wait ----------------------------------------------------------------------------------


def all_wait(history: History, graph: WaitGraph) -> Iterable[Verdict]:
    """All ranks wait across replica groups, and nobody is missing (class H3 between groups).
    Accuses nobody if the groups tie.

    Theory of operation. When every rank of every group waits for the others and nothing moves,
    phases and heads show no evidence against any group. The records of one rank of each group may
    name the one whose GPU or link is behind: then its group is accused. Otherwise all groups tie;
    that is reported without accusing anybody, for a wrong guess would evict a sound group and leave
    the fault in. Which rank has not entered is for the heads to say (`outside`): in a new quorum it
    may still take the weights.
    """
    still_s = _still_s(history, graph)
    if still_s is None or still_s < history.config.unwitnessed_factor * _hang_after_s(history):
        return
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
    yield Verdict(
        kind=Kind.DEADLOCK,
        culprits=culprits,
        groups=groups,
        reason=reason,
        confidence=confidence,
        since_s=history.now_s - still_s,
        victims=tuple(track.rank for track in ranks if track.rank not in culprits),
        evidence=evidence,
        signature=f"deadlock:across:{'/'.join(groups)}",
    )


def across_records(history: History, graph: WaitGraph) -> tuple[RankName, ...]:
    """One rank of each group, when all wait and nobody is missing; sorted."""
    still_s = _still_s(history, graph)
    if still_s is None or still_s < _hang_after_s(history):
        return ()
    return due(history, _lane(history), still_s)


def _hang_after_s(history: History) -> float:
    """Median over all: they step together, and one may have learned from a slow start."""
    spans = [history.hang_after_s(track) for track in history.present()]
    return median_low(spans) if spans else 0.0


def _still_s(history: History, graph: WaitGraph) -> float | None:
    """Least time that all have waited across groups; None when a rank does not."""
    tracks = history.present()
    alone = len(history.groups()) < 2
    away = history.away is not None or history.unfollowed() is not None  # `lighthouse_away` says
    if alone or away or history.unseen_s:  # a rank may be missing
        return None
    if any(graph.standing[track.rank] is not RankStanding.WAITING for track in tracks):
        return None
    if not all(t.voted for t in tracks):
        return None
    if any(history.starting(t) or (t.step is not None and t.step.healing) for t in tracks):
        return None
    if any(map(history.unregistered, history.groups())):
        return None
    return min((track.stall_s for track in tracks), default=None)


def _lane(history: History) -> tuple[RankTrack, ...]:
    """The first rank of each group."""
    return tuple(members[0] for members in history.groups().values())


def _named(history: History, still_s: float) -> tuple[Finding, tuple[RankName, ...]] | None:
    """The ranks that records across groups accuse, if of one group; None otherwise."""
    lane = _lane(history)
    said = opinion_across(history, lane, history.now_s - still_s)
    lane_ranks = {track.rank for track in lane}
    accused = [
        (finding, names)
        for finding, names in said.accusing
        if finding.kind is Fault.GPU_BEHIND and set(names) <= lane_ranks
    ]
    groups = {group for _, names in accused for group in groups_of(names)}
    return accused[0] if len(groups) == 1 else None


# -- standstill --------------------------------------------------------------------------------

STANDSTILL = "standstill"
_SHOWN: Final = 4
_STANDS = (RankStanding.WAITING, RankStanding.HELD, RankStanding.LEFT)


def standstill(history: History, graph: WaitGraph) -> Iterable[Verdict]:
    """The job stands still and no culprit is known: that is reported, and nobody is accused.

    Theory of operation. A rank waits for longer than any known pause of this job, nobody has moved
    meanwhile, and no other detector reports it (the pipeline drops this one when another fault
    stands). The activity of each rank not seen waiting is reported, as far as known. What a rank
    has declared, or the job has shown before, is given its time, and so is a start while nobody has
    trained. If nobody waits, all may pause; but when stacks show all of them blocked, such as on a
    file server that is away for all, that is reported too, after half as much again.
    """
    waiting = _all_standing(history, graph)
    if waiting is None:
        return
    others = [t for t in _alive(history, graph) if graph.standing[t.rank] not in _STANDS]
    standing = waiting or others
    still_s = min(track.stall_s for track in standing)
    trained = any(track.voted and not history.starting(track) for track in standing)
    committed_s = max((t.last_commit_s or 0.0 for t in history.present()), default=0.0)
    if still_s < _least_still_s(history, standing, waits=bool(waiting)):
        return
    if history.now_s - committed_s < still_s or any(_excused(history, t, trained) for t in others):
        return
    yield Verdict(
        kind=Kind.DEADLOCK,
        reason=f"the job stands: no progress for {seconds(still_s)}; cannot tell who holds it: "
        + _what_all_do(history, waiting, others),
        since_s=history.now_s - still_s,
        victims=tuple(track.rank for track in standing),
        evidence={"source": f"waits and stacks, seen at {history.config.tick_s:g} s polls"},
        signature=STANDSTILL,
    )


def _alive(history: History, graph: WaitGraph) -> list[RankTrack]:
    dead = RankStanding.DEAD
    return [track for track in history.present() if graph.standing[track.rank] is not dead]


def _all_standing(history: History, graph: WaitGraph) -> list[RankTrack] | None:
    """The ranks that wait, where no rank that waits has moved lately; none wait, but stacks show
    all blocked: empty. None: the job does not stand, or its Lighthouse is away.
    """
    moved = (t for t in history.present() if t.stall_s < history.config.standstill_s)
    if any(graph.standing[t.rank] in _STANDS for t in moved):  # the usual case
        return None
    alive = _alive(history, graph)
    if not alive or history.away is not None or history.unfollowed() is not None:
        return None
    waiting = [track for track in alive if graph.standing[track.rank] in _STANDS]
    return waiting if waiting or all(map(_blocked, alive)) else None


def _blocked(track: RankTrack) -> bool:
    """A compilation in which nothing is computed waits for the lock of another one."""
    doing = Doing.UNKNOWN if track.witness is None else track.witness.doing
    return doing in BLOCKS or (doing is Doing.COMPILE and not at_work(track))


def _least_still_s(history: History, standing: Sequence[RankTrack], *, waits: bool) -> float:
    """How long these must have stood: longer than any pause known of this job."""
    config = history.config
    return max(
        config.standstill_s * (1 if waits else 1.5),
        config.unwitnessed_factor * max(history.hang_after_s(track) for track in standing),
        *(usual_inside_s(history, track.rank) for track in standing),
    )


def _what_all_do(
    history: History, waiting: Sequence[RankTrack], others: Sequence[RankTrack]
) -> str:
    does = hidden_errors((*waiting, *others)) + where_they_wait(waiting) + what_they_do(others)
    clauses = does[:_SHOWN]
    if len(does) > _SHOWN:
        clauses.append("and others elsewhere")
    fell = history.fell_since(history.now_s - max(t.stall_s for t in waiting or others))
    if fell:
        ended = f"a process of {listed(fell)} ended meanwhile: some may wait for it"
        return "; ".join([*clauses, ended])
    unknown = [name for group in history.groups() for name in history.unregistered(group)]
    if unknown:
        clauses.append(f"nothing is known of {listed(unknown)}: no WorkerServer is registered")
    return "; ".join(clauses if others or unknown else [*clauses, "nobody is missing"])


def _excused(history: History, track: RankTrack, trained: bool) -> bool:
    """True if it may take that long: by what it has declared, by what the job has shown before, or
    because it starts and nobody has trained yet. A later start is what holds the others up.
    """
    if track.fresh is None:
        return out_of_sight(history, track)
    if trained and history.starting(track) and not works_long(track):
        return False
    return track.stall_s < allowance(history, track).span_s
