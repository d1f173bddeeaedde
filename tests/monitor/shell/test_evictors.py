"""Conformance of the evictors: every way in which a WorkerServer or a Lighthouse can answer.

Each case is a group of one or two fake ranks behind real HTTP, and what must be true at the end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest

from monitor.clock import SteadyClock
from monitor.evictors import Accused, Evictors, Gatekeeper, Order, Patience
from monitor.fetch import Fetcher
from monitor.gate.client import Gate
from monitor.lighthouse import Lighthouse
from monitor.names import GroupName, Host, IncidentId, ReplicaId
from monitor.policy import Evict
from monitor.quarantine import Quarantine
from monitor.schedulers.protocol import Outcome, Place, Scheduler
from monitor.snapshot import EvictionProgress, LighthouseView, Member, Rung, RungResult
from monitor.targets import Registry
from tests.monitor.shell.doubles import Memory
from tests.monitor.shell.fakes import (
    FakeFleet,
    FakeLighthouse,
    FakeRank,
    Hang,
    Page,
    page,
    wait_until,
)
from tests.monitor.shell.gates import FakeGate

REPLICA = ReplicaId("rg_1:uuid1")
pytestmark = pytest.mark.integration  # it waits for deadlines, in real seconds

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


@pytest.fixture
def bench(fleet: FakeFleet, lighthouse: FakeLighthouse, fetcher: Fetcher) -> Iterator[Bench]:
    made = Bench(fleet, lighthouse, fetcher)
    yield made
    made.close()


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


# -- the Lighthouse's rung ------------------------------------------------------------------------


def test_a_kill_that_works_answers_500_and_no_worker_is_asked(bench: Bench) -> None:
    bench.group()
    progress = bench.evict()
    assert progress.failed is None
    assert progress.gone_s is not None
    assert rungs(progress) == ["quarantine", "lighthouse_kill"]
    assert detail(progress, Rung.LIGHTHOUSE_KILL) == "answered 500: transport error"
    assert bench.lighthouse.kills == [REPLICA]
    assert bench.ranks[0].evictions == []


def test_a_kill_that_hangs_is_followed_by_the_workers(bench: Bench) -> None:
    bench.group()
    bench.lighthouse.on_kill = bench.kill_hangs
    progress = bench.evict()
    assert progress.gone_s is not None
    assert rungs(progress) == ["quarantine", "lighthouse_kill", "worker_evict"]
    assert len(bench.ranks[0].evictions) == 1


def test_a_kill_that_says_ok_and_does_nothing_is_not_believed(bench: Bench) -> None:
    bench.group()
    bench.lighthouse.on_kill = lambda _: (200, "text/plain", b"ok, killed")
    progress = bench.evict()
    assert progress.gone_s is not None
    assert "worker_evict" in rungs(progress)


def test_the_rank_that_outlives_the_kill_of_a_two_rank_group_is_evicted_too(bench: Bench) -> None:
    bench.group(2)
    progress = bench.evict()
    assert progress.gone_s is not None
    assert [rank.alive for rank in bench.ranks] == [False, False]
    assert bench.ranks[0].evictions == []
    assert [body["incarnation"] for body in bench.ranks[1].evictions] == ["one"]


def test_the_survivor_of_a_two_rank_group_is_asked_before_the_kill_is_over(
    fleet: FakeFleet, lighthouse: FakeLighthouse, fetcher: Fetcher
) -> None:
    bench = Bench(fleet, lighthouse, fetcher, Patience(kill_s=60.0, pause_s=0.05, confirm_s=90.0))
    bench.group(2)
    assert bench.evict().gone_s is not None
    bench.evictors.close()


@pytest.mark.parametrize(
    "condition",
    [
        {"process_state": "T"},
        {"process_state": "t", "interpreter_age_s": 30.0},
        {"interpreter_age_s": 30.0},
    ],
    ids=["stopped", "traced", "interpreter stuck"],
)
def test_a_rank_that_cannot_carry_out_a_kill_is_evicted_at_once_and_not_killed(
    condition: dict, fleet: FakeFleet, lighthouse: FakeLighthouse, fetcher: Fetcher
) -> None:
    bench = Bench(fleet, lighthouse, fetcher, Patience(kill_s=60.0, pause_s=0.05, confirm_s=90.0))
    bench.group()
    for name, value in condition.items():
        setattr(bench.ranks[0], name, value)
    progress = bench.evict()
    assert progress.gone_s is not None
    assert lighthouse.kills == []
    assert detail(progress, Rung.LIGHTHOUSE_KILL).startswith("skipped: rg_1.0, which hosts")
    bench.evictors.close()


def test_a_stuck_rank_beside_a_healthy_manager_is_asked_at_once_and_the_kill_is_pressed(
    fleet: FakeFleet, lighthouse: FakeLighthouse, fetcher: Fetcher
) -> None:
    bench = Bench(fleet, lighthouse, fetcher, Patience(kill_s=60.0, pause_s=0.05, confirm_s=90.0))
    bench.group(2)
    bench.ranks[1].process_state = "T"
    assert bench.evict().gone_s is not None
    assert lighthouse.kills == [REPLICA]
    assert len(bench.ranks[1].evictions) == 1
    bench.evictors.close()


def test_without_a_lighthouse_the_workers_are_asked_at_once(bench: Bench) -> None:
    bench.group(2)
    bench.lighthouse.down = True
    progress = bench.evict()
    assert progress.gone_s is not None
    assert detail(progress, Rung.LIGHTHOUSE_KILL) == "skipped: no Lighthouse answers"


def test_a_group_that_is_not_in_the_quorum_is_not_killed_by_the_lighthouse(bench: Bench) -> None:
    bench.group()
    bench.lighthouse.form("rg_0:uuid0")
    progress = bench.evict()
    assert progress.gone_s is not None
    assert progress.left_quorum_s is not None
    assert bench.lighthouse.kills == []


def test_a_group_without_worker_servers_is_killed_and_known_by_its_heartbeat(bench: Bench) -> None:
    def kill(_: str) -> Page:
        bench.lighthouse.ages_s[REPLICA] = 7.0
        return 500, "text/plain", b"transport error"

    bench.lighthouse.on_kill = kill
    progress = bench.evict()
    assert progress.failed is None
    assert progress.gone_s is None
    assert bench.lighthouse.kills == [REPLICA]


# -- the workers' rung ----------------------------------------------------------------------------

WORKER_ANSWERS = {
    "works": None,
    "answers 500 though it worked": answer(b'{"error": "boom"}', 500, dies=True),
    "answers garbage though it worked": answer(b"\xff\x00", dies=True),
    "answers a list though it worked": answer(b"[]", dies=True),
    "times out though it worked": never_answers,
}


@pytest.mark.parametrize("name", WORKER_ANSWERS)
def test_a_worker_that_did_it_is_believed_by_looking(name: str, bench: Bench) -> None:
    bench.group(2)
    bench.lighthouse.on_kill = bench.kill_nothing
    for rank in bench.ranks:
        rank.evict = WORKER_ANSWERS[name]
    progress = bench.evict()
    assert progress.failed is None
    assert progress.gone_s is not None
    assert [len(rank.evictions) for rank in bench.ranks] == [1, 1]


WORKER_FAILURES = {
    "says gone and lies": answer(b'{"schema": 1, "gone": true}', dies=False),
    "answers 500": answer(b'{"error": "boom"}', 500, dies=False),
    "answers garbage": answer(b"<html>", dies=False),
    "deep JSON": answer(b"[" * 10_000, dies=False),
}


@pytest.mark.parametrize("name", WORKER_FAILURES)
def test_a_worker_that_did_not_do_it_is_not_believed(
    name: str, fleet: FakeFleet, lighthouse: FakeLighthouse, fetcher: Fetcher
) -> None:
    bench = Bench(fleet, lighthouse, fetcher, replace(FAST, confirm_s=2.0, look_s=1.0))
    bench.group()
    bench.lighthouse.on_kill = bench.kill_nothing
    bench.ranks[0].evict = WORKER_FAILURES[name]
    progress = bench.evict()
    assert progress.gone_s is None
    assert progress.failed is not None
    assert progress.failed.startswith("not gone after 2 s: rg_1.0 alive (state S)")
    assert len(bench.ranks[0].evictions) > 1  # asked again
    bench.evictors.close()


def test_a_worker_that_hangs_does_not_hold_the_eviction_for_ever(bench: Bench) -> None:
    def hang(_: FakeRank) -> Page:
        raise Hang

    bench.group()
    bench.lighthouse.on_kill = bench.kill_nothing
    bench.ranks[0].evict = hang
    began = time.monotonic()
    assert bench.evict().failed is not None
    assert time.monotonic() - began < FAST.confirm_s + 2


def test_a_process_that_never_dies_is_given_up_with_its_state(bench: Bench) -> None:
    bench.group()
    bench.ranks[0].mortal, bench.ranks[0].process_state = False, "D"
    progress = bench.evict()
    assert progress.gone_s is None
    assert "rg_1.0 alive (state D)" in (progress.failed or "")


@pytest.mark.parametrize(
    ("theirs", "words"),
    [(None, "answered 403"), ("other", "answered 401")],
    ids=["worker without a token", "another token"],
)
def test_a_worker_that_refuses_is_quoted(theirs: str | None, words: str, bench: Bench) -> None:
    bench.group()
    bench.lighthouse.on_kill = bench.kill_nothing
    bench.ranks[0].token = theirs
    progress = bench.evict()
    assert words in (progress.failed or "")


def test_a_worker_server_that_said_gone_and_ended_is_believed(bench: Bench) -> None:
    bench.group()
    bench.lighthouse.on_kill = bench.kill_nothing

    def leave(rank: FakeRank) -> Page:
        rank.answer = lambda _: page({}, 503)
        return page({"schema": 1, "signalled": ["SIGKILL"], "gone": True})

    bench.ranks[0].evict = leave
    assert bench.evict().gone_s is not None


def test_a_lost_host_is_let_go_once_the_lighthouse_has_lost_it_too_and_out_when_it_left(
    bench: Bench,
) -> None:
    bench.group()
    bench.ranks[0].answer = lambda _: page({}, 503)
    bench.ranks[0].evict = lambda _: page({}, 503)
    bench.lighthouse.on_kill = bench.kill_nothing
    bench.lighthouse.ages_s[REPLICA] = 30.0
    progress = bench.evict()
    assert (progress.gone_s, progress.failed) == (None, None)
    assert progress.unseen_s is not None
    assert not progress.out
    bench.lighthouse.form("rg_0:uuid0")
    bench.evictors.note(Lighthouse(bench.lighthouse.url, bench.fetcher).look(2.0))
    (progress,) = bench.evictors.progress()
    assert progress.out
    assert progress.confirmed == (
        "host out of sight, its heartbeat is dead (rg_1.0 not seen); it left the quorum"
    )


def test_a_lost_host_that_still_beats_is_a_failure(bench: Bench) -> None:
    bench.group()
    bench.ranks[0].answer = lambda _: page({}, 503)
    bench.ranks[0].evict = lambda _: page({}, 503)
    bench.lighthouse.on_kill = bench.kill_nothing
    assert "rg_1.0 its WorkerServer answers 503" in (bench.evict().failed or "")


# -- what confirms it -----------------------------------------------------------------------------


def outcome(progress: EvictionProgress, rung: Rung):
    return next(one for one in progress.rungs if one.rung is rung)


def test_the_group_counts_as_out_only_when_it_is_gone_and_has_left(bench: Bench) -> None:
    bench.group()
    progress = bench.evict()
    assert progress.gone_s is not None
    assert not progress.out
    assert progress.confirmed is None
    bench.lighthouse.form("rg_0:uuid0")
    bench.evictors.note(Lighthouse(bench.lighthouse.url, bench.fetcher).look(2.0))
    (progress,) = bench.evictors.progress()
    assert progress.out
    assert progress.confirmed == (
        "every known process of it is gone (rg_1.0 its process is gone); it left the quorum"
    )
    assert bench.recorded[-1] == progress


def test_a_group_that_left_and_whose_process_lives_on_is_not_out(bench: Bench) -> None:
    bench.group()
    bench.lighthouse.form("rg_0:uuid0")
    bench.ranks[0].mortal, bench.ranks[0].process_state = False, "T"
    progress = bench.evict()
    assert progress.left_quorum_s is not None
    assert progress.failed is not None
    assert not progress.out


def test_a_defunct_process_is_gone(bench: Bench) -> None:
    """Nobody reaps it: it runs no more, holds no memory and no socket."""
    bench.group()
    bench.ranks[0].alive, bench.ranks[0].process_state = False, "Z"
    assert bench.evict().gone_s is not None


def test_an_id_that_beats_on_though_its_processes_are_gone_is_a_failure(
    fleet: FakeFleet, lighthouse: FakeLighthouse, fetcher: Fetcher
) -> None:
    bench = Bench(fleet, lighthouse, fetcher, replace(FAST, leave_s=0.0))
    bench.group()
    progress = bench.evict()
    assert (progress.gone_s is not None, progress.failed) == (True, None)
    beating = LighthouseView(2, (Member(REPLICA, 1),), {REPLICA: -5.0}, "")
    bench.evictors.note(beating)
    (progress,) = bench.evictors.progress()
    assert (progress.failed or "").startswith(f"its processes are gone, yet {REPLICA} still beats")
    assert progress.rungs[-1].rung is Rung.PAGE
    bench.close()


def test_a_failure_pages_and_says_whom(bench: Bench) -> None:
    bench.group()
    bench.ranks[0].mortal = False
    progress = bench.evict()
    assert progress.failed is not None
    page_ = outcome(progress, Rung.PAGE)
    assert (page_.detail, page_.result) == ("handed to pager", RungResult.WORKED)
    assert outcome(progress, Rung.WORKER_EVICT).result is RungResult.FAILED
    assert outcome(progress, Rung.LIGHTHOUSE_KILL).result is RungResult.FAILED


# -- the gate -------------------------------------------------------------------------------------


@pytest.fixture
def gate() -> Iterator[FakeGate]:
    made = FakeGate()
    made.speaks(REPLICA)
    yield made
    made.close()


@pytest.fixture
def gated(
    fleet: FakeFleet, lighthouse: FakeLighthouse, fetcher: Fetcher, gate: FakeGate
) -> Iterator[Bench]:
    made = Bench(fleet, lighthouse, fetcher, gate=gate)
    yield made
    made.close()


def test_the_gate_refuses_together_with_the_kill(gated: Bench, gate: FakeGate) -> None:
    gated.group()
    gated.lighthouse.on_kill = gated.kill_hangs
    gated.ranks[0].evict = lambda _: page({}, 503)
    progress = gated.evict()
    told = outcome(progress, Rung.GATE)
    assert told.result is RungResult.WORKED
    assert told.finished_s - progress.asked_s < 1.0
    assert "replica rg_1:uuid1" in gate.refuses()
    assert "host node1" in gate.refuses()  # quarantined by the same eviction


def test_a_gate_that_is_away_holds_no_other_rung_up(gated: Bench, gate: FakeGate) -> None:
    gate.down = True
    gated.group()
    progress = gated.evict()
    assert progress.gone_s is not None
    assert outcome(progress, Rung.GATE).result is RungResult.UNKNOWN
    assert outcome(progress, Rung.GATE).detail.startswith("the gate is away")


def test_with_the_lighthouse_away_the_gate_shows_an_unreachable_group_out(
    fleet: FakeFleet, lighthouse: FakeLighthouse, fetcher: Fetcher, gate: FakeGate
) -> None:
    bench = Bench(fleet, lighthouse, fetcher, replace(FAST, heartbeat_dead_s=0.5), gate=gate)
    bench.group()
    bench.lighthouse.down = True
    for how in ("answer", "evict"):
        setattr(bench.ranks[0], how, lambda _: page({}, 503))
    progress = bench.evict()
    assert progress.failed is None
    assert progress.out
    assert "the gate refuses it for" in (progress.confirmed or "")
    assert "host out of sight, its heartbeat is dead" in (progress.confirmed or "")
    bench.close()


# -- the scheduler --------------------------------------------------------------------------------


@dataclass
class Slurm:
    name: str = "slurm"
    ranks: list[FakeRank] = field(default_factory=list)
    asked: list[tuple[str, list[Place]]] = field(default_factory=list)
    done: bool = True

    def remove(self, group, places, reason, incident_id, timeout_s) -> Outcome:
        self.asked.append((group, list(places)))
        for rank in self.ranks:
            rank.mortal = True
            rank.die()
        return Outcome(self.done, "scancel 12.0")

    def cordon(self, *_: object) -> Outcome:
        raise NotImplementedError

    uncordon = cordon


def test_the_scheduler_ends_what_the_workerservers_could_not(
    fleet: FakeFleet, lighthouse: FakeLighthouse, fetcher: Fetcher
) -> None:
    slurm = Slurm()
    bench = Bench(fleet, lighthouse, fetcher, replace(FAST, worker_s=1.0), schedulers=(slurm,))
    bench.group(2)
    slurm.ranks = bench.ranks
    for rank in bench.ranks:
        rank.mortal = False
    progress = bench.evict()
    assert progress.gone_s is not None
    assert [(group, [place.rank for place in places]) for group, places in slurm.asked] == [
        ("rg_1", ["rg_1.0", "rg_1.1"])
    ]
    assert rungs(progress)[-1] == "scheduler"
    assert outcome(progress, Rung.SCHEDULER).result is RungResult.WORKED
    assert outcome(progress, Rung.SCHEDULER).detail == "slurm: scancel 12.0"
    bench.close()


def test_the_scheduler_is_not_asked_when_the_workerservers_did_it(
    fleet: FakeFleet, lighthouse: FakeLighthouse, fetcher: Fetcher
) -> None:
    slurm = Slurm()
    bench = Bench(fleet, lighthouse, fetcher, schedulers=(slurm,))
    bench.group()
    bench.lighthouse.on_kill = bench.kill_nothing
    assert bench.evict().gone_s is not None
    assert slurm.asked == []
    bench.close()


def test_when_even_the_scheduler_fails_a_person_is_paged(
    fleet: FakeFleet, lighthouse: FakeLighthouse, fetcher: Fetcher
) -> None:
    slurm = Slurm(done=False)
    patience = replace(FAST, worker_s=0.5, scheduler_s=1.0)
    bench = Bench(fleet, lighthouse, fetcher, patience, schedulers=(slurm,), told=())
    bench.group()
    bench.ranks[0].mortal = False
    progress = bench.evict()
    assert progress.failed is not None
    assert rungs(progress)[-2:] == ["scheduler", "page"]
    assert outcome(progress, Rung.SCHEDULER).result is RungResult.FAILED
    assert outcome(progress, Rung.PAGE).result is RungResult.SKIPPED
    bench.close()


# -- only the accused -----------------------------------------------------------------------------


def test_a_group_that_restarted_before_the_first_rung_is_never_hit(bench: Bench) -> None:
    bench.group(2)
    order = bench.order()
    for rank in bench.ranks:
        rank.restart("two")
    bench.evictors.submit(order)
    wait_until(lambda: not bench.evictors.active(), 15, "the eviction ends")
    assert [rank.evictions for rank in bench.ranks] == [[], []]
    assert [rank.alive for rank in bench.ranks] == [True, True]
    assert bench.lighthouse.kills == []


def test_a_rank_that_restarted_between_two_rungs_is_never_hit(bench: Bench) -> None:
    bench.group(2)

    def restart(_: str) -> Page:
        for rank in bench.ranks:
            rank.restart("two")
        raise Hang

    bench.lighthouse.on_kill = restart
    progress = bench.evict()
    assert progress.gone_s is not None
    assert [rank.evictions for rank in bench.ranks] == [[], []]


def test_every_evict_request_names_the_accused_incarnation(bench: Bench) -> None:
    bench.group(2)
    bench.lighthouse.down = True
    bench.evict()
    for rank in bench.ranks:
        assert rank.evictions == [{"reason": "hung: no step", "grace_s": 0.1, "incarnation": "one"}]


def test_a_refused_order_touches_nothing(bench: Bench) -> None:
    bench.group()
    progress = bench.evict(refused="rg_1.0 has restarted since it was accused")
    assert progress.failed == "rg_1.0 has restarted since it was accused"
    assert progress.rungs == ()
    assert bench.quarantine.active() == ()
    assert bench.ranks[0].alive


# -- quarantine, one at a time, confirming --------------------------------------------------------


def test_the_launcher_is_refused_before_the_group_is_gone(bench: Bench) -> None:
    bench.group()
    admitted_at_kill = []

    def kill(replica_id: str) -> Page:
        admitted_at_kill.append(bench.quarantine.admission(Host("node1")).admit)
        return bench.kill_rank_zero(replica_id)

    bench.lighthouse.on_kill = kill
    bench.evict()
    assert admitted_at_kill == [False]
    (entry,) = bench.quarantine.active()
    assert (entry.host, entry.reason, entry.author, entry.incident_id) == (
        "node1", "hung: no step", "lightkeeper", "inc-1",
    )  # fmt: skip


def test_leaving_the_quorum_is_noted_when_a_later_tick_sees_it(bench: Bench) -> None:
    bench.group()
    assert bench.evict().left_quorum_s is None
    bench.evictors.note(
        LighthouseView(2, (Member(REPLICA, 1), Member(ReplicaId("rg_0:a"), 1)), {}, "")
    )
    assert bench.evictors.progress()[0].left_quorum_s is None
    bench.evictors.note(LighthouseView(0, (), {}, "restarted: no quorum says nothing"))
    assert bench.evictors.progress()[0].left_quorum_s is None
    bench.evictors.note(LighthouseView(3, (Member(ReplicaId("rg_0:a"), 1),), {}, ""))
    assert bench.evictors.progress()[0].left_quorum_s is not None


def test_submitting_never_waits_and_a_second_order_for_the_same_incident_is_not_taken(
    bench: Bench,
) -> None:
    bench.group()
    gate = threading.Event()

    def slow(replica_id: str) -> Page:
        gate.wait(5)
        return bench.kill_rank_zero(replica_id)

    bench.lighthouse.on_kill = slow
    began = time.monotonic()
    assert bench.evictors.submit(bench.order())
    assert not bench.evictors.submit(bench.order())
    assert time.monotonic() - began < 0.2
    gate.set()
    wait_until(lambda: not bench.evictors.active(), 15, "the eviction ends")


def test_stopping_the_monitor_leaves_an_eviction_open_for_whoever_goes_on(bench: Bench) -> None:
    bench.group()
    bench.ranks[0].mortal = False
    bench.evictors.submit(bench.order())
    wait_until(lambda: bench.ranks[0].evictions, 10, "it is under way")
    bench.evictors.close(5.0)
    assert bench.recorded[-1].interrupted


def test_an_eviction_begins_when_it_is_written_and_may_be_done_and_not_before(
    fleet: FakeFleet, lighthouse: FakeLighthouse, fetcher: Fetcher
) -> None:
    answers = iter([False, True, True])
    permits = iter(["the lease could not be renewed", None])
    bench = Bench(
        fleet, lighthouse, fetcher,
        durable=lambda: next(answers, True), permit=lambda: next(permits, None),
    )  # fmt: skip
    bench.group()
    assert bench.evict().gone_s is not None
    assert next(answers, "asked thrice") == "asked thrice"
    bench.evictors.close()


def test_what_cannot_be_written_in_time_is_not_carried_out(
    fleet: FakeFleet, lighthouse: FakeLighthouse, fetcher: Fetcher
) -> None:
    bench = Bench(fleet, lighthouse, fetcher, replace(FAST, confirm_s=0.3), durable=lambda: False)
    bench.group()
    assert bench.evict().failed == "it could not be written down in time, so nobody was asked"
    assert bench.ranks[0].alive
    assert bench.lighthouse.kills == []
    bench.evictors.close()


def test_who_may_not_act_any_more_asks_nobody_and_records_nothing(bench: Bench) -> None:
    bench.group()
    bench.ranks[0].mortal = False
    bench.evictors.submit(bench.order())
    wait_until(lambda: bench.ranks[0].evictions, 10, "it is under way")
    bench.evictors.follow([])
    recorded = len(bench.recorded)
    bench.evictors.close(5.0)
    assert bench.evictors.progress() == ()
    assert len(bench.recorded) == recorded


def test_two_orders_against_one_group_are_one_eviction(bench: Bench) -> None:
    bench.group()
    bench.ranks[0].mortal = False
    other = Evict(IncidentId("inc-2"), GroupName("rg_1"), REPLICA, (), "by hand")
    assert bench.evictors.submit(bench.order())
    assert not bench.evictors.submit(bench.order(evict=other))


def test_what_another_monitor_left_open_is_not_under_way_here(bench: Bench) -> None:
    now_s = bench.clock.now_s()
    open_one = EvictionProgress(IncidentId("a"), GroupName("g"), None, now_s - 10, ())
    done = EvictionProgress(IncidentId("b"), GroupName("g"), None, now_s - 20, (), gone_s=now_s)
    old = EvictionProgress(IncidentId("c"), GroupName("g"), None, now_s - 7200, (), gone_s=1.0)
    restored = bench.evictors.restore([old, done, open_one])
    assert [one.incident_id for one in restored] == ["b", "a"]
    assert [one.incident_id for one in bench.evictors.progress()] == ["b"]
    assert bench.recorded == []


def test_a_crash_of_the_evictor_is_one_failed_eviction(bench: Bench) -> None:
    bench.group()
    broken = Evict(IncidentId("bad"), GroupName("rg_1"), REPLICA, (), "x")
    order = bench.order(evict=broken, accused=(None,))  # type: ignore[arg-type]
    assert bench.evictors.submit(order)
    wait_until(lambda: not bench.evictors.active(), 15, "the eviction ends")
    assert (bench.recorded[-1].failed or "").startswith("the evictor crashed: ")
    assert bench.evictors.submit(bench.order())
    wait_until(lambda: not bench.evictors.active(), 15, "the next one works")
    assert bench.recorded[-1].gone_s is not None
