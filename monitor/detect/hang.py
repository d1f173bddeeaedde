"""Hangs (class H1): a rank that stands still by itself while others wait for it.

A traced rank is reported too, without an accusation: its tracer holds it up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from monitor.detect.graph import SELF_HELD, WaitGraph
from monitor.detect.history import AROUND_S, History
from monitor.detect.outside import heads_across
from monitor.detect.patience import FOR_OTHERS, at_work
from monitor.detect.recorded import MISSING, Opinion, opinion, sure, unread
from monitor.detect.track import RankTrack
from monitor.detect.waits import patience
from monitor.detect.wording import (
    gave_up_on,
    hangs,
    hangs_briefly,
    looks,
    named,
    of_hang,
    waits_for,
    waits_in,
)
from monitor.model.names import (
    GroupName,
    RankName,
    ReplicaId,
    group_of_replica,
    rank_name,
    unseen_name,
)
from monitor.model.verdict import Confidence, Kind, RankStanding, Verdict
from monitor.model.wording import groups_of, listed, plural, seconds
from monitor.records.findings import Fault, Finding
from worker_server.wire import WAIT_COMMIT, WAIT_QUORUM, Doing

# -- not entered -------------------------------------------------------------------------------


def not_entered(history: History, graph: WaitGraph) -> tuple[Verdict, ...]:
    """One verdict for each replica group that contains a root of the wait-for graph."""
    by_group: dict[GroupName, list[RankTrack]] = {}
    for rank in graph.roots:
        if graph.standing[rank] is RankStanding.OUTSIDE:
            continue  # its records are read first, see `unphased`
        track = history.tracks[rank]
        by_group.setdefault(track.group, []).append(track)
    verdicts = tuple(_verdict(history, graph, group, roots) for group, roots in by_group.items())
    traced = _traced(history, graph)
    return (*verdicts, *traced) if verdicts or traced else _silent(history, graph)


def _traced(history: History, graph: WaitGraph) -> tuple[Verdict, ...]:
    """Traced ranks that others wait for: one verdict, which accuses nobody."""
    tracks = [history.tracks[r] for r, s in graph.standing.items() if s is RankStanding.TRACED]
    waiting = {track.rank: graph.victims((track.rank,)) for track in tracks}
    blocking = [t for t in tracks if _waited_s(history, waiting[t.rank]) >= history.hang_after_s(t)]
    if not blocking:
        return ()
    ranks = tuple(track.rank for track in blocking)
    victims = tuple(sorted({rank for traced in ranks for rank in waiting[traced]} - set(ranks)))
    tracers = [looks(track.tracer) for track in blocking if track.tracer is not None]
    since_s = min(track.traced_since_s or history.now_s for track in blocking)
    return (
        Verdict(
            kind=Kind.NOT_ENTERED,
            culprits=(),
            groups=(),
            reason=f"{named(ranks)} {plural(ranks, 'is', 'are')} held by "
            f"{listed(tracers)} for {seconds(history.now_s - since_s)}; "
            f"{waits_for(history, victims, ranks)}; nobody is evicted while somebody looks",
            confidence=Confidence.CERTAIN,
            since_s=since_s,
            victims=victims,
            evidence={
                t.rank: f"traced by {looks(t.tracer)}" for t in blocking if t.tracer is not None
            },
            signature="traced",
        ),
    )


def _waited_s(history: History, victims: tuple[RankName, ...]) -> float:
    return max((history.tracks[rank].stall_s for rank in victims), default=0.0)


def _verdict(
    history: History, graph: WaitGraph, group: GroupName, roots: list[RankTrack]
) -> Verdict:
    culprits = tuple(track.rank for track in roots)
    victims = graph.victims(culprits)
    direct = any(graph.standing[rank] is not RankStanding.ALONE for rank in culprits)
    waiting = waits_for(history, victims, culprits)
    if graph.fleet_pauses and not direct:
        waiting, confidence = "all pause at once, so it may be the job", Confidence.UNSURE
    elif victims or direct:
        confidence = Confidence.CERTAIN
    else:
        confidence = Confidence.LIKELY
    still_s = min(track.stall_s for track in roots)
    return Verdict(
        kind=Kind.NOT_ENTERED,
        culprits=culprits,
        groups=(group,),
        reason=f"{hangs(history, roots, graph.standing, still_s)}; {waiting}"
        + gave_up_on(history, culprits),
        brief=hangs_briefly(roots, graph.standing),
        confidence=confidence,
        since_s=min(_since_s(track) for track in roots),
        victims=victims,
        evidence={track.rank: _evidence(track) for track in roots}
        | {
            "threshold": "; ".join(dict.fromkeys(str(patience(history, graph, t)) for t in roots)),
            "source": _source(history, graph, roots),
        },
        signature=of_hang(roots),
    )


def _source(history: History, graph: WaitGraph, roots: list[RankTrack]) -> str:
    """What the accusation is based on, and at what resolution."""
    direct = (RankStanding.STOPPED, RankStanding.FROZEN)
    if all(graph.standing[track.rank] in direct for track in roots):
        return "the operating system's view of the process"
    if all(graph.standing[track.rank] is RankStanding.LEFT for track in roots):
        return f"heads at {history.config.tick_s:g} s polls"
    return "phases"


def _evidence(track: RankTrack) -> str:
    report, step = track.report, track.step
    if report is None or step is None:
        return "no report"
    return (
        f"phase {step.phase}, progress {step.progress}, commits {step.commits}, "
        f"process {report.process.state or '?'}"
    )


def _since_s(track: RankTrack) -> float:
    if track.report is None or track.step is None or track.report_s is None:
        return track.seen_s
    return track.report_s - min(
        (track.step.phase_age_s, *(head.age_s for head in track.report.heads))
    )


def _silent(history: History, graph: WaitGraph) -> tuple[Verdict, ...]:
    """Ranks that cannot be seen, while their own groups wait for them in a collective.

    Only when no visible rank explains it: otherwise a lost report could move the blame from the
    culprit's group to a victim's. For the same reason they are of one group, or of one host, which
    is then lost with all its ranks.
    """
    if any(graph.standing[rank] in SELF_HELD for rank in graph.suspects):
        return ()
    standings = graph.standing.values()
    if RankStanding.DEAD in standings or RankStanding.SILENT not in standings:
        return ()
    silent = [t for t in history.present() if graph.standing[t.rank] is RankStanding.SILENT]
    groups = sorted({track.group for track in silent})
    if len(groups) > 1 and len({track.identity.host for track in silent}) > 1:
        return ()
    if any(_silence_s(history, track) < history.config.silent_s for track in silent):
        return ()
    members = ([track for track in silent if track.group == group] for group in groups)
    return tuple(verdict for lost in members for verdict in _unseen(history, graph, lost))


def _unseen(history: History, graph: WaitGraph, lost: list[RankTrack]) -> tuple[Verdict, ...]:
    """The silent ranks of one group, if it waits for them."""
    culprits = tuple(track.rank for track in lost)
    waiting = _waiting_for(history, graph, culprits)
    if not waiting:
        return ()
    silence_s = min(_silence_s(history, track) for track in lost)
    return (
        Verdict(
            kind=Kind.NOT_ENTERED,
            culprits=culprits,
            groups=(lost[0].group,),
            reason=f"{listed(culprits)} cannot be seen for {seconds(silence_s)}, and "
            f"{listed(waiting)} of the same group {plural(waiting, 'stands', 'stand')} in a "
            "collective that only it has not entered",
            confidence=Confidence.LIKELY,
            since_s=min(track.silent_since_s or history.now_s for track in lost),
            victims=graph.victims(culprits),
            evidence={track.rank: "unreachable" for track in lost}
            | {
                "source": f"heads at {history.config.tick_s:g} s polls",
                "threshold": f"{history.config.silent_s:g} s of silence",
            },
            signature=f"not_entered:{culprits[0]}:silent",
        ),
    )


def _silence_s(history: History, track: RankTrack) -> float:
    return 0.0 if track.silent_since_s is None else history.now_s - track.silent_since_s


def _waiting_for(
    history: History, graph: WaitGraph, lost: tuple[RankName, ...]
) -> tuple[RankName, ...]:
    for stuck in graph.stuck:
        only_they = bool(stuck.absent) and set(stuck.absent) <= set(lost)
        if only_they and stuck.stall_s >= history.hang_after_s(history.tracks[stuck.joined[0]]):
            return stuck.joined
    return ()


# -- unphased ----------------------------------------------------------------------------------

_MISMATCHED = (Fault.MISMATCH, Fault.SKIPPED, Fault.EXTRA)


def unphased(history: History, graph: WaitGraph) -> tuple[Verdict, ...]:
    """At most one verdict for each replica group that misses a rank without phases.

    Hangs that phases do not show (classes H1 and H2): heads point, records decide.

    Theory of operation. Heads at every tick show who is missing (`outside`). They do not show every
    wait: DDP's reducer calls collectives from C++. So the records of the group are requested once
    the rank has stood still for half the floor, and judged by the analysis that also judges dumps:
    the rank it names is accused. They are also requested where a whole group stands still and no
    head shows a wait: then the records point, see `recorded_wait`. Where they show nothing, because
    the wait lies between replica groups, stacks are the witness: missing ranks that stand at one
    place of their own are accused. Without stacks a single missing rank is accused, and several of
    one group are "cannot tell".
    """
    by_group: dict[GroupName, list[RankTrack]] = {}
    for rank in graph.roots:
        if graph.standing[rank] is RankStanding.OUTSIDE:
            track = history.tracks[rank]
            by_group.setdefault(track.group, []).append(track)
    judged = (_judge(history, graph, group, roots) for group, roots in by_group.items())
    return tuple(verdict for verdict in judged if verdict is not None)


def unphased_records(history: History, graph: WaitGraph) -> tuple[RankName, ...]:
    """Ranks whose records would show whether the missing ones are to blame; sorted."""
    groups = set(graph.quiet) | {
        history.tracks[rank].group
        for rank in graph.suspects
        if graph.standing[rank] is RankStanding.OUTSIDE
    }
    members = (history.groups().get(group, ()) for group in sorted(groups))
    return tuple(track.rank for group in members for track in _unread(history, group))


def _unread(history: History, members: Iterable[RankTrack]) -> list[RankTrack]:
    """Members without a record of this stall; when all have one, those due again.

    A tick reads only a limited number: in a large group the first would be due before the last was
    read.
    """
    reachable = [track for track in members if track.fresh is not None]
    lacking = [track for track in reachable if not _has(history, track, track.stall_s)]
    repeat_s = history.config.record_repeat_s
    return lacking or [track for track in reachable if not _has(history, track, repeat_s)]


def _has(history: History, track: RankTrack, within_s: float) -> bool:
    return history.reading(track) is not None and history.record_age_s(track.rank) <= within_s


def _judge(  # noqa: C901, PLR0911 - one source of evidence after another
    history: History, graph: WaitGraph, group: GroupName, roots: list[RankTrack]
) -> Verdict | None:
    verdict = partial(_unphased_verdict, history, graph, roots)
    still_s = min(track.stall_s for track in roots)
    read = all(history.record_age_s(t.rank) <= still_s for t in history.groups()[group])
    said = opinion(history, group) if read else None
    names = tuple(track.rank for track in roots)
    accused = None if said is None else _told(said, names)
    young = still_s < history.config.long_phase_budget_s
    busy = tuple(track.rank for track in roots if young and at_work(track))
    if accused is not None:
        finding, culprits = accused
        if finding.kind not in MISSING or not set(culprits) <= set(busy):
            kind = Kind.MISMATCH if finding.kind in _MISMATCHED else Kind.NOT_ENTERED
            return verdict(culprits, finding.confidence, kind=kind, records=finding)
    if said is not None and _names_another(said, names):
        return None  # it still has time, and these may wait for it
    if busy:
        budget = seconds(history.config.long_phase_budget_s)
        spare = f"the kernel sees {listed(busy)} at work there, which may take {budget}"
        return verdict(busy, Confidence.UNSURE, spare=spare)
    standing = tuple(track.rank for track in roots if _stands(track))
    if standing:
        return verdict(standing, Confidence.LIKELY)
    if _may_wait_for_others(history, graph, group, names):
        return None
    if said is None:
        patient_s = max(patience(history, graph, track).span_s for track in roots)
        if still_s < history.config.unwitnessed_factor * patient_s:
            return None
        doubt = "; its records cannot be read, so it may wait where heads do not show it"
        return verdict(names, Confidence.UNSURE, doubt=doubt)
    if said.findings:
        between = tuple(r for finding in said.findings for side in finding.between for r in side)
        culprits = said.names(between) or names
        return verdict(culprits, Confidence.UNSURE, records=said.findings[0])
    if any(set(names) & set(stuck.absent) for stuck in graph.stuck):
        return None  # the records do not show what heads do: something still moves
    return verdict(names, Confidence.LIKELY if len(names) == 1 else Confidence.UNSURE)


def _names_another(said: Opinion, names: tuple[RankName, ...]) -> bool:
    """Whether the records accuse a rank that is no root (yet)."""
    accused = (said.names(finding.culprits) for finding in said.findings if sure(finding))
    return any(set(culprits) - set(names) for culprits in accused)


def _may_wait_for_others(
    history: History, graph: WaitGraph, group: GroupName, names: tuple[RankName, ...]
) -> bool:
    """Whether another rank of the group is also outside the collective it seems to wait in.

    A wait inside a backward pass looks like work: a rank that computes may wait for that one.
    """
    outside = (RankStanding.OUTSIDE, RankStanding.UNKNOWN, RankStanding.TRACED)
    return any(
        graph.standing[track.rank] in outside
        and track.rank not in names
        and track.stall_s >= history.still_after_s
        for track in history.groups()[group]
    )


def _stands(track: RankTrack) -> bool:
    """Whether its stacks show it at one place of its own, waiting for no other rank.

    One that computes is no such witness: another rank of its group may wait for it, or it for them
    in a backward pass, and the Python stack looks the same.
    """
    witness = track.witness
    return witness is not None and witness.doing not in (Doing.UNKNOWN, *FOR_OTHERS)


def _told(
    said: Opinion, names: tuple[RankName, ...]
) -> tuple[Finding, tuple[RankName, ...]] | None:
    """The ranks that the records accuse; None if none, or if they contradict the heads."""
    for finding in said.findings:
        if sure(finding) and finding.kind in (*MISSING, *_MISMATCHED):
            culprits = said.names(finding.culprits)
            if finding.kind in _MISMATCHED or set(culprits) <= set(names):
                return finding, culprits
    return None


def _unphased_verdict(
    history: History,
    graph: WaitGraph,
    roots: list[RankTrack],
    culprits: tuple[RankName, ...],
    confidence: Confidence,
    *,
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
        reason, brief = records.reason, ""
    else:
        reason = f"{hangs(history, tracks, graph.standing, still_s)}; "
        reason += waits_for(history, waiting, names) + doubt + gave_up_on(history, names)
        brief = hangs_briefly(tracks, graph.standing) + doubt
    stacked = records is None and any(_stands(track) for track in tracks)
    allowed = max(
        (patience(history, graph, t) for t in roots), key=lambda allowance: allowance.span_s
    )
    polls = f"heads at {history.config.tick_s:g} s polls"
    silent = graph.by_records.issuperset(culprits)
    how = "read because all of the group stood still" if silent else f"found by {polls}"
    also = {} if records is None else dict(records.evidence)
    return Verdict(
        kind=kind,
        culprits=culprits,
        groups=(roots[0].group,),
        reason=reason,
        brief=brief,
        confidence=confidence,
        since_s=min((t.report_s or t.seen_s) - t.stall_s for t in roots),
        victims=waiting,
        evidence=also
        | ({} if records is None else {"records": records.reason})
        | {
            "source": f"flight records, {how}" if records is not None
            else f"stacks from outside, {how}" if stacked else polls,
            "threshold": str(allowed),
        },
        signature=f"{kind.value}:{culprits[0]}:{roots[0].doing}"
        if kind is Kind.MISMATCH else of_hang(tracks),
        spare=spare,
    )  # fmt: skip


# -- left out ----------------------------------------------------------------------------------

_MAY_WAIT = (RankStanding.WAITING, RankStanding.HELD, RankStanding.UNKNOWN)
"""Torch's DDP waits in C++, where a stack may look like work."""


