"""Hangs (class H1): a rank that stands still by itself while others wait for it.

A traced rank is reported too, without an accusation: its tracer holds it up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from lightkeeper.monitor.detect.graph import SELF_HELD, Stuck, WaitGraph
from lightkeeper.monitor.detect.history import AROUND_S, History
from lightkeeper.monitor.detect.outside import heads_across
from lightkeeper.monitor.detect.patience import FOR_OTHERS, at_work, out_of_sight
from lightkeeper.monitor.detect.recorded import MISSING, UNREAD, Opinion, due, opinion
from lightkeeper.monitor.detect.track import RankTrack
from lightkeeper.monitor.detect.waits import patience
from lightkeeper.monitor.detect.wording import (
    hang_reason,
    hangs_briefly,
    looks,
    of_hang,
    ranks_named,
    waits_for,
    waits_in,
    with_places,
)
from lightkeeper.monitor.model.names import (
    GroupName,
    RankName,
    ReplicaId,
    group_of,
    group_of_replica,
    rank_name,
    unseen_name,
)
from lightkeeper.monitor.model.units import grouped
from lightkeeper.monitor.model.verdict import (
    BY_ELIMINATION,
    Confidence,
    Kind,
    RankStanding,
    Verdict,
)
from lightkeeper.monitor.model.wording import does, groups_of, listed, plural, seconds
from lightkeeper.monitor.records.findings import Fault, Finding
from lightkeeper.worker_server.wire import WAIT_COMMIT, WAIT_QUORUM, Doing

_MISMATCHED = (Fault.MISMATCH, Fault.SKIPPED, Fault.EXTRA)

# -- not entered -------------------------------------------------------------------------------


def not_entered(history: History, graph: WaitGraph) -> Iterable[Verdict]:
    """Hangs (H1): the roots of the wait-for graph, one verdict per group.

    Without any, ranks that a tracer holds; else ranks that cannot be seen and that others wait for.
    """
    hangs = (_hang(history, graph, roots) for roots in _roots(history, graph, outside=False))
    seen = (*hangs, *_traced(history, graph))
    yield from seen or (*_silent(history, graph), *_never_there(history, graph))


def _roots(history: History, graph: WaitGraph, *, outside: bool) -> Iterable[list[RankTrack]]:
    """The roots of the wait-for graph, by replica group.

    `outside`: those that report no phases, whose records are read first, see `unphased`.
    """
    return _by_group(
        history.tracks[rank]
        for rank in graph.roots
        if (graph.standing[rank] is RankStanding.OUTSIDE) is outside
    ).values()


def _by_group(tracks: Iterable[RankTrack]) -> Mapping[GroupName, list[RankTrack]]:
    return grouped((track.group, track) for track in tracks)


def _traced(history: History, graph: WaitGraph) -> Iterable[Verdict]:
    """Traced ranks that others wait for: one verdict, which accuses nobody."""
    tracks = (history.tracks[r] for r, s in graph.standing.items() if s is RankStanding.TRACED)
    blocking = [t for t in tracks if _waited_s(history, graph, t) >= history.hang_after_s(t)]
    if not blocking:
        return
    ranks = tuple(track.rank for track in blocking)
    victims = graph.victims(ranks)
    since_s = min(track.traced_since_s or history.now_s for track in blocking)
    tracers = {t.rank: looks(t.tracer) for t in blocking if t.tracer is not None}
    yield Verdict(
        kind=Kind.NOT_ENTERED,
        reason=f"{ranks_named(ranks)} {plural(ranks, 'is', 'are')} held by "
        f"{listed([*tracers.values()])} for {seconds(history.now_s - since_s)}; "
        f"{waits_for(history, victims, ranks)}; nobody is evicted while somebody looks",
        confidence=Confidence.CERTAIN,
        since_s=since_s,
        victims=victims,
        evidence={rank: f"traced by {tracer}" for rank, tracer in tracers.items()},
        signature="traced",
    )


def _waited_s(history: History, graph: WaitGraph, track: RankTrack) -> float:
    """How long others have waited for this rank."""
    victims = graph.victims((track.rank,))
    return max((history.tracks[rank].stall_s for rank in victims), default=0.0)


def _hang(history: History, graph: WaitGraph, roots: Sequence[RankTrack]) -> Verdict:
    culprits = tuple(track.rank for track in roots)
    victims = graph.victims(culprits)
    direct = any(graph.standing[rank] is not RankStanding.ALONE for rank in culprits)
    all_pause = graph.fleet_pauses and not direct
    shown = Confidence.CERTAIN if victims or direct else Confidence.LIKELY
    return Verdict(
        kind=Kind.NOT_ENTERED,
        culprits=culprits,
        reason=hang_reason(
            history, roots, graph.standing, _still_s(roots), victims, all_pause=all_pause
        ),
        brief=hangs_briefly(roots, graph.standing),
        confidence=Confidence.UNSURE if all_pause else shown,
        since_s=min(_since_s(track) for track in roots),
        victims=victims,
        evidence={track.rank: _evidence(track) for track in roots}
        | {
            "threshold": "; ".join(dict.fromkeys(str(patience(history, graph, t)) for t in roots)),
            "source": _source(history, graph, roots),
        },
        signature=of_hang(roots),
    )


def _still_s(tracks: Iterable[RankTrack]) -> float:
    """How long all of them have stood still."""
    return min(track.stall_s for track in tracks)


def _source(history: History, graph: WaitGraph, roots: Sequence[RankTrack]) -> str:
    """What the accusation is based on, and at what resolution."""
    direct = (RankStanding.STOPPED, RankStanding.FROZEN)
    if all(graph.standing[track.rank] in direct for track in roots):
        return "the operating system's view of the process"
    if all(graph.standing[track.rank] is RankStanding.LEFT for track in roots):
        return _polls(history)
    return "stacks from outside" if any(track.gives_state for track in roots) else "phases"


def _polls(history: History) -> str:
    return f"heads at {history.config.tick_s:g} s polls"


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


def _silent(history: History, graph: WaitGraph) -> Iterable[Verdict]:
    """Ranks that cannot be seen, while their own groups wait for them in a collective.

    Only when no visible rank explains it, and those that are seen call the same: otherwise a lost
    report could move the blame from the culprit's group to a victim's. For the same reason they are
    of one group, or of one host, which is then lost with all its ranks.
    """
    silent = [t for t in history.present() if graph.standing[t.rank] is RankStanding.SILENT]
    groups = _by_group(silent)
    spread = len(groups) > 1 and len({track.identity.host for track in silent}) > 1
    explained = spread or any(out_of_sight(history, track) for track in silent)
    if _nobody_seen_explains_it(graph) and not explained:
        for _, lost in sorted(groups.items()):
            yield from _unseen(history, graph, lost)


def _nobody_seen_explains_it(graph: WaitGraph) -> bool:
    """True if no rank is dead, and none that is seen stands still by itself."""
    held = any(graph.standing[rank] in SELF_HELD for rank in graph.suspects)
    return not held and RankStanding.DEAD not in graph.standing.values()


def _unseen(history: History, graph: WaitGraph, lost: list[RankTrack]) -> Iterable[Verdict]:
    """The silent ranks of one group, if it waits for them, and for nobody else."""
    culprits = tuple(track.rank for track in lost)
    silence_s = min(track.silence_s(history.now_s) for track in lost)
    for stuck in graph.stuck:
        only_they = bool(stuck.absent) and set(stuck.absent) <= set(culprits)
        if only_they and stuck.hangs(history) and not _differ(history, stuck):
            yield Verdict(
                kind=Kind.NOT_ENTERED,
                culprits=culprits,
                reason=f"{listed(culprits)} cannot be seen for {seconds(silence_s)}, and "
                f"{listed(stuck.joined)} of the same group "
                f"{plural(stuck.joined, 'stands', 'stand')} in a collective that only "
                f"{plural(culprits, 'it has', 'they have')} not entered",
                confidence=Confidence.LIKELY,
                since_s=min(track.silent_since_s or history.now_s for track in lost),
                victims=graph.victims(culprits),
                evidence={track.rank: "unreachable" for track in lost}
                | {
                    "source": _polls(history),
                    "threshold": f"{history.config.silent_s:g} s of silence",
                },
                signature=f"not_entered:{culprits[0]}:silent",
            )
            return


def _never_there(history: History, graph: WaitGraph) -> Iterable[Verdict]:
    """Groups that stand in a collective of theirs, where nothing is known of the others in it."""
    old = [stuck for stuck in graph.stuck if stuck.stall_s >= history.config.silent_s]
    for stuck in old if _nobody_seen_explains_it(graph) else ():
        lacking = stuck.size > len(stuck.joined) + len(stuck.completed) and not stuck.absent
        unknown = history.unregistered(stuck.group) if lacking else []
        if unknown and stuck.hangs(history):
            yield Verdict(
                kind=Kind.NOT_ENTERED,
                groups=(stuck.group,),
                reason=f"{does(stuck.joined, 'stands')} in {listed(stuck.ops)} for "
                f"{seconds(stuck.stall_s)}; nothing is known of {listed(unknown)}: no WorkerServer "
                "is registered",
                since_s=history.now_s - stuck.stall_s,
                victims=graph.victims(stuck.joined) or stuck.joined,
                evidence={"source": _polls(history)},
                signature=f"not_entered:{stuck.group}:never there",
            )


def _differ(history: History, stuck: Stuck) -> bool:
    """True if those inside differ in what they call, by heads or records."""
    said = opinion(history, stuck.group, within_s=stuck.stall_s)
    return len(stuck.ops) > 1 or any(f.live and f.kind in _MISMATCHED for f in said.findings)


# -- unphased ----------------------------------------------------------------------------------


def unphased(history: History, graph: WaitGraph) -> Iterable[Verdict]:
    """Hangs of ranks that report no phases (H1, H2), one verdict per group: heads raise the
    suspicion, flight records confirm it.

    Theory of operation. Heads at every tick show who is missing (`outside`). They do not show every
    wait: DDP's reducer calls collectives from C++. So the records of the group are requested once
    the rank has stood still for half the floor, and judged by the analysis that also judges dumps:
    the rank it names is accused. They are also requested where a whole group stands still and no
    head shows a wait: then the records point, see `recorded_wait`. Where they show nothing, because
    the wait lies between replica groups, stacks are the witness: missing ranks that stand at one
    place of their own are accused. Without stacks a single missing rank is accused, and several of
    one group are "cannot tell". `_WITNESSES` has them in this order.
    """
    for roots in _roots(history, graph, outside=True):
        case = _case(history, graph, roots)
        charges = (witness(case) for witness in _WITNESSES)
        charge = next(charge for charge in charges if charge is not None)
        if charge is not _NOBODY:
            yield _charged(case, charge)


def standing_records(history: History, graph: WaitGraph) -> tuple[RankName, ...]:
    """Ranks of groups whose records would show whether the missing ones are to blame, or what the
    ranks of a circle call.
    """
    outside = (r for r in graph.suspects if graph.standing[r] is RankStanding.OUTSIDE)
    circles = (rank for circle in graph.circles for rank in circle)
    groups = {quiet.group for quiet in graph.quiet}
    groups |= {history.tracks[rank].group for rank in (*outside, *circles)}
    members = (history.groups().get(group, ()) for group in sorted(groups))
    return tuple(rank for group in members for rank in due(history, group))


@dataclass(frozen=True, slots=True)
class _Case:
    """Missing ranks of one replica group, and what its flight records show."""

    history: History
    graph: WaitGraph
    roots: Sequence[RankTrack]
    ranks: tuple[RankName, ...]
    """The names of the roots."""
    still_s: float
    busy: tuple[RankName, ...]
    """Roots that the kernel sees at work, while that may still take its time."""
    said: Opinion
    """By records that were read during the stall."""


@dataclass(frozen=True, slots=True)
class _Charge:
    """Who is accused, and by which witness."""

    ranks: tuple[RankName, ...]
    confidence: Confidence = Confidence.UNSURE
    records: Finding | None = None
    """What the flight records show, where they are the witness."""
    kind: Kind = Kind.NOT_ENTERED
    doubt: str = ""
    spare: str = ""


_NOBODY: Final = _Charge(())
"""It is too early to accuse anybody."""


def _case(history: History, graph: WaitGraph, roots: Sequence[RankTrack]) -> _Case:
    still_s = _still_s(roots)
    young = still_s < history.config.long_phase_budget_s
    return _Case(
        history, graph, roots, tuple(track.rank for track in roots), still_s,
        busy=tuple(track.rank for track in roots if young and at_work(track)),
        said=opinion(history, roots[0].group, within_s=still_s),
    )  # fmt: skip


def _by_records(case: _Case) -> _Charge | None:
    """Ranks that called something else, or missing ones that the kernel does not see at work.

    Nobody, while the records accuse another rank, which still has time: the roots may wait for it.
    What nobody called before is no call too many while all the others are kept on their way to it.
    """
    for finding, ranks in case.said.accusing:
        if finding.kind is Fault.EXTRA and all(map(_stands, case.roots)):
            return None
        if finding.kind in _MISMATCHED:
            return _Charge(ranks, finding.confidence, finding, Kind.MISMATCH)
        if finding.kind in MISSING and set(ranks) <= set(case.ranks):
            if not set(ranks) <= set(case.busy):
                return _Charge(ranks, finding.confidence, finding)
            break
    accused = {rank for _, ranks in case.said.accusing for rank in ranks}
    return _NOBODY if accused.difference(case.ranks) else None


def _by_the_kernel(case: _Case) -> _Charge | None:
    may_s = seconds(case.history.config.long_phase_budget_s)
    spare = f"the kernel sees {listed(case.busy)} at work there, which may take {may_s}"
    return _Charge(case.busy, spare=spare) if case.busy else None


def _by_stacks(case: _Case) -> _Charge | None:
    standing = tuple(track.rank for track in case.roots if _stands(track))
    return _Charge(standing, Confidence.LIKELY) if standing else None


def _stands(track: RankTrack) -> bool:
    """True if its stacks show it at one place of its own, waiting for no other rank.

    One that computes is no such witness: another rank of its group may wait for it, or it for them
    in a backward pass, and the Python stack looks the same.
    """
    witness = track.witness
    return witness is not None and witness.doing not in (Doing.UNKNOWN, *FOR_OTHERS)


def _others_outside(case: _Case) -> _Charge | None:
    """Nobody, while another rank of the group is also outside the collective it seems to wait in.

    A wait inside a backward pass looks like work: a rank that computes may wait for that one.
    """
    outside = (RankStanding.OUTSIDE, RankStanding.UNKNOWN, RankStanding.TRACED)
    doubtful = any(
        case.graph.standing[track.rank] in outside
        and track.rank not in case.ranks
        and track.stall_s >= case.history.still_after_s
        for track in case.history.groups()[case.roots[0].group]
    )
    return _NOBODY if doubtful else None


def _unwitnessed(case: _Case) -> _Charge | None:
    """Records that cannot be read: all roots, after a longer time."""
    if case.said is not UNREAD:
        return None
    patient_s = max(patience(case.history, case.graph, track).span_s for track in case.roots)
    long = case.still_s >= case.history.config.unwitnessed_factor * patient_s
    unread = "; its records cannot be read, so it may wait where heads do not show it"
    return _Charge(case.ranks, doubt=unread) if long else _NOBODY


def _by_doubtful_records(case: _Case) -> _Charge | None:
    """All ranks between which the records cannot decide."""
    if not case.said.findings:
        return None
    sides = (side for finding in case.said.findings for side in finding.between)
    between = case.said.names(tuple(rank for side in sides for rank in side))
    return _Charge(between or case.ranks, records=case.said.findings[0])


def _by_heads(case: _Case) -> _Charge:
    """The roots, unless the records do not show what heads do: something still moves then."""
    if any(set(case.ranks).intersection(stuck.absent) for stuck in case.graph.stuck):
        return _NOBODY
    alone = len(case.ranks) == 1
    return _Charge(case.ranks, Confidence.LIKELY if alone else Confidence.UNSURE)


_WITNESSES: Final[tuple[Callable[[_Case], _Charge | None], ...]] = (
    _by_records, _by_the_kernel, _by_stacks, _others_outside, _unwitnessed, _by_doubtful_records,
    _by_heads,
)  # fmt: skip
"""Asked in this order; the first with an answer decides."""


def _charged(case: _Case, charge: _Charge) -> Verdict:
    history, graph, records = case.history, case.graph, charge.records
    tracks = [history.tracks[r] for r in charge.ranks if r in history.tracks] or case.roots
    victims = graph.victims((*charge.ranks, *case.ranks))
    if charge.kind is Kind.MISMATCH and records is not None:
        reason, brief = with_places(records.reason, history.groups()[case.roots[0].group]), ""
        signature = f"mismatch:{charge.ranks[0]}:{case.roots[0].doing}"
    else:
        reason = hang_reason(
            history, tracks, graph.standing, case.still_s, victims, doubt=charge.doubt
        )
        brief, signature = hangs_briefly(tracks, graph.standing) + charge.doubt, of_hang(tracks)
    allowances = (patience(history, graph, track) for track in case.roots)
    return Verdict(
        kind=charge.kind,
        culprits=charge.ranks,
        reason=reason,
        brief=brief,
        confidence=charge.confidence,
        since_s=min((t.report_s or t.seen_s) - t.stall_s for t in case.roots),
        victims=victims,
        evidence=({} if records is None else {**records.evidence, "records": records.reason})
        | {
            "source": _witness(case, charge, tracks),
            "threshold": str(max(allowances, key=lambda allowance: allowance.span_s)),
        },
        signature=signature,
        spare=charge.spare,
    )


def _witness(case: _Case, charge: _Charge, tracks: Iterable[RankTrack]) -> str:
    """What the accusation is based on, and what raised the suspicion."""
    polls = _polls(case.history)
    quiet = case.graph.by_records.issuperset(charge.ranks)
    how = "read because all of the group stood still" if quiet else f"found by {polls}"
    if charge.records is not None:
        return f"flight records, {how}"
    return f"stacks from outside, {how}" if any(map(_stands, tracks)) else polls


# -- left out ----------------------------------------------------------------------------------

_MAY_WAIT = (RankStanding.WAITING, RankStanding.HELD, RankStanding.UNKNOWN)
"""Torch's DDP waits in C++, where a stack may look like work."""


