"""What was seen over time, bounded: all that a detector may ask about the past.

Each rank has one `RankTrack`, replaced when its incarnation changes (a restarted rank is another
process with other counters). Paces come from `pace`, lessons from the job's own pauses from
`learned_pauses`, late arrival from `arrivals`. A snapshot enters by `intake` only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from statistics import median
from typing import Final
from urllib.parse import urlsplit

from lightkeeper.monitor.detect.arrivals import ArrivalBook
from lightkeeper.monitor.detect.learned_pauses import Gap, Habits
from lightkeeper.monitor.detect.links import Links
from lightkeeper.monitor.detect.pace import PaceMeter
from lightkeeper.monitor.detect.quorum_participation import Attendance
from lightkeeper.monitor.detect.track import RankTrack
from lightkeeper.monitor.detect.weights import LossBook, PrintBook
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.names import (
    GroupName,
    Host,
    RankName,
    ReplicaId,
    group_of_replica,
    may_be_of,
)
from lightkeeper.monitor.model.observation import LighthouseAway, LighthouseView, Unreachable
from lightkeeper.monitor.model.units import grouped
from lightkeeper.monitor.records.ring import bounded, newest_collectives
from lightkeeper.monitor.records.safe_pickle import FlightRecordError
from lightkeeper.worker_server.wire import (
    RING_CALLS,
    FlightRecord,
    RingEntry,
    StateReport,
    Testimony,
    rank_name,
)

_FORGET_S: Final = 3600.0
_NAMED: Final = 64
"""Ranks of a group that are named though nothing was ever heard of them."""
_LEAST_STEPS: Final = 3
"""Long steps vary less than short ones: a rank is never called hung earlier."""
_NEXT_LIFE: Final = 3
"""Multiple of `unseen_s`: a WorkerServer takes this long to start on a busy host."""
_FALLEN_S: Final = 180.0
"""How long one death may follow from another: TorchFT's quorum and join timeouts, 60 s each by
default, one after the other, and some for the interpreter to end."""
AROUND_S: Final = 5.0
"""A lost vote or a death is seen at most this much before or after the stall that follows."""
COLLECTIVES_A_STEP: Final = 10
"""Collectives that count as one step of the warm-up if no steps are reported."""


@dataclass(slots=True)
class Reading:
    """A flight record as read."""

    answer: FlightRecord
    """The WorkerServer's whole answer."""
    calls: tuple[RingEntry, ...]
    """The collectives of its ring, oldest first."""
    at_s: float
    """When it was requested: it may lack what happened later."""
    came_s: float
    """The tick with which it came, from which its ages count."""
    garbage: bool = False
    """True if it could not be read; `answer` and `calls` are empty then."""


@dataclass(frozen=True, slots=True)
class Unproven:
    """A gap that may have ended well or badly, and where the rank stood then."""

    gap: Gap
    made: int
    """Steps, as `StepState.made`."""
    failures: int
    done: int
    """Collectives completed."""


@dataclass(frozen=True, slots=True)
class Held:
    """Whom a rank waited for when it was last seen to wait: the edge that a dead rank keeps."""

    holders: tuple[RankName, ...]
    """The ends of its chain of waits, sorted: they wait for nobody."""
    since_s: float
    seen_s: float


@dataclass(frozen=True, slots=True)
class Absence:
    """A period without answers from the Lighthouse, as this monitor's ticks saw it."""

    since_s: float
    until_s: float
    anew: bool
    """True if another process answers since: its quorum count restarted."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The furthest that the job got, and where it continued from after a fall."""

    step: int = -1
    """The highest that any rank committed."""
    at_s: float = 0.0
    """When that was first seen."""
    first: tuple[int, float] | None = None
    """The first step that was seen, and when: for its pace."""
    ranks: int = 0
    starts_over: bool = False
    """True if a process went back to an earlier step."""
    why: str = ""
    """How the first of the processes ended that had committed it."""
    fell_to: int | None = None
    """The step from which the job continued; None: it is not behind."""
    fell_s: float = 0.0

    @property
    def step_s(self) -> float:
        """Seconds a step, on average."""
        began, began_s = self.first or (self.step, self.at_s)
        return (self.at_s - began_s) / (self.step - began) if self.step > began else 0.0

    def within(self, before: StateReport | None, now: StateReport) -> Progress:
        """After two reports of one process, between which its step rose, or fell."""
        was, step = None if before is None else before.step, now.step
        fell = was is not None and step is not None and step.step < was.step
        return replace(self, starts_over=True) if fell else self


