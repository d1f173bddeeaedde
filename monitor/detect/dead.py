"""Dead processes and lost hosts (class D), and hangs that ended in deaths.

Theory of operation. The dead keep their edges: whom a rank waited for when it was last seen
(`History.held`), how it ended (`endings`), where it stood, and what its records show. A rank that
gave up on others died of the one that it waited for, even if another ended first. If that one stood
still by itself, until its launcher ended it or to this day, the hang is the fault and the deaths
are its consequence. If it had left its collectives behind and ended with exit code 0, it left
early. Only a rank with an end of its own is blamed for its death.

A death may also follow from one in another group: torchft's DDP ends survivors when a peer dies
inside an all-reduce, and TorchFT's timeouts end ranks that wait. So a group that has not committed
since a rank of another group died, and that shows no reason of its own for its end, died of that:
it is a victim, and the first death is blamed, even once all are gone.

A job whose ranks all end at about the same time is reported without an accusation if they ended
alike, by an error. If all are done or were asked to end it is over, and nothing is reported; so is
what is left of a job after earlier deaths.

A WorkerServer that cannot be reached is no dead rank: the server itself may be gone. A process is
dead when its WorkerServer says so. Hosts count as lost only when every WorkerServer there is silent
and the group's heartbeat, a second channel, is stale too; where other hosts of the group still
answer, the Manager must have been on a silent one, and all that answer stand still. The kernels of
other hosts are a third channel: where they send to the host and get no acknowledgement, seconds are
enough, and they stand for the heartbeat of a host without a Manager.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, takewhile
from operator import attrgetter
from typing import Final

from lightkeeper.monitor.detect.endings import (
    End,
    end_in_words,
    end_of,
    finished,
    is_gone,
    perhaps_asked,
)
from lightkeeper.monitor.detect.graph import WaitGraph
from lightkeeper.monitor.detect.history import Held, History
from lightkeeper.monitor.detect.links import Edge
from lightkeeper.monitor.detect.patience import allowance, at_work
from lightkeeper.monitor.detect.recorded import MISSING, before_death, opinion, waits_by_stack
from lightkeeper.monitor.detect.track import RankTrack, inside_own_group, of_own_group
from lightkeeper.monitor.detect.wording import (
    gave_up,
    of_death,
    of_hang,
    ranks_named,
    scheduler_says,
    stood_in,
    waits_for,
    waits_in,
    why_it_died,
)
from lightkeeper.monitor.model.names import GroupName, Host, RankName
from lightkeeper.monitor.model.verdict import TAKEN, Confidence, Kind, RankStanding, Verdict
from lightkeeper.monitor.model.wording import does, listed, plural, seconds
from lightkeeper.worker_server.wire import ACROSS, RingEntry, Testimony, Weight, printable_line

_SHOWN: Final = 8
_SEEN_LATE_S: Final = 1.0
"""How much later than another WorkerServer one on a busy host may see a death: it exceeded
`death_slack_s` at a load of 8 on two cores (2026-11-24). Launchers wait longer between SIGTERM and
SIGKILL."""
_HANG_S: Final = 3.0
"""A rank that only records show missing hung if it stood longer: a peer that dies is lost at once,
and polls see moves a second late."""
_ALONE_S: Final = 3.0
"""A commit later than this after a death, and than two steps, was made without the dead rank."""
_TOGETHER_S: Final = 1.0
"""A younger death in the only group is seen once more before it counts: the job may be ending."""
_UNACKNOWLEDGED_S: Final = 2.5
_SILENT_S: Final = 3.0
_EXPIRED_S: Final = 0.7
_UNHEARD_S: Final = 4.3
"""A host with the word of three channels is lost once its heartbeat is older than this, and than
the Lighthouse's timeout by `_EXPIRED_S`: at the default of 5 s a link that is down for 6 s is no
lost host, and at 1.5 s one that is down for 4 s is none."""
_WITHOUT_A_HEARTBEAT_S: Final = 6.0
_BEATS_S: Final = 10.0
"""Of silence; this long if its Manager's heartbeat still arrives."""
_BY_EDGES: Final = "whom they waited for when they were last seen"
_BY_RECORDS: Final = "flight records of the dead"
_BY_ITSELF: Final = frozenset({End.OWN, End.KILLED})
_NOT_ITS_OWN: Final = frozenset({End.PEERS, End.ASKED})


def dead(history: History, graph: WaitGraph) -> Iterable[Verdict]:
    """Replica groups that lost a process: one verdict each."""
    faultless = over(history)
    lost = {
        group: gone
        for group, members in history.groups().items()
        if (gone := _lost_for_good(members, faultless))
    }
    early = [
        verdict
        for members in history.groups().values()
        if (verdict := _left_early(history, graph, members)) is not None
    ]
    if not early and _over_together(history):
        yield from _alike(history)
        return
    yield from early
    follows = _followers(history, lost)
    explained = {*follows, *(group for verdict in early for group in verdict.groups)}
    for group, gone in lost.items():
        if group in explained or _still_hangs(history, graph, gone) or _is_ending(history, gone):
            continue
        hang = _ended_hang(history, graph, group, gone)
        yield _as_told(history, hang or _verdict(history, graph, group, gone, follows))
    for group, members in history.groups().items():
        if group not in lost and (away := _on_lost_hosts(history, members)):
            yield _as_told(history, *_lost(history, graph, group, away))


