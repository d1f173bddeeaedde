"""From a firing incident to the zip that a browser gets: keeper, evictor, API, command line."""

from __future__ import annotations

import io
import json
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from monitor.cli import main
from monitor.decide.pipeline import TickResult
from monitor.model.config import KeeperConfig
from monitor.model.escalation import HandedOver, decided
from monitor.model.eviction import Accused, Evict, Rung
from monitor.model.names import GroupName, Host, IncidentId, ReplicaId
from monitor.service import Options, Service
from tests.changed import replace
from tests.monitor.fakes import FakeFleet, FakeLighthouse, wait_until
from tests.monitor.store.test_store import incident
from tests.monitor.test_reading_token import desk_of
from worker_server.wire import to_json

TOKEN = {"Authorization": "Bearer secret"}
URL = "/v1/incidents/inc-1/bundle"


class Judge:
    """Says that an incident fires, and that its group goes, once."""

    def __init__(self, *decisions: Evict) -> None:
        self.decisions = decisions

    def tick(self, snapshot):
        told, self.decisions = self.decisions, ()
        known = incident()
        return TickResult(snapshot.now_s, incidents=(known,), changed=(known,), decisions=told)


@pytest.fixture
def service(tmp_path: Path, lighthouse: FakeLighthouse) -> Iterator[Service]:
    options = Options(
        KeeperConfig(), "127.0.0.1:0", tmp_path / "m.db", lighthouse.url, token="secret"
    )
    with Service(options) as made:
        yield made


def judged_by(service: Service, judge: Judge) -> None:
    service.keeper._components = replace(service.keeper._components, judge=judge)


def register(service: Service, *ranks) -> None:
    for rank in ranks:
        body = to_json(rank.registration())
        assert requests.post(f"{service.url}/v1/register", json=body, headers=TOKEN, timeout=10).ok


def bundle_of(service: Service) -> requests.Response:
    def there():
        answer = requests.get(service.url + URL, timeout=10)
        return answer if answer.status_code == 200 else None

    return wait_until(there, 10, "the bundle")


def test_an_eviction_is_preceded_by_its_evidence(
    service: Service, http: FakeFleet, lighthouse: FakeLighthouse
) -> None:
    rank = http.add("rg_1", replica_id="rg_1:uuid1")
    register(service, http.add("rg_0"), rank)
    lighthouse.form("rg_0:a", "rg_1:uuid1")
    read_at_kill = []

    def kill(_: str):
        read_at_kill.append(sorted({path.partition("?")[0] for path, _ in rank.asked}))
        rank.die()
        return 500, "text/plain", b""

    lighthouse.on_kill = kill
    judged_by(service, Judge(
        Evict(IncidentId("inc-1"), GroupName("rg_1"), ReplicaId("rg_1:uuid1"), (), "hung")
    ))  # fmt: skip
    service.keeper.tick()
    evictors = service.keeper._components.evictors
    wait_until(lambda: not evictors.active(), 10, "the eviction ends")
    assert read_at_kill == [
        ["v1/flight_recorder", "v1/last_words", "v1/stacks", "v1/state", "v1/steps"]
    ]
    (progress,) = evictors.progress()
    rungs = {one.rung: one.detail for one in progress.rungs}
    assert rungs[Rung.EVIDENCE].startswith("10 of 10 parts of 2 ranks in ")
    assert progress.gone_s is not None
    with zipfile.ZipFile(io.BytesIO(bundle_of(service).content)) as opened:
        assert json.loads(opened.read("firing/rg_1.0/state.json"))["process"]["alive"] is True


def test_an_eviction_goes_on_when_evidence_crashes(service: Service, http: FakeFleet) -> None:
    rank = http.add("rg_1")
    register(service, rank)

    class Broken:
        def __getattr__(self, name: str):
            def explode(*_, **__):
                raise RuntimeError(f"{name} is broken")

            return explode

    keeper = service.keeper
    keeper._components = keeper._acting._components = replace(keeper._components, evidence=Broken())
    judged_by(service, Judge(Evict(IncidentId("inc-1"), GroupName("rg_1"), None, (), "hung")))
    keeper.tick()
    wait_until(lambda: not rank.alive, 10, "it is evicted")
    failures = keeper._components.instruments.registry
    for part in ("evidence", "witness"):
        assert failures.get_sample_value("lightkeeper_part_failures_total", {"part": part}) == 1


def carried_out(service: Service, rank, **more):
    evict = Evict(IncidentId("inc-1"), GroupName("rg_1"), None, (Host("node1"),), "hung")
    accused = (Accused(rank.identity.rank, rank.identity.incarnation, rank.url),)
    evictors = service.keeper._components.evictors
    evidence, now_s = more.pop("evidence", None), time.time()
    evictors.log.add(eviction := decided(evict, accused, now_s))
    evictors.submit(eviction.key, HandedOver(now_s, accused, **more), evidence)
    wait_until(lambda: not evictors.active(), 10, "the eviction ends")
    (progress,) = evictors.progress()
    return progress


