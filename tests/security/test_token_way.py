"""The token goes to the address that was named, and nowhere else."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator

import pytest

from lightkeeper.worker_server import home


class Server(http.server.ThreadingHTTPServer):
    """Notes the Authorization of each request; answers 200, or a redirect to `elsewhere`."""

    elsewhere = ""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: list[tuple[str, str | None]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.seen.append((self.path, self.headers["Authorization"]))
        self.send_response(302 if self.server.elsewhere else 200)
        if self.server.elsewhere:
            self.send_header("Location", self.server.elsewhere)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def servers() -> Iterator[tuple[Server, Server]]:
    monitor, other = Server(), Server()
    yield monitor, other
    for server in (monitor, other):
        server.shutdown()
        server.server_close()


OURS = {"Authorization": "Bearer secret"}


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"])
def test_no_proxy_sees_the_token(servers, monkeypatch, name: str) -> None:
    monitor, proxy = servers
    monkeypatch.setenv(name, proxy.url)
    monkeypatch.setenv("NO_PROXY", "")
    assert home.ask("GET", f"{monitor.url}/v1/pause", headers=OURS).status_code == 200
    assert (monitor.seen, proxy.seen) == ([("/v1/pause", "Bearer secret")], [])


def test_a_netrc_does_not_replace_the_token(servers, monkeypatch, tmp_path) -> None:
    monitor, _ = servers
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login ann password other\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    home.ask("GET", f"{monitor.url}/", headers=OURS)
    assert monitor.seen == [("/", "Bearer secret")]


def test_a_redirect_is_not_followed(servers) -> None:
    monitor, other = servers
    monitor.elsewhere = f"{other.url}/x"
    assert home.ask("GET", f"{monitor.url}/", headers=OURS).status_code == 302
    assert other.seen == []
