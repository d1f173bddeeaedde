"""A rank that goes on to the next quorum without what others wait in for it (class H2).

Theory of operation. Who waits in TorchFT's next quorum is through with this step. A group's Manager
answers a commit vote once all of the group's ranks have voted: one of them in the quorum, and
others still in the vote, means that the first has left the vote out. In the same way it has left a
collective out that ranks of other groups stand in and that it never entered, by the heads of their
common process group: mostly by a branch on the data, a `continue` or a swallowed exception. Where
those that went on are the majority, the others make one call too many; where both are as many, it
cannot be told. When somebody has died or come, ranks go on by rights: then nobody is looked at;
after an error of its own a rank does too: that is told, in doubt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from monitor.detectors.outside import across
from monitor.detectors.recorded import opinion, sure, unread
from monitor.detectors.recorded_wait import MISSING
from monitor.detectors.verdict import Confidence, Kind, Verdict
from monitor.detectors.waits import Standing, WaitGraph
from monitor.detectors.wording import groups_of, listed, plural, seconds
from monitor.history import History, RankTrack
from monitor.names import RankName
from worker_server.wire import WAIT_COMMIT, WAIT_QUORUM

_MAY_WAIT = (Standing.WAITING, Standing.HELD, Standing.UNKNOWN)
"""Torch's DDP waits in C++, where no stack may tell it from work."""


_AROUND_S = 5.0
"""A vote that was lost, or a death, is seen so much sooner or later than the stall that follows."""


def left_out(history: History, graph: WaitGraph) -> tuple[Verdict, ...]:
    """One verdict for each replica group to blame; one for both sides where they tie."""
    tracks = history.present()
    still = [track for track in tracks if track.stall_s >= history.hang_after_s(track)]
    found: list[Verdict] = []
    for group in sorted({track.group for track in still if track.waits_in == WAIT_COMMIT}):
        found += _unentered(history, graph, [track for track in still if track.group == group])
    ahead = [track for track in still if track.waits_in == WAIT_QUORUM]
    if history.unseen_s or any(graph.standing[track.rank] not in _MAY_WAIT for track in tracks):
        return tuple(found)
    if not ahead or _comes_or_goes(history, history.now_s - max(t.stall_s for t in ahead)):
        return tuple(found)
    for group in sorted({track.group for track in ahead}):
        mine = [track for track in ahead if track.group == group]
        voting = [t for t in still if t.group == group and t.waits_in == WAIT_COMMIT]
        if voting:
            lacks = len(mine) <= len(voting)
            found += _judge(history, graph, mine, voting, "commit vote", lacks=lacks)
    for lane in sorted({track.identity.group_rank for track in ahead}):
        left = [
            (early, late) for early in ahead for late in still
            if early.identity.group_rank == late.identity.group_rank == lane
            and _left(history, early, late)
        ]  # fmt: skip
        if left and not found:
            sides = zip(*left, strict=True)
            mine, behind = (list({t.rank: t for t in side}.values()) for side in sides)
            op = max(across(behind[0]), key=lambda head: head.enqueued).op
            found += _judge(history, graph, mine, behind, op)
    return tuple(found)


def _unentered(history: History, graph: WaitGraph, still: Sequence[RankTrack]) -> Iterable[Verdict]:
    """Of a group's ranks in the commit vote: who never entered what others stand in, by records.

    Torch's DDP calls its collectives from C++, where heads do not show them.
    """
    members = history.groups()[still[0].group]
    since_s = history.now_s - min(track.stall_s for track in still)
    said = None if unread(history, members, since_s) else opinion(history, still[0].group)
    if said is None:
        return
    voting = {track.rank for track in still if track.waits_in == WAIT_COMMIT}
    for one in said.findings:
        early, late = said.names(one.culprits), said.names(one.victims)
        if sure(one) and one.kind in MISSING and late and voting >= set(early):
            ahead = [track for track in still if track.rank in early]
            behind = [track for track in members if track.rank in late]
            op, within = one.op or "collective", ("commit vote", "their group")
            yield from _judge(history, graph, ahead, behind, op, lacks=True, within=within)


def _comes_or_goes(history: History, since_s: float) -> bool:
    """Whether a process has died or begun since, or so shortly before that others feel it."""
    fell_s = max(history.fallen_s.values(), default=float("-inf"))
    came_s = max(track.first_seen_s for track in history.present())
    return fell_s > since_s - _AROUND_S or came_s > since_s


def _left(history: History, early: RankTrack, late: RankTrack) -> bool:
    """Whether one stands in the first collective across groups that the other never entered.

    No later one: none is over before all have entered it, and numbers further apart have begun at
    different times. The first of a quorum counts where the Lighthouse has both in it.
    """
    if early.step is None or late.step is None or early.step.quorum_id != late.step.quorum_id:
        return False
    entered = {head.name: head.enqueued for head in across(early)}
    both = all(history.in_quorum(track.group) for track in (early, late))
    return any(
        entered[head.name] + 1 == (head.inside or head.completed + 1) <= head.enqueued
        and (entered[head.name] > 0 or both)
        for head in across(late)
        if head.name in entered
    )


def _judge(
    history: History,
    graph: WaitGraph,
    ahead: Sequence[RankTrack],
    behind: Sequence[RankTrack],
    op: str,
    *,
    lacks: bool | None = None,
    within: tuple[str, str] = ("quorum of the next step", "this one"),
) -> Iterable[Verdict]:
    """`lacks`: whether those ahead left it out; None: the fewer are to blame, if they are."""
    early, late = (tuple(sorted(t.rank for t in side)) for side in (ahead, behind))
    still_s = min(track.stall_s for track in (*ahead, *behind))
    reason = (
        f"{listed(early)} {plural(early, 'waits', 'wait')} in the {within[0]}, "
        f"{listed(late)} in the {op} of {within[1]}, for {seconds(still_s)}: "
    )
    began_s = history.now_s - max(track.stall_s for track in ahead)
    failed = any(t.failed and t.failed[-1][0] > began_s - _AROUND_S for t in ahead)
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
    for some in [culprits] if tie else _by_group(culprits):
        yield Verdict(
            kind=Kind.MISMATCH,
            culprits=tuple(sorted(some)),
            groups=groups_of(some),
            reason=reason,
            confidence=Confidence.UNSURE if tie or failed else Confidence.LIKELY,
            since_s=history.now_s - still_s,
            victims=tuple(sorted({*early, *late, *graph.victims(some)} - set(some))),
            evidence={"source": "TorchFT's own calls, heads and records of process groups"},
            signature=f"mismatch:left out:{op}",
        )


def _by_group(ranks: Sequence[RankName]) -> list[tuple[RankName, ...]]:
    return [
        tuple(rank for rank in ranks if groups_of([rank]) == (group,)) for group in groups_of(ranks)
    ]
