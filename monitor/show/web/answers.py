"""What routes may use, and how they answer: JSON, errors as one line, the token."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Generic, TypeVar, cast
from weakref import ref

import msgspec
from flask import Response, current_app, request
from prometheus_client import CollectorRegistry
from werkzeug.exceptions import HTTPException

from lightkeeper.monitor.act.http import Fetcher
from lightkeeper.monitor.act.quarantine import PauseSwitch, Quarantine
from lightkeeper.monitor.act.targets import Registry
from lightkeeper.monitor.clock import Clock
from lightkeeper.monitor.decide.accounts import ChoiceError, NoSuchIncidentError, choose
from lightkeeper.monitor.decide.view import NotPossible, View
from lightkeeper.monitor.model.incident import Incident
from lightkeeper.monitor.model.names import GroupName, IncidentId
from lightkeeper.monitor.model.units import clean
from lightkeeper.monitor.model.work import Work, WorkRow
from lightkeeper.monitor.rulebook import Rulebook
from lightkeeper.monitor.show.templating import Page
from lightkeeper.monitor.show.web.incident_page import BundleStacks
from lightkeeper.monitor.store.lease import LeaseStanding
from lightkeeper.worker_server.http_server import names_us
from lightkeeper.worker_server.plain_text import escaped_body

KEY: Final = "lightkeeper"
NOT_FOUND: Final = 404


# -- What is made from the latest view -------------------------------------------------------------
# A page or a JSON body is made once a view, in the thread of the first request for it. Requests
# that come meanwhile get the one of the view before if there is one, else they wait. One that takes
# long, of thousands of ranks, is made again only once it is some seconds old.

T = TypeVar("T")
_ENTRIES: Final = 32
"""Keys whose values are kept: those used last."""
LONG_S: Final = 0.02
"""CPU seconds; what takes less is made of every view."""
_OLD_S: Final = 5.0
"""Who asks while it is made waits rather than get one that is older."""
_SPARES: Final = 20.0
"""What takes long is made again only after this many times the CPU time that it took: a page of
100,000 ranks takes at most a twentieth of a core."""


@dataclass(slots=True)
class _Entry(Generic[T]):
    making: threading.Lock = field(default_factory=threading.Lock)
    value: tuple[ref[View], Work, T] | None = None
    """Does not keep the view, which may be large; what people did since is shown at once."""
    good_s: float = 0.0
    """Until when it serves later views as well; monotonic."""


class Latest(Generic[T]):
    """Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, _Entry[T]] = OrderedDict()

    def get(self, view: View, key: Hashable, make: Callable[[], T]) -> T:
        """The key's value in this view; an earlier one while this is being made."""
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
            if len(self._entries) > _ENTRIES:
                self._entries.popitem(last=False)
        good_s = entry.good_s + (_OLD_S if entry.making.locked() else 0.0)
        if entry.value and time.monotonic() < good_s and entry.value[1] == view.work:
            return entry.value[2]
        with entry.making:
            if entry.value is None or entry.value[0]() is not view:
                began_s = time.thread_time()
                entry.value = ref(view), view.work, make()
                cpu_s = time.thread_time() - began_s
                entry.good_s = time.monotonic() + (_SPARES * cpu_s if cpu_s > LONG_S else 0.0)
            return entry.value[2]