def over(history: History) -> frozenset[RankName]:
    """Ranks that ended without a fault: work done, or the whole job was asked to end."""
    gone = [track for track in history.present() if is_gone(track)]
    if not gone:
        return frozenset()
    asked = _over_together(history) and not [*_alike(history)]
    last = {track.rank for track in gone} if asked else _ended_last(history)
    return frozenset(
        t.rank for t in gone if finished(t) or (t.rank in last and end_of(t) is End.ASKED)
    )


# -- the whole job -----------------------------------------------------------------------------


def _over_together(history: History) -> bool:
    """True if all ranks ended at about the same time, and alike: nobody is to blame."""
    tracks = [track for track in history.present() if track.report is not None]
    died_s = [track.died_s for track in tracks if track.died_s is not None]
    if not tracks or len(died_s) < len(tracks):
        return False
    if max(died_s) - min(died_s) > history.config.job_end_s:
        return False
    ends = {end_of(track) for track in tracks}
    if ends <= {End.DONE, End.ASKED} or any(map(_interrupted, tracks)):
        return not ends & _BY_ITSELF
    silent = all(_without_a_word(track) for track in tracks)
    return silent or _one_error(tracks) or ends == {End.KILLED}


def _ended_last(history: History) -> frozenset[RankName]:
    """Ranks that were asked to end, all at about the same time, when nobody else was left."""
    tracks = [track for track in history.present() if track.report is not None]
    if not tracks or not all(map(is_gone, tracks)):
        return frozenset()
    tracks.sort(key=attrgetter("death_s"), reverse=True)
    first_s = tracks[0].death_s - history.config.job_end_s
    asked = takewhile(lambda t: t.death_s >= first_s and end_of(t) in (End.DONE, End.ASKED), tracks)
    return frozenset(track.rank for track in asked)


def _interrupted(track: RankTrack) -> bool:
    """True if Ctrl-C ended it: a person's doing."""
    ctrl_c = _signal(track) == "SIGINT" or _exception(track) == "KeyboardInterrupt"
    return ctrl_c and end_of(track) is End.ASKED


def _is_ending(history: History, gone: Sequence[RankTrack]) -> bool:
    """True if Ctrl-C has just ended ranks of the only group: those that wait in C++ end later."""
    lately = history.now_s - min(track.death_s for track in gone) < history.config.job_end_s
    alone = lately and len(history.groups()) == 1 and any(map(_interrupted, gone))
    return alone and all(end_of(track) in _NOT_ITS_OWN for track in gone)


def _exception(track: RankTrack) -> str:
    return "" if track.ending is None else track.ending.raised


def _signal(track: RankTrack) -> str | None:
    return None if track.report is None else track.report.process.exit_signal


def _without_a_word(track: RankTrack) -> bool:
    """True if nothing is known of its end, or it is done."""
    code = None if track.report is None else track.report.process.exit_code
    return not (code or _signal(track) or _exception(track))


def _one_error(tracks: Sequence[RankTrack]) -> bool:
    """True if several ranks raised the same error at the same place, and none another."""
    own = [track for track in tracks if end_of(track) is End.OWN]
    rest = {end_of(track) for track in tracks} - {End.OWN}
    same = {of_death(track) for track in own}
    return len(own) > 1 and len(same) == 1 and "" not in same and rest <= _NOT_ITS_OWN


def _alike(history: History) -> Iterable[Verdict]:
    """The end of a job that ended as a whole, if it was no fault of a rank but no good end."""
    gone = sorted((t for t in history.present() if is_gone(t)), key=attrgetter("death_s"))
    bad = [track for track in gone if end_of(track) in _BY_ITSELF]
    if not bad or any(map(_interrupted, gone)):
        return
    first_s = gone[0].death_s
    span = seconds(gone[-1].death_s - first_s)
    ago = seconds(history.now_s - first_s)
    own = [track for track in bad if end_of(track) is End.OWN]
    if not own and (history.away is not None or history.unfollowed() is not None):
        return  # all waited for the Lighthouse: `lighthouse_away` says so
    same = f"{listed([t.rank for t in own])} raised the same error, " if own else ""
    reason = f"all {len(gone)} ranks of the job ended within {span}, {ago} ago: {same}"
    reason += why_it_died(bad[0]) + (": the program, and no rank" if own else "")
    yield Verdict(
        kind=Kind.DEAD,
        reason=reason,
        since_s=first_s,
        victims=tuple(sorted(track.rank for track in gone)),
        evidence=_how(gone),
        signature=of_death(bad[0]),
        settled=True,
    )


