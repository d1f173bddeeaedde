"""Verdicts in the words of a person who had looked: who, where, how long, who waits. Pure.

Each verdict's first sentence is built here from fields: the stack's user frame and its known
activity, the exception of a dead rank, what the others wait in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, auto
from typing import Final

from lightkeeper.monitor.detect.graph import Stuck
from lightkeeper.monitor.detect.history import Held, History
from lightkeeper.monitor.detect.pace import Blame, Pace
from lightkeeper.monitor.detect.patience import LASTS, at_work
from lightkeeper.monitor.detect.track import RankTrack
from lightkeeper.monitor.model.grouping import grouped
from lightkeeper.monitor.model.names import (
    GroupName,
    RankName,
    ReplicaId,
    group_of,
    group_of_replica,
    unseen_name,
)
from lightkeeper.monitor.model.observation import stopped
from lightkeeper.monitor.model.verdict import RankStanding
from lightkeeper.monitor.model.wording import listed, plural, rfc3339, seconds
from lightkeeper.worker_server.wire import (
    WAIT_COMMIT,
    WAIT_HEAL,
    WAIT_QUORUM,
    WAITING_PHASE,
    Doing,
    Ending,
    Frame,
    Testimony,
    Tracer,
    Trouble,
    Weight,
    Witness,
    one_line,
)

# -- sentence ----------------------------------------------------------------------------------

DOING: Final[Mapping[Doing, str]] = {
    Doing.LOCK: "waiting for a lock",
    Doing.SLEEP: "sleeping",
    Doing.IO: "blocked on a file, a pipe or a socket",
    Doing.DATA: "waiting for its data loader",
    Doing.PROCESS: "waiting for another process",
    Doing.COLLECTIVE: "waiting for other ranks",
    Doing.STORE: "waiting for a store",
    Doing.GROUP: "creating a process group",
    Doing.COMPILE: "compiling",
    Doing.SAVE: "saving or loading a checkpoint",
    Doing.EVALUATE: "evaluating",
    Doing.START: "importing or starting",
}
_GAVE_UP_SHOWN: Final = 3
_HANGS: Final = ("hangs", "hang")
_HELD: Final[Mapping[RankStanding, tuple[str, str]]] = {
    RankStanding.STOPPED: ("is stopped by a signal (state T)", "are stopped by a signal (state T)"),
    RankStanding.FROZEN: ("holds the GIL, so that no Python runs,", "hold the GIL, each its own,"),
    RankStanding.SILENT: (
        "is stuck in the kernel, on a disk or a file server (state D),",
        "are stuck in the kernel, on a disk or a file server (state D),",
    ),
    RankStanding.LEFT: (
        "is still inside a collective that its peers have completed",
        "are still inside a collective that their peers have completed",
    ),
}
_WAITS: Final = {
    WAIT_QUORUM: "the quorum",
    WAIT_HEAL: "the new quorum's process groups or weights",
    WAIT_COMMIT: "the commit vote",
}


def named(ranks: Sequence[RankName]) -> str:
    """`rank rg_1.0`, `ranks rg_1.0 and rg_1.1`."""
    return f"{plural(ranks, 'rank', 'ranks')} {listed(ranks)}"


def hangs(
    history: History,
    roots: Sequence[RankTrack],
    standing: Mapping[RankName, RankStanding],
    for_s: float,
) -> str:
    """`rank rg_1.0 hangs in Deadlock.log_step (train.py:66), waiting for a lock, for 12 s`."""
    holds = [(track, _held_by(track, standing)) for track in roots]
    places = grouped(((hold, _place(track, hold in _HELD)), track.rank) for track, hold in holds)
    said = [
        f"{named(ranks)} {plural(ranks, *_HELD.get(hold, _verb(history.tracks[ranks[0]])))}{place}"
        for (hold, place), ranks in places.items()
    ]
    usual_s = max(history.learned_step_s(track) for track in roots)
    usual = f" (a step takes {seconds(usual_s)})" if usual_s > 0 else ""
    said[:-1] = [clause.rstrip(",") for clause in said[:-1]]
    return f"{', and '.join(said)} for {seconds(for_s)}{usual}"


_BRIEFLY: Final[Mapping[RankStanding, tuple[str, str, str]]] = {
    RankStanding.STOPPED: ("is stopped by a signal", "are stopped by a signal", ""),
    RankStanding.FROZEN: (*_HANGS, ", GIL held"),
    RankStanding.SILENT: (*_HANGS, ", stuck in the kernel"),
    RankStanding.LEFT: (*_HANGS, ", inside a collective that its peers have left"),
}


def hangs_briefly(roots: Sequence[RankTrack], standing: Mapping[RankName, RankStanding]) -> str:
    """`rank rg_1.0 hangs in log_step (train.py:66), GIL held`; what the roots have in common."""
    ranks = tuple(track.rank for track in roots)
    holds = {_held_by(track, standing) for track in roots}
    places = {_place(track, True).rstrip(",") for track in roots}
    single, many, cause = *_HANGS, ""
    if len(holds) == 1:
        single, many, cause = _BRIEFLY.get(holds.pop(), (*_verb(roots[0]), ""))
    place = places.pop() if len(places) == 1 else ""
    return f"{named(ranks)} {plural(ranks, single, many)}{place}{cause}"


def _held_by(track: RankTrack, standing: Mapping[RankName, RankStanding]) -> RankStanding:
    hold = standing[track.rank] if standing[track.rank] in _HELD else RankStanding.ALONE
    if hold is RankStanding.FROZEN and track.state == "D":
        hold = RankStanding.SILENT  # no Python runs either, and it is not the GIL
    return hold


def stood_in(roots: Sequence[RankTrack], ends: Sequence[str]) -> str:
    """`rank job.0 stood in flush (train.py:22), waiting for a lock, until it was ended by its
    launcher (SIGTERM)`; an empty end: it still stands there.
    """
    both = zip(roots, ends, strict=True)
    places = grouped(((_place(track, lasts=True), end), track.rank) for track, end in both)
    return " and ".join(
        f"{named(ranks)} stood{place or ' outside of any collective'} until "
        f"{plural(ranks, 'it', 'each')} {end}"
        if end
        else f"{named(ranks)} {plural(ranks, 'stands', 'stand')}{place}".rstrip(",")
        for (place, end), ranks in places.items()
    )


def with_places(reason: str, tracks: Iterable[RankTrack]) -> str:
    """What records say, and where stacks show the ranks whose calls have no line there: C++ made
    them, as in DDP's backward.
    """
    unseen = [
        track
        for track in tracks
        if track.fresh is not None
        and track.fresh.process.alive
        and (seen := track.witness) is not None
        and f"{seen.frame.file}:{seen.frame.line}" not in reason
    ]
    return f"{reason.rstrip('.')}; {stood_in(unseen, [''] * len(unseen))}" if unseen else reason


def waits_for(history: History, victims: Sequence[RankName], culprits: Sequence[RankName]) -> str:
    """`rg_0.0 and rg_2.0 wait for it in the quorum`."""
    if not victims:
        return "nobody is seen waiting for it"
    whom = "it" if len(culprits) == 1 else "them"
    return f"{listed(victims)} {plural(victims, 'waits', 'wait')} for {whom}" + waits_in(
        history, victims
    )


def waits_in(history: History, ranks: Iterable[RankName]) -> str:
    """` in the quorum`, ` in all_reduce`: where most of them wait; empty if not seen."""
    places = Counter(
        place
        for rank in ranks
        if (track := history.tracks.get(rank)) is not None and (place := _waits_in(track))
    )
    return f" in {places.most_common(1)[0][0]}" if places else ""


def gave_up(track: RankTrack, held: Held | None, culprits: Sequence[RankName]) -> str:
    """`job.1 gave up after 8.2 s of waiting for it in all_reduce (its timeout is 8.0 s): ...`."""
    timeouts = {} if track.report is None else track.report.timeouts
    limit_s = timeouts.get("collective")
    after = "" if held is None else f" after {seconds(track.death_s - held.since_s)} of"
    own = "" if limit_s is None else f" (its timeout is {seconds(limit_s)})"
    whom = plural(culprits, "it", "them")
    where = _waits_in(track)
    place = f" in {where}" if where else ""
    return f"{track.rank} gave up{after} waiting for {whom}{place}{own}: {why_it_died(track)}"


def gave_up_on(history: History, culprits: Sequence[RankName]) -> str:
    """What to add of ranks that gave up on these and ended; empty: none did."""
    ended = [
        (track, held)
        for rank, held in history.held.items()
        if set(held.holders) & set(culprits)
        and (track := history.tracks.get(rank)) is not None
        and track.died_s is not None
        and track.ending is not None
        and track.ending.of_peers is not False
        and track.ending.exception is not None
    ]
    return "".join(f"; {gave_up(track, held, culprits)}" for track, held in ended[:_GAVE_UP_SHOWN])


def working(tracks: Sequence[RankTrack]) -> str:
    """`job.0 was writing or reading 12 MB/s there`: what the kernel saw of work that lasts."""
    said = []
    for track in tracks:
        used = track.used
        moved, cores = (0.0, 0.0) if used is None else (used.bytes_s or 0.0, used.cores or 0.0)
        what = (
            f"read and wrote {moved / 1e6:.3g} MB/s" if moved >= 1e5 else f"used {cores:.2g} cores"
        )
        said.append(f"{track.rank} {what} there")
    return listed(said)


def what_followed(
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
        details = sorted({end.detail for end in ends if end is not None and end.detail is not None})
        clauses.append(": ".join([f"{listed(sorted(died))} ended after it", *details]))
    if waiting:
        clauses.append(waits_for(history, waiting, culprits))
    return clauses


def where_they_wait(tracks: Iterable[RankTrack]) -> list[str]:
    """`job.0 and job.2 wait in barrier at main (train.py:31)`, one clause for each place."""
    places: dict[tuple[str, str], list[RankName]] = {}
    for track in tracks:
        seen = None if track.report is None else track.report.witness
        call = _waits_in(track) or ("" if seen is None else seen.call or "")
        at = ("" if seen is None else f" at {seen.frame}") + _awaits(track)
        places.setdefault((f" in {call}" if call else "", at), []).append(track.rank)
    return [
        f"{listed(ranks)} {plural(ranks, 'waits', 'wait')}{call}{at}"
        for (call, at), ranks in places.items()
    ]


def hidden_errors(tracks: Iterable[RankTrack]) -> list[str]:
    """`0.0 had KeyError: 'ema' in state (train.py:41), which TorchFT hid from the program`."""
    return [
        f"{track.rank} had {track.witness.error}, which TorchFT hid from the program"
        for track in tracks
        if track.witness is not None and track.witness.error is not None
    ]


def looks(tracer: Tracer) -> str:
    """`gdb (pid 4711)`."""
    return f"{tracer.name} (pid {tracer.pid})"


def why_it_died(track: RankTrack) -> str:
    """What ended it, as far as known; empty: unknown."""
    report = track.report
    if report is None:
        return ""
    ending, process = report.ending, report.process
    if ending is not None and ending.exception is not None:
        where = "" if ending.frame is None else f" in {ending.frame}"
        return f"{ending.exception}{where}" + (f"; {ending.detail}" if ending.detail else "")
    if process.exit_signal in ("SIGTERM", "SIGINT"):
        return f"asked to end by {process.exit_signal}"
    if process.exit_signal is not None:
        return f"ended by {process.exit_signal}" + _sentence_of(ending, process.exit_signal)
    if process.exit_code is not None:
        return f"exit code {process.exit_code}"
    return ""


def _sentence_of(ending: Ending | None, signal: str) -> str:
    """What the WorkerServer's sentence adds to the bare signal, such as the OOM killer."""
    if ending is None or not ending.sentence.startswith(f"Killed by {signal}"):
        return ""
    return ending.sentence.removeprefix(f"Killed by {signal}").rstrip(".")


