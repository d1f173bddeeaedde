"""Evictors over real HTTP: every way in which a WorkerServer, a Lighthouse, a gate or a scheduler
can answer; only the accused, one at a time, and nothing before it is written.

Each case is a group of one or two fake ranks, and what must be true at the end. When whom is asked
is tried in virtual time (tests/monitor/decide/test_escalation.py).
"""

from __future__ import annotations

import threading
import time
from contextlib import closing

import pytest

from lightkeeper.monitor.act.http import Fetcher
from lightkeeper.monitor.act.lighthouse import Lighthouse
from lightkeeper.monitor.act.schedulers.base import NotDone, Outcome
from lightkeeper.monitor.model.eviction import Rung, RungResult
from lightkeeper.monitor.model.names import GroupName, Host, IncidentId
from tests.changed import replace
from tests.http_server import Hang
from tests.monitor.act.evictions import (
    BRISK,
    EVICT,
    REPLICA,
    Bench,
    answer,
    never_answers,
    outcome,
    rungs,
)
from tests.monitor.act.gates import FakeGate
from tests.monitor.decided import to_evict
from tests.monitor.fakes import FakeFleet, FakeLighthouse, FakeRank, Page, page, wait_until

pytestmark = pytest.mark.integration  # it waits for deadlines, in real seconds


# -- the Lighthouse and the workers ---------------------------------------------------------------


def test_a_kill_that_works_is_followed_by_the_eviction_of_who_outlives_it(bench: Bench) -> None:
    bench.group(2)
    progress = bench.evict()
    assert progress.failed is None
    assert progress.gone_s is not None
    assert rungs(progress) == ["quarantine", "lighthouse_kill", "worker_evict"]
    said = "the group's manager has ended before it answered"
    assert outcome(progress, Rung.LIGHTHOUSE_KILL).detail == said
    assert bench.lighthouse.kills == [REPLICA]
    assert [rank.alive for rank in bench.ranks] == [False, False]
    assert [rank.evictions for rank in bench.ranks] == [
        [], [{"reason": "hung: no step", "grace_s": 0.1, "incarnation": "one"}],
    ]  # fmt: skip


def test_a_rank_that_cannot_carry_out_a_kill_is_evicted_at_once_and_not_killed(
    bench: Bench,
) -> None:
    bench.group()
    bench.ranks[0].process_state = "T"
    progress = bench.evict()
    assert progress.gone_s is not None
    assert bench.lighthouse.kills == []
    skipped = outcome(progress, Rung.LIGHTHOUSE_KILL).detail
    assert skipped.startswith("rg_1.0, which hosts")


def leaves(rank: FakeRank) -> Page:
    """Its process ends, and its WorkerServer with it."""
    rank.answer = lambda _: page({}, 503)
    return page({"schema": 1, "signalled": ["SIGKILL"], "gone": True})


def hangs(_: FakeRank) -> Page:
    raise Hang


WORKERS = {
    "works": (None, True),
    "answers 500 though it worked": (answer(b'{"error": "boom"}', 500, dies=True), True),
    "answers garbage though it worked": (answer(b"\xff\x00", dies=True), True),
    "answers a list though it worked": (answer(b"[]", dies=True), True),
    "times out though it worked": (never_answers, True),
    "said gone and ended": (leaves, True),
    "says gone and lies": (answer(b'{"schema": 1, "gone": true}', dies=False), False),
    "answers 500": (answer(b'{"error": "boom"}', 500, dies=False), False),
    "answers garbage": (answer(b"<html>", dies=False), False),
    "deep JSON": (answer(b"[" * 10_000, dies=False), False),
    "hangs": (hangs, False),
}


@pytest.mark.parametrize("name", WORKERS)
def test_what_a_worker_did_is_believed_by_looking(name: str, bench: Bench) -> None:
    bench.group()
    bench.lighthouse.on_kill = bench.kill_hangs
    bench.ranks[0].evict, gone = WORKERS[name]
    began = time.monotonic()
    progress = bench.evict()
    assert (progress.gone_s is not None) is gone
    if gone:
        assert progress.failed is None
    else:
        said = "not gone after 2 s: rg_1.0 alive (state S)"
        assert (progress.failed or "").startswith(said)
        assert time.monotonic() - began < BRISK.confirm_s + 2
        assert len(bench.ranks[0].evictions) > 1 or name == "hangs"  # asked again


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


# -- what confirms it -----------------------------------------------------------------------------


def test_the_group_counts_as_out_only_when_it_is_gone_and_has_left(bench: Bench) -> None:
    bench.group()
    progress = bench.evict()
    assert progress.gone_s is not None
    assert not progress.out
    assert progress.confirmed is None
    bench.lighthouse.form("rg_0:uuid0")
    bench.evictors.note(Lighthouse(bench.lighthouse.url, bench.fetcher).look(2.0))
    (progress,) = bench.evictors.log.progress()
    assert progress.out
    assert progress.confirmed == (
        "every known process of it is gone (rg_1.0 its process is gone); it left the quorum"
    )
    assert bench.recorded[-1] == progress


