"""Schema 1, which scripts rely on."""

import json

import pytest

from lightkeeper.monitor.records.job import Problem
from lightkeeper.monitor.show.report import Report
from tests.monitor.show.jobs import hang, healthy, megatron, tie


def test_a_fault_is_told_with_the_keys_of_schema_1():
    assert Report(*hang()).body() == {
        "schema": 1,
        "ranks_expected": 4,
        "ranks_read": [0, 1, 2, 3],
        "ranks_silent": [],
        "verdicts": [
            {
                "kind": "not_entered",
                "culprits": [1],
                "cannot_tell_between": [],
                "victims": [0, 2, 3],
                "group": "3",
                "group_label": "dp (3)",
                "sequence": 12,
                "op": "all_reduce",
                "confidence": "likely",
                "reason": "Rank 1 never came to all_reduce 12 of dp; ranks 0, 2 and 3 wait for it.",
                "evidence": {"rank 1": "last enqueued 11, nothing unfinished"},
            }
        ],
        "culprits": [1],
        "problems": [],
        "notes": ["Gloo does not record when collectives complete."],
    }


def test_a_tie_has_no_culprits_and_both_sides():
    body = Report(*tie()).body()
    assert body["culprits"] == body["verdicts"][0]["culprits"] == []
    assert body["verdicts"][0]["cannot_tell_between"] == [[0, 1], [2, 3]]
    assert body["verdicts"][0]["confidence"] == "unsure"


def test_a_healthy_job_has_no_verdicts():
    body = Report(*healthy()).body()
    assert (body["verdicts"], body["culprits"]) == ([], [])


def test_unread_files_and_silent_ranks_are_told():
    job, analysis = hang(expected=range(6), problems=(Problem("a_4", "cut off", 4),))
    body = Report(job, analysis).body()
    assert (body["ranks_expected"], body["ranks_silent"]) == (6, [4, 5])
    assert body["problems"] == [{"path": "a_4", "rank": 4, "reason": "cut off"}]


def test_names_and_hosts_stand_by_rank():
    body = Report(*hang(names={1: "rg_0.1", 0: "rg_0.0"}, hosts={1: "node1"})).body()
    assert body["names"] == {"0": "rg_0.0", "1": "rg_0.1"}
    assert body["hosts"] == {"1": "node1"}


@pytest.mark.parametrize("make", [hang, tie, healthy, lambda: megatron(4)])
def test_everything_is_plain_json(make):
    """No numpy number, no enum, no tuple as a key gets through."""
    body = Report(*make()).body()
    assert json.loads(json.dumps(body, allow_nan=False)) == body
