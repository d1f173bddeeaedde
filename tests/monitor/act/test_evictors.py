"""Evictors over real HTTP: every way in which a WorkerServer, a Lighthouse, a gate or a scheduler
can answer; only the accused, one at a time, and nothing before it is written.

Each case is a group of one or two fake ranks, and what must be true at the end. When whom is asked
is tried in virtual time (tests/monitor/model/test_escalation.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from monitor.act.http import Fetcher
from monitor.act.lighthouse import Lighthouse
from monitor.act.schedulers.base import Outcome, Place
from monitor.model.escalation import Timeouts
from monitor.model.eviction import Evict, Eviction, EvictionState, Rung, RungResult
from monitor.model.names import GroupName, Host, IncidentId
from tests.changed import replace
from tests.http_server import Hang
from tests.monitor.act.evictions import (
    FAST,
    REPLICA,
    Bench,
    answer,
    detail,
    never_answers,
    outcome,
    rungs,
)
from tests.monitor.act.gates import FakeGate
from tests.monitor.fakes import FakeFleet, FakeLighthouse, FakeRank, Page, page, wait_until
from tests.waiting import wait_for

pytestmark = pytest.mark.integration  # it waits for deadlines, in real seconds


# -- the Lighthouse's rung ------------------------------------------------------------------------


def test_a_kill_that_works_answers_500_and_no_worker_is_asked(bench: Bench) -> None:
    bench.group()
    progress = bench.evict()
    assert progress.failed is None
    assert progress.gone_s is not None
    assert rungs(progress) == ["quarantine", "lighthouse_kill"]
    said = "the group's manager has ended before it answered"
    assert detail(progress, Rung.LIGHTHOUSE_KILL) == said
    assert bench.lighthouse.kills == [REPLICA]
    assert bench.ranks[0].evictions == []


def test_a_kill_that_hangs_is_followed_by_the_workers(bench: Bench) -> None:
    bench.group()
    bench.lighthouse.on_kill = bench.kill_hangs
    progress = bench.evict()
    assert progress.gone_s is not None
    assert rungs(progress) == ["quarantine", "lighthouse_kill", "worker_evict"]
    assert len(bench.ranks[0].evictions) == 1


def test_the_rank_that_outlives_the_kill_of_a_two_rank_group_is_evicted_too(bench: Bench) -> None:
    bench.group(2)
    progress = bench.evict()
    assert progress.gone_s is not None
    assert [rank.alive for rank in bench.ranks] == [False, False]
    assert bench.ranks[0].evictions == []
    assert [body["incarnation"] for body in bench.ranks[1].evictions] == ["one"]


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
    bench = Bench(fleet, lighthouse, fetcher, Timeouts(kill_s=60.0, pause_s=0.05, confirm_s=90.0))
    bench.group()
    for name, value in condition.items():
        setattr(bench.ranks[0], name, value)
    progress = bench.evict()
    assert progress.gone_s is not None
    assert lighthouse.kills == []
    assert detail(progress, Rung.LIGHTHOUSE_KILL).startswith("skipped: rg_1.0, which hosts")
    bench.evictors.close()


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


@pytest.mark.parametrize(
    ("theirs", "words"),
    [(None, "refused (403)"), ("other", "refused (401)")],
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


# -- what confirms it -----------------------------------------------------------------------------


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
    assert gated.keeper is not None
    wait_for(lambda: gated.keeper.up, within_s=20, what="its keeper has looked at it")
    gate.down = True
    gated.keeper.kick()
    wait_for(lambda: not gated.keeper.up, within_s=20, what="its keeper has seen it away")
    gated.group()
    progress = gated.evict()
    assert progress.gone_s is not None
    assert outcome(progress, Rung.GATE).result is RungResult.UNKNOWN
    assert outcome(progress, Rung.GATE).detail.startswith("the gate is away")


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


# -- only the accused -----------------------------------------------------------------------------


def test_a_group_that_restarted_before_the_first_rung_is_never_hit(bench: Bench) -> None:
    bench.group(2)
    accused = bench.accused()
    for rank in bench.ranks:
        rank.restart("two")
    assert bench.submit(accused=accused)
    wait_until(lambda: not bench.evictors.active(), 15, "the eviction ends")
    assert [rank.evictions for rank in bench.ranks] == [[], []]
    assert [rank.alive for rank in bench.ranks] == [True, True]
    assert bench.lighthouse.kills == []


def test_every_evict_request_names_the_accused_incarnation(bench: Bench) -> None:
    bench.group(2)
    bench.lighthouse.down = True
    bench.evict()
    for rank in bench.ranks:
        assert rank.evictions == [{"reason": "hung: no step", "grace_s": 0.1, "incarnation": "one"}]


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
    assert bench.submit()
    assert not bench.submit()
    assert time.monotonic() - began < 0.2
    gate.set()
    wait_until(lambda: not bench.evictors.active(), 15, "the eviction ends")


def test_stopping_the_monitor_leaves_an_eviction_open_for_whoever_goes_on(bench: Bench) -> None:
    bench.group()
    bench.ranks[0].mortal = False
    bench.submit()
    wait_until(lambda: bench.ranks[0].evictions, 10, "it is under way")
    bench.evictors.close(5.0)
    assert bench.recorded[-1].state == "asking"


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


def test_who_may_not_act_any_more_asks_nobody_and_records_nothing(bench: Bench) -> None:
    bench.group()
    bench.ranks[0].mortal = False
    bench.submit()
    wait_until(lambda: bench.ranks[0].evictions, 10, "it is under way")
    bench.evictors.log.follow([])
    recorded = len(bench.recorded)
    bench.evictors.close(5.0)
    assert bench.evictors.progress() == ()
    assert len(bench.recorded) == recorded


def test_two_orders_against_one_group_are_one_eviction(bench: Bench) -> None:
    bench.group()
    bench.ranks[0].mortal = False
    other = Evict(IncidentId("inc-2"), GroupName("rg_1"), REPLICA, (), "by hand")
    assert bench.submit()
    assert not bench.submit(other)


def test_what_another_monitor_left_open_is_not_under_way_here(bench: Bench) -> None:
    now_s = bench.clock.now_s()
    open_one = Eviction(IncidentId("a"), GroupName("g"), None, now_s - 10, ())
    done = Eviction(
        IncidentId("b"), GroupName("g"), None, now_s - 20, (), gone_s=now_s,
        state=EvictionState.CONFIRMED,
    )  # fmt: skip
    old = replace(done, incident_id=IncidentId("c"), asked_s=now_s - 7200)
    restored = bench.evictors.log.take_over([old, done, open_one])
    assert [one.incident_id for one in restored] == ["b", "a"]
    assert [one.incident_id for one in bench.evictors.progress()] == ["b"]
    assert [(one.incident_id, str(one.state)) for one in bench.recorded] == [("a", "interrupted")]


def test_a_crash_of_the_evictor_is_one_failed_eviction(bench: Bench) -> None:
    bench.group()
    broken = Evict(IncidentId("bad"), GroupName("rg_1"), REPLICA, (), "x")
    assert bench.submit(broken, accused=(None,))  # type: ignore[arg-type]
    wait_until(lambda: not bench.evictors.active(), 15, "the eviction ends")
    assert (bench.recorded[-1].failed or "").startswith("the evictor crashed: ")
    assert bench.submit()
    wait_until(lambda: not bench.evictors.active(), 15, "the next one works")
    assert bench.recorded[-1].gone_s is not None
