"""Every endpoint over a black box without a rank."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.sidecar import RefusalError, SilentError
from lightkeeper.worker_server.sidecar.app import BOTH, ENDPOINTS, JSON, in_json, in_text
from lightkeeper.worker_server.sidecar.process import EvictionResult
from tests.changed import replace
from tests.worker_server.boxes import IDENTITY, TOKEN, WITH_TOKEN, FakeBox, app_of, host_report
from tests.worker_server.wire_values import parse_last_words, parse_network


@pytest.fixture
def box():
    return FakeBox()


@pytest.fixture
def client(box):
    return app_of(box).test_client()


def test_reports_arrive_as_the_wire_parses_them(client, box):
    state = wire.parse_state(client.get(wire.PATH_STATE).json)
    assert (state.identity, state.step, state.heads) == (
        IDENTITY, box.state().step, box.state().heads,
    )  # fmt: skip
    assert wire.parse_steps(client.get(wire.PATH_STEPS).json) == box.steps()
    assert parse_last_words(client.get(wire.PATH_LAST_WORDS).json) == box.last_words()
    assert (
        wire.parse_flight_record(client.get(wire.PATH_FLIGHT_RECORDER).json) == box.flight_record()
    )
    assert wire.parse_host(client.get(wire.PATH_HOST).json) == host_report()
    machine = replace(box.machine.report(), identity=IDENTITY)
    assert wire.parse_machine(client.get(wire.PATH_MACHINE).json) == machine
    assert parse_network(client.get(wire.PATH_NETWORK).json) == box.network_report()


def test_parameters_reach_the_box(client, box):
    client.get(f"{wire.PATH_STEPS}?since=12")
    client.get(f"{wire.PATH_FLIGHT_RECORDER}?active=1")
    client.get(f"{wire.PATH_STACKS}?native=1")
    assert box.asked == [("steps", 12), ("flight_record", True), ("stacks", True)]


@pytest.mark.parametrize(
    "path", [endpoint.path for endpoint in ENDPOINTS if endpoint.formats == BOTH]
)
def test_every_answer_in_json_is_a_text_on_request(client, path):
    answer = client.get(f"{path}?format=text&rows=5")
    assert answer.content_type == "text/plain; charset=utf-8"
    assert client.get(path).is_json


def test_every_answer_that_is_read_and_no_document_has_a_text():
    only_json = {
        endpoint.name for endpoint in ENDPOINTS if endpoint.formats == JSON and not endpoint.acts
    }
    assert only_json == {"openapi"}


def test_a_path_that_is_not_there_says_where_the_others_are(client):
    answer = client.get("/nosuch")
    assert (answer.status_code, answer.json["error"]) == (
        404, "not found: /nosuch; GET / says what is here",
    )  # fmt: skip
    answer = client.get(wire.PATH_EVICT, headers=WITH_TOKEN)
    assert (answer.status_code, answer.json["error"]) == (405, "method not allowed: /v1/evict")
    assert "POST" in answer.headers["Allow"]


@pytest.mark.parametrize(
    ("path", "error"),
    [
        (f"{wire.PATH_STATE}?x=1", "unknown field `x`; known: raw, format, rows"),
        (f"{wire.PATH_STEPS}?since=-1", "Expected `int` >= 0 - at `$.since`"),
        (f"{wire.PATH_STEPS}?since=", "Expected `int`, got `str` - at `$.since`"),
        (f"{wire.PATH_STEPS}?since=9223372036854775808", "9223372036854775807 - at `$.since`"),
        (f"{wire.PATH_STEPS}?since=1&since=2", "'since' is given more than once"),
        (
            f"{wire.PATH_FLIGHT_RECORDER}?activ=1",
            "unknown field `activ`; known: raw, format, rows, active",
        ),
        (f"{wire.PATH_FLIGHT_RECORDER}?active=yes", "at `$.active`"),
        (f"{wire.PATH_FLIGHT_RECORDER}?active=2", "at `$.active`"),
        (f"{wire.PATH_FLIGHT_RECORDER}?format=xml", "Invalid enum value 'xml' - at `$.format`"),
        (f"{wire.PATH_STACKS}?native=", "at `$.native`"),
    ],
)
def test_a_parameter_that_makes_no_sense_is_named(client, box, path, error):
    answer = client.get(path, headers=WITH_TOKEN)
    assert answer.status_code == 400
    assert error in answer.json["error"]
    assert box.asked == []


@pytest.mark.parametrize(
    ("path", "wrong", "status"),
    [
        (wire.PATH_STACKS, ("stacks", SilentError("py-spy is missing")), 503),
        (wire.PATH_STACKS, ("stacks", RefusalError(410, "dead, and none were taken")), 410),
    ],
)
def test_what_cannot_be_had_says_why(client, box, path, wrong, status):
    name, exc = wrong
    box.wrong[name] = exc
    answer = client.get(path, headers=WITH_TOKEN)
    assert (answer.status_code, answer.json) == (status, {"error": str(exc)})


def test_a_bug_is_a_500_without_its_traceback(client, box):
    box.wrong["state"] = RuntimeError("secret")
    answer = client.get(wire.PATH_STATE)
    assert answer.status_code == 500
    assert answer.json == {"error": "internal error: RuntimeError; see the sidecar's log"}


@pytest.mark.parametrize(
    ("path", "places", "busy"),
    [(wire.PATH_STACKS, 2, "stacks"), (wire.PATH_FLIGHT_RECORDER, 3, "records")],
)
def test_slow_work_leaves_threads_for_the_state(box, path, places, busy):
    app, box.gate = app_of(box), threading.Event()

    def ask():
        return app.test_client().get(path, headers=WITH_TOKEN).status_code

    with ThreadPoolExecutor(places) as pool:
        under_way = [pool.submit(ask) for _ in range(places)]
        try:
            for _ in under_way:
                assert box.inside.acquire(timeout=10)
            refused = app.test_client().get(path, headers=WITH_TOKEN)
            assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
            assert refused.json["error"].startswith(f"{places} requests for {busy}")
            assert app.test_client().get(wire.PATH_STATE).status_code == 200
        finally:
            box.gate.set()
        assert [future.result(10) for future in under_way] == [200] * places
    assert ask() == 200


def test_an_eviction_is_carried_out_with_its_grace(box):
    orders = []

    def evictor(order):
        orders.append((order.grace_s, order.gently_s, order.manner))
        return EvictionResult(("SIGTERM", "SIGKILL"), gone=False, started_gone=3, started_left=1)

    client = app_of(box, evictor=evictor).test_client()
    order = {"reason": "it\nhangs", "grace_s": 7.5, "incarnation": "32bfd68baf"}
    answer = client.post(wire.PATH_EVICT, json=order, headers=WITH_TOKEN)
    assert answer.json == {
        "schema": 1, "signalled": ["SIGTERM", "SIGKILL"], "gone": False, "started_gone": 3,
        "started_left": 1, "way": "",
    }  # fmt: skip
    assert orders == [(7.5, 0.0, "")]


def test_an_order_to_release_reaches_the_rank_and_its_answer_comes_back(client, box):
    order = {"reason": "rg_0 is\ngone", "quorum_id": 7, "addresses": ["10.0.0.1", "::1"]}
    answer = client.post(wire.PATH_RELEASE, json=order, headers=WITH_TOKEN)
    assert answer.json == {"schema": 1, "ended": 2, "said": "ended 2 connections"}
    assert box.asked == [("release", 7, ("10.0.0.1", "::1"), 3.0)]


def test_the_addresses_of_two_thousand_hosts_fit_into_an_order(client, box):
    addresses = [f"10.111.{number // 200}.{50 + number % 200}" for number in range(2000)]
    order = {"reason": "x", "quorum_id": 7, "addresses": addresses}
    assert client.post(wire.PATH_RELEASE, json=order, headers=WITH_TOKEN).status_code == 200
    assert box.asked == [("release", 7, tuple(addresses), 3.0)]


@pytest.mark.parametrize(
    ("order", "token", "status", "error"),
    [
        ({}, None, 401, "wrong or missing bearer token"),
        ({"reason": " "}, TOKEN, 400, "at `$.reason`"),
        ({"quorum_id": -1}, TOKEN, 400, "at `$.quorum_id`"),
        ({"addresses": []}, TOKEN, 400, "at `$.addresses`"),
        ({"addresses": [1]}, TOKEN, 400, "at `$.addresses[0]`"),
        ({"incarnation": "older"}, TOKEN, 409, "meant for incarnation 'older'"),
    ],
    ids=str,
)
def test_a_bad_order_to_release_ends_nothing(client, box, order, token, status, error):
    headers = {} if token is None else WITH_TOKEN
    whole = {"reason": "x", "quorum_id": 7, "addresses": ["10.0.0.1"], **order}
    answer = client.post(wire.PATH_RELEASE, json=whole, headers=headers)
    assert (answer.status_code, list(answer.json)) == (status, ["error"])
    assert error in answer.json["error"]
    assert box.asked == []


def test_a_rank_that_does_not_answer_an_order_is_a_503(client, box):
    box.wrong["release"] = SilentError("the rank has not answered within 3 s")
    order = {"reason": "x", "quorum_id": 7, "addresses": ["10.0.0.1"]}
    answer = client.post(wire.PATH_RELEASE, json=order, headers=WITH_TOKEN)
    assert (answer.status_code, answer.json["error"]) == (503, str(box.wrong["release"]))


def test_metrics_come_in_the_format_that_is_asked_for(client):
    plain = client.get(wire.PATH_METRICS)
    assert plain.content_type.startswith("text/plain; version=")
    assert "# EOF" not in plain.text
    modern = client.get(
        wire.PATH_METRICS, headers={"Accept": "application/openmetrics-text;version=1.0.0"}
    )
    assert modern.content_type.startswith("application/openmetrics-text")
    assert modern.text.endswith("# EOF\n")


def test_the_help_page_has_a_line_for_every_route(client):
    text = client.get("/", headers={"Accept": "*/*"}).text
    rules = {rule.rule for rule in client.application.url_map.iter_rules()} - {"/"}
    assert {listed.path for listed in ENDPOINTS} - {"/"} == rules
    for endpoint in ENDPOINTS[1:]:
        assert endpoint.path + endpoint.example in text
        assert endpoint.what in text
    assert "curl 'http://localhost/v1/state?format=text'  " in text
    assert 'curl -X POST http://localhost/v1/evict -H "Authorization:' in text


def test_the_help_page_leads_to_the_rank_at_its_monitor(box):
    box.identity = wire.Identity(
        "<b>", wire.GroupName("g&h"), 0, 1, wire.Host('"x"'), 7, "32bfd68baf"
    )
    answer = app_of(box).test_client().get("/", headers={"Accept": "text/html"})
    assert answer.content_type == "text/plain; charset=utf-8"
    assert "http://m:8470/ranks/g%26h.0 is its page" in answer.text


@pytest.mark.parametrize(
    ("body", "token", "status", "error"),
    [
        (b'{"reason": "x"}', None, 401, "wrong or missing bearer token"),
        (b'{"reason": "x"}', "no", 401, "wrong or missing bearer token"),
        (b'{"reason": "x"}', "\u00e4", 401, "wrong or missing bearer token"),
        (b"[]", TOKEN, 400, "the body is no such order: Expected `object`"),
        (b"{}", TOKEN, 400, "missing required field `reason`"),
        (b'{"reason": 1}', TOKEN, 400, "at `$.reason`"),
        (b'{"reason": " "}', TOKEN, 400, "at `$.reason`"),
        (b'{"reason": "x", "incarnation": null}', TOKEN, 400, "at `$.incarnation`"),
        (b'{"reason": "x", "grace_s": "1"}', TOKEN, 400, "got `str` - at `$.grace_s`"),
        (b'{"reason": "x", "grace_s": -1}', TOKEN, 400, ">= 0.0 - at `$.grace_s`"),
        (b'{"reason": "x", "grace_s": 1e9}', TOKEN, 400, "<= 60.0 - at `$.grace_s`"),
        (b'{"reason": "x", "grace_s": ' + b"9" * 400 + b"}", TOKEN, 400, "at `$.grace_s`"),
        (b'{"reason": "x", "grace_s": NaN}', TOKEN, 400, "the body is not JSON"),
        (b'{"reason": "x", "incarnation": "older"}', TOKEN, 409, "meant for incarnation 'older'"),
        (b"{", TOKEN, 400, "the body is not JSON"),
        (b'{"new":' + b"[" * 9000, TOKEN, 400, "the body is not JSON"),
        (b"\xff", TOKEN, 400, "the body is not JSON"),
        (b"1" * 50_000, TOKEN, 413, "request entity too large"),
    ],
    ids=lambda cell: str(cell)[:40],
)  # fmt: skip
def test_a_bad_order_to_evict_gets_one_line_of_json(box, body, token, status, error):
    def evictor(order):
        raise AssertionError("evicted")

    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    client = app_of(box, evictor=evictor).test_client()
    answer = client.post(wire.PATH_EVICT, data=body, headers=headers)
    assert (answer.status_code, list(answer.json)) == (status, ["error"])
    assert error in answer.json["error"]
    assert answer.text.count("\n") == 1


def test_a_path_that_is_no_utf8_costs_its_own_characters_and_not_the_answer():
    answer = in_json({"source": "/logs/\udcff.err"})
    assert answer.json == {"source": "/logs/?.err"}
    assert in_text("/logs/\udcff.err").data == b"/logs/?.err"


@pytest.mark.parametrize(
    "path", ["/v1//state", "/v1/state/", "/v1/./state", "/v1/x/../evict", "/V1/state", "/v1//evict"]
)
def test_a_path_that_is_not_ours_is_not_found_rather_than_mended(path):
    client = app_of(FakeBox()).test_client()
    for method in ("GET", "HEAD", "POST"):
        answer = client.open(path, method=method)
        assert (answer.status_code, answer.headers.get("Location")) == (404, None)