def test_a_rank_that_moves_again_while_its_evidence_is_saved_is_let_go(
    service: Service, http: FakeFleet
) -> None:
    rank = http.add("rg_1", host="node1")
    register(service, rank)
    stood = {rank.identity.rank: rank.report().step.progress}

    def recover() -> str:
        rank.step += 1
        return "5 of 5 parts"

    progress = carried_out(service, rank, stood=stood, evidence=recover)
    assert progress.failed == "it moves again: nobody is evicted"
    assert rank.alive
    assert service.keeper._components.quarantine.active() == ()


def test_the_tick_tells_how_far_the_culprits_had_come(service: Service, http: FakeFleet) -> None:
    rank = http.add("rg_1", replica_id="rg_1:uuid1")
    register(service, rank)
    orders = []
    keeper = service.keeper
    keeper._components.evictors.submit = lambda key, event, evidence: orders.append(event)
    judged_by(service, Judge(
        Evict(IncidentId("inc-1"), GroupName("rg_1"), ReplicaId("rg_1:uuid1"), (), "hung")
    ))  # fmt: skip
    keeper.tick()
    assert [order.stood for order in orders] == [{"rg_1.0": 50}]


def test_the_bundle_is_linked_where_the_incident_is_shown(
    service: Service, http: FakeFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    register(service, http.add("rg_1"))
    judged_by(service, Judge())
    service.keeper.tick()
    answer = bundle_of(service)
    assert answer.headers["Content-Type"] == "application/zip"
    assert answer.headers["Cache-Control"] == "no-store"
    assert "filename=inc-1.zip" in answer.headers["Content-Disposition"]
    service.keeper.tick()
    told = requests.get(f"{service.url}/v1/incidents/inc-1", timeout=10).json()["bundle"]
    assert (told["url"], told["bytes"]) == (URL, len(answer.content))
    assert main(["incidents", "show", "inc-1", "--monitor", service.url]) == 0
    assert f"evidence        {service.url}{URL} " in capsys.readouterr().out
    assert main(["status", "--monitor", service.url]) == 0
    assert f"evidence: {service.url}{URL}" in capsys.readouterr().out.replace("\n", "")


def test_its_page_shows_what_the_ranks_said(service: Service, http: FakeFleet) -> None:
    register(service, http.add("rg_1"))
    judged_by(service, Judge())
    service.keeper.tick()
    bundle_of(service)
    service.keeper.tick()
    text = requests.get(f"{service.url}/incidents/inc-1", timeout=10).text
    assert "Thread 1: train.py:10" in text


def test_an_incident_without_evidence_says_so(service: Service) -> None:
    answer = requests.get(service.url + URL, timeout=10)
    assert answer.status_code == 404
    assert answer.json() == {"error": "no evidence of inc-1: too old, or none was taken"}


@pytest.mark.parametrize(
    "path",
    ["/v1/incidents/../bundle", "/v1/incidents/%2e%2e/bundle", "/v1/incidents/..%2fm.db/bundle",
     "/v1/incidents/%2fetc%2fpasswd/bundle", "/v1/incidents/a%00b/bundle"],
)  # fmt: skip
def test_no_path_leads_out_of_the_folder(service: Service, path: str) -> None:
    asked = requests.Request("GET", service.url + path).prepare()
    asked.url = service.url + path  # as it stands, dots and all
    with requests.Session() as session:
        assert session.send(asked, timeout=10).status_code == 404


def test_a_trouble_of_the_folder_is_on_the_page(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    options = Options(
        KeeperConfig(), "127.0.0.1:0", tmp_path / "m.db", None, token="secret",
        evidence=tmp_path / "file" / "evidence",
    )  # fmt: skip
    with Service(options) as made:
        made.keeper.tick()
        troubles = requests.get(f"{made.url}/v1/snapshot", timeout=10).json()["troubles"]
    assert any(one.startswith("no evidence can be kept in ") for one in troubles)


# -- who may read it: as with pages of ranks ------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "headers", "status"),
    [
        ({"loopback": True}, {"Host": "127.0.0.1"}, 200),
        ({"loopback": True}, {"Host": "evil.example"}, 401),
        ({"loopback": True, "token": None}, {"Host": "evil.example"}, 403),
        ({"loopback": False}, {"Host": "10.0.0.1"}, 401),
        ({"loopback": False}, {"Host": "10.0.0.1", "Authorization": "Bearer other"}, 401),
        ({"loopback": False}, {"Host": "10.0.0.1", **TOKEN}, 200),
        ({"loopback": False, "open_reads": True}, {"Host": "10.0.0.1"}, 200),
    ],
)
def test_a_bundle_is_read_by_whom_ranks_may_be_read(
    more: dict, headers: dict, status: int, http: FakeFleet, fetcher, tmp_path: Path
) -> None:
    path = tmp_path / "inc-1.zip"
    path.write_bytes(b"zip")
    client = desk_of(http.add(), fetcher, bundle=lambda _: path, **more)
    answer = client.get(URL, headers=headers)
    rank_page = client.get("/v1/ranks/rg_0.0/state", headers=headers)
    assert (answer.status_code, rank_page.status_code) == (status, status)
    answer.close()


def test_a_bundle_that_somebody_removed_is_gone(http: FakeFleet, fetcher, tmp_path: Path) -> None:
    client = desk_of(http.add(), fetcher, bundle=lambda _: tmp_path / "gone.zip")
    answer = client.get(URL)
    assert answer.status_code == 404
    assert answer.json == {"error": "the evidence of inc-1 is gone: No such file or directory"}
