"""What shows that a group is out, and what the gate and the scheduler do for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from monitor.act.http import Fetcher
from monitor.act.lighthouse import Lighthouse
from monitor.act.schedulers.base import Outcome, Place
from monitor.model.eviction import Rung, RungResult
from monitor.model.observation import LighthouseView, Member
from tests.monitor.shell.evictions import (
    FAST,
    REPLICA,
    Bench,
    outcome,
    rungs,
)
from tests.monitor.shell.fakes import (
    FakeFleet,
    FakeLighthouse,
    FakeRank,
    page,
)
from tests.monitor.shell.gates import FakeGate
from tests.waiting import wait_for

pytestmark = pytest.mark.integration  # it waits for deadlines, in real seconds


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
    assert gated.keeper is not None
    gated.keeper.kick()
    wait_for(lambda: not gated.keeper.up, within_s=20, what="its keeper has seen it away")
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