# -- What routes use -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AppContext:
    """The monitor as its routes see it."""

    clock: Clock
    registry: Registry
    quarantine: Quarantine
    fetcher: Fetcher
    metrics: CollectorRegistry
    view: Callable[[], View | None]
    evict: Callable[[GroupName, str, str], IncidentId]
    """Group, reason, author. Raises `NotPossible`."""
    work: Callable[[WorkRow], WorkRow]
    """Keeps what a person did, and returns it. Raises `NotPossible`."""
    rules: Rulebook
    pause: PauseSwitch
    tick_s: float
    version: str
    bound_here: bool = True
    """True if only this machine can reach the monitor."""
    names: tuple[str, ...] = ()
    """Names of this monitor, besides the machine's."""
    loopback: bool = True
    """True if anyone on this machine may read ranks: bound here, and reads are not closed."""
    open_reads: bool = False
    """True if anybody who can reach the monitor may read ranks through it."""
    journal: Path | None = None
    """Folder of the journal, for `replay`."""
    standing: Callable[[], LeaseStanding | None] = lambda: None
    """Says if this monitor acts; None: it does not share its store."""
    unsaved: Callable[[], str | None] = lambda: None
    """Why the store takes no writes; None: it does."""
    bundle: Callable[[IncidentId], Path | None] = lambda _: None
    """The file of an incident's evidence."""
    stacks: Callable[[IncidentId], BundleStacks] = lambda _: BundleStacks()
    """What its page shows of it."""
    is_own: Callable[[str], bool] = lambda _: False
    """True if a URL leads to this monitor itself."""
    ended: Callable[[], str | None] = lambda: None
    """The part that ended although it must not: the process is about to end too."""
    bodies: Latest[bytes] = field(default_factory=Latest)
    """JSON that is made once a view, for all requests."""
    pages: Latest[Page] = field(default_factory=Latest)


def app_context() -> AppContext:
    return cast("AppContext", current_app.extensions[KEY])


log = logging.getLogger(__name__)

PLAIN: Final = "text/plain; charset=utf-8"
BODY_MAX_BYTES: Final = 64 * 1024


