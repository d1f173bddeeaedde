"""Times taken from the incidents of a running monitor."""

from __future__ import annotations

import math
from typing import Any

import pytest

from monitor.audit.account import account, account_to_json
from monitor.goodput.measured import Measured, measured
from tests.monitor.audit.scene import case, hang, unevicted


def told(kind: str, seconds: dict[str, float]) -> dict[str, Any]:
    """An incident as `/v1/incidents` tells it; the fault began at 100."""
    at_s, parts = 100.0, []
    for until, end_s in seconds.items():
        parts.append({"until": until, "start_s": at_s, "end_s": end_s})
        at_s = end_s
    return {"kind": kind, "account": {"intervals": parts}}


def test_an_account_of_the_monitor_is_understood() -> None:
    hang = {"kind": "not_entered", "account": account_to_json(account(case()))}
    assert measured([hang]) == Measured(
        evictions=1, hang_s=11.0, slow_s=None, evict_s=4.0, requorum_s=2.0, away_s=21.0
    )


def test_an_incident_that_evicted_nobody_tells_nothing() -> None:
    passed = {"kind": "not_entered", "account": account_to_json(account(unevicted(hang())))}
    assert measured([passed]) == Measured()


def test_medians_by_kind() -> None:
    found = measured([
        told("deadlock", {"asked": 110.0, "gone": 111.0, "survivors": 116.0, "rejoined": 131.0}),
        told("mismatch", {"asked": 120.0, "gone": 120.5}),
        told("not_entered", {"asked": 130.0, "gone": 130.7, "survivors": 136.7}),
        told("straggler", {"asked": 400.0}),
        told("dead", {"asked": 103.0}),
    ])  # fmt: skip
    assert (found.evictions, found.hang_s, found.slow_s, found.away_s) == (5, 20.0, 300.0, 20.0)
    assert found.evict_s == pytest.approx(0.7)
    assert found.requorum_s == pytest.approx(5.5)


PART = {"until": "asked", "start_s": 100.0, "end_s": 110.0}


@pytest.mark.parametrize(
    "account",
    [
        None, [], {}, {"intervals": None}, {"intervals": {"until": 1}}, {"intervals": [None, 3]},
        {"intervals": [{**PART, "until": None}]}, {"intervals": [{**PART, "start_s": "x"}]},
        {"intervals": [{**PART, "end_s": True}]}, {"intervals": [{**PART, "end_s": math.nan}]},
        {"intervals": [{**PART, "end_s": 10**400}]}, {"intervals": [{"until": "asked"}]},
    ],
)  # fmt: skip
def test_what_is_damaged_is_left_out(account: Any) -> None:
    assert measured([{"kind": "deadlock", "account": account}]) == Measured()


def test_a_clock_that_jumped_back_makes_no_negative_time() -> None:
    assert measured([told("deadlock", {"asked": 90.0})]).hang_s == 0.0
