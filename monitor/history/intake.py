"""How one tick's snapshot gets into the history: the only way in.

A window that a restart, a heal or a death touched is thrown away, for its host was busy with
something else.
"""

from __future__ import annotations

from typing import Final

from monitor.history.history import History
from monitor.history.lessons import learn, learn_from_past
from monitor.history.track import RankTrack, of_own_group
from monitor.history.turnout import push_attendance, push_unseen
from monitor.pace import Reading
from monitor.prints import Voice
from monitor.snapshot import Observation, Snapshot
from worker_server.wire import FlightRecord

_TRIES: Final = 3
"""How often a rank's past is asked for, at most."""


def push(history: History, snapshot: Snapshot) -> None:
    """Take in one tick."""
    history.now_s = snapshot.now_s
    history.see_lighthouse(snapshot.lighthouse)
    for track in history.tracks.values():
        track.observation = None
    for observation in snapshot.observations:
        _push_rank(history, observation)
    history.see_commits()
    history.forget()
    history.regroup()
    history.see_deaths()
    history.keep_records(snapshot.records)
    _push_arrivals(history, snapshot)
    learn_from_past(history, snapshot)
    _push_pace(history)
    push_attendance(history)
    push_unseen(history)
    _push_state(history)


def _push_rank(history: History, observation: Observation) -> None:
    identity, now_s = observation.identity, history.now_s
    track = history.tracks.get(observation.rank)
    if track is None or track.identity.incarnation != identity.incarnation:
        predecessor = None if track is None else track.identity.incarnation
        if track is not None or history.pace.windows:
            history.disturbed_s = now_s
        track = RankTrack(identity, now_s, now_s, predecessor)
        history.habits.forget(observation.rank)
        history.unproven.pop(observation.rank, None)
        history.tracks[observation.rank] = track
    track.observation, track.seen_s = observation, now_s
    report = observation.report
    if report is None:
        if track.silent_since_s is None:
            track.silent_since_s = now_s
        return
    track.silent_since_s = None
    before, before_s = track.report, track.report_s
    track.take(report, now_s)
    if before is not None and before_s is not None:
        learn(history, track, before, now_s - before_s)
    elif track.phased and track.commits >= history.config.warm_up_commits:
        track.unread = _TRIES
    if _disturbs(history, track):
        history.disturbed_s = now_s


def _disturbs(history: History, track: RankTrack) -> bool:
    """Whether a rank is busy coming or going, at the cost of its host's other processes."""
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
    quiet = history.now_s - history.disturbed_s >= history.config.restart_quiet_s
    cohorts = history.cohorts()
    known = [rank for _, members in cohorts for rank in members]
    if not quiet:
        history.arrivals.forget()
        return
    history.arrivals.poll({rank: not history.tracks[rank].inside_any for rank in known})
    for key, members in cohorts:
        if not history.arrivals.suspects(members):
            history.arrivals.calm_s[key] = history.now_s
        if not any(isinstance(snapshot.records.get(rank), FlightRecord) for rank in members):
            continue
        records = {
            rank: answer
            for rank in members
            if (answer := history.answer(history.tracks[rank])) is not None
            and (age_s := history.record_age_s(rank)) is not None
            and age_s < history.config.record_repeat_s
        }
        if len(records) == len(members) > 1:
            apart_s = history.config.record_repeat_s / 2
            history.arrivals.take(key, history.now_s, records, apart_s=apart_s)


def _push_state(history: History) -> None:
    """What the ranks say of their weights and losses."""
    history.prints.push(
        history.now_s,
        [
            Voice(
                track.rank,
                track.group,
                track.identity.incarnation,
                track.died_s is not None,
                None if track.step is None else track.step.participants,
                None if track.step is None else track.step.prints,
            )
            for track in history.present()
        ],
    )
    history.losses.push(
        (track.rank, track.identity.incarnation, track.step)
        for track in history.present()
        if track.step is not None and history.participating(track)
    )


def _own_calls(track: RankTrack) -> int | None:
    """Collectives among several ranks of its own group, so far; None where it is alone in it."""
    if track.identity.world_size < 2 or track.fresh is None:
        return None
    return sum(head.enqueued for head in track.ring_heads if of_own_group(head, track))


def _push_pace(history: History) -> None:
    if history.now_s - history.disturbed_s < history.config.restart_quiet_s:
        history.pace.drop()
        return
    history.pace.push(
        history.now_s,
        [
            Reading(
                track.rank,
                track.identity.incarnation,
                track.step,
                track.inside_own,
                track.held_s,
                None if track.phased else track.waited_s,
                sum(head.enqueued for head in track.ring_heads),
                _own_calls(track),
                track.state == "T",
                track.tracer is not None,
                track.witness,
                track.fresh.process.starved,
            )
            for track in history.present()
            if track.step is not None
            and track.fresh is not None
            and track.paced
            and history.participating(track)
        ],
    )
