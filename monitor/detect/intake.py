"""How one tick's snapshot gets into the history: the only way in.

Each tick records who could take part in a quorum and who did, what the job's own pauses teach (from
two consecutive reports, or from the steps of a rank's past), and each rank's pace. A pause is
recorded when it is over, because a hang is not a pause; the wait-for graph of the previous tick
says whose it was (a rank's own, or one in which all stood in a collective). A window of paces that
a restart, a heal or a death touched is thrown away: its host was busy with something else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from lightkeeper.monitor.detect.history import COLLECTIVES_A_STEP, History, Progress, Unproven
from lightkeeper.monitor.detect.learned_pauses import Gap, pauses_of
from lightkeeper.monitor.detect.links import links_of
from lightkeeper.monitor.detect.pace import Sample
from lightkeeper.monitor.detect.patience import last_worked_s
from lightkeeper.monitor.detect.progress import advance
from lightkeeper.monitor.detect.quorum_participation import Turn
from lightkeeper.monitor.detect.track import (
    INSIDE,
    OUTSIDE,
    RankTrack,
    inside_own_group,
    of_own_group,
)
from lightkeeper.monitor.model.names import GroupName
from lightkeeper.monitor.model.observation import Observation, Snapshot
from lightkeeper.worker_server.wire import (
    FINISHED_PHASE,
    LONG_PHASES,
    WAIT_QUORUM,
    FlightRecord,
    StateReport,
    StepLog,
    StepState,
)

_TRIES: Final = 3
"""How many times a rank's past is requested, at most."""


def take_in(history: History, snapshot: Snapshot) -> None:
    history.now_s = snapshot.now_s
    history.see_lighthouse(snapshot.lighthouse)
    history.gate_began_s = snapshot.gate_began_s
    history.cluster, history.ends = snapshot.cluster, snapshot.ends
    for observation in snapshot.observations:
        _push_rank(history, observation)
    for track in history.tracks.values():
        if track.seen_s != history.now_s:
            track.see(None)
    history.see_commits()
    history.forget()
    history.regroup()
    history.links = links_of(history.present())
    history.see_deaths()
    history.keep_records(snapshot.records, snapshot.records_asked_s)
    _push_arrivals(history, snapshot)
    learn_from_past(history, snapshot)
    _push_pace(history)
    push_attendance(history)
    push_unseen(history)
    tracks = history.present()
    if history.prints.lives or any(t.step is not None and t.step.prints for t in tracks):
        history.prints.push(history.now_s, tracks)
    history.losses.push(tracks)
    if history.progress.step < 0 and snapshot.run is not None and snapshot.run.step is not None:
        history.progress = Progress(snapshot.run.step, snapshot.run.seen_s)  # by the store
    history.progress = advance(history)


def _push_rank(history: History, observation: Observation) -> None:
    identity, now_s = observation.identity, history.now_s
    track = history.tracks.get(identity.rank)
    if track is None or track.identity.incarnation != identity.incarnation:
        predecessor = None if track is None else track.identity.incarnation
        if track is not None or history.pace.windows:
            history.disturbed_s = now_s
        track = RankTrack(identity, now_s, now_s, predecessor)
        history.habits.forget(identity.rank)
        history.unproven.pop(identity.rank, None)
        history.held.pop(identity.rank, None)
        history.begin(track)
    track.see(observation)
    track.seen_s = now_s
    report = track.fresh
    if report is None:
        track.trained_as = observation.trained_as or track.trained_as
        if track.silent_since_s is None:
            track.silent_since_s = now_s
        return
    track.silent_since_s = None
    before, before_s = track.report, track.report_s
    track.take(report, now_s)
    track.worked_s = last_worked_s(track, now_s)
    history.progress = history.progress.within(before, report)
    if before is not None and before_s is not None:
        learn(history, track, before, now_s - before_s)
    elif track.phased and track.commits >= history.config.warm_up_commits:
        track.unread = _TRIES
    if _disturbs(history, track):
        history.disturbed_s = now_s


def _disturbs(history: History, track: RankTrack) -> bool:
    """True if a rank is starting or ending, at the cost of its host's other processes."""
    report = track.report
    if report is None:
        return False
    if not report.process.alive:
        died_s = track.died_s
        return died_s is not None and history.now_s - died_s < history.config.restart_quiet_s
    fresh = history.now_s - track.first_seen_s < history.config.warm_up_budget_s
    healing = report.step is not None and report.step.healing
    return healing or (fresh and history.starting(track))