class HttpRefusal(Exception):  # noqa: N818 - an answer, not an error
    """An answer other than 200; the message is one line for a person."""

    def __init__(self, status: int, message: str, more: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.more = more or {}


def answer(body: Mapping[str, Any], status: int = 200) -> Response:
    """JSON; what it has as `text` with `?format=text`."""
    if request.args.get("format") == "text" and "text" in body:
        more = [f"and {body['more']:,} more"] if body.get("more") else []
        return Response("\n".join([*body["text"], *more, ""]), content_type=PLAIN)
    return Response(dump(body), status, content_type="application/json")


def dump(body: Mapping[str, Any] | Sequence[Any]) -> bytes:
    """Compact JSON, of 10,000 ranks in some 10 ms."""
    try:
        return msgspec.json.encode(body) + b"\n"
    except UnicodeEncodeError:  # half a surrogate pair, as in a path that is not UTF-8
        return json.dumps(msgspec.to_builtins(body), separators=(",", ":")).encode() + b"\n"


def refuse(exc: Exception) -> Response:
    """Any exception of a route as one JSON line; a bug's traceback is only in the log."""
    message = str(exc)
    match exc:
        case HttpRefusal():
            status = exc.status
        case HTTPException():
            status = exc.code or 500
            message = f"{exc.name.lower()}: {request.method} {request.path}"
            message += f" (what there is: curl {request.host_url})" if status == NOT_FOUND else ""
        case NoSuchIncidentError():
            status = 404
        case ChoiceError():
            status = 400
        case NotPossible():
            status = 409
        case _:
            log.exception("%s %s failed", request.method, request.path)
            status, message = 500, "internal error; the monitor's log has the details"
    more = exc.more if isinstance(exc, HttpRefusal) else {}
    response = answer({"error": " ".join(message.split()), **more}, status)
    if isinstance(exc, HTTPException):
        for name, value in exc.get_headers():
            if name in ("Allow", "Retry-After"):
                response.headers[name] = value
    return response


def protect(response: Response) -> Response:
    """No answer moves a terminal, or is more to a browser than it says."""
    if request.args.get("raw") != "1" and not response.direct_passthrough:
        response.set_data(escaped_body(response.get_data(), response.mimetype))
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Referrer-Policy"] = "no-referrer"
    response.headers["Content-Security-Policy"] = "default-src 'self'; frame-ancestors 'none'"
    response.headers.setdefault("Cache-Control", "no-store")
    return response


def json_body() -> Mapping[str, Any]:
    """The request's JSON object.

    Raises:
        HttpRefusal: it is not one.
    """
    try:
        body = json.loads(request.get_data(cache=False) or b"{}")
    except (ValueError, RecursionError) as exc:
        raise HttpRefusal(400, f"the body is not JSON: {exc}") from exc
    if not isinstance(body, dict):
        raise HttpRefusal(400, "the body is not a JSON object")
    return body


def text_of(body: Mapping[str, Any], key: str, max_chars: int = 500) -> str:
    """A text of the body, on one line.

    Raises:
        HttpRefusal: missing, empty or too long.
    """
    value = body.get(key)
    if not isinstance(value, str) or not value.strip():
        raise HttpRefusal(400, f"'{key}' is not a text: say why")
    line = clean(" ".join(value.split()), max_chars + 1)
    if len(line) > max_chars:
        raise HttpRefusal(400, f"'{key}' has {len(line)} characters, at most {max_chars} are kept")
    return line


def check_token() -> None:
    """Require the monitor's own token.

    Raises:
        HttpRefusal: 401, or 403 if none is configured.
    """
    if app_context().fetcher.tokens.own is None:
        raise HttpRefusal(403, "no token is configured: start the monitor with --token-file FILE")
    if not app_context().fetcher.tokens.is_own(bearer()):
        raise HttpRefusal(401, "wrong or missing token: send 'Authorization: Bearer TOKEN'")


def bearer() -> bytes:
    """The request's token; empty: none."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip().encode("utf-8", "surrogateescape") if scheme.lower() == "bearer" else b""


def check_reader() -> None:
    """Check that the request may read ranks through the monitor, which uses its own token.

    The ranks' own rule (`worker_server.sidecar.app`): a token, but on loopback a `Host` that
    names this machine is enough.

    Raises:
        HttpRefusal: 401.
    """
    context = app_context()
    if context.open_reads or (context.loopback and names_us(asked_host())):
        return
    try:
        check_token()
    except HttpRefusal as exc:
        raise HttpRefusal(
            401, "pages of ranks need the monitor's token here: curl -H 'Authorization: Bearer "
            f"TOKEN' {request.base_url}, or ask a monitor bound to 127.0.0.1 (ssh -L), or start "
            "it with --open-reads",
        ) from exc  # fmt: skip


def asked_host() -> str:
    """As it was sent: for werkzeug a name with an underscore is none; browsers ask by it."""
    return request.headers.get("Host", "")


def check_host() -> None:
    """On loopback, refuse a request without a token that names another machine: a web page does so
    by DNS rebinding, and would read the addresses of ranks.

    Raises:
        HttpRefusal: 401, or 403 if none is configured.
    """
    context = app_context()
    if not context.bound_here or context.open_reads or names_us(asked_host(), context.names):
        return
    if not context.fetcher.tokens.is_own(bearer()) and not context.fetcher.tokens.groups(bearer()):
        why = (
            f"{request.host!r} names another machine: ask by IP address or as localhost, with the "
            "token, or start the monitor with --public-url or --open-reads"
        )
        raise HttpRefusal(403 if context.fetcher.tokens.own is None else 401, why)


def check_origin() -> None:
    """Refuse changes from pages of other sites.

    Raises:
        HttpRefusal: 403.
    """
    origin = request.headers.get("Origin")
    if origin is not None and origin.partition("://")[2] != request.host:
        raise HttpRefusal(403, f"requests from pages of {origin} are refused")


def the_view() -> View:
    """The latest view.

    Raises:
        HttpRefusal: before the first.
    """
    view = app_context().view()
    if view is None:
        raise HttpRefusal(503, "the monitor has not looked yet: try again in a second")
    return view


def chosen(view: View) -> list[Incident]:
    """`?since=7d&kind=straggler&group=rg_1&state=open&run=20261127-164512`, or `run=current`.

    Raises:
        ChoiceError: one of them is not valid.
    """
    words = request.args.to_dict()
    if words.get("run") == "current":
        words["run"] = next((each.id for each in view.runs), "none yet")
    return choose(view.incidents, words, view.snapshot.now_s, view.work)
