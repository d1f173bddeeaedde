"""From a firing incident to the zip that a browser gets: keeper, evictor, API, command line."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from lightkeeper.monitor.cli import main
from lightkeeper.monitor.model.eviction import Eviction, Rung
from lightkeeper.monitor.model.names import GroupName, IncidentId, ReplicaId
from lightkeeper.monitor.service import Service
from tests.changed import replace
from tests.monitor.api import READERS, Api, Script, app_client, options
from tests.monitor.decided import to_evict
from tests.monitor.doubles import Broken
from tests.monitor.fakes import FakeFleet, FakeLighthouse, wait_until
from tests.monitor.samples import incident

URL = "/v1/incidents/inc-1/bundle"


def fires(*decisions: Eviction) -> Script:
    """An incident fires, and its group goes once."""
    still_firing = {"incidents": (incident(),), "changed": (incident(),)}
    return Script([{**still_firing, "decisions": decisions}, still_firing])


@pytest.fixture
def api(tmp_path: Path, lighthouse: FakeLighthouse) -> Iterator[Api]:
    with Service(options(tmp_path, lighthouse.url)) as made:
        yield Api(made)


@pytest.fixture(scope="module")
def unmoved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """One monitor for all that it must refuse."""
    with Service(options(tmp_path_factory.mktemp("unmoved"))) as made:
        yield Api(made)


def bundle_of(api: Api) -> requests.Response:
    def there():
        answer = api.call("GET", URL)
        return answer if answer.status_code == 200 else None

    return wait_until(there, 10, "the bundle")


def test_an_eviction_is_preceded_by_its_evidence(
    api: Api, http: FakeFleet, lighthouse: FakeLighthouse
) -> None:
    rank = http.add("rg_1", replica_id="rg_1:uuid1")
    api.register(http.add("rg_0"), rank)
    lighthouse.form("rg_0:a", "rg_1:uuid1")
    read_at_kill = []

    def kill(_: str):
        read_at_kill.append(sorted({path.partition("?")[0] for path, _ in rank.asked}))
        rank.die()
        return 500, "text/plain", b""

    lighthouse.on_kill = kill
    api.judged_by(fires(
        to_evict(IncidentId("inc-1"), GroupName("rg_1"), ReplicaId("rg_1:uuid1"), (), "hung")
    ))  # fmt: skip
    api.tick()
    evictors = api.components.evictors
    api.evictions_end()
    assert read_at_kill == [
        [
            "v1/flight_recorder",
            "v1/last_words",
            "v1/machine",
            "v1/network",
            "v1/stacks",
            "v1/state",
            "v1/steps",
        ]
    ]
    (progress,) = evictors.log.progress()
    rungs = {rung.rung: rung.detail for rung in progress.rungs}
    assert rungs[Rung.EVIDENCE].startswith("14 of 14 parts of 2 ranks in ")
    assert progress.gone_s is not None
    with zipfile.ZipFile(io.BytesIO(bundle_of(api).content)) as opened:
        assert json.loads(opened.read("firing/rg_1.0/state.json"))["process"]["alive"] is True


def test_an_eviction_goes_on_when_evidence_crashes(api: Api, http: FakeFleet) -> None:
    rank = http.add("rg_1")
    api.register(rank)

    keeper = api.service.keeper
    keeper._components = keeper._acting._components = replace(api.components, evidence=Broken())
    api.judged_by(fires(to_evict(IncidentId("inc-1"), GroupName("rg_1"), None, (), "hung")))
    api.tick()
    wait_until(lambda: not rank.alive, 10, "it is evicted")
    for part in ("evidence", "witness"):
        assert api.metric("part_failures_total", part=part) == 1


def test_the_tick_tells_how_far_the_culprits_had_come(api: Api, http: FakeFleet) -> None:
    rank = http.add("rg_1", replica_id="rg_1:uuid1")
    api.register(rank)
    orders = []
    api.components.evictors.submit = lambda key, event, evidence: orders.append(event)
    api.judged_by(fires(
        to_evict(IncidentId("inc-1"), GroupName("rg_1"), ReplicaId("rg_1:uuid1"), (), "hung")
    ))  # fmt: skip
    api.tick()
    assert [order.stood for order in orders] == [{"rg_1.0": 50}]


def test_the_bundle_is_linked_where_the_incident_is_shown_and_its_page_has_the_stacks(
    api: Api, http: FakeFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    api.register(http.add("rg_1"))
    api.judged_by(fires())
    api.tick()
    answer = bundle_of(api)
    assert answer.headers["Content-Type"] == "application/zip"
    assert answer.headers["Cache-Control"] == "no-store"
    assert "filename=inc-1.zip" in answer.headers["Content-Disposition"]
    api.tick()
    bundle = api.get("/v1/incidents/inc-1")["bundle"]
    assert (bundle["url"], bundle["bytes"]) == (URL, len(answer.content))
    assert main(["incidents", "show", "inc-1", "--monitor", api.url]) == 0
    assert f"evidence        {api.url}{URL} " in capsys.readouterr().out
    assert main(["status", "--monitor", api.url]) == 0
    assert f"evidence: {api.url}{URL}" in capsys.readouterr().out.replace("\n", "")
    assert "Thread 1: train.py:10" in api.call("GET", "/incidents/inc-1").text


def test_an_incident_without_evidence_says_so(api: Api) -> None:
    answer = api.call("GET", URL)
    assert answer.status_code == 404
    assert answer.json() == {"error": "no evidence of inc-1: too old, or none was taken"}


@pytest.mark.parametrize(
    "path",
    ["/v1/incidents/../bundle", "/v1/incidents/%2e%2e/bundle", "/v1/incidents/..%2fm.db/bundle",
     "/v1/incidents/%2fetc%2fpasswd/bundle", "/v1/incidents/a%00b/bundle"],
)  # fmt: skip
def test_no_path_leads_out_of_the_folder(unmoved: Api, path: str) -> None:
    asked = requests.Request("GET", unmoved.url + path).prepare()
    asked.url = unmoved.url + path  # as it stands, dots and all
    with requests.Session() as session:
        assert session.send(asked, timeout=10).status_code == 404


def test_a_trouble_of_the_folder_is_on_the_page(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with Service(options(tmp_path, evidence=tmp_path / "file" / "evidence")) as made:
        api = Api(made)
        api.tick()
        troubles = api.get("/v1/snapshot")["troubles"]
    assert any(trouble.startswith("no evidence can be kept in ") for trouble in troubles)


# -- who may read it: as with pages of ranks ------------------------------------------------------


@pytest.mark.parametrize(("more", "headers", "status"), READERS)
def test_a_bundle_is_read_by_whom_ranks_may_be_read(
    more: dict, headers: dict, status: int, http: FakeFleet, fetcher, tmp_path: Path
) -> None:
    path = tmp_path / "inc-1.zip"
    path.write_bytes(b"zip")
    client = app_client(http.add(), fetcher, bundle=lambda _: path, **more)
    answer = client.get(URL, headers=headers)
    rank_page = client.get("/v1/ranks/rg_0.0/state", headers=headers)
    assert (answer.status_code, rank_page.status_code) == (status, status)
    answer.close()


def test_a_bundle_that_somebody_removed_is_gone(http: FakeFleet, fetcher, tmp_path: Path) -> None:
    client = app_client(http.add(), fetcher, bundle=lambda _: tmp_path / "gone.zip")
    answer = client.get(URL)
    assert answer.status_code == 404
    assert answer.json == {"error": "the evidence of inc-1 is gone: No such file or directory"}
