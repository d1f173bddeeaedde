"""What was seen over time, bounded: all that a detector may ask about the past.

Theory of operation. A snapshot is pushed once per tick. For each rank one `RankTrack` is
kept, replaced when its incarnation changes (a restarted rank is another process with other
counters). A stall is a lower bound: the smaller of the rank's own ages (of its phase, and of
the last collective it entered or left) and the time over which this monitor saw the same
counters. So neither a late monitor nor a missed poll can inflate it, and a rank that moved and
came back to the same phase is not stalled. Paces come from `pace`, what the job's own pauses teach
from `habits`, late arrival from `arrivals`; a window that a restart, a heal or a death touched is
thrown away, for its host was busy with something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from monitor.arrivals import ArrivalBook
from monitor.attendance import Attendance, Quorum, Turn
from monitor.config import KeeperConfig
from monitor.flight_recorder import FlightRecordError, RankRecord, from_ring
from monitor.habits import Gap, Habits, pauses_of
from monitor.losses import LossBook
from monitor.names import GroupName, Host, RankName, ReplicaId, group_of_replica
from monitor.pace import PaceMeter, Reading
from monitor.prints import PrintBook, Voice
from monitor.snapshot import LighthouseAway, LighthouseView, Observation, Snapshot
from worker_server.wire import (
    ACROSS,
    LONG_PHASES,
    SOURCE_REPORTER,
    FlightRecord,
    GroupHead,
    Identity,
    StateReport,
    StepLog,
    StepState,
)

FINISHED_PHASE: Final = "finished"
"""What a rank reports when its training is over: it may then stand still or end at will."""

HEARTBEAT_TIMEOUT_S: Final = 5.0
"""The Lighthouse's default `heartbeat_timeout_ms` (facts/torchft.md)."""
OUTSIDE: Final = "outside of collectives"
"""What a rank that reports no phases is said to be in, when it is in no collective."""
UNDECLARED: Final = "other"
"""What the reporter calls the time between phases."""
INSIDE: Final = "inside a collective"
"""Where ranks stand that are all in one and wait for its end."""

_FORGET_S: Final = 3600.0
_TRIES: Final = 3
"""How often a rank's past is asked for, at most."""
_RUNNING: Final = ("R", "D")
"""States of a main thread that works, wants to work or waits for the disk."""
_COLLECTIVES_A_STEP: Final = 10
"""Collectives that stand for a step of the warm-up where no steps are reported."""


@dataclass(slots=True)
class RankTrack:
    """One incarnation of one rank, as seen so far."""

    identity: Identity
    first_seen_s: float
    seen_s: float
    """Last tick in which the target was registered at all."""
    predecessor: str | None = None
    """Incarnation before this one, when this monitor saw it."""
    observation: Observation | None = None
    """Of the latest tick; None once the target is registered no more."""
    report: StateReport | None = None
    """The latest report, however old."""
    report_s: float | None = None
    silent_since_s: float | None = None
    """First tick of the present silence; None while it answers."""
    progress: tuple[int, int] | None = None
    """Phase changes and collectives entered or left, so far."""
    progress_since_s: float = 0.0
    moved_s: float | None = None
    """When this monitor last saw the progress counter change."""
    still_sweeps: int = 0
    """Sweeps in a row that saw no progress."""
    running_sweeps: int = 0
    """Of these, those that saw the main thread run or wait for the disk."""
    unread: int = 0
    """How often its past may still be asked for: it made steps before this monitor saw it."""
    healed_commits: int | None = None
    """Commits of this incarnation when it was last seen healing; None: never."""
    dead_sightings: int = 0
    died_s: float | None = None
    first_commit_s: float | None = None
    """When the first commit of this incarnation was seen; None before, or when missed."""
    last_commit_s: float | None = None
    was_alive: bool = False
    """Whether this monitor ever saw the process alive."""

    @property
    def rank(self) -> RankName:
        """Name of the rank."""
        return self.identity.rank

    @property
    def group(self) -> GroupName:
        """Its replica group."""
        return self.identity.group

    @property
    def fresh(self) -> StateReport | None:
        """The report of the latest tick; None when there was none."""
        return None if self.observation is None else self.observation.report

    @property
    def step(self) -> StepState | None:
        """Step state of the latest report, however old."""
        return None if self.report is None else self.report.step

    @property
    def commits(self) -> int:
        """Commits of this incarnation, by the latest report."""
        return 0 if self.step is None else self.step.commits

    @property
    def doing(self) -> str:
        """The phase of the latest report; `OUTSIDE` where no phases are reported."""
        return OUTSIDE if self.step is None else self.step.phase

    @property
    def phased(self) -> bool:
        """Whether the loop itself says when it waits; what others call a phase may hold waiting."""
        return self.step is not None and self.step.source == SOURCE_REPORTER

    @property
    def stall_s(self) -> float:
        """At least so long without progress, at the time of the latest report."""
        report = self.report
        if report is None or self.report_s is None:
            return 0.0
        ages_s = [head.age_s for head in report.heads]
        if report.step is not None:
            ages_s.append(report.step.phase_age_s)
        if not ages_s:
            return 0.0
        return max(0.0, min(*ages_s, self.report_s - self.progress_since_s))

    @property
    def running(self) -> bool:
        """Whether its main thread was seen running in most sweeps of a stall, and in 3 at least."""
        return self.still_sweeps >= 3 and 4 * self.running_sweeps >= 3 * self.still_sweeps

    @property
    def step_s(self) -> float | None:
        """Mean seconds a step over this incarnation's life, long phases left out."""
        step = self.step
        if step is None or step.attempt < 1 or not step.seconds:
            return None
        return sum(s for name, s in step.seconds.items() if name not in LONG_PHASES) / step.attempt