def left_out(history: History, graph: WaitGraph) -> tuple[Verdict, ...]:
    """One verdict for each replica group to blame; one for both sides where they tie.

    A rank that enters the next quorum without the call that others wait in for it (class H2).

    Theory of operation. A rank that waits in TorchFT's next quorum is done with this step. A
    group's Manager answers a commit vote once all of the group's ranks have voted: one of them in
    the quorum, and others still in the vote, means that the first has left the vote out. In the
    same way it has left out a collective that ranks of other groups are in and that it never
    entered, by the heads of their common process group: mostly by a branch on the data, a
    `continue` or a swallowed exception. If the ranks ahead are the majority, the others make one
    call too many; if both sides are equal, it is ambiguous. When a rank has died or joined, moving
    ahead is legitimate: then nothing is checked. It also is after a rank's own error: that is
    reported, in doubt.
    """
    tracks = history.present()
    least_s = history.config.stall_floor_s  # most move: their limits need not be known
    still = [t for t in tracks if t.stall_s >= least_s and t.stall_s >= history.hang_after_s(t)]
    verdicts: list[Verdict] = []
    for group in sorted({track.group for track in still if track.waits_in == WAIT_COMMIT}):
        verdicts += _unentered(history, graph, [track for track in still if track.group == group])
    ahead = [track for track in still if track.waits_in == WAIT_QUORUM]
    if history.unseen_s or any(graph.standing[track.rank] not in _MAY_WAIT for track in tracks):
        return tuple(verdicts)
    if not ahead or _comes_or_goes(history, history.now_s - max(t.stall_s for t in ahead)):
        return tuple(verdicts)
    for group in sorted({track.group for track in ahead}):
        early = [track for track in ahead if track.group == group]
        late = [t for t in still if t.group == group and t.waits_in == WAIT_COMMIT]
        if late:
            lacks = len(early) <= len(late)
            verdicts += _judge_left_out(history, graph, early, late, "commit vote", lacks=lacks)
    for lane in sorted({track.identity.group_rank for track in ahead}):
        pairs = [
            (one_ahead, behind) for one_ahead in ahead for behind in still
            if one_ahead.identity.group_rank == behind.identity.group_rank == lane
            and _left(history, one_ahead, behind)
        ]  # fmt: skip
        if pairs and not verdicts:
            sides = zip(*pairs, strict=True)
            early, late = (list({t.rank: t for t in side}.values()) for side in sides)
            op = max(heads_across(late[0]), key=lambda head: head.enqueued).op
            verdicts += _judge_left_out(history, graph, early, late, op)
    return tuple(verdicts)


