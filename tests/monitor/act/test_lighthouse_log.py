"""The Lighthouse over time: what counts as a restart, and who is out of the quorum."""

from __future__ import annotations

import pytest

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
