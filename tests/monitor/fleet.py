"""An in-memory fleet on a fake timeline: ranks that step, wait, sicken, die and come back.

`SimFleet` runs G groups of W ranks in slices of 0.05 s and makes one `Snapshot` a tick. Its
program, each attempt of a step: data, forward (an all_gather inside the group at its end),
backward (an all_reduce inside the group at its end), communication (a barrier of all ranks of
all groups in the quorum, then the commit), optimizer. A fault script is a list of
`at(seconds, fault)`; `Drive` runs fleet and pipeline against each other and carries
evictions out. Reusable by any test that needs snapshots or decisions.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from monitor.config import KeeperConfig
from monitor.habits import with_pauses
from monitor.incident import Incident, State
from monitor.names import GroupName, Host, RankName, ReplicaId, rank_name
from monitor.pipeline import Pipeline, TickResult
from monitor.policy import Evict, Hold
from monitor.snapshot import (
    EvictionProgress,
    Failure,
    LighthouseAway,
    LighthouseView,
    Member,
    Observation,
    Snapshot,
    Unreachable,
)
from worker_server.wire import (
    SOURCE_REPORTER,
    FlightRecord,
    GroupHead,
    Identity,
    Prints,
    Process,
    RingEntry,
    Spoilt,
    StateReport,
    StepLog,
    StepRow,
    StepState,
)

SLICE_S = 0.05
HEARTBEAT_TIMEOUT_S = 5.0
START_S = 1_000_000.0
"""Unix time of the fleet's first tick: far from zero, so that nobody mistakes ages for times."""

WORK = {"data": 0.02, "forward": 0.10, "backward": 0.15, "optimizer": 0.03}
INTRA = "intra"
ACROSS = "torchft"
_WAITS = ("gather", "reduce", "cross", "extra")
"""Places that a rank leaves when others let it."""


@dataclass
class SimRank:
    """One rank process."""

    group: str
    index: int
    world_size: int
    host: str
    born: int = 0
    phase: str = "init"
    phase_since_s: float = 0.0
    left_s: float = 0.0
    place: str = "start"
    """start | data | forward | gather | backward | reduce | cross | optimizer | pause"""
    step: int = 0
    attempt: int = 0
    progress: int = 0
    commits: int = 0
    committed_s: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    alive: bool = True
    died_s: float | None = None
    exit_signal: str | None = None
    stopped: bool = False
    gil_since_s: float | None = None
    hung: bool = False
    hang_in: str | None = None
    stalled_until_s: float = 0.0
    slow: float = 1.0
    extra_s: dict[str, float] = field(default_factory=dict)
    odd: str | None = None
    """Next all_reduce goes wrong: op | size | extra | abort."""
    healing_until_s: float = 0.0
    healed: bool = False
    """Whether its last attempt healed; `errored`: met an error."""
    errored: bool = False
    pauses: list[tuple[str, float]] = field(default_factory=list)
    habits: list[tuple[int, str, float]] = field(default_factory=list)
    """Every so many steps, a pause in this phase of so many seconds."""
    state: str = "S"
    """State of its main thread while it lives and is not stopped."""
    resume: str = "data"
    enqueued: int = 0
    completed: int = 0
    op: str = "all_gather"
    head_since_s: float = 0.0
    nth: int = 0
    tokens: int = 0
    tokens_a_step: int = 0
    failures: int = 0
    committed: int | None = None
    log: list[tuple[int, int, float, dict[str, float]]] = field(default_factory=list)
    """Attempt, step, end and seconds so far, of each step committed."""
    across: int = 0
    """Collectives across groups entered."""
    across_since_s: float = 0.0
    across_ring: deque[dict] = field(default_factory=lambda: deque(maxlen=64))
    begun_s: float = 0.0
    """When the present attempt began, or the last one ended."""
    ring: deque[dict] = field(default_factory=lambda: deque(maxlen=64))
    nan_attempts: int = 0
    """So many of its next attempts have a gradient that is NaN."""
    poisoned: bool = False
    """Its weights are NaN."""
    flaw: int = 0
    """Which corruption its weights carry; a heal takes over the other group's. 0: none."""
    lineage: int = 0
    prints: list[tuple[int, int, int]] = field(default_factory=list)
    spell: Spoilt | None = None
    spell_s: float = 0.0
    loss: float | None = None
    loss_factor: float = 1.0

    @cached_property
    def name(self) -> RankName:
        return rank_name(self.group, self.index)

    @cached_property
    def replica_id(self) -> ReplicaId:
        return ReplicaId(f"{self.group}:uuid{self.born}")

    @cached_property
    def identity(self) -> Identity:
        return Identity(
            job="job",
            group=GroupName(self.group),
            group_rank=self.index,
            world_size=self.world_size,
            host=Host(self.host),
            pid=1000 + 10 * self.born + self.index,
            incarnation=f"{self.name}#{self.born}",
        )

    def enter_phase(self, phase: str, now_s: float) -> None:
        if self.phase != phase or phase == "init":
            spent = now_s - self.phase_since_s
            self.seconds[self.phase] = self.seconds.get(self.phase, 0.0) + max(0.0, spent)
        self.phase, self.phase_since_s = phase, now_s
        self.progress += 1

    def enter_collective(
        self, op: str, now_s: float, size: int = 1000, dtype: str = "torch.float32"
    ) -> None:
        self.enqueued += 1
        self.op, self.head_since_s = op, now_s
        self.ring.append(
            {
                "seq": self.enqueued,
                "op": op,
                "sizes_in": ((size,),),
                "dtype": dtype,
                "step": self.step,
                "attempt": self.attempt,
                "nth": self.nth,
                "enter_s": now_s,
                "exit_s": None,
            }
        )
        self.nth += 1

    def leave_collective(self, now_s: float) -> None:
        self.completed = self.enqueued
        self.head_since_s = now_s
        self.ring[-1]["exit_s"] = now_s


