"""The API over real HTTP, with a keeper that is driven tick by tick."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import requests

from lightkeeper.monitor import show
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.names import RankName
from lightkeeper.monitor.service import Options, Service, StartError
from lightkeeper.monitor.show.web import reading
from lightkeeper.worker_server.wire import StepLog, StepRow, to_json
from tests.http_server import Hang
from tests.monitor.act.gates import FakeGate
from tests.monitor.api import TOKEN, Api, options
from tests.monitor.fakes import FakeFleet, FakeLighthouse, identity, page, wait_until
from tests.monitor.store.test_store import full_disk

STATIC = Path(show.__file__).parent / "web/static"


@pytest.fixture
def api(tmp_path: Path, lighthouse: FakeLighthouse) -> Iterator[Api]:
    with Service(options(tmp_path, lighthouse.url)) as made:
        yield Api(made)


@pytest.fixture(scope="module")
def unmoved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """One monitor for all that it must refuse: none of it, before or after another, changes it."""
    lighthouse = FakeLighthouse()
    try:
        with Service(options(tmp_path_factory.mktemp("unmoved"), lighthouse.url)) as made:
            api = Api(made)
            yield api
            assert api.get("/v1/sd") == []
            held = api.get("/v1/quarantine")
            assert (held["quarantine"], held["groups"]) == ([], [])
            assert made.keeper._components.evictors.active() == ()
    finally:
        lighthouse.close()


def test_before_the_first_tick_it_lives_and_is_not_ready(api: Api) -> None:
    assert api.get("/healthz")["ok"] is True
    answer = api.call("GET", "/readyz")
    assert (answer.status_code, list(answer.json())) == (503, ["error"])
    api.tick()
    assert api.get("/readyz")["ready"] is True


def test_a_client_that_asks_for_no_html_gets_text_and_a_browser_the_page(
    api: Api, fleet: FakeFleet
) -> None:
    rank = fleet.add("rg_0", 0, host="node0")
    api.register(rank)
    api.tick()
    said = api.call("GET", "/", headers={"Accept": "*/*"})  # curl, wget, requests
    assert said.headers["Content-Type"] == "text/plain; charset=utf-8"
    lines = said.text.splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["training", "held"]
    assert any(line.split()[:3] == ["rg_0", "healthy", "node0"] for line in lines)
    assert f"lightkeeper status --monitor {api.service.url}" in said.text
    html = api.call("GET", "/", headers={"Accept": "text/html,*/*;q=0.8"})
    assert html.headers["Content-Type"] == "text/html; charset=utf-8"


def test_the_snapshot_shows_groups_ranks_and_the_lighthouse(
    api: Api, fleet: FakeFleet, lighthouse: FakeLighthouse
) -> None:
    lighthouse.form("rg_0:a")
    good = fleet.add("rg_0", 0, replica_id="rg_0:a", host="node0")
    two = fleet.add("rg_1", 0, replica_id="rg_1:b", host="node1")
    two.answer = lambda _: page({}, 500)
    api.register(good, two)
    api.tick()
    body = api.get("/v1/snapshot")
    assert body["lighthouse"] == {
        "up": True,
        "quorum_id": 2,
        "status": "fine",
        "members": [{"replica_id": "rg_0:a", "group": "rg_0", "step": 10}],
        "heartbeat_ages_s": {"rg_0:a": 0.1},
    }
    assert [(group["group"], group["host"], group["in_quorum"]) for group in body["groups"]] == [
        ("rg_0", "node0", True),
        ("rg_1", "node1", False),
    ]
    first, second = body["ranks"]
    assert (first["rank"], first["phase"], first["step"], first["unreachable"]) == (
        "rg_0.0", "forward", 10, None,
    )  # fmt: skip
    assert second["health"] == "unreachable"
    assert second["unreachable"] == {"reason": "http", "detail": "status 500"}
    assert second["step"] is None
    assert api.get("/v1/ranks")["ranks"] == body["ranks"]
    assert api.get("/v1/groups")["groups"] == body["groups"]


def test_the_lighthouse_is_told_also_while_it_is_away(api: Api, lighthouse: FakeLighthouse) -> None:
    lighthouse.form("rg_0:a")
    api.tick()
    lighthouse.down = True
    api.tick()
    body = api.get("/v1/snapshot")["lighthouse"]
    assert body == {"up": False, "reason": "GET /status answered 503"}
    lighthouse.down, lighthouse.quorum_id = False, 1
    api.tick()
    assert "lightkeeper_lighthouse_restarts_total 1.0" in api.call("GET", "/metrics").text


def test_a_gate_is_kept_taught_and_its_absence_is_a_trouble(
    tmp_path: Path, lighthouse: FakeLighthouse
) -> None:
    gate = FakeGate()
    try:
        with Service(options(tmp_path, lighthouse.url, gate=gate.url)) as made:
            api = Api(made)
            body = {"reason": "broken fan", "hours": 1}
            api.call("PUT", "/v1/quarantine/node1", json=body, headers=TOKEN)
            wait_until(lambda: gate.refuses() == ["host node1"], what="the gate is taught")
            api.tick()
            assert made.keeper.view.snapshot.gate_up
            assert "lightkeeper_gate_answers 1.0" in api.call("GET", "/metrics").text
            gate.down = True

            def troubled() -> bool:
                api.tick()
                return any(
                    "the gate is away" in trouble for trouble in api.get("/v1/snapshot")["troubles"]
                )

            wait_until(troubled, what="the gate is missed")
    finally:
        gate.close()


def test_a_loss_that_is_not_a_number_is_still_json(api: Api, fleet: FakeFleet) -> None:
    rank = fleet.add()
    report = to_json(rank.report())
    report["step"]["loss"] = float("nan")
    rank.answer = lambda _: (200, "application/json", json.dumps(report).encode())
    api.register(rank)
    api.tick()
    text = api.call("GET", "/v1/snapshot").text
    assert json.loads(text, parse_constant=pytest.fail)["ranks"][0]["loss"] is None


# -- what changes something needs the token -------------------------------------------------------

WORK = ("ack", "assign", "comment", "resolve", "label")
CHANGES = [
    ("POST", "/v1/register"),
    ("DELETE", "/v1/register/rg_0.0?incarnation=one"),
    ("PUT", "/v1/quarantine/node1"),
    ("DELETE", "/v1/quarantine/node1"),
    ("PUT", "/v1/quarantine/groups/rg_1"),
    ("DELETE", "/v1/quarantine/groups/rg_1"),
    ("POST", "/v1/groups/rg_0/evict"),
    ("POST", "/v1/policy/reload"),
    ("POST", "/v1/pause"),
    ("DELETE", "/v1/pause"),
    *(("POST", f"/v1/incidents/x/{act}") for act in WORK),
    ("POST", "/v1/silences"),
    ("DELETE", "/v1/silences/x"),
]


@pytest.mark.parametrize(("method", "path"), CHANGES)
@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}], ids=["none", "wrong"])
def test_every_change_needs_the_token(unmoved: Api, method: str, path: str, headers: dict) -> None:
    answer = unmoved.call(method, path, json={"reason": "x"}, headers=headers)
    assert answer.status_code == 401
    assert answer.json() == {"error": "wrong or missing token: send 'Authorization: Bearer TOKEN'"}


def test_a_rank_with_a_wrong_token_is_told_on_the_page_and_counted(api: Api) -> None:
    api.call("POST", "/v1/register", json={}, headers={"Authorization": "Bearer wrong"})
    api.tick()
    [trouble] = api.get("/v1/snapshot")["troubles"]
    assert trouble.startswith(
        "ranks that are not shown want to register from 127.0.0.1: their token"
    )
    assert 'registrations_refused_total{reason="token"} 1.0' in api.call("GET", "/metrics").text


def test_a_page_of_another_site_changes_nothing(api: Api) -> None:
    headers = {**TOKEN, "Origin": "https://evil.example"}
    answer = api.call("PUT", "/v1/quarantine/node1", json={"reason": "x"}, headers=headers)
    assert answer.status_code == 403
    headers["Origin"] = api.url
    answer = api.call("PUT", "/v1/quarantine/node1", json={"reason": "x"}, headers=headers)
    assert answer.status_code == 200


def test_without_a_token_ranks_may_register_and_nothing_else_changes(
    tmp_path: Path, fleet: FakeFleet
) -> None:
    with Service(options(tmp_path, token=None)) as made:
        api = Api(made)
        body = to_json(fleet.add().registration())
        assert api.call("POST", "/v1/register", json=body).status_code == 200
        for method, path in CHANGES[2:]:
            answer = api.call(method, path, json={"reason": "x"})
            assert answer.status_code == 403
            assert "--token-file" in answer.json()["error"]
        api.tick()
        assert "watch-only: no Lighthouse and no token" in api.call("GET", "/").text
        snapshot = api.get("/v1/snapshot")
        assert (snapshot["tokenless"], snapshot["troubles"]) == (True, [])


@pytest.mark.parametrize("bind", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", "example.org:80"])
def test_refuses_to_serve_the_network_without_a_token(bind: str, tmp_path: Path) -> None:
    with pytest.raises(StartError, match="open to the network and no token"):
        Service(Options(KeeperConfig(), bind, tmp_path / "m.db"))


UNNAMED = {
    "schema": 1, "url": "http://127.0.0.1:9", "lease_s": 15.0,
    "identity": {**to_json(identity("rg_0", 0)), "group": "a b"},
}  # fmt: skip


# -- bad requests are one line of JSON ------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "options", "status", "words"),
    [
        ("GET", "/nothing", {}, 404, "not found: GET /nothing (what there is: curl http://127.0"),
        ("POST", "/v1/snapshot", {}, 405, "method not allowed: POST /v1/snapshot"),
        ("GET", "/v1/incidents/none", {}, 404, "no such incident: none"),
        ("GET", "/v1/incidents?limit=0", {}, 400, "limit is '0', expected 1 to 10000"),
        ("GET", "/v1/incidents?limit=%C2%B2", {}, 400, "limit is"),
        ("GET", "/v1/admission", {}, 400, "say which host"),
        ("GET", "/v1/ranks/rg_9.0/state", {}, 404, "no such rank: rg_9.0"),
        ("GET", "/v1/ranks/rg_9.0/secrets", {}, 404, "no such page of a rank"),
        ("POST", "/v1/register", {"data": b"{"}, 400, "the body is not JSON"),
        ("POST", "/v1/register", {"data": b"[" * 60_000}, 400, "the body is not JSON"),
        ("POST", "/v1/register", {"data": b"[]"}, 400, "not a JSON object"),
        ("POST", "/v1/register", {"json": {"schema": 2}}, 400, "schema 2 is not 1"),
        ("POST", "/v1/register", {"json": UNNAMED}, 400, "'group' is not a name"),
        ("POST", "/v1/register", {"data": b"x" * 100_000}, 413, "too large"),
        ("DELETE", "/v1/register/rg_0.0", {}, 400, "say which"),
        ("PUT", "/v1/quarantine/n", {"json": {}}, 400, "'reason' is not a text"),
        ("PUT", "/v1/quarantine/n", {"json": {"reason": "x", "hours": 0}}, 400, "'hours' is 0"),
        ("PUT", "/v1/quarantine/n", {"json": {"reason": "x", "hours": True}}, 400, "'hours'"),
        ("PUT", "/v1/quarantine/n", {"data": b'{"reason":"x","hours":NaN}'}, 400, "'hours'"),
        ("PUT", "/v1/quarantine/a%20b", {"json": {"reason": "x"}}, 400, "'host' is not a name"),
        ("DELETE", "/v1/quarantine/n", {}, 404, "n is not quarantined"),
        ("PUT", "/v1/quarantine/n", {"json": {"reason": "x", "author": 7}}, 400, "'author' is not"),
        ("PUT", "/v1/quarantine/groups/a%20b", {"json": {"reason": "x"}}, 400, "'group' is not"),
        ("DELETE", "/v1/quarantine/groups/g", {}, 404, "g is not quarantined"),
        ("POST", "/v1/pause", {"json": {}}, 400, "'reason' is not a text: say why"),
        ("POST", "/v1/pause", {"json": {"reason": "x", "hours": 0}}, 400, "'hours' is 0, expected"),
        ("POST", "/v1/pause", {"json": {"reason": "x", "author": ""}}, 400, "'author' is not a"),
        ("POST", "/v1/incidents/none/ack", {}, 404, "no such incident: none"),
        ("POST", "/v1/incidents/none/close", {}, 404, "not found"),
        ("POST", "/v1/silences", {"json": {}}, 400, "say what: kind, group, host, rank or run"),
        ("POST", "/v1/silences", {"json": {"kind": "dead", "reason": "x"}}, 400, "say 'hours'"),
        ("POST", "/v1/silences", {"json": {"kind": "dead", "hours": 1}}, 400, "'reason' is not a"),
        ("POST", "/v1/silences", {"json": {"kind": "daed", "hours": 1, "reason": "x"}}, 400,
         "no kind 'daed'; there is dead"),
        ("POST", "/v1/silences", {"json": {"kind": "dead", "grp": "g"}}, 400, "'grp' is nothing"),
        ("DELETE", "/v1/silences/x", {}, 404, "no such silence holds: x"),
        ("POST", "/v1/groups/none/evict", {"json": {"reason": "x"}}, 409, "no such group: none"),
    ],
)  # fmt: skip
def test_a_bad_request_is_answered_in_one_line(
    unmoved: Api, method: str, path: str, options: dict, status: int, words: str
) -> None:
    unmoved.tick()
    answer = unmoved.call(method, path, headers=TOKEN, **options)
    assert answer.status_code == status
    assert list(answer.json()) == ["error"]
    assert words in answer.json()["error"]
    assert answer.text.count("\n") == 1


def test_a_name_that_is_another_groups_is_refused_with_a_sentence(
    unmoved: Api, fleet: FakeFleet
) -> None:
    def ask(group: str, launched_as: str | None) -> requests.Response:
        body = to_json(fleet.add("rg_9").registration())
        body["url"] = "http://127.0.0.1:9"
        body["identity"] |= {"group": group, "incarnation": f"{group}{launched_as}"}
        if launched_as is not None:
            body["identity"]["launched_as"] = launched_as
        return unmoved.call("POST", "/v1/register", data=json.dumps(body), headers=TOKEN)

    assert ask("rg_7", None).status_code == 200
    refused = ask("rg_7", "rg_8")
    assert refused.status_code == 409
    assert refused.json()["refused_name"] == "rg_7"
    assert "it goes on as rg_8, its launcher's name" in refused.json()["error"]
    unmoved.call("DELETE", "/v1/register/rg_7.0?incarnation=rg_7None", headers=TOKEN)


# -- leases ---------------------------------------------------------------------------------------


def test_unregistering_takes_the_rank_off_the_lists(api: Api, fleet: FakeFleet) -> None:
    api.register(fleet.add())
    run = api.service.keeper._components.registry.run
    assert [entry["labels"] for entry in api.get("/v1/sd")] == [
        {"__scheme__": "http", "job_id": "job", "run": run.id,
         "replica_group": "rg_0", "rank": "0"}
    ]  # fmt: skip
    path = "/v1/register/rg_0.0?incarnation=one"
    assert api.call("DELETE", path, headers=TOKEN).json() == {"schema": 1, "removed": True}
    assert api.call("DELETE", path, headers=TOKEN).json() == {"schema": 1, "removed": False}
    assert api.get("/v1/sd") == []


# -- quarantine and admission ---------------------------------------------------------------------


def test_a_quarantined_host_is_refused_until_it_is_released(api: Api) -> None:
    admission = "/v1/admission?host=node1&group=rg_1"
    assert api.get(admission) == {"admit": True, "reason": "node1 is not quarantined"}
    body = {"reason": "ECC  errors", "hours": 2}
    until_s = api.call("PUT", "/v1/quarantine/node1", json=body, headers=TOKEN).json()["until_s"]
    refused = api.get(admission)
    assert [entry["host"] for entry in refused.pop("refused")] == ["node1"]
    assert refused == {
        "admit": False,
        "reason": "node1 is quarantined by a person: ECC errors",
        "until_s": until_s,
    }
    assert [entry["host"] for entry in api.get("/v1/quarantine")["quarantine"]] == ["node1"]
    assert api.call("DELETE", "/v1/quarantine/node1", headers=TOKEN).status_code == 200
    assert api.get(admission)["admit"] is True


def test_a_quarantine_shows_who_asked_why_and_for_which_incident(api: Api) -> None:
    body = {"reason": "ECC", "author": " ann\n", "incident_id": "inc-1"}
    api.call("PUT", "/v1/quarantine/node1", json=body, headers=TOKEN)
    (entry,) = api.get("/v1/quarantine")["quarantine"]
    assert (entry["scope"], entry["host"], entry["author"]) == ("host", "node1", "ann")
    assert (entry["incident_id"], entry["bundle"]) == ("inc-1", None)
    assert (entry["offences"], entry["lemon"]) == (0, None)
    api.tick()
    assert api.get("/v1/snapshot")["quarantine"] == [entry]


def test_nobody_signs_as_lightkeeper(api: Api) -> None:
    body = {"reason": "x", "author": "Lightkeeper"}
    api.call("PUT", "/v1/quarantine/node1", json=body, headers=TOKEN)
    (entry,) = api.get("/v1/quarantine")["quarantine"]
    assert entry["author"] == "Lightkeeper (by hand)"


def test_a_group_is_held_out_until_it_is_released(api: Api) -> None:
    path, admission = "/v1/quarantine/groups/rg_1", "/v1/admission?host=node1&group="
    answer = api.call("PUT", path, json={"reason": "bad shard", "author": "ann"}, headers=TOKEN)
    assert answer.json() == {"schema": 1, "group": "rg_1", "until_s": None}
    assert api.get(admission + "rg_1")["reason"] == "group rg_1 is quarantined by ann: bad shard"
    assert api.get(admission + "rg_2")["admit"] is True
    listed = api.get("/v1/quarantine")
    assert (listed["quarantine"], [row["group"] for row in listed["groups"]]) == ([], ["rg_1"])
    api.tick()
    assert api.get("/v1/snapshot")["quarantine_groups"] == listed["groups"]
    assert api.call("DELETE", "/v1/quarantine/rg_1", headers=TOKEN).status_code == 404
    assert api.call("DELETE", path, headers=TOKEN).json()["reset"] == "rg_1 may come back"
    assert api.get(admission + "rg_1")["admit"] is True
    changes = [line["change"] for line in api.get(path)["history"]]
    assert changes == ["released", "added"]


def test_a_host_tells_its_history_newest_first(api: Api) -> None:
    api.call("PUT", "/v1/quarantine/node1", json={"reason": "ECC"}, headers=TOKEN)
    body = {"author": "ann", "reason": "DIMM changed"}
    released = api.call("DELETE", "/v1/quarantine/node1", json=body, headers=TOKEN)
    assert released.json()["reset"] == "node1 may come back"
    host = api.get("/v1/quarantine/node1")
    assert (host["entry"], host["record"]["quarantines"]) == (None, 1)
    assert [(line["change"], line["author"], line["reason"]) for line in host["history"]] == [
        ("released", "ann", "DIMM changed"), ("added", "a person", "ECC"),
    ]  # fmt: skip
    assert api.get("/v1/quarantine/node2")["history"] == []


def test_rows_are_chosen_sorted_and_laid_out_as_asked(api: Api, fleet: FakeFleet) -> None:
    api.register(fleet.add("rg_2", host="node2"), fleet.add("rg_10", host="node1"))
    api.tick()
    body = api.get("/v1/ranks?sort=rank&limit=1")
    assert ([row["rank"] for row in body["ranks"]], body["more"]) == (["rg_2.0"], 1)
    body = api.get("/v1/ranks?host=node1&sort=busy&width=60")
    assert [line.split()[0] for line in body["text"]] == ["rank", "rg_10.0"]
    assert body["more"] == 0
    assert "ranks" not in body
    assert max(map(len, body["text"])) <= 60
    assert "url" in api.get("/v1/ranks?wide=1&width=0")["text"][0]
    assert api.get("/v1/groups?unhealthy=1&group=rg_2")["groups"] == []
    assert api.get("/v1/hosts?width=0")["text"][0].startswith("host ")


def test_screens_are_as_large_as_asked(api: Api, fleet: FakeFleet) -> None:
    api.register(*(fleet.add(f"rg_{number}") for number in range(9)))
    api.tick()
    lines = api.get("/v1/top?sort=phase-age&width=44&height=8")["text"]
    assert (len(lines), lines[-1]) == (8, "1 of 9 ranks by phase-age   Ctrl-C: leave")
    assert max(map(len, lines)) <= 44
    assert "text" not in api.get("/v1/status")
    assert api.get("/v1/status?width=0")["text"][0].startswith("training ")


@pytest.mark.parametrize(
    ("path", "status", "why"),
    [
        ("/v1/ranks?group=rg-0", 404, "no group 'rg-0'; there is rg_0"),
        ("/v1/hosts?host=node", 404, "no host 'node'; there is node0"),
        ("/v1/ranks?sort=heartbeat", 400, "sort is 'heartbeat', expected rank, busy, wait"),
        ("/v1/groups?limit=0", 400, "limit is '0', expected 1 to 10000000"),
        ("/v1/top?width=wide", 400, "width is 'wide', expected 1 to 10000000"),
    ],
)
def test_rows_that_cannot_be_are_refused(
    path: str, status: int, why: str, api: Api, fleet: FakeFleet
) -> None:
    api.register(fleet.add("rg_0", host="node0"))
    api.tick()
    said = api.call("GET", path)
    assert said.status_code == status
    assert said.json()["error"].startswith(why)


def test_hosts_are_listed_with_their_ranks_and_counters_worst_first(
    api: Api, fleet: FakeFleet
) -> None:
    api.register(fleet.add("rg_0", host="node0"), fleet.add("rg_1", host="node1"))
    api.call("PUT", "/v1/quarantine/node1", json={"reason": "x"}, headers=TOKEN)
    first, second = api.get("/v1/hosts")["hosts"]
    assert (first["host"], first["ranks"], first["groups"]) == ("node1", ["rg_1.0"], ["rg_1"])
    assert (first["quarantined"], first["until_s"], first["exclusions"]) == (True, None, 1)
    assert (second["host"], second["quarantined"], second["incidents"]) == ("node0", False, {})
    api.tick()
    healths = [host["health"] for host in api.get("/v1/hosts")["hosts"]]
    assert healths == ["healthy", "healthy"]
    metrics = api.call("GET", "/metrics").text
    quarantined = 'lightkeeper_host_offences{host="node1",signal="quarantines"} 1.0'
    assert quarantined in metrics
    assert 'host="node0"' not in metrics


# -- eviction by hand -----------------------------------------------------------------------------


def test_a_person_evicts_a_group(api: Api, fleet: FakeFleet) -> None:
    rank = fleet.add("rg_1")
    api.register(rank)
    api.tick()
    answer = api.call("POST", "/v1/groups/rg_1/evict", json={"reason": "moving"}, headers=TOKEN)
    assert answer.json()["incident_id"].startswith("by_hand-rg_1-")
    wait_until(lambda: not rank.alive, 10, "the rank is evicted")
    assert rank.evictions[0]["reason"] == "moving"
    api.evictions_end()
    api.tick()
    assert (
        'lightkeeper_evictions_total{kind="by_hand",outcome="gone"} 1.0'
        in api.call("GET", "/metrics").text
    )


# -- passed through -------------------------------------------------------------------------------


def test_a_ranks_own_pages_are_passed_through(api: Api, fleet: FakeFleet) -> None:
    rank = fleet.add()
    api.register(rank)
    assert api.get("/v1/ranks/rg_0.0/state") == to_json(rank.report())
    assert api.get("/v1/ranks/rg_0.0/flight_recorder")["alive"] is True
    stacks = api.call("GET", "/v1/ranks/rg_0.0/stacks")
    assert (stacks.text, stacks.headers["Content-Type"]) == (
        "Thread 1: train.py:10\n",
        "text/plain",
    )


def test_a_rank_that_hangs_or_floods_is_a_502(
    api: Api, fleet: FakeFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient = replace(reading._PAGES["state"], timeout_s=0.5)
    monkeypatch.setitem(reading._PAGES, "state", impatient)

    def hang(_):
        raise Hang

    rank = fleet.add()
    api.register(rank)
    for answer in (hang, lambda _: page("x" * 200_000)):
        rank.answer = answer
        said = api.call("GET", "/v1/ranks/rg_0.0/state")
        assert said.status_code == 502
        assert "gave no answer" in said.json()["error"]


def test_what_a_rank_says_is_never_shown_as_a_page_of_ours(api: Api, fleet: FakeFleet) -> None:
    rank = fleet.add()
    api.register(rank)
    rank.answer = lambda _: (200, "text/html", b"<script>alert(1)</script>")
    said = api.call("GET", "/v1/ranks/rg_0.0/state")
    assert said.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert said.headers["X-Content-Type-Options"] == "nosniff"
    rank.answer = lambda _: page({}, 302)
    said = api.call("GET", "/v1/ranks/rg_0.0/state", allow_redirects=False)
    assert (said.status_code, said.headers.get("Location")) == (502, None)


def test_what_a_rank_says_has_a_page_that_leads_back(api: Api, fleet: FakeFleet) -> None:
    api.register(fleet.add())
    api.tick()
    said = api.call("GET", "/ranks/rg_0.0?show=stacks")
    assert said.headers["Content-Type"].startswith("text/html")
    for markup in (
        ">Thread 1: train.py:10</pre>",
        '<a href="/ranks/rg_0.0">rg_0.0</a>',
        '<a href="/ranks/rg_0.0?show=flight_recorder">flight recorder</a>',
        '<a href="/v1/ranks/rg_0.0/stacks">as text</a>',
    ):
        assert markup in said.text, markup


def test_the_page_of_a_ranks_steps_draws_their_phases(api: Api, fleet: FakeFleet) -> None:
    rank = fleet.add()
    api.register(rank)
    api.tick()
    evil = "<script>alert(1)</script>"
    rows = [StepRow(n, n, 1, 9.0 - n, 1.0, {"forward": 0.4, evil: 0.5}) for n in range(3)]
    log = to_json(StepLog(rank.identity, True, tuple(rows)))
    rank.steps = log
    said = api.call("GET", "/ranks/rg_0.0?show=steps")
    assert "Its last 3 steps" in said.text
    assert said.text.count('class="hit"') == 3
    assert "forward 0.4 s" in said.text
    assert evil not in said.text
    for broken in ({}, [], "odd", {**log, "rows": [[1]]}):
        rank.steps = broken
        said = api.call("GET", "/ranks/rg_0.0?show=steps")
        assert (said.status_code, 'class="hit"' in said.text) == (200, False)


def test_on_that_page_what_a_rank_says_is_text(api: Api, fleet: FakeFleet) -> None:
    rank = fleet.add()
    api.register(rank)
    rank.answer = lambda _: (200, "text/html", b"<script>alert(1)</script>\nx")
    said = api.call("GET", "/ranks/rg_0.0?show=state")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\n" in said.text
    assert "<script>" not in said.text


def test_a_page_of_a_rank_that_does_not_answer_says_why(api: Api, fleet: FakeFleet) -> None:
    rank = fleet.add()
    api.register(rank)
    rank.answer = lambda _: page({"error": "the rank is gone"}, 503)
    for path, status, why in (
        ("/ranks/rg_0.0?show=state", 503, "The rank&#39;s WorkerServer answers 503"),
        ("/ranks/rg_0.0?show=nothing", 404, "No such page of a rank: nothing"),
        ("/ranks/rg_7.0?show=state", 404, "No such rank: rg_7.0"),
    ):
        said = api.call("GET", path)
        assert said.status_code == status
        assert why in said.text
        assert "<pre" not in said.text


# -- the page -------------------------------------------------------------------------------------


def test_the_page_brings_everything_from_here(api: Api, fleet: FakeFleet) -> None:
    api.register(fleet.add())
    api.tick()
    answer = api.call("GET", "/", headers={"Accept": "text/html"})
    assert answer.status_code == 200
    assert "rg_0.0" in answer.text
    assert answer.headers["Content-Type"].startswith("text/html")
    assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
    assert "http://" not in answer.text
    assert "https://" not in answer.text
    for name in ("page.css", "page.js", "icon.svg"):
        assert api.call("GET", f"/static/{name}").status_code == 200
    modules = sorted(STATIC.glob("*.js"))
    assert len(modules) > 1
    for module in modules:
        assert api.call("GET", f"/static/{module.name}").status_code == 200
        script = module.read_text(encoding="utf-8")
        for dangerous in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write",
                          "eval(", "DOMParser", "localStorage"):  # fmt: skip
            # the page itself, as the monitor wrote it and escaped all texts; "UTC" or "local"
            expected = {("sections.js", "DOMParser"), ("zone.js", "localStorage")}
            assert (module.name, dangerous) in expected or dangerous not in script, module


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/pause", {"reason": "rack 7"}),
        ("PUT", "/v1/quarantine/node7", {"reason": "ECC"}),
        ("POST", "/v1/groups/rg_0/evict", {"reason": "sick"}),
    ],
)
def test_by_hand_says_that_the_store_takes_no_writes(
    api: Api, fleet: FakeFleet, method: str, path: str, body: dict[str, str]
) -> None:
    """It said "this monitor stands by", for itself."""
    rank = fleet.add("rg_0")
    api.register(rank)
    api.tick()
    store, lease = api.components.store, api.components.lease
    full_disk(store, full=True)
    for number in range(99):
        store.save_target(RankName(f"rg_9.{number}"), {"url": "x" * 5000})
    said = api.call(method, path, json=body, headers=TOKEN)
    assert said.status_code == 409
    assert "takes no writes: database or disk is full" in " ".join(said.json()["error"].split())
    with closing(sqlite3.connect(store.place.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        lease.turn()
        said = api.call(method, path, json=body, headers=TOKEN)
    assert said.status_code == 409
    assert said.json()["error"] == (
        f"this monitor may not act now: the store {store.place} takes no writes: database is locked"
    )
    assert rank.alive