# -- a hang that ended -------------------------------------------------------------------------


def _edge(history: History, track: RankTrack) -> Held | None:
    """Whom a rank waited for when it ended, if that was seen."""
    held = history.held.get(track.rank)
    recent = held is not None and track.death_s - held.seen_s <= history.config.ending_s
    return held if recent else None


def _gave_up(history: History, track: RankTrack) -> bool:
    """True if it ended because of a rank that did not come, or is gone: its exception says so, or
    it raised something in C++ (autograd's) while it was seen to wait.
    """
    end = end_of(track)
    raised = end is End.UNKNOWN and bool(_exception(track)) and _signal(track) is None
    return end is End.PEERS or (raised and _edge(history, track) is not None)


@dataclass(frozen=True, slots=True)
class _GivenUp:
    """Ranks of one group that ended because others did not come, and whom they waited for."""

    waiters: tuple[RankTrack, ...]
    edges: Mapping[RankName, Held]
    names: frozenset[RankName]
    """The ends of their waits, alive or not."""
    finding: str = ""
    """What records say of it, where no poll has seen the wait."""

    @property
    def first_s(self) -> float:
        return min(track.death_s for track in self.waiters)

    @property
    def since_s(self) -> float:
        """When the first of them began to wait: seen, or its last move."""
        moved_s = (track.moved_s or self.first_s for track in self.waiters)
        began_s = (held.since_s for held in self.edges.values()) if self.edges else moved_s
        return min(self.first_s, *began_s)


def _given_up(history: History, group: GroupName, gone: list[RankTrack]) -> _GivenUp | None:
    """None: nobody gave up, or an error of a rank's own explains it."""
    waiters = tuple(track for track in gone if _gave_up(history, track))
    if not waiters or any(end_of(track) is End.OWN for track in gone):
        return None
    edges = {t.rank: held for t in waiters if (held := _edge(history, t)) is not None}
    if edges:
        names = frozenset(rank for held in edges.values() for rank in held.holders)
        return _GivenUp(waiters, edges, names)
    return _GivenUp(waiters, edges, *_missing_by_records(history, group, gone))


def _how(gone: Sequence[RankTrack]) -> dict[str, str]:
    return {t.rank: why_it_died(t) or "how is not known" for t in gone[:_SHOWN]}


def _stood(end: _GivenUp, tracks: Sequence[RankTrack]) -> str:
    """Where they stood, and until when; empty if only records show who was missing."""
    if end.finding and not any(t.report is not None and t.report.witness for t in tracks):
        return ""
    return stood_in(tracks, [end_in_words(t, launcher=True) if is_gone(t) else "" for t in tracks])


def _works(track: RankTrack) -> str:
    """`job.0 read and wrote 12 MB/s there`: what the kernel saw of work that lasts."""
    bytes_s = 0.0 if track.used is None else track.used.bytes_s or 0.0
    cores = 0.0 if track.used is None else track.used.cores or 0.0
    if bytes_s >= 1e5:
        return f"{track.rank} read and wrote {bytes_s / 1e6:.3g} MB/s there"
    return f"{track.rank} used {cores:.2g} cores there"


def _ended_hang(
    history: History, graph: WaitGraph, group: GroupName, gone: list[RankTrack]
) -> Verdict | None:
    """The hang for which ranks of the group gave up; None if there was none.

    Who stood still did so until its launcher ended it, or still stands. One that ended by an error
    of its own, or in another group, has a verdict of its own.
    """
    end = _given_up(history, group, gone)
    stood = [] if end is None else _stood_among(history, group, end)
    if end is None or not stood or (end.finding and len(stood) < len(end.names)):
        return None
    culprits = tuple(track.rank for track in stood)
    works = [track for track in stood if at_work(track)]
    victims = {track.rank for track in gone} | set(graph.victims(culprits))
    what = _stood(end, stood)
    said = [what or end.finding]
    said += [gave_up(t, end.edges.get(t.rank), culprits) for t in end.waiters[:_SHOWN]]
    if works:
        said.append(f"{listed([*map(_works, works)])}: the timeout is shorter than that work")
    return Verdict(
        kind=Kind.NOT_ENTERED,
        culprits=culprits,
        reason="; ".join(said),
        brief=what,
        confidence=Confidence.UNSURE if works else Confidence.LIKELY,
        since_s=end.since_s,
        victims=tuple(sorted(victims - set(culprits))),
        evidence=_how(gone) | {"source": _BY_RECORDS if end.finding else _BY_EDGES},
        signature=of_hang(stood),
        settled=True,
    )


def _still_hangs(history: History, graph: WaitGraph, gone: list[RankTrack]) -> bool:
    """True if all of them gave up on ranks that the graph names now: that hang is the fault."""
    edges = [_edge(history, track) for track in gone]
    return all(_gave_up(history, track) for track in gone) and all(
        held is not None and set(held.holders) & set(graph.roots) for held in edges
    )


