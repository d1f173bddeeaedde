"""No web page reads or changes anything by DNS rebinding: its Host and Origin are its own name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightkeeper.monitor.service import Service
from lightkeeper.worker_server.sidecar.app import ENDPOINTS
from lightkeeper.worker_server.wire import to_json
from tests.monitor.api import TOKEN, Api, options
from tests.monitor.fakes import FakeFleet
from tests.security.test_terminal import evil_app
from tests.worker_server.boxes import FakeBox, app_of

EVIL = {"Host": "evil.example", "Origin": "http://evil.example"}
NAMES = ("evil.example", "e_vil.example", "\xe9vil.example")
CHANGING = {"POST", "PUT", "DELETE", "PATCH"}


@pytest.fixture
def tokenless(tmp_path: Path, fleet: FakeFleet, request: pytest.FixtureRequest) -> Iterator[Api]:
    """Its parameter: whether reads are open."""
    open_reads = getattr(request, "param", False)
    with Service(options(tmp_path, token=None, open_reads=open_reads)) as made:
        api = Api(made)
        body = to_json(fleet.add(incarnation="1nc4rn4t10n").registration())
        assert api.call("POST", "/v1/register", json=body).status_code == 200
        api.tick()
        yield api


def routes() -> list[tuple[str, str]]:
    """Method and path of every route of the monitor, also of those that come later."""
    rules = evil_app().url_map.iter_rules()
    made = [
        (m, re.sub(r"<[^>]*>", "rg_0.0", rule.rule)) for rule in rules for m in rule.methods or ()
    ]
    assert len([method for method, _ in made if method in CHANGING]) >= 10
    return sorted(each for each in made if each[0] not in ("OPTIONS", "HEAD"))


@pytest.mark.parametrize("tokenless", [False, True], indirect=True, ids=["", "open reads"])
def test_without_a_token_no_route_is_changed_by_a_page_that_rebinds(tokenless: Api) -> None:
    body = {"reason": "x", "schema": 1}
    for method, path in routes():
        if method in CHANGING:
            answer = tokenless.call(method, path, json=body, headers=EVIL)
            assert answer.status_code == 403, (method, path)
    assert "rg_0.0" in tokenless.call("GET", "/v1/ranks").text


def test_no_page_that_rebinds_reads_addresses_or_incarnations(tokenless: Api) -> None:
    address = tokenless.get("/v1/ranks")["ranks"][0]["url"]
    gets = [path for method, path in routes() if method == "GET"]
    for name in NAMES:
        for path in gets if name == NAMES[0] else gets[:3]:
            answer = tokenless.call("GET", path, headers={"Host": name.encode("latin-1")})
            assert answer.status_code == 403, path
            assert address not in answer.text


def test_no_open_answer_has_an_incarnation(tokenless: Api) -> None:
    for method, path in routes():
        if method == "GET" and "/ranks/" not in path:
            assert "1nc4rn4t10n" not in tokenless.call(method, path).text, path


def test_with_a_token_reads_by_another_name_need_it(api: Api) -> None:
    api.tick()
    assert api.call("GET", "/v1/snapshot", headers=EVIL).status_code == 401
    assert api.call("GET", "/v1/snapshot", headers={**EVIL, **TOKEN}).status_code == 200
    for host in ("localhost:1", "127.0.0.1", "[::1]:8470"):
        assert api.call("GET", "/v1/snapshot", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("more", [{"public_url": "https://keeper.example/x"}, {"open_reads": True}])
def test_behind_a_proxy_the_monitor_has_a_name_of_its_own(tmp_path: Path, more: dict) -> None:
    with Service(options(tmp_path, **more)) as made:
        api = Api(made)
        api.tick()
        for path in ("/v1/snapshot", "/"):
            assert api.call("GET", path, headers={"Host": "keeper.example"}).status_code == 200


def test_a_workerserver_answers_no_page_that_rebinds() -> None:
    client = app_of(FakeBox()).test_client()
    for endpoint in ENDPOINTS:
        answer = client.open(endpoint.path, method=endpoint.method, headers=EVIL)
        assert answer.status_code in (401, 403), endpoint.name
