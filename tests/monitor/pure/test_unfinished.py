"""What becomes of a decision that a monitor left without an end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from monitor.incident import Incident, State
from monitor.keeper.unfinished import End, Unfinished, again, evict_of, judged, left_open
from monitor.names import GroupName, Host, IncidentId, RankName, ReplicaId
from monitor.policy import Evict
from monitor.snapshot import (
    EvictionProgress,
    Failure,
    LighthouseAway,
    Observation,
    Snapshot,
    Unreachable,
)
from monitor.store import DecisionRow, DecisionState
from tests.monitor.shell.fakes import FakeRank, identity
from tests.monitor.shell.test_store import incident

EVICT = Evict(IncidentId("inc-1"), GroupName("rg_1"), ReplicaId("rg_1:u"), (Host("node1"),), "hung")
ROW = DecisionRow(
    IncidentId("inc-1"), 100.0, "evict", None, "hung", state=DecisionState.CARRIED_OUT, epoch=1,
    body={
        "group": "rg_1", "replica_id": "rg_1:u", "quarantine": ["node1"],
        "accused": {"rg_1.0": "one"},
    },
)  # fmt: skip
DECIDED = replace(ROW, state=DecisionState.DECIDED)
BY_HAND = replace(ROW, incident_id=IncidentId("manual-rg_1-7-100"), author="a person")
PROGRESS = EvictionProgress(IncidentId("inc-1"), GroupName("rg_1"), ReplicaId("rg_1:u"), 100.0, ())


def seen(incarnation: str = "one", *, alive: bool = True, away: bool = False) -> Snapshot:
    rank = FakeRank(identity("rg_1", incarnation=incarnation, host="node1"), alive=alive)
    outcome = Unreachable(Failure.TIMEOUT, "") if away else rank.report()
    one = Observation(rank.identity, rank.url, outcome, 0.01)
    return Snapshot(200.0, 7, 0.0, (one,), LighthouseAway("none configured"))


def judge(
    row: DecisionRow, snapshot: Snapshot, known: Incident | None = None, *, since_s: float = 190.0
):
    return judged(
        Unfinished(row, since_s), known, snapshot, held="budget: used up", patience_s=30.0
    )


def over(why: str, left_s: float | None = None) -> Incident:
    one = incident(state=State.RESOLVED)
    return replace(one, resolution=why, milestones=replace(one.milestones, left_quorum_s=left_s))


OPEN = incident()


@pytest.mark.parametrize(
    ("row", "snapshot", "known", "state", "words"),
    [
        pytest.param(ROW, seen("two"), OPEN, "confirmed", "are gone", id="it has restarted"),
        pytest.param(ROW, seen(alive=False), OPEN, "confirmed", "are gone", id="it is dead"),
        pytest.param(DECIDED, seen("two"), OPEN, "abandoned", "before anybody", id="nobody asked"),
        pytest.param(ROW, seen(), over("recovered"), "abandoned", "recovered", id="it recovered"),
        pytest.param(ROW, seen(away=True), over("evicted", 120.0), "confirmed", "evicted",
                     id="it left the quorum"),
        pytest.param(ROW, seen(away=True), over("evicted", 90.0), "abandoned", "evicted",
                     id="it had left before that"),
        pytest.param(BY_HAND, seen("two"), None, "confirmed", "are gone", id="by hand, gone"),
    ],
)  # fmt: skip
def test_what_the_fleet_shows_ends_it(row, snapshot, known, state: str, words: str) -> None:
    told = judge(row, snapshot, known)
    assert isinstance(told, End)
    assert told.state == state
    assert words in told.outcome


@pytest.mark.parametrize(
    ("row", "snapshot", "known"),
    [
        pytest.param(ROW, seen(), OPEN, id="the pipeline may decide it again"),
        pytest.param(ROW, seen(away=True), OPEN, id="it cannot be seen"),
        pytest.param(BY_HAND, seen(away=True), None, id="by hand and it cannot be seen"),
        pytest.param(replace(BY_HAND, body={"group": "rg_1"}), seen(), None, id="nobody is named"),
    ],
)  # fmt: skip
def test_it_waits_for_what_is_not_known_yet_and_not_for_ever(row, snapshot, known) -> None:
    assert judge(row, snapshot, known) is None
    told = judge(row, snapshot, known, since_s=169.0)
    assert told == End(DecisionState.ABANDONED, "not asked again within 30 s: budget: used up")


def test_what_a_person_asked_for_goes_on_while_the_same_processes_run() -> None:
    assert judge(BY_HAND, seen()) == replace(EVICT, incident_id=BY_HAND.incident_id)
    assert judge(BY_HAND, seen(), OPEN) is None  # an incident has its own rules


def test_decided_again_it_is_the_same_decision_and_its_next_attempt_if_somebody_was_asked() -> None:
    later = again(ROW, EVICT, {RankName("rg_1.0"): "one"}, 2)
    assert (later.at_s, later.attempt, later.epoch) == (100.0, 2, 2)
    assert later.state is DecisionState.DECIDED
    assert again(DECIDED, EVICT, {}, 2).attempt == 1
    assert evict_of(later) == EVICT


def test_what_is_left_open_is_known_by_its_eviction() -> None:
    going, ended = left_open([ROW], [PROGRESS], 200.0)
    assert (going, ended) == ((Unfinished(ROW, 200.0, PROGRESS),), ())
    going, ended = left_open([DECIDED], [PROGRESS], 200.0)
    assert going[0].row.state is DecisionState.CARRIED_OUT  # the eviction's row knows more
    gone = replace(PROGRESS, gone_s=105.0)
    going, ended = left_open([ROW], [gone], 200.0)
    assert (going, ended[0].state, ended[0].ended_s) == ((), DecisionState.CONFIRMED, 200.0)
    going, ended = left_open([ROW], [replace(PROGRESS, failed="not gone after 25 s")], 200.0)
    assert (ended[0].state, ended[0].outcome) == (DecisionState.FAILED, "not gone after 25 s")
    assert left_open([ended[0]], [], 200.0) == ((), ())


def test_of_two_open_decisions_about_one_incident_the_later_goes_on() -> None:
    going, ended = left_open([ROW, replace(ROW, at_s=150.0)], [], 200.0)
    assert [one.row.at_s for one in going] == [150.0]
    assert [(row.at_s, row.outcome) for row in ended] == [(100.0, "decided again")]
