"""From a tick to the books, the API, the metrics, the log and the commands; and over a restart."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lightkeeper.monitor.cli import main
from lightkeeper.monitor.decide.rank_seconds import Cause
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import Guard, Hold
from lightkeeper.monitor.model.incident import Incident, Milestones, State
from lightkeeper.monitor.model.names import IncidentId
from lightkeeper.monitor.service import Options, Service
from tests.monitor import api
from tests.monitor.api import TOKEN, Api, Script
from tests.monitor.decide.scene import hang
from tests.monitor.fakes import FakeFleet, FakeLighthouse, wait_until
from tests.monitor.samples import EVICT


class Monitor(Api):
    """A monitor of two groups with two ranks each."""

    def __init__(self, options: Options, fleet: FakeFleet, *, scripted: bool = True) -> None:
        super().__init__(Service(options))
        judge = Script()
        self.results = judge.results
        if scripted:
            self.judged_by(judge)
        for rank in fleet.ranks.values():
            self.components.registry.register(rank.registration())

    def tick(self, *incidents: Incident, decisions: Any = ()) -> None:
        """`incidents`, `decisions`: what the script says of this tick."""
        result = {"incidents": incidents, "changed": incidents, "decisions": tuple(decisions)}
        self.results.append(result)
        super().tick()


@pytest.fixture
def options(tmp_path: Path, lighthouse: FakeLighthouse) -> Options:
    config = KeeperConfig(evidence_count=0)
    return api.options(tmp_path, lighthouse.url, config=config)


@pytest.fixture
def fleet(fleet: FakeFleet) -> FakeFleet:
    for group in ("rg_0", "rg_1"):
        for number in (0, 1):
            host = f"node{group[-1]}"
            fleet.add(group, number, world_size=2, host=host, replica_id=f"{group}:uuid1")
    return fleet


@pytest.fixture
def monitor(options: Options, fleet: FakeFleet) -> Iterator[Monitor]:
    made = Monitor(options, fleet)
    with made.service:
        yield made


def moments(now_s: float, **changes: Any) -> Incident:
    """The hang of the scene, now."""
    marks = Milestones(first_seen_s=now_s - 10, firing_s=now_s - 9)
    made = hang(state=State.FIRING, resolution=None, story=hang().story[:2], milestones=marks,
               last_seen_s=now_s)  # fmt: skip
    made = replace(made, verdict=replace(made.verdict, since_s=now_s - 15))
    return replace(made, **changes)


def over(open_incident: Incident, now_s: float) -> Incident:
    marks = replace(
        open_incident.milestones, evict_asked_s=now_s - 5, left_quorum_s=now_s - 3,
        survivor_commit_s=now_s - 2, rejoined_s=now_s,
    )  # fmt: skip
    return replace(
        open_incident,
        state=State.RESOLVED,
        milestones=marks,
        resolution="evicted",
        story=hang().story,
    )


def story(monitor: Monitor) -> float:
    """A hang that is held, evicted, and over; when it fired."""
    now_s = monitor.components.clock.now_s()
    firing = moments(now_s)
    monitor.tick(firing, decisions=[Hold(IncidentId("inc-1"), Guard.COOL_DOWN, "too soon")])
    monitor.tick(decisions=[EVICT])
    monitor.evictions_end()
    monitor.tick()
    monitor.tick(over(firing, now_s))
    return now_s


def fired(monitor: Monitor) -> None:
    """The same, without anybody's eviction."""
    firing = moments(monitor.components.clock.now_s())
    monitor.tick(firing, decisions=[Hold(IncidentId("inc-1"), Guard.COOL_DOWN, "too soon")])


def test_the_whole_account_of_an_eviction(monitor: Monitor) -> None:
    story(monitor)
    body = monitor.get("/v1/incidents/inc")
    account = body["account"]
    assert body["id"] == "inc-1"
    assert (account["outcome"], account["final"]) == ("evicted", True)
    assert account["lost"] is None  # nobody saw a step before
    assert [row["guard"] for row in body["decisions"]] == ["cool_down", None]
    assert [len(row["rungs"]) > 0 for row in body["evictions"]] == [True]
    assert body["journal"] is None
    assert monitor.get("/v1/incidents")["incidents"][0]["account"] == account
    assert monitor.get("/v1/incidents?since=1h")["totals"]["evictions"] == 1
    assert monitor.get("/v1/incidents?kind=straggler")["totals"]["incidents"] == 0
    assert monitor.get("/v1/incidents?group=rg_9")["incidents"] == []


def settled(monitor: Monitor) -> None:
    monitor.evictions_end()
    monitor.tick()


def by_hand(monitor: Monitor, **body: str) -> str:
    """Evict rg_1; the id under which it is known."""
    fields = {"reason": "its fans scream", **body}
    answer = monitor.call("POST", "/v1/groups/rg_1/evict", json=fields, headers=TOKEN)
    assert answer.status_code == 200
    return str(answer.json()["incident_id"])


def come_back(monitor: Monitor, fleet: FakeFleet) -> None:
    """New processes of rg_1, on another host."""
    for name, rank in list(fleet.ranks.items()):
        if rank.identity.group == "rg_1":
            number = rank.identity.group_rank
            del fleet.ranks[name]
            made = fleet.add("rg_1", number, world_size=2, host="node7", replica_id="rg_1:uuid2",
                             incarnation=f"second-{number}")  # fmt: skip
            monitor.components.registry.register(made.registration())