# -- the gate -------------------------------------------------------------------------------------


def test_the_gate_refuses_together_with_the_kill(
    fleet: FakeFleet, lighthouse: FakeLighthouse, fetcher: Fetcher
) -> None:
    with (
        closing(FakeGate()) as gate,
        closing(Bench(fleet, lighthouse, fetcher, gate=gate)) as bench,
    ):
        gate.speaks(REPLICA)
        bench.group()
        lighthouse.on_kill = bench.kill_hangs
        bench.ranks[0].evict = lambda _: page({}, 503)
        progress = bench.evict()
        refused = outcome(progress, Rung.GATE)
        assert refused.result is RungResult.WORKED
        assert refused.finished_s - progress.asked_s < 1.0
        # the host is quarantined by the same eviction
        assert {"replica rg_1:uuid1", "host node1"} <= set(gate.refuses())


# -- the scheduler --------------------------------------------------------------------------------


class FakeSlurm:
    """Ends all that the WorkerServers could not."""

    name = "slurm"

    def __init__(self) -> None:
        self.ranks: list[FakeRank] = []
        self.asked: list[tuple[str, list[str]]] = []

    def remove(self, group, places, why, timeout_s) -> Outcome:
        assert why.lost is None
        self.asked.append((group, [place.rank for place in places]))
        for rank in self.ranks:
            rank.mortal = True
            rank.die()
        return Outcome(True, "scancel 12.0")


def test_the_scheduler_ends_what_the_workerservers_could_not(
    fleet: FakeFleet, lighthouse: FakeLighthouse, fetcher: Fetcher
) -> None:
    slurm, soon = FakeSlurm(), replace(BRISK, worker_s=1.0)
    with closing(Bench(fleet, lighthouse, fetcher, soon, schedulers=(slurm,))) as bench:
        bench.group(2)
        slurm.ranks = bench.ranks
        for rank in bench.ranks:
            rank.mortal = False
        progress = bench.evict()
    assert progress.gone_s is not None
    assert slurm.asked == [("rg_1", ["rg_1.0", "rg_1.1"])]
    assert rungs(progress)[-1] == "scheduler"
    removed = outcome(progress, Rung.SCHEDULER)
    assert (removed.result, removed.detail) == (RungResult.WORKED, "slurm: scancel 12.0")


class FarPods:
    """Ends what nobody sees: as a cluster that holds node1 to be down does."""

    name = "kubernetes"

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.fenced: bool | None = None
        self.goes_on = threading.Event()
        self.timeout_s = 0.0

    def remove(self, group, places, why, timeout_s) -> Outcome:
        self.timeout_s = timeout_s
        if (lost := why.lost) is None:
            return Outcome(True, "deleted")
        for _ in range(2):
            lost.down(Host("node1"))
        lost.down(Host("another"))
        self.asked.set()
        self.goes_on.wait(10.0)
        self.fenced = lost.fenced()
        return Outcome(self.fenced, "deleted by force" if self.fenced else "nothing fences it")


FAR = replace(EVICT, quarantine=(), lost={Host("node1"): True})


def out_of_sight(bench: Bench) -> None:
    bench.group()
    (rank,) = bench.ranks
    rank.answer = rank.evict = lambda _: page({}, 503)  # as good as silent, and sooner
    bench.lighthouse.form("rg_0:uuid0")
    bench.lighthouse.ages_s[REPLICA] = 30.0


@pytest.mark.parametrize("gated", [True, False])
def test_who_nobody_sees_is_forced_only_behind_a_gate_that_refuses_it(
    fleet: FakeFleet, lighthouse: FakeLighthouse, fetcher: Fetcher, gated: bool
) -> None:
    pods = FarPods()
    with closing(FakeGate()) as gate:
        gate.speaks(REPLICA)
        bench = Bench(
            fleet, lighthouse, fetcher, replace(BRISK, lost_s=3.0), schedulers=(pods,),
            gate=gate if gated else None,
        )  # fmt: skip
        with closing(bench):
            out_of_sight(bench)
            if bench.keeper is not None:
                wait_until(lambda: bench.keeper.up, 10, "the gate is seen")
            assert bench.submit(FAR)
            assert pods.asked.wait(10.0)
            if gated:
                wait_until(lambda: bench.keeper.fences(REPLICA), 10, "the gate refuses it")
            pods.goes_on.set()
            wait_until(lambda: not bench.evictors.active(), 15, "the eviction ends")
            (progress,) = bench.evictors.log.progress()
            assert pods.fenced is gated
            assert (progress.failed is None) is gated
            (entry,) = bench.quarantine.active()
            assert (entry.name, entry.incident_id) == ("node1", progress.incident_id)


