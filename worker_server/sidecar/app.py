"""The sidecar's endpoints: routes, parameters, orders, access, answers and errors."""

from __future__ import annotations

import hmac
import json
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar
from urllib.parse import quote

from flask import Flask, Response, request
from msgspec import UNSET, DecodeError, Meta, Struct, UnsetType, ValidationError, convert
from msgspec.json import Decoder
from prometheus_client import CollectorRegistry
from werkzeug.exceptions import HTTPException

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.http_server import metrics_page, names_us
from lightkeeper.worker_server.plain_text import escaped, escaped_body
from lightkeeper.worker_server.rank.settings import Settings
from lightkeeper.worker_server.sidecar import RefusalError, process, text
from lightkeeper.worker_server.sidecar.black_box import BlackBox
from lightkeeper.worker_server.sidecar.stacks import folded

_log = logging.getLogger("lightkeeper.worker_server.sidecar")

# -- How the sidecar answers: JSON or text, and every error as one line of JSON -------------------

NOT_FOUND: Final = 404


class WorkSlots:
    """Limits how many worker threads do one kind of slow work; the others stay free."""

    def __init__(self, count: int, what: str) -> None:
        self._free = threading.BoundedSemaphore(count)
        self._message = f"{count} requests for {what} are under way: try again"

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Hold a slot.

        Raises:
            RefusalError: 503, none is free.
        """
        if not self._free.acquire(blocking=False):
            raise RefusalError(503, self._message, {"Retry-After": "1"})
        try:
            yield
        finally:
            self._free.release()


def in_json(content: Mapping[str, Any]) -> Response:
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    return Response((text + "\n").encode(errors="replace"), content_type="application/json")


def in_text(content: str) -> Response:
    """A name that is not UTF-8 (lone surrogates, in Python) loses its characters alone."""
    return Response(content.encode(errors="replace"), content_type="text/plain; charset=utf-8")


def answer_error(exc: Exception) -> Response:
    """The answer to any exception of a route; a bug's traceback goes to the log only."""
    headers: Mapping[str, str] = {}
    match exc:
        case RefusalError():
            status, message, headers = exc.status, str(exc), exc.headers
        case HTTPException():
            status, message = exc.code or 500, f"{exc.name.lower()}: {request.path}"
            message += "; GET / says what is here" if status == NOT_FOUND else ""
            headers = {name: value for name, value in exc.get_headers() if name == "Allow"}
        case _:
            _log.exception("%s %s failed", request.method, request.path)
            status, message = 500, f"internal error: {type(exc).__name__}; see the sidecar's log"
    response = in_json({"error": " ".join(message.split())})
    response.status_code = status
    response.headers.update(headers)
    return response


def harden(response: Response) -> Response:
    """No character that moves a terminal (but `raw=1`); no sniffing, cache, referrer, framing."""
    if request.args.get("raw") != "1":
        response.set_data(escaped_body(response.get_data(), response.mimetype))
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Cache-Control"] = "no-store"
    response.headers["Referrer-Policy"] = "no-referrer"
    response.headers["Content-Security-Policy"] = (
        "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
    )
    return response


# -- Query parameters and request bodies, validated: a typo is a 400 -----------------------------

_MAX_GRACE_S: Final = 60.0
_MAX_REASON: Final = 500
_Query = TypeVar("_Query", bound=Struct)


class Nothing(Struct, forbid_unknown_fields=True):
    """No parameters."""


class Shown(Struct, forbid_unknown_fields=True, kw_only=True):
    """How characters are written that would control a terminal."""

    raw: Literal[0, 1] = 0
    """1: as they are; else as escapes: `\\x1b` in text, `\\u001b` in JSON."""


class Look(Shown, forbid_unknown_fields=True, kw_only=True):
    """How an answer is written."""

    format: Literal["json", "text"] = "json"
    """text: for people, at most 120 columns."""
    rows: Annotated[int, Meta(ge=0, le=100_000)] = 20
    """Newest rows of a text table; 0: all. JSON has all."""


class Attempts(Look, forbid_unknown_fields=True, kw_only=True):
    """Which attempts of steps."""

    since: wire.Count = 0
    """Number of an attempt: only later ones."""


class RecordQuery(Look, forbid_unknown_fields=True, kw_only=True):
    """Which part of the flight record, and how it is written."""

    active: Literal[0, 1] = 0
    """1: only what is unfinished."""


class Threads(Shown, forbid_unknown_fields=True, kw_only=True):
    """What to show of threads."""

    native: Literal[0, 1] = 0
    """1: with C frames."""