def what_they_do(tracks: Iterable[RankTrack]) -> list[str]:
    """For ranks not seen waiting: `rg_1.0 is in evaluate (train.py:80), evaluating`."""
    places = grouped(
        ("?" if track.fresh is None else _place(track, lasts=True).rstrip(","), track.rank)
        for track in tracks
    )
    return [
        f"{listed(ranks)} cannot be seen"
        if place == "?"
        else f"{listed(ranks)} {plural(ranks, 'is', 'are')}{place or ' moving'}"
        for place, ranks in places.items()
    ]


def _verb(track: RankTrack) -> tuple[str, str]:
    """`hangs`, or `has been evaluating`: work known to last does not hang, it takes too long."""
    seen = None if track.fresh is None else track.fresh.witness
    if seen is None or not _works(track, seen):
        return _HANGS
    doing = "reading or writing" if seen.doing is Doing.IO else DOING[seen.doing]
    return f"has been {doing}", f"have been {doing}"


def _works(track: RankTrack, seen: Witness) -> bool:
    return seen.doing in LASTS or at_work(track)


def _place(track: RankTrack, bare: bool = False, *, lasts: bool = False) -> str:
    """` in log_step (train.py:66), waiting for a lock,`: by its stacks, else by its phase."""
    seen = None if track.report is None else track.report.witness
    if seen is not None:
        if (seen.frame.file, seen.frame.function) == ("threading.py", "_shutdown"):
            return " at its end: its program is over, and a thread that is no daemon keeps it,"
        shown = not bare and seen.doing in DOING and (lasts or not _works(track, seen))
        doing = f", {DOING[seen.doing]}," if shown else ""
        awaits = _awaits(track)
        return f" in {seen.frame}{(awaits and f'{awaits},') or doing}"
    if track.phased:
        return f" in phase {track.doing!r}{_awaits(track)}"
    return "" if track.inside_any else " outside of any collective"


