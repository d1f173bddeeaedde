"""Who gets polled: no address that is not a WorkerServer's, no name that somebody bears."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from lightkeeper.monitor.act import targets as registry
from lightkeeper.monitor.act.targets import Registered, Registry
from lightkeeper.monitor.model.names import RankName
from lightkeeper.monitor.service import Service
from lightkeeper.worker_server.wire import Process, Registration, StateReport, parse_identity
from tests.monitor.api import TOKEN, Api, options
from tests.monitor.doubles import HandClock, Memory

IDENTITY = {
    "job": "j", "group": "rg_0", "group_rank": 0, "world_size": 1, "host": "h", "pid": 7,
    "incarnation": "one",
}  # fmt: skip


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """One monitor for all whom it refuses: they leave nothing behind."""
    with Service(options(tmp_path_factory.mktemp("refusing"))) as made:
        yield Api(made)


def register(api: Api, url: str, headers: Any = TOKEN, **who: Any) -> int:
    body = {"schema": 1, "identity": {**IDENTITY, **who}, "url": url, "lease_s": 15.0}
    answer = api.call("POST", "/v1/register", data=json.dumps(body), headers=headers)
    assert answer.status_code in (200, 400, 401, 403, 409, 429, 503), answer.text
    assert "error" in answer.json() or answer.status_code == 200
    return answer.status_code


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "LOCALHOST", "localhost.", "127.0.0.2", "[::1]",
     "[::ffff:127.0.0.1]", "[64:ff9b::127.0.0.1]", "[64:ff9b::7f00:2]", "[2002:7f00:1::]",
     "[2002:7f00:1:9::1]", socket.gethostname()],
)  # fmt: skip
def test_the_monitors_own_address_is_no_workerserver_however_it_is_written(
    refusing: Api, host: str
) -> None:
    port = refusing.url.rpartition(":")[2]
    try:
        socket.getaddrinfo(host.strip("[]"), int(port))
    except OSError:
        pytest.skip(f"{host} means nothing here")
    assert register(refusing, f"http://{host}:{port}") == 400


@pytest.mark.parametrize(
    "url",
    ["http://127.1:9000", "http://2130706433:9000", "http://0x7f000001:9000",
     "http://0177.0.0.1:9000", "http://169.254.169.254:80", "http://[fe80::1]:80",
     "http://[::ffff:169.254.169.254]:80", "http://[64:ff9b::169.254.169.254]:80",
     "http://[64:ff9b::a9fe:a9fe]:80", "http://[2002:a9fe:a9fe::]:80", "http://[2002:a9fe:1::1]:80",
     "http://[64:ff9b::6464:64c8]:80", "http://[2002:6464:64c8::5]:80", "http://[64:ff9b::e000:1]:80",
     "http://[2002:e000:1::]:80", "http://[64:ff9b::]:80", "http://[2002::]:80",
     "http://[::ffff:a83f:8110]:80", "http://[::ffff:100.100.100.200]:80", "http://[fd00:ec2::254]",
     "http://168.63.129.16:80", "http://[ff02::1]:80", "http://[::]:80", "http://h:9000/x", "http://h:9000?x=1",
     "http://u:p@h:9000", "http://h:9000#x", "http://h:0", "http://h:65536", "ftp://h:9000",
     "file:///etc/passwd", "http://", "http://h\r\nX: y:9000", "gopher://h:70", "", "h:9000"],
)  # fmt: skip
def test_a_url_is_scheme_host_and_port_of_something_that_may_be_a_workerserver(
    refusing: Api, url: str
) -> None:
    assert register(refusing, url) == 400
    assert refusing.get("/v1/sd") == []


@pytest.mark.parametrize(
    "who",
    [{"group": "-rf"}, {"group": "=1+1"}, {"group": "a:b"}, {"group": "a/b"}, {"group": "a b"},
     {"group": ""}, {"group": "x" * 200}, {"group": "a\x00"}, {"group": "\ud800"},
     {"host": "-o"}, {"host": "=x"}, {"host": "a\nb"}, {"world_size": 10**400},
     {"pid": float("nan")}, {"group_rank": -1}, {"group_rank": 5}, {"incarnation": 7},
     {"group": "<script>"}, {"group": "a\u202eb"}, {"group": "rg_1:uuid"}, {"host": "x" * 129},
     {"job": "\ud800"}, {"incarnation": "a\nb"}, {"place": {"k": "\x1b[2J"}},
     {"place": {str(n): "x" for n in range(100)}}],
    ids=str,
)  # fmt: skip
def test_a_name_is_printable_and_no_option_and_no_formula(
    refusing: Api, who: dict[str, Any]
) -> None:
    assert register(refusing, "http://10.0.0.1:9000", **who) == 400
    assert refusing.get("/v1/sd") == []


@pytest.mark.parametrize(
    "header",
    [None, "", "secret", "Bearer", "Bearer ", "Bearer wrong", "Basic secret", "Bearer secret x",
     "Bearer s\u00e9cret".encode(), b"Bearer \xff\xfe", "Bearer " + "x" * 5000],
    ids=repr,
)  # fmt: skip
def test_without_the_token_nobody_registers_and_no_header_is_an_error(
    refusing: Api, header: Any
) -> None:
    headers = {} if header is None else {"Authorization": header}
    assert register(refusing, "http://10.0.0.1:9000", headers) == 401


def test_nobody_takes_the_name_of_a_rank_that_answers_as_itself(api: Api) -> None:
    assert register(api, "http://10.0.0.1:9000") == 200
    assert register(api, "http://10.0.0.66:9000", incarnation="liar") == 409
    (target,) = api.service.keeper._components.registry.targets()
    assert (target.url, target.identity.incarnation) == ("http://10.0.0.1:9000", "one")


def test_a_rank_that_starts_again_has_its_name_once_nobody_listens_at_the_old_url(api: Api) -> None:
    table = api.service.keeper._components.registry
    assert register(api, "http://10.0.0.1:9000") == 200
    assert register(api, "http://10.0.0.1:9001", incarnation="two") == 409
    table.gone([table.targets()[0].identity])
    assert register(api, "http://10.0.0.1:9001", incarnation="two") == 200
    assert register(api, "http://10.0.0.1:9000") == 409  # the old one comes too late


def test_whose_rank_is_dead_or_silent_loses_its_name_to_another_host(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = api.service.keeper._components.registry
    assert register(api, "http://10.0.0.1:9000") == 200
    (target,) = table.targets()
    died = StateReport(target.identity, Process(alive=False, dead_age_s=0.0))
    table.heard({target.rank: died})
    assert register(api, "http://10.0.0.2:9000", incarnation="two") == 200
    monkeypatch.setattr(registry, "ANSWERS_S", -1.0)  # silent for longer than that
    assert register(api, "http://10.0.0.3:9000", incarnation="three") == 200


def test_a_table_that_is_full_takes_no_more(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "RANKS_MOST", 2)
    for number in range(2):
        who = parse_identity({**IDENTITY, "group": f"rg_{number}"})
        asked = Registration(who, "http://10.0.0.1:9000", 15.0)
        standing = api.service.keeper._components.registry.register(asked, f"10.0.0.{number}")
        assert standing is Registered.CURRENT
    assert register(api, "http://10.0.0.1:9000", group="rg_9") == 503
    assert register(api, "http://10.0.0.1:9000", group="rg_1") == 200  # who is there renews


def test_one_address_brings_so_many_new_ranks_a_minute(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "NEW_A_MINUTE", 2)
    table = api.service.keeper._components.registry
    table._clock = HandClock()
    for number in range(2):
        assert register(api, "http://10.0.0.1:9000", group=f"rg_{number}") == 200
    for number in range(2, 5):
        assert register(api, "http://10.0.0.1:9000", group=f"rg_{number}") == 429
    assert register(api, "http://10.0.0.1:9000", group="rg_1") == 200  # who is there renews
    assert len(table.targets()) == 2
    counted = api.call("GET", "/metrics").text
    assert 'lightkeeper_registrations_refused_total{reason="hasty"} 3.0' in counted
    table._clock.advance(60.0)
    assert register(api, "http://10.0.0.1:9000", group="rg_4") == 200


@pytest.mark.parametrize(
    ("first", "second", "counts_as_one"),
    [("10.0.0.1", "10.0.0.1", True), ("10.0.0.1", "::ffff:10.0.0.1", True),
     ("10.0.0.1", "10.0.0.2", False), ("2001:db8::1", "2001:db8::2:3:4:5", True),
     ("2001:db8::1", "2001:db8:0:1::1", False), ("127.0.0.1", "127.9.9.9", True),
     ("127.0.0.1", "::1", True)],
)  # fmt: skip
def test_no_address_brings_more_than_half_of_all_ranks(
    monkeypatch: pytest.MonkeyPatch, first: str, second: str, counts_as_one: bool
) -> None:
    monkeypatch.setattr(registry, "RANKS_MOST", 4)
    table = Registry(HandClock(), Memory())

    def bring(number: int, address: str) -> Registered:
        who = parse_identity({**IDENTITY, "group": f"rg_{number}"})
        return table.register(Registration(who, "http://10.0.0.1:9000", 15.0), address)

    assert [bring(number, first) for number in range(2)] == [Registered.CURRENT] * 2
    expected = Registered.HASTY if counts_as_one else Registered.CURRENT
    assert bring(2, second) is expected
    assert bring(0, second) is Registered.CURRENT
    table.unregister(RankName("rg_0.0"), "one")
    assert bring(3, second) is Registered.CURRENT