def parameters(kind: type[_Query]) -> _Query:
    """The query parameters; each is known and given once.

    Raises:
        RefusalError: 400; a parameter that is not understood must not seem to be obeyed.
    """
    for name, values in request.args.lists():
        if len(values) > 1:
            raise RefusalError(400, f"{name!r:.80} is given more than once")
    wire.build(kind)
    try:
        return convert(request.args.to_dict(), kind, strict=False)
    except (ValidationError, UnicodeEncodeError) as exc:
        names = ", ".join(kind.__struct_fields__) or "none"
        raise RefusalError(400, f"the parameters: {exc!s:.200}; known: {names}") from exc


@dataclass(frozen=True, slots=True)
class EvictionOrder:
    """Why and how to evict."""

    reason: Annotated[str, Meta(pattern=r"\S")]
    """Not empty."""
    grace_s: Annotated[float, Meta(ge=0.0, le=_MAX_GRACE_S)] = 2.0
    """Between SIGTERM and SIGKILL."""
    gently_s: Annotated[float, Meta(ge=0.0, le=_MAX_GRACE_S)] = 0.0
    """Before SIGTERM, for the rank to end what runs on its devices; 0: SIGTERM at once."""
    manner: Literal["", "park", "abort"] = ""
    """`park`: it trains, so let it come to the end of its step; `abort`: it stands; empty: the
    WorkerServer looks."""
    incarnation: Annotated[str, Meta(examples=["32bfd68baf"])] | UnsetType = UNSET
    """Refuse if another process has the rank's name by now."""


@dataclass(frozen=True, slots=True)
class ReleaseOrder:
    """Which exchange to end."""

    reason: Annotated[str, Meta(pattern=r"\S")]
    """Not empty."""
    quorum_id: wire.Count
    """Nothing is ended in any other quorum."""
    addresses: Annotated[tuple[str, ...], Meta(min_length=1)]
    """Addresses of the job's hosts: only connections to these are ended."""
    incarnation: Annotated[str, Meta(examples=["32bfd68baf"])] | UnsetType = UNSET
    """Refuse if another process has the rank's name by now."""


@dataclass(frozen=True, slots=True)
class ReleaseResult:
    """What the rank did about an order to end an exchange."""

    ended: wire.Count
    """Connections; 1 for a group that was aborted."""
    said: str


_Order = TypeVar("_Order", EvictionOrder, ReleaseOrder)


def _number(text: str) -> int | float:
    """JSON writes a whole number as it likes: 7.0 is one."""
    number = float(text)
    return int(number) if number.is_integer() else number