def _push_arrivals(history: History, snapshot: Snapshot) -> None:
    if history.disturbed:
        history.arrivals.forget()
        return
    cohorts = history.cohorts()
    compared = [rank for _, members in cohorts for rank in members]
    history.arrivals.poll({rank: not history.tracks[rank].inside_any for rank in compared})
    for key, members in cohorts:
        if not history.arrivals.suspects(members):
            history.arrivals.calm_s[key] = history.now_s
        if not any(isinstance(snapshot.records.get(rank), FlightRecord) for rank in members):
            continue
        records = {
            rank: reading.answer
            for rank in members
            if (reading := history.reading(history.tracks[rank])) is not None
            and history.record_age_s(rank) < history.config.record_repeat_s
        }
        if len(records) == len(members) > 1:
            apart_s = history.config.record_repeat_s / 2
            history.arrivals.take(key, history.now_s, records, apart_s=apart_s)


def _push_pace(history: History) -> None:
    if history.disturbed:
        history.pace.drop()
        return
    readings = (
        _reading(track, track.step, track.fresh)
        for track in history.present()
        if track.step is not None and track.fresh is not None and track.participating
        if track.paced
    )
    history.pace.push(history.now_s, readings)


def _reading(track: RankTrack, step: StepState, report: StateReport) -> Sample:
    process = report.process
    reading = Sample(
        track.rank,
        track.identity.incarnation,
        step,
        track.held_s,
        stopped=process.state == "T",
        traced=process.tracer is not None,
        witness=None if report.witness is None else track.witness,
        starved=process.starved,
    )
    if not track.phased:  # its waits show what its phases do not
        reading.waited_s = track.waited_s
        reading.calls = sum(head.enqueued for head in track.ring_heads)
        if track.identity.world_size > 1:
            own = (head.enqueued for head in track.ring_heads if of_own_group(head, track))
            reading.own_calls = sum(own)
    return reading


# -- who took part ------------------------------------------------------------------------------


HEARTBEAT_TIMEOUT_S: Final = 5.0
"""The Lighthouse's default `heartbeat_timeout_ms` (facts/torchft.md)."""


def push_unseen(history: History) -> None:
    """Keep, for each replica id that beats and no rank reports, since when it does.

    While a rank has not reported its id, any id may be its own; except those already known as
    nobody's before it came.
    """
    if history.lighthouse is None:
        return  # what was seen before stays while nobody looks
    alive = [track for track in history.present() if track.died_s is None]
    reported = {
        None if track.step is None else track.step.replica_id for track in history.present()
    }
    untold = [t.first_seen_s for t in alive if t.step is None or t.step.replica_id is None]
    known_s = min(untold) - history.config.unseen_s if untold else float("inf")
    before = history.unseen_s
    history.unseen_s = {
        replica_id: before.get(replica_id, history.now_s)
        for replica_id, age_s in history.lighthouse.heartbeat_ages_s.items()
        if age_s <= HEARTBEAT_TIMEOUT_S and replica_id not in reported
        if before.get(replica_id, history.now_s) < known_s
    }


def push_attendance(history: History) -> None:
    """Record in the attendance who is in the quorum, and who stays out of it."""
    turns = (turn for track in history.present() if (turn := _turn(history, track)) is not None)
    absent = [group for group in history.groups() if _stays_out(history, group)]
    history.attendance.push(history.now_s, turns, history.lighthouse, absent)


def _stays_out(history: History, group: GroupName) -> bool:
    """True if a group could take part but does not: it beats, works, and is in no quorum."""
    age_s = history.heartbeat_age_s(group)
    if age_s is None or age_s > HEARTBEAT_TIMEOUT_S or history.in_quorum(group) is not False:
        return False
    return not any(_excused(history, track) for track in history.groups()[group])


def _excused(history: History, track: RankTrack) -> bool:
    """True if a rank may stay out: it is starting, done, out of sight, or between two votes."""
    config, step = history.config, track.step
    if track.fresh is None or not track.fresh.process.alive or step is None:
        return True
    phase_s = step.phase_age_s
    return (
        step.phase == FINISHED_PHASE
        or _fresh(history, track)
        or (step.healing and phase_s < config.healing_budget_s)
        or (step.phase in LONG_PHASES and phase_s < config.long_phase_budget_s)
        or (step.local_steps > 0 and step.waits_in != WAIT_QUORUM)
    )


def _fresh(history: History, track: RankTrack) -> bool:
    """True if a rank is working towards its first commits, and not for too long."""
    here_s = history.now_s - track.first_seen_s
    young = track.commits < history.config.warm_up_commits  # a heal makes nobody young again
    return young and here_s < history.config.warm_up_budget_s