@dataclass(slots=True)
class _Record:
    record: RankRecord
    answer: FlightRecord
    at_s: float


@dataclass(slots=True)
class History:
    """Everything seen so far, as far as it still matters."""

    config: KeeperConfig
    pace: PaceMeter
    attendance: Attendance
    now_s: float = 0.0
    tracks: dict[RankName, RankTrack] = field(default_factory=dict)
    """Sorted by rank; holds ranks that are registered no more for an hour."""
    lighthouse: LighthouseView | None = None
    """Of the latest tick; None while the Lighthouse is away."""
    away: LighthouseAway | None = None
    """Why a Lighthouse that should be there did not answer in the latest tick."""
    away_since_s: float | None = None
    """First tick of its present absence."""
    disturbed_s: float = float("-inf")
    """Last time at which a group started, healed or died."""
    prints: PrintBook = field(default_factory=PrintBook)
    losses: LossBook = field(default_factory=LossBook)
    _members: frozenset[ReplicaId] = frozenset()
    habits: Habits = field(default_factory=lambda: Habits(KeeperConfig()))
    """Pauses that ended well."""
    arrivals: ArrivalBook = field(default_factory=ArrivalBook)
    """Who comes late to collectives, of ranks that report no phases."""
    pausing: frozenset[RankName] = frozenset()
    """Ranks that stood still by themselves in the previous tick, as the wait-for graph had it."""
    left_s: dict[RankName, float] = field(default_factory=dict)
    """Ranks in a collective that a peer has left, as the wait-for graph had it -> since when."""
    inside: frozenset[RankName] = frozenset()
    """Ranks that stood in a collective from which nobody was missing, in the previous tick."""
    _records: dict[RankName, _Record] = field(default_factory=dict)
    _groups: dict[GroupName, tuple[RankTrack, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, config: KeeperConfig) -> History:
        """An empty history."""
        return cls(config, PaceMeter(config), Attendance(config), habits=Habits(config))

    # -- what detectors ask ----------------------------------------------------------------

    def present(self) -> tuple[RankTrack, ...]:
        """Ranks registered in the latest tick, sorted."""
        return tuple(track for track in self.tracks.values() if track.observation is not None)

    def groups(self) -> Mapping[GroupName, tuple[RankTrack, ...]]:
        """Registered ranks by replica group, sorted."""
        return self._groups

    def starting(self, track: RankTrack) -> bool:
        """Whether a rank has not yet the steps, since its start or heal, that its judgement needs.

        Without steps, collectives count.
        """
        warm_up = self.config.warm_up_commits
        if track.step is None:
            heads = () if track.report is None else track.report.heads
            return sum(head.completed for head in heads) < _COLLECTIVES_A_STEP * warm_up
        return track.commits - (track.healed_commits or 0) < warm_up

    def learned_step_s(self, track: RankTrack) -> float:
        """Seconds a step of this rank: the median of its windows, else the mean of its life."""
        recent = [
            window.paces[track.rank].step_s
            for window in list(self.pace.windows)[-20:]
            if track.rank in window.paces
        ]
        if len(recent) >= 3:
            return median(recent)
        return track.step_s or 0.0

    def hang_after_s(self, track: RankTrack) -> float:
        """How long this rank may stand still: max(floor, factor x learned step time).

        What it does now may allow for more, see `detectors.patience`.
        """
        return max(self.config.stall_floor_s, self.config.stall_factor * self.learned_step_s(track))

    def cohorts(self) -> tuple[tuple[str, tuple[RankName, ...]], ...]:
        """Ranks of one role that phases cannot compare, by a name of the role; sorted.

        They report none of their own, or there is no other group to compare with.

        The same group rank of all replica groups; in a job of one group all its ranks, if there
        are no smaller process groups that would give them roles.
        """
        lanes: dict[int, list[RankTrack]] = {}
        for track in self.present():
            alone = not track.phased or len(self._groups) == 1
            if alone and not self.starting(track) and track.fresh is not None:
                lanes.setdefault(track.identity.group_rank, []).append(track)
        if len(self._groups) == 1:
            members = [track for lane in sorted(lanes) for track in lanes[lane]]
            size = len(next(iter(self._groups.values())))
            whole = len(members) == size and all(_only_whole(track) for track in members)
            return (("group", tuple(track.rank for track in members)),) if whole else ()
        return tuple(
            (f"lane {lane}", tuple(track.rank for track in tracks))
            for lane, tracks in sorted(lanes.items())
            if len(tracks) == len(self._groups)
        )

    def replica_id(self, group: GroupName) -> ReplicaId | None:
        """The replica id under which a group's present processes know themselves."""
        known = [
            (track.died_s is not None, track.step.replica_id)
            for track in self._groups.get(group, ())
            if track.step is not None and track.step.replica_id is not None
        ]
        return min(known, key=lambda item: item[0])[1] if known else None

    def in_quorum(self, group: GroupName) -> bool | None:
        """Whether the group's present replica id is in the last quorum; None when unknown."""
        replica_id = self.replica_id(group)
        if self.lighthouse is None or replica_id is None:
            return None
        return replica_id in self._members

    def heartbeat_age_s(self, group: GroupName) -> float | None:
        """Age of the group's last heartbeat; None when unknown."""
        replica_id = self.replica_id(group)
        if self.lighthouse is None or replica_id is None:
            return None
        return self.lighthouse.heartbeat_ages_s.get(replica_id)

    def participating(self, track: RankTrack) -> bool:
        """Whether a rank contributes to the job's steps: alive, warm, in the quorum."""
        step = track.step
        return (
            track.fresh is not None
            and track.fresh.process.alive
            and step is not None
            and not step.healing
            and not self.starting(track)
            and self.in_quorum(track.group) is not False
        )

    def record(self, track: RankTrack) -> RankRecord | None:
        """A flight record of this incarnation that is fresh enough to be evidence."""
        held = self._records.get(track.rank)
        if held is None or held.record.incarnation != track.identity.incarnation:
            return None
        return held.record if self.now_s - held.at_s <= self.config.record_fresh_s else None

    def answer(self, track: RankTrack) -> FlightRecord | None:
        """The WorkerServer's whole answer of which `record` is the ring."""
        return None if self.record(track) is None else self._records[track.rank].answer

    def record_age_s(self, rank: RankName) -> float | None:
        """Since the rank's flight record was read; None when there is none."""
        held = self._records.get(rank)
        return None if held is None else self.now_s - held.at_s

    def hosts(self, ranks: tuple[RankName, ...]) -> tuple[Host, ...]:
        """Hosts of ranks, sorted, each once."""
        return tuple(sorted({self.tracks[r].identity.host for r in ranks if r in self.tracks}))

    # -- what the pipeline pushes ----------------------------------------------------------

    def push(self, snapshot: Snapshot) -> None:
        """Take in one tick."""
        self.now_s = snapshot.now_s
        self._push_lighthouse(snapshot.lighthouse)
        for track in self.tracks.values():
            track.observation = None
        for observation in snapshot.observations:
            self._push_rank(observation)
        self._forget()
        self._group()
        self._push_records(snapshot)
        self._push_steps(snapshot)
        self._push_pace()
        self._push_attendance()
        self._push_state()

    def _push_lighthouse(self, seen: LighthouseView | LighthouseAway) -> None:
        self.lighthouse = seen if isinstance(seen, LighthouseView) else None
        members = () if self.lighthouse is None else self.lighthouse.members
        self._members = frozenset(member.replica_id for member in members)
        self.away = seen if isinstance(seen, LighthouseAway) and seen.missed else None
        if self.away is None:
            self.away_since_s = None
        elif self.away_since_s is None:
            self.away_since_s = self.now_s

    def _push_rank(self, observation: Observation) -> None:
        identity, now_s = observation.identity, self.now_s
        track = self.tracks.get(observation.rank)
        if track is None or track.identity.incarnation != identity.incarnation:
            predecessor = None if track is None else track.identity.incarnation
            if track is not None or self.pace.windows:
                self.disturbed_s = now_s
            track = RankTrack(identity, now_s, now_s, predecessor)
            self.habits.forget(observation.rank)
            self.tracks[observation.rank] = track
        track.observation, track.seen_s = observation, now_s
        report = observation.report
        if report is None:
            if track.silent_since_s is None:
                track.silent_since_s = now_s
            return
        track.silent_since_s = None
        before, before_s = track.report, track.report_s
        _push_step(track, report, now_s)
        _push_process(track, report, now_s)
        if before is not None and before_s is not None:
            self._learn(track, before, now_s - before_s)
        elif track.phased and track.commits >= self.config.warm_up_commits:
            track.unread = _TRIES
        if self._disturbs(track):
            self.disturbed_s = now_s

    def _learn(self, track: RankTrack, before: StateReport, since_s: float) -> None:
        """Remember a pause that this report shows to be over."""
        report = track.report
        if track.rank in self.inside and track.still_sweeps == 0:
            self._learn_inside(track, before, since_s)
        if report is None or self.starting(track) or before.process.stopped:
            return
        for phase, span_s in _pauses(before, report, since_s):
            if span_s <= 0:
                continue
            gap = Gap(
                rank=track.rank,
                role=track.identity.group_rank,
                phase=phase,
                span_s=span_s,
                ended_s=self.now_s,
                step=None if before.step is None else before.step.step,
            )
            if phase in LONG_PHASES:
                self.habits.take_declared(gap)
            elif track.rank in self.pausing and track.still_sweeps == 0:
                self.habits.take(gap)

    def wanted_steps(self) -> tuple[RankName, ...]:
        """Ranks whose steps before this monitor's time may teach their pauses; sorted."""
        return tuple(t.rank for t in self.present() if t.unread > 0 and t.fresh is not None)

    def _push_steps(self, snapshot: Snapshot) -> None:
        for rank, log in sorted(snapshot.steps.items()):
            track = self.tracks.get(rank)
            if track is None or track.unread == 0:
                continue
            track.unread -= 1
            same = isinstance(log, StepLog) and (
                log.identity.incarnation == track.identity.incarnation
            )
            if not same or not isinstance(log, StepLog) or track.step is None:
                continue
            track.unread = 0
            first = self.config.warm_up_commits + 1
            for gap in pauses_of(log, track.step, self.now_s, first):
                if gap.phase in LONG_PHASES:
                    self.habits.take_declared(gap)
                elif gap.span_s >= self.config.stall_floor_s / 2:
                    self.habits.take(gap)

    def _learn_inside(self, track: RankTrack, before: StateReport, since_s: float) -> None:
        """Remember a long collective that all were in and that ended well."""
        ages_s = [head.age_s for head in before.heads if inside_own_group(head, track)]
        if ages_s:
            role, span_s = track.identity.group_rank, max(ages_s) + since_s
            self.habits.take(Gap(track.rank, role, INSIDE, span_s, self.now_s))

    def _disturbs(self, track: RankTrack) -> bool:
        """Whether a rank is busy coming or going, at the cost of its host's other processes."""
        report = track.report
        if report is None:
            return False
        if not report.process.alive:
            died_s = track.died_s
            return died_s is not None and self.now_s - died_s < self.config.restart_quiet_s
        fresh = self.now_s - track.first_seen_s < self.config.warm_up_budget_s
        healing = report.step is not None and report.step.healing
        return healing or (fresh and self.starting(track))

    def _forget(self) -> None:
        for rank, track in list(self.tracks.items()):
            if self.now_s - track.seen_s > _FORGET_S:
                del self.tracks[rank]
                self._records.pop(rank, None)
        self.tracks = dict(sorted(self.tracks.items(), key=lambda item: _order(item[1])))

    def _group(self) -> None:
        groups: dict[GroupName, list[RankTrack]] = {}
        for track in self.present():
            groups.setdefault(track.group, []).append(track)
        self._groups = {name: tuple(tracks) for name, tracks in sorted(groups.items())}

    def _push_records(self, snapshot: Snapshot) -> None:
        for rank, record in snapshot.records.items():
            if not isinstance(record, FlightRecord):
                continue
            try:
                self._records[rank] = _Record(from_ring(record), record, snapshot.now_s)
            except FlightRecordError:
                continue  # unreadable is as good as missing: no evidence either way
        self._push_arrivals(snapshot)

    def _push_arrivals(self, snapshot: Snapshot) -> None:
        quiet = self.now_s - self.disturbed_s >= self.config.restart_quiet_s
        cohorts = self.cohorts()
        known = [rank for _, members in cohorts for rank in members]
        if not quiet:
            self.arrivals.forget()
            return
        self.arrivals.poll({rank: not _in_any(self.tracks[rank]) for rank in known})
        for key, members in cohorts:
            if not self.arrivals.suspects(members):
                self.arrivals.calm_s[key] = self.now_s
            if not any(isinstance(snapshot.records.get(rank), FlightRecord) for rank in members):
                continue
            records = {
                rank: answer
                for rank in members
                if (answer := self.answer(self.tracks[rank])) is not None
                and self.now_s - self._records[rank].at_s < self.config.record_repeat_s
            }
            if len(records) == len(members) > 1:
                apart_s = self.config.record_repeat_s / 2
                self.arrivals.take(key, self.now_s, records, apart_s=apart_s)

    def _push_state(self) -> None:
        """What the ranks say of their weights and losses."""
        self.prints.push(
            self.now_s,
            [
                Voice(
                    track.rank,
                    track.group,
                    track.identity.incarnation,
                    track.died_s is not None,
                    None if track.step is None else track.step.participants,
                    None if track.step is None else track.step.prints,
                )
                for track in self.present()
            ],
        )
        self.losses.push(
            (track.rank, track.identity.incarnation, track.step)
            for track in self.present()
            if track.step is not None and self.participating(track)
        )

    def _push_pace(self) -> None:
        if self.now_s - self.disturbed_s < self.config.restart_quiet_s:
            self.pace.drop()
            return
        self.pace.push(
            self.now_s,
            [
                Reading(track.rank, track.identity.incarnation, track.step, _inside(track))
                for track in self.present()
                if track.step is not None
                and track.step.source == SOURCE_REPORTER
                and self.participating(track)
            ],
        )

    def _push_attendance(self) -> None:
        quorum = None
        if self.lighthouse is not None:
            members = {
                group_of_replica(member.replica_id): member.replica_id
                for member in self.lighthouse.members
            }
            quorum = Quorum(self.lighthouse.quorum_id, members)
        turns = [turn for track in self.present() if (turn := self._turn(track)) is not None]
        absent = [group for group in self._groups if self._stays_out(group)]
        self.attendance.push(self.now_s, turns, quorum, absent)

    def _stays_out(self, group: GroupName) -> bool:
        """Whether a group could take part and does not: it beats, works, and is in no quorum."""
        age_s = self.heartbeat_age_s(group)
        if age_s is None or age_s > HEARTBEAT_TIMEOUT_S or self.in_quorum(group) is not False:
            return False
        return not any(self._excused(track) for track in self._groups[group])

    def _excused(self, track: RankTrack) -> bool:
        """Whether a rank is on its way, done, or cannot be seen: no blame for staying out."""
        config, step = self.config, track.step
        if track.fresh is None or not track.fresh.process.alive or step is None:
            return True
        phase_s = step.phase_age_s
        return (
            step.phase == FINISHED_PHASE
            or self._fresh(track)
            or (step.healing and phase_s < config.healing_budget_s)
            or (step.phase in LONG_PHASES and phase_s < config.long_phase_budget_s)
        )

    def _fresh(self, track: RankTrack) -> bool:
        """Whether a rank is on its way to its first commits, and not for too long."""
        here_s = self.now_s - track.first_seen_s
        young = track.commits < self.config.warm_up_commits  # a heal makes nobody young again
        return young and here_s < self.config.warm_up_budget_s

    def _turn(self, track: RankTrack) -> Turn | None:
        """What attendance is taken from: ranks under a Manager that answered in this tick."""
        report = track.fresh
        step = None if report is None else report.step
        if step is None or step.replica_id is None:
            return None
        return Turn(
            rank=track.rank,
            group=track.group,
            incarnation=track.identity.incarnation,
            commits=step.commits,
            failures=step.commit_failures,
            committed_step=step.committed_step,
            healing=step.healing,
            errored=step.errored,
            fresh=self._fresh(track),
        )


def _inside(track: RankTrack) -> bool:
    report = track.fresh
    return report is not None and any(inside_own_group(head, track) for head in report.heads)


def _in_any(track: RankTrack) -> bool:
    """Whether it is inside any collective, of its own group or across groups."""
    return track.fresh is not None and any(head.inside > 0 for head in track.fresh.heads)


def _only_whole(track: RankTrack) -> bool:
    """Whether all its process groups hold the whole replica group (or itself alone)."""
    heads = () if track.report is None else track.report.heads
    return bool(heads) and all(head.size in (1, track.identity.world_size) for head in heads)


def inside_own_group(head: GroupHead, track: RankTrack) -> bool:
    """Whether the rank is inside a collective of its own replica group.

    A process group that spans replica groups is not its own: that wait is TorchFT's.
    """
    across = head.name.startswith(ACROSS) or head.size > track.identity.world_size
    return head.inside > 0 and head.size > 1 and not across


def _order(track: RankTrack) -> tuple[str, int]:
    return track.group, track.identity.group_rank


def _push_step(track: RankTrack, report: StateReport, now_s: float) -> None:
    before, step = track.step, report.step
    track.report, track.report_s = report, now_s
    moves = sum(head.enqueued + head.completed for head in report.heads)
    progress = 0 if step is None else step.progress, moves
    if progress != track.progress:
        if track.progress is not None:
            track.moved_s = now_s
        track.progress, track.progress_since_s = progress, now_s
        track.still_sweeps = track.running_sweeps = 0
    else:
        track.still_sweeps += 1
        track.running_sweeps += report.process.state in _RUNNING
    if step is None:
        return
    if step.healing:
        track.healed_commits = step.commits
    if step.last_commit_age_s is not None:
        track.last_commit_s = now_s - step.last_commit_age_s
        if track.first_commit_s is None and (before is not None or step.commits == 1):
            track.first_commit_s = track.last_commit_s


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


def _push_process(track: RankTrack, report: StateReport, now_s: float) -> None:
    if report.process.alive:
        track.was_alive, track.dead_sightings, track.died_s = True, 0, None
        return
    track.dead_sightings += 1
    if track.died_s is None:
        track.died_s = now_s - (report.process.dead_age_s or 0.0)