def order_in(body: bytes, kind: type[_Order], identity: wire.Identity) -> _Order:
    """The order in a body, its reason in one short line.

    Raises:
        RefusalError: 400, or 409 when another incarnation is meant.
    """
    wire.build(kind)
    try:
        order = convert(Decoder(float_hook=_number).decode(body), kind)
    except ValidationError as exc:
        raise RefusalError(400, f"the body is no such order: {exc}") from exc
    except (DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise RefusalError(400, f"the body is not JSON: {exc}") from exc
    if order.incarnation not in (UNSET, identity.incarnation):
        # Another process may take over the port before the order arrives.
        raise RefusalError(
            409,
            f"meant for incarnation {order.incarnation!r:.80}, this is {identity.incarnation!r}",
        )
    return replace(order, reason=" ".join(order.reason.split())[:_MAX_REASON])


# -- endpoints as values --------------------------------------------------------------------------

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
    query: type[Struct] | None = Nothing
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
            raise RefusalError(
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
            raise RefusalError(403, without)
        if not self._has_token():
            raise RefusalError(401, "wrong or missing bearer token", {"WWW-Authenticate": "Bearer"})

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


@dataclass(frozen=True, slots=True)
class Served:
    """What the endpoints answer from."""

    box: BlackBox
    evict: Callable[[EvictionOrder], process.EvictionResult]
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
    app.after_request(harden)
    app.register_error_handler(Exception, answer_error)
    places = {work: WorkSlots(count, work) for work, count in _PLACES.items()}
    for endpoint in ENDPOINTS:
        view = partial(_answer, served, endpoint, places.get(endpoint.slow))
        app.add_url_rule(endpoint.path, endpoint.name, view, methods=[endpoint.method])
    return app


def _answer(served: Served, endpoint: Endpoint, places: WorkSlots | None) -> Response:
    query = None if endpoint.query is None else parameters(endpoint.query)
    with nullcontext() if places is None else places.taken():
        answer = endpoint.answer(served, query)
        if isinstance(answer, Response):
            return answer
        if isinstance(query, Look) and query.format == "text":
            return in_text(text.answer_text(answer, query.rows))
        return in_json(answer if isinstance(answer, dict) else wire.to_json(answer))


def _evict(served: Served, _: Nothing) -> Response:
    order = order_in(request.get_data(), EvictionOrder, served.box.identity)
    _log.warning("evict asked by %s: %a", request.remote_addr, order.reason)
    eviction = served.evict(order)
    _log.warning("evicted: %s", eviction)
    return in_json({"schema": wire.SCHEMA, **asdict(eviction)})


def _release(served: Served, _: Nothing) -> Response:
    order = order_in(request.get_data(), ReleaseOrder, served.box.identity)
    _log.warning("release asked by %s: %a", request.remote_addr, order.reason)
    ended, said = served.box.release(order.quorum_id, order.addresses, _RELEASE_WAIT_S)
    _log.warning("released: %a", said)
    return in_json({"schema": wire.SCHEMA, **asdict(ReleaseResult(ended, said))})


def _stacks(served: Served, query: Threads) -> Response:
    taken = served.box.stacks(native=bool(query.native))
    response = in_text(folded(taken.text))
    response.headers[wire.HEADER_AGE] = f"{taken.age_s:.2f}"
    return response


def _metrics(served: Served, _: None) -> Response:
    body, content_type = metrics_page(served.registry, request.headers.get("Accept", ""))
    return Response(body, content_type=content_type)


def _help(served: Served, _: None) -> Response:
    who, base = served.box.identity, request.host_url.rstrip("/")
    title = f"WorkerServer of rank {who.rank} (job {who.job}, host {who.host}, pid {who.pid})"
    pages = [f"{url}/ranks/{quote(who.rank)} is its page" for url in served.monitors]
    return in_text("\n".join([escaped(title), _ABOUT, *pages, "", *_help_lines(base), ""]))


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
             lambda served, _: served.box.state(), wire.StateReport, BOTH, Look,
             example="?format=text"),
    Endpoint("steps", wire.PATH_STEPS, "the last attempts of steps, with seconds by phase",
             lambda served, query: served.box.steps(query.since), wire.StepLog, BOTH,
             Attempts, example="?format=text"),
    Endpoint("flight_recorder", wire.PATH_FLIGHT_RECORDER,
             "collectives: ours and torch's record (?active=1: the unfinished)",
             lambda served, query: served.box.flight_record(only_active=bool(query.active)),
             wire.FlightRecord, BOTH, RecordQuery,
             slow="records", example="?format=text"),
    Endpoint("stacks", wire.PATH_STACKS,
             "Python stacks of all threads, from outside (?native=1: with C frames)",
             _stacks, formats=TEXT, query=Threads, slow="stacks",
             errors={410: "the rank is dead, and none were taken before",
                     503: "none can be had; it says what is missing"}),
    Endpoint("last_words", wire.PATH_LAST_WORDS, "how the process ended and what it said last",
             lambda served, _: served.box.last_words(), wire.LastWords, BOTH, Look,
             slow="last words", example="?format=text"),
    Endpoint("host", wire.PATH_HOST, "the states of all ranks of this host",
             lambda served, _: served.host(), wire.HostReport, BOTH, Look,
             example="?format=text"),
    Endpoint("metrics", wire.PATH_METRICS, "for Prometheus", _metrics,
             formats=(*TEXT, "application/openmetrics-text"), query=None),
    Endpoint("network", wire.PATH_NETWORK, "its connections and the host's interfaces",
             lambda served, _: served.box.network_report(), wire.NetworkReport, BOTH, Look,
             slow="last words", example="?format=text"),
    Endpoint("machine", wire.PATH_MACHINE, "what the machine's witnesses say",
             lambda served, _: replace(served.box.machine.report(), identity=served.box.identity),
             wire.MachineReport, BOTH, Look, example="?format=text"),
    Endpoint("healthz", wire.PATH_HEALTHZ, "this server answers",
             lambda _, __: in_text("ok\n"), formats=TEXT, query=None),
    Endpoint("openapi", wire.PATH_OPENAPI, "all of this for programs",
             lambda _, __: Response(_DOCUMENT.read_bytes(), content_type="application/json"),
             query=None),
    Endpoint("evict", wire.PATH_EVICT, "end the rank's process: SIGTERM, grace, SIGKILL",
             _evict, process.EvictionResult, slow="eviction", acts=True,
             body='{"reason": "why", "grace_s": 2}', order=EvictionOrder,
             errors=_OF_ORDERS),
    Endpoint("release", wire.PATH_RELEASE, "end its exchange with the other groups of a quorum",
             _release, ReleaseResult, slow="eviction", acts=True,
             body='{"reason": "why", "quorum_id": 7, "addresses": ["10.0.0.1"]}',
             order=ReleaseOrder,
             errors={**_OF_ORDERS, 503: "the rank did not answer within 3 s"}),
)  # fmt: skip
_LISTED: Final = ENDPOINTS[1:]
