"""What a kill did to a job, told from status lines."""

from __future__ import annotations

from typing import Any

import pytest

from experiments.killing import page
from experiments.killing.measure import (
    compared,
    interruption,
    next_commit_s,
    pause_s,
    steps_lost,
    steps_of,
    unequal,
)
from experiments.killing.runner import group_hit, role_of

RANKS = ("rg_0.0", "rg_1.0")


def step(at_s: float, rank: str, number: int, of: int = 2, committed: bool = True) -> Any:
    return {
        "event": "step", "time": at_s, "rank": rank, "step": number, "participants": of,
        "committed": committed,
    }  # fmt: skip


def both(at_s: float, number: int) -> list[Any]:
    return [step(at_s, rank, number) for rank in RANKS]


def job(*parts: list[Any]) -> list[Any]:
    return [line for part in parts for line in part]


CALM = job(*(both(float(n), n) for n in range(1, 11)))


def test_a_job_that_goes_on_was_not_interrupted() -> None:
    seen = interruption(CALM, RANKS, 2, 5.5, 10.5)
    assert (seen.whole_s, seen.last_end_s) == (0.0, 5.5)


def test_it_is_whole_when_the_last_rank_commits_with_all_again() -> None:
    alone = [step(n / 2, "rg_0.0", n, of=1) for n in range(22, 40)]
    lines = job(CALM, alone, both(20.0, 40), both(21.0, 41))
    seen = interruption(lines, RANKS, 2, 10.5, 21.5)
    assert (seen.whole_s, seen.last_end_s) == (9.5, 20.0)


def test_the_end_of_the_last_of_several_pauses_counts() -> None:
    lines = job(CALM, both(14.0, 11), both(15.0, 12), both(20.0, 13))
    assert interruption(lines, RANKS, 2, 10.5, 21.0).whole_s == 9.5


def test_it_is_not_whole_while_one_rank_does_not_commit() -> None:
    lines = job(CALM, [step(float(n), "rg_0.0", n) for n in range(11, 20)])
    assert interruption(lines, RANKS, 2, 10.5, 19.5).whole_s is None


def test_a_rank_that_never_committed_is_missed() -> None:
    assert interruption(CALM, (*RANKS, "rg_1.1"), 2, 5.0, 10.5).whole_s is None


def test_the_longest_pause_is_that_of_the_whole_job_and_may_be_the_last() -> None:
    lines = job(CALM, [step(13.0, "rg_0.0", 11, of=1)])
    assert pause_s(lines, 10.5, 14.0) == 3.0
    assert pause_s(lines, 10.5, 17.5) == 4.5
    assert next_commit_s(lines, 10.5) == 2.5


def test_a_failed_attempt_is_no_commit() -> None:
    lines = job(CALM, [step(11.0, "rg_0.0", 11, committed=False)])
    assert next_commit_s(lines, 10.5) is None


def test_steps_of_a_group_are_counted_once_whichever_rank_tells() -> None:
    lines = [step(1.0, "rg_0.0", 1), step(1.1, "rg_0.1", 1), step(2.0, "rg_0.1", 2)]
    assert steps_of("rg_0", lines, 0.0, 3.0) == 2
    assert steps_of("rg_1", lines, 0.0, 3.0) == 0


def test_a_job_that_begins_again_has_lost_its_steps() -> None:
    assert steps_lost(CALM) == []
    assert steps_lost(job(CALM, both(30.0, 1), both(31.0, 2))) == [(30.0, 10)]


def test_two_groups_that_commit_the_same_step_after_each_other_have_lost_none() -> None:
    assert steps_lost([step(1.0, "rg_0.0", 7), step(1.5, "rg_1.0", 7)]) == []


def prints(rank: str, number: int, sha: str, at_s: float = 10.0) -> Any:
    return {"event": "fingerprint", "time": at_s, "rank": rank, "step": number, "sha256": sha}


def test_groups_are_compared_rank_by_rank_for_each_may_hold_a_shard() -> None:
    lines = [prints("rg_0.0", 5, "a"), prints("rg_0.1", 5, "b"), prints("rg_1.0", 5, "a")]
    assert (unequal(lines), compared(lines)) == ([], 1)
    assert unequal([*lines, prints("rg_1.1", 5, "a")]) == [(5, "1")]


def test_a_job_that_began_again_is_another_job() -> None:
    again = job(CALM, [prints("rg_0.0", 5, "a")], both(30.0, 1), [prints("rg_1.0", 5, "b", 31.0)])
    assert unequal(again) == []


@pytest.mark.parametrize(
    ("name", "role", "hit"),
    [
        ("rank rg_1.0", "rank 0", "rg_1"),
        ("sidecar rg_1.1", "sidecar 1", None),
        ("torchrun rg_0", "torchrun", "rg_0"),
        ("gate", "gate", None),
        ("lighthouse", "lighthouse", None),
    ],
)
def test_roles(name: str, role: str, hit: str | None) -> None:
    assert (role_of(name), group_hit(name)) == (role, hit)


def test_the_page_shows_what_went_wrong_in_bold() -> None:
    row = {
        "gate": True, "name": "monitor", "role": "monitor", "whole_s": None, "pause_s": 61.2,
        "others_steps": 0, "back_s": None, "steps_lost": 7, "accused_wrongly": ["rg_0.1 firing"],
        "evicted": ["rg_0"], "evicted_wrongly": ["rg_0"], "problem": "it stands", "compared": 3,
        "unequal": 1, "load_before": 2.0, "command": "c", "machine": "m", "code": "k",
    }  # fmt: skip
    text = page.render([row])
    assert (
        "| monitor | 1 | -, 1 never **it stands** | 61.2 | 0 | -, 1 never | **7** "
        "| rg_0.1 firing; rg_0 evicted | 2 to 2 |" in text
    )
    assert "unequal: 1." in text