@dataclass(slots=True)
class History:
    """Everything seen so far that still matters."""

    config: KeeperConfig
    pace: PaceMeter
    attendance: Attendance
    now_s: float = 0.0
    run: str = ""
    """The run (`RunId`) to which all of this belongs; a new one begins with an empty history."""
    tracks: dict[RankName, RankTrack] = field(default_factory=dict)
    """Sorted by rank; keeps unregistered ranks for an hour."""
    lighthouse: LighthouseView | None = None
    """From the latest tick; None while the Lighthouse is away."""
    away: LighthouseAway | None = None
    """Why a Lighthouse that should be there did not answer in the latest tick."""
    away_since_s: float | None = None
    """First tick of its current absence."""
    absence: Absence | None = None
    """Its last completed absence, until a commit follows it."""
    gate_began_s: float | None = None
    """Since when the gate serves, by the latest look at it."""
    flap: Absence | None = None
    """The same, whatever follows."""
    _view: LighthouseView | None = None
    """Its last page, however old."""
    disturbed_s: float = float("-inf")
    """Last time at which a group started, healed or died."""
    prints: PrintBook = field(default_factory=PrintBook)
    losses: LossBook = field(default_factory=LossBook)
    _members: frozenset[ReplicaId] = frozenset()
    habits: Habits = field(default_factory=lambda: Habits(KeeperConfig()))
    """Pauses that ended well."""
    arrivals: ArrivalBook = field(default_factory=ArrivalBook)
    """Late arrivals at collectives, for ranks that report no phases."""
    pausing: frozenset[RankName] = frozenset()
    """Ranks that stood still on their own in the previous tick, by the wait-for graph."""
    unproven: dict[RankName, Unproven] = field(default_factory=dict)
    """Long collectives that may have ended by an error."""
    left_s: dict[RankName, float] = field(default_factory=dict)
    """Ranks in a collective that a peer has left, by the wait-for graph -> since when."""
    held: dict[RankName, Held] = field(default_factory=dict)
    """Ranks that wait, or that ended waiting -> for whom, by the wait-for graph."""
    fallen_s: dict[GroupName, float] = field(default_factory=dict)
    """Groups that recently lost a process, by any cause -> when its first one died."""
    expired_s: dict[ReplicaId, float] = field(default_factory=dict)
    """Replica ids whose heartbeat this Lighthouse has dropped -> first seen so."""
    links: Links = field(default_factory=Links)
    """The ranks' odd connections, in the latest tick."""
    cluster: Mapping[Host, tuple[Testimony, ...]] = field(default_factory=dict)
    """What schedulers and others say of hosts, in the latest tick."""
    lost: frozenset[str] = frozenset()
    """Incarnations that are out of sight with their host, by open incidents."""
    ends: Mapping[RankName, Testimony] = field(default_factory=dict)
    """What schedulers say of missing ranks, in the latest tick."""
    progress: Progress = field(default_factory=Progress)
    unseen_s: dict[ReplicaId, float] = field(default_factory=dict)
    """Replica ids that beat but no rank reports -> first seen so."""
    inside: frozenset[RankName] = frozenset()
    """Ranks in a collective that nobody was missing from, in the previous tick."""
    _records: dict[RankName, Reading] = field(default_factory=dict)
    _sorted: bool = True
    """True if the tracks are in order."""
    _present: tuple[RankTrack, ...] = ()
    _groups: dict[GroupName, tuple[RankTrack, ...]] = field(default_factory=dict)
    _replica_ids: dict[GroupName, ReplicaId] = field(default_factory=dict)

    @classmethod
    def of(cls, config: KeeperConfig) -> History:
        return cls(config, PaceMeter(config), Attendance(config), habits=Habits(config))

    # -- queries of the detectors -----------------------------------------------------------

    def present(self) -> tuple[RankTrack, ...]:
        """Ranks registered in the latest tick, sorted."""
        return self._present

    def groups(self) -> Mapping[GroupName, tuple[RankTrack, ...]]:
        """Registered ranks by replica group, sorted."""
        return self._groups

    def unregistered(self, group: GroupName) -> list[RankName]:
        """Ranks that a group must have and of which no WorkerServer is known; the first few."""
        tracks = self._groups.get(group, ())
        seen = {track.identity.group_rank for track in tracks}
        world = min((track.identity.world_size for track in tracks), default=0)
        missing = (number for number in range(world) if number not in seen)
        return [rank_name(group, number) for number in islice(missing, _NAMED)]

    @property
    def still_after_s(self) -> float:
        """Time after which a rank counts as standing still: half of the shortest allowance."""
        return self.config.stall_floor_s / 2

    @property
    def disturbed(self) -> bool:
        """True if a group recently started, healed or died: its host's other ranks have no pace."""
        return self.now_s - self.disturbed_s < self.config.restart_quiet_s

    def fell_since(self, at_s: float) -> list[GroupName]:
        """Groups that lost a process since then, or so shortly before that others are affected."""
        return sorted(group for group, fell_s in self.fallen_s.items() if fell_s > at_s - AROUND_S)

    def starting(self, track: RankTrack) -> bool:
        """True if a rank has too few steps, since its start or heal, to be judged.

        Without steps, collectives count.
        """
        warm_up = self.config.warm_up_commits
        if track.step is None:
            done = sum(head.completed for head in track.heads)
            return done < COLLECTIVES_A_STEP * warm_up
        return track.made - (track.healed_steps or 0) < warm_up

    def learned_step_s(self, track: RankTrack) -> float:
        """Seconds a step of this rank: the median of its windows, else the mean of its life."""
        recent_s = self.pace.step_s(track.rank)
        if recent_s is not None:
            return recent_s
        own_s = track.step_s or 0.0
        if own_s <= 0.0 or not self.starting(track):
            return own_s
        # its mean includes its start; all ranks step together, so its peers' step time applies
        peers = [t.step_s for t in self.present() if t.step_s and not self.starting(t)]
        return min(own_s, median(peers)) if peers else own_s

    def hang_after_s(self, track: RankTrack) -> float:
        """How long this rank may stand still: max(floor, factor x learned step time).

        If steps are so long that this exceeds the time after which victims give up, the limit is
        that of undeclared phases, or a few steps. Its current phase may allow more, see
        `detectors.patience`.
        """
        config, step_s = self.config, self.learned_step_s(track)
        most_s = max(config.undeclared_floor_s, _LEAST_STEPS * step_s)
        return max(config.stall_floor_s, min(config.stall_factor * step_s, most_s))

    def cohorts(self) -> tuple[tuple[str, tuple[RankName, ...]], ...]:
        """Ranks of one role that paces cannot compare, by a name of the role; sorted.

        Neither phases nor waits are reported, or there is no other group to compare with.

        The same group rank of all replica groups; in a job of one group all its ranks, if there are
        no smaller process groups that would give them roles.
        """
        lanes = grouped(
            (track.identity.group_rank, track)
            for track in self.present()
            if (not track.paced or len(self._groups) == 1)
            and not self.starting(track)
            and track.fresh is not None
        )
        if len(self._groups) == 1:
            members = [track for lane in sorted(lanes) for track in lanes[lane]]
            size = len(next(iter(self._groups.values())))
            whole = len(members) == size and all(track.only_whole for track in members)
            return (("group", tuple(track.rank for track in members)),) if whole else ()
        return tuple(
            (f"lane {lane}", tuple(track.rank for track in tracks))
            for lane, tracks in sorted(lanes.items())
            if len(tracks) == len(self._groups)
        )

    def replica_id(self, group: GroupName) -> ReplicaId | None:
        """The replica id that a group's current processes report.

        The Lighthouse kills and the gate refuses by it, and it is self-reported: it is believed
        only with the group's name, and if no other group's ranks report it too; one without a name
        only if the Lighthouse shows its Manager on a host of the group.
        """
        return self._replica_ids.get(group)

    def expired_for_s(self, group: GroupName) -> float:
        """For how long the Lighthouse has not counted this group's heartbeat; 0: it counts."""
        since_s = self.expired_s.get(self.replica_id(group) or ReplicaId(""))
        return 0.0 if since_s is None else self.now_s - since_s

    def in_quorum(self, group: GroupName) -> bool | None:
        """True if the group's current replica id is in the last quorum; None when unknown."""
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

    def unseen(self) -> tuple[ReplicaId, ...]:
        """Participants that no WorkerServer has reported for long enough; sorted.

        The next life of a dead group beats before it is registered.
        """

        def due_s(replica_id: ReplicaId) -> float:
            members = self._groups.get(group_of_replica(replica_id), ())
            died = any(track.died_s is not None for track in members)
            return self.config.unseen_s * (_NEXT_LIFE if died else 1)

        since_s = self.unseen_s.items()
        return tuple(sorted(name for name, at_s in since_s if self.now_s - at_s >= due_s(name)))

    def stopped(self, track: RankTrack) -> bool:
        """True if a signal has stopped a rank's process; a tracer's stop does not count."""
        fresh = track.fresh
        return fresh is not None and fresh.process.state == "T" and fresh.process.tracer is None

    def _participates(self, track: RankTrack) -> bool:
        """True if it takes part, if its group does."""
        step = track.step
        return (
            track.fresh is not None
            and track.fresh.process.alive
            and step is not None
            and not step.healing
            and not self.starting(track)
        )

    def reading(self, track: RankTrack) -> Reading | None:
        """A flight record of this incarnation that is fresh enough to be evidence."""
        reading = self.asked(track)
        return None if reading is None or reading.garbage else reading

    def asked(self, track: RankTrack) -> Reading | None:
        """The same, including answers that could not be read."""
        reading = self._records.get(track.rank)
        if reading is None or reading.answer.identity.incarnation != track.identity.incarnation:
            return None
        return reading if self.now_s - reading.at_s <= self.config.record_fresh_s else None

    def record_age_s(self, rank: RankName) -> float:
        """Since the rank's flight record was read; infinite if there is none."""
        reading = self._records.get(rank)
        return float("inf") if reading is None else self.now_s - reading.at_s

    def sample_after_s(self, track: RankTrack) -> float:
        """Seconds after which a healthy rank's record is read again: before half of it is lost, at
        the pace of its newer half.
        """
        reading, most_s = self._records.get(track.rank), self.config.sample_s
        ring = () if reading is None else reading.answer.ring
        newer = ring[len(ring) // 2 :]
        if len(newer) < 2:
            return most_s
        each_s = (newer[0].enter_age_s - newer[-1].enter_age_s) / (len(newer) - 1)
        return min(most_s, max(RING_CALLS * each_s / 2, self.config.record_repeat_s))

    def hosts(self, ranks: tuple[RankName, ...]) -> tuple[Host, ...]:
        """Hosts of ranks, sorted, each once."""
        return tuple(sorted({self.tracks[r].identity.host for r in ranks if r in self.tracks}))

    def unfollowed(self) -> Absence | None:
        """The Lighthouse's last absence, if nobody has committed since it was over.

        Quorum requests from before may never be answered: the Lighthouse lost them.
        """
        over = self.absence
        if over is None or self.away is not None:
            return None
        from_before = any(track.first_seen_s <= over.until_s for track in self.present())
        return over if from_before else None  # all have started since

    def see_commits(self) -> None:
        """A commit after the Lighthouse's absence: a later standstill has another reason."""
        over, tracks = self.absence, self.tracks.values()
        if over is not None and any((t.last_commit_s or 0.0) > over.until_s for t in tracks):
            self.absence = None

    def wanted_steps(self) -> tuple[RankName, ...]:
        """Ranks whose steps before this monitor's time may show their pauses; sorted."""
        return tuple(t.rank for t in self.present() if t.unread > 0 and t.fresh is not None)

    # -- how intake fills it ---------------------------------------------------------------

    def see_lighthouse(self, seen: LighthouseView | LighthouseAway) -> None:
        """Take in the Lighthouse's answer of this tick."""
        self.lighthouse = seen if isinstance(seen, LighthouseView) else None
        members = () if self.lighthouse is None else self.lighthouse.members
        self._members = frozenset(member.replica_id for member in members)
        expired = frozenset() if self.lighthouse is None else self.lighthouse.expired
        self.expired_s = {name: self.expired_s.get(name, self.now_s) for name in expired}
        self.away = seen if isinstance(seen, LighthouseAway) and seen.missed else None
        if self.away is not None:
            self.away_since_s = self.now_s if self.away_since_s is None else self.away_since_s
        elif self.lighthouse is not None:
            view = self.lighthouse
            anew = self._view is not None and view.anew(self._view)
            if self.away_since_s is not None or anew:
                since_s = self.now_s if self.away_since_s is None else self.away_since_s
                self.absence = self.flap = Absence(since_s, self.now_s, anew)
            self.away_since_s, self._view = None, view
        else:
            self.away_since_s = None

    def see_deaths(self) -> None:
        """Remember when groups lost a process, even after a restart: others may die of it."""
        for group, members in self._groups.items():
            died_s = [track.died_s for track in members if track.died_s is not None]
            if died_s:
                self.fallen_s[group] = min(died_s)
        self.fallen_s = {g: s for g, s in self.fallen_s.items() if self.now_s - s < _FALLEN_S}

    def forget(self) -> None:
        """Drop ranks that have been unregistered for an hour; sort the others."""
        for rank, track in list(self.tracks.items()):
            if self.now_s - track.seen_s > _FORGET_S:
                del self.tracks[rank]
                self._records.pop(rank, None)
        if not self._sorted:
            ordered = sorted(self.tracks.values(), key=lambda t: (t.group, t.identity.group_rank))
            self.tracks = {track.rank: track for track in ordered}
        self._sorted = True

    def begin(self, track: RankTrack) -> None:
        """A rank, or an incarnation of it, not seen before."""
        self.tracks[track.rank], self._sorted = track, False

    def regroup(self) -> None:
        """Sort the ranks of this tick into their replica groups."""
        self._present = tuple(t for t in self.tracks.values() if t.observation is not None)
        groups = grouped((track.group, track) for track in self._present)
        self._groups = {name: tuple(tracks) for name, tracks in sorted(groups.items())}
        # asked for by every rank of a group, so computed once a tick
        ids = {name: _told_ids(tracks) for name, tracks in self._groups.items()}
        times = Counter(replica for ids in ids.values() for replica in set(ids))
        self._replica_ids = {
            name: ids[0]
            for name, ids in ids.items()
            if ids and times[ids[0]] == 1 and may_be_of(ids[0], name)
            if ":" in ids[0] or self._is_there(ids, self._groups[name])
        }
        for name, tracks in self._groups.items():
            within = self.in_quorum(name) is not False
            for track in tracks:
                track.participating = within and self._participates(track)

    def _is_there(self, ids: Sequence[ReplicaId], tracks: Sequence[RankTrack]) -> bool:
        """True if an id without a name is a group's: all its ranks say so, and the Lighthouse's
        page has that Manager on a host of theirs.
        """
        members = () if self.lighthouse is None else self.lighthouse.members
        hosts = {str(track.identity.host) for track in tracks}
        hosts |= {urlsplit(t.observation.url).hostname or "" for t in tracks if t.observation}
        return len(set(ids)) == 1 and any(
            member.replica_id == ids[0] and urlsplit(member.address or "").hostname in hosts
            for member in members
        )

    def keep_records(
        self,
        records: Mapping[RankName, FlightRecord | Unreachable],
        asked_s: Mapping[RankName, float],
    ) -> None:
        """Keep the flight records of this tick that can be read."""
        for rank, record in records.items():
            track = self.tracks.get(rank)
            if isinstance(record, FlightRecord):
                try:
                    newest = bounded(record)
                    calls, at_s = newest_collectives(newest), asked_s.get(rank, self.now_s)
                    self._records[rank] = Reading(newest, calls, at_s, self.now_s)
                    continue
                except FlightRecordError:
                    pass
            if track is not None and self.reading(track) is None:
                # no evidence either way; but the others' records are judged without it
                nothing = FlightRecord(track.identity, True, {}, (), 0, None)
                self._records[rank] = Reading(nothing, (), self.now_s, self.now_s, garbage=True)


def _told_ids(members: tuple[RankTrack, ...]) -> list[ReplicaId]:
    """Ids that a group reports, live processes first: a dead one may have had another."""
    return [
        name
        for track in sorted(members, key=lambda track: track.died_s is not None)
        if (name := track.trained_as if track.step is None else track.step.replica_id) is not None
    ]
