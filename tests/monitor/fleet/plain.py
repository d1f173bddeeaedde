"""A job without TorchFT: ranks that only attached, one process group, no Lighthouse.

Its ranks call all_reduce after all_reduce. A script makes one stand somewhere, call something else
or end; who calls on then waits in the next all_reduce, and its ring shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from lightkeeper.monitor.model.eviction import Eviction
from lightkeeper.monitor.model.names import GroupName, Host, RankName
from lightkeeper.monitor.model.observation import (
    NO_LIGHTHOUSE,
    LighthouseAway,
    Observation,
    Snapshot,
)
from lightkeeper.worker_server.wire import (
    Doing,
    Ending,
    FlightRecord,
    Forming,
    Frame,
    GroupHead,
    Identity,
    Process,
    RingEntry,
    StateReport,
    TransferHead,
    Witness,
)
from tests.monitor.fleet.rank import START_S

CALLS_A_TICK = 3
KEPT = 60


@dataclass
class PlainRank:
    """One rank; all times are of the fleet."""

    number: int
    world_size: int
    moves: bool = True
    """Whether it calls on; False: it stands where it stands."""
    since_s: float = START_S
    """When it last moved."""
    ring: list[dict] = field(default_factory=list)
    counts: dict[object, int] = field(default_factory=dict)
    place: tuple[Frame, Doing, str | None] | None = None
    forming: dict | None = None
    bytes_s: float = 0.0
    wakes_s: float = 0.0
    """Read and written by system calls."""
    state: str = "S"
    died_s: float | None = None
    exit_code: int | None = None
    handles_sigterm: bool = False
    exit_signal: str | None = None
    ending: Ending | None = None
    timeouts: dict[str, float] = field(default_factory=dict)

    @property
    def identity(self) -> Identity:
        return Identity(
            job="job", group=GroupName("job"), group_rank=self.number, world_size=self.world_size,
            host=Host("node"), pid=1000 + self.number, incarnation=f"job.{self.number}#0",
        )  # fmt: skip

    @property
    def name(self) -> RankName:
        return self.identity.rank


At = tuple[float, Callable[["PlainJob"], None]]


class PlainJob:
    """`size` ranks of one group; `script`: (seconds after the start, what happens then)."""

    def __init__(
        self, size: int, *script: At, timeout_s: float | None = None, begins: bool = True
    ) -> None:
        self.now_s, self.tick, self.tick_s = START_S, 0, 1.0
        self.script = sorted(script, key=lambda line: line[0])
        self.ranks = [PlainRank(number, size, moves=begins) for number in range(size)]
        for rank in self.ranks:
            rank.timeouts = {} if timeout_s is None else {"collective": timeout_s}

    # -- what a script says --------------------------------------------------------------

    def call(
        self, number: int, op: str = "all_reduce", *, done: bool = False, group: str = "default",
        site: str = "train.py:7", size: int = 8, thread: int | None = None, is_async: bool = False,
    ) -> None:  # fmt: skip
        """A collective; the rank is inside and stands unless it is done."""
        thread = 1000 + number if thread is None else thread
        self._enter(number, op, group, site, thread, done=done, key=group, size=size,
                    is_async=is_async)  # fmt: skip

    def transfer(
        self, number: int, op: str, peer: int, *, done: bool = False, site: str = "pipe.py:3",
        tag: int = 0,
    ) -> None:  # fmt: skip
        """A send or receive."""
        way = op.removeprefix("i")
        facts = {"root": peer, "tag": tag, "is_async": way != op}
        key = way, peer, tag
        self._enter(number, op, "default", site, 1000 + number, done=done, key=key, **facts)

    def _enter(self, number, op, group, site, thread, *, done, key, **facts) -> None:
        rank = self.ranks[number]
        rank.counts[key] = rank.counts.get(key, 0) + 1
        rank.ring.append(
            {"seq": rank.counts[key], "op": op, "group": group, "site": site, "thread": thread,
             "enter_s": self.now_s, "exit_s": self.now_s if done else None, "error": None,
             "key": key, "id": sum(1 for _ in rank.ring) + 1, **facts}
        )  # fmt: skip
        rank.moves, rank.since_s = rank.moves and done, self.now_s

    def stand(
        self, number: int, function: str, line: int, doing: Doing = Doing.UNKNOWN,
        call: str | None = None, bytes_s: float = 0.0, wakes_s: float = 0.0,
    ) -> None:  # fmt: skip
        """Its stacks show it here; outside of any collective unless it has called one."""
        rank = self.ranks[number]
        rank.place = Frame(function, "train.py", line), doing, call
        rank.bytes_s, rank.wakes_s = bytes_s, wakes_s
        if rank.moves:
            rank.moves, rank.since_s = False, self.now_s

    def form(
        self, number: int, nth: int, ranks: Sequence[int] = (), line: int = 1, **facts
    ) -> None:
        """It creates a process group; `nth` 0: the world."""
        rank = self.ranks[number]
        call = "new_group" if nth else "init_process_group"
        rank.forming = {"call": call, "nth": nth, "ranks": tuple(ranks),
                        "site": f"train.py:{line}", **facts}  # fmt: skip
        rank.moves, rank.since_s = False, self.now_s

    def end(
        self, number: int, exception: str | None = None, *, of_peers: bool | None = None,
        line: int = 9, code: int | None = 1, signal: str | None = None,
    ) -> None:  # fmt: skip
        """It is gone; an exception of its peers leaves the collective that it was in."""
        rank = self.ranks[number]
        rank.moves, rank.died_s = False, self.now_s
        rank.exit_code, rank.exit_signal = (None, signal) if signal else (code, None)
        frame = Frame("main", "train.py", line) if exception else None
        rank.ending = Ending(exception or f"Killed by {signal}.", exception, frame, of_peers)
        if of_peers:
            for entry in self._open(rank):
                entry |= {"exit_s": self.now_s, "error": exception}

    # -- the fleet of a `Drive` ----------------------------------------------------------

    def evict(self, decision: Eviction) -> None:
        raise AssertionError(f"nobody can be evicted from a plain job: {decision}")

    def snapshot(self, wanted: Iterable[RankName] = (), past: Iterable[RankName] = ()) -> Snapshot:
        del past
        until_s = self.now_s + self.tick_s if self.tick else self.now_s
        while self.script and START_S + self.script[0][0] <= until_s:
            at_s, act = self.script.pop(0)
            self.now_s = START_S + at_s
            act(self)
        self.now_s = until_s
        self._call_on()
        self.tick += 1
        return Snapshot(
            now_s=self.now_s,
            tick=self.tick,
            lateness_s=0.0,
            observations=tuple(
                Observation(rank.identity, f"http://node/{rank.name}", self._report(rank), 0.01)
                for rank in self.ranks
            ),
            lighthouse=LighthouseAway(NO_LIGHTHOUSE),
            records={name: self._record(self.ranks[int(name.split(".")[1])]) for name in wanted},
        )

    def _call_on(self) -> None:
        """All ranks together; or, if one stands or has ended, each up to the next all_reduce."""
        moving = [rank for rank in self.ranks if rank.moves]
        together = len(moving) == len(self.ranks)
        for rank in moving:
            for _ in range(CALLS_A_TICK if together else 1):
                self.call(rank.number, done=together)
            rank.ring[:-KEPT] = []

    @staticmethod
    def _open(rank: PlainRank) -> list[dict]:
        return [entry for entry in rank.ring if entry["exit_s"] is None]

    def _report(self, rank: PlainRank) -> StateReport:
        dead = rank.died_s is not None
        stands_s = self.now_s - rank.since_s
        witness = None
        if rank.place is not None and stands_s >= 7:
            frame, doing, call = rank.place
            same_s = 2.0 + (stands_s - 7) // 5 * 5
            witness = Witness(frame, doing, 2 + int(stands_s - 7) // 5, same_s, 0.5, call)
        heads, transfers = [], []
        for key, count in sorted(rank.counts.items(), key=str):
            own = [entry for entry in rank.ring if entry["key"] == key]
            last = own[-1]
            open_ = sum(entry["exit_s"] is None for entry in own)
            age_s = self.now_s - max(entry["exit_s"] or entry["enter_s"] for entry in own)
            held = last["seq"] if open_ and not last["is_async"] else 0
            if isinstance(key, str):
                heads.append(GroupHead(key, rank.world_size, count, open_, last["op"], age_s, held))
            else:
                way, peer, tag = key
                transfers.append(
                    TransferHead("default", peer, tag, int(way == "send"), count, open_, age_s,
                                 held)
                )  # fmt: skip
        return StateReport(
            identity=rank.identity,
            process=Process(
                alive=not dead,
                state=None if dead else rank.state,
                dead_age_s=self.now_s - rank.died_s if dead else None,
                exit_code=rank.exit_code,
                handles_sigterm=rank.handles_sigterm,
                exit_signal=rank.exit_signal,
                interpreter_age_s=None if dead else 0.1,
                cores=0.0,
                bytes_s=rank.bytes_s,
                wakes_s=rank.wakes_s,
            ),
            heads=tuple(heads),
            witness=witness,
            ending=rank.ending,
            transfers=tuple(transfers),
            forming=None
            if rank.forming is None or dead
            else Forming(age_s=stands_s, **rank.forming),
            timeouts=rank.timeouts,
        )

    def _record(self, rank: PlainRank) -> FlightRecord:
        plain = ("seq", "op", "group", "site", "thread", "error", "is_async", "id")
        return FlightRecord(
            identity=rank.identity,
            alive=rank.died_s is None,
            members={"default": tuple(range(rank.world_size))},
            ring=tuple(
                RingEntry(
                    **{name: entry[name] for name in plain},
                    root=entry.get("root"),
                    tag=entry.get("tag"),
                    sizes_in=((entry.get("size", 8),),),
                    dtype="float32",
                    enter_age_s=self.now_s - entry["enter_s"],
                    exit_age_s=None if entry["exit_s"] is None else self.now_s - entry["exit_s"],
                )
                for entry in rank.ring
            ),
            dropped=0,
            torch=None,
        )
