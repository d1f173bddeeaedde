"""The steps ring: every attempt is seen once, with its seconds, or is counted as lost."""

from __future__ import annotations

import itertools
import time

import pytest

from lightkeeper.worker_server.rank.page import layout
from tests.worker_server.pages import NOW


def attempt(page, number, *, committed=True):
    begin = time.monotonic_ns()
    page.change_phase(page.phase_id("forward"))
    page.change_phase(layout.PHASE_OTHER)
    page.end_attempt(number, number // 2, begin, time.monotonic_ns(), committed)


def numbers(rows):
    return [row.attempt for row in rows]


def test_an_attempt_is_read_as_it_was_written(page, reader):
    attempt(page, 1)
    attempt(page, 2, committed=False)
    (first, two), dropped = reader.steps(0, time.monotonic_ns())
    assert dropped == 0
    assert [(r.attempt, r.step, r.committed) for r in (first, two)] == [(1, 0, True), (2, 1, False)]
    assert set(first.seconds) == {"init", "forward", "other"}
    assert set(two.seconds) == {"forward", "other"}
    assert 0 < two.duration_s < first.end_age_s < 10


def test_seconds_are_what_lies_between_two_ends_to_the_nanosecond(page, reader):
    for number in range(1, 101):
        attempt(page, number)
    rows, _ = reader.steps(0, NOW)
    for before, row in itertools.pairwise(rows):
        between_s = before.end_age_s - row.end_age_s
        assert sum(row.seconds.values()) == pytest.approx(between_s, abs=1e-8)


def test_only_what_is_newer_is_given(page, reader):
    for number in range(1, 11):
        attempt(page, number)
    assert numbers(reader.steps(7, NOW)[0]) == [8, 9, 10]
    assert reader.steps(10, NOW) == ((), 0)
    assert reader.steps(99, NOW) == ((), 0)
    assert numbers(reader.steps(-5, NOW)[0]) == list(range(1, 11))


@pytest.mark.parametrize("extra", [-1, 0, 1, 500])
def test_what_the_ring_overwrote_is_counted(page, reader, extra):
    total = layout.STEPS_SLOTS + extra
    for number in range(1, total + 1):
        attempt(page, number)
    rows, dropped = reader.steps(0, NOW)
    assert len(rows) + dropped == total
    assert dropped == (extra + 1 if extra > 0 else 0)  # one is only the base of the next
    assert numbers(rows) == list(range(dropped + 1, total + 1))


def test_a_poll_a_second_misses_nothing_at_a_thousand_steps_a_second(page, reader):
    seen, spent, last = [], 0.0, 0
    for poll in range(10):
        late = 1 + poll % 4  # up to four polls come as one: a sidecar may be late too
        for number in range(last + 1, last + 1000 * late + 1):
            attempt(page, number)
        rows, dropped = reader.steps(last, NOW)
        assert dropped == 0
        seen += numbers(rows)
        spent += sum(sum(row.seconds.values()) for row in rows)
        last = seen[-1]
    assert seen == list(range(1, last + 1))
    state = reader.step_state(NOW)
    running = (page._words[layout.STEPS_WORD + last % layout.STEPS_SLOTS * 24 + 3]) * 1e-9
    told_s = sum(state.seconds.values())
    began = NOW * 1e-9 - state.phase_age_s
    assert spent == pytest.approx(told_s + running - began, abs=1e-4)


def test_an_attempt_that_is_being_written_is_lost_with_its_successor(page, reader):
    for number in range(1, 6):
        attempt(page, number)
    page._words[layout.STEPS_WORD + 3 * layout.STEPS_SLOT_WORDS] = 3 + layout.STEPS_SLOTS
    rows, dropped = reader.steps(0, NOW)
    assert (numbers(rows), dropped) == ([1, 2, 5], 2)


def test_a_writer_that_dies_before_the_count_leaves_the_former_attempts(page, reader):
    for number in (1, 2):
        attempt(page, number)
    layout.STEPS_HEAD.pack_into(
        page._buffer, (layout.STEPS_WORD + 3 * layout.STEPS_SLOT_WORDS + 1) * 8, 3, 1, 2, 1
    )
    assert numbers(reader.steps(0, NOW)[0]) == [1, 2]
