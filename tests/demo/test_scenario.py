"""How the demo judges what the monitor did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import ANY

import pytest

from lightkeeper.trainer.demo import Row, fault_verdict, report_of, unhealthy
from lightkeeper.trainer.faults import Marker


def incident(rank: str, *, kind: str = "not_entered", **milestones: float) -> dict[str, Any]:
    return {
        "id": f"{kind}-{rank}",
        "kind": kind,
        "state": "resolved",
        "culprits": [rank],
        "groups": [rank.partition(".")[0]],
        "reason": "because",
        "milestones": {"first_seen_s": 101.0, **milestones},
        "hosts": ["host-1"],
        "back_on": ["host-1"],
    }


WHOLE_STORY = {
    "firing_s": 106.0,
    "evict_asked_s": 106.5,
    "left_quorum_s": 112.0,
    "survivor_commit_s": 113.0,
    "rejoined_s": 140.0,
}


def report(*incidents: dict[str, Any], left: Sequence[str] = ()) -> Row:
    struck = Marker("1-gil", "gil", "rg_1.0", 42, host="host-1", time=100.0)
    return report_of(struck, list(incidents), left)


def test_times_are_seconds_after_the_injection() -> None:
    result = report(incident("rg_1.0", **WHOLE_STORY))
    times = [result[f"to_{name}"] for name in ("firing", "evict_asked", "left_quorum")]
    assert times == [6.0, 6.5, 12.0]
    assert (result["to_survivor_commit"], result["to_rejoined"]) == (13.0, 40.0)
    assert result["evicted_groups"] == ["rg_1"]
    assert result["rejoined_host"] == "host-1"


def test_the_right_culprit_evicted_and_back_is_correct() -> None:
    result = report(incident("rg_1.0", **WHOLE_STORY), left=["rg_1"])
    assert result["problems"] == []


def test_an_evicted_healthy_group_is_wrong_even_beside_the_right_one() -> None:
    result = report(incident("rg_1.0", **WHOLE_STORY), incident("rg_2.0", **WHOLE_STORY))
    assert "evicted the healthy rg_2" in result["problems"]


@pytest.mark.parametrize(
    ("incidents", "problem"),
    [([], "not found"), ([incident("rg_2.0", **WHOLE_STORY)], "accused rg_2.0, not rg_1.0")],
    ids=["silent", "another rank"],
)
def test_silence_and_a_wrong_name_are_wrong(incidents: list[dict[str, Any]], problem: str) -> None:
    result = report(*incidents)
    assert problem in result["problems"]


def test_a_group_that_never_came_back_is_a_problem_although_the_name_was_right() -> None:
    result = report(incident("rg_1.0", **{**WHOLE_STORY, "rejoined_s": None}))  # type: ignore[arg-type]
    assert result["problems"] == ["the group did not come back"]


def test_a_group_that_was_not_evicted_is_a_problem() -> None:
    assert "not evicted" in report(incident("rg_1.0", firing_s=106.0))["problems"]


def test_a_survivor_that_crashed_is_a_problem() -> None:
    result = report(incident("rg_1.0", **WHOLE_STORY), left=["rg_0", "rg_1"])
    assert result["problems"] == ["rg_0 crashed, too"]


@pytest.mark.parametrize("kind", ["dead", "mismatch"])
def test_of_a_crash_the_dead_rank_counts_and_no_eviction_is_asked_for(kind: str) -> None:
    first = incident("rg_0.0", kind="mismatch", firing_s=101.0)
    dead = incident("rg_1.0", kind=kind, **{**WHOLE_STORY, "evict_asked_s": None})  # type: ignore[arg-type]
    struck = Marker("1-crash", "crash", "rg_1.0", 42, host="host-1", time=100.0)
    problems = report_of(struck, [first, dead], ["rg_1"])["problems"]
    assert problems == ([] if kind == "dead" else ANY)
    assert ("accused rg_0.0, not rg_1.0" in problems) == (kind != "dead")


def test_the_verdict_is_a_line_for_each_fault() -> None:
    assert fault_verdict(report(incident("rg_1.0", **WHOLE_STORY))) == (
        "gil in rg_1.0: firing +6.0 s, evict asked +6.5 s, left quorum +12.0 s, "
        "survivor commit +13.0 s, rejoined +40.0 s; right"
    )
    assert fault_verdict(report()).startswith("gil in rg_1.0: nothing seen yet; not found, ")


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