def left_out(history: History, graph: WaitGraph) -> Iterable[Verdict]:
    """A rank skipped a call and is in the next quorum; its peers still wait in that call (H2).
    One verdict per group to blame, or one for both sides where they tie.

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
    least_s = history.config.stall_floor_s  # most move: their limits need not be known
    slow = (track for track in history.present() if track.stall_s >= least_s)
    still = [track for track in slow if track.stall_s >= history.hang_after_s(track)]
    ahead = [track for track in still if track.waits_in == WAIT_QUORUM]
    cases = list(_collectives_left_out(history, still))
    if ahead and not _may_be_ahead(history, graph, ahead):
        cases += _votes_left_out(ahead, still)
        cases = cases or list(_left_out_across(history, ahead, still))
    for case in cases:
        yield from _blame(history, graph, case)


class _Skip(Enum):
    """Why some ranks are ahead while others wait for them in a call."""

    LEFT_OUT = auto()
    """Those ahead left the call out."""
    ONE_MORE = auto()
    """The others make it once too often."""
    EITHER = auto()


@dataclass(frozen=True, slots=True)
class _LeftOut:
    """Ranks that are ahead, and ranks that wait for them in a call."""

    ahead: Sequence[RankTrack]
    behind: Sequence[RankTrack]
    skip: _Skip
    op: str = "commit vote"
    within: tuple[str, str] = ("quorum of the next step", "this one")
    """Where those ahead wait, and of what the call is a part."""

    def why(self, early: Sequence[RankName], late: Sequence[RankName], *, failed: bool) -> str:
        if self.skip is _Skip.EITHER:
            return f"one left it out, or the other makes one {self.op} too many"
        if failed:
            return f"{listed(early)} continued after an error"
        if self.skip is _Skip.ONE_MORE:
            return f"{does(late, 'calls')} once more than the others"
        after = "a branch, a `continue` or a swallowed exception"
        return f"{listed(early)} left it out, as after {after}"


def _collectives_left_out(history: History, still: Sequence[RankTrack]) -> Iterable[_LeftOut]:
    """Ranks in the commit vote that never entered a collective of their group, by records.

    Torch's DDP calls its collectives from C++, where heads do not show them.
    """
    for group, voting in sorted(_by_group(_in_vote(still)).items()):
        members = history.groups()[group]
        still_s = _still_s(track for track in still if track.group == group)
        said = opinion(history, group, within_s=still_s)
        for finding, early in said.accusing:
            late = said.names(finding.victims)
            if finding.kind in MISSING and late and {t.rank for t in voting}.issuperset(early):
                yield _LeftOut(
                    [track for track in voting if track.rank in early],
                    [track for track in members if track.rank in late],
                    _Skip.LEFT_OUT,
                    finding.op or "collective",
                    within=("commit vote", "their group"),
                )


def _in_vote(tracks: Iterable[RankTrack]) -> Iterator[RankTrack]:
    return (track for track in tracks if track.waits_in == WAIT_COMMIT)


def _may_be_ahead(history: History, graph: WaitGraph, ahead: Sequence[RankTrack]) -> bool:
    """True if these may rightly be ahead: a participant stands elsewhere, or a process, seen or
    not, died or started since, or so shortly before that others are affected.
    """
    tracks, since_s = history.present(), history.now_s - max(track.stall_s for track in ahead)
    if any(graph.standing[track.rank] not in _MAY_WAIT for track in tracks):
        return True
    began_s = (*(t.first_seen_s for t in tracks), *history.unseen_s.values())
    return max(began_s) > since_s or bool(history.fell_since(since_s))


def _votes_left_out(ahead: Iterable[RankTrack], still: Iterable[RankTrack]) -> Iterable[_LeftOut]:
    """Ranks of one group in the quorum, and others still in the vote before it."""
    behind = _by_group(_in_vote(still))
    for group, early in sorted(_by_group(ahead).items()):
        if group in behind:
            yield _LeftOut(early, behind[group], _minority(early, behind[group]))


def _left_out_across(
    history: History, ahead: Sequence[RankTrack], still: Sequence[RankTrack]
) -> Iterable[_LeftOut]:
    """The first lane with ranks in the quorum, and others in a collective before it."""
    for lane in sorted({track.identity.group_rank for track in ahead}):
        pairs = [
            (early, late) for early in ahead for late in still
            if early.identity.group_rank == late.identity.group_rank == lane
            and _left(history, early, late)
        ]  # fmt: skip
        if pairs:
            sides = zip(*pairs, strict=True)
            first, last = (list({track.rank: track for track in side}.values()) for side in sides)
            op = max(heads_across(last[0]), key=lambda head: head.enqueued).op
            skip = _Skip.EITHER if len(first) == len(last) else _minority(first, last)
            yield _LeftOut(first, last, skip, op)
            return


def _minority(early: Sequence[RankTrack], late: Sequence[RankTrack]) -> _Skip:
    return _Skip.LEFT_OUT if len(early) <= len(late) else _Skip.ONE_MORE


def _left(history: History, early: RankTrack, late: RankTrack) -> bool:
    """True if `late` waits in the first collective across groups that `early` never entered.

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