def _missing_by_records(
    history: History, group: GroupName, gone: list[RankTrack]
) -> tuple[frozenset[RankName], str]:
    """The ranks that the records of a group show missing since its first death, and why."""
    said = opinion(history, group, within_s=history.now_s - min(track.death_s for track in gone))
    for finding, ranks in said.accusing:
        if finding.kind in MISSING:
            return frozenset(ranks), finding.reason.rstrip(".")
    return frozenset(), ""


def _stood_among(history: History, group: GroupName, end: _GivenUp) -> list[RankTrack]:
    """Those of the group that stood still when the first of their waiters gave up."""
    tracks = [history.tracks[rank] for rank in sorted(end.names) if rank in history.tracks]
    before_s = end.first_s - _HANG_S
    return [
        track
        for track in tracks
        if track.group == group
        and _stood_until(track, end.first_s)
        and (not end.finding or track.moved_s is None or track.moved_s < before_s)
    ]


def _stood_until(track: RankTrack, first_s: float) -> bool:
    """True if it stood still then: it lives without a move since, or somebody else ended it."""
    if is_gone(track):
        ended = end_of(track) in (End.ASKED, End.KILLED)
        return ended and track.death_s >= first_s - _SEEN_LATE_S
    return track.moved_s is None or track.moved_s < first_s


# -- left early --------------------------------------------------------------------------------


def _left_early(
    history: History, graph: WaitGraph, members: tuple[RankTrack, ...]
) -> Verdict | None:
    """Ranks that ended with exit code 0 while others of their group were inside a collective.

    Those wait until their timeout, or have given up by now.
    """
    done = [t for t in members if is_gone(t) and end_of(t) is End.DONE]
    if not done or len(done) == len(members):
        return None
    names = tuple(sorted(track.rank for track in done))
    seen, lost = _left_behind(history, graph, members, names)
    if not seen and not lost:
        return None
    asked = perhaps_asked(done)
    plain = bool(seen) or len(lost) + len(done) == len(members)
    return Verdict(
        kind=Kind.DEAD,
        culprits=names,
        reason=f"{listed(names)} left with exit code 0{asked}"
        + _what_they_left(history, names, seen, lost),
        confidence=Confidence.LIKELY if plain and not asked else Confidence.UNSURE,
        since_s=min(track.death_s for track in done),
        victims=tuple(sorted(track.rank for track in (*seen, *lost))),
        evidence={t.rank: end_in_words(t) for t in done[:_SHOWN]},
        signature="dead:left early",
        settled=True,
    )


def _what_they_left(
    history: History, names: Sequence[RankName], seen: list[RankTrack], lost: list[RankTrack]
) -> str:
    ranks = [track.rank for track in (*seen, *lost)]
    ended = [track for track in (*seen, *lost) if is_gone(track)]
    if not seen:
        why = why_it_died(ended[0])
        return f"; {listed(ranks)} lost {plural(names, 'it', 'them')} and ended after that: {why}"
    where = waits_in(history, [track.rank for track in seen]) or " in a collective"
    left = f" while {listed(ranks)} {plural(ranks, 'was', 'were')} still{where}, which "
    left += f"{plural(names, 'it', 'they')} never entered: left early"
    if ended:
        left += f"; {plural(ended, 'it', 'they')} ended after that: {why_it_died(ended[0])}"
    return left


def _left_behind(
    history: History, graph: WaitGraph, members: tuple[RankTrack, ...], names: tuple[RankName, ...]
) -> tuple[list[RankTrack], list[RankTrack]]:
    """Ranks that were seen waiting for these, now or until they gave up; and ranks that only lost a
    peer after these had left, where nobody else is to blame for that.
    """
    victims = set(graph.victims(names))
    waiting = [t for t in members if t.rank in victims and _stands_inside(history, graph, t)]
    ended = [t for t in members if is_gone(t) and end_of(t) is End.PEERS]
    left = [history.tracks[rank] for rank in names]
    seen = [t for t in ended if _waited_for(history, t, left)]
    if not all(end_of(t) in (End.DONE, *_NOT_ITS_OWN) for t in members if is_gone(t)):
        return [*waiting, *seen], []
    left_s = min(track.death_s for track in left) - _SEEN_LATE_S
    others = [t for t in ended if t not in seen and t.death_s >= left_s]
    return [*waiting, *seen], [t for t in others if _edge(history, t) is None]


def _waited_for(history: History, track: RankTrack, left: Sequence[RankTrack]) -> bool:
    """True if a rank that ended was seen waiting for one of these, or had entered what they had
    not.
    """
    held = _edge(history, track)
    if held is not None and any(other.rank in held.holders for other in left):
        return True
    ring = [head for other in left for head in other.heads if head.read_age_s is None]
    return any(
        head.name == own.name and head.enqueued < own.enqueued
        for own in track.heads
        if own.read_age_s is None and of_own_group(own, track)  # torch's are a second old at death
        for head in ring
    )