def _unentered(history: History, graph: WaitGraph, still: Sequence[RankTrack]) -> Iterable[Verdict]:
    """Ranks of a group in the commit vote that never entered a collective others are in, by
    records.

    Torch's DDP calls its collectives from C++, where heads do not show them.
    """
    members = history.groups()[still[0].group]
    since_s = history.now_s - min(track.stall_s for track in still)
    said = None if unread(history, members, since_s) else opinion(history, still[0].group)
    if said is None:
        return
    voting = {track.rank for track in still if track.waits_in == WAIT_COMMIT}
    for finding in said.findings:
        early, late = said.names(finding.culprits), said.names(finding.victims)
        if sure(finding) and finding.kind in MISSING and late and voting >= set(early):
            ahead = [track for track in still if track.rank in early]
            behind = [track for track in members if track.rank in late]
            op, within = finding.op or "collective", ("commit vote", "their group")
            yield from _judge_left_out(history, graph, ahead, behind, op, lacks=True, within=within)


def _comes_or_goes(history: History, since_s: float) -> bool:
    """Whether a process died or started since, or so shortly before that others are affected."""
    came_s = max(track.first_seen_s for track in history.present())
    return came_s > since_s or bool(history.fell_since(since_s))


def _left(history: History, early: RankTrack, late: RankTrack) -> bool:
    """Whether one is in the first collective across groups that the other never entered.

    Later ones do not count: none ends before all have entered it, and numbers further apart began
    at different times. The first of a quorum counts where the Lighthouse has both in it.
    """
    if early.step is None or late.step is None or early.step.quorum_id != late.step.quorum_id:
        return False
    entered = {head.name: head.enqueued for head in heads_across(early)}
    both = all(history.in_quorum(track.group) for track in (early, late))
    return any(
        entered[head.name] + 1 == (head.inside or head.completed + 1) <= head.enqueued
        and (entered[head.name] > 0 or both)
        for head in heads_across(late)
        if head.name in entered
    )


