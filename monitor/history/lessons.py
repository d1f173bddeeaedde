"""What the job's own pauses teach: read from two reports in a row, or from the steps of its past.

A pause is told when it is over, for a hang is none; whose it was (a rank's own, or one in which all
stood in a collective) the wait-for graph of the tick before says.
"""

from __future__ import annotations

from collections.abc import Iterable

from monitor.habits import Gap, pauses_of
from monitor.history.history import COLLECTIVES_A_STEP, History, Unproven
from monitor.history.track import INSIDE, OUTSIDE, RankTrack, inside_own_group
from monitor.snapshot import Snapshot
from worker_server.wire import LONG_PHASES, StateReport, StepLog


def learn(history: History, track: RankTrack, before: StateReport, since_s: float) -> None:
    """Remember a pause that this report shows to be over."""
    report = track.report
    _prove(history, track)
    if track.rank in history.inside and track.still_sweeps == 0:
        _learn_inside(history, track, before, since_s)
    if report is None or history.starting(track) or before.process.stopped:
        return
    for phase, span_s in _pauses(before, report, since_s):
        if span_s <= 0:
            continue
        gap = Gap(
            rank=track.rank,
            role=track.identity.group_rank,
            phase=phase,
            span_s=span_s,
            ended_s=history.now_s,
            step=None if before.step is None else before.step.step,
        )
        if phase in LONG_PHASES:
            history.habits.take_declared(gap)
        elif track.rank in history.pausing and track.still_sweeps == 0:
            history.habits.take(gap)


def learn_from_past(history: History, snapshot: Snapshot) -> None:
    """Remember the pauses of steps that were made before this monitor's time."""
    for rank, log in sorted(snapshot.steps.items()):
        track = history.tracks.get(rank)
        if track is None or track.unread == 0:
            continue
        track.unread -= 1
        same = isinstance(log, StepLog) and (log.identity.incarnation == track.identity.incarnation)
        if not same or not isinstance(log, StepLog) or track.step is None:
            continue
        track.unread = 0
        first = history.config.warm_up_commits + 1
        for gap in pauses_of(log, track.step, history.now_s, first):
            if gap.phase in LONG_PHASES:
                history.habits.take_declared(gap)
            elif gap.span_s >= history.config.stall_floor_s / 2:
                history.habits.take(gap)


def _learn_inside(history: History, track: RankTrack, before: StateReport, since_s: float) -> None:
    """Keep a long collective that all were in until it is known how it ended."""
    ages_s = [head.age_s for head in before.heads if inside_own_group(head, track)]
    if ages_s:
        role, span_s = track.identity.group_rank, max(ages_s) + since_s
        gap = Gap(track.rank, role, INSIDE, span_s, history.now_s)
        history.unproven[track.rank] = Unproven(gap, track.commits, _failures(track), _done(track))


def _prove(history: History, track: RankTrack) -> None:
    """Remember the collective that was kept, once what came after shows that it ended well.

    A peer that dies, or that we put out, ends it too, by an error: what comes then is no commit.
    """
    kept = history.unproven.get(track.rank)
    if kept is None:
        return
    if track.step is None:
        well, badly = _done(track) - kept.done >= COLLECTIVES_A_STEP, False
    else:
        badly = _failures(track) > kept.failures or track.step.errored
        well = track.commits > kept.commits
    if well or badly:
        del history.unproven[track.rank]
    if well and not badly:
        history.habits.take(kept.gap)


def _failures(track: RankTrack) -> int:
    return 0 if track.step is None else track.step.commit_failures


def _done(track: RankTrack) -> int:
    """Collectives that the rank has completed."""
    return sum(head.completed for head in track.ring_heads)


def _pauses(before: StateReport, after: StateReport, since_s: float) -> Iterable[tuple[str, float]]:
    """Phases and seconds of the pauses that may have ended between two reports of one process.

    A declared phase says its seconds itself. Another lasted at most from its start to this report,
    and no longer than its phase's seconds grew.
    """
    was, step = before.step, after.step
    if was is None or step is None:
        ages_s = [head.age_s for head in before.heads]
        if ages_s:
            yield OUTSIDE, min(ages_s) + since_s
        return
    for phase in sorted(LONG_PHASES & step.seconds.keys()):
        yield phase, step.seconds[phase] - was.seconds.get(phase, 0.0)
    if was.phase not in LONG_PHASES:
        grown_s = step.seconds.get(was.phase, 0.0) - was.seconds.get(was.phase, 0.0)
        longest_s = min((was.phase_age_s, *(head.age_s for head in before.heads))) + since_s
        yield was.phase, min(longest_s, grown_s) if grown_s > 0 else longest_s
