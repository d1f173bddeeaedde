"""The sidecar's endpoints: routes, parameters, access, answers, and their OpenAPI document."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from flask import Flask, Response, request
from msgspec import Struct
from prometheus_client import CollectorRegistry

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.http_server import metrics_page, names_us
from lightkeeper.worker_server.plain_text import escaped
from lightkeeper.worker_server.rank.settings import Settings
from lightkeeper.worker_server.sidecar import process, queries, text
from lightkeeper.worker_server.sidecar.black_box import BlackBox
from lightkeeper.worker_server.sidecar.stacks import folded

JSON: Final = ("application/json",)
TEXT: Final = ("text/plain",)
BOTH: Final = (*JSON, *TEXT)
"""As `?format=` says."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint: its route, its line of help and its part of the document."""

    name: str
    path: str
    what: str
    answer: Callable[..., Any]
    """Called with `Served` and the parameters; returns the response, or an object to render as JSON
    or text."""
    kind: type | None = None
    """Type of its JSON; None: torch's or OpenAPI's."""
    formats: tuple[str, ...] = JSON
    query: type[Struct] | None = queries.Nothing
    """None: ignored."""
    errors: Mapping[int, str] = field(default_factory=dict)
    slow: str = ""
    """Name of the work slots it needs."""
    example: str = ""
    """Parameters in the line of help."""
    acts: bool = False
    """True if it needs the token even on loopback."""
    body: str | None = None
    """Example of a body; makes it a POST."""
    order: type | None = None
    """Type of its body."""

    @property
    def method(self) -> str:
        return "POST" if self.body else "GET"

    def curl(self, base: str) -> str:
        url = base + self.path + self.example
        words = ["curl", "-X POST" if self.body else "", f"'{url}'" if self.example else url]
        words += ['-H "Authorization: Bearer $LIGHTKEEPER_TOKEN"' if self.acts else ""]
        words += [f"-d '{self.body}'" if self.body else ""]
        return " ".join(filter(None, words))


_OF_ORDERS: Final = {
    409: "meant for another incarnation of the rank",
    413: "the body is larger than 48 KiB",
}


# -- Who may ask what -----------------------------------------------------------------------------
# Bound to loopback, reading needs no token, only a `Host` that names this machine: any web site can
# make its own name resolve to 127.0.0.1 (DNS rebinding), and its pages could then read too. Bound
# to anything else, everything needs the token, unless reading is configured open. Evicting the
# rank always needs the token.

_HOW = "set LIGHTKEEPER_TOKEN_FILE or LIGHTKEEPER_TOKEN where the rank is started"
_OPEN = "or LIGHTKEEPER_OPEN_READS=1, or LIGHTKEEPER_BIND=127.0.0.1"


class RequestGuard:
    """Checks each request; keeps no state."""

    def __init__(self, settings: Settings, names: Collection[str] = ()) -> None:
        """`names`: of this host, besides its hostname."""
        self._token = None if settings.token is None else settings.token.encode()
        self._loopback = settings.loopback and not settings.closed_reads
        self._open = settings.open_reads
        self._names = frozenset(names)

    def may_read(self) -> None:
        """Check that the request may read.

        Raises:
            RefusalError: 401 or 403.
        """
        if self._open:
            return
        if not self._loopback:
            self._check_token(f"reading needs a token here: {_HOW}, {_OPEN}")
        elif not names_us(request.headers.get("Host", ""), self._names) and not self._has_token():
            raise queries.RefusalError(
                403, "the Host header names another host than this one: ask by IP address, as "
                "localhost, or with the bearer token",
            )  # fmt: skip

    def may_act(self) -> None:
        """Check that the request may evict.

        Raises:
            RefusalError: 401 or 403.
        """
        self._check_token(f"this is off without a token: {_HOW}")

    def _check_token(self, without: str) -> None:
        if self._token is None:
            raise queries.RefusalError(403, without)
        if not self._has_token():
            raise queries.RefusalError(
                401, "wrong or missing bearer token", {"WWW-Authenticate": "Bearer"}
            )

    def _has_token(self) -> bool:
        scheme, _, credentials = request.headers.get("Authorization", "").partition(" ")
        token = credentials.strip().encode("utf-8", "surrogateescape")
        right = hmac.compare_digest(token, self._token or b"")
        return right and self._token is not None and scheme.lower() == "bearer"


