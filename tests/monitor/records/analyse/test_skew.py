"""Records that do not show one moment accuse nobody."""

from __future__ import annotations

import pytest

from monitor.records.analyse import analyse
from monitor.records.job import Backend
from tests.monitor.records.analyse.jobs import Call, job, many


def test_a_rank_whose_peers_completed_what_it_had_not_enqueued_went_on() -> None:
    calls = {0: many(3), 1: [*many(5), Call().open()], 2: [*many(5), Call().open()]}
    found = analyse(job(calls))
    assert found.findings == ()
    assert [note.partition(". ")[0] for note in found.notes] == [
        "The records do not show one moment: rank 0 moved on after it"
    ]


def test_a_rank_that_is_late_beside_one_that_went_on_is_not_accused_either() -> None:
    calls = {0: many(3), 1: [*many(5), Call().open()], 2: many(5), 3: [*many(5), Call().open()]}
    assert analyse(job(calls)).findings == ()


@pytest.mark.parametrize("ahead", [1, 3])
def test_ranks_that_run_ahead_at_different_moments_are_healthy(ahead: int) -> None:
    calls = {r: [*many(4 + r), *many(ahead, Call().open())] for r in range(5)}
    assert analyse(job(calls)).findings == ()


def test_who_waits_for_less_than_a_second_is_not_stuck() -> None:
    calls = {0: many(3), **{r: [*many(3), Call().open()] for r in (1, 2, 3)}}
    assert analyse(job(calls, waited_s=0.3)).findings == ()
    assert analyse(job(calls, waited_s=30)).culprits == (0,)


def test_gloos_last_completed_call_may_have_ended_by_an_error() -> None:
    waiting = Call().open()
    calls = {0: [Call(), waiting], 1: [Call(), Call()], 2: [Call()], 3: [Call(), Call()]}
    assert analyse(job(calls, backend=Backend.GLOO)).culprits == (2,)


def test_what_is_left_of_an_older_quorum_says_nothing() -> None:
    old, new = Call("quorum1"), Call("quorum2")
    groups = {"quorum1": (0, 1, 2), "quorum2": (0, 1, 2)}
    calls = {r: [old, old.open(), new, new] for r in range(3)}
    generations = {"quorum1": 1, "quorum2": 2}
    assert analyse(job(calls, groups, generations=generations)).findings == ()
    calls = {0: [old, old.open(), new, new.open()], 1: [old, new], 2: [old, new, new.open()]}
    assert analyse(job(calls, groups, generations=generations)).culprits == (1,)


def test_a_rank_left_in_an_older_quorum_accuses_nobody_who_moved_on() -> None:
    old, new = Call("quorum1"), Call("quorum2")
    groups = {"quorum1": (0, 1, 2), "quorum2": (0, 1)}
    calls = {0: [old, new], 1: [old, new], 2: [old, old.open()]}
    found = analyse(job(calls, groups, generations={"quorum1": 1, "quorum2": 2}))
    assert found.culprits == ()