def _judge_left_out(
    history: History,
    graph: WaitGraph,
    ahead: Sequence[RankTrack],
    behind: Sequence[RankTrack],
    op: str,
    *,
    lacks: bool | None = None,
    within: tuple[str, str] = ("quorum of the next step", "this one"),
) -> Iterable[Verdict]:
    """`lacks`: whether the ranks ahead left it out; None: the minority is to blame, if any."""
    early, late = (tuple(sorted(t.rank for t in side)) for side in (ahead, behind))
    still_s = min(track.stall_s for track in (*ahead, *behind))
    reason = (
        f"{listed(early)} {plural(early, 'waits', 'wait')} in the {within[0]}, "
        f"{listed(late)} in the {op} of {within[1]}, for {seconds(still_s)}: "
    )
    began_s = history.now_s - max(track.stall_s for track in ahead)
    failed = any(t.failed and t.failed[-1][0] > began_s - AROUND_S for t in ahead)
    tie = lacks is None and len(early) == len(late)
    first = len(early) <= len(late) if lacks is None else lacks
    culprits = (*early, *late) if tie else early if first else late
    if tie:
        reason += f"one left it out, or the other makes one {op} too many"
    elif failed:
        reason += f"{listed(early)} went on after an error"
    elif first:
        reason += f"{listed(early)} left it out, as after a branch, a `continue` or a swallowed "
        reason += "exception"
    else:
        reason += f"{listed(late)} {plural(late, 'calls', 'call')} once more than the others"
    for accused in [culprits] if tie else _by_group(culprits):
        yield Verdict(
            kind=Kind.MISMATCH,
            culprits=tuple(sorted(accused)),
            groups=groups_of(accused),
            reason=reason,
            confidence=Confidence.UNSURE if tie or failed else Confidence.LIKELY,
            since_s=history.now_s - still_s,
            victims=tuple(sorted({*early, *late, *graph.victims(accused)} - set(accused))),
            evidence={"source": "TorchFT's own calls, heads and records of process groups"},
            signature=f"mismatch:left out:{op}",
        )


