"""What the matrix reads from status files, on made-up ones."""

from __future__ import annotations

from typing import Any

import pytest

from experiments.fleet import JOIN_TIMEOUT_MS, Setting
from experiments.matrix.cases import FAULTS, HARD, Case, plan
from experiments.matrix.measure import measure, over, problems, resumed_s, usual_s
from experiments.matrix.page import render

STRUCK_S = 100.0
WITH = Case("hang", False, Setting("3x1"))
ALONE = Case("hang", False, Setting("3x1", keeper=False))


def step(at_s: float, rank: str, pid: int = 1, committed: bool = True) -> dict[str, Any]:
    return {"time": at_s, "event": "step", "rank": rank, "pid": pid, "committed": committed}


def started(at_s: float, rank: str, pid: int, host: str) -> dict[str, Any]:
    return {"time": at_s, "event": "started", "rank": rank, "pid": pid, "host": host}


def every(rank: str, begin_s: float, end_s: float, pace_s: float = 0.2, pid: int = 1) -> list[Any]:
    count = int((end_s - begin_s) / pace_s)
    return [step(begin_s + number * pace_s, rank, pid) for number in range(count)]


def row(case: Case, steps: list[Any], exits: dict[str, Any] | None = None, incidents: Any = ()):
    return measure(
        case,
        group="rg_2",
        host="host-2",
        struck_s=STRUCK_S,
        steps=sorted(steps, key=lambda line: line["time"]),
        exits={"rg_0": [], "rg_1": [], "rg_2": [], **(exits or {})},
        incidents=incidents,
        watched_s=30.0,
    )


HEALTHY = every("rg_0.0", 90, 100) + every("rg_1.0", 90, 100) + every("rg_2.0", 90, 100)


def test_survivors_go_on_with_the_first_of_three_commits_at_the_old_pace():
    steps = HEALTHY + every("rg_0.0", 113, 120) + every("rg_1.0", 113.1, 120)
    assert row(WITH, steps)["to_survivors"] == pytest.approx(13.0)


def test_the_step_under_way_when_the_fault_struck_is_no_recovery():
    commits = [90 + 0.2 * n for n in range(51)] + [100.2, 100.4]
    assert resumed_s(commits, STRUCK_S) is None


def test_commits_one_by_one_are_no_pace():
    commits = [90 + 0.2 * n for n in range(50)] + [105.0, 108.0, 111.0, 114.0]
    assert resumed_s(commits, STRUCK_S) is None
    assert usual_s(commits, STRUCK_S) == pytest.approx(0.2)


def test_the_group_is_back_when_a_process_that_started_after_the_fault_commits():
    late = [step(101.0, "rg_2.0"), started(110.0, "rg_2.0", 2, "spare-2")]
    result = row(WITH, [*HEALTHY, *late, *every("rg_2.0", 115, 117, pid=2)])
    assert (result["to_back"], result["host_back"]) == (15.0, "spare-2")


def test_the_group_is_back_when_a_process_that_lives_commits_after_its_link_is_back():
    steps = [started(1, "rg_2.0", 3, "host-2"), *every("rg_2.0", 90, 100.5, pid=3)]
    assert row(WITH, steps)["to_back"] is None
    back = row(WITH, [*steps, *every("rg_2.0", 112, 115, pid=3)])
    assert (back["to_back"], back["host_back"]) == (12.0, "host-2")


def test_other_groups_that_ended_are_in_the_row():
    exits = {"rg_1": [{"time": 223.4, "event": "left", "rc": 1}]}
    result = row(ALONE, HEALTHY, exits)
    assert result["crashed"] == {"rg_1": 123.4}
    assert not over(ALONE, result)


def incident(**milestones: float) -> dict[str, Any]:
    return {"groups": ["rg_2"], "milestones": {"firing_s": 106.5, **milestones}, "decisions": []}


def test_a_good_run_has_no_problems():
    steps = [
        *HEALTHY,
        *every("rg_0.0", 113, 120),
        started(112.0, "rg_2.0", 2, "spare-2"),
        *every("rg_2.0", 115, 117, pid=2),
    ]
    exits = {"rg_2": [{"time": 107.5, "event": "left"},
                      {"time": 111.0, "event": "started", "host": "spare-2"}]}  # fmt: skip
    evicting = incident(evict_asked_s=106.6, left_quorum_s=113.0)
    result = row(WITH, steps, exits, [evicting])
    assert problems(result) == []
    assert over(WITH, result)
    assert (result["to_firing"], result["to_decided"], result["to_gone"]) == (6.5, 6.6, 7.5)


def test_problems_name_a_group_evicted_wrongly_and_a_host_used_again():
    exits = {"rg_2": [{"time": 111.0, "event": "started", "host": "host-2"}]}
    steps = [*HEALTHY, started(112.0, "rg_2.0", 2, "host-2"), *every("rg_2.0", 115, 117, pid=2)]
    incidents = [
        incident(evict_asked_s=106.6),
        {**incident(evict_asked_s=107.0), "groups": ["rg_0"]},
    ]
    gil = Case("gil", False, WITH.setting)  # its host is at fault, not a line of the program
    assert problems(row(gil, steps, exits, incidents)) == [
        "evicted rg_0",
        "survivors do not commit",
        "started again on host-2",
    ]


def test_alone_nothing_is_a_problem_of_ours():
    assert problems(row(ALONE, HEALTHY)) == []


def test_the_plan_has_every_fault_with_and_without_and_no_gate_alone():
    cases = list(plan(JOIN_TIMEOUT_MS, [False, True], [False, True]))
    plain = 2 * 2 * (len(FAULTS) - len(HARD)) * 3  # timeouts, Lighthouse, who is beside the job
    hard = 2 * (3 + 2)  # a rogue launcher is of no interest where nobody evicts
    assert len(cases) == len({case.key for case in cases}) == plain + hard
    assert not any(case.setting.gate and not case.setting.keeper for case in cases)


def test_the_page_shows_every_row():
    result = row(ALONE, HEALTHY)
    line = {**result, "problems": [], "load": 1.0, "machine": "2 cores", "code": "abc"}
    page = render([line])
    assert "| hang | up | nobody | - | - | - | - | - | - | host-2, - | 1 | none |" in page
