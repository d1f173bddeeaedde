"""Exact numbers on virtual incidents; what is not known is never zero."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from lightkeeper.monitor.decide.accounts import (
    ChoiceError,
    NoSuchIncidentError,
    Totals,
    choose,
    find_incident,
    span_s,
    totals_of,
)
from lightkeeper.monitor.model.eviction import Eviction, Guard, Hold
from lightkeeper.monitor.model.incident import incident_from_json, incident_to_json
from lightkeeper.monitor.model.names import GroupName
from lightkeeper.monitor.model.plain import from_plain, to_plain
from tests.monitor.decide.scene import EVICTION, ID, MARKS, RELEASE, ROWS, case, hang, unevicted
from tests.monitor.decided import to_evict
from tests.monitor.samples import incident

# -- who decided, and what came of it --------------------------------------------------------------


def test_an_eviction_was_decided_by_its_rule_and_cannot_change_once_all_are_back() -> None:
    costs = case()
    assert (costs.outcome, costs.decided_by, costs.final) == ("evicted", "lightkeeper", True)
    assert costs.cost == "at least 140 rank-seconds"


def test_who_is_still_away_is_watched_for_a_while() -> None:
    away = hang(milestones=replace(MARKS, rejoined_s=None))
    assert case(away, now_s=700.0).final is False
    assert case(away).final is True  # nobody looks for it any more


def test_a_fault_that_passed_is_said() -> None:
    assert unevicted(hang()).outcome == "passed"


def test_an_eviction_that_failed_is_said() -> None:
    failed = replace(EVICTION, failed="not gone after 25 s", gone_s=None, left_quorum_s=None)
    assert case(rows=(failed,)).outcome == "failed"


def test_observe_mode_is_told_as_what_would_have_been() -> None:
    evict = to_evict(ID, GroupName("rg_1"), None, (), "hung")
    would = Hold(ID, Guard.OBSERVE, "would evict rg_1", would=evict, at_s=107.0)
    costs = unevicted(hang(), rows=(*ROWS[:1], would))
    assert (costs.outcome, costs.decided_by) == ("observed", "nobody")


def test_who_held_and_why_is_the_answer_when_nobody_was_evicted() -> None:
    costs = unevicted(hang(), rows=ROWS[:2])
    assert (costs.outcome, costs.decided_by) == ("held", "nobody")
    assert costs.why == "held by budget: 4 an hour are used up"


def test_who_was_released_changes_nothing_about_who_held() -> None:
    costs = unevicted(hang(), rows=(*ROWS[:2], RELEASE))
    assert (costs.outcome, costs.why) == ("held", "held by budget: 4 an hour are used up")
    evict = to_evict(ID, GroupName("rg_1"), None, (), "hung")
    would = Hold(ID, Guard.OBSERVE, "would evict rg_1", would=evict, at_s=107.0)
    assert unevicted(hang(), rows=(would, RELEASE)).outcome == "observed"
    assert unevicted(hang(), rows=(RELEASE,)).why == "nothing was to be decided"


# -- totals ----------------------------------------------------------------------------------------


def test_totals_add_what_is_known_and_count_what_is_not() -> None:
    accounts = [case(), case(), case(), case(lost=None), unevicted(hang(), lost=8.0)]
    assert case(lost=None).cost == "cannot tell"
    assert totals_of(accounts) == Totals(incidents=5, evictions=4, lost=428.0, unknown=1)


@pytest.mark.parametrize("odd", [math.nan, math.inf, 1e300, -1e300, "soon"], ids=str)
def test_what_a_damaged_store_has_without_a_time_is_not_read(odd: Any) -> None:
    incident, marks = incident_to_json(hang()), to_plain(MARKS)
    for damaged in ({"last_seen_s": odd}, {"milestones": {**marks, "survivor_commit_s": odd}}):
        with pytest.raises(ValueError, match=r"_s`"):
            incident_from_json({**incident, **damaged})
    with pytest.raises(ValueError, match=r"gone_s"):
        from_plain(Eviction, {**to_plain(EVICTION), "gone_s": odd})


# -- which incidents are meant ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("15m", 900), ("1.5h", 5400), ("7d", 604_800), ("2w", 1_209_600)],
)
def test_spans_are_read_as_people_write_them(text: str, seconds: float) -> None:
    assert span_s(text) == seconds


@pytest.mark.parametrize("text", ["", "d", "7 days", "-1d", "1e9d", "yesterday", "٣d"])
def test_what_is_no_span_is_said(text: str) -> None:
    with pytest.raises(ChoiceError, match="expected a span such as"):
        span_s(text)


def test_the_beginning_of_an_id_is_enough_if_no_other_begins_so() -> None:
    incidents = [incident("dead-rg_0.0-1"), incident("dead-rg_0.0-12"), incident("hang-rg_1.0-3")]
    assert find_incident(incidents, "hang").id == "hang-rg_1.0-3"
    assert find_incident(incidents, "dead-rg_0.0-1").id == "dead-rg_0.0-1"
    with pytest.raises(ChoiceError, match=r"^2 incidents begin with dead: dead-rg_0\.0-1, dead-"):
        find_incident(incidents, "dead")
    for nothing in ("x", ""):
        with pytest.raises(NoSuchIncidentError):
            find_incident(incidents, nothing)


def test_incidents_are_chosen_by_time_kind_and_group() -> None:
    over, now = hang(last_seen_s=112.0), incident("inc-2", first_seen_s=50.0)
    assert choose([over, now], {}, 1000.0) == [over, now]
    assert choose([over, now], {"since": "10s"}, 1000.0) == [now]  # still open
    assert choose([over, now], {"since": "1d", "kind": "straggler"}, 1000.0) == []
    assert choose([over], {"kind": "not_entered", "group": "rg_1"}, 0.0) == [over]
    assert choose([over], {"group": "rg_9"}, 0.0) == []
    assert choose([over, now], {"state": "open"}, 0.0) == [now]
    assert choose([over, now], {"state": "resolved", "run": over.run}, 0.0) == [over]
    with pytest.raises(ChoiceError, match="kind is 'slow', expected one of dead, not_entered"):
        choose([], {"kind": "slow"}, 0.0)
    with pytest.raises(ChoiceError, match="state is 'shut', expected one of open, pending"):
        choose([], {"state": "shut"}, 0.0)
