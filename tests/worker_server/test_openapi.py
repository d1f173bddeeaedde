"""The OpenAPI document and the server say the same."""

from __future__ import annotations

import dataclasses
import re

import jsonschema
import pytest
from msgspec import Struct, structs

from lightkeeper.monitor.act.bundles import KINDS, Part, PartStatus, weigh
from lightkeeper.worker_server import wire
from lightkeeper.worker_server.rank.settings import Settings
from lightkeeper.worker_server.sidecar.app import ENDPOINTS
from tests import openapi
from tests.worker_server.boxes import IDENTITY, TOKEN, WITH_TOKEN, FakeBox, app_of

DOCUMENT = app_of(FakeBox()).test_client().get(wire.PATH_OPENAPI).json
OPERATIONS = [
    (path, method, operation)
    for path, item in DOCUMENT["paths"].items()
    for method, operation in item.items()
]


def validator(schema):
    return jsonschema.Draft202012Validator({**schema, "components": DOCUMENT["components"]})


def test_the_file_is_as_the_code_is():
    """`make openapi` writes it."""
    assert openapi.FILE.read_text() == openapi.text()


def test_every_route_is_described_and_vice_versa():
    routes = {
        (rule.rule, method.lower())
        for rule in app_of(FakeBox()).url_map.iter_rules()
        for method in rule.methods - {"HEAD", "OPTIONS"}
    }
    assert {(path, method) for path, method, _ in OPERATIONS} == routes


@pytest.mark.parametrize(("path", "method", "operation"), OPERATIONS, ids=lambda x: str(x)[:40])
def test_real_answers_follow_their_schema(path, method, operation):
    client = app_of(FakeBox()).test_client()
    bodies = {endpoint.path: endpoint.body for endpoint in ENDPOINTS}
    body = {"data": bodies[path]} if method == "post" else {}
    answer = client.open(path, method=method, headers=WITH_TOKEN, **body)
    assert answer.status_code == 200
    content = operation["responses"]["200"]["content"]
    kind = answer.content_type.partition(";")[0]
    assert kind in content
    if kind == "application/json":
        validator(content[kind]["schema"]).validate(answer.json)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.json], ids=lambda kind: kind.name)
def test_what_a_monitor_keeps_as_evidence_names_the_rank_that_said_it(kind):
    body = app_of(FakeBox()).test_client().get(kind.path).data
    part = Part(IDENTITY.rank, kind, PartStatus.OK, body)
    assert weigh(part, IDENTITY).status is PartStatus.OK


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Identity", wire.Identity), ("Process", wire.Process), ("StepState", wire.StepState),
        ("StateReport", wire.StateReport), ("StepLog", wire.StepLog),
        ("RingEntry", wire.RingEntry), ("FlightRecord", wire.FlightRecord),
        ("Trace", wire.Trace), ("LastWords", wire.LastWords), ("HostEntry", wire.HostEntry),
        ("HostReport", wire.HostReport), ("NetworkReport", wire.NetworkReport),
        ("MachineReport", wire.MachineReport),
    ],
)  # fmt: skip
def test_a_schema_names_every_field_of_its_type_and_no_other(name, kind):
    described = set(DOCUMENT["components"]["schemas"][name]["properties"]) - {"schema"}
    fields = structs.fields(kind) if issubclass(kind, Struct) else dataclasses.fields(kind)
    assert described == {field.name for field in fields}


def test_an_answer_that_lacks_a_key_is_found_out():
    state = app_of(FakeBox()).test_client().get(wire.PATH_STATE).json
    del state["identity"]["pid"]
    schema = DOCUMENT["components"]["schemas"]["StateReport"]
    with pytest.raises(jsonschema.ValidationError, match="pid"):
        validator(schema).validate(state)


def test_every_error_that_the_routes_raise_is_described():
    text = re.sub(r"\s+", " ", str(DOCUMENT["paths"]))
    for _, _, operation in OPERATIONS:
        assert {"200", "401", "403"} <= set(operation["responses"])
        assert operation["operationId"] in text


def test_refusals_follow_their_schema():
    client = app_of(FakeBox(), Settings(bind="0.0.0.0", token=TOKEN)).test_client()
    for path, method, operation in OPERATIONS:
        answer = client.open(path, method=method)
        described = operation["responses"][str(answer.status_code)]
        validator(described["content"]["application/json"]["schema"]).validate(answer.json)
        assert {"WWW-Authenticate"} == set(described["headers"]) & set(answer.headers.keys())