Fault = Callable[["SimFleet"], None]


@dataclass(frozen=True)
class At:
    """One line of a fault script."""

    at_s: float
    fault: Fault


def at(at_s: float, fault: Fault) -> At:
    """`fault` happens `at_s` seconds after the fleet's first tick."""
    return At(at_s, fault)


def hang(rank: str, phase: str = "forward") -> Fault:
    """The rank sleeps for ever the next time it is in `phase`."""

    def do(fleet: SimFleet) -> None:
        fleet.rank(rank).hang_in = phase

    return do


def recover(rank: str) -> Fault:
    def do(fleet: SimFleet) -> None:
        sick = fleet.rank(rank)
        sick.hung, sick.hang_in, sick.stopped, sick.gil_since_s = False, None, False, None

    return do


def gil(rank: str) -> Fault:
    """A C call holds the GIL for ever; the Rust heartbeat goes on."""

    def do(fleet: SimFleet) -> None:
        fleet.rank(rank).gil_since_s = fleet.now_s

    return do


def stop(rank: str) -> Fault:
    """SIGSTOP."""

    def do(fleet: SimFleet) -> None:
        fleet.rank(rank).stopped = True

    return do


def crash(rank: str) -> Fault:
    """SIGKILL."""

    def do(fleet: SimFleet) -> None:
        fleet.kill(fleet.rank(rank))

    return do


def ended_by(rank: str, signal: str) -> Fault:
    """A signal ends the rank, and its sidecar knows which."""

    def do(fleet: SimFleet) -> None:
        fleet.rank(rank).exit_signal = signal
        fleet.kill(fleet.rank(rank))

    return do


def slow(rank: str, factor: float) -> Fault:
    def do(fleet: SimFleet) -> None:
        fleet.rank(rank).slow = factor

    return do


def mismatch(rank: str, how: str = "op") -> Fault:
    """The rank's next all_reduce is another one: op, size, extra, abort (op, then SIGABRT), dtype
    (the same bytes, which hangs nothing)."""

    def do(fleet: SimFleet) -> None:
        fleet.rank(rank).odd = how

    return do


def jam(group: str, for_s: float = 1e9) -> Fault:
    """The group's collectives are entered by all and let nobody out: a link, a GPU."""

    def do(fleet: SimFleet) -> None:
        fleet.jammed_until_s[group] = fleet.now_s + for_s

    return do


def slow_in(rank: str, phase: str, extra_s: float) -> Fault:
    """The rank spends so many seconds more in this phase of each step."""

    def do(fleet: SimFleet) -> None:
        fleet.rank(rank).extra_s[phase] = extra_s

    return do


def slow_link(group: str, for_s: float) -> Fault:
    """Each collective of the group takes so many seconds once all are in it."""

    def do(fleet: SimFleet) -> None:
        fleet.link_s[group] = for_s

    return do


def slow_network(for_s: float) -> Fault:
    """Each transfer across groups takes so many seconds once all are in it."""

    def do(fleet: SimFleet) -> None:
        fleet.network_s = for_s

    return do


def tokens(rank: str, count: int) -> Fault:
    """The rank reports so many tokens a step from now on."""

    def do(fleet: SimFleet) -> None:
        fleet.rank(rank).tokens_a_step = count

    return do


def jam_across(for_s: float = 1e9) -> Fault:
    """The transfer across groups is entered by all and lets nobody out."""

    def do(fleet: SimFleet) -> None:
        fleet.no_quorum_until_s = fleet.now_s + for_s

    return do


def cpu_stall(rank: str, for_s: float) -> Fault:
    def do(fleet: SimFleet) -> None:
        fleet.rank(rank).stalled_until_s = fleet.now_s + for_s

    return do


