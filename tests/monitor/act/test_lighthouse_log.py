"""The Lighthouse over time: what counts as a restart, and what is exported of it."""

from __future__ import annotations

import pytest

from lightkeeper.monitor.act.lighthouse import STRANGERS_SHOWN, lighthouse_json
from lightkeeper.monitor.model.names import ReplicaId
from lightkeeper.monitor.model.observation import (
    LighthouseAway,
    LighthouseRecord,
    LighthouseView,
    Member,
)


def view(quorum_id: int, *members: str, beats: dict[str, float] | None = None) -> LighthouseView:
    ages_s = dict.fromkeys(members, 0.1) if beats is None else beats
    return LighthouseView(
        quorum_id,
        tuple(Member(ReplicaId(name), 7) for name in members),
        {ReplicaId(name): age_s for name, age_s in ages_s.items()},
        "fine",
    )


AWAY = LighthouseAway("connection refused")


def log(*looks: LighthouseView | LighthouseAway) -> LighthouseRecord:
    record = LighthouseRecord()
    for at_s, seen in enumerate(looks):
        record = record.after(seen, float(at_s))
    return record


@pytest.mark.parametrize(
    ("looks", "restarts", "changes"),
    [
        ((view(1, "a"), view(1, "a")), 0, 0),
        ((view(1, "a"), view(3, "a")), 0, 2),
        ((view(5, "a"), AWAY, view(6, "a")), 0, 1),
        ((view(5, "a"), AWAY, view(2, "a")), 1, 2),
        ((view(5, "a"), view(2, "a")), 1, 2),
        ((view(1, "a"), AWAY, view(1, "b", beats={"b": 0.1})), 1, 1),
        ((view(1, "a"), view(0, beats={})), 1, 0),
        ((view(1, beats={"a": 9.0}), view(1, "b", beats={"a": 9.5, "b": 0.1})), 0, 0),
        ((AWAY, view(4, "a")), 0, 0),
    ],
    ids=[
        "nothing new", "two quorums", "away only", "counts anew", "counts anew at once",
        "same id, a heartbeat forgotten", "forgets all", "a stranger ages", "first look",
    ],
)  # fmt: skip
def test_restarts_and_quorums_are_counted(looks, restarts, changes) -> None:
    record = log(*looks)
    assert (record.restarts, record.quorum_changes) == (restarts, changes)


def test_exports_members_others_and_ages() -> None:
    seen = view(4, "rg_0:a", beats={"rg_0:a": 0.25, "rg_1:b": 7.0, "rg_2:c": 3.0})
    body = lighthouse_json(log(seen), now_s=1.5)
    assert body == {
        "up": True, "reason": None, "away_for_s": None, "view_age_s": 1.5,
        "restarts": 0, "last_restart_age_s": None, "quorum_changes": 0,
        "quorum_id": 4, "status": "fine",
        "members": [{
            "replica_id": "rg_0:a", "group": "rg_0", "step": 7, "recovering": False,
            "address": None, "store_address": None, "world_size": None, "heartbeat_age_s": 0.25,
        }],
        "others": [
            {"replica_id": "rg_2:c", "group": "rg_2", "heartbeat_age_s": 3.0},
            {"replica_id": "rg_1:b", "group": "rg_1", "heartbeat_age_s": 7.0},
        ],
        "others_left_out": 0,
    }  # fmt: skip


def test_while_it_is_away_its_last_view_is_shown_with_its_age_and_why() -> None:
    body = lighthouse_json(log(view(4, "rg_0:a"), AWAY, AWAY), now_s=10.0)
    assert (body["up"], body["reason"]) == (False, "connection refused")
    assert (body["view_age_s"], body["away_for_s"], body["quorum_id"]) == (10.0, 9.0, 4)
    never_seen = lighthouse_json(log(AWAY), now_s=1.0)
    assert (never_seen["view_age_s"], "quorum_id" in never_seen) == (None, False)


def test_the_heartbeats_of_a_thousand_dead_are_shown_of_more_their_number() -> None:
    beats = {f"rg_1:{n}": float(n) for n in range(STRANGERS_SHOWN + 50)}
    body = lighthouse_json(log(view(4, "rg_0:a", beats=beats)), now_s=0.0)
    assert len(body["others"]) == STRANGERS_SHOWN
    assert body["others_left_out"] == 50


@pytest.mark.parametrize(
    ("seen", "out"),
    [
        (view(3, "b"), True),
        (view(3, "a", "b"), False),
        (view(0, beats={}), None),
        (view(0, beats={"b": 0.1}), True),
        (view(0, beats={"b": 0.1, "a": 9.0}), True),
        (view(0, beats={"b": 0.1, "a": 0.2}), None),
    ],
    ids=["left", "member", "hears nobody yet", "started anew", "its beats are dead", "it beats"],
)
def test_a_replica_id_is_out_of_the_quorum(seen: LighthouseView, out: bool | None) -> None:
    assert seen.out(ReplicaId("a"), dead_s=6.0) is out
