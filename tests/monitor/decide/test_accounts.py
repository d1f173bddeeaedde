"""Exact numbers on virtual incidents; what is not known is never zero."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightkeeper.monitor.decide.accounts import (
    AuditedIncident,
    Choice,
    ChoiceError,
    Loss,
    NoSuchIncidentError,
    Totals,
    account,
    account_to_json,
    find,
    hold_spans,
    intervals,
    span_s,
    totals_of,
)
from lightkeeper.monitor.decide.audit import IncidentAudit, audit_of
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import (
    DecisionRow,
    Eviction,
    Remembered,
    Rung,
    RungOutcome,
)
from lightkeeper.monitor.model.incident import (
    IncidentError,
    Milestones,
    State,
    incident_from_json,
    incident_to_json,
)
from lightkeeper.monitor.model.plain import from_plain, to_plain
from lightkeeper.monitor.model.verdict import Kind
from tests.monitor.decide.scene import (
    EVICTION,
    FACTS,
    ID,
    MARKS,
    ROWS,
    case,
    hang,
    of_kind,
    unevicted,
)
from tests.monitor.samples import incident


def seen(loss: Loss) -> tuple[float | None, bool]:
    return loss.rank_seconds, loss.over


# -- how long --------------------------------------------------------------------------------------


def test_the_parts_of_an_incident_follow_one_another_and_add_up() -> None:
    parts = intervals(case())
    assert [(part.until, part.seconds) for part in parts] == [
        ("seen", 5.0), ("firing", 1.0), ("decided", 4.5), ("asked", 0.5), ("gone", 4.0),
        ("left", 1.0), ("survivors", 1.0), ("rejoined", 19.0),
    ]  # fmt: skip
    assert sum(part.seconds for part in parts) == 136.0 - 100.0


def test_what_follows_the_request_comes_in_its_own_order() -> None:
    marks = replace(MARKS, survivor_commit_s=111.5)  # of a straggler: the others never stood
    names = [part.until for part in intervals(case(hang(milestones=marks)))]
    assert names[-4:] == ["survivors", "gone", "left", "rejoined"]


def test_a_clock_that_jumped_back_makes_a_part_empty_and_is_said() -> None:
    marks = replace(MARKS, firing_s=90.0)
    firing = intervals(case(hang(milestones=marks)))[1]
    assert (firing.until, firing.seconds, firing.jumped) == ("firing", 0.0, True)


def test_guards_are_told_with_how_long_they_held_and_a_change_of_words_is_no_new_one() -> None:
    assert [(span.guard, span.seconds, span.reason) for span in hold_spans(case())] == [
        ("cool_down", 2.0, "too soon"), ("budget", 2.5, "4 an hour are used up, still"),
    ]  # fmt: skip


def test_a_guard_that_still_holds_has_no_end() -> None:
    firing = hang(state=State.FIRING, resolution=None, story=())
    (held,) = hold_spans(case(firing, decisions=ROWS[:1], evictions=()))
    assert (held.guard, held.seconds) == ("cool_down", None)


def test_a_guard_held_until_the_incident_was_over() -> None:
    (held,) = hold_spans(case(decisions=ROWS[:1]))
    assert held.seconds == 116.0 - 106.0


# -- what it cost ----------------------------------------------------------------------------------


def test_a_hang_costs_what_waited() -> None:
    costs = account(case())
    assert seen(costs.lost_by_others) == (4 * 17.0, True)
    assert costs.lost_by_others.words == "4 ranks, 17.0 s each"
    assert seen(costs.lost_by_own) == (2 * 36.0, True)
    assert costs.lost == 140.0
    assert (costs.outcome, costs.decided_by) == ("evicted", "lightkeeper")
    assert (costs.ran_on, costs.back_on, costs.final) == (("node1",), ("node4",), True)


def test_a_straggler_costs_the_seconds_that_it_lost_and_the_time_that_it_was_away() -> None:
    costs = account(case(of_kind(Kind.STRAGGLER, lost_s=5.5)))
    assert seen(costs.lost_by_others) == (4 * 5.5, True)
    assert seen(costs.lost_by_own) == (2 * 25.0, True)


@pytest.mark.parametrize("kind", [Kind.STATE_CORRUPT, Kind.REPLICA_LAG])
def test_what_cannot_be_told_is_no_zero(kind: Kind) -> None:
    costs = account(case(of_kind(kind)))
    assert costs.lost is None
    assert str(costs.lost_by_others) == "cannot tell"


def test_without_the_number_of_ranks_nothing_can_be_told() -> None:
    costs = account(case(facts=None))
    body = account_to_json(costs)
    assert body["lost"] is body["lost_by_own"]["rank_seconds"] is None
    assert body["lost_by_others"]["text"] == "cannot tell"


def test_a_fault_that_passed_costs_as_long_as_it_was_seen() -> None:
    costs = account(unevicted(hang()))
    assert seen(costs.lost_by_own) == (2 * 12.0, False)  # seen standing until 112
    assert costs.outcome == "passed"


def test_who_is_still_away_costs_at_least_what_it_has_cost_so_far() -> None:
    marks = replace(MARKS, rejoined_s=None)
    costs = account(case(hang(milestones=marks), now_s=151.0))
    assert seen(costs.lost_by_own) == (2 * 51.0, False)
    assert str(costs.lost_by_own) == "at least 102"
    assert costs.final is False
    late = account(case(hang(milestones=marks)))  # nobody looks for it any more
    assert seen(late.lost_by_own) == (2 * 611.0, False)
    assert late.final is True


def test_survivors_that_still_wait_are_counted_so_far_and_then_as_long_as_it_was_seen() -> None:
    marks = replace(MARKS, survivor_commit_s=None, rejoined_s=None)
    waiting = hang(milestones=marks, state=State.EVICTING, resolution=None, story=())
    assert seen(account(case(waiting, now_s=121.0)).lost_by_others) == (4 * 21.0, False)
    assert seen(account(case(hang(milestones=marks))).lost_by_others) == (4 * 12.0, False)


def test_a_lighthouse_that_is_away_costs_everybody_until_it_is_back() -> None:
    away = of_kind(Kind.LIGHTHOUSE_AWAY)
    away = replace(away, groups=(), culprits=())
    costs = account(unevicted(away, survivor_commit_s=None))
    assert seen(costs.lost_by_others) == (4 * 12.0, False)
    assert seen(costs.lost_by_own) == (0.0, True)


def test_an_eviction_that_failed_is_said() -> None:
    failed = replace(EVICTION, failed="not gone after 25 s", gone_s=None, left_quorum_s=None)
    assert account(case(evictions=(failed,))).outcome == "failed"


def test_observe_mode_is_told_as_what_would_have_been() -> None:
    would = DecisionRow(ID, 107.0, "would_evict", "observe", "would evict rg_1",
                        body={"release": "start it without --observe"})  # fmt: skip
    costs = account(replace(unevicted(hang()), decisions=(*ROWS[:1], would)))
    assert (costs.outcome, costs.decided_by) == ("observed", "nobody")
    assert [(held.guard, held.seconds, held.release) for held in costs.holds] == [
        ("cool_down", 1.0, None), ("observe", 9.0, "start it without --observe"),
    ]  # fmt: skip


def test_who_held_and_why_is_the_answer_when_nobody_was_evicted() -> None:
    costs = account(replace(unevicted(hang()), decisions=ROWS[:2]))
    assert (costs.outcome, costs.decided_by) == ("held", "nobody")
    assert costs.why == "held by budget: 4 an hour are used up"


# -- totals ----------------------------------------------------------------------------------------


def test_totals_add_what_is_known_and_count_what_is_not() -> None:
    cases = [
        case(), case(), case(), case(of_kind(Kind.STATE_CORRUPT)),
        unevicted(of_kind(Kind.STRAGGLER, 2.0)),
    ]  # fmt: skip
    pending = case(hang(milestones=replace(MARKS, firing_s=None)))
    assert totals_of([*cases, pending]) == Totals(incidents=5, evictions=4, lost=428.0, unknown=1)


# -- whatever the moments say ----------------------------------------------------------------------

TIME = st.floats(-1e3, 1e3)
TIMES = st.none() | TIME


@st.composite
def cases(draw: st.DrawFn) -> AuditedIncident:
    marks = Milestones(draw(TIME), *(draw(TIMES) for _ in fields(Milestones)[1:]))
    kind = draw(st.sampled_from(Kind))
    made = of_kind(kind, lost_s=draw(st.floats(allow_nan=True, allow_infinity=True)))
    made = replace(
        made,
        milestones=marks,
        verdict=replace(made.verdict, since_s=draw(TIME)),
        last_seen_s=draw(TIME),
        state=draw(st.sampled_from(State)),
        groups=made.groups if draw(st.booleans()) else (),
    )
    rows = [
        DecisionRow(ID, draw(TIME), draw(st.sampled_from(["evict", "hold", "?"])), guard, "why")
        for guard in draw(st.lists(st.sampled_from(["budget", None]), max_size=4))
    ]
    evictions = [
        Eviction(
            ID, "rg_1", None, draw(TIME), gone_s=draw(TIMES), left_quorum_s=draw(TIMES),
            rungs=(RungOutcome(Rung.EVIDENCE, draw(TIME), draw(TIMES), ""),),
        )
        for _ in range(draw(st.integers(0, 2)))
    ]  # fmt: skip
    audit = IncidentAudit(
        facts={ID: FACTS} if draw(st.booleans()) else {}, evictions={ID: evictions}
    )
    return audit.case(made, rows, draw(st.floats(0, 1e6)))


@given(cases())
def test_no_part_is_negative_and_all_add_up_whatever_the_moments_say(
    audited: AuditedIncident,
) -> None:
    parts = intervals(audited)
    assert all(part.seconds >= 0 for part in parts)
    assert all(a.end_s == b.start_s for a, b in pairwise(parts))
    if parts:
        whole = parts[-1].end_s - audited.began_s
        assert sum(part.seconds for part in parts) == pytest.approx(whole)


@given(cases())
def test_an_account_never_raises_and_is_json(audited: AuditedIncident) -> None:
    costs = account(audited)
    body = account_to_json(costs)
    json.dumps(body, allow_nan=False)
    json.dumps(to_plain(totals_of([audited, case()])), allow_nan=False)
    assert costs.lost is None or costs.lost >= 0


@pytest.mark.parametrize("odd", [math.nan, math.inf, 1e300, -1e300, "soon"], ids=str)
def test_what_a_damaged_store_has_without_a_time_is_not_read(odd: Any) -> None:
    incident, marks = incident_to_json(hang()), to_plain(MARKS)
    for damaged in ({"last_seen_s": odd}, {"milestones": {**marks, "survivor_commit_s": odd}}):
        with pytest.raises(IncidentError, match="no incident: "):
            incident_from_json({**incident, **damaged})
    with pytest.raises(ValueError, match=r"gone_s"):
        from_plain(Eviction, {**to_plain(EVICTION), "gone_s": odd})


def remembered(part: str, body: Any) -> IncidentAudit:
    return audit_of(Remembered(audit=((ID, part, body),)), KeeperConfig())


@pytest.mark.parametrize("body", ["text", None, [], {"own": "2"}, {"own": 1}, {"survivors_s": "x"}])
def test_notes_that_are_none_are_forgotten(body: Any) -> None:
    assert not remembered("facts", body).facts
    assert not remembered("other", {}).facts


def test_notes_are_kept_as_they_are() -> None:
    assert remembered("facts", to_plain(FACTS)).facts == {ID: FACTS}


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
    assert find(incidents, "hang").id == "hang-rg_1.0-3"
    assert find(incidents, "dead-rg_0.0-1").id == "dead-rg_0.0-1"
    with pytest.raises(ChoiceError, match=r"^2 incidents begin with dead: dead-rg_0\.0-1, dead-"):
        find(incidents, "dead")
    for nothing in ("x", ""):
        with pytest.raises(NoSuchIncidentError):
            find(incidents, nothing)


def test_incidents_are_chosen_by_time_kind_and_group() -> None:
    over, now = hang(last_seen_s=112.0), incident("inc-2", first_seen_s=50.0)
    assert Choice.of(None, None, None, 1000.0).among([over, now]) == [over, now]
    assert Choice.of("10s", None, None, 1000.0).among([over, now]) == [now]  # still open
    assert Choice.of("1d", "straggler", None, 1000.0).among([over, now]) == []
    assert Choice.of(None, "not_entered", "rg_1", 0.0).among([over]) == [over]
    assert Choice.of(None, None, "rg_9", 0.0).among([over]) == []
    with pytest.raises(ChoiceError, match="kind is 'slow', expected one of dead, not_entered"):
        Choice.of(None, "slow", None, 0.0)
    assert Choice.of(None, "dead", None, 0.0).kind is Kind.DEAD
