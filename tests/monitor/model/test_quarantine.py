"""What 28 days of events say about a host."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import Change, QuarantineEvent, Scope
from lightkeeper.monitor.model.names import IncidentId
from lightkeeper.monitor.model.quarantine import HostRecord, length_s, note_on, records

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


def test_the_first_quarantine_lasts_a_day_the_second_three_a_lemons_until_released() -> None:
    lengths = [
        length_s(of(*[added(day) for day in days]), FIRST_S, CONFIG)
        for days in ((0,), (9, 0), (20, 9, 0))
    ]
    assert lengths == [24 * HOUR, 72 * HOUR, None]


MOVED = "not_entered:rg_1.0:data"
HERE = [accused(day, signature=MOVED) for day in (9, 8, 7, 6, 5)]
BEFORE = (added(20), added(10), added(5))
RECORDS = {
    "each signal is counted": (
        [
            accused(20, wide=True), accused(15, "straggler"), accused(10, "mismatch", wide=True),
            event(20, Change.EVICTED), added(20), expired(19), added(8, author="bob"), released(7),
        ],
        {
            "incidents": {"mismatch": 1, "not_entered": 1, "straggler": 1},
            "wide": 2, "narrow": 1, "evictions": 1, "quarantines": 2, "exclusions": 1,
            "readmissions": 2, "failed_readmissions": 0, "lemon": None, "reset_s": NOW - 7 * DAY,
        },
    ),
    "what is older than 28 days does not count": (
        [added(29), added(14), added(1)], {"counted_quarantines": 2, "lemon": None},
    ),
    "three quarantines": ([added(27), added(14), added(1)], {"lemon": "3 quarantines in 28 days"}),
    "quarantines that a person asked for": (
        [added(day, author="bob") for day in (20, 15, 10, 5)],
        {"exclusions": 4, "counted_quarantines": 0, "lemon": None},
    ),
    "it failed once soon after it was let in": ([expired(10), accused(9.5)], {"lemon": None}),
    "the second time more than a day later": (
        [expired(10), accused(9.5), expired(5), accused(3.9)], {"lemon": None},
    ),
    "it failed twice soon after it was let in": (
        [expired(10), accused(9.5), expired(5), accused(4.5)],
        {"failed_readmissions": 2, "lemon": "failed 2 times soon after it was let in in 28 days"},
    ),
    "four separate faults": ([accused(day) for day in (9, 8, 7, 6)], {"lemon": None}),
    "five, though nobody was evicted": (
        [accused(day) for day in (9, 8, 7, 6, 5)], {"lemon": "5 separate faults in 28 days"},
    ),
    "incidents within an hour are one fault": (
        [accused(5 - minute / 1440) for minute in range(0, 55, 5)],
        {"offences": 1, "incidents": {"not_entered": 11}},
    ),
    **{
        f"{kind} is a fault of the program": (
            [accused(day, kind) for day in range(1, 20)],
            {"incidents": {kind: 19}, "offences": 0, "lemon": None},
        )
        for kind in ("mismatch", "deadlock", "replica_lag", "lighthouse_away")
    },
    "a first death may be the program's": ([accused(9, "dead")], {"offences": 0}),
    "a second death": ([accused(9, "dead"), accused(5, "dead")], {"offences": 1}),
    "a fault that moves with its rank is the program's": (
        [*HERE, accused(4, host="node2", signature=MOVED)], {"offences": 0, "lemon": None},
    ),
    "a fault of another rank elsewhere": (
        [*HERE, accused(4, host="node2", signature="not_entered:rg_9.0:data")],
        {"lemon": "5 separate faults in 28 days"},
    ),
    "one incident that names two hosts clears neither": (
        [accused(3, host=host, incident="i", signature="s") for host in ("node1", "node2")],
        {"offences": 1},
    ),
    "a release by a person resets what counts and keeps what is shown": (
        [*BEFORE, accused(20), accused(10), released(3)],
        {
            "counted_quarantines": 0, "offences": 0, "lemon": None,
            "quarantines": 3, "incidents": {"not_entered": 2},
        },
    ),
    "it fails right after its release: it was not repaired": (
        [*BEFORE, released(3), accused(2.9), added(2.9)],
        {"reset_s": None, "counted_quarantines": 4, "lemon": "4 quarantines in 28 days"},
    ),
    "an earlier release that held still counts": (
        [
            added(20), added(15), released(10), added(5), released(3), accused(2.9), added(2.9),
        ],
        {"reset_s": NOW - 10 * DAY, "counted_quarantines": 2, "lemon": None},
    ),
    "the end of a quarantine resets nothing": (
        [added(20), expired(19), added(10), expired(7)],
        {"reset_s": None, "counted_quarantines": 2},
    ),
    "a fault after the next release is not told of the first": (
        [released(3), released(2.9), accused(2.8)], {"failed_readmissions": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", RECORDS)
def test_the_record_of_a_host(what: str) -> None:
    events, expected = RECORDS[what]
    record = of(*events)
    assert {name: getattr(record, name) for name in expected} == expected


def test_after_a_release_a_quarantine_is_the_first_again() -> None:
    assert length_s(of(*BEFORE, released(3), added(0)), FIRST_S, CONFIG) == 24 * HOUR


# -- words ----------------------------------------------------------------------------------------


def test_the_note_says_how_often_and_how_soon() -> None:
    assert note_on(of(added(0)), NOW, CONFIG) == ""
    assert note_on(of(added(9), added(0)), NOW, CONFIG) == "2 quarantines in 28 days"
    again = of(added(9), released(0.125), added(0))
    assert note_on(again, NOW, CONFIG) == "again 3 h after ann let it in"
    lemon = of(added(9), added(5), expired(0.5), accused(0), added(0))
    assert note_on(lemon, NOW, CONFIG) == (
        "again 12 h after the end of its quarantine let it in; a lemon: 3 quarantines in 28 days; "
        "out until a person releases it"
    )


XID = "node1: GPU 3: Xid 79, fallen off the bus (kernel log)"


def test_one_program_that_failed_on_three_hosts_makes_no_lemon_three_programs_on_one_do() -> None:
    line = "not_entered@train.py:41:load"
    moving = [
        accused(3.0 - n, host=f"node{n}", signature=line, incident=f"inc-{n}") for n in range(3)
    ]
    assert [record.offences for record in records(moving, NOW, CONFIG).values()] == [0, 0, 0]
    staying = [
        accused(3.0 - n, signature=f"not_entered@{n}.py:1:f", incident=f"inc-{n}") for n in range(3)
    ]
    assert records(staying, NOW, CONFIG)["node1"].offences == 3


def test_what_a_machine_testified_stays_with_its_host_whatever_the_program_did_elsewhere() -> None:
    line = "not_entered@train.py:41:load"
    events = [
        accused(2.0, host="node2", signature=line, incident="inc-0"),
        accused(1.0, signature=line, incident="inc-1", testified=XID),
    ]
    record = records(events, NOW, CONFIG)["node1"]
    assert (record.offences, record.testified) == (1, (XID,))
    assert note_on(record, NOW, CONFIG) == f"its machine testified: {XID}"


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
    unlike = list({event.at_s: event for event in events}.values())
    shuffled = list(unlike)
    chance.shuffle(shuffled)
    assert records(shuffled, NOW, CONFIG) == records(unlike, NOW, CONFIG)


@given(HAPPENINGS)
def test_dropping_an_accusation_makes_no_lemon_of_its_own_host(events) -> None:
    """But for the others: an accusation elsewhere may show that a fault moves with its rank."""
    own = [event for event in events if event.name == "node1"]
    fewer = [event for event in own if event.change is not Change.ACCUSED]
    if of(*own).lemon is None and not any(event.change is Change.RELEASED for event in own):
        assert of(*fewer).lemon is None
