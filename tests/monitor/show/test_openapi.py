"""The monitor's OpenAPI document and its routes say the same; parameters are obeyed or refused."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import jsonschema
import pytest

from lightkeeper.monitor.decide.view import View
from lightkeeper.monitor.show.web import reading
from lightkeeper.monitor.show.web.server import create_app
from tests.monitor import bodies, openapi
from tests.monitor.api import app_context
from tests.monitor.doubles import HandClock
from tests.monitor.openapi import document, sample_app
from tests.worker_server.ranks import ROOT

PATHS = json.loads(openapi.FILE.read_bytes())["paths"]
ASKED = {"prefix": "not_entered", "name": "node1"}
GETS = sorted(
    path for path in PATHS
    if "get" in PATHS[path] and path not in ("/metrics", "/openapi.json")
    and "{what}" not in path and not path.endswith("bundle")
)  # fmt: skip
TEXTS = [path for path in GETS if "text/plain" in str(PATHS[path]["get"]["responses"]["200"])]


def test_the_file_is_as_the_code_is() -> None:
    """`make openapi` writes it."""
    assert openapi.FILE.read_text() == openapi.text()
    served = sample_app().test_client().get("/openapi.json")
    assert served.json == document()


def test_every_route_of_the_api_is_described_and_vice_versa() -> None:
    routes = {
        (rule.rule.replace("<", "{").replace(">", "}"), method.lower())
        for rule in sample_app().url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
        if rule.rule.startswith("/v1/")
    }
    described = {(path, method) for path, item in PATHS.items() for method in item}
    assert described - routes == {
        (path, "get") for path in ("/healthz", "/readyz", "/metrics", "/openapi.json")
    }
    assert routes <= described


@pytest.mark.parametrize("path", GETS)
@pytest.mark.parametrize("view", [bodies.trains(), bodies.hung()], ids=["trains", "hung"])
def test_answers_of_another_fleet_follow_their_schema(path: str, view: View) -> None:
    asked = path.format(**ASKED) + ("?host=node1" if path == "/v1/admission" else "")
    context = app_context(HandClock(view.snapshot.now_s), view=lambda: view)
    answer = create_app(context).test_client().get(asked)
    if answer.status_code == 404:
        assert path == "/v1/incidents/{prefix}"
        return
    assert answer.status_code == 200, answer.text
    schema: dict[str, Any] = PATHS[path]["get"]["responses"]["200"]["content"]["application/json"]
    whole = {**schema["schema"], "components": document()["components"]}
    jsonschema.Draft202012Validator(whole).validate(answer.json)


@pytest.mark.parametrize("path", TEXTS)
def test_with_format_text_an_answer_is_what_is_printed(path: str) -> None:
    client = sample_app().test_client()
    asked = path.format(prefix="inc-1", name="node1")
    said = client.get(f"{asked}?format=text")
    assert (said.status_code, said.content_type) == (200, "text/plain; charset=utf-8")
    if path != "/v1/top":  # always of a width
        lines = client.get(f"{asked}?width=0").json["text"]
        assert said.text == "\n".join([*lines, ""])
    narrow = client.get(f"{asked}?format=text&width=40").text.splitlines()
    assert narrow == client.get(f"{asked}?width=40").json["text"]
    assert client.get(f"{asked}?format=json").is_json
    refused = client.get(f"{asked}?format=xml")
    assert refused.status_code == 400
    assert "expected json, text" in refused.json["error"]


def test_rows_that_are_left_out_are_counted_below_the_text() -> None:
    said = sample_app().test_client().get("/v1/ranks?format=text&limit=1").text
    assert said.splitlines()[-1] == "and 1 more"


@pytest.mark.parametrize("path", [path for path in GETS if path in reading.PARAMETERS])
def test_a_parameter_that_is_not_known_is_refused(path: str) -> None:
    answer = sample_app().test_client().get(f"{path}?fromat=text")
    assert answer.status_code == 400
    assert answer.json["error"].startswith("no such parameter: 'fromat', expected ")


def test_a_page_of_a_rank_refuses_what_it_does_not_know() -> None:
    client = sample_app().test_client()
    answer = client.get("/v1/ranks/rg_0.0/stacks?format=text", headers={"Host": "127.0.0.1"})
    assert (answer.status_code, answer.json["error"]) == (
        400, "no such parameter: 'format', expected native, raw",
    )  # fmt: skip


@pytest.mark.parametrize("path", ["/v1/admission?host=node1&x=1", "/v1/sd?x=1", "/healthz?x=1"])
def test_who_must_have_an_answer_gets_one(path: str) -> None:
    """A launcher that is refused an answer starts a group that is out."""
    assert sample_app().test_client().get(path).status_code == 200


@pytest.mark.integration
@pytest.mark.timeout(900)  # make explore
def test_schemathesis_finds_nothing() -> None:
    """Of both APIs, in a process of its own: pytest would compile the 400 modules of a plugin's
    package anew."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.monitor.conformance"],
        cwd=ROOT, capture_output=True, text=True, timeout=800, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    for api, least in (("monitor", 300), ("worker_server", 300)):
        assert said[api]["findings"] == [], f"{api}, seed {said['seed']}"
        assert said[api]["checked"] > least