def _stands_inside(history: History, graph: WaitGraph, track: RankTrack) -> bool:
    standing = graph.standing[track.rank]
    inside = standing is RankStanding.HELD or waits_by_stack(track, standing)
    return inside and track.stall_s >= history.hang_after_s(track)


# -- dead --------------------------------------------------------------------------------------


def _followers(
    history: History, lost: Mapping[GroupName, list[RankTrack]]
) -> dict[GroupName, GroupName]:
    """Groups that died of another group's death -> that group, which may be back by now."""
    follows: dict[GroupName, GroupName] = {}
    for first_s, root in sorted((at_s, group) for group, at_s in history.fallen_s.items()):
        if root in follows:
            continue
        for group, gone in lost.items():
            died_s = min(track.death_s for track in gone)
            own = any(end_of(t) in _BY_ITSELF or (t.last_commit_s or 0.0) > first_s for t in gone)
            if group != root and group not in follows and first_s < died_s and not own:
                follows[group] = root
    return follows


def _verdict(
    history: History,
    graph: WaitGraph,
    group: GroupName,
    gone: list[RankTrack],
    follows: Mapping[GroupName, GroupName],
) -> Verdict:
    first_s, named, late = _first(history, gone)
    culprits = tuple(track.rank for track in named)
    died = [track.rank for track in gone if track.rank not in culprits]
    died += [
        track.rank
        for other, root in follows.items() if root == group
        for track in history.groups()[other] if is_gone(track)
    ]  # fmt: skip
    waiting = tuple(rank for rank in graph.victims(culprits) if rank not in died)
    alive = [t.rank for t in history.groups()[group] if t.fresh is not None and not is_gone(t)]
    what = _died(history, named, first_s)
    stranded = _stranded(history, gone, first_s, waits=bool(alive and waiting))
    confidence = _confidence(gone, named, late, stranded=stranded)
    strayed = _strayed_into(history, named[0]) if len(named) == 1 else None
    if without := _commit_without(history, group, named, first_s):
        confidence = Confidence.UNSURE
        what += f", and {listed(without)} of its group {plural(without, 'commits', 'commit')} "
        what += "without it: either it is not of that group, or the group does not need it"
    elif strayed is not None:
        confidence = Confidence.LIKELY
        what += f", in its first {strayed.op} at {strayed.site}, which no other rank has entered"
    return Verdict(
        kind=Kind.DEAD,
        culprits=culprits,
        reason="; ".join([what, *_what_followed(history, culprits, alive, died, waiting)]),
        brief=what,
        confidence=confidence,
        since_s=first_s,
        victims=tuple(sorted({*waiting, *died})),
        evidence={"host": ", ".join(history.hosts(culprits))}
        | {t.rank: f"pid {t.identity.pid} on {t.identity.host} is gone" for t in gone},
        signature=of_death(named[0]),
        settled=_settled(history, named, first_s),
    )


def _what_followed(
    history: History,
    culprits: Sequence[RankName],
    alive: Sequence[RankName],
    died: Sequence[RankName],
    waiting: Sequence[RankName],
) -> list[str]:
    """After a death: who of the group still runs, who ended after it, who waits."""
    clauses = []
    if alive:
        clauses.append(f"{listed(alive)} of its group still {plural(alive, 'runs', 'run')}")
    if died:
        ends = (history.tracks[rank].ending for rank in died if rank in history.tracks)
        details = sorted({end.detail for end in ends if end and end.exception and end.detail})
        clauses.append(": ".join([f"{listed(sorted(died))} ended after it", *details]))
    if waiting:
        clauses.append(waits_for(history, waiting, culprits))
    return clauses


def _commit_without(
    history: History, group: GroupName, named: Sequence[RankTrack], died_s: float
) -> list[RankName]:
    """Ranks of a group that commit since one of its ranks died, or did before that one came, which
    has no commit of its own. In one world they could not: a rank that claims to be of this group
    contradicts them, and would end the group by its word alone.
    """
    came_s = min(track.first_seen_s for track in named)
    new = all(track.commits == 0 for track in named)
    return [
        track.rank
        for track in history.groups()[group]
        if not is_gone(track) and track.last_commit_s is not None
        if track.last_commit_s > died_s + max(_ALONE_S, 2 * (track.step_s or 0.0))
        or (new and (track.first_commit_s or came_s) < came_s)
    ]


def _settled(history: History, named: Sequence[RankTrack], first_s: float) -> bool:
    """True if it counts at once: how it ended is known, and the job has other groups or has had the
    time to end as a whole.
    """
    alone = len(history.groups()) == 1 and history.now_s - first_s < _TOGETHER_S
    return not alone and any(end_of(track) is not End.UNKNOWN for track in named)


def _stranded(history: History, gone: list[RankTrack], first_s: float, *, waits: bool) -> bool:
    """True if ranks of its group have waited for longer than a job that is asked to end takes."""
    end_s = first_s + history.config.job_end_s
    return (waits and history.now_s >= end_s) or any(track.death_s >= end_s for track in gone)