# -- the endpoints --------------------------------------------------------------------------------

THREADS = 10
_PLACES: Final = {"stacks": 2, "records": 3, "last words": 2, "eviction": 2}
"""A look into the rank may wait for the rank, and reading its files for a file server. These limits
leave at least one thread for the rest."""
_MAX_BODY: Final = 48 * 1024
"""The addresses of 2,500 hosts."""
_RELEASE_WAIT_S: Final = 3.0
"""The rank looks for orders four times a second."""
_log = logging.getLogger("lightkeeper.worker_server.sidecar")


@dataclass(frozen=True, slots=True)
class Served:
    """What the endpoints answer from."""

    box: BlackBox
    evict: Callable[[queries.EvictionOrder], process.EvictionResult]
    registry: CollectorRegistry
    host: Callable[[], wire.HostReport]
    monitors: tuple[str, ...] = ()


def make_app(served: Served, guard: RequestGuard) -> Flask:
    """The WSGI application of one rank's WorkerServer."""
    app = Flask(__name__, static_folder=None)
    app.url_map.merge_slashes = False  # `/v1//state` is a 404, not a redirect
    app.config["MAX_CONTENT_LENGTH"] = _MAX_BODY
    acting = {endpoint.name for endpoint in ENDPOINTS if endpoint.acts}
    app.before_request(lambda: guard.may_act() if request.endpoint in acting else guard.may_read())
    app.after_request(queries.harden)
    app.register_error_handler(Exception, queries.answer_error)
    places = {work: queries.WorkSlots(count, work) for work, count in _PLACES.items()}
    for endpoint in ENDPOINTS:
        view = partial(_answer, served, endpoint, places.get(endpoint.slow))
        app.add_url_rule(endpoint.path, endpoint.name, view, methods=[endpoint.method])
    return app


def _answer(served: Served, endpoint: Endpoint, places: queries.WorkSlots | None) -> Response:
    query = None if endpoint.query is None else queries.parameters(endpoint.query)
    with nullcontext() if places is None else places.taken():
        answer = endpoint.answer(served, query)
        if isinstance(answer, Response):
            return answer
        if isinstance(query, queries.Look) and query.format == "text":
            return queries.in_text(text.answer_text(answer, query.rows))
        return queries.in_json(answer if isinstance(answer, dict) else wire.to_json(answer))


def _evict(served: Served, _: queries.Nothing) -> Response:
    order = queries.order_in(request.get_data(), queries.EvictionOrder, served.box.identity)
    _log.warning("evict asked by %s: %a", request.remote_addr, order.reason)
    eviction = served.evict(order)
    _log.warning("evicted: %s", eviction)
    return queries.in_json({"schema": wire.SCHEMA, **asdict(eviction)})


def _release(served: Served, _: queries.Nothing) -> Response:
    order = queries.order_in(request.get_data(), queries.ReleaseOrder, served.box.identity)
    _log.warning("release asked by %s: %a", request.remote_addr, order.reason)
    ended, said = served.box.release(order.quorum_id, order.addresses, _RELEASE_WAIT_S)
    _log.warning("released: %a", said)
    return queries.in_json({"schema": wire.SCHEMA, **asdict(queries.ReleaseResult(ended, said))})


def _stacks(served: Served, query: queries.Threads) -> Response:
    taken = served.box.stacks(native=bool(query.native))
    response = queries.in_text(folded(taken.text))
    response.headers[wire.HEADER_AGE] = f"{taken.age_s:.2f}"
    return response


def _metrics(served: Served, _: None) -> Response:
    body, content_type = metrics_page(served.registry, request.headers.get("Accept", ""))
    return Response(body, content_type=content_type)


def _help(served: Served, _: None) -> Response:
    who, base = served.box.identity, request.host_url.rstrip("/")
    title = f"WorkerServer of rank {who.rank} (job {who.job}, host {who.host}, pid {who.pid})"
    pages = [f"{url}/ranks/{quote(who.rank)} is its page" for url in served.monitors]
    return queries.in_text("\n".join([escaped(title), _ABOUT, *pages, "", *_help_lines(base), ""]))