def pause(ranks: Iterable[str], phase: str, for_s: float) -> Fault:
    """A declared long phase before the next step."""
    named = tuple(ranks)

    def do(fleet: SimFleet) -> None:
        for rank in named:
            fleet.rank(rank).pauses.append((phase, for_s))

    return do


def habit(ranks: Iterable[str], every: int, phase: str, for_s: float) -> Fault:
    """From now on a pause after every so many steps."""
    named = tuple(ranks)

    def do(fleet: SimFleet) -> None:
        for rank in named:
            fleet.rank(rank).habits.append((every, phase, for_s))

    return do


def runs(rank: str, state: str = "R") -> Fault:
    """The main thread is seen running from now on, whatever it does."""

    def do(fleet: SimFleet) -> None:
        fleet.rank(rank).state = state

    return do


def restart(group: str, start_s: float = 6.0) -> Fault:
    """The launcher kills what is left of the group and starts it again."""

    def do(fleet: SimFleet) -> None:
        fleet.restart(group, start_s)

    return do


def silent(rank: str, for_s: float, failure: Failure = Failure.TIMEOUT) -> Fault:
    """The rank's WorkerServer answers nothing for a while; the rank itself is well."""

    def do(fleet: SimFleet) -> None:
        fleet.silent_until[RankName(rank)] = (fleet.now_s + for_s, failure)

    return do


def unregister(group: str) -> Fault:
    def do(fleet: SimFleet) -> None:
        fleet.groups = {name: ranks for name, ranks in fleet.groups.items() if name != group}

    return do


def lighthouse_away(for_s: float) -> Fault:
    def do(fleet: SimFleet) -> None:
        fleet.lighthouse_away_until_s = fleet.now_s + for_s

    return do


def fail_commits(
    groups: Iterable[str], for_s: float = 1e9, errored: Iterable[str] | None = None
) -> Fault:
    """Every second commit of these groups fails while others commit; all of them, if nobody does.

    A group that fails while another commits is behind, and heals with its next attempt.
    """
    named = tuple(groups)

    def do(fleet: SimFleet) -> None:
        fleet.failing = dict.fromkeys(named, fleet.now_s + for_s)
        fleet.erring = set(named if errored is None else errored)

    return do


def shut_out(group: str, for_s: float = 1e9) -> Fault:
    """The group beats, and its quorum requests lead nowhere."""

    def do(fleet: SimFleet) -> None:
        fleet.outside[group] = fleet.now_s + for_s
        fleet._leave(group)

    return do


def lighthouse_down(for_s: float) -> Fault:
    """The Lighthouse itself is gone: the monitor cannot see it, and no quorum forms."""

    def do(fleet: SimFleet) -> None:
        fleet.lighthouse_away_until_s = fleet.no_quorum_until_s = fleet.now_s + for_s

    return do


def lighthouse_restart(for_s: float, quorum_timeout_s: float = 60.0) -> Fault:
    """The Lighthouse is killed and comes back: what was asked of it is lost, and nobody asks again
    before the quorum timeout has passed."""

    def do(fleet: SimFleet) -> None:
        fleet.lighthouse_away_until_s = fleet.now_s + for_s
        fleet.no_quorum_until_s = fleet.now_s + quorum_timeout_s
        fleet.quorum_id = 0

    return do


def late(by_s: float, ticks: int = 1) -> Fault:
    """The monitor's next ticks come late: the world goes on meanwhile."""

    def do(fleet: SimFleet) -> None:
        fleet.late_ticks = [by_s] * ticks

    return do


def nan(rank: str, attempts: int = 10**9) -> Fault:
    """The rank's gradient is NaN, for so many attempts."""

    def do(fleet: SimFleet) -> None:
        fleet.rank(rank).nan_attempts = attempts

    return do


def flip(rank: str, flaw: int | None = None) -> Fault:
    """A bit of the rank's weights flips; equal flaws are equal bits."""

    def do(fleet: SimFleet) -> None:
        fleet.flaws += 1
        fleet.rank(rank).flaw = fleet.flaws if flaw is None else flaw

    return do


def heal(group: str, source: str) -> Fault:
    """The group missed a step and took the weights of another."""

    def do(fleet: SimFleet) -> None:
        fleet.heal(group, source)

    return do


def loss(ranks: Iterable[str], factor: float) -> Fault:
    """What the ranks report as their loss is so many times as high from now on."""
    named = tuple(ranks)

    def do(fleet: SimFleet) -> None:
        for rank in named:
            fleet.rank(rank).loss_factor = factor

    return do