def test_a_host_whose_quarantine_the_policy_forbids_is_not_put_there(
    fleet: FakeFleet, lighthouse: FakeLighthouse, fetcher: Fetcher
) -> None:
    pods = FarPods()
    pods.goes_on.set()
    timeouts = replace(BRISK, lost_s=0.5)
    with closing(Bench(fleet, lighthouse, fetcher, timeouts, schedulers=(pods,))) as bench:
        out_of_sight(bench)
        progress = bench.evict(evict=replace(FAR, lost={Host("node1"): False}))
        assert bench.quarantine.active() == ()
    assert progress.failed == "rg_1 is gone, and not removed: kubernetes: nothing fences it"
    assert pods.timeout_s <= 0.9 * timeouts.lost_s  # its last words come before the rung is over


def test_a_pause_holds_what_a_scheduler_would_force_later(
    fleet: FakeFleet, lighthouse: FakeLighthouse, fetcher: Fetcher
) -> None:
    said: list[str] = []

    class Patient(FarPods):
        def remove(self, group, places, why, timeout_s) -> Outcome:
            self.asked.set()
            self.goes_on.wait(10.0)
            with pytest.raises(NotDone) as held:
                why.lost.down(Host("node1"))
            said.append(str(held.value))
            return Outcome(False, "held")

    pods, timeouts = Patient(), replace(BRISK, lost_s=5.0)
    with closing(Bench(fleet, lighthouse, fetcher, timeouts, schedulers=(pods,))) as bench:
        out_of_sight(bench)
        assert bench.submit(FAR)
        assert pods.asked.wait(10.0)
        bench.pause = "paused by alice"
        pods.goes_on.set()
        wait_until(lambda: said, 10, "the driver is held")
        assert said == ["paused by alice: its other rungs are not climbed"]
        assert bench.quarantine.active() == ()


def test_others_are_evicted_while_a_scheduler_ends_a_lost_group(
    fleet: FakeFleet, lighthouse: FakeLighthouse, fetcher: Fetcher
) -> None:
    pods = FarPods()
    timeouts = replace(BRISK, lost_s=30.0, worker_s=0.1, scheduler_s=0.5)
    with closing(Bench(fleet, lighthouse, fetcher, timeouts, schedulers=(pods,))) as bench:
        out_of_sight(bench)
        assert bench.submit(FAR)
        assert pods.asked.wait(10.0)
        other = to_evict(IncidentId("inc-2"), GroupName("rg_2"), None, (), "hung")
        assert bench.submit(other, accused=())
        wait_until(lambda: not pods.goes_on.is_set() and _over(bench, "rg_2"), 15, "it is over")
        pods.goes_on.set()


def _over(bench: Bench, group: str) -> bool:
    return any(each.group == group and not each.open for each in bench.evictors.log.all())


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


def test_submitting_never_waits_and_a_group_is_evicted_once_at_a_time(bench: Bench) -> None:
    bench.group()
    gate = threading.Event()

    def slow(replica_id: str) -> Page:
        gate.wait(5)
        return bench.kill_rank_zero(replica_id)

    bench.lighthouse.on_kill = slow
    began = time.monotonic()
    assert bench.submit()
    assert not bench.submit()
    assert not bench.submit(replace(EVICT, incident_id="inc-2"))
    assert time.monotonic() - began < 4  # and not the 5 s of the Lighthouse
    gate.set()
    wait_until(lambda: not bench.evictors.active(), 15, "the eviction ends")


@pytest.mark.parametrize("stands_by", [False, True], ids=["ends", "stands by"])
def test_a_monitor_that_stops_acting_leaves_an_eviction_open_for_whoever_goes_on(
    stands_by: bool, bench: Bench
) -> None:
    bench.group()
    bench.ranks[0].mortal = False
    bench.submit()
    wait_until(lambda: bench.ranks[0].evictions, 10, "it is under way")
    if stands_by:
        bench.evictors.log.follow([])
        recorded = len(bench.recorded)
    bench.evictors.close(5.0)
    assert bench.recorded[-1].state == "asking"
    if stands_by:
        assert bench.evictors.log.progress() == ()
        assert len(bench.recorded) == recorded


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


def test_a_crash_of_the_evictor_is_one_failed_eviction(bench: Bench) -> None:
    bench.group()
    broken = to_evict(IncidentId("bad"), GroupName("rg_1"), REPLICA, (), "x")
    assert bench.submit(broken, accused=(None,))  # type: ignore[arg-type]
    wait_until(lambda: not bench.evictors.active(), 15, "the eviction ends")
    assert (bench.recorded[-1].failed or "").startswith("the evictor crashed: ")
    assert bench.submit()
    wait_until(lambda: not bench.evictors.active(), 15, "the next one works")
    assert bench.recorded[-1].gone_s is not None