def _blame(history: History, graph: WaitGraph, case: _LeftOut) -> Iterable[Verdict]:
    early, late = (tuple(sorted(t.rank for t in side)) for side in (case.ahead, case.behind))
    still_s = _still_s((*case.ahead, *case.behind))
    began_s = history.now_s - max(track.stall_s for track in case.ahead)
    failed = any(t.failed and t.failed[-1][0] > began_s - AROUND_S for t in case.ahead)
    tie = case.skip is _Skip.EITHER
    blamed = (*early, *late) if tie else early if case.skip is _Skip.LEFT_OUT else late
    reason = (
        f"{does(early, 'waits')} in the {case.within[0]}, {listed(late)} in the {case.op} of "
        f"{case.within[1]}, for {seconds(still_s)}: " + case.why(early, late, failed=failed)
    )
    of_group = (tuple(r for r in blamed if group_of(r) == group) for group in groups_of(blamed))
    for accused in [blamed] if tie else of_group:
        yield Verdict(
            kind=Kind.MISMATCH,
            culprits=tuple(sorted(accused)),
            reason=reason,
            confidence=Confidence.UNSURE if tie or failed else Confidence.LIKELY,
            since_s=history.now_s - still_s,
            victims=tuple(sorted({*early, *late, *graph.victims(accused)} - set(accused))),
            evidence={"source": "TorchFT's own calls, heads and records of process groups"},
            signature=f"mismatch:left out:{case.op}",
        )


