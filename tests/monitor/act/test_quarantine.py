"""The list over weeks, by hand and by lightkeeper, and over a restart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightkeeper.monitor.act.quarantine import NAME_EVENTS, Quarantine
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import (
    KEEPER,
    Change,
    QuarantineEntry,
    QuarantineEvent,
    Scope,
)
from lightkeeper.monitor.model.names import GroupName, Host, IncidentId
from tests.monitor.doubles import HandClock, Memory

HOUR, DAY = 3600.0, 86_400.0
NODE = Host("node1")


class Scene:
    def __init__(self) -> None:
        self.clock, self.memory = HandClock(), Memory()
        self.list = Quarantine(self.clock, self.memory)
        self.incidents = 0

    def accuse(self, host: str = NODE, kind: str = "not_entered") -> IncidentId:
        self.incidents += 1
        incident = IncidentId(f"inc-{self.incidents}")
        accusation = QuarantineEvent(
            self.clock.now_s(), Change.ACCUSED, host, "hung", incident_id=incident, kind=kind,
            findings="phase: data for 9 s", signature=f"{kind}:{host}",
        )  # fmt: skip
        self.list.take([accusation])
        return incident

    def evict(self, host: str = NODE) -> QuarantineEntry:
        """As the evictor does: the length is that of a first quarantine."""
        incident, now_s = self.accuse(host), self.clock.now_s()
        return self.list.add(QuarantineEntry(host, "hung", KEEPER, now_s, now_s + DAY, incident))

    def by_hand(
        self, hours: float | None, name: str = NODE, scope: Scope = Scope.HOST
    ) -> QuarantineEntry:
        self.clock.advance(1)
        now_s = self.clock.now_s()
        until_s = None if hours is None else now_s + hours * HOUR
        return self.list.add(QuarantineEntry(name, "ECC", "ann", now_s, until_s, None, scope))

    def told(self) -> list[str]:
        return [str(event.change) for event in reversed(self.list.history(NODE))]

    def lasts_h(self) -> float | None:
        entry = self.list.get(NODE)
        assert entry is not None
        return None if entry.until_s is None else (entry.until_s - self.clock.now_s()) / HOUR

    def restarted(self) -> Quarantine:
        again = Quarantine(self.clock, self.memory)
        events = sorted(self.memory.events.values(), key=lambda event: event.at_s)
        again.take_over(tuple(self.memory.quarantine.values()), events)
        return again


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_host_goes_out_for_a_day_then_three_then_until_a_person_releases_it(scene: Scene) -> None:
    scene.evict()
    assert scene.lasts_h() == 24
    scene.clock.advance(9 * DAY)
    assert scene.list.active() == ()
    assert scene.evict().note == "2 quarantines in 28 days"
    assert scene.lasts_h() == 72
    scene.clock.advance(9 * DAY)
    scene.evict()
    assert scene.lasts_h() is None
    assert scene.list.records()[NODE].lemon == "3 quarantines in 28 days"
    scene.clock.advance(300 * DAY)
    assert scene.list.admission(NODE).admit is False
    said = scene.list.release(NODE, author="ann")
    assert said is not None
    assert scene.list.admission(NODE).admit is True
    scene.evict()
    assert scene.lasts_h() == 24


def test_a_release_is_told_where_there_was_something_to_release(scene: Scene) -> None:
    assert scene.list.release(NODE) is None
    scene.by_hand(None)
    assert scene.list.release(NODE, author="ann") == "node1 may come back"


def test_a_host_that_fails_soon_after_its_release_is_told_so(scene: Scene) -> None:
    scene.evict()
    scene.list.release(NODE, author="ann", reason="DIMM changed")
    scene.clock.advance(3 * HOUR)
    entry = scene.evict()
    assert entry.note == "again 3 h after ann let it in; 2 quarantines in 28 days"
    assert scene.lasts_h() == 72
    assert scene.list.admission(NODE).reason == (
        "node1 is quarantined by lightkeeper: hung (again 3 h after ann let it in; 2 quarantines "
        "in 28 days)"
    )


def test_every_change_is_an_event(scene: Scene) -> None:
    scene.by_hand(2)
    scene.by_hand(5)
    scene.by_hand(1)
    scene.list.release(NODE, author="ann", reason="mended")
    scene.by_hand(1)
    scene.clock.advance(DAY)
    assert scene.told() == ["added", "extended", "shortened", "released", "added", "expired"]
    released = next(e for e in scene.list.history(NODE) if e.change is Change.RELEASED)
    assert (released.author, released.reason) == ("ann", "mended")


@pytest.mark.parametrize(
    ("hours", "lasts_h", "events"),
    [(None, None, ["added", "accused"]), (2, 24, ["added", "accused", "extended"])],
    ids=["for ever", "shorter"],
)
def test_lightkeeper_never_shortens_what_a_person_said_and_leaves_it_theirs(
    hours, lasts_h, events, scene: Scene
) -> None:
    scene.by_hand(hours)
    entry = scene.evict()
    assert (entry.author, entry.reason, scene.lasts_h()) == ("ann", "ECC", lasts_h)
    assert scene.told() == events


def test_an_eviction_on_a_host_that_is_out_already_prolongs_its_first_quarantine(
    scene: Scene,
) -> None:
    first = scene.evict()
    scene.clock.advance(2 * HOUR)
    entry = scene.evict()
    assert (entry.since_s, entry.incident_id, scene.lasts_h()) == (first.since_s, "inc-2", 24)
    assert scene.list.records()[NODE].counted_quarantines == 1


def test_the_entry_carries_the_evidence_of_its_incident(scene: Scene) -> None:
    entry = scene.evict()
    (line,) = [e for e in scene.list.history(NODE) if e.change is Change.ADDED]
    said = ("inc-1", "not_entered", "phase: data for 9 s")
    assert (entry.incident_id, entry.kind, entry.findings) == said
    assert (line.kind, line.until_s) == ("not_entered", entry.until_s)


def test_an_accusation_of_a_host_counts_once(scene: Scene) -> None:
    scene.accuse()
    (accusation,) = scene.list.history(NODE)
    scene.clock.advance(60)
    scene.list.take([accusation, accusation])
    scene.restarted().take([accusation])
    assert len(scene.list.history(NODE)) == len(scene.memory.events) == 1


def test_who_takes_over_has_what_the_store_has_and_nothing_of_its_own(scene: Scene) -> None:
    scene.evict()
    other = Quarantine(scene.clock, Memory())
    other.add(QuarantineEntry("node9", "ECC", "ann", scene.clock.now_s(), None, None))
    other.take_over(tuple(scene.memory.quarantine.values()), tuple(scene.memory.events.values()))
    assert other.active() == scene.list.active()
    assert other.records() == scene.list.records()


def test_events_are_kept_for_28_days_and_a_week_and_longer_while_it_is_out(scene: Scene) -> None:
    scene.accuse()
    scene.clock.advance(34 * DAY)
    scene.list.records()
    assert len(scene.memory.events) == 1
    scene.clock.advance(2 * DAY)
    scene.list.records()
    assert scene.memory.events == {}
    scene.by_hand(None)
    scene.clock.advance(400 * DAY)
    scene.list.records()
    assert scene.told() == ["added"]


def test_the_events_of_one_host_are_bounded(scene: Scene) -> None:
    for _ in range(NAME_EVENTS + 20):
        scene.clock.advance(1)
        scene.accuse()
    assert len(scene.list.history(NODE)) == len(scene.memory.events) == NAME_EVENTS


def test_a_group_is_held_out_wherever_it_starts(scene: Scene) -> None:
    scene.by_hand(2, "rg_1", Scope.GROUP)
    assert [entry.name for entry in scene.list.groups()] == ["rg_1"]
    assert scene.list.active() == ()
    assert scene.list.admission(NODE, GroupName("rg_2")).admit is True
    assert scene.list.admission(NODE).admit is True
    refused = scene.list.admission(NODE, GroupName("rg_1"))
    assert refused.reason == "group rg_1 is quarantined by ann: ECC"
    assert refused.until_s == scene.clock.now_s() + 2 * HOUR
    assert scene.list.release("rg_1") is None
    assert scene.list.release("rg_1", Scope.GROUP) == "rg_1 may come back"


def test_a_group_and_a_host_of_one_name_are_two_things(scene: Scene) -> None:
    scene.by_hand(1, "a", Scope.GROUP)
    scene.by_hand(9, "a")
    refused = scene.list.admission(Host("a"), GroupName("a"))
    assert refused.until_s == scene.clock.now_s() + 9 * HOUR
    assert refused.reason.count("quarantined by ann") == 2
    scene.by_hand(None, "a", Scope.GROUP)
    assert scene.list.admission(Host("a"), GroupName("a")).until_s is None
    assert len(scene.restarted().admission(Host("a"), GroupName("a")).entries) == 2


def test_thresholds_are_options() -> None:
    scene = Scene()
    config = KeeperConfig(lemon_quarantines=2, quarantine_again_factor=1)
    scene.list = Quarantine(scene.clock, scene.memory, config)
    scene.evict()
    scene.clock.advance(2 * DAY)
    scene.evict()
    assert scene.lasts_h() is None


# -- any sequence ---------------------------------------------------------------------------------

HOSTS = st.sampled_from(["node1", "node2"])
STEPS = st.one_of(
    st.tuples(st.just("evict"), HOSTS),
    st.tuples(st.just("by_hand"), HOSTS, st.sampled_from([1, 30, 200, None])),
    st.tuples(st.just("release"), HOSTS),
    st.tuples(st.just("advance"), st.sampled_from([60, HOUR, DAY, 10 * DAY, 40 * DAY])),
)


@given(st.lists(STEPS, max_size=30))
def test_whatever_happens_the_store_knows_it_and_nobody_is_let_in_early(steps) -> None:
    scene = Scene()
    for step, *details in steps:
        before = {entry.name: entry for entry in scene.list.active()}
        match step, details:
            case "evict", [host]:
                entry = scene.evict(host)
                assert not scene.list.admission(Host(host)).admit
                was = before.get(host)
                assert was is None or was.until_s is not None or entry.until_s is None
                assert was is None or was.until_s is None or (entry.until_s or 1e18) >= was.until_s
            case "by_hand", [host, hours]:
                scene.by_hand(hours, host)
                assert not scene.list.admission(Host(host)).admit
            case "release", [host]:
                scene.clock.advance(1)
                assert (scene.list.release(host, author="ann") is None) == (host not in before)
                assert scene.list.admission(Host(host)).admit
            case _, [seconds]:
                scene.clock.advance(seconds)
                now_s = scene.clock.now_s()
                ours = {entry.name for entry in scene.list.active()}
                ends = {name: entry.until_s for name, entry in before.items()}
                assert ours == {name for name, end in ends.items() if end is None or end > now_s}
        again = scene.restarted()
        assert again.active() == scene.list.active()
        assert again.records() == scene.list.records()
        assert all(again.history(host) == scene.list.history(host) for host in ("node1", "node2"))
