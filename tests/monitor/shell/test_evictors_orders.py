"""Only the accused, one at a time, and nothing before it is written."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from monitor.act.http import Fetcher
from monitor.model.eviction import Evict, Eviction, EvictionState
from monitor.model.names import GroupName, Host, IncidentId, ReplicaId
from monitor.model.observation import LighthouseView, Member
from tests.monitor.shell.evictions import (
    FAST,
    REPLICA,
    Bench,
)
from tests.monitor.shell.fakes import (
    FakeFleet,
    FakeLighthouse,
    Hang,
    Page,
    wait_until,
)

pytestmark = pytest.mark.integration  # it waits for deadlines, in real seconds


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