_SILENCE: Final = {
    Trouble.SILENT: "from which nothing comes",
    Trouble.UNANSWERED: "which does not answer",
    Trouble.MISSING: "to which it has no connection (refused, or a wrong address)",
    Trouble.UNACKNOWLEDGED: "which acknowledges nothing",
}


def _awaits(track: RankTrack) -> str:
    """`, waiting for 10.0.0.5:443, from which nothing comes`: a server, by the rank's kernel."""
    rows = () if track.report is None else track.report.connections
    for row in rows:
        if row.trouble in _SILENCE and row.use not in ("across", "within"):
            server = f"the {row.use} at {row.peer}" if row.use else row.peer
            return f", waiting for {server}, {_SILENCE[row.trouble]}"
    return ""


def _waits_in(track: RankTrack) -> str:
    if track.waits_in is not None:
        return _WAITS.get(track.waits_in, track.waits_in)
    if track.held:
        transfer = max(track.held, key=lambda head: head.age_s)
        return f"{'a send to' if transfer.sends else 'a receive from'} rank {transfer.peer}"
    inside = [h for h in track.heads if h.inside > 0 or h.enqueued > h.completed]
    if inside:
        return max(inside, key=lambda head: head.age_s).op
    if track.forming is not None:
        return track.forming.call
    return f"phase {track.doing!r}" if track.phased and track.doing == WAITING_PHASE else ""