def _first(
    history: History, gone: list[RankTrack]
) -> tuple[float, list[RankTrack], list[RankTrack]]:
    """When the first of a group's ranks died, whom to name for it, and those of them that were seen
    to die after it.

    A rank with an end of its own comes before any that lost a peer or was asked to end, within the
    time by which a busy host may see a death late. One that died in a wait comes first only where
    those it waited for lost a peer, or were asked to end, after it.
    """
    first_s = min(track.death_s for track in gone)
    own = [track for track in gone if not _waited_for_another(track, gone)] or gone
    if all(end_of(track) in _NOT_ITS_OWN and track.death_s > first_s for track in own):
        own = gone
    first_s = min(track.death_s for track in own)
    slack_s = history.config.death_slack_s
    sent = _sent_to_all(gone)
    if len(sent) > 1 and sent[0].death_s <= first_s:
        return first_s, sorted(sent, key=attrgetter("rank")), []
    first = [track for track in own if track.death_s - first_s <= slack_s]
    if late := _seen_late(own, first):
        return first_s, late, late
    for others in (_NOT_ITS_OWN, {End.ASKED}):
        if named := [track for track in first if end_of(track) not in others]:
            return first_s, named, []
    return first_s, first, []


def _sent_to_all(gone: Sequence[RankTrack]) -> list[RankTrack]:
    """Ranks that one signal from outside ended at about the same time, by the time of their deaths:
    which end was seen first says nothing. A launcher that ends the rest of its group sends SIGTERM
    or SIGKILL.
    """
    killed = [t for t in gone if end_of(t) is End.KILLED and _signal(t) != "SIGKILL"]
    killed.sort(key=attrgetter("death_s"))
    same = len({_signal(track) for track in killed}) == 1
    return [t for t in killed if same and t.death_s - killed[0].death_s <= _SEEN_LATE_S]


def _confidence(
    gone: Sequence[RankTrack],
    named: Sequence[RankTrack],
    late: Sequence[RankTrack],
    *,
    stranded: bool,
) -> Confidence:
    """Unsure where somebody else may have ended it, or where it only lost a peer."""
    ends = {end_of(track) for track in named}
    if ends == {End.PEERS} or (ends == {End.ASKED} and not stranded):
        return Confidence.UNSURE
    if any(end_of(track) is End.KILLED for track in late):
        return Confidence.UNSURE  # a launcher may have sent it after seeing the first
    if len(gone) > 1 and all(_unclear(track) for track in named):
        return Confidence.UNSURE
    return Confidence.LIKELY if late else Confidence.CERTAIN


def _unclear(track: RankTrack) -> bool:
    """True if it ended by an error that may be of its own or of a peer's doing: C++ raises about
    both, and aborts for both.
    """
    error = bool(_exception(track)) or _signal(track) == "SIGABRT"
    return end_of(track) is End.UNKNOWN and error


def _strayed_into(history: History, track: RankTrack) -> RingEntry | None:
    """The collective in which C++ ended a rank, where the rank alone was out of its way: its record
    shows no earlier call from that line, and none of the others, two at least, has entered, by
    records read since it died. They lost it in another, or their launcher ended them before they
    could say so.
    """
    calls = _calls_at_death(history, track)
    others = [mate for mate in history.groups()[track.group] if mate.rank != track.rank]
    if not calls or not _unclear(track) or len(others) < 2:
        return None
    *earlier, last = calls
    if last.site in {None, *(call.site for call in earlier)} or last.group.startswith(ACROSS):
        return None
    outside = all(_never_entered(history, mate, last) for mate in others)
    lost = any(end_of(mate) is End.PEERS or mate.death_s > track.death_s for mate in others)
    return last if last.exit_age_s is None and outside and lost else None


def _never_entered(history: History, track: RankTrack, call: RingEntry) -> bool:
    calls = {(each.group, each.seq) for each in _calls_at_death(history, track)}
    lost = is_gone(track) and end_of(track) in _NOT_ITS_OWN
    return lost and bool(calls) and (call.group, call.seq) not in calls


def _calls_at_death(history: History, track: RankTrack) -> tuple[RingEntry, ...]:
    """Those of its record, if that was read since it died."""
    reading = None if before_death(history, track) else history.reading(track)
    return () if reading is None else reading.calls


def _seen_late(gone: list[RankTrack], first: list[RankTrack]) -> list[RankTrack]:
    """Ranks that must have died before the first, though their WorkerServer saw it later.

    The first died because a peer was gone, or was asked to end, and another of its group died by
    itself right after. A launcher that ends the rest of a group mostly uses SIGTERM, and waits long
    enough.
    """
    if not all(end_of(track) in _NOT_ITS_OWN for track in first):
        return []
    until_s = min(track.death_s for track in first) + _SEEN_LATE_S
    return [t for t in gone if end_of(t) in _BY_ITSELF and t.death_s <= until_s]


