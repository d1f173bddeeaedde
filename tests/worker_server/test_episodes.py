"""What several Managers do for the same thing, as one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightkeeper.worker_server.rank.torchft import Episodes

pytestmark = pytest.mark.integration  # torch

A, B, C = 1, 2, 3


def told(*calls):
    """What each call adds, and whether it belongs to the one before."""
    episodes = Episodes()
    return [episodes.take(*call) for call in calls]


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        pytest.param([(A, 0, 2), (B, 0, 2)], [(2, False), (0, True)], id="at the same time"),
        pytest.param([(A, 0, 2), (B, 1, 3)], [(2, False), (1, True)], id="overlapping"),
        pytest.param([(A, 2, 3), (B, 0, 4)], [(1, False), (3, True)], id="one in the other"),
        pytest.param([(A, 0, 2), (B, 2, 5)], [(2, False), (3, True)], id="one by one"),
        pytest.param([(A, 0, 2), (B, 3, 5)], [(2, False), (2, True)], id="a step apart"),
        pytest.param([(A, 0, 2), (A, 1, 3)], [(2, False), (2, False)], id="one alone"),
        pytest.param([(A, 0, 2), (A, 2, 3)], [(2, False), (1, False)], id="one tries again"),
        pytest.param([(A, 0, 2), (B, 9, 10)], [(2, False), (1, False)], id="long after"),
        pytest.param([(A, 5, 4), (B, 4, 6)], [(0, False), (2, True)], id="a clock goes back"),
        pytest.param(
            [(A, 0, 1), (B, 0, 3), (C, 2, 4), (A, 3, 5), (C, 5, 6)],
            [(1, False), (2, True), (1, True), (2, False), (1, True)],
            id="three, and the next",
        ),
    ],
)
def test_calls_in_one_go_are_one(calls, expected):
    assert told(*calls) == expected


TIMES = st.floats(0, 100, allow_nan=False)


@given(st.lists(st.tuples(st.sampled_from([A, B, C]), TIMES, TIMES)))
def test_no_call_adds_more_than_it_took_nor_less_than_nothing(calls):
    episodes = Episodes()
    for n, (owner, begin_s, end_s) in enumerate(calls):
        added_s, again = episodes.take(owner, begin_s, end_s)
        assert -1e-9 <= added_s <= max(0.0, end_s - begin_s) + 1e-9
        assert n or not again
