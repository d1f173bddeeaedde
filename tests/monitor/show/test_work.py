"""An incident is worked over HTTP: who did what is kept, shown, and reaches no decision."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lightkeeper.monitor.service import Service
from tests.monitor.api import TOKEN, Api, Script, options
from tests.monitor.decided import to_evict
from tests.monitor.fakes import FakeFleet, FakeLighthouse, wait_until
from tests.monitor.samples import incident

ANN = {"author": "ann"}


@pytest.fixture
def api(tmp_path: Path, lighthouse: FakeLighthouse) -> Iterator[Api]:
    with Service(options(tmp_path, lighthouse.url)) as made:
        yield seen(Api(made))


class Judge(Script):
    """Also closes what only a person may close."""

    def __init__(self, *results) -> None:
        super().__init__(list(results))
        self.closed: list[tuple[str, str, str]] = []

    def close(self, *words: str) -> bool:
        self.closed.append(words)
        return False


def seen(api: Api) -> Api:
    """It has an incident."""
    api.judged_by(Judge({"changed": (incident(),)}))
    api.tick()
    return api


def post(api: Api, act: str, status: int = 200, name: str = "inc-1", **body):
    answer = api.call("POST", f"/v1/incidents/{name}/{act}", json=ANN | body, headers=TOKEN)
    assert answer.status_code == status, answer.text
    return answer.json()


def silence(api: Api, **match: str) -> str:
    body = {"hours": 2, "reason": "switch", **ANN, **match}
    answer = api.call("POST", "/v1/silences", json=body, headers=TOKEN)
    assert answer.status_code == 200, answer.text
    return answer.json()["silence"]["id"]


def work(api: Api) -> dict:
    return api.get("/v1/incidents/inc-1")["work"]


def test_each_act_is_shown_at_once_with_its_author(api: Api) -> None:
    assert work(api)["rows"] == []
    post(api, "ack", name="inc", reason="looking")
    post(api, "assign", to="bob")
    post(api, "comment", text="ticket\n4711")
    post(api, "label", right=False, reason="by design")
    post(api, "resolve", reason="a debugger")
    shown = work(api)
    assert [row["action"] for row in shown["rows"]] == [
        "ack", "assign", "comment", "label", "resolve",
    ]  # fmt: skip
    assert {row["author"] for row in shown["rows"]} == {"ann"}
    assert shown["rows"][2]["text"] == "ticket 4711"
    assert (shown["resolved_by"], shown["acknowledged_by"]) == ("ann", None)
    assert (shown["assignee"], shown["right"]) == ("bob", False)
    assert shown["says"] == "resolved by ann: a debugger; assigned to bob"
    text = api.get("/v1/incidents?width=200")["text"]
    assert "resolved ann" in "\n".join(text)
    assert "Resolved by ann: a debugger" in api.call("GET", "/incidents").text


@pytest.mark.parametrize(
    ("act", "body", "words"),
    [
        ("assign", {}, "'to' is not a text"), ("comment", {}, "'text' is not a text"),
        ("comment", {"text": "x" * 1001}, "at most 1000 are kept"),
        ("resolve", {}, "'reason' is not a text"), ("label", {"right": "yes"}, "'right' is 'yes'"),
        ("label", {}, "expected true or false"), ("ack", {"reason": 7}, "'reason' is not a text"),
    ],
    ids=str,
)  # fmt: skip
def test_what_makes_no_sense_is_refused(api: Api, act: str, body: dict, words: str) -> None:
    assert words in post(api, act, 400, **body)["error"]
    assert work(api)["rows"] == []


def test_an_incident_takes_so_many_entries(api: Api, monkeypatch) -> None:
    monkeypatch.setattr("lightkeeper.monitor.loop.loop._WORK_MOST", 2)
    for number in range(2):
        post(api, "comment", text=str(number))
    assert "no more are kept" in post(api, "comment", 409, text="3")["error"]


def test_it_outlives_the_monitor(tmp_path: Path, lighthouse: FakeLighthouse) -> None:
    with Service(options(tmp_path, lighthouse.url)) as made:
        api = seen(Api(made))
        post(api, "ack")
        name = silence(api, kind="dead")
    with Service(options(tmp_path, lighthouse.url)) as made:
        api = Api(made)
        api.tick()
        assert work(api)["acknowledged_by"] == "ann"
        assert [row["id"] for row in api.get("/v1/silences")["silences"]] == [name]


def test_a_second_monitor_shows_it_and_changes_nothing(
    tmp_path: Path, lighthouse: FakeLighthouse
) -> None:
    active, standby = options(tmp_path, lighthouse.url), options(tmp_path, lighthouse.url)
    with Service(active) as first, Service(standby) as second:
        api, other = seen(Api(first)), Api(second)
        post(api, "ack")

        def shown() -> bool:
            incidents = other.tick_in_turn() and other.get("/v1/incidents")["incidents"]
            return bool(incidents) and incidents[0]["work"]["acknowledged_by"] == "ann"

        wait_until(shown, 10, "it is seen there")
        assert "stands by" in post(other, "comment", 409, text="x")["error"]
        assert [row["action"] for row in work(api)["rows"]] == ["ack"]


def test_a_person_that_resolves_it_neither_ends_nor_begins_an_eviction(
    api: Api, fleet: FakeFleet
) -> None:
    rank = fleet.add("rg_1")
    api.register(rank)
    judge = Judge()
    api.judged_by(judge)
    api.tick()
    post(api, "resolve", reason="by design")
    assert judge.closed == [("inc-1", "ann", "by design")]
    silence(api, group="rg_1")
    for _ in range(3):
        api.tick()
    assert api.get("/v1/incidents/inc-1")["state"] == "firing"
    assert (rank.alive, rank.evictions) == (True, [])
    evict = to_evict("inc-1", "rg_1", None, (), "it hangs")
    judge.results.append({"decisions": (evict,)})
    api.tick()
    wait_until(lambda: not rank.alive, 10, "the eviction goes on")
    api.evictions_end()


def test_what_a_person_has_resolved_is_not_open_nor_counted(api: Api) -> None:
    labels = {"kind": "not_entered", "state": "firing", "severity": "critical"}
    assert api.metric("incidents", **labels) == 1.0
    assert len(api.get("/v1/incidents?state=open")["incidents"]) == 1
    post(api, "resolve", reason="by design")
    assert api.metric("incidents", **labels) is None
    assert api.get("/v1/incidents?state=open")["incidents"] == []
    assert len(api.get("/v1/incidents?state=firing")["incidents"]) == 1
    post(api, "ack")
    assert api.metric("incidents", **labels) == 1.0


def test_a_silence_is_on_page_and_status_until_it_ends(api: Api) -> None:
    name = silence(api, group="rg_1", kind="not_*")
    assert api.get("/v1/incidents/inc-1")["silence"]["id"] == name
    for text in (api.call("GET", "/", headers={"Accept": "text/html"}).text,
                 api.call("GET", "/", headers={"Accept": "text/plain"}).text,
                 api.call("GET", "/incidents/inc-1").text):  # fmt: skip
        assert "kind=not_* group=rg_1" in " ".join(text.split()), text
    assert name in "\n".join(api.get("/v1/silences?width=200")["text"])
    answer = api.call("DELETE", f"/v1/silences/{name}", json=ANN, headers=TOKEN)
    assert answer.status_code == 200
    assert api.get("/v1/silences")["silences"] == []
    assert api.get("/v1/incidents/inc-1")["silence"] is None
    assert api.call("DELETE", f"/v1/silences/{name}", headers=TOKEN).status_code == 404


def test_precision_is_on_the_page_and_a_metric(api: Api) -> None:
    assert api.metric("labelled_incidents", kind="not_entered", label="right") is None
    assert "Were the accusations right?" not in api.call("GET", "/incidents").text
    post(api, "label", right=True)
    assert api.metric("labelled_incidents", kind="not_entered", label="right") == 1.0
    assert api.metric("labelled_incidents", kind="not_entered", label="wrong") == 0.0
    assert "100 %" in api.call("GET", "/incidents").text
    post(api, "label", right=False)
    assert api.metric("labelled_incidents", kind="not_entered", label="wrong") == 1.0


def test_what_people_write_is_text_and_only_receivers_links_lead_away(api: Api) -> None:
    evil = "<script>alert(1)</script> javascript:alert(1)"
    post(api, "comment", text=evil)
    post(api, "assign", to="<b>bob</b>")
    api.components.work.sent("inc-1", "webhook", "https://chat.example/t/1")
    api.tick()
    text = api.call("GET", "/incidents/inc-1").text
    assert "<script>alert" not in text
    assert "<b>bob" not in text
    assert '<a href="https://chat.example/t/1" rel="noreferrer noopener">' in text