def _died(history: History, tracks: list[RankTrack], first_s: float) -> str:
    ranks = [track.rank for track in tracks]
    why = next(filter(None, map(why_it_died, tracks)), "")
    ago_s = history.now_s - first_s
    when = f"died {seconds(ago_s)} ago" if ago_s >= 1 else "just died"
    sentence = f"{ranks_named(ranks)} {when}"
    if why:
        return f"{sentence}: {why}"
    phase = f" in phase {tracks[0].doing!r}," if tracks[0].phased else ""
    return f"{sentence},{phase} how is not known"


def _lost_for_good(members: Sequence[RankTrack], faultless: Container[RankName]) -> list[RankTrack]:
    """Ranks of a group that died and have no successor; none, if nobody's end was a fault."""
    gone = [
        track
        for track in members
        if is_gone(track)
        and not finished(track)
        and not any(t.predecessor is not None and t.first_seen_s > track.death_s for t in members)
    ]
    return [] if all(track.rank in faultless for track in gone) else gone


def _waited_for_another(track: RankTrack, gone: list[RankTrack]) -> bool:
    """True if a rank died inside a collective that another dead one had not entered."""
    return any(
        head.name == awaited.name and head.enqueued < awaited.inside
        for awaited in track.heads
        if inside_own_group(awaited, track)  # each rank's group across groups is a different one
        for other in gone
        for head in other.heads
    )


# -- lost hosts --------------------------------------------------------------------------------


def _on_lost_hosts(history: History, members: tuple[RankTrack, ...]) -> tuple[RankTrack, ...]:
    """Ranks on lost hosts; mostly empty. Without the word of other hosts' kernels, the host of the
    group's Manager is among them.
    """
    if all(_is_taken(history.ends.get(t.rank)) and _silent_for(history, t, _SILENT_S)
           for t in members):  # fmt: skip
        return members
    silent = tuple(track for track in members if _is_lost(history, track))
    lost = {track.rank for track in silent}
    others = [track for track in members if track.rank not in lost]
    apart = {t.identity.host for t in silent}.isdisjoint(t.identity.host for t in others)
    stands = silent and apart and all(_outlasts(history, track) for track in others)
    return silent if stands and _unheard(history, silent, others) else ()


def _unheard(history: History, silent: Sequence[RankTrack], others: Sequence[RankTrack]) -> bool:
    """True if a second channel does not hear them either: the heartbeat of the Manager among them,
    else the kernels of other hosts. Two of those raise a doubt in spite of a heartbeat, which is
    short, and may pass where a step's data does not.
    """
    edges = [_cut_off(history, track.identity.host) for track in silent]
    missed = all(edges)
    least_s = min(track.silence_s(history.now_s) for track in silent)
    if len({edge.host for edge in chain.from_iterable(edges)}) > 1 and least_s >= _BEATS_S:
        return True
    if not others or any(track.identity.group_rank == 0 for track in silent):
        return _stale(history, silent[0].group, sooner=missed)
    return missed and least_s >= _WITHOUT_A_HEARTBEAT_S


def _stale(history: History, group: GroupName, *, sooner: bool) -> bool:
    """True if the group's heartbeat is out of date for long; `sooner`: just longer than the
    Lighthouse's own timeout.
    """
    age_s = history.heartbeat_age_s(group) or 0.0
    expired = history.expired_for_s(group) >= _EXPIRED_S and age_s >= _UNHEARD_S
    return age_s >= history.config.host_lost_s or (sooner and expired)


def _is_lost(history: History, track: RankTrack) -> bool:
    """True if nothing comes from it any more."""
    sooner = _cut_off(history, track.identity.host) and _silent_for(history, track, _SILENT_S)
    return sooner or _silent_for(history, track, history.config.host_lost_s)


def _cut_off(history: History, host: Host) -> list[Edge]:
    """Connections of other hosts that send to this one and get no acknowledgement."""
    return history.links.to(host, _UNACKNOWLEDGED_S)


def _silent_for(history: History, track: RankTrack, limit_s: float) -> bool:
    """True if its WorkerServer has answered nothing for so long, and its work was not done."""
    silent = track.silence_s(history.now_s) >= limit_s
    missed = track.report is not None or _should_run(history, track)
    return silent and missed and not finished(track)


def _should_run(history: History, track: RankTrack) -> bool:
    """True if an earlier monitor called a rank lost that only it has heard, or the scheduler says
    that it should run. Otherwise it may have ended normally while nobody watched.
    """
    said = history.ends.get(track.rank)
    runs = said is not None and said.code in ("runs", "node-lost")
    return track.trained_as is not None and (runs or track.identity.incarnation in history.lost)


def _outlasts(history: History, track: RankTrack) -> bool:
    """True if it is seen to stand for longer than it may; beside a host that other kernels miss,
    whether it stands at all.
    """
    seen = track.fresh is not None and not finished(track)
    missed = bool(history.links.of(track.rank))
    least_s = history.still_after_s if missed else allowance(history, track).span_s
    return seen and track.stall_s >= least_s