# -- hang --------------------------------------------------------------------------------------

UNREAD: Final = "; its records cannot be read, so it may wait where heads do not show it"
_UNSEEN_SHOWN: Final = 4


class Skip(Enum):
    """Why some ranks are ahead while others wait for them in a call."""

    LEFT_OUT = auto()
    """Those ahead left the call out."""
    ONE_MORE = auto()
    """The others make it once too often."""
    EITHER = auto()


def hang_reason(
    history: History,
    roots: Sequence[RankTrack],
    standing: Mapping[RankName, RankStanding],
    for_s: float,
    victims: Sequence[RankName],
    *,
    all_pause: bool = False,
    doubt: str = "",
) -> str:
    """`rank rg_1.0 hangs in flush (train.py:22) for 12 s; rg_0.0 waits for it in the quorum`."""
    ranks = tuple(track.rank for track in roots)
    waiting = waits_for(history, victims, ranks)
    if all_pause:
        waiting = "all pause at once, so it may be the job"
    given_up = gave_up_on(history, ranks)
    return f"{hangs(history, roots, standing, for_s)}; {waiting}{doubt}{given_up}"


def held_by_tracers(
    history: History, traced: Sequence[RankTrack], for_s: float, victims: Sequence[RankName]
) -> str:
    """`rank rg_1.0 is held by gdb (pid 4711) for 12 s; rg_0.0 waits for it ...`."""
    ranks = tuple(track.rank for track in traced)
    tracers = [looks(track.tracer) for track in traced if track.tracer is not None]
    return (
        f"{named(ranks)} {plural(ranks, 'is', 'are')} held by {listed(tracers)} for "
        f"{seconds(for_s)}; {waits_for(history, victims, ranks)}; nobody is evicted while somebody "
        "looks"
    )