# -- unseen ------------------------------------------------------------------------------------

_WAITS: Final = (RankStanding.WAITING, RankStanding.HELD)
_UNSEEN_SHOWN: Final = 4


def unseen(history: History, graph: WaitGraph) -> Iterable[Verdict]:
    """Replica groups that send heartbeats but run no WorkerServer: a notice about them, or the hang
    of a single one, if all ranks that are seen wait for it.

    Theory of operation. Every quorum waits for each id that beats at the Lighthouse, seen or not: a
    group without WorkerServers, or a second life of one that is seen (its launcher died and left
    its ranks behind; the id that nobody reports is the older one). If all ranks that are seen wait
    and exactly one participant is unseen, it is the root, by elimination, once no rank has started
    or ended for a while: survivors still wait for the evicted. Its name is that of its
    group and the beginning of its uuid, so that evicting it never touches the processes that are
    seen.
    """
    unseen_ids = history.unseen()
    root = _root(history, graph, unseen_ids)
    others = tuple(replica_id for replica_id in unseen_ids if replica_id != root)
    if others:
        yield _unmonitored(history, others)
    if root is not None:
        yield _missing(history, graph, root)


def _root(
    history: History, graph: WaitGraph, unseen_ids: tuple[ReplicaId, ...]
) -> ReplicaId | None:
    """The one that all visible ranks wait for."""
    if len(unseen_ids) != 1 or history.away is not None or history.disturbed:
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