class SimFleet:
    """G groups of W ranks under one Lighthouse, and the clock."""

    def __init__(
        self,
        groups: int | Sequence[str] = 3,
        world_size: int = 1,
        script: Sequence[At] = (),
        *,
        noise: float = 0.0,
        seed: int = 0,
        tick_s: float = 1.0,
        relaunch: bool = True,
        pace: float = 1.0,
        source: str | None = SOURCE_REPORTER,
        across: bool = False,
    ) -> None:
        names = [f"rg_{n}" for n in range(groups)] if isinstance(groups, int) else list(groups)
        self.now_s = START_S
        self.tick = 0
        self.tick_s = tick_s
        self.noise = noise
        self.pace = pace
        self.source = source
        """Who tells the steps; None: nobody does, the ranks only attached."""
        self.across = across
        """Whether heads show the collectives across groups."""
        self.random = random.Random(seed)
        self.script = sorted(script, key=lambda line: line.at_s)
        self.groups: dict[str, list[SimRank]] = {}
        self.silent_until: dict[RankName, tuple[float, Failure]] = {}
        self.jammed_until_s: dict[str, float] = {}
        self.link_s: dict[str, float] = {}
        self.network_s = 0.0
        self.lighthouse_away_until_s = 0.0
        self.no_quorum_until_s = 0.0
        self.failing: dict[str, float] = {}
        self.erring: set[str] = set()
        self.outside: dict[str, float] = {}
        self.late_ticks: list[float] = []
        self.quorum_id = 1
        self.quorum: set[str] = set(names)
        self.released: dict[str, int] = {}
        self.heartbeat_s: dict[ReplicaId, float] = {}
        self.evictions: dict[str, EvictionProgress] = {}
        self.relaunch = relaunch
        self.relaunch_at_s: dict[str, float] = {}
        self.evictor_works = True
        self.faulted: set[str] = set()
        self.flaws = 0
        self.votes = True
        """Whether groups vote against the commit of what is not finite."""
        self.losses = False
        """Whether ranks report a loss."""
        self.fingerprint_every = 0
        """Steps between two fingerprints; 0: none."""
        for name in names:
            self.groups[name] = [
                SimRank(name, i, world_size, host=f"host-{name}", phase_since_s=self.now_s)
                for i in range(world_size)
            ]
            for rank in self.groups[name]:
                self._begin(rank)

    # -- for scripts and tests -------------------------------------------------------------

    def ranks(self) -> list[SimRank]:
        return [rank for ranks in self.groups.values() for rank in ranks]

    def rank(self, name: str) -> SimRank:
        return next(rank for rank in self.ranks() if rank.name == name)

    def kill(self, rank: SimRank) -> None:
        if rank.alive:
            rank.alive, rank.died_s = False, self.now_s

    def restart(self, group: str, start_s: float = 6.0) -> None:
        self._leave(group)
        fresh = [
            SimRank(r.group, r.index, r.world_size, r.host, born=r.born + 1)
            for r in self.groups[group]
        ]
        for rank in fresh:
            rank.place, rank.phase = "start", "init"
            rank.phase_since_s, rank.left_s = self.now_s, start_s
        self.groups[group] = fresh
        self.released[group] = 0

    def evict(self, decision: Evict) -> None:
        self.evictions[decision.incident_id] = EvictionProgress(
            incident_id=decision.incident_id,
            group=decision.group,
            replica_id=decision.replica_id,
            asked_s=self.now_s,
            rungs=(),
        )

    # -- the world -------------------------------------------------------------------------

    def run_to(self, until_s: float) -> None:
        while self.now_s < until_s - 1e-9:
            self.now_s = round(self.now_s + SLICE_S, 6)
            while self.script and START_S + self.script[0].at_s <= self.now_s:
                self.script.pop(0).fault(self)
            for ranks in self.groups.values():
                for rank in ranks:
                    if rank.place not in _WAITS and not self._frozen(rank):
                        self._advance(rank)
            for ranks in self.groups.values():
                if len(ranks) > 1:
                    self._collectives(ranks)
            self._barrier()
            self._lighthouse()
            self._evictor()

    def _begin(self, rank: SimRank) -> None:
        rank.attempt += 1
        rank.nth = 0
        rank.begun_s = self.now_s
        self._work(rank, "data")

    def _work(self, rank: SimRank, phase: str) -> None:
        rank.place = phase
        rank.enter_phase(phase, self.now_s)
        factor = rank.slow if phase in ("forward", "backward") else 1.0
        rank.left_s = (
            WORK[phase] * factor * self.pace * (1 + self.noise * self.random.uniform(-1, 1))
        )
        rank.left_s += rank.extra_s.get(phase, 0.0)
        if rank.hang_in == phase:
            rank.hung = True

    def _frozen(self, rank: SimRank) -> bool:
        return (
            not rank.alive
            or rank.stopped
            or rank.hung
            or rank.gil_since_s is not None
            or self.now_s < rank.stalled_until_s
        )

    def _advance(self, rank: SimRank) -> None:
        rank.left_s -= SLICE_S
        while rank.left_s <= 0 and rank.place not in _WAITS:
            spare_s = rank.left_s
            self._next(rank)
            rank.left_s += spare_s
            if rank.hung:
                return

    def _next(self, rank: SimRank) -> None:
        match rank.place:
            case "data":
                self._work(rank, "forward")
            case "forward" if rank.world_size > 1:
                rank.place = "gather"
                rank.enter_collective("all_gather", self.now_s)
            case "forward":
                self._work(rank, "backward")
            case "backward" if rank.world_size > 1:
                self._reduce(rank)
            case "backward" | "start":
                self._cross(rank)
            case "optimizer" | "pause":
                if rank.place == "optimizer":
                    rank.pauses += [
                        (phase, for_s * (1 + self.noise * self.random.uniform(-1, 1)))
                        for every, phase, for_s in rank.habits
                        if rank.step % every == 0
                    ]
                if rank.pauses:
                    phase, for_s = rank.pauses.pop(0)
                    rank.place, rank.left_s = "pause", for_s
                    rank.enter_phase(phase, self.now_s)
                else:
                    self._begin(rank)

    def _reduce(self, rank: SimRank) -> None:
        rank.place = "reduce"
        match rank.odd:
            case "op" | "abort":
                rank.enter_collective("all_to_all", self.now_s)
            case "size":
                rank.enter_collective("all_reduce", self.now_s, size=2000)
            case "dtype":
                rank.odd = None
                rank.enter_collective("all_reduce", self.now_s, dtype="torch.int32")
            case _:
                rank.enter_collective("all_reduce", self.now_s)
        if rank.odd == "abort":
            self.kill(rank)

    def _collectives(self, ranks: list[SimRank]) -> None:
        """A collective is released once every member is in it, with the same signature."""
        name = ranks[0].group if ranks else ""
        for place in ("gather", "reduce"):
            inside = [r for r in ranks if r.place == place and r.enqueued > r.completed]
            if not inside:  # by far the most
                continue
            whole = len(inside) == len(ranks) and all(r.alive for r in ranks)
            whole = whole and self.now_s >= self.jammed_until_s.get(name, 0.0)
            whole = whole and self._since(inside) >= self.link_s.get(name, 0.0)
            calls = {(r.enqueued, r.ring[-1]["op"], r.ring[-1]["sizes_in"]) for r in inside}
            if whole and len(calls) == 1:
                self.released[name] = inside[0].enqueued
            for rank in inside:
                if rank.enqueued <= self.released.get(name, 0) and not self._frozen(rank):
                    self._released(rank, place)

    def _since(self, inside: list[SimRank]) -> float:
        """Seconds since the last of them came in."""
        return self.now_s - max((rank.head_since_s for rank in inside), default=self.now_s) + 1e-9

    def _released(self, rank: SimRank, place: str) -> None:
        rank.leave_collective(self.now_s)
        if place == "gather":
            self._work(rank, "backward")
        elif rank.odd == "extra":
            rank.place = "extra"
            rank.enter_collective("all_reduce", self.now_s)
        else:
            self._cross(rank)

    def _cross(self, rank: SimRank) -> None:
        rank.place = "cross"
        rank.enter_phase("communication", self.now_s)
        rank.across += 1
        rank.across_since_s = self.now_s
        if self.across:
            rank.across_ring.append(
                {
                    "group": ACROSS,
                    "seq": rank.across,
                    "op": "all_reduce",
                    "sizes_in": ((1000,),),
                    "step": rank.step,
                    "attempt": rank.attempt,
                    "nth": 0,
                    "enter_s": self.now_s,
                    "exit_s": None,
                }
            )

    def _barrier(self) -> None:
        if self.now_s < self.no_quorum_until_s:
            return
        if not any(r.place == "cross" for ranks in self.groups.values() for r in ranks):
            return
        inside = {
            name: all(r.place == "cross" and r.alive for r in ranks)
            and self.now_s >= self.outside.get(name, 0.0)
            for name, ranks in self.groups.items()
        }
        if not self.quorum & set(self.groups):
            self.quorum = {name for name, there in inside.items() if there}
            if self.quorum:
                self.quorum_id += 1
        if not self.quorum or not all(inside.get(name, False) for name in self.quorum):
            return
        if self._in_transfer():
            return
        joining = {name for name, there in inside.items() if there} - self.quorum
        step = max(r.step for name in self.quorum for r in self.groups[name])
        if joining:
            self.quorum |= joining
            self.quorum_id += 1
        self._commit(step, joining)

    def _commit(self, step: int, joining: set[str]) -> None:
        """An attempt of all groups of the quorum ends."""
        failed = self._failed(step)
        bad = {name for name in self.quorum - joining if self._not_finite(self.groups[name])}
        clean = self.quorum - joining - bad
        for name in sorted(self.quorum):
            for rank in self.groups[name]:
                rank.begun_s = rank.across_since_s = self.now_s
                if rank.across_ring:
                    rank.across_ring[-1]["exit_s"] = self.now_s
                self._end(rank, step, name in joining, name in failed, bad, clean)
            if name in joining:
                self.heal(name, min(self.quorum - joining, default=name))
            elif name in bad and self.votes and clean:
                self.heal(name, min(clean))

    def _end(
        self, rank: SimRank, step: int, joins: bool, failed: bool, bad: set[str], clean: set[str]
    ) -> None:
        if rank.group in bad and self.votes:
            rank.failures += 1
            if clean:
                rank.step = step + 1
            self._work(rank, "optimizer")
            return
        if joins:
            rank.step = step
            rank.healing_until_s = self.now_s + 1.0
            rank.place, rank.left_s = "pause", 1.0
            rank.enter_phase("forward", self.now_s)
            return
        rank.errored, rank.healed = failed and rank.group in self.erring, rank.step < step
        if failed:
            rank.failures += 1
            self._work(rank, "optimizer")
            return
        if not clean and self.votes:
            return
        rank.committed = step
        rank.step, rank.commits = step + 1, rank.commits + 1
        rank.committed_s = self.now_s
        rank.tokens += rank.tokens_a_step
        rank.poisoned = rank.poisoned or bool(bad and not self.votes)
        self._fingerprint(rank)
        rank.log.append((rank.attempt, rank.step, self.now_s, dict(rank.seconds)))
        self._work(rank, "optimizer")

    def _not_finite(self, ranks: list[SimRank]) -> bool:
        """An attempt of a group ends: whether its gradient is NaN, and who remembers what."""
        own = [rank for rank in ranks if rank.nan_attempts > 0 or rank.poisoned]
        for rank in ranks:
            rank.nan_attempts -= rank.nan_attempts > 0
            if self.losses:
                noise = 1 + self.noise * self.random.uniform(-1, 1)
                rank.loss = None if rank.poisoned else 2.0 * rank.loss_factor * noise
            if own:
                self._spoil(rank, "local" if rank in own else "group")
            elif rank.spell is not None:
                rank.spell = replace(rank.spell, run=0)
        return bool(own)

    def _spoil(self, rank: SimRank, where: str) -> None:
        spell = rank.spell
        attempts = 1 if spell is None else spell.attempts + 1
        if spell is None or not spell.run:
            rank.spell_s = self.now_s
            rank.spell = Spoilt(rank.step, where, 0.0, 1, attempts)
        else:
            rank.spell = replace(spell, run=spell.run + 1, attempts=attempts)

    def _fingerprint(self, rank: SimRank) -> None:
        if self.fingerprint_every and rank.step % self.fingerprint_every == 0:
            value = 1000 * rank.step + rank.flaw
            rank.prints = [*rank.prints, (rank.step, value, 0)][-3:]

    def heal(self, group: str, source: str) -> None:
        """All ranks of a group take over the weights of another's."""
        for rank, other in zip(self.groups[group], self.groups[source], strict=True):
            rank.flaw, rank.poisoned = other.flaw, other.poisoned
            rank.lineage += 1
            rank.prints = []

    def _failed(self, step: int) -> set[str]:
        """Groups of the quorum whose commit fails; whoever is behind heals, and commits."""
        bad = {name for name, until_s in self.failing.items() if self.now_s < until_s}
        all_bad = self.quorum <= bad
        failed = {
            name
            for name in self.quorum & bad
            if all_bad or all(rank.step == step for rank in self.groups[name])
        }
        if failed and not all_bad:
            self.quorum_id += 1
        return failed

    def _in_transfer(self) -> bool:
        came_s = max(r.across_since_s for name in self.quorum for r in self.groups[name])
        return self.now_s - came_s < self.network_s - 1e-9

    def _lighthouse(self) -> None:
        beating = 0
        for name, ranks in self.groups.items():
            host = ranks[0]
            if host.alive and not host.stopped and host.place != "start":
                self.heartbeat_s[host.replica_id] = self.now_s
                beating += name in self.quorum
        if beating == len(self.quorum):
            return
        for name in sorted(self.quorum):
            beat_s = (
                self.heartbeat_s.get(self.groups[name][0].replica_id, START_S)
                if name in self.groups
                else START_S
            )
            if self.now_s - beat_s > HEARTBEAT_TIMEOUT_S and len(self.quorum) > 1:
                self._leave(name)

    def _leave(self, group: str) -> None:
        if group in self.quorum:
            self.quorum.discard(group)
            self.quorum_id += 1

    def _evictor(self) -> None:
        for key, progress in list(self.evictions.items()):
            ranks = self.groups.get(progress.group, [])
            waited_s = self.now_s - progress.asked_s
            if progress.gone_s is None and waited_s >= 0.5 and self.evictor_works:
                for rank in ranks:
                    self.kill(rank)
                self.evictions[key] = replace(progress, gone_s=self.now_s)
                self.relaunch_at_s[progress.group] = self.now_s + 3.0
            if (
                progress.gone_s is not None
                and progress.left_quorum_s is None
                and progress.group not in self.quorum
            ):
                self.evictions[key] = replace(progress, left_quorum_s=self.now_s)
        for group, at_s in list(self.relaunch_at_s.items()):
            if self.relaunch and self.now_s >= at_s:
                del self.relaunch_at_s[group]
                self.restart(group)

    # -- what the monitor sees -------------------------------------------------------------

    def snapshot(self, wanted: Iterable[RankName] = (), past: Iterable[RankName] = ()) -> Snapshot:
        """The next tick: the world moves on by one tick, then is looked at."""
        lateness_s = self.late_ticks.pop(0) if self.late_ticks else 0.0
        if self.tick:
            self.run_to(self.now_s + self.tick_s + lateness_s)
        self.tick += 1
        seen = [self._observe(rank) for rank in sorted(self.ranks(), key=lambda r: r.name)]
        records = {name: self._record(name) for name in wanted}
        return Snapshot(
            now_s=self.now_s,
            tick=self.tick,
            lateness_s=lateness_s,
            observations=tuple(seen),
            lighthouse=self._view(),
            records=records,
            evictions=tuple(self.evictions.values()),
            steps={name: self._past(name) for name in past},
        )

    def _past(self, name: RankName) -> StepLog | Unreachable:
        rank = self.rank(name)
        gone = self._is_silent(rank)
        if gone is not None:
            return gone
        rows = []
        for before, (attempt, step, end_s, spent) in zip(rank.log, rank.log[1:], strict=False):
            seconds = {phase: s - before[3].get(phase, 0.0) for phase, s in spent.items()}
            row = StepRow(attempt, step, True, self.now_s - end_s, end_s - before[2], seconds)
            rows.append(row)
        return with_pauses(StepLog(rank.identity, rank.alive, tuple(rows), 0))

    def _view(self) -> LighthouseView | LighthouseAway:
        if self.now_s < self.lighthouse_away_until_s:
            return LighthouseAway("connection refused")
        return LighthouseView(
            quorum_id=self.quorum_id,
            members=tuple(
                Member(self.groups[name][0].replica_id, self.groups[name][0].step)
                for name in sorted(self.quorum)
                if name in self.groups
            ),
            heartbeat_ages_s={rid: self.now_s - beat for rid, beat in self.heartbeat_s.items()},
            status="",
        )

    def _is_silent(self, rank: SimRank) -> Unreachable | None:
        until_s, failure = self.silent_until.get(rank.name, (0.0, Failure.TIMEOUT))
        return Unreachable(failure, "no answer") if self.now_s < until_s else None

    def _observe(self, rank: SimRank) -> Observation:
        outcome = self._is_silent(rank) or self._report(rank)
        return Observation(rank.identity, f"http://{rank.host}/{rank.name}", outcome, 0.01)

    def _report(self, rank: SimRank) -> StateReport:
        now_s = self.now_s
        dead = rank.died_s is not None
        interpreter = 0.1
        if rank.gil_since_s is not None:
            interpreter = now_s - rank.gil_since_s
        if rank.stopped:
            interpreter = now_s - rank.phase_since_s
        heads: tuple[GroupHead, ...] = ()
        if self.across and rank.across:
            inside = rank.across if rank.place == "cross" else 0
            done = rank.across - bool(inside)
            age_s = now_s - rank.across_since_s
            size = len(self.quorum)
            heads = (GroupHead(ACROSS, size, rank.across, done, "all_reduce", age_s, inside),)
        if rank.world_size > 1 and rank.enqueued:
            heads = (
                *heads,
                GroupHead(
                    INTRA,
                    rank.world_size,
                    rank.enqueued,
                    rank.completed,
                    rank.op,
                    now_s - rank.head_since_s,
                    inside=rank.enqueued if rank.enqueued > rank.completed else 0,
                ),
            )
        return StateReport(
            identity=rank.identity,
            process=Process(
                alive=rank.alive,
                state=None if dead else "T" if rank.stopped else rank.state,
                dead_age_s=now_s - rank.died_s if rank.died_s is not None else None,
                exit_signal=rank.exit_signal,
                interpreter_age_s=None if dead else interpreter,
            ),
            step=self._step(rank, now_s),
            heads=heads,
        )

    def _step(self, rank: SimRank, now_s: float) -> StepState | None:
        if self.source is None:
            return None
        told = StepState(
            step=rank.step,
            attempt=rank.attempt,
            progress=rank.progress,
            phase=rank.phase,
            phase_age_s=max(0.0, now_s - rank.phase_since_s),
            commits=rank.commits,
            last_commit_age_s=None
            if rank.committed_s is None
            else max(0.0, now_s - rank.committed_s),
            replica_id=rank.replica_id,
            quorum_id=self.quorum_id,
            participants=len(self.quorum),
            healing=now_s < rank.healing_until_s or rank.healed,
            errored=rank.errored,
            commit_failures=rank.failures,
            committed_step=rank.committed,
            seconds=dict(rank.seconds),
            tokens=rank.tokens,
            loss=rank.loss,
            loss_finite=not (self.losses and rank.poisoned),
            spoilt=None
            if rank.spell is None
            else replace(rank.spell, age_s=max(0.0, now_s - rank.spell_s)),
            prints=Prints(7, rank.lineage, tuple(rank.prints)) if rank.prints else None,
        )
        if self.source == SOURCE_REPORTER:
            return told
        return replace(
            told,
            step=rank.step + (rank.attempt > rank.commits),
            source=self.source,
            phase="other",
            phase_age_s=max(0.0, now_s - rank.begun_s),
            progress=rank.attempt + rank.commits,
            seconds={"other": now_s - START_S},
        )

    def _record(self, name: RankName) -> FlightRecord | Unreachable:
        rank = self.rank(name)
        gone = self._is_silent(rank)
        if gone is not None:
            return gone
        return FlightRecord(
            identity=rank.identity,
            alive=rank.alive,
            members={INTRA: tuple(range(rank.world_size))},
            ring=tuple(
                RingEntry(
                    group=entry.get("group", INTRA),
                    seq=entry["seq"],
                    op=entry["op"],
                    sizes_in=entry["sizes_in"],
                    dtype=entry.get("dtype", "torch.float32"),
                    step=None if self.source is None else entry["step"],
                    attempt=None if self.source is None else entry["attempt"],
                    nth=entry["nth"],
                    site="train.py:42",
                    enter_age_s=self.now_s - entry["enter_s"],
                    exit_age_s=None if entry["exit_s"] is None else self.now_s - entry["exit_s"],
                )
                for entry in _one_ring(rank)
            ),
            dropped=0,
            torch=None,
        )