def cannot_be_seen(ranks: Sequence[RankName], waiting: Sequence[RankName], for_s: float) -> str:
    """For ranks that their own group waits for."""
    return (
        f"{listed(ranks)} cannot be seen for {seconds(for_s)}, and {listed(waiting)} of the same "
        f"group {plural(waiting, 'stands', 'stand')} in a collective that only "
        f"{plural(ranks, 'it has', 'they have')} not entered"
    )


def never_there(
    unknown: Sequence[RankName], waiting: Sequence[RankName], ops: Sequence[str], for_s: float
) -> str:
    """For ranks of which no WorkerServer was ever seen."""
    return (
        f"{listed(waiting)} {plural(waiting, 'stands', 'stand')} in {listed(ops)} for "
        f"{seconds(for_s)}; nothing is known of {listed(unknown)}: no WorkerServer is registered"
    )


def works_there(ranks: Sequence[RankName], budget_s: float) -> str:
    """Why ranks that stand still are not evicted yet."""
    return f"the kernel sees {listed(ranks)} at work there, which may take {seconds(budget_s)}"


def skipped(
    early: Sequence[RankName],
    late: Sequence[RankName],
    for_s: float,
    op: str,
    *,
    within: tuple[str, str],
    skip: Skip,
    after_error: bool,
) -> str:
    """`rg_1.0 waits in the quorum of the next step, rg_1.1 in the commit vote of this one, ...`."""
    if skip is Skip.EITHER:
        why = f"one left it out, or the other makes one {op} too many"
    elif after_error:
        why = f"{listed(early)} went on after an error"
    elif skip is Skip.LEFT_OUT:
        why = f"{listed(early)} left it out, as after a branch, a `continue` or a swallowed "
        why += "exception"
    else:
        why = f"{listed(late)} {plural(late, 'calls', 'call')} once more than the others"
    return (
        f"{listed(early)} {plural(early, 'waits', 'wait')} in the {within[0]}, {listed(late)} in "
        f"the {op} of {within[1]}, for {seconds(for_s)}: {why}"
    )


def takes_part(replica_id: ReplicaId, for_s: float, *, twice: bool) -> str:
    """For a participant that no rank reports; `twice`: beside ranks of its group that do."""
    name = unseen_name(replica_id)
    if not twice:
        return f"{name} takes part for {seconds(for_s)}, and no WorkerServer reports it"
    return (
        f"{group_of_replica(replica_id)} trains twice: beside the ranks that are seen {name} takes "
        f"part for {seconds(for_s)}, a life of it that its launcher has lost"
    )


def unmonitored(participants: Sequence[str]) -> str:
    """For participants that no rank reports, each by `takes_part`."""
    more = len(participants) - _UNSEEN_SHOWN
    return (
        "; ".join(participants[:_UNSEEN_SHOWN])
        + (f"; and {more} more" if more > 0 else "")
        + "; should one hang, only the Lighthouse's kill, a gate or a scheduler can put it out"
    )


def hangs_unseen(
    history: History,
    replica_id: ReplicaId,
    victims: Sequence[RankName],
    for_s: float,
    participant: str,
) -> str:
    """For the only participant that all visible ranks wait for, by `takes_part`."""
    return (
        f"{group_of_replica(replica_id)} hangs where nobody can look: {listed(victims)} "
        f"{plural(victims, 'waits', 'wait')}{waits_in(history, victims)} for {seconds(for_s)}, and "
        f"it alone has not come; {participant}"
    )


# -- different calls ---------------------------------------------------------------------------

HANGS_NOTHING: Final = (
    "nothing hangs, and a group that is put out would do the same again: look at the call"
)


