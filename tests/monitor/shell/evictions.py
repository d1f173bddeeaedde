"""A bench on which evictions run: an evictor, fake ranks, a fake Lighthouse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from monitor.clock import SteadyClock
from monitor.evictors import Accused, Evictors, Gatekeeper, Order, Patience
from monitor.fetch import Fetcher
from monitor.gate.client import Gate
from monitor.lighthouse import Lighthouse
from monitor.names import GroupName, Host, IncidentId, ReplicaId
from monitor.policy import Evict
from monitor.quarantine import Quarantine
from monitor.schedulers.protocol import Scheduler
from monitor.snapshot import EvictionProgress, Rung
from monitor.targets import Registry
from tests.monitor.shell.doubles import Memory
from tests.monitor.shell.fakes import (
    FakeFleet,
    FakeLighthouse,
    FakeRank,
    Hang,
    Page,
    wait_until,
)
from tests.monitor.shell.gates import FakeGate

REPLICA = ReplicaId("rg_1:uuid1")

FAST = Patience(kill_s=0.5, grace_s=0.1, confirm_s=2.0, look_s=0.5, pause_s=0.05, ask_again_s=0.5)


@dataclass
class Bench:
    """One group to evict, and everything around it."""

    fleet: FakeFleet
    lighthouse: FakeLighthouse
    fetcher: Fetcher
    patience: Patience = FAST
    token: str | None = "secret"
    recorded: list[EvictionProgress] = field(default_factory=list)
    permit: Callable[[], str | None] = lambda: None
    durable: Callable[[], bool] = lambda: True
    gate: FakeGate | None = None
    schedulers: tuple[Scheduler, ...] = ()
    told: tuple[str, ...] = ("pager",)

    def __post_init__(self) -> None:
        self.clock = SteadyClock()
        self.registry = Registry(self.clock, Memory())
        self.quarantine = Quarantine(self.clock, Memory())
        self.lighthouse.form("rg_0:uuid0", REPLICA)
        self.lighthouse.on_kill = self.kill_rank_zero
        self.ranks: list[FakeRank] = []
        self.evictors = Evictors(
            clock=self.clock,
            fetcher=self.fetcher,
            registry=self.registry,
            quarantine=self.quarantine,
            lighthouse=Lighthouse(self.lighthouse.url, self.fetcher),
            token=self.token,
            record=self.recorded.append,
            patience=self.patience,
            permit=self.permit,
            durable=self.durable,
            gate=self.gatekeeper(),
            schedulers=self.schedulers,
            told=self.told,
        )
        if self.keeper is not None:
            self.keeper.start(self.evictors.progress)

    def gatekeeper(self) -> Gatekeeper | None:
        self.keeper: Gatekeeper | None = None
        if self.gate is not None:
            client = Gate(self.gate.url, self.fetcher, "secret")
            self.keeper = Gatekeeper(
                client, clock=self.clock, quarantine=self.quarantine, period_s=0.2
            )
        return self.keeper

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

    def order(self, **changes) -> Order:
        evict = Evict(
            IncidentId("inc-1"), GroupName("rg_1"), REPLICA, (Host("node1"),), "hung: no step"
        )
        accused = tuple(
            Accused(rank.identity.rank, rank.identity.incarnation, rank.url) for rank in self.ranks
        )
        plain = {"evict": evict, "accused": accused, "asked_s": self.clock.now_s()}
        return Order(**{**plain, **changes})

    def evict(self, **changes) -> EvictionProgress:
        assert self.evictors.submit(self.order(**changes))
        wait_until(lambda: not self.evictors.active(), 15, "the eviction ends")
        (progress,) = self.evictors.progress()
        assert progress == self.recorded[-1]
        return progress


def rungs(progress: EvictionProgress) -> list[str]:
    return [str(outcome.rung) for outcome in progress.rungs]


def detail(progress: EvictionProgress, rung: Rung) -> str:
    return next(outcome.detail for outcome in progress.rungs if outcome.rung is rung)


def answer(text: bytes, status: int = 200, *, dies: bool) -> Callable[[FakeRank], Page]:
    def evict(rank: FakeRank) -> Page:
        if dies:
            rank.die()
        return status, "application/json", text

    return evict


def never_answers(rank: FakeRank) -> Page:
    rank.die()
    raise Hang


def outcome(progress: EvictionProgress, rung: Rung):
    return next(one for one in progress.rungs if one.rung is rung)
