"""The gate's list and view on the wire."""

from __future__ import annotations

import json

import pytest

from lightkeeper.gate.denylist import (
    Denial,
    DenialScope,
    GateView,
    SeenReplica,
    denials_json,
    parse_denials,
    wire_json,
)
from lightkeeper.monitor.model.names import GroupName, IncidentId, ReplicaId
from lightkeeper.monitor.model.plain import from_plain

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
        asking_for_s=None,
        step=7,
        refused_for="rg_1 is quarantined",
    )
    view = GateView("http://127.0.0.1:29510", True, (FULL,), (seen,))
    assert from_plain(GateView, json.loads(json.dumps(wire_json(view)))) == view


HOST = {"scope": "host", "name": "a", "reason": "x"}


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ([], "Expected `object`, got `array`"),
        ({"denied": [1]}, "Expected `object`, got `int` - at `$.denied[0]`"),
        ({"denied": [{}]}, "missing required field `scope` - at `$.denied[0]`"),
        ({"denied": [{**HOST, "scope": "a\nb" * 999}]}, "Invalid enum value 'a"),
        ({"denied": [{**HOST, "name": " "}]}, "denied[0] holds no text"),
        ({"denied": [{**HOST, "name": "a\nb"}]}, "cannot be printed"),
        ({"denied": [{**HOST, "name": "\ud800"}]}, "denied[0]"),
        ({"denied": [{**HOST, "name": "x" * 1025}]}, "length <= 1024 - at `$.denied[0].name`"),
        ({"denied": [{**HOST, "until_s": True}]}, "got `bool`"),
        ({"denied": [{**HOST, "until_s": 10**400}]}, "out of range"),
        ({"denied": [{**HOST, "until_s": float("nan")}]}, "until_s"),
        ({"denied": [{**HOST, "refused": "a:1"}]}, "Expected `array`"),
        ({"denied": [HOST] * 2}, "two denials of host 'a'"),
    ],
)
def test_what_is_no_list_is_refused_in_one_line(body: object, line: str) -> None:
    with pytest.raises(ValueError, match=r"\A.{,200}\Z") as refused:
        parse_denials(body)
    assert line in str(refused.value)


def test_another_schema_is_no_view() -> None:
    view = GateView("http://127.0.0.1:29510", True, (), ())
    with pytest.raises(ValueError, match="schema"):
        from_plain(GateView, {**wire_json(view), "schema": 2})