def calls_uneven(stuck: Stuck) -> str:
    """A collective that some entered, while those that did not wait elsewhere."""
    behind = sorted(stuck.absent)
    return (
        f"{listed(stuck.joined)} {plural(stuck.joined, 'stands', 'stand')} in "
        f"{' and '.join(stuck.ops) or 'a call'} (collective {stuck.seq} of "
        f"{stuck.process_group!r}) that {listed(behind)} {plural(behind, 'has', 'have')} not "
        "entered while waiting elsewhere: cannot tell whether the call is extra or was skipped"
    )


# -- slow --------------------------------------------------------------------------------------

_MOSTLY: Final = 0.5


def slow_collectives(ranks: Sequence[RankName], busy_s: float, usual_s: float, others: int) -> str:
    """For a group whose ranks come in time; `others`: the groups compared with."""
    peers = f"{others} other {'group takes' if others == 1 else 'groups take'}"
    return (
        f"the collectives inside the group of {listed(ranks)} are slow: its ranks come in time and "
        f"take {seconds(busy_s)} a step where {peers} {seconds(usual_s)}"
    )


def slow_work(
    ranks: Sequence[RankName], slowest: RankName, pace: Pace, busy_s: float, usual_s: float,
    *, blame: Blame, clear: bool,
) -> str:  # fmt: skip
    """`1.0 slows everybody: its own work takes 1.1 s a step where its peers take 0.2 s`.

    `clear`: it shows how long the ranks of its group wait for each other.
    """
    peers = "its peer takes" if pace.cohort == 2 else "its peers take"
    work = f"own work takes {seconds(busy_s)} a step where {peers} {seconds(usual_s)}"
    if blame.kind is not None:
        work += f", in {blame.kind} {seconds(blame.own_s)} where they take {seconds(blame.peers_s)}"
    if pace.stopped >= _MOSTLY:
        work += f"; a signal had stopped it at {pace.stopped:.0%} of the looks"
    elif pace.witness is not None:
        work += f"; it was seen to stand in {pace.witness.frame}"
    if not clear:
        return (
            f"a rank of group {group_of(slowest)} slows everybody, perhaps {' or '.join(ranks)} "
            "(how long its ranks wait for each other does not show): "
            f"of {slowest} its {work}"
        )
    if len(ranks) > 1:
        return f"{listed(ranks)} slow everybody: of {slowest}, the slowest, its {work}"
    return f"{slowest} slows everybody: its {work}"


def computes_more(cores: float, peers: float) -> str:
    """Why a rank is slow: cores in use."""
    return f"; it uses {cores:.1f} cores, its peers {peers:.1f}: it computes more than they"


def lacks_cores(share: float, *, alone: bool) -> str:
    """The same: `share` of the time without a core, it alone or like others."""
    if alone:
        return (
            f"; for {share:.0%} of the time it was ready to run and got no core: a CPU limit, or "
            "other programs on its host"
        )
    return (
        f"; it waits for a core for {share:.0%} of the time, and others wait much as long: there "
        "are too few for all, and chance says who gets less"
    )


def testifies(host: str, row: Testimony, now_s: float) -> str:
    """`node-1: GPU 3: Xid 79, fallen off the bus (kernel log, 14:05:11 UTC)`."""
    at = f", {rfc3339(now_s - row.for_s)[11:19]} UTC" if row.weight is Weight.BROKEN else ""
    return f"{host}: {one_line(row.text)} ({one_line(row.witness)}{at})"


_NOTICED_S: Final = 75.0
"""A cluster takes so long to call a node lost: 40 s, 50 s since Kubernetes 1.32, and a look."""


def parted(who: str, hosts: str, said: Testimony, silent_s: float, now_s: float) -> str:
    """`rg_0 on node-b was preempted: ... (Kubernetes, at 14:05:11 UTC)`: what a scheduler says."""
    text, witness = one_line(said.text), one_line(said.witness)
    if said.code == "runs":
        if silent_s < _NOTICED_S:
            return (
                f"{who} does not answer: it is frozen, or its node is lost and {witness} has not "
                f"noticed yet ({text}, it says)"
            )
        return f"{who} is frozen: {text} ({witness}), and nothing in it answers"
    if said.code == "node-lost":
        who = f"host {hosts} is lost:"
    at = "since" if said.weight is Weight.CONTEXT else "at"
    return f"{who} {text} ({witness}, {at} {rfc3339(now_s - said.for_s)[11:19]} UTC)"