def _unmonitored(history: History, others: tuple[ReplicaId, ...]) -> Verdict:
    """A notice: they harm nobody so far."""
    there = "; ".join(_presence(history, replica_id) for replica_id in others[:_UNSEEN_SHOWN])
    more = len(others) - _UNSEEN_SHOWN
    return Verdict(
        kind=Kind.UNSEEN,
        reason=f"{there}{f'; and {more} more' if more > 0 else ''}; should one hang, only the "
        "Lighthouse's kill, a gate or a scheduler can evict it",
        confidence=Confidence.CERTAIN,
        since_s=min(history.unseen_s[replica_id] for replica_id in others),
        evidence={"Lighthouse": f"{listed(others)} beat, and no rank reports them"},
        signature="unseen",
    )


def _presence(history: History, replica_id: ReplicaId) -> str:
    """What is known of a participant that no rank reports, perhaps beside ranks that do."""
    name, group = unseen_name(replica_id), group_of_replica(replica_id)
    for_s = seconds(history.now_s - history.unseen_s[replica_id])
    if all(track.died_s is not None for track in history.groups().get(group, ())):
        return f"{name} has taken part for {for_s}, and no WorkerServer reports it"
    return (
        f"{group} trains twice: beside the ranks that are seen, {name} has taken part for {for_s}, "
        "a life of it that its launcher has lost"
    )


def _missing(history: History, graph: WaitGraph, replica_id: ReplicaId) -> Verdict:
    victims = tuple(sorted(r for r, s in graph.standing.items() if s in _WAITS))
    still_s = min(history.tracks[victim].stall_s for victim in victims)
    group = GroupName(unseen_name(replica_id))
    return Verdict(
        kind=Kind.NOT_ENTERED,
        culprits=(rank_name(group, 0),),
        reason=f"{group_of_replica(replica_id)} hangs where nobody can look: "
        f"{does(victims, 'waits')}{waits_in(history, victims)} for {seconds(still_s)}, and it "
        f"alone has not come; {_presence(history, replica_id)}",
        confidence=Confidence.LIKELY,
        since_s=history.now_s - still_s,
        victims=victims,
        evidence={
            "Lighthouse": f"{replica_id} beats, and no rank reports it",
            "source": BY_ELIMINATION,
        },
    )
