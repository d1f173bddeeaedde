"""Query parameters and request bodies, validated (a typo is a 400), and error answers."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal, TypeVar

from flask import Response, request
from msgspec import UNSET, DecodeError, Meta, Struct, UnsetType, ValidationError, convert
from msgspec.json import Decoder
from werkzeug.exceptions import HTTPException

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.plain_text import escaped_body

# -- Refusals --------------------------------------------------------------------------------------
# Why a request cannot be answered, in one line, with its HTTP status.


class RefusalError(Exception):
    """Answers the request with a status and one line."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})


class SilentError(RefusalError):
    """Neither stacks nor torch's control plane gave an answer; the message says what is missing."""

    def __init__(self, message: str) -> None:
        super().__init__(503, message)


# How the sidecar answers: JSON or text, and every error as one line of JSON.

NOT_FOUND: Final = 404
_log = logging.getLogger("lightkeeper.worker_server.sidecar")


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