def _one_ring(rank: SimRank) -> list[dict]:
    """What both rings hold of the time that both cover, in order."""
    since_s = max((ring[0]["enter_s"] for ring in (rank.ring, rank.across_ring) if ring), default=0)
    both = (entry for entry in (*rank.ring, *rank.across_ring) if entry["enter_s"] >= since_s)
    return sorted(both, key=lambda entry: entry["enter_s"])


class Drive:
    """A fleet and a pipeline against each other; what was decided, with its times."""

    def __init__(
        self,
        fleet: SimFleet,
        config: KeeperConfig | None = None,
        *,
        pipeline: Pipeline | None = None,
        alter: Callable[[Snapshot], Snapshot] = lambda snapshot: snapshot,
    ) -> None:
        self.fleet = fleet
        self.config = config or KeeperConfig()
        self.pipeline = pipeline or Pipeline(self.config)
        self.alter = alter
        self.results: list[TickResult] = []
        self.evicts: list[tuple[float, Evict]] = []
        self.holds: list[tuple[float, Hold]] = []
        self.fired: dict[str, float] = {}
        """Incident id -> seconds after the start at which it fired."""
        self.seen: dict[str, Incident] = {}
        """Every incident ever changed, in its latest form."""
        self._wanted: tuple[RankName, ...] = ()
        self._past: tuple[RankName, ...] = ()

    def run(self, ticks: int) -> Drive:
        for _ in range(ticks):
            self.step()
        return self

    def step(self) -> TickResult:
        result = self.pipeline.tick(self.alter(self.fleet.snapshot(self._wanted, self._past)))
        self._wanted, self._past = result.wants_records, result.wants_steps
        self.results.append(result)
        at_s = round(result.now_s - START_S, 3)
        for incident in result.changed:
            self.seen[incident.id] = incident
            if incident.state is State.FIRING and incident.id not in self.fired:
                self.fired[incident.id] = at_s
        for decision in result.decisions:
            if isinstance(decision, Evict):
                self.evicts.append((at_s, decision))
                self.fleet.evict(decision)
            else:
                self.holds.append((at_s, decision))
        return result

    @property
    def last(self) -> TickResult:
        return self.results[-1]

    def incident(self, kind: str) -> Incident:
        """The one fired incident of a kind."""
        found = [i for i in self.seen.values() if i.kind == kind and i.id in self.fired]
        assert len(found) == 1, [(i.id, i.state, i.resolution) for i in self.seen.values()]
        return found[0]

    def evicted(self) -> list[str]:
        return [decision.group for _, decision in self.evicts]
