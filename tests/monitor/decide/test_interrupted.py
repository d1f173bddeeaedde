"""What becomes of an eviction that a monitor left without an end."""

from __future__ import annotations

import pytest

from lightkeeper.monitor.decide.escalation import handle
from lightkeeper.monitor.model.escalation import DecidedAgain, EvictionDeps, Interrupted, Reviewed
from lightkeeper.monitor.model.eviction import Eviction, EvictionState, Host
from lightkeeper.monitor.model.incident import Incident, State
from lightkeeper.monitor.model.names import IncidentId
from lightkeeper.monitor.model.observation import (
    Failure,
    LighthouseAway,
    Observation,
    Snapshot,
    Unreachable,
)
from tests.changed import replace
from tests.monitor.decide.escalations import EVICT, fresh
from tests.monitor.fakes import FakeRank, identity
from tests.monitor.samples import incident

NOW_S = 200.0
ACCUSED = tuple(accused for accused in fresh().accused if accused.rank == "rg_1.0")
ASKED = fresh(
    state=EvictionState.INTERRUPTED, decided_s=100.0, asked_s=101.0, interrupted_s=190.0,
    accused=ACCUSED, taken_up=True, quarantine=(Host("node1"),), epoch=1,
)  # fmt: skip
DECIDED = replace(ASKED, taken_up=False)
BY_HAND = replace(ASKED, incident_id=IncidentId("by_hand-rg_1-7100"), author="a person")


def seen(incarnation: str = "one", *, alive: bool = True, away: bool = False) -> Snapshot:
    rank = FakeRank(identity("rg_1", incarnation=incarnation, host="node1"), alive=alive)
    outcome = Unreachable(Failure.TIMEOUT, "") if away else rank.report()
    observation = Observation(rank.identity, rank.url, outcome, 0.01)
    return Snapshot(NOW_S, 7, 0.0, (observation,), LighthouseAway("none configured"))


def after(
    eviction: Eviction, snapshot: Snapshot, open_incident: Incident | None = None
) -> Eviction:
    event = Reviewed(snapshot, open_incident, "budget: used up", patience_s=30.0, ack_s=5.0)
    moved, instructions = handle(eviction, event, NOW_S, EvictionDeps())
    assert instructions == ()
    return moved


def over(why: str, left_s: float | None = None) -> Incident:
    ended = incident(state=State.RESOLVED)
    return replace(
        ended, resolution=why, milestones=replace(ended.milestones, left_quorum_s=left_s)
    )


OPEN = incident()


@pytest.mark.parametrize(
    ("eviction", "snapshot", "known_incident", "state", "words"),
    [
        pytest.param(ASKED, seen("two"), OPEN, "confirmed", "are gone", id="it has restarted"),
        pytest.param(ASKED, seen(alive=False), OPEN, "confirmed", "are gone", id="it is dead"),
        pytest.param(DECIDED, seen("two"), OPEN, "abandoned", "before anybody", id="nobody asked"),
        pytest.param(ASKED, seen(), over("recovered"), "abandoned", "recovered", id="it recovered"),
        pytest.param(ASKED, seen(away=True), over("evicted", 120.0), "confirmed", "evicted",
                     id="it left the quorum"),
        pytest.param(ASKED, seen(away=True), over("evicted", 90.0), "abandoned", "evicted",
                     id="it had left before that"),
        pytest.param(BY_HAND, seen("two"), None, "confirmed", "are gone", id="by hand, gone"),
    ],
)  # fmt: skip
def test_what_the_fleet_shows_ends_it(
    eviction, snapshot, known_incident, state: str, words: str
) -> None:
    ended = after(eviction, snapshot, known_incident)
    assert (ended.state, ended.ended_s) == (state, NOW_S)
    assert words in ended.outcome


@pytest.mark.parametrize(
    ("eviction", "snapshot", "known_incident"),
    [
        pytest.param(ASKED, seen(), OPEN, id="the pipeline may decide it again"),
        pytest.param(ASKED, seen(away=True), OPEN, id="it cannot be seen"),
        pytest.param(BY_HAND, seen(away=True), None, id="by hand and it cannot be seen"),
        pytest.param(replace(BY_HAND, accused=()), seen(), None, id="nobody is named"),
    ],
)
def test_it_waits_for_what_is_not_known_yet_and_not_for_ever(
    eviction, snapshot, known_incident
) -> None:
    assert after(eviction, snapshot, known_incident) == eviction
    ended = after(replace(eviction, interrupted_s=169.0), snapshot, known_incident)
    assert ended.state is EvictionState.ABANDONED
    assert ended.outcome == "not asked again within 30 s: budget: used up"


def test_what_a_person_asked_for_goes_on_while_the_same_processes_run() -> None:
    for its_incident in (None, OPEN):  # the monitor may have ended before it wrote one
        ended = after(BY_HAND, seen(), its_incident)
        assert (ended.state, ended.attempt, ended.key) == ("decided", 2, BY_HAND.key)


def test_decided_again_it_is_the_same_eviction_and_its_next_attempt_if_somebody_was_asked() -> None:
    again = DecidedAgain(replace(EVICT, reason="hung on", accused=fresh().accused, epoch=2))
    later, _ = handle(ASKED, again, NOW_S, EvictionDeps())
    assert (later.key, later.attempt, later.epoch) == (ASKED.key, 2, 2)
    assert (later.reason, later.state, later.asked_s) == ("hung on", "decided", NOW_S)
    assert handle(DECIDED, again, NOW_S, EvictionDeps())[0].attempt == 1


def test_what_the_disk_does_not_take_has_to_be_decided_again() -> None:
    waiting = fresh()
    event = Reviewed(seen(), OPEN, None, patience_s=30.0, ack_s=5.0)
    early, _ = handle(waiting, event, waiting.asked_s + 5.0, EvictionDeps())
    assert early == waiting
    late, _ = handle(waiting, event, waiting.asked_s + 5.1, EvictionDeps())
    assert (late.state, late.interrupted_s) == ("interrupted", waiting.asked_s)


def test_a_restart_leaves_what_has_ended_as_it_ended() -> None:
    ended = after(ASKED, seen("two"), OPEN)
    after_restart, _ = handle(ended, Interrupted(), NOW_S + 9, EvictionDeps())
    assert after_restart == replace(ended, interrupted_s=None)
