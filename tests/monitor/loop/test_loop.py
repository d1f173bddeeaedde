"""The loop: what it does in which order, and what it survives."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lightkeeper.monitor.act.bundles import BundleDir
from lightkeeper.monitor.act.evictor import Evictors, Parties
from lightkeeper.monitor.act.evidence import Evidence
from lightkeeper.monitor.act.http import Fetcher, Tokens
from lightkeeper.monitor.act.lighthouse import Lighthouse
from lightkeeper.monitor.act.poller import Poller
from lightkeeper.monitor.act.quarantine import PauseSwitch, Quarantine
from lightkeeper.monitor.act.release import Releaser
from lightkeeper.monitor.act.schedulers.base import Lost, Outcome
from lightkeeper.monitor.act.targets import Registered, Registry
from lightkeeper.monitor.act.work import WorkBook
from lightkeeper.monitor.clock import Clock
from lightkeeper.monitor.decide.escalation import handle
from lightkeeper.monitor.decide.pipeline import TickResult
from lightkeeper.monitor.decide.view import NotPossible, View
from lightkeeper.monitor.journal.entries import Head, JournalTick
from lightkeeper.monitor.journal.replay import find_journals, journal_events
from lightkeeper.monitor.journal.writer import Journal, JournalDir, Limits
from lightkeeper.monitor.loop.components import Components, LeaderComponents, VitalSigns
from lightkeeper.monitor.loop.loop import Keeper
from lightkeeper.monitor.metric import Filled, new_page
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import Guard, Hold
from lightkeeper.monitor.model.incident import State
from lightkeeper.monitor.model.names import GroupName, IncidentId, RankName
from lightkeeper.monitor.model.observation import LighthouseAway, LighthouseView, Snapshot
from lightkeeper.monitor.rulebook import standing
from lightkeeper.monitor.show import metrics as page_metrics
from lightkeeper.monitor.store.lease import Lease, process_name
from lightkeeper.monitor.store.store import Store
from tests.changed import replace
from tests.monitor.act.evictions import BRISK
from tests.monitor.doubles import Broken
from tests.monitor.fakes import FakeFleet, FakeLighthouse, FakeRank, wait_until
from tests.monitor.samples import EVICT, incident
from tests.monitor.store.test_store import full_disk


@dataclass
class Script:
    """A judge that says what it is told to, and remembers what it was shown."""

    seen: list[Snapshot] = field(default_factory=list)
    say: Callable[[Snapshot], TickResult] = field(
        default=lambda snapshot: TickResult(snapshot.now_s)
    )

    def tick(self, snapshot: Snapshot) -> TickResult:
        self.seen.append(snapshot)
        return self.say(snapshot)

    def go_on(self, *_: object, **__: object) -> None:
        """Nothing is known from before."""


class MovedClock(Clock):
    def advance(self, seconds: float) -> None:
        self._wall_s += seconds


class Bench:
    def __init__(self, path: Path, fetcher: Fetcher, lighthouse: FakeLighthouse) -> None:
        self.clock = MovedClock()
        self.store = Store(path)
        self.registry = Registry(self.clock, self.store)
        self.quarantine = Quarantine(self.clock, self.store)
        self.judge = Script()
        self.metrics = new_page()
        light = Lighthouse(lighthouse.url, fetcher)
        self.fetcher, self.light = fetcher, light
        self.evidence = Evidence(
            clock=self.clock,
            fetcher=fetcher,
            bundles=BundleDir(path.with_name("evidence"), KeeperConfig()),
            config=KeeperConfig(evidence_count=0),
            metrics=self.metrics,
        )
        self.lease = Lease(self.store.database.lease, process_name(), "http://here")
        self.lease.start()
        self.begin()

    def begin(self) -> None:
        """A monitor that goes on with what the store holds."""
        self.fetcher.tokens = Tokens("secret")
        config = KeeperConfig(tick_s=0.5)
        parties = Parties(
            clock=self.clock,
            fetcher=self.fetcher,
            registry=self.registry,
            quarantine=self.quarantine,
            lighthouse=self.light,
            timeouts=replace(BRISK, confirm_s=5.0),
        )
        self.evictors = Evictors(parties, handle=handle, record=self.store.save_decision)
        self.components = Components(
            config=config, clock=self.clock, registry=self.registry,
            poller=Poller(self.fetcher), lighthouse=self.light, judge=self.judge,
            store=self.store, quarantine=self.quarantine, evictors=self.evictors,
            releaser=Releaser(self.fetcher, self.clock), metrics=self.metrics,
            evidence=self.evidence, rulebook=standing(config),
            pause=PauseSwitch(self.clock, self.store), work=WorkBook(self.clock, self.store),
            vitals=VitalSigns(), lease=self.lease, begin=lambda *_: LeaderComponents(),
        )  # fmt: skip
        self.with_components()

    def close(self) -> None:
        for part in (self.evictors, self.evidence, self.lease, self.store):
            part.close()

    def with_components(self, **changes) -> None:
        if "config" in changes:
            changes["rulebook"] = standing(changes["config"])
        self.components = replace(self.components, **changes)
        self.keeper = Keeper(self.components)
        self.keeper.take_part()

    def with_journal(self, journal: Journal) -> None:
        self.with_components(begin=lambda *_: LeaderComponents(journal=journal))

    @property
    def view(self) -> View:
        assert self.keeper.view is not None
        return self.keeper.view

    def judged(self, *ticks: int) -> None:
        """The incident fires, and in these ticks (none: in each) its eviction is decided."""
        fired = {"incidents": (incident(),), "changed": (incident(),)}
        self.judge.say = lambda snapshot: TickResult(
            snapshot.now_s,
            decisions=(EVICT,) if not ticks or snapshot.tick in ticks else (),
            **fired,
        )

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.get_sample_value(name, labels)


@pytest.fixture
def bench(tmp_path: Path, fetcher: Fetcher, lighthouse: FakeLighthouse) -> Iterator[Bench]:
    made = Bench(tmp_path / "m.db", fetcher, lighthouse)
    yield made
    made.close()


def test_one_snapshot_a_tick_sorted_by_rank_with_the_lighthouse(
    bench: Bench, fleet: FakeFleet, lighthouse: FakeLighthouse
) -> None:
    lighthouse.form("rg_0:a")
    for group in ("rg_2", "rg_0", "rg_1"):
        bench.registry.register(fleet.add(group).registration())
    bench.keeper.tick()
    bench.keeper.tick()
    first, second = bench.judge.seen
    assert [observation.rank for observation in first.observations] == [
        "rg_0.0",
        "rg_1.0",
        "rg_2.0",
    ]
    assert isinstance(first.lighthouse, LighthouseView)
    assert (first.tick, second.tick) == (1, 2)
    assert second.now_s > first.now_s


def test_groups_that_get_their_names_at_once_stay_in_one_run(
    bench: Bench, fleet: FakeFleet
) -> None:
    """As TorchFT's first quorum lets them: one has registered its new name, the other not yet."""
    ranks = [fleet.add(f"{n}", incarnation=f"of {n}") for n in range(2)]
    for rank in ranks:
        bench.registry.register(rank.registration())
    bench.keeper.tick()
    run = bench.registry.run
    for rank in ranks:
        group = rank.identity.group
        rank.identity = replace(rank.identity, group=f"train_{group}", launched_as=group)
    bench.keeper.tick()
    stood = [bench.registry.register(rank.registration()) for rank in ranks]
    assert stood == [Registered.CURRENT] * 2
    assert bench.registry.run == run


