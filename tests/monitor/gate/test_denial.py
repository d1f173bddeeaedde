"""The gate's list and view on the wire."""

from __future__ import annotations

import json

import pytest

from monitor.gate.denylist import (
    Denial,
    DenialError,
    DenialScope,
    GateError,
    GateView,
    SeenReplica,
    denials_json,
    parse_denials,
    parse_view,
)
from monitor.model.names import GroupName, IncidentId, ReplicaId

FULL = Denial(
    scope=DenialScope.GROUP,
    name="rg_1",
    reason="rg_1 is quarantined: hang of rg_1.0 on host-1",
    until_s=1_700_000_000.5,
    incident_id=IncidentId("i-1"),
    admitted=frozenset({ReplicaId("rg_1:b")}),
    refused=frozenset({ReplicaId("rg_1:a")}),
)


def test_a_list_reads_back_as_it_was_written() -> None:
    plain = Denial(DenialScope.HOST, "node-7", "bad memory")
    assert parse_denials(json.loads(json.dumps(denials_json([FULL, plain])))) == (FULL, plain)


def test_a_view_reads_back_as_it_was_written() -> None:
    seen = SeenReplica(
        replica_id=ReplicaId("rg_1:a"),
        group=GroupName("rg_1"),
        heartbeat_age_s=0.25,
        heartbeats=12,
        quorum_requests=3,
        asking_for_s=None,
        step=7,
        commit_failures=0,
        address="http://node-7:1234",
        store_address="node-7:29500",
        world_size=8,
        refused=2,
        refused_for="rg_1 is quarantined",
    )
    view = GateView("http://127.0.0.1:29510", True, (FULL,), (seen,))
    assert parse_view(json.loads(json.dumps(view.to_json()))) == view


@pytest.mark.parametrize(
    ("body", "line"),
    [
        pytest.param([], 'expected {"denied": [...]}', id="no-object"),
        pytest.param({"denied": [1]}, "denied[0]: a denial is an object, not int", id="number"),
        pytest.param({"denied": [{}]}, "denied[0]: scope is 'None', expected", id="no-scope"),
        pytest.param(
            {"denied": [{"scope": "host", "name": " ", "reason": "x"}]},
            "denied[0]: name is missing or no text",
            id="blank",
        ),
        pytest.param(
            {"denied": [{"scope": "host", "name": "a\nb", "reason": "x"}]},
            "denied[0]: name holds characters that cannot be printed",
            id="newline",
        ),
        pytest.param(
            {"denied": [{"scope": "host", "name": "a", "reason": "x", "until_s": True}]},
            "denied[0]: until_s is neither Unix seconds nor null",
            id="until",
        ),
        pytest.param(
            {"denied": [{"scope": "host", "name": "a", "reason": "x", "until_s": 10**400}]},
            "denied[0]: until_s is neither Unix seconds nor null",
            id="until-of-400-digits",
        ),
        pytest.param(
            {"denied": [{"scope": "group", "name": "a", "reason": "x", "refused": "a:1"}]},
            "denied[0]: refused is no list of replica ids",
            id="ids",
        ),
        pytest.param(
            {"denied": [{"scope": "host", "name": "a", "reason": "x"}] * 2},
            "two denials of host 'a'",
            id="twice",
        ),
    ],
)
def test_what_is_no_list_is_refused_in_one_line(body: object, line: str) -> None:
    with pytest.raises(DenialError) as refused:
        parse_denials(body)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_another_schema_is_no_view() -> None:
    with pytest.raises(GateError):
        parse_view({"schema": 2})
