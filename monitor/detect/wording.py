"""Verdicts in the words of a person who had looked: who, where, how long, who waits. Pure.

The parts of sentences that several detectors say, built from fields: the stack's user frame and its
known activity, the exception of a dead rank, what the others wait in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from lightkeeper.monitor.detect.history import Held, History
from lightkeeper.monitor.detect.patience import LASTS, at_work
from lightkeeper.monitor.detect.track import RankTrack
from lightkeeper.monitor.model.names import RankName
from lightkeeper.monitor.model.observation import stopped
from lightkeeper.monitor.model.units import grouped
from lightkeeper.monitor.model.verdict import RankStanding
from lightkeeper.monitor.model.wording import listed, plural, rfc3339, seconds
from lightkeeper.worker_server.wire import (
    WAIT_COMMIT,
    WAIT_HEAL,
    WAIT_QUORUM,
    WAITING_PHASE,
    Doing,
    Frame,
    Testimony,
    Tracer,
    Trouble,
    Weight,
    Witness,
    printable_line,
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


def ranks_named(ranks: Sequence[RankName]) -> str:
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
        f"{ranks_named(ranks)} "
        f"{plural(ranks, *_HELD.get(hold, _verb(history.tracks[ranks[0]])))}{place}"
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
    return f"{ranks_named(ranks)} {plural(ranks, single, many)}{place}{cause}"


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
        f"{ranks_named(ranks)} stood{place or ' outside of any collective'} until "
        f"{plural(ranks, 'it', 'each')} {end}"
        if end
        else f"{ranks_named(ranks)} {plural(ranks, 'stands', 'stand')}{place}".rstrip(",")
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
    more = f"; {ending.detail}" if ending is not None and ending.detail else ""
    if ending is not None and ending.exception is not None:
        where = "" if ending.frame is None else f" in {ending.frame}"
        return f"{ending.exception}{where}{more}"
    if process.exit_signal in ("SIGTERM", "SIGINT"):
        return f"asked to end by {process.exit_signal}"
    if process.exit_signal is not None:
        return f"ended by {process.exit_signal}{more}"
    if process.exit_code is not None:
        return f"exit code {process.exit_code}"
    return ""


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
        if seen.frame.file in ("threading.py", "popen_fork.py"):  # no frame of a program is left
            return " at its end: its program is over, and a thread, queue or child keeps it,"
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
        peer = "any rank" if transfer.peer < 0 else f"rank {transfer.peer}"
        return f"{'a send to' if transfer.sends else 'a receive from'} {peer}"
    inside = [h for h in track.heads if h.inside > 0 or h.enqueued > h.completed]
    if inside:
        return max(inside, key=lambda head: head.age_s).op
    if track.forming is not None:
        return track.forming.call
    return f"phase {track.doing!r}" if track.phased and track.doing == WAITING_PHASE else ""


# -- hang --------------------------------------------------------------------------------------


def hang_reason(
    history: History, roots: Sequence[RankTrack], standing: Mapping[RankName, RankStanding],
    for_s: float, victims: Sequence[RankName], *, all_pause: bool = False, doubt: str = "",
) -> str:  # fmt: skip
    """`rank rg_1.0 hangs in flush (train.py:22) for 12 s; rg_0.0 waits for it in the quorum`."""
    ranks = tuple(track.rank for track in roots)
    waiting = waits_for(history, victims, ranks)
    unseen = [rank for rank, state in standing.items() if state is RankStanding.UNKNOWN
              and rank not in ranks and history.tracks[rank].stall_s >= for_s / 2]  # fmt: skip
    if unseen and not victims:  # as in DDP's backward, which C++ runs
        waiting += f", but {listed(unseen)} {plural(unseen, 'stands', 'stand')} still as well"
    if all_pause:
        waiting = "all pause at once, so it may be the job"
    given_up = gave_up_on(history, ranks)
    return f"{hangs(history, roots, standing, for_s)}; {waiting}{doubt}{given_up}"


_NOTICED_S: Final = 75.0
"""A cluster takes so long to call a node lost: 40 s, 50 s since Kubernetes 1.32, and a look."""


def scheduler_says(who: str, hosts: str, said: Testimony, silent_s: float, now_s: float) -> str:
    """`rg_0 on node-b was preempted: ... (Kubernetes, at 14:05:11 UTC)`: what a scheduler says."""
    text, witness = printable_line(said.text), printable_line(said.witness)
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
    """The exception of a dead rank and where it was raised; a bare signal identifies no bug."""
    ending = track.ending
    if track.report is None or ending is None or ending.exception is None:
        return ""
    if ending.of_peers is True or stopped(track.report.process, ending):
        return ""
    return f"dead:{ending.raised}" + (f"@{_at(ending.frame)}" if ending.frame is not None else "")


def _at(frame: Frame) -> str:
    return f"{frame.file}:{frame.line}:{frame.function}"
