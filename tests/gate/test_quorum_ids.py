"""The count of quorums over restarts of a Lighthouse."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from lightkeeper.gate.quorum_ids import QuorumIds
from lightkeeper.monitor.model.plain import from_plain, to_plain
from tests.gate.wires import field

REAL = bytes.fromhex(
    "0a2f0801121d0a0672675f313a62120a687474703a2f2f683a311a03683a3220052801"
    "1a0c08eba489d80610c18ed59a01"
)
"""A reply of TorchFT 0.2.0's Lighthouse."""


def reply(number: int, made: float, *members: str, more: bytes = b"", step: int = 5) -> bytes:
    seconds, nanos = int(made), round(made % 1 * 1e9)
    when = field(1, seconds) + (field(2, nanos) if nanos else b"")
    people = b"".join(field(2, field(1, name.encode()) + field(4, step)) for name in members)
    return field(1, field(1, number) + people + field(3, when)) + more


def number_of(passed: bytes) -> int:
    """Of a quorum with a number below 128 that is shorter than 128 bytes."""
    assert (passed[0], passed[2]) == (0x0A, 0x08)
    assert passed[1] < 0x80
    assert passed[3] < 0x80
    return passed[3]


def test_a_real_reply_of_a_lighthouse_that_never_restarted_passes_untouched():
    ids = QuorumIds()
    assert ids.passed(REAL) == REAL
    assert ids.highest == 1


def test_after_a_restart_it_goes_on_counting_where_the_former_one_ended():
    ids = QuorumIds()
    for number, made in ((1, 100.0), (2, 110.0), (3, 120.0)):
        ids.passed(reply(number, made, "a", "b", "c"))
    assert ids.passed(reply(1, 150.0, "a", "b")) == reply(4, 150.0, "a", "b")
    assert ids.passed(reply(2, 160.0, "a", "b", "c")) == reply(5, 160.0, "a", "b", "c")
    assert ids.restarts == 1


def test_every_member_is_told_the_same_number():
    ids = QuorumIds()
    ids.passed(reply(300, 100.0, "a", "b"))
    first = ids.passed(reply(1, 150.0, "a", "b"))
    assert ids.passed(reply(1, 150.0, "a", "b")) == first == reply(301, 150.0, "a", "b")


def test_the_same_number_with_other_members_is_another_quorum():
    ids = QuorumIds()
    ids.passed(reply(1, 100.0, "a", "b", "c"))
    assert ids.passed(reply(1, 150.0, "a", "b")) == reply(2, 150.0, "a", "b")


def test_the_same_number_with_the_same_members_needs_no_new_meeting():
    ids = QuorumIds()
    ids.passed(reply(1, 100.0, "a", "b"))
    assert ids.passed(reply(1, 150.0, "a", "b")) == reply(1, 150.0, "a", "b")
    assert ids.restarts == 0


def test_a_reply_of_the_former_life_that_comes_late_keeps_its_number():
    ids = QuorumIds()
    ids.passed(reply(2, 110.0, "a", "b"))
    ids.passed(reply(1, 150.0, "a"))
    assert ids.passed(reply(2, 110.0, "a", "b")) == reply(2, 110.0, "a", "b")


def test_an_older_copy_is_no_new_beginning():
    ids = QuorumIds()
    ids.passed(reply(6, 110.0, "a", "b"))
    assert ids.passed(reply(5, 109.0, "a", "b")) == reply(5, 109.0, "a", "b")
    assert ids.restarts == 0


def test_what_follows_the_quorum_stays_as_it_is():
    ids = QuorumIds(offset=1000, highest=1000)
    more = field(9, b"unknown")
    assert ids.passed(reply(1, 150.0, "a", more=more)) == reply(1001, 150.0, "a", more=more)


def test_it_goes_on_in_the_gate_that_takes_over():
    ids = QuorumIds()
    ids.passed(reply(7, 100.0, "a", "b"))
    ids.passed(reply(1, 150.0, "a", "b"))
    again = from_plain(QuorumIds, json.loads(json.dumps(to_plain(ids))))
    assert again == ids
    assert again.passed(reply(2, 160.0, "a")) == reply(9, 160.0, "a")


def test_a_gate_that_knows_no_number_begins_above_all_whichever_lighthouse_it_meets():
    for number in (1, 7):
        ids = QuorumIds(floor=40)
        assert number_of(ids.passed(reply(number, 150.0, "a", "b"))) == 41
        assert number_of(ids.passed(reply(number + 1, 160.0, "a"))) == 42
        assert ids.restarts == 0


def test_a_job_that_has_made_no_step_has_the_lighthouses_numbers():
    ids = QuorumIds(floor=40)
    assert ids.passed(reply(1, 150.0, "a", "b", step=0)) == reply(1, 150.0, "a", "b", step=0)
    assert ids.passed(reply(2, 160.0, "a")) == reply(2, 160.0, "a")
    assert ids.highest == 2


def test_a_number_above_its_own_needs_no_other():
    ids = QuorumIds(floor=40)
    assert ids.passed(reply(60, 150.0, "a")) == reply(60, 150.0, "a")


def test_a_gate_that_knew_no_number_meets_a_restart_later():
    ids = QuorumIds(floor=40)
    assert number_of(ids.passed(reply(7, 150.0, "a"))) == 41
    assert number_of(ids.passed(reply(1, 160.0, "a"))) == 42
    assert ids.restarts == 1


@given(st.binary(max_size=200))
def test_what_cannot_be_understood_passes_untouched(data: bytes):
    ids = QuorumIds()
    assert ids.passed(data) == data


EVENTS = st.lists(
    st.tuples(st.booleans(), st.integers(0, 3), st.booleans()), min_size=1, max_size=30
)


@given(EVENTS)
def test_no_number_is_told_for_two_different_quorums(events: list[tuple[bool, int, bool]]):
    """A Lighthouse and a gate that restart at any time, members that come and go."""
    ids, number, made, last = QuorumIds(), 0, 100.0, None
    members_by_id: dict[int, frozenset[str]] = {}
    for restarts, more, gate_restarts in events:
        if gate_restarts:
            ids = QuorumIds(floor=round(made * 1000))
        members = frozenset(f"rg_{index}" for index in range(more + 1))
        number, last = (0, None) if restarts else (number, last)
        number += members != last
        made, last = made + 1.0, members
        ids.passed(reply(number, made, *sorted(members)))
        assert members_by_id.setdefault(number + ids.offset, members) == members
