"""Who may ask what, where."""

from __future__ import annotations

import socket

import pytest

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.rank.settings import Settings
from lightkeeper.worker_server.sidecar.app import ENDPOINTS
from tests.worker_server.boxes import TOKEN, WITH_TOKEN, FakeBox, app_of

READS = ["/nope", *(endpoint.path for endpoint in ENDPOINTS if not endpoint.acts)]
ORDER = {"reason": "test"}
OPEN_BIND = "0.0.0.0"


def statuses(client, headers=None):
    """Of all reads (a path that is not there counts as read), and of evict."""
    answers = {path: client.get(path, headers=headers).status_code for path in READS}
    crashed = {path: status for path, status in answers.items() if status >= 500}
    assert not crashed
    reads = {200 if path == "/nope" and status == 404 else status
             for path, status in answers.items()}  # fmt: skip
    return (*reads, client.post(wire.PATH_EVICT, json=ORDER, headers=headers).status_code)


WRONG = {"Authorization": "Bearer nope"}


@pytest.mark.parametrize(
    ("settings", "headers", "expected"),
    [
        pytest.param(Settings(), {}, (200, 403), id="loopback, no token anywhere"),
        pytest.param(Settings(token=TOKEN), {}, (200, 401), id="loopback, none sent"),
        pytest.param(Settings(token=TOKEN), WRONG, (200, 401), id="loopback, wrong"),
        pytest.param(Settings(token=TOKEN), WITH_TOKEN, (200, 200), id="loopback, right"),
        pytest.param(Settings(bind="::1", token=TOKEN), {}, (200, 401), id="v6 loopback"),
        pytest.param(Settings(bind="127.3.2.1"), {}, (200, 403), id="127.0.0.0/8"),
        pytest.param(Settings(bind="localhost"), {}, (200, 403), id="localhost"),
        pytest.param(Settings(bind=OPEN_BIND), WRONG, (403, 403), id="open bind, no token"),
        pytest.param(Settings(bind=OPEN_BIND, token=TOKEN), {}, (401, 401), id="none sent"),
        pytest.param(Settings(bind=OPEN_BIND, token=TOKEN), WRONG, (401, 401), id="wrong"),
        pytest.param(Settings(bind=OPEN_BIND, token=TOKEN), {"Authorization": TOKEN},
                     (401, 401), id="no scheme"),
        pytest.param(Settings(bind=OPEN_BIND, token=TOKEN), WITH_TOKEN, (200, 200),
                     id="open bind, right"),
        pytest.param(Settings(bind="::", token=TOKEN), {}, (401, 401), id="v6 wildcard"),
        pytest.param(Settings(bind="node7", token=TOKEN), {}, (401, 401), id="a name"),
        pytest.param(Settings(bind=OPEN_BIND, token=TOKEN, open_reads=True), {},
                     (200, 401), id="reads are open"),
        pytest.param(Settings(bind=OPEN_BIND, open_reads=True), WRONG, (200, 403),
                     id="reads are open, no token"),
    ],
)  # fmt: skip
def test_reads_and_evict(settings, headers, expected):
    assert statuses(app_of(FakeBox(), settings).test_client(), headers) == expected


def test_a_refusal_says_what_to_set_and_what_to_send():
    client = app_of(FakeBox(), Settings(bind=OPEN_BIND)).test_client()
    for answer in (client.get(wire.PATH_STATE), client.post(wire.PATH_EVICT, json=ORDER)):
        assert "LIGHTKEEPER_TOKEN_FILE" in answer.json["error"]
    assert "LIGHTKEEPER_OPEN_READS=1" in client.get(wire.PATH_STATE).json["error"]
    asked = app_of(FakeBox(), Settings(bind=OPEN_BIND, token=TOKEN)).test_client()
    assert asked.get(wire.PATH_STATE).headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8471", 200), ("[::1]:8471", 200), ("::1", 200), ("10.1.2.3", 200),
        ("localhost", 200), ("LOCALHOST:80", 200), ("node7:8471", 200), ("", 200),
        (f"{socket.gethostname()}:1", 200), ("evil.example:8471", 403), ("localhost.evil", 403),
        ("127.0.0.1.evil.example", 403), ("a:b:c", 403),
    ],
)  # fmt: skip
def test_another_hosts_name_is_refused_on_loopback_without_a_token(host, status):
    client = app_of(FakeBox()).test_client()
    answer = client.get(wire.PATH_STATE, headers={"Host": host})
    assert answer.status_code == status
    assert client.get(wire.PATH_STATE, headers={"Host": host, **WITH_TOKEN}).status_code == 200
    if status == 403:
        assert "Host header" in answer.json["error"]


def test_every_answer_tells_browsers_to_be_careful():
    client = app_of(FakeBox()).test_client()
    for path in [*READS, wire.PATH_EVICT]:
        headers = client.get(path).headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"
        assert "default-src 'none'" in headers["Content-Security-Policy"]
