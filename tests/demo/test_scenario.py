"""How the demo judges what the monitor did."""

from __future__ import annotations

from typing import Any

import pytest

from lightkeeper.trainer.demo.__main__ import FaultReport, _judge, _read_incidents
from lightkeeper.trainer.demo.fleet import unhealthy


def incident(rank: str, *, kind: str = "not_entered", **milestones: float) -> dict[str, Any]:
    return {
        "id": f"{kind}-{rank}",
        "kind": kind,
        "state": "resolved",
        "culprits": [rank],
        "groups": [rank.partition(".")[0]],
        "milestones": {"first_seen_s": 101.0, **milestones},
    }


WHOLE_STORY = {
    "firing_s": 106.0,
    "evict_asked_s": 106.5,
    "left_quorum_s": 112.0,
    "survivor_commit_s": 113.0,
    "rejoined_s": 140.0,
}


def report(kind: str = "gil") -> FaultReport:
    return FaultReport(kind, "rg_1.0", injected_s=100.0)


def test_times_are_seconds_after_the_injection() -> None:
    result = report()
    _read_incidents(result, [incident("rg_1.0", **WHOLE_STORY)])
    assert (result.to_firing, result.to_evict_asked, result.to_left_quorum) == (6.0, 6.5, 12.0)
    assert (result.to_survivor_commit, result.to_rejoined) == (13.0, 40.0)
    assert result.evicted_groups == ["rg_1"]


def test_the_right_culprit_evicted_and_back_is_correct() -> None:
    result = report()
    incidents = [incident("rg_1.0", **WHOLE_STORY)]
    _read_incidents(result, incidents)
    _judge(result)
    assert result.correct
    assert result.problems == []


def test_an_evicted_healthy_group_is_wrong_even_beside_the_right_one() -> None:
    result = report()
    incidents = [incident("rg_1.0", **WHOLE_STORY), incident("rg_2.0", **WHOLE_STORY)]
    _read_incidents(result, incidents)
    _judge(result)
    assert not result.correct
    assert "evicted the healthy rg_2" in result.problems


@pytest.mark.parametrize(
    ("incidents", "problem"),
    [([], "not found"), ([incident("rg_2.0", **WHOLE_STORY)], "accused rg_2.0, not rg_1.0")],
    ids=["silent", "another rank"],
)
def test_silence_and_a_wrong_name_are_wrong(incidents: list[dict[str, Any]], problem: str) -> None:
    result = report()
    _read_incidents(result, incidents)
    _judge(result)
    assert not result.correct
    assert problem in result.problems


def test_a_group_that_never_came_back_is_a_problem_although_the_name_was_right() -> None:
    result = report()
    incidents = [incident("rg_1.0", **{**WHOLE_STORY, "rejoined_s": None})]  # type: ignore[arg-type]
    _read_incidents(result, incidents)
    _judge(result)
    assert result.correct
    assert result.problems == ["the group did not come back"]


def snapshot(**changes: Any) -> dict[str, Any]:
    rank = {"health": "healthy", "commits": 9, "last_commit_age_s": 0.2, "participants": 2}
    return {
        "ranks": [{"rank": "rg_0.0", **rank}, {"rank": "rg_1.0", **rank, **changes}],
        "incidents": [],
    }


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, None),
        ({"health": "stalled"}, "rg_1.0 is stalled"),
        ({"commits": 0}, "rg_1.0 has 0 commits"),
        ({"last_commit_age_s": 9.0}, "rg_1.0 has 9 commits"),
        ({"participants": 1}, "rg_1.0 sees 1 of 2 groups"),
    ],
    ids=["whole", "stalled", "new", "standing", "alone"],
)
def test_the_fleet_is_whole_only_when_every_rank_commits_with_all_groups(
    changes: dict[str, Any], why: str | None
) -> None:
    assert unhealthy(snapshot(**changes), groups=2, ranks_per_group=1) == why