def _turn(history: History, track: RankTrack) -> Turn | None:
    """The input of attendance: ranks under a Manager that answered in this tick."""
    report = track.fresh
    step = None if report is None else report.step
    if step is None or step.replica_id is None:
        return None
    return Turn(  # built thousands of times a tick: by name it costs a third more
        track.rank,
        track.group,
        track.identity.incarnation,
        step.commits,
        step.commit_failures,
        step.committed_step,
        step.healing,
        step.errored,
        _fresh(history, track),
    )


# -- what pauses teach --------------------------------------------------------------------------


def learn(history: History, track: RankTrack, before: StateReport, since_s: float) -> None:
    """Remember a pause that this report shows to be over."""
    report = track.report
    if history.unproven:
        _prove(history, track)
    if track.rank in history.inside and track.still_sweeps == 0:
        _learn_inside(history, track, before, since_s)
    if report is None or history.starting(track) or before.process.stopped:
        return
    paused = track.still_sweeps == 0 and track.rank in history.pausing
    for phase, span_s in _pauses(before, report, since_s, paused=paused):
        if span_s <= 0:
            continue
        gap = Gap(
            rank=track.rank,
            role=track.identity.group_rank,
            phase=phase,
            span_s=span_s,
            ended_s=history.now_s,
        )
        history.habits.take(gap)


def learn_from_past(history: History, snapshot: Snapshot) -> None:
    """Remember the pauses of steps from before this monitor's time."""
    for rank, log in sorted(snapshot.steps.items()):
        track = history.tracks.get(rank)
        if track is None or track.unread == 0:
            continue
        track.unread -= 1
        if not isinstance(log, StepLog) or track.step is None:
            continue
        if log.identity.incarnation != track.identity.incarnation:
            continue
        track.unread = 0
        first = history.config.warm_up_commits + 1
        for gap in pauses_of(log, track.step, history.now_s, first):
            if gap.phase in LONG_PHASES or gap.span_s >= history.still_after_s:
                history.habits.take(gap)


def _learn_inside(history: History, track: RankTrack, before: StateReport, since_s: float) -> None:
    """Keep a long collective that all were in until its end is known to be good or bad."""
    ages_s = [head.age_s for head in before.heads if inside_own_group(head, track)]
    if ages_s:
        role, span_s = track.identity.group_rank, max(ages_s) + since_s
        gap = Gap(track.rank, role, INSIDE, span_s, history.now_s)
        made = 0 if track.step is None else track.step.made
        history.unproven[track.rank] = Unproven(gap, made, _failures(track), _done(track))


def _prove(history: History, track: RankTrack) -> None:
    """Remember the kept collective, once later progress shows that it ended well.

    A peer that dies or is evicted also ends it, by an error: no step follows then.
    """
    unproven = history.unproven.get(track.rank)
    if unproven is None:
        return
    if track.step is None:
        well, badly = _done(track) - unproven.done >= COLLECTIVES_A_STEP, False
    else:
        badly = _failures(track) > unproven.failures or track.step.errored
        well = track.step.made > unproven.made
    if well or badly:
        del history.unproven[track.rank]
    if well and not badly:
        history.habits.take(unproven.gap)


def _failures(track: RankTrack) -> int:
    return 0 if track.step is None else track.step.commit_failures


def _done(track: RankTrack) -> int:
    """Collectives that the rank has completed."""
    return sum(head.completed for head in track.ring_heads)


def _pauses(
    before: StateReport, after: StateReport, since_s: float, *, paused: bool
) -> Iterable[tuple[str, float]]:
    """Phases and seconds of the pauses that may have ended between two reports of one process.

    A declared phase reports its own seconds. Another, of a rank that `paused`, lasted at most from
    its start to this report, and no longer than its phase's seconds grew.
    """
    earlier, later = before.step, after.step
    if earlier is None or later is None:
        ages_s = [head.age_s for head in before.heads]
        if ages_s and paused:
            yield OUTSIDE, min(ages_s) + since_s
        return
    if not LONG_PHASES.isdisjoint(later.seconds):
        for phase in sorted(LONG_PHASES & later.seconds.keys()):
            yield phase, later.seconds[phase] - earlier.seconds.get(phase, 0.0)
    if paused and earlier.phase not in LONG_PHASES:
        grown_s = later.seconds.get(earlier.phase, 0.0) - earlier.seconds.get(earlier.phase, 0.0)
        longest_s = min((earlier.phase_age_s, *(head.age_s for head in before.heads))) + since_s
        yield earlier.phase, min(longest_s, grown_s) if grown_s > 0 else longest_s