def _lost(
    history: History, graph: WaitGraph, group: GroupName, gone: tuple[RankTrack, ...]
) -> tuple[Verdict, str]:
    """The verdict, and what its reason says besides that the host is lost."""
    culprits = tuple(track.rank for track in gone)
    hosts = history.hosts(culprits)
    edges = list(chain.from_iterable(_cut_off(history, host) for host in hosts))
    stale = history.expired_for_s(group) > 0 or _stale(history, group, sooner=False)
    beats = not stale and gone[0].identity.group_rank == 0

    since_s = min(t.silent_since_s for t in gone if t.silent_since_s is not None)
    others = tuple(t.rank for t in history.groups()[group] if t.rank not in culprits)
    who = listed(culprits) if others else group
    seen = f"no WorkerServer of {who} answers for {seconds(history.now_s - since_s)}"
    seen += f", and the heartbeat of {group} is stale" if stale else ""
    seen += "".join(f"; {edge.sentence()}" for edge in edges[:1])
    if others:
        seen += f"; {listed(others)} of the group {plural(others, 'stands', 'stand')}"
    verdict = Verdict(
        kind=Kind.DEAD,
        culprits=culprits,
        reason=f"{_state(who, hosts, gone, beats=beats)}: {seen}",
        confidence=_how_sure(beats=beats, stale=stale and bool(edges)),
        since_s=since_s,
        victims=tuple(sorted({*graph.victims(culprits), *others, *(e.rank for e in edges)})),
        evidence={
            "host": ", ".join(hosts),
            **{f"kernel of {edge.host}": edge.sentence() for edge in edges[:_SHOWN]},
            **dict.fromkeys(culprits, "unreachable"),
        },
        lost=True,
    )
    return verdict, seen


def _state(who: str, hosts: Sequence[Host], gone: Sequence[RankTrack], *, beats: bool) -> str:
    if beats or not all(track.refused for track in gone):
        state = f"{does(hosts, 'does')} not answer" if beats else f"{does(hosts, 'is')} lost"
        return f"{plural(hosts, 'host', 'hosts')} {state}"
    return f"all of {who} on {listed(hosts)} is gone at once, killed, or by a restart of the host"


def _how_sure(*, beats: bool, stale: bool) -> Confidence:
    """If the heartbeat arrives, only ranks that may be cut off themselves accuse it."""
    if beats:
        return Confidence.UNSURE
    return Confidence.CERTAIN if stale else Confidence.LIKELY


# -- what the scheduler says -------------------------------------------------------------------

_BY_OTHERS: Final = frozenset({End.ASKED, End.KILLED, End.UNKNOWN})
"""Ends that a scheduler can explain; an exception or an exit code is a rank's own word."""


def told(history: History, tracks: Iterable[RankTrack]) -> Testimony | None:
    """What schedulers say of the end of all these ranks: the first cause, or how one of them that
    nobody took away looks.
    """
    rows = [history.ends.get(track.rank) for track in tracks]
    ends = [row for row in rows if row is not None]
    ends.sort(key=lambda row: (_is_taken(row), -row.for_s))
    return ends[0] if ends and len(ends) == len(rows) else None


def _is_taken(said: Testimony | None) -> bool:
    return said is not None and said.weight in (Weight.LEAVING, Weight.ENDED)


def _as_told(history: History, verdict: Verdict, seen: str = "") -> Verdict:
    """The verdict with what the scheduler says of its ranks first; nobody is accused of a death
    that the scheduler brought about, but what is left of the group may have to go. `seen`: what is
    said then of ranks that are not known to have ended.
    """
    tracks = [history.tracks[rank] for rank in verdict.suspects]
    said = told(history, tracks)
    gone = [track for track in tracks if is_gone(track)]
    taken = _is_taken(said)
    own = gone and not (taken and _BY_OTHERS.issuperset(map(end_of, gone)))
    if said is None or verdict.kind is not Kind.DEAD or own:
        return verdict
    head = _parted(history, verdict, said)
    witness = {TAKEN if taken else "scheduler": printable_line(f"{said.witness}: {said.text}")}
    verdict = replace(
        verdict,
        reason=f"{head}; {verdict.reason if gone else seen}",
        brief=head,
        evidence={**verdict.evidence, **witness},
    )
    members = history.groups()[verdict.groups[0]]
    if not taken or any(track.fresh is not None and not is_gone(track) for track in members):
        return verdict
    why = "it did not fail by itself: nobody is accused"
    return replace(verdict, confidence=Confidence.UNSURE, spare=why)


def _parted(history: History, verdict: Verdict, said: Testimony) -> str:
    group, ranks = verdict.groups[0], verdict.suspects
    hosts = listed(history.hosts(ranks))
    who = f"{group if len(ranks) == len(history.groups()[group]) else listed(ranks)} on {hosts}"
    silent_s = min(history.tracks[rank].silence_s(history.now_s) for rank in ranks)
    return scheduler_says(who, hosts, said, silent_s, history.now_s)