def _by_group(ranks: Sequence[RankName]) -> list[tuple[RankName, ...]]:
    return [
        tuple(rank for rank in ranks if groups_of([rank]) == (group,)) for group in groups_of(ranks)
    ]


# -- unseen ------------------------------------------------------------------------------------

_WAITS: Final = (RankStanding.WAITING, RankStanding.HELD)
_SHOWN: Final = 4


def unseen(history: History, graph: WaitGraph) -> tuple[Verdict, ...]:
    """Participants that no rank reports, in one verdict; another if exactly one is missing.

    Participants that no WorkerServer reports: they take part, and others may wait for them.

    Theory of operation. Every quorum waits for each id that beats at the Lighthouse, seen or not: a
    group without WorkerServers, or a second life of one that is seen (its launcher died and left
    its ranks behind; the id that nobody reports is the older one). If all ranks that are seen wait
    and exactly one participant is unseen, it is the root, by elimination. Its name is that of its
    group and the beginning of its uuid, so that evicting it never touches the processes that are
    seen.
    """
    unseen_ids = history.unseen()
    root = _root(history, graph, unseen_ids)
    others = tuple(replica_id for replica_id in unseen_ids if replica_id != root)
    verdicts = (_told_unseen(history, others),) if others else ()
    return verdicts if root is None else (*verdicts, _missing(history, graph, root))


