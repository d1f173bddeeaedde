"""Groups, tempo and JSON: what is shown of one snapshot."""

from __future__ import annotations

import pytest

from lightkeeper.monitor.decide.view import group_views
from lightkeeper.monitor.decide.view_json import report_to_json, snapshot_to_json
from lightkeeper.monitor.model.eviction import Guard, Hold
from lightkeeper.monitor.model.names import GroupName, IncidentId, RankName, ReplicaId
from lightkeeper.monitor.model.observation import LighthouseAway, LighthouseView, Member
from lightkeeper.monitor.model.verdict import RankHealth
from tests.monitor.samples import ENTRY, EVICTION, incident, seen, view


def test_a_group_is_as_sick_as_its_worst_rank() -> None:
    health = {RankName("rg_0.0"): RankHealth.WAITING, RankName("rg_0.1"): RankHealth.STALLED}
    (group,) = [
        row
        for row in group_views(view(seen("rg_0"), seen("rg_0", 1), health=health))
        if row.group == "rg_0"
    ]
    assert group.health == "stalled"


def test_a_group_that_only_the_lighthouse_knows_is_shown() -> None:
    groups = {group.group: group for group in group_views(view(seen("rg_0", replica_id="rg_0:a")))}
    assert sorted(groups) == ["rg_0", "rg_9"]
    assert (groups["rg_9"].ranks, groups["rg_9"].in_quorum, groups["rg_9"].health) == (
        (), True, "unknown",
    )  # fmt: skip
    assert groups["rg_0"].heartbeat_age_s == 0.5


def test_a_restarted_group_that_did_not_join_yet_is_not_in_the_quorum() -> None:
    groups = group_views(view(seen("rg_0", replica_id="rg_0:new")))
    assert [group.in_quorum for group in groups if group.group == "rg_0"] == [False]


@pytest.mark.parametrize(("beats_s", "names"), [(0.2, ["rg_0", "rg_0~bcdefghi"]), (9.0, ["rg_0"])])
def test_a_second_life_of_a_group_that_beats_is_a_group_of_its_own(beats_s, names) -> None:
    twice = LighthouseView(
        4, (Member(ReplicaId("rg_0:a"), 7), Member(ReplicaId("rg_0:bcdefghijk"), 7)),
        {ReplicaId("rg_0:a"): 0.1, ReplicaId("rg_0:bcdefghijk"): beats_s}, "fine",
    )  # fmt: skip
    groups = group_views(view(seen("rg_0", replica_id="rg_0:a"), lighthouse=twice))
    assert [row.group for row in groups] == names
    assert [row.replica_id for row in groups[1:]] == ["rg_0:bcdefghijk"][: len(names) - 1]


def test_without_a_lighthouse_membership_is_unknown_and_not_no() -> None:
    groups = group_views(view(seen("rg_0"), lighthouse=LighthouseAway("refused")))
    assert [group.in_quorum for group in groups] == [None]


def test_an_incident_carries_its_decisions_and_its_eviction() -> None:
    row = Hold(IncidentId("inc-1"), Guard.COOL_DOWN, "too soon", "later", at_s=102.0)
    shown = view(
        incidents=(incident(),),
        decisions={IncidentId("inc-1"): (row, EVICTION)},
        quarantine=(ENTRY,),
        evicting=frozenset({GroupName("rg_9")}),
    )
    body = report_to_json(shown.report(incident()))
    assert body["decisions"][:1] == [
        {
            "at_s": 102.0,
            "action": "hold",
            "guard": "cool_down",
            "reason": "too soon",
            "release": "later",
            "state": "held",
            "author": "lightkeeper",
            "epoch": 0,
            "attempt": 1,
            "ended_s": None,
            "outcome": "",
        }
    ]
    assert body["eviction"]["rungs"][0]["rung"] == "lighthouse_kill"
    assert body["milestones"]["firing_s"] == 102.0
    whole = snapshot_to_json(shown)
    assert [listed["id"] for listed in whole["incidents"]] == ["inc-1"]
    assert [entry["host"] for entry in whole["quarantine"]] == ["node1"]
    assert {group.group: group.eviction for group in whole["groups"]} == {
        "rg_0": None, "rg_9": "evicting",
    }  # fmt: skip