def test_the_dead_of_a_run_are_not_of_the_run_that_begins_in_the_same_tick(
    bench: Bench, fleet: FakeFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight ranks that were killed were an incident of the next run, which was healthy."""
    old = fleet.add("job")
    bench.registry.register(old.registration())
    bench.keeper.tick()
    old.die()
    measure = VitalSigns.measure

    def meanwhile(vitals: VitalSigns) -> object:
        bench.registry.register(fleet.add("job", incarnation="next").registration())
        return measure(vitals)

    monkeypatch.setattr(VitalSigns, "measure", meanwhile)
    bench.keeper.tick()
    first, second = bench.judge.seen
    assert bench.registry.run != first.run
    assert (second.run, len(second.observations)) == (first.run, 1)


def test_records_that_the_judge_wants_come_with_the_next_snapshot(
    bench: Bench, fleet: FakeFleet
) -> None:
    bench.registry.register(fleet.add().registration())
    bench.judge.say = lambda s: TickResult(s.now_s, wants_records=(RankName("rg_0.0"),))
    bench.keeper.tick()
    bench.keeper.tick()
    assert [list(snapshot.records) for snapshot in bench.judge.seen] == [[], ["rg_0.0"]]


def test_a_decision_is_on_disk_before_it_is_carried_out(
    bench: Bench, fleet: FakeFleet, lighthouse: FakeLighthouse
) -> None:
    rank = fleet.add("rg_1", replica_id="rg_1:uuid1")
    bench.registry.register(rank.registration())
    lighthouse.form("rg_1:uuid1")
    on_disk = []

    def kill(_: str):
        on_disk.append([row.action for row in bench.store.remembered().decisions])
        rank.die()
        return 500, "text/plain", b""

    lighthouse.on_kill = kill
    bench.judged(1)
    bench.keeper.tick()
    wait_until(lambda: not bench.evictors.active(), 10, "the eviction ends")
    assert on_disk == [["evict"]]
    bench.keeper.tick()
    (progress,) = bench.judge.seen[-1].evictions
    assert progress.gone_s is not None
    assert bench.view.decisions[IncidentId("inc-1")][-1].gone_s is not None
    assert [entry.host for entry in bench.view.quarantine] == ["node1"]
    assert bench.value("lightkeeper_evictions_total", kind="not_entered", outcome="gone") == 1


@pytest.fixture
def doomed(bench: Bench, fleet: FakeFleet, lighthouse: FakeLighthouse) -> FakeRank:
    """A rank whose group is decided to be evicted in the second tick."""
    rank = fleet.add("rg_1", replica_id="rg_1:uuid1")
    bench.registry.register(rank.registration())
    lighthouse.form("rg_1:uuid1")
    bench.keeper.tick()
    return rank


def test_an_eviction_waits_until_its_decision_is_on_disk_and_says_so(
    bench: Bench, doomed: FakeRank, lighthouse: FakeLighthouse
) -> None:
    lighthouse.on_kill = lambda _: (doomed.die(), (500, "text/plain", b""))[1]
    full = full_disk(bench.store, full=True)
    bench.store.save_target(RankName("rg_9.0"), {"url": "x" * 100_000})
    bench.judged(2)
    for _ in range(3):
        bench.keeper.tick()
    assert bench.evictors.log.progress() == ()
    assert any(
        line.startswith("eviction of rg_1 waits: its decision is not written (")
        for line in bench.view.troubles
    )
    full()
    bench.keeper.tick()
    wait_until(lambda: not bench.evictors.active() and not doomed.alive, 10, "then it is done")
    bench.keeper.tick()
    bench.keeper.tick()
    (row,) = [row for row in bench.store.remembered().decisions if row.action == "evict"]
    assert (str(row.state), row.attempt) == ("confirmed", 1)


def test_a_decision_that_could_not_be_written_for_long_is_decided_again_and_is_one_decision(
    bench: Bench, doomed: FakeRank
) -> None:
    bench.with_components(config=KeeperConfig(tick_s=0.5, eviction_ack_s=1.0))
    full = full_disk(bench.store, full=True)
    bench.store.save_target(RankName("rg_9.0"), {"url": "x" * 100_000})
    bench.judged(1, 6)
    bench.keeper.tick()
    bench.clock.advance(5)
    for _ in range(3):
        bench.keeper.tick()
    full()
    bench.keeper.tick()
    assert bench.evictors.log.progress() == ()  # too old to be carried out as it stands
    bench.keeper.tick()
    wait_until(lambda: not bench.evictors.active() and not doomed.alive, 10, "the second time")
    bench.keeper.tick()
    bench.keeper.tick()
    rows = [row for row in bench.store.remembered().decisions if row.action == "evict"]
    assert [(str(row.state), row.attempt) for row in rows] == [("confirmed", 1)]


@pytest.mark.parametrize(
    ("claimed", "killed"), [("rg_1:uuid-rg_1", "rg_1:uuid-rg_1"), ("rg_0:other", None)], ids=str
)
def test_a_group_that_claims_anothers_replica_id_is_evicted_without_it(
    bench: Bench, doomed: FakeRank, claimed: str, killed: str | None
) -> None:
    doomed.replica_id = claimed
    bench.keeper.tick()
    bench.keeper.tick()
    bench.keeper.evict_by_hand(GroupName("rg_1"), "moving")
    wait_until(lambda: not doomed.alive, 10, "its own WorkerServer ends it")
    assert bench.store.flush()
    (row,) = bench.store.remembered().decisions
    assert row.replica_id == killed


class Recorded:
    """A scheduler's reconciler that only stands for it, and a driver that notes whom it ends."""

    name = "kubernetes"
    ended: tuple[str, ...] = ()
    lost: Lost | None = None

    def troubles(self) -> tuple[str, ...]:
        return ()

    def remove(self, group, places, why, timeout_s) -> Outcome:
        self.lost, self.ended = why.lost, tuple(place.labels["pod_uid"] for place in places)
        return Outcome(True, "deleted pod train/rg-1")


def lapse(bench: Bench, fleet: FakeFleet, silent_s: float = 76.0) -> FakeRank:
    """rg_1 was silent until its registration was over, and rg_0 trains."""
    rank, other = fleet.add("rg_1", host="node1"), fleet.add("rg_0")
    place = {"pod": "rg-1", "namespace": "train", "pod_uid": "0" * 36}
    rank.identity = replace(rank.identity, place=place)
    bench.registry.register(rank.registration())
    bench.registry.register(other.registration())
    bench.keeper.tick()
    rank.answer = lambda _: (503, "text/plain", b"")
    bench.clock.advance(silent_s)
    bench.registry.register(other.registration())
    bench.keeper.tick()
    bench.keeper.tick()
    registered = {seen.rank for seen in bench.keeper.view.snapshot.observations}
    assert ("rg_1.0" in registered) is (silent_s < 75.0)
    return rank


@pytest.mark.parametrize("silent_s", [20.0, 76.0])
def test_a_group_that_is_gone_and_not_back_is_ended_by_its_scheduler_on_a_persons_word(
    bench: Bench, fleet: FakeFleet, silent_s: float
) -> None:
    rank = lapse(bench, fleet, silent_s)
    rank.evict = rank.answer
    scheduler = Recorded()
    parties = replace(bench.evictors._parties, schedulers=(scheduler,))
    evictors = Evictors(parties, handle=handle, record=bench.store.save_decision)
    bench.with_components(schedulers=(scheduler,), evictors=evictors)
    bench.keeper.tick()
    incident_id = bench.keeper.evict_by_hand(GroupName("rg_1"), "its node burnt")
    wait_until(lambda: not evictors.active(), 10, "it is over")
    (eviction,) = evictors.log.progress()
    assert (eviction.incident_id, eviction.failed) == (incident_id, None)
    assert eviction.confirmed == "nothing of it is heard; kubernetes: deleted pod train/rg-1"
    assert scheduler.ended == ("0" * 36,)
    assert not scheduler.lost.fenced()
    evictors.close()


def test_without_a_scheduler_a_person_reads_how_to_end_a_group_that_is_gone(
    bench: Bench, fleet: FakeFleet
) -> None:
    rank = lapse(bench, fleet)
    words = "rg_1 is gone, and there is no scheduler to end it. To let rg_1 start elsewhere: "
    with pytest.raises(NotPossible, match=f"{words}kubectl -n train delete pod rg-1"):
        bench.keeper.evict_by_hand(GroupName("rg_1"), "its node burnt")
    rank.answer = None
    assert bench.registry.register(rank.registration()) is Registered.CURRENT  # it is back
    assert bench.registry.lapsed(GroupName("rg_1")) == ()


def test_what_a_person_asked_for_goes_on_under_the_next_monitor(
    bench: Bench, doomed: FakeRank
) -> None:
    doomed.mortal = False
    incident_id = bench.keeper.evict_by_hand(GroupName("rg_1"), "moving")
    wait_until(lambda: doomed.evictions, 10, "it is asked")
    bench.evictors.close(5.0)
    assert bench.store.flush()
    doomed.mortal = True
    after = Bench.__new__(Bench)
    after.__dict__.update(bench.__dict__)
    after.begin()
    after.keeper.tick()
    wait_until(lambda: not after.evictors.active() and not doomed.alive, 10, "it is done")
    after.keeper.tick()
    after.keeper.tick()
    (row,) = bench.store.remembered().decisions
    assert (row.incident_id, str(row.state), row.attempt, row.author) == (
        incident_id, "confirmed", 2, "a person",
    )  # fmt: skip
    (progress,) = bench.store.remembered().evictions
    assert (progress.at_s, progress.attempt) == (row.at_s, 2)


@pytest.mark.parametrize(
    ("incarnation", "replica_id", "words"),
    [
        ("two", "rg_1:uuid1", "rg_1.0 has restarted since it was accused"),
        ("one", "rg_1:uuid2", "rg_1.0 runs as rg_1:uuid2 now, not as rg_1:uuid1"),
    ],
)
def test_a_group_that_is_another_by_now_is_not_evicted(
    bench: Bench, fleet: FakeFleet, incarnation: str, replica_id: str, words: str
) -> None:
    rank = fleet.add("rg_1", incarnation=incarnation, replica_id=replica_id)
    bench.registry.register(rank.registration())
    bench.judged()
    bench.keeper.tick()
    wait_until(lambda: not bench.evictors.active(), 10, "the eviction ends")
    assert [progress.failed for progress in bench.evictors.log.progress()] == [words]
    assert rank.alive


def test_holds_transitions_and_stages_are_counted_once(bench: Bench) -> None:
    hold = Hold(IncidentId("inc-1"), Guard.COOL_DOWN, "too soon")
    changed = incident()
    bench.judge.say = lambda s: TickResult(s.now_s, changed=(changed,), decisions=(hold,))
    bench.keeper.tick()
    bench.judge.say = lambda s: TickResult(s.now_s, changed=(changed,))
    bench.keeper.tick()
    kind = "not_entered"
    assert bench.value("lightkeeper_holds_total", guard="cool_down") == 1
    assert bench.value("lightkeeper_incident_transitions_total", kind=kind, to="firing") == 1
    assert bench.value("lightkeeper_incident_stage_seconds_sum", stage="detect") == 2
    assert bench.value("lightkeeper_incident_stage_seconds_count", stage="detect") == 1


# -- any part may crash ---------------------------------------------------------------------------


def test_a_crash_of_the_judge_keeps_incidents_and_decides_nothing(bench: Bench) -> None:
    bench.judge.say = lambda s: TickResult(s.now_s, incidents=(incident(),), changed=(incident(),))
    bench.keeper.tick()

    def crash(_: Snapshot) -> TickResult:
        raise RuntimeError("a bug")

    bench.judge.say = crash
    bench.keeper.tick()
    assert bench.view.snapshot.tick == 2
    assert [shown.state for shown in bench.view.incidents] == [State.FIRING]
    assert bench.view.troubles == ("decide failed: RuntimeError: a bug",)
    assert bench.value("lightkeeper_part_failures_total", part="decide") == 1
    bench.judge.say = lambda s: TickResult(s.now_s)
    bench.keeper.tick()
    assert bench.view.troubles == ()


def test_a_crash_of_the_reckoning_leaves_the_page_as_fresh_as_ever(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.keeper.tick()
    monkeypatch.setattr(bench.keeper, "_rank_seconds", None)
    bench.keeper.tick()
    assert bench.view.snapshot.tick == 2
    assert [trouble.partition(":")[0] for trouble in bench.view.troubles] == ["goodput failed"]


@pytest.mark.parametrize(("part", "broken"), [("sweep", "poller"), ("view", "quarantine")])
def test_a_crash_of_any_part_is_counted_and_the_loop_goes_on(
    bench: Bench, part: str, broken: str
) -> None:
    keeper, good = bench.keeper, bench.components
    for components, judged in (
        (replace(good, **{broken: Broken()}), part != "sweep"),
        (good, True),
    ):
        keeper._components = keeper._observing._components = components
        bench.judge.seen.clear()
        keeper.tick()
        assert bool(bench.judge.seen) is judged  # without a sweep there is nothing to judge
    keeper.tick()
    assert bench.value("lightkeeper_part_failures_total", part=part) == 1
    assert bench.view.troubles == ()


def test_who_waits_for_an_idle_tick_waits_while_it_decides_also_when_that_crashes(
    bench: Bench,
) -> None:
    idle: list[bool] = []

    def look_and_crash(snapshot: Snapshot) -> TickResult:
        idle.append(bench.keeper.idle.is_set())
        raise ValueError("a bug")

    assert bench.keeper.idle.is_set()
    bench.judge.say = look_and_crash
    bench.keeper.tick()
    assert idle == [False]
    assert bench.keeper.idle.is_set()


def test_a_full_disk_is_said_and_stops_nothing(bench: Bench) -> None:
    full_disk(bench.store, full=True)
    changed = [replace(incident(f"inc-{n}"), signature="x" * 5000) for n in range(20)]
    bench.judge.say = lambda s: TickResult(s.now_s, changed=tuple(changed))
    bench.keeper.tick()
    assert len(bench.view.incidents) == 20
    assert "the store does not take writes" in bench.view.troubles[0]
    assert bench.store.errors > 0


def test_a_person_is_told_that_the_store_takes_no_writes_and_nobody_is_evicted(
    bench: Bench, fleet: FakeFleet
) -> None:
    rank = fleet.add("rg_1")
    bench.registry.register(rank.registration())
    bench.keeper.tick()
    full_disk(bench.store, full=True)
    for n in range(99):
        bench.store.save_target(RankName(f"rg_9.{n}"), {"url": "x" * 5000})
    why = rf"rg_1 is not evicted: the store {bench.store.place} takes no writes: .* is full"
    with pytest.raises(NotPossible, match=why):
        bench.keeper.evict_by_hand(GroupName("rg_1"), "sick")
    full_disk(bench.store, full=False)
    bench.keeper.tick()
    bench.keeper.tick()
    assert rank.alive
    assert bench.evictors.active() == ()


def test_an_away_lighthouse_is_data(bench: Bench, lighthouse: FakeLighthouse) -> None:
    lighthouse.close()
    bench.keeper.tick()
    assert isinstance(bench.judge.seen[0].lighthouse, LighthouseAway)


# -- by hand, and the schedule --------------------------------------------------------------------


@pytest.mark.parametrize("ticks", [0, 1])
def test_a_person_cannot_evict_what_is_not_there(bench: Bench, ticks: int) -> None:
    for _ in range(ticks):
        bench.keeper.tick()
    with pytest.raises(NotPossible, match="no such group: rg_9"):
        bench.keeper.evict_by_hand(GroupName("rg_9"), "because")


def test_ticks_come_on_schedule_and_stop_at_once(bench: Bench) -> None:
    bench.with_components(config=KeeperConfig(tick_s=0.1))
    stop = threading.Event()
    thread = threading.Thread(target=bench.keeper.run, args=(stop,))
    thread.start()
    wait_until(lambda: len(bench.judge.seen) >= 5, 10, "five ticks")
    stop.set()
    thread.join(2)
    assert not thread.is_alive()
    times = [snapshot.now_s for snapshot in bench.judge.seen]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert min(gaps) > 0.02
    assert times[-1] - times[0] >= 0.1 * (len(times) - 2)


def test_the_judge_may_ask_for_ticks_between_those_of_the_schedule(bench: Bench) -> None:
    bench.with_components(config=KeeperConfig(tick_s=1.0))
    stop = threading.Event()

    def eager(snapshot: Snapshot) -> TickResult:
        if snapshot.tick == 4:
            stop.set()
        return TickResult(snapshot.now_s, look_again_s=snapshot.now_s + 0.1)

    bench.judge.say = eager
    bench.keeper.run(stop)
    first, *between, fourth = (snapshot.now_s for snapshot in bench.judge.seen)
    assert max(between) - first < 0.9
    assert fourth - first > 0.9  # no more than two: on schedule again


def test_a_late_tick_says_how_late_it_is(bench: Bench) -> None:
    bench.with_components(config=KeeperConfig(tick_s=0.1))
    stop = threading.Event()
    gate = threading.Event()

    def slow(snapshot: Snapshot) -> TickResult:
        if snapshot.tick == 2:
            gate.wait(0.6)
        if snapshot.tick == 4:
            stop.set()
        return TickResult(snapshot.now_s)

    bench.judge.say = slow
    bench.keeper.run(stop)
    lateness = [snapshot.lateness_s for snapshot in bench.judge.seen]
    assert lateness[2] > 0.3
    assert lateness[3] < lateness[2]


def test_every_tick_that_was_judged_is_journalled_and_a_crash_of_the_judge_with_it(
    bench: Bench, fleet: FakeFleet, tmp_path: Path
) -> None:
    config = KeeperConfig(tick_s=0.5)
    journal = Journal(JournalDir(tmp_path / "j", Limits()), Head(config, "1"), dict)
    bench.with_journal(journal)
    bench.registry.register(fleet.add().registration())

    def crash(snapshot: Snapshot) -> TickResult:
        raise ZeroDivisionError("a bug")

    bench.keeper.tick()
    bench.judge.say = crash
    bench.keeper.tick()
    journal.close()
    ticks = [
        event
        for event in journal_events(find_journals([tmp_path / "j"])[0])
        if isinstance(event, JournalTick)
    ]
    assert [tick.snapshot for tick in ticks] == bench.judge.seen
    assert [tick.outcome.crash for tick in ticks] == [None, "ZeroDivisionError: a bug"]


def test_a_full_file_of_the_journal_is_followed_by_another(
    bench: Bench, fleet: FakeFleet, tmp_path: Path
) -> None:
    journal_dir = JournalDir(tmp_path / "j", Limits(file_s=0.0))
    journal = Journal(journal_dir, Head(KeeperConfig(), "1"), dict)
    bench.with_journal(journal)
    bench.registry.register(fleet.add().registration())
    for number in (1, 2, 3):
        bench.keeper.tick()
        wait_until(lambda number=number: journal.stats.ticks == number, 5, "the tick is written")
    journal.close()
    heads = [file.head for file in find_journals([tmp_path / "j"])[0]]
    assert [head.after_tick for head in heads] == [None, 1, 2]


def test_a_journal_that_cannot_be_written_is_a_trouble_on_the_page(
    bench: Bench, fleet: FakeFleet, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    journal_dir = JournalDir(tmp_path / "file" / "j", Limits())
    journal = Journal(journal_dir, Head(KeeperConfig(), "1"), dict)
    bench.with_journal(journal)
    bench.registry.register(fleet.add().registration())
    bench.metrics.register(Filled(page_metrics.JOURNAL, lambda: journal.stats))
    wait_until(lambda: journal.stats.problem == "Not a directory", 5, "it cannot be made")
    bench.keeper.tick()
    bench.keeper.tick()
    (trouble,) = bench.view.troubles
    assert trouble.startswith("the journal is not written (Not a directory): ")
    assert bench.value("lightkeeper_journal_failing") == 1
    assert (bench.value("lightkeeper_journal_lost_ticks_total") or 0) >= 1
    journal.close()