@pytest.fixture
def judging(options: Options, fleet: FakeFleet) -> Iterator[Monitor]:
    """A monitor with its own pipeline, which follows evictions by hand."""
    made = Monitor(options, fleet, scripted=False)
    with made.service:
        yield made


def test_an_eviction_by_hand_has_a_story_like_any_other(
    judging: Monitor, fleet: FakeFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    monitor = judging
    monitor.tick()
    incident_id = by_hand(monitor, author="ann")
    monitor.tick()
    settled(monitor)
    come_back(monitor, fleet)
    wait_until(lambda: back(monitor, incident_id), 10, "it is back, and the others went on")
    body = monitor.get(f"/v1/incidents/{incident_id}")
    account = body["account"]
    assert (body["kind"], body["culprits"], body["groups"]) == ("by_hand", [], ["rg_1"])
    assert body["reason"] == "ann asked for it: its fans scream"
    assert body["evidence"] == {}
    assert (account["decided_by"], account["why"]) == ("ann", "its fans scream")
    assert (account["outcome"], account["final"]) == ("evicted", True)
    assert (body["hosts"], body["back_on"]) == (["node1"], ["node7"])
    assert "worker_evict" in [rung["rung"] for rung in body["evictions"][0]["rungs"]]
    assert monitor.get("/v1/incidents?kind=by_hand")["totals"]["evictions"] == 1
    at = ["--monitor", monitor.url]
    assert "ann: its fans scream" in said(capsys, "show", "by_hand", *at)


def back(monitor: Monitor, incident_id: str) -> bool:
    monitor.tick()
    marks = monitor.get(f"/v1/incidents/{incident_id}")["milestones"]
    return None not in (marks["rejoined_s"], marks["survivor_commit_s"])


def test_every_incident_has_a_page_without_javascript(monitor: Monitor) -> None:
    story(monitor)
    for path in ("/incidents/inc", "/incidents"):
        answer = monitor.call("GET", path)
        assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
        assert "inc-1" in answer.text
        assert "was done" in answer.text
        assert all('src="/static/' in tag for tag in re.findall("<script[^>]*>", answer.text))
    assert monitor.call("GET", "/incidents/nobody").status_code == 404
    front = monitor.call("GET", "/", headers={"Accept": "text/html"})
    assert 'href="/incidents"' in front.text


@pytest.mark.parametrize("author", ["lightkeeper", "ann"])
def test_the_books_survive_a_restart(author: str, options: Options, fleet: FakeFleet) -> None:
    scripted = author == "lightkeeper"
    first = Monitor(options, fleet, scripted=scripted)
    with first.service:
        if scripted:
            incident_id, _ = "inc-1", story(first)
        else:
            first.tick()
            incident_id = by_hand(first, author=author)
            first.tick()
            settled(first)
            come_back(first, fleet)
            wait_until(lambda: back(first, incident_id), 10, "it is back")
        before = first.get(f"/v1/incidents/{incident_id}")
    again = Monitor(options, fleet, scripted=scripted)
    with again.service:
        again.tick()
        after = again.get(f"/v1/incidents/{incident_id}")
    for key in ("account", "evictions", "decisions", "story", "state"):
        assert after[key] == before[key]


def test_what_an_incident_cost_survives_a_restart_and_is_counted_on(
    options: Options, fleet: FakeFleet
) -> None:
    first = Monitor(options, fleet)
    with first.service:
        story(first)
        book = first.service.keeper._rank_seconds
        book._lose(12.0, Cause("not_entered", IncidentId("inc-1")))
        first.tick()
        assert first.get("/v1/incidents/inc-1")["account"]["lost"] == 12.0
    again = Monitor(options, fleet)
    with again.service:
        again.tick()
        assert again.get("/v1/incidents/inc-1")["account"]["lost"] == 12.0
        again.service.keeper._rank_seconds._lose(3.0, Cause("recovering", IncidentId("inc-1")))
        again.tick()
        assert again.get("/v1/incidents")["totals"]["lost"] == 15.0


# -- the commands ----------------------------------------------------------------------------------


def said(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> str:
    assert main(["incidents", *words]) == status
    out, err = capsys.readouterr()
    return out if status == 0 else err


def as_json(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    return json.loads(said(capsys, *words, "--format", "json"))


def test_people_read_list_and_story(monitor: Monitor, capsys: pytest.CaptureFixture[str]) -> None:
    story(monitor)
    at = ["--monitor", monitor.url]
    listed = said(capsys, "list", *at)
    assert "1 eviction; 1 incident fired" in listed
    assert "inc-1" in listed
    text = said(capsys, "show", "inc", *at)
    for part in ("What happened", "What was done", "What happened when", "What to do next",
                 "blamed          rg_1.0 on node1 (likely)"):  # fmt: skip
        assert part in text
    assert as_json(capsys, "list", "--kind", "dead", *at)["incidents"] == []


def test_what_cannot_be_done_is_one_line(
    monitor: Monitor, capsys: pytest.CaptureFixture[str]
) -> None:
    monitor.tick()
    for words, status, says in (
        (["show", "nothing"], 1, "no such incident: nothing"),
        (["show", "a/b?c"], 1, "not found: GET /v1/incidents/a/b?c"),
        (["list", "--since", "yesterday"], 2, "since is 'yesterday', expected a span such as"),
    ):
        err = said(capsys, *words, "--monitor", monitor.url, status=status)
        assert says in err
        assert err.count("\n") == 1