def _help_lines(base: str) -> Iterator[str]:
    for endpoint in _LISTED:
        command = endpoint.curl(base)
        if len(command) >= _WIDTH:
            yield f"# {endpoint.what}\n{command}"
        else:
            yield f"{command:<{_WIDTH}}  {endpoint.what}"


_ABOUT: Final = "It answers while the rank hangs, is stopped, or is dead."
_WIDTH: Final = 64

_DOCUMENT: Final = Path(__file__).with_name("openapi.json")
ENDPOINTS: Final = (
    Endpoint("help", "/", "what is here, for a person", _help,
             formats=TEXT, query=None),
    Endpoint("state", wire.PATH_STATE, "step, phase, process, process groups",
             lambda served, _: served.box.state(), wire.StateReport, BOTH, queries.Look,
             example="?format=text"),
    Endpoint("steps", wire.PATH_STEPS, "the last attempts of steps, with seconds by phase",
             lambda served, query: served.box.steps(query.since), wire.StepLog, BOTH,
             queries.Attempts, example="?format=text"),
    Endpoint("flight_recorder", wire.PATH_FLIGHT_RECORDER,
             "collectives: ours and torch's record (?active=1: the unfinished)",
             lambda served, query: served.box.flight_record(only_active=bool(query.active)),
             wire.FlightRecord, BOTH, queries.RecordQuery,
             slow="records", example="?format=text"),
    Endpoint("stacks", wire.PATH_STACKS,
             "Python stacks of all threads, from outside (?native=1: with C frames)",
             _stacks, formats=TEXT, query=queries.Threads, slow="stacks",
             errors={410: "the rank is dead, and none were taken before",
                     503: "none can be had; it says what is missing"}),
    Endpoint("last_words", wire.PATH_LAST_WORDS, "how the process ended and what it said last",
             lambda served, _: served.box.last_words(), wire.LastWords, BOTH, queries.Look,
             slow="last words", example="?format=text"),
    Endpoint("host", wire.PATH_HOST, "the states of all ranks of this host",
             lambda served, _: served.host(), wire.HostReport, BOTH, queries.Look,
             example="?format=text"),
    Endpoint("metrics", wire.PATH_METRICS, "for Prometheus", _metrics,
             formats=(*TEXT, "application/openmetrics-text"), query=None),
    Endpoint("network", wire.PATH_NETWORK, "its connections and the host's interfaces",
             lambda served, _: served.box.network_report(), wire.NetworkReport, BOTH, queries.Look,
             slow="last words", example="?format=text"),
    Endpoint("machine", wire.PATH_MACHINE, "what the machine's witnesses say",
             lambda served, _: served.box.machine.report(), wire.MachineReport, BOTH, queries.Look,
             example="?format=text"),
    Endpoint("healthz", wire.PATH_HEALTHZ, "this server answers",
             lambda _, __: queries.in_text("ok\n"), formats=TEXT, query=None),
    Endpoint("openapi", wire.PATH_OPENAPI, "all of this for programs",
             lambda _, __: Response(_DOCUMENT.read_bytes(), content_type="application/json"),
             query=None),
    Endpoint("evict", wire.PATH_EVICT, "end the rank's process: SIGTERM, grace, SIGKILL",
             _evict, process.EvictionResult, slow="eviction", acts=True,
             body='{"reason": "why", "grace_s": 2}', order=queries.EvictionOrder,
             errors=_OF_ORDERS),
    Endpoint("release", wire.PATH_RELEASE, "end its exchange with the other groups of a quorum",
             _release, queries.ReleaseResult, slow="eviction", acts=True,
             body='{"reason": "why", "quorum_id": 7, "addresses": ["10.0.0.1"]}',
             order=queries.ReleaseOrder,
             errors={**_OF_ORDERS, 503: "the rank did not answer within 3 s"}),
)  # fmt: skip
_LISTED: Final = ENDPOINTS[1:]
