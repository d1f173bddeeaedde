"""What 28 days of events say about a host."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.model.config import KeeperConfig
from monitor.model.eviction import Change, QuarantineEvent, Scope
from monitor.model.names import IncidentId
from monitor.model.quarantine import HostRecord, length_s, note_on, ordinal, records, span

CONFIG = KeeperConfig()
HOUR, DAY = 3600.0, 86_400.0
NOW = 1_000 * DAY
FIRST_S = 24 * HOUR


def event(days_ago: float, change: Change, host: str = "node1", **more) -> QuarantineEvent:
    return QuarantineEvent(NOW - days_ago * DAY, change, host, "why", **more)


def accused(days_ago: float, kind: str = "not_entered", host: str = "node1", **more):
    incident = more.pop("incident", f"inc-{host}-{days_ago}")
    return event(
        days_ago, Change.ACCUSED, host, kind=kind, incident_id=IncidentId(incident), **more
    )


def added(days_ago: float, **more) -> QuarantineEvent:
    return event(days_ago, Change.ADDED, **more)


def released(days_ago: float, **more) -> QuarantineEvent:
    return event(days_ago, Change.RELEASED, author="ann", **more)


def expired(days_ago: float) -> QuarantineEvent:
    return event(days_ago, Change.EXPIRED)


def of(*events: QuarantineEvent, host: str = "node1", config: KeeperConfig = CONFIG) -> HostRecord:
    return records(events, NOW, config).get(host, HostRecord(host))


def test_a_host_of_which_nothing_is_known_has_no_record() -> None:
    assert records((), NOW, CONFIG) == {}
    assert HostRecord("node1").clean


def test_each_signal_is_counted() -> None:
    record = of(
        accused(20, wide=True), accused(15, "straggler"), accused(10, "mismatch", wide=True),
        event(20, Change.EVICTED), added(20), expired(19), added(8, author="bob"), released(7),
    )  # fmt: skip
    assert record.incidents == {"mismatch": 1, "not_entered": 1, "straggler": 1}
    assert (record.wide, record.narrow, record.evictions) == (2, 1, 1)
    assert (record.quarantines, record.exclusions, record.readmissions) == (2, 1, 2)
    assert (record.failed_readmissions, record.lemon, record.reset_s) == (0, None, NOW - 7 * DAY)


def test_what_is_older_than_28_days_does_not_count() -> None:
    quarantines = added(29), added(14), added(1)
    assert of(*quarantines).counted_quarantines == 2
    assert of(*quarantines).lemon is None
    assert of(added(27), *quarantines[1:]).lemon == "3 quarantines in 28 days"


def test_the_first_quarantine_lasts_a_day_the_second_three_a_lemons_until_released() -> None:
    lengths = [
        length_s(of(*[added(day) for day in days]), FIRST_S, CONFIG)
        for days in ((0,), (9, 0), (20, 9, 0))
    ]
    assert lengths == [24 * HOUR, 72 * HOUR, None]


def test_quarantines_that_a_person_asked_for_make_no_lemon() -> None:
    record = of(*[added(day, author="bob") for day in (20, 15, 10, 5)])
    assert (record.exclusions, record.counted_quarantines, record.lemon) == (4, 0, None)


def test_a_host_that_fails_twice_soon_after_it_was_let_in_is_a_lemon() -> None:
    once = (expired(10), accused(9.5))
    assert of(*once).lemon is None
    assert of(*once, expired(5), accused(3.9)).lemon is None  # more than a day later
    record = of(*once, expired(5), accused(4.5))
    assert record.failed_readmissions == 2
    assert record.lemon == "failed 2 times soon after it was let in in 28 days"


def test_five_separate_faults_make_a_lemon_though_nobody_was_evicted() -> None:
    assert of(*[accused(day) for day in (9, 8, 7, 6)]).lemon is None
    assert of(*[accused(day) for day in (9, 8, 7, 6, 5)]).lemon == "5 separate faults in 28 days"


def test_incidents_within_an_hour_are_one_fault() -> None:
    minutes = [accused(5 - minute / 1440) for minute in range(0, 55, 5)]
    assert of(*minutes).offences == 1
    assert sum(of(*minutes).incidents.values()) == 11


@pytest.mark.parametrize("kind", ["mismatch", "deadlock", "replica_lag", "lighthouse_away"])
def test_faults_of_the_program_are_shown_and_count_for_nothing(kind: str) -> None:
    record = of(*[accused(day, kind) for day in range(1, 20)])
    assert (record.incidents, record.offences, record.lemon) == ({kind: 19}, 0, None)


def test_a_first_death_may_be_the_programs() -> None:
    assert of(accused(9, "dead")).offences == 0
    assert of(accused(9, "dead"), accused(5, "dead")).offences == 1


def test_a_fault_that_moves_with_its_rank_to_another_host_is_the_programs() -> None:
    here = [accused(day, signature="not_entered:rg_1.0:data") for day in (9, 8, 7, 6, 5)]
    there = accused(4, host="node2", signature="not_entered:rg_1.0:data")
    assert of(*here).lemon is not None
    assert of(*here, there).lemon is None
    assert of(*here, there).offences == 0
    assert of(*here, accused(4, host="node2", signature="not_entered:rg_9.0:data")).lemon


def test_one_incident_that_names_two_hosts_does_not_clear_either() -> None:
    both = [accused(3, host=host, incident="inc-1", signature="s") for host in ("node1", "node2")]
    assert of(*both).offences == 1
    assert of(*both, host="node2").offences == 1


# -- releases -------------------------------------------------------------------------------------


def test_a_release_by_a_person_resets_what_counts_and_keeps_what_is_shown() -> None:
    before = (added(20), added(10), added(5), accused(20), accused(10))
    assert of(*before).lemon
    record = of(*before, released(3))
    assert (record.counted_quarantines, record.offences, record.lemon) == (0, 0, None)
    assert (record.quarantines, record.incidents) == (3, {"not_entered": 2})
    assert length_s(of(*before, released(3), added(0)), FIRST_S, CONFIG) == 24 * HOUR


def test_a_host_that_fails_right_after_its_release_was_not_repaired() -> None:
    before = (added(20), added(10), added(5))
    record = of(*before, released(3), accused(2.9), added(2.9))
    assert record.reset_s is None
    assert record.counted_quarantines == 4
    assert record.lemon == "4 quarantines in 28 days"


def test_an_earlier_release_that_held_still_counts() -> None:
    record = of(added(20), added(15), released(10), added(5), released(3), accused(2.9), added(2.9))
    assert record.reset_s == NOW - 10 * DAY
    assert (record.counted_quarantines, record.lemon) == (2, None)


def test_the_end_of_a_quarantine_resets_nothing() -> None:
    record = of(added(20), expired(19), added(10), expired(7))
    assert (record.reset_s, record.counted_quarantines) == (None, 2)


def test_a_fault_after_the_next_release_is_not_told_of_the_first() -> None:
    record = of(released(3), released(2.9), accused(2.8))
    assert record.failed_readmissions == 1


# -- words ----------------------------------------------------------------------------------------


def test_the_note_says_how_often_and_how_soon() -> None:
    assert note_on(of(added(0)), NOW, CONFIG) == ""
    assert note_on(of(added(9), added(0)), NOW, CONFIG) == "2nd quarantine in 28 days"
    again = of(added(9), released(0.125), added(0))
    assert note_on(again, NOW, CONFIG) == "again 3 h after ann let it in"
    lemon = of(added(9), added(5), expired(0.5), accused(0), added(0))
    assert note_on(lemon, NOW, CONFIG) == (
        "again 12 h after the end of its quarantine let it in; a lemon: 3 quarantines in 28 days; "
        "out until a person releases it"
    )


def test_numbers_read_as_people_say_them() -> None:
    assert [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 112)] == [
        "1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "112th",
    ]  # fmt: skip
    spans = [span(s) for s in (40, 720, 3.5 * HOUR, 50 * HOUR)]
    assert spans == ["40 s", "12 min", "3.5 h", "2.08 days"]


def test_without_a_first_length_every_quarantine_lasts_until_released() -> None:
    assert length_s(of(added(0)), None, CONFIG) is None


# -- properties -----------------------------------------------------------------------------------

HAPPENINGS = st.lists(
    st.builds(
        QuarantineEvent,
        at_s=st.integers(0, 40).map(lambda days: NOW - days * DAY),
        change=st.sampled_from(Change),
        name=st.sampled_from(["node1", "node2"]),
        reason=st.just("why"),
        author=st.sampled_from(["lightkeeper", "ann"]),
        scope=st.sampled_from(Scope),
        incident_id=st.sampled_from(["inc-1", "inc-2", "inc-3"]),
        kind=st.sampled_from(["dead", "straggler", "mismatch"]),
        signature=st.sampled_from(["", "s", "t"]),
    ),
    max_size=25,
)


@given(HAPPENINGS, st.randoms(use_true_random=False))
def test_the_order_in_which_events_are_told_changes_nothing(events, chance) -> None:
    unlike = list({one.at_s: one for one in events}.values())
    shuffled = list(unlike)
    chance.shuffle(shuffled)
    assert records(shuffled, NOW, CONFIG) == records(unlike, NOW, CONFIG)


@given(HAPPENINGS)
def test_dropping_an_accusation_makes_no_lemon_of_its_own_host(events) -> None:
    """But for the others: an accusation elsewhere may show that a fault moves with its rank."""
    one = [event for event in events if event.name == "node1"]
    fewer = [event for event in one if event.change is not Change.ACCUSED]
    if of(*one).lemon is None and not any(e.change is Change.RELEASED for e in one):
        assert of(*fewer).lemon is None
