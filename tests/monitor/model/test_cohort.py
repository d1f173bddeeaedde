"""One rank among its peers: ratios, robust scores, and who was late."""

from statistics import median

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightkeeper.monitor.model import cohort

NAN = float("nan")
spans = st.floats(0.001, 1000.0)


@settings(deadline=None)
@given(st.lists(spans, min_size=2, max_size=9))
def test_the_reference_of_a_member_is_the_median_of_the_others(values) -> None:
    references = cohort.usual(np.array(values))
    for place in range(len(values)):
        assert references[place] == median(values[:place] + values[place + 1 :])


@settings(deadline=None)
@given(st.lists(st.one_of(spans, st.just(NAN)), min_size=2, max_size=9))
def test_members_without_a_value_are_as_if_they_were_not_there(values) -> None:
    references = cohort.usual(np.array([values]))[0]
    there = [value for value in values if value == value]
    for place, value in enumerate(values):
        others = list(there)
        if value == value:
            others.remove(value)
        if value != value or not others:
            assert np.isnan(references[place])
        else:
            assert references[place] == median(others)


@settings(deadline=None)
@given(st.lists(spans, min_size=1, max_size=9))
def test_the_score_is_that_of_the_formula(values) -> None:
    middle = median(values)
    spread = 1.4826 * max(median([abs(value - middle) for value in values]), 0.01 * middle)
    expected = [(value - middle) / spread for value in values]
    assert cohort.z_scores(np.array(values)) == pytest.approx(expected)


def test_peers_that_all_take_nothing_have_no_score() -> None:
    assert cohort.z_scores(np.zeros(4)).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("value", "members", "score", "slow"),
    [
        (1.5, 8, 9.0, True),
        (1.5, 8, 4.0, False),
        (1.5, 3, 0.0, True),
        (1.5, 1, 9.0, False),
        (1.05, 8, 9.0, False),
        (NAN, 8, 9.0, False),
    ],
    ids=["slow", "no score", "few need no score", "alone", "too little", "no value"],
)
def test_slow_needs_ratio_cost_and_score(value, members, score, slow) -> None:
    is_slower = cohort.slower(
        value, 1.0, step=2.0, score=score, members=members, ratio=1.1, share=0.05, least_score=5.0
    )
    assert bool(is_slower) is slow


def test_what_costs_a_small_share_of_the_step_is_not_slow() -> None:
    is_slower = cohort.slower(
        2.0, 1.0, step=50.0, score=99.0, members=8, ratio=1.1, share=0.05, least_score=5.0
    )
    assert not is_slower


@pytest.mark.parametrize(
    ("inside", "share"),
    [
        ([0.1, 2.0, 2.1, 2.1], 1.0),  # the first one came last, the others waited for it
        ([2.1, 2.1, 2.1, 2.1], 0.0),  # all came together, the transfer was slow
        ([1.1, 2.1, 2.1, 2.1], 0.5),
    ],
    ids=["late arrival", "slow transfer", "both"],
)
def test_lost_time_is_shared_between_arrival_and_transfer(inside, share) -> None:
    assert cohort.late_share(np.array([inside]), np.array([0.1]))[0] == pytest.approx(share)


def test_nothing_lost_has_no_share() -> None:
    assert np.isnan(cohort.late_share(np.array([[0.1, 0.1]]), np.array([0.1]))[0])
    assert np.isnan(cohort.late_share(np.array([[NAN, NAN]]), np.array([0.1]))[0])
