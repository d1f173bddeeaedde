"""A bench on which evictions run: an evictor, fake ranks, a fake Lighthouse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from lightkeeper.monitor.act.evictor import Evictors, Parties
from lightkeeper.monitor.act.gate import Gatekeeper
from lightkeeper.monitor.act.http import Fetcher, Tokens
from lightkeeper.monitor.act.lighthouse import Lighthouse
from lightkeeper.monitor.act.quarantine import Quarantine
from lightkeeper.monitor.act.schedulers.base import Scheduler
from lightkeeper.monitor.act.targets import Registry
from lightkeeper.monitor.clock import Clock
from lightkeeper.monitor.decide.escalation import handle
from lightkeeper.monitor.model.escalation import HandedOver, Timeouts
from lightkeeper.monitor.model.eviction import (
    KEEPER,
    Accused,
    EndManner,
    Eviction,
    Rung,
    RungOutcome,
)
from lightkeeper.monitor.model.names import GroupName, Host, IncidentId, ReplicaId
from tests.changed import replace
from tests.http_server import Hang
from tests.monitor.act.gates import FakeGate
from tests.monitor.decided import decided, to_evict
from tests.monitor.doubles import Memory
from tests.monitor.fakes import FakeFleet, FakeLighthouse, FakeRank, Page, wait_until

REPLICA = ReplicaId("rg_1:uuid1")

BRISK = Timeouts(kill_s=0.5, confirm_s=2.0, look_s=0.5, pause_s=0.05, ask_again_s=0.5)


EVICT = to_evict(
    IncidentId("inc-1"), GroupName("rg_1"), REPLICA, (Host("node1"),), "hung: no step",
    manner=EndManner(grace_s=0.1),
)  # fmt: skip


@dataclass
class Bench:
    """One group to evict, and everything around it."""

    fleet: FakeFleet
    lighthouse: FakeLighthouse
    fetcher: Fetcher
    timeouts: Timeouts = BRISK
    token: str | None = "secret"
    recorded: list[Eviction] = field(default_factory=list)
    permit: Callable[[], str | None] = lambda: None
    durable: Callable[[], bool] = lambda: True
    gate: FakeGate | None = None
    schedulers: tuple[Scheduler, ...] = ()
    sinks: tuple[str, ...] = ("pager",)
    pause: str | None = None

    def __post_init__(self) -> None:
        self.clock = Clock()
        self.registry = Registry(self.clock, Memory())
        self.quarantine = Quarantine(self.clock, Memory())
        self.lighthouse.form("rg_0:uuid0", REPLICA)
        self.lighthouse.on_kill = self.kill_rank_zero
        self.ranks: list[FakeRank] = []
        self.fetcher.tokens = Tokens(self.token)
        self.keeper: Gatekeeper | None = None
        if self.gate is not None:
            self.keeper = Gatekeeper(
                self.gate.url, self.fetcher, clock=self.clock, quarantine=self.quarantine,
                period_s=0.2,
            )  # fmt: skip
        parties = Parties(
            clock=self.clock,
            fetcher=self.fetcher,
            registry=self.registry,
            quarantine=self.quarantine,
            lighthouse=Lighthouse(self.lighthouse.url, self.fetcher),
            gate=self.keeper,
            schedulers=self.schedulers,
            timeouts=self.timeouts,
        )
        self.evictors = Evictors(
            parties,
            handle=handle,
            record=self.recorded.append,
            permit=self.permit,
            durable=self.durable,
            paused=lambda: self.pause,
            sinks=self.sinks,
        )
        if self.keeper is not None:
            self.keeper.start(self.evictors.log.progress)

    def close(self) -> None:
        if self.keeper is not None:
            self.keeper.close()
        self.evictors.close()

    def group(self, size: int = 1) -> None:
        for number in range(size):
            rank = self.fleet.add("rg_1", number, world_size=size, host="node1")
            rank.replica_id = REPLICA
            self.ranks.append(rank)
            self.registry.register(rank.registration())

    def kill_rank_zero(self, _: str) -> Page:
        """What a kill that works does: the manager's process exits without an answer."""
        self.ranks[0].die()
        return 500, "text/plain", b"transport error"

    def kill_nothing(self, _: str) -> Page:
        return 500, "text/plain", b"Something went wrong: failed to find replica"

    def kill_hangs(self, _: str) -> Page:
        raise Hang

    def accused(self) -> tuple[Accused, ...]:
        return tuple(
            Accused(rank.identity.rank, rank.identity.incarnation, rank.url) for rank in self.ranks
        )

    def submit(self, evict: Eviction = EVICT, *, author: str = KEEPER, **changes) -> bool:
        """Decide and hand over; whether the evictor took it."""
        now_s = self.clock.now_s()
        event = replace(HandedOver(now_s, self.accused()), **changes)
        eviction = decided(evict, event.accused, now_s, author=author)
        self.evictors.log.add(eviction)
        self.evictors.submit(eviction.key, event)
        taken = self.evictors.log.get(eviction.key)
        return taken is not None and taken.taken_up

    def evict(self, **changes) -> Eviction:
        assert self.submit(**changes)
        wait_until(lambda: not self.evictors.active(), 15, "the eviction ends")
        (progress,) = self.evictors.log.progress()
        assert progress == self.recorded[-1]
        return progress


def rungs(progress: Eviction) -> list[str]:
    return [str(outcome.rung) for outcome in progress.rungs]


def answer(text: bytes, status: int = 200, *, dies: bool) -> Callable[[FakeRank], Page]:
    def evict(rank: FakeRank) -> Page:
        if dies:
            rank.die()
        return status, "application/json", text

    return evict


def never_answers(rank: FakeRank) -> Page:
    rank.die()
    raise Hang


def outcome(progress: Eviction, rung: Rung) -> RungOutcome:
    return next(step for step in progress.rungs if step.rung is rung)
