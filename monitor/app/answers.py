"""How every route answers: JSON, errors as one line, a token where one is needed."""

from __future__ import annotations

import hmac
import ipaddress
import json
import logging
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from flask import Response, request
from werkzeug.exceptions import HTTPException

from monitor.app.desk import the_desk

log = logging.getLogger(__name__)

BODY_MAX_BYTES: Final = 64 * 1024


class Refusal(Exception):  # noqa: N818 - an answer, not an accident
    """An answer other than 200; the message is one line for a person."""

    def __init__(self, status: int, message: str, more: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.more = more or {}
        self.headers: dict[str, str] = {}


def answer(body: Mapping[str, Any], status: int = 200) -> Response:
    """A JSON answer."""
    return Response(dump(body), status, content_type="application/json")


def dump(body: Mapping[str, Any] | Sequence[Any]) -> bytes:
    """Compact JSON; anything that a browser could not parse is a bug here."""
    return json.dumps(body, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def refuse(exc: Exception) -> Response:
    """Any exception of a route as one JSON line; a bug leaves its traceback in the log only."""
    match exc:
        case Refusal():
            status, message = exc.status, str(exc)
        case HTTPException():
            status = exc.code or 500
            message = f"{exc.name.lower()}: {request.method} {request.path}"
        case _:
            log.exception("%s %s failed", request.method, request.path)
            status, message = 500, "internal error; the monitor's log has the details"
    more = exc.more if isinstance(exc, Refusal) else {}
    response = answer({"error": " ".join(message.split()), **more}, status)
    if isinstance(exc, Refusal):
        response.headers.update(exc.headers)
    if isinstance(exc, HTTPException):
        for name, value in exc.get_headers():
            if name in ("Allow", "Retry-After"):
                response.headers[name] = value
    return response


def json_body() -> Mapping[str, Any]:
    """The request's JSON object.

    Raises:
        Refusal: it is not one.
    """
    try:
        body = json.loads(request.get_data(cache=False) or b"{}")
    except (ValueError, RecursionError) as exc:
        raise Refusal(400, f"the body is not JSON: {exc}") from exc
    if not isinstance(body, dict):
        raise Refusal(400, "the body is not a JSON object")
    return body


def text_of(body: Mapping[str, Any], key: str, max_chars: int = 500) -> str:
    """A text of the body, on one line.

    Raises:
        Refusal: missing, empty or too long.
    """
    value = body.get(key)
    if not isinstance(value, str) or not value.strip():
        raise Refusal(400, f"'{key}' is not a text: say why")
    line = " ".join(value.split())
    if len(line) > max_chars:
        raise Refusal(400, f"'{key}' has {len(line)} characters, at most {max_chars} are kept")
    return line


def check_token(token: str) -> None:
    """The request carries this bearer token.

    Raises:
        Refusal: 401.
    """
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    told = given.strip().encode("utf-8", "surrogateescape")
    if scheme.lower() != "bearer" or not hmac.compare_digest(told, token.encode()):
        raise Refusal(401, "wrong or missing token: send 'Authorization: Bearer TOKEN'")


def check_reader() -> None:
    """The request may read ranks through the monitor, which asks them with its own token.

    The ranks' own rule (`worker_server.sidecar.guard`): a token, but on loopback a `Host` that
    names this machine will do. Without that, a page of any web site, whose name resolves to
    127.0.0.1 (DNS rebinding), would read along.

    Raises:
        Refusal: 401 or 403.
    """
    desk = the_desk()
    if desk.open_reads or (desk.loopback and _names_this_machine(request.host)):
        return
    if desk.token is None:  # only on loopback
        raise Refusal(403, "the Host header names another host: ask by IP address or as localhost")
    try:
        check_token(desk.token)
    except Refusal as exc:
        raise Refusal(
            401, "pages of ranks need the monitor's token here: curl -H 'Authorization: Bearer "
            f"TOKEN' {request.base_url}, or ask a monitor bound to 127.0.0.1 (ssh -L), or start "
            "it with --open-reads",
        ) from exc  # fmt: skip


def _names_this_machine(host: str) -> bool:
    name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
    own = socket.gethostname().lower()
    if not name or name in ("localhost", own, own.partition(".")[0]):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def check_origin() -> None:
    """A browser that shows another site's page changes nothing here.

    Raises:
        Refusal: 403.
    """
    origin = request.headers.get("Origin")
    if origin is not None and origin.partition("://")[2] != request.host:
        raise Refusal(403, f"requests from pages of {origin} are refused")