def _root(
    history: History, graph: WaitGraph, unseen_ids: tuple[ReplicaId, ...]
) -> ReplicaId | None:
    """The one that all visible ranks wait for."""
    if len(unseen_ids) != 1 or history.away is not None:
        return None
    tracks = [t for t in history.present() if graph.standing[t.rank] is not RankStanding.DEAD]
    if not tracks:
        return None
    waits = all(
        graph.standing[track.rank] in _WAITS
        and track.stall_s >= max(history.hang_after_s(track), history.config.witnessed_floor_s)
        and not (track.step is not None and track.step.healing)
        for track in tracks
    )
    across = any(graph.standing[track.rank] is RankStanding.WAITING for track in tracks)
    complete = any(stuck.complete for stuck in graph.stuck)
    return unseen_ids[0] if waits and across and not complete else None


def _told_unseen(history: History, others: tuple[ReplicaId, ...]) -> Verdict:
    """They take part and harm nobody so far."""
    return Verdict(
        kind=Kind.UNSEEN,
        culprits=(),
        groups=(),
        reason="; ".join(_who(history, replica_id) for replica_id in others[:_SHOWN])
        + (f"; and {len(others) - _SHOWN} more" if len(others) > _SHOWN else "")
        + "; should one hang, only the Lighthouse's kill, a gate or a scheduler can put it out",
        confidence=Confidence.CERTAIN,
        since_s=min(map(history.unseen_since_s, others)),
        evidence={"Lighthouse": f"{listed(others)} beat, and no rank reports them"},
        signature="unseen",
    )


