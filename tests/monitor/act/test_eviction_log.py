"""What is known of evictions here, told by several threads."""

from __future__ import annotations

from lightkeeper.monitor.act.evictor import EvictionLog
from lightkeeper.monitor.decide.escalation import handle
from lightkeeper.monitor.model.escalation import (
    Answered,
    Cleared,
    EvictionDeps,
    HandedOver,
    LighthouseSeen,
    Probed,
    Revoked,
)
from lightkeeper.monitor.model.eviction import Eviction, EvictionState, Rung
from lightkeeper.monitor.model.names import ReplicaId
from lightkeeper.monitor.model.observation import LighthouseView, Member
from tests.changed import replace
from tests.monitor.decide.escalations import EVICT, RANKS, VIEW, accused, look_at
from tests.monitor.decided import decided
from tests.monitor.doubles import HandClock

LEFT = LighthouseSeen(LighthouseView(4, (Member(ReplicaId("rg_0:x"), 5),), {}, ""))


def log(*recorded: Eviction) -> tuple[EvictionLog, list[Eviction]]:
    records = list(recorded)
    return EvictionLog(HandClock(), EvictionDeps(), records.append, handle), records


def begun(book: EvictionLog, **changes) -> Eviction:
    eviction = replace(decided(EVICT, accused(), HandClock().now_s()), **changes)
    book.add(eviction)
    book.hand_over(eviction.key, HandedOver(eviction.asked_s, accused()))
    return eviction


def asked(book: EvictionLog, eviction: Eviction) -> None:
    """Up to where somebody is asked."""
    book.post(eviction.key, Cleared(may=True))
    book.post(eviction.key, Answered(Rung.EVIDENCE, "", ""))


def test_a_group_that_two_looks_see_leave_has_left_once_and_at_the_first() -> None:
    clock = HandClock()
    records: list[Eviction] = []
    book = EvictionLog(clock, EvictionDeps(), records.append, handle)
    eviction = begun(book)
    asked(book, eviction)
    book.post(eviction.key, LEFT)
    left_s = clock.now_s()
    clock.advance(0.2)
    book.post(eviction.key, LEFT)
    book.post(eviction.key, Probed(look_at(dict.fromkeys(RANKS, "gone"), VIEW)))
    (progress,) = book.progress()
    assert (progress.left_quorum_s, progress.state) == (left_s, EvictionState.CONFIRMED)
    assert (progress.confirmed or "").startswith(
        "it left the quorum; every known process of it is gone"
    )
    assert records[-1] == progress


def test_a_group_whose_eviction_is_under_way_is_handed_over_once_until_that_has_ended() -> None:
    book, _ = log()
    first = begun(book)
    second = begun(book, incident_id="inc-2")
    (handed_over,) = (eviction for eviction in book.all() if eviction.key == second.key)
    assert (handed_over.state, handed_over.outcome[:18]) == ("abandoned", "its group is being")
    asked(book, first)
    book.post(first.key, Probed(look_at(dict.fromkeys(RANKS, "gone"), VIEW)))
    third = begun(book, incident_id="inc-3")
    (handed_over,) = (eviction for eviction in book.all() if eviction.key == third.key)
    assert handed_over.under_way


def test_an_eviction_that_another_monitor_left_open_is_not_under_way_here() -> None:
    now_s = HandClock().now_s()
    left_open = Eviction("a", "g", None, now_s - 10, ())
    done = Eviction("b", "g", None, now_s - 20, (), gone_s=now_s, state=EvictionState.CONFIRMED)
    old = replace(done, incident_id="c", asked_s=now_s - 7200)
    book, records = log()
    by_hand = replace(left_open, incident_id="d", author="ann")
    taken = book.take_over([old, done, left_open, by_hand])
    assert [eviction.incident_id for eviction in taken] == ["b", "a", "d"]
    assert [eviction.incident_id for eviction in book.progress()] == ["b"]
    assert [(row.incident_id, row.open) for row in records] == [("a", True), ("d", True)]
    for each in (left_open, by_hand):
        book.post(each.key, Revoked("called off"))
    assert [each.incident_id for each in book.progress()] == ["b", "d"]  # by hand: how it ended


def test_of_two_without_an_end_about_one_incident_the_later_goes_on() -> None:
    now_s = HandClock().now_s()
    older = decided(EVICT, accused(), now_s - 50)
    later = decided(EVICT, accused(), now_s)
    book, records = log()
    book.take_over([later, older])
    assert {eviction.at_s: (eviction.state, eviction.outcome) for eviction in book.all()} == {
        older.at_s: (EvictionState.ABANDONED, "decided again"),
        later.at_s: (EvictionState.INTERRUPTED, ""),
    }
    assert records


def test_what_changed_is_told_once() -> None:
    book, _ = log()
    eviction = begun(book)
    book.post(eviction.key, HandedOver(eviction.asked_s))
    states = [(before and before.state, after.state) for before, after in book.take_changes()]
    assert states == [(None, "decided"), ("decided", "preparing")]
    assert book.take_changes() == ()


def test_a_standby_shows_the_evictions_of_the_active_monitor_and_moves_none() -> None:
    book, records = log()
    eviction = begun(book)
    evictions = book.all()
    book.follow(evictions)
    assert book.progress() == evictions
    assert book.post(eviction.key, LEFT) == ()
    assert (book.all(), book.get(eviction.key)) == (evictions, None)
    assert len(records) == 2
