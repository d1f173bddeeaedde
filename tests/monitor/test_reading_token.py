"""The monitor's token on what it reads: to whom it goes, and to whom it does not; and https."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import pytest
import requests
import trustme

from lightkeeper.monitor.act.evictor import Parties, probe
from lightkeeper.monitor.act.http import CaError, Fetcher, Tokens, trust_only
from lightkeeper.monitor.act.poller import Poller
from lightkeeper.monitor.act.quarantine import Quarantine
from lightkeeper.monitor.act.targets import Registry
from lightkeeper.monitor.model.escalation import Liveness
from lightkeeper.monitor.model.eviction import Accused
from lightkeeper.monitor.model.names import GroupName, IncidentId
from lightkeeper.monitor.model.observation import Failure, Unreachable
from lightkeeper.monitor.service import Service, StartError
from lightkeeper.worker_server.wire import StateReport, to_json
from tests.monitor.api import TOKEN, app_client, options
from tests.monitor.commands.parsing import monitor_options
from tests.monitor.decided import decided, to_evict
from tests.monitor.doubles import HandClock, Memory
from tests.monitor.fakes import FakeFleet
from tests.page.views import crowd


def sweep(fetcher, rank, token):
    fetcher.tokens = Tokens(token)
    made = Poller(fetcher).sweep([rank.target()], deadline_s=5.0, wanted=[rank.identity.rank])
    return made.observations[0].outcome, made.records[rank.identity.rank]


def test_states_and_records_are_read_with_the_token(fleet: FakeFleet, fetcher: Fetcher) -> None:
    rank = fleet.add(guarded=True)
    state, record = sweep(fetcher, rank, "secret")
    assert isinstance(state, StateReport)
    assert not isinstance(record, Unreachable)
    assert {token for _, token in rank.asked} == {"Bearer secret"}


@pytest.mark.parametrize("token", [None, "other"])
def test_a_worker_server_that_wants_another_token_is_told_so(fleet, fetcher, token) -> None:
    rank = fleet.add(guarded=True)
    why = "status 401 (it does not take this monitor's token)"
    assert sweep(fetcher, rank, token) == (Unreachable(Failure.HTTP, why),) * 2


def test_the_token_does_not_follow_a_redirect(fleet: FakeFleet, fetcher: Fetcher) -> None:
    thief = fleet.add("rg_9")
    rank = fleet.add()
    fleet.redirects[rank.identity.rank] = f"{thief.url}/v1/state"
    state, _ = sweep(fetcher, rank, "secret")
    assert state == Unreachable(Failure.HTTP, "status 307")
    assert thief.asked == []


def test_the_evictors_look_with_the_token(fleet: FakeFleet, fetcher: Fetcher) -> None:
    rank = fleet.add(guarded=True)
    accused = Accused(rank.identity.rank, rank.identity.incarnation, rank.url)
    registry = Registry(HandClock(), Memory())
    clock = HandClock()
    parties = Parties(clock, fetcher, registry, Quarantine(clock, Memory()))
    evict = to_evict(IncidentId("i"), GroupName("rg_0"), None, (), "hangs")
    eviction = decided(evict, (accused,), clock.now_s())
    fetcher.tokens = Tokens("secret")
    assert probe(parties, eviction).lives == {rank.identity.rank: Liveness.ALIVE}
    fetcher.tokens = Tokens()
    assert probe(parties, eviction).lives == {rank.identity.rank: Liveness.UNSEEN}


@pytest.fixture
def monitor(tmp_path: Path, fleet: FakeFleet):
    rank = fleet.add(guarded=True)
    with Service(options(tmp_path)) as made:
        body = to_json(rank.registration())
        assert requests.post(f"{made.url}/v1/register", json=body, headers=TOKEN, timeout=10).ok
        made.base = f"{made.url}/v1/ranks/{rank.identity.rank}"
        yield made, rank


def test_pages_of_a_rank_are_passed_through_with_the_monitors_token(monitor) -> None:
    service, rank = monitor
    for asked, passed in [
        ("state", "v1/state"),
        ("stacks", "v1/stacks"),
        ("steps?since=7", "v1/steps?since=7"),
        ("last_words", "v1/last_words"),
        ("network?format=text&rows=0", "v1/network?format=text&rows=0"),
        ("steps?since=a%26b%3D1", "v1/steps?since=a%26b%3D1"),
    ]:
        answer = requests.get(f"{service.base}/{asked}", timeout=10)
        assert answer.status_code == 200, answer.text
        assert rank.asked[-1] == (passed, "Bearer secret")
    long = requests.get(f"{service.base}/steps?since={'1' * 201}", timeout=10)
    assert long.status_code == 400
    before = len(rank.asked)
    assert requests.get(f"{service.base}/steps?since=7&evil=1", timeout=10).status_code == 400
    assert len(rank.asked) == before


LOCAL = {"loopback": True}
NETWORK = {"loopback": False}
PASSED = ["state", "steps", "flight_recorder", "stacks", "last_words", "network", "machine"]


@pytest.mark.parametrize("page", PASSED)
def test_on_a_network_ranks_are_read_through_the_monitor_with_its_token_only(fleet, fetcher, page):
    rank = fleet.add(guarded=True)
    client = app_client(rank, fetcher, **NETWORK)
    path = f"/v1/ranks/{rank.identity.rank}/{page}"
    for headers in ({}, {"Authorization": "Bearer other"}, {"Host": "localhost"}):
        refused = client.get(path, headers=headers)
        assert refused.status_code == 401
        assert f"Bearer TOKEN' http://localhost{path}, or" in refused.json["error"]
        assert "--open-reads" in refused.json["error"]
        shown = client.get(f"/ranks/{rank.identity.rank}?show={page}", headers=headers)
        assert shown.status_code == 401
        assert "<pre" not in shown.text
    assert rank.asked == []
    client.get(path, headers=TOKEN)
    assert rank.asked == [(f"v1/{page}", "Bearer secret")]


@pytest.mark.parametrize(
    ("desk", "host", "status"),
    [
        (LOCAL, "127.0.0.1:8470", 200), (LOCAL, "[::1]:8470", 200), (LOCAL, "LocalHost:1", 200),
        (LOCAL, socket.gethostname(), 200), (LOCAL, "evil.example:8470", 401),
        (LOCAL, "localhost.evil.example", 401),
        ({**LOCAL, "token": None}, "evil.example", 403),
        ({**LOCAL, "token": None}, "localhost", 200),
        ({**NETWORK, "open_reads": True}, "evil.example", 200),
        ({**LOCAL, "open_reads": True}, "evil.example", 200),
    ],
    ids=str,
)  # fmt: skip
def test_on_loopback_ranks_are_read_by_who_names_this_machine(fleet, fetcher, desk, host, status):
    rank = fleet.add()
    client = app_client(rank, fetcher, **desk)
    path = f"/v1/ranks/{rank.identity.rank}/stacks"
    assert client.get(path, headers={"Host": host}).status_code == status
    assert client.get(path, headers={"Host": host, **TOKEN}).status_code == (
        200 if desk.get("token", "") is not None else status
    )


def test_the_pages_offer_no_links_that_would_be_refused(fleet, fetcher):
    rank, seen = fleet.add(), crowd(1, 1)
    opened = {**NETWORK, "open_reads": True}
    for desk, linked in ((LOCAL, True), (NETWORK, False), (opened, True)):
        client = app_client(rank, fetcher, view=lambda: seen, **desk)
        for path in ("/", "/groups/rg_0", "/hosts/node-rg_0-0", "/ranks/rg_0.0"):
            text = client.get(path).text
            assert ('href="/ranks/rg_0.0?show=stacks"' in text) is linked, path
            if path != "/":
                assert ("Authorization: Bearer" in text.partition('id="acts"')[0]) is not linked


def test_open_reads_come_from_the_command_line_or_the_environment(monkeypatch) -> None:
    for name in ("LIGHTKEEPER_TOKEN_FILE", "LIGHTKEEPER_OPEN_READS"):
        monkeypatch.delenv(name, raising=False)
    assert not monitor_options().open_reads
    assert monitor_options("--open-reads").open_reads
    monkeypatch.setenv("LIGHTKEEPER_OPEN_READS", "1")
    assert monitor_options().open_reads


def test_a_rank_that_refuses_the_monitor_is_a_502_and_not_the_askers_fault(monitor) -> None:
    service, rank = monitor
    rank.token = "changed"
    answer = requests.get(f"{service.base}/state", timeout=10)
    assert answer.status_code == 502
    assert "does not take this monitor's token" in answer.json()["error"]


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture
def secure_fleet(authority):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    made = FakeFleet(context)
    yield made
    made.close()


def test_https_is_verified_by_the_file_of_authorities(secure_fleet, authority, tmp_path) -> None:
    rank = secure_fleet.add(guarded=True)
    ca_file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca_file))
    trusting, wary = Fetcher(trust_only(ca_file)), Fetcher()
    try:
        assert isinstance(sweep(trusting, rank, "secret")[0], StateReport)
        rank.asked.clear()
        refused = sweep(wary, rank, "secret")[0]
        assert isinstance(refused, Unreachable)
        assert "certificate" in refused.detail
        assert rank.asked == []  # nor did the token go out
    finally:
        trusting.close()
        wary.close()


def test_a_file_of_authorities_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("x")
    for path, why in ((nonsense, "no certificates"), (tmp_path / "none", "No such file")):
        with pytest.raises(CaError, match=f"--ca-file {path}: {why}"):
            trust_only(path)
        with pytest.raises(StartError, match="--ca-file"):
            Service(options(tmp_path, token=None, ca_file=path))


def test_the_command_line_names_the_file(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LIGHTKEEPER_TOKEN_FILE", raising=False)
    settings = monitor_options("--ca-file", str(tmp_path / "ca.pem"))
    assert settings.ca_file == tmp_path / "ca.pem"
    monkeypatch.setenv("LIGHTKEEPER_CA_FILE", "/etc/ca.pem")
    assert monitor_options().ca_file == Path("/etc/ca.pem")