def _who(history: History, replica_id: ReplicaId) -> str:
    group = group_of_replica(replica_id)
    for_s = seconds(history.now_s - history.unseen_since_s(replica_id))
    name = unseen_name(replica_id)
    if any(track.died_s is None for track in history.groups().get(group, ())):
        return (
            f"{group} trains twice: beside the ranks that are seen {name} takes part for {for_s}, "
            "a life of it that its launcher has lost"
        )
    return f"{name} takes part for {for_s}, and no WorkerServer reports it"


def _missing(history: History, graph: WaitGraph, replica_id: ReplicaId) -> Verdict:
    victims = tuple(sorted(r for r, s in graph.standing.items() if s in _WAITS))
    still_s = min(history.tracks[victim].stall_s for victim in victims)
    group = GroupName(unseen_name(replica_id))
    return Verdict(
        kind=Kind.NOT_ENTERED,
        culprits=(rank_name(group, 0),),
        groups=(group,),
        reason=f"{group_of_replica(replica_id)} hangs where nobody can look: "
        f"{listed(victims)} {plural(victims, 'waits', 'wait')}{waits_in(history, victims)} for "
        f"{seconds(still_s)}, and it alone has not come; {_who(history, replica_id)}",
        confidence=Confidence.LIKELY,
        since_s=history.now_s - still_s,
        victims=victims,
        evidence={
            "Lighthouse": f"{replica_id} beats, and no rank reports it",
            "source": "elimination: every rank that is seen waits",
        },
    )
