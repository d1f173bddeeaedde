"""The token goes to the address that was named, and nowhere else."""

from __future__ import annotations

import ast
import http.server
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from lightkeeper.monitor.act.http import Fetcher, FetchError, Question, Tokens
from lightkeeper.monitor.cli import main
from lightkeeper.monitor.model.names import GroupName
from lightkeeper.worker_server import doctor, home
from lightkeeper.worker_server.sidecar.serve import Registrar
from tests.security.words import ASK


class Server(http.server.ThreadingHTTPServer):
    """Notes the Authorization of each request; answers 200, or a redirect to `elsewhere`."""

    elsewhere = ""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: list[tuple[str, str | None]] = []
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

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

    do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815

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


# -- everything that sends the token ---------------------------------------------------------------

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("lightkeeper", "worker_server", "gate", "monitor", "dashboards", "trainer")
OPENS = {
    "worker_server/home.py": {
        "requests.Session", "client.HTTPConnection", "client.HTTPSConnection",
    },
    "monitor/act/http.py": {"aiohttp.ClientSession"},
    "gate/overlap.py": {"http.client.HTTPConnection"},  # another gate
    "gate/serve.py": {"aiohttp.ClientSession"},  # the same
    # these send no token of ours
    "worker_server/sidecar/recorders.py": {"http.client.HTTPConnection"},
    "dashboards/publish.py": {"GrafanaFace"},  # Grafana's own token
}  # fmt: skip
CLIENTS = {
    *(f"requests.{name}" for name in
      ("Session", "session", "request", "get", "post", "put", "patch", "delete", "head")),
    "aiohttp.ClientSession", "aiohttp.request", "urllib.request.urlopen", "urllib.request.Request",
    "urllib.request.build_opener", "http.client.HTTPConnection", "http.client.HTTPSConnection",
    "client.HTTPConnection", "client.HTTPSConnection",
    "urllib3.PoolManager", "httpx.Client", "httpx.get", "GrafanaFace",
}  # fmt: skip
SENDS = {
    "worker_server/doctor.py", "worker_server/sidecar/serve.py", "monitor/commands/ask.py",
    "monitor/act/http.py", "monitor/act/notices.py", "monitor/act/prometheus.py",
    "gate/overlap.py",
}  # fmt: skip
"""Files that set an Authorization header; notices and Prometheus have their own."""


def _files(*words: str) -> Iterator[tuple[str, ast.Module]]:
    """Those with one of these words."""
    for part in PARTS:
        for path in (ROOT / part).glob("*.py" if part == "lightkeeper" else "**/*.py"):
            if any(word in (text := path.read_text()) for word in words):
                yield str(path.relative_to(ROOT)), ast.parse(text)


def test_no_other_code_opens_a_connection() -> None:
    """Who adds one says here whether it sends a token, and by which way."""
    seen: dict[str, set[str]] = {}
    for name, tree in _files(*(name.partition(".")[0] for name in CLIENTS)):
        used = {ast.unparse(node) for node in ast.walk(tree)
                if isinstance(node, ast.Attribute | ast.Name)} & CLIENTS  # fmt: skip
        if used:
            seen[name] = used
    assert seen == OPENS


def test_no_other_code_sets_an_authorization() -> None:
    sets = set()
    for name, tree in _files("Authorization"):
        keys: list[ast.expr | None] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.Dict):
                keys += node.keys
            elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                keys.append(node.slice)
        if any(isinstance(key, ast.Constant) and key.value == "Authorization" for key in keys):
            sets.add(name)
    assert sets == SENDS


def test_what_uses_a_proxy_has_no_token() -> None:
    with pytest.raises(ValueError, match="proxies"):
        Fetcher(proxies=True, tokens=Tokens("secret"))


def _by_fetcher(method: str) -> Callable[[str], None]:
    def ask(url: str) -> None:
        fetcher = Fetcher(tokens=Tokens("secret"))
        with suppress(FetchError):
            fetcher.ask(Question(f"{url}/v1/x", 5.0, 1000, method=method, group=GroupName("g")))
        fetcher.close()

    return ask


def _register(url: str) -> None:
    identity = SimpleNamespace(rank="rg_0.0", incarnation="one", launched_as=None, group="rg_0")
    endpoint = SimpleNamespace(identity=identity, secret="s")
    Registrar(url, endpoint, "secret")._call("POST", "/v1/register", b"{}")  # type: ignore[arg-type]


def _doctor(url: str) -> None:
    environ = {"LIGHTKEEPER_TOKEN": "secret", "LIGHTKEEPER_MONITOR": url}
    rank = doctor.RankHere("rg_0.0", environ, url)
    list(doctor.of_monitors([rank], environ))


def _command(words: str) -> Callable[[str], None]:
    return lambda url: main([*words.split(), *ASK[words], "--monitor", url]) and None


WAYS = {
    "fetcher GET": _by_fetcher("GET"), "fetcher POST": _by_fetcher("POST"), "a rank": _register,
    "doctor": _doctor,
    **{words: _command(words) for words in
       ("pause", "resume", "evict", "quarantine add", "quarantine release", "policy reload")},
}  # fmt: skip


@pytest.mark.parametrize("redirects", [False, True], ids=["answered", "redirected"])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_the_token_goes_to_who_was_named_and_to_nobody_else(
    servers, monkeypatch, tmp_path, way: Callable[[str], None], redirects: bool
) -> None:
    monitor, other = servers
    monitor.elsewhere = f"{other.url}/x" if redirects else ""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login ann password other\n")
    netrc.chmod(0o600)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, other.url)
        monkeypatch.setenv(name.lower(), other.url)
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("LIGHTKEEPER_TOKEN", "secret")
    way(monitor.url)
    assert other.seen == []
    assert monitor.seen
    assert {token for _, token in monitor.seen} <= {"Bearer secret", None}
    asks_first = way is WAYS["evict"] or (redirects and way is WAYS["doctor"])
    assert any(token for _, token in monitor.seen) or asks_first