def leaves(host: str, row: Testimony) -> str:
    """Why nobody is accused: somebody takes the host away."""
    text, witness = one_line(row.text), one_line(row.witness)
    return f"{host} is leaving the job: {text} ({witness}), so nobody is accused"


def slowness(
    what: str, cause: str, victims: Sequence[RankName], excess_s: float, for_s: float,
    *, coarse: bool,
) -> str:  # fmt: skip
    """What is slow and why, and what it costs the others a step."""
    doubt = ", all along or in every few steps: the samples are too coarse to tell"
    return (
        f"{what}{doubt if coarse else ''}{cause}; {listed(victims)} "
        f"{plural(victims, 'waits', 'wait')} {seconds(excess_s)} a step for that, for "
        f"{seconds(for_s)} now"
    )


def slow_phase(
    rank: RankName, phase: str, now_s: float, was_s: float, *, times: int, peers: int,
    peers_s: float | None,
) -> str:  # fmt: skip
    """For a declared pause that has become long; None: no peer has such pauses."""
    beside = "no peer has such pauses, so it may be the storage"
    if peers_s is not None:
        beside = f"{peers} {'peer takes' if peers == 1 else 'peers take'} {seconds(peers_s)}"
    return (
        f"{rank} is slow in {phase}, {seconds(now_s)} each of the last {times} times where it took "
        f"{seconds(was_s)} before; {beside}"
    )


def slow_links(now_s: float, usual_s: float) -> str:
    return (
        f"communication across groups takes {seconds(now_s)} a step even for the last to arrive, "
        f"{seconds(usual_s)} before: the network is slow, or somebody's link; phases cannot tell "
        "whose"
    )


# -- lag ---------------------------------------------------------------------------------------

NOWHERE: Final = "none goes through anywhere, and only its ranks met an error"


def heals_in_a_loop(group: GroupName, heals: int, for_s: float, commits: int, failed: int) -> str:
    own = f"; {failed} of its own commits failed" if failed else ""
    return (
        f"{group} heals in a loop: {heals} times in {seconds(for_s)}, with {commits} commits "
        f"between; each time all groups form their process groups anew{own}"
    )


def its_commits_fail(group: GroupName, failed: int, commits: int, for_s: float, beside: str) -> str:
    """For a group that is to blame; `beside`: how the others do."""
    return (
        f"{failed} commits of {group} failed in {seconds(for_s)}, {commits} went through, {beside}"
    )


def others_commit(groups: Sequence[GroupName]) -> str:
    return f"while {listed(groups)} committed"


def commits_fail(
    groups: Sequence[GroupName], for_s: float, attempts: int, *, anywhere: bool
) -> str:
    """For groups of which one may be to blame; `anywhere`: those of others go through."""
    return (
        f"commits fail in {listed(groups)} since {seconds(for_s)}: {attempts} attempts"
        f"{'' if anywhere else ', none goes through anywhere'}; who causes it cannot be told"
    )


def comes_and_goes(group: GroupName, times: int, for_s: float, *, restarts: bool) -> str:
    again = "as a new process each time" if restarts else "and left between"
    return (
        f"the quorum flaps: {group} came into it again {times} times in {seconds(for_s)}, {again}"
    )


def come_and_go(groups: Sequence[GroupName], for_s: float) -> str:
    return (
        f"the quorum flaps: {listed(groups)} come and go since {seconds(for_s)}; for whose sake "
        "cannot be told"
    )


def quorums_follow(times: int, for_s: float) -> str:
    """For quorum after quorum in which nobody is seen to come or go."""
    return (
        f"the quorum flaps: its id grew by {times} in {seconds(for_s)}, and no group is seen to "
        "come or go; for whose sake cannot be told"
    )


def takes_no_part(group: GroupName, for_s: float, commits: int, phases: Sequence[str]) -> str:
    return (
        f"{group} sends heartbeats and is in no quorum for {seconds(for_s)}, while the others "
        f"committed {commits} steps; its ranks are in {listed(phases)}"
    )


# -- wrong numbers -----------------------------------------------------------------------------

EXCHANGED: Final = "it came with what was exchanged, and nobody says that it was its own"
FINITE_AGAIN: Final = "it is finite again: the step was lost and nothing else"
ONLY_THE_LOSS: Final = "a loss alone evicts nobody: it may be the data of that group"


def not_finite_since(ranks: Sequence[RankName], step: int, why: str) -> str:
    """`why`: what leaves open who was first."""
    return (
        f"{listed(ranks)} {plural(ranks, 'is', 'are')} not finite since step {step}, and who was "
        f"first cannot be told: {why}"
    )


def in_the_same_step(groups: Sequence[GroupName]) -> str:
    return f"{listed(groups)} were so in the same step: bad data, a learning rate or the program"


def not_seen_finite(groups: Sequence[GroupName]) -> str:
    return f"{listed(groups)} cannot be seen to have been finite then"


def earlier_by_the_clock(rank: RankName, step: int) -> str:
    return f"{rank} was so earlier by the clock, at step {step}"


def first_not_finite(
    ranks: Sequence[RankName], step: int, followers: Sequence[RankName],
    *, local: bool, shared: bool,
) -> str:  # fmt: skip
    """`local`: before any exchange; `shared`: in a sum of theirs."""
    were = plural(ranks, "was", "were")
    where = "its own loss or gradient" if local else "the sum of its group"
    then = "every other group was finite in that step"
    if followers:
        then = f"{listed(followers)} followed"
    whose = "; whose part of the sum it was cannot be told" if shared else ""
    return (
        f"{listed(ranks)} {were} the first that {were} not finite, at step {step}, in {where}; "
        f"{then}{whose}"
    )


def everybody_not_finite(step: int) -> str:
    return (
        "every group is not finite by now, which no eviction mends: go back to a checkpoint from "
        f"before step {step}"
    )


def attempts_needed(run: int, needed: int) -> str:
    return f"{run} of the {needed} attempts in a row that an eviction needs"


def weights_differ(ranks: Sequence[RankName], equal: int, steps: tuple[int, int]) -> str:
    return (
        f"the weights of {listed(ranks)} differ from those of {equal} ranks that are equal to each "
        f"other, after steps {steps[0]} and {steps[1]}: they were equal before"
    )


def weights_tie(
    sides: Sequence[Sequence[RankName]], steps: tuple[int, int], *, before: bool
) -> str:
    """`before`: all were seen to be equal before."""
    why = "no majority was equal before and is now"
    if not before:
        why = (
            "they were not all seen to be equal before; a heal came between, or they differ by "
            "design and should take no fingerprints (replicas_equal=False)"
        )
    return (
        f"the weights of {' and '.join(listed(side) for side in sides[:3])} differ after steps "
        f"{steps[0]} and {steps[1]}, and who is right cannot be told: {why}"
    )


def loss_jumps(ranks: Sequence[RankName], now: float, usual: float, looks: int) -> str:
    return (
        f"the loss of {listed(ranks)} is {now:.3g} where it was {usual:.3g}, in the last {looks} "
        "looks, and that of no other group has risen"
    )


# -- signature ---------------------------------------------------------------------------------
# Where in the program a fault is: the same place again is the same bug.
#
# The innermost frame of the user's code, with its line, or the exception with it. The rank is not
# included: a bug moves with the program. Empty if unknown: then no recurrence can be recognized.


def of_hang(roots: Sequence[RankTrack]) -> str:
    """For ranks that stand still: by their stacks, else by the phase that the loop declares."""
    for track in roots:
        seen = None if track.fresh is None else track.fresh.witness
        if seen is not None:
            return f"not_entered@{_at(seen.frame)}"
    track = roots[0]
    return f"not_entered:{track.rank}:{track.doing}" if track.phased else ""


def of_death(track: RankTrack) -> str:
    """For a dead rank: its exception and where it was raised; a bare signal identifies no bug."""
    ending = track.ending
    if track.report is None or ending is None or ending.exception is None:
        return ""
    if ending.of_peers is True or stopped(track.report.process, ending):
        return ""
    kind = ending.exception.partition(":")[0]
    return f"dead:{kind}@{_at(ending.frame)}" if ending.frame is not None else f"dead:{kind}"


def _at(frame: Frame) -> str:
    return f"{frame.file}:{frame.line}:{frame.function}"
