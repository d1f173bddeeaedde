"""The sidecar's HTTP: what is asked, checked, and answered. Errors are one line of JSON."""

from __future__ import annotations

import hmac
import json
import logging
import math
from typing import Any, Protocol

from flask import Flask, Response, request
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from werkzeug.exceptions import HTTPException

from worker_server import wire
from worker_server.sidecar.control_plane import ControlPlaneError
from worker_server.sidecar.evict import Eviction
from worker_server.sidecar.stacks import StacksError

_MAX_BODY = 16 * 1024
_MAX_REASON = 500
_MAX_GRACE_S = 60.0
_log = logging.getLogger("worker_server.sidecar")


class Box(Protocol):
    """What the HTTP layer needs of the black box."""

    identity: wire.Identity

    def state(self) -> wire.StateReport:
        """State now."""

    def process(self) -> wire.Process:
        """The rank's process."""

    def flight_record(self, *, only_active: bool = False) -> wire.FlightRecord:
        """The record."""

    def wait_counters(self) -> dict[str, Any]:
        """Torch's wait counters."""

    def stacks(self, *, native: bool = False) -> str:
        """The stacks."""


class Evictor(Protocol):
    """Ends the rank."""

    def __call__(self, grace_s: float) -> Eviction:
        """End it, waiting `grace_s` between SIGTERM and SIGKILL."""


class RefusalError(Exception):
    """A request that is answered with a status and one line."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def make_app(box: Box, evictor: Evictor, token: str | None, registry: CollectorRegistry) -> Flask:
    """The WSGI application of one rank's WorkerServer."""
    app = Flask(__name__, static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = _MAX_BODY
    app.add_url_rule("/", view_func=lambda: _text(_help(box.identity, request.host_url)),
                     endpoint="help")  # fmt: skip
    app.add_url_rule(wire.PATH_HEALTHZ, view_func=lambda: _text("ok\n"), endpoint="healthz")
    app.add_url_rule(wire.PATH_STATE, view_func=lambda: _json(wire.to_json(box.state())),
                     endpoint="state")  # fmt: skip

    @app.get(wire.PATH_FLIGHT_RECORDER)
    def flight_recorder() -> Response:
        return _json(wire.to_json(box.flight_record(only_active=_flag("active"))))

    @app.get(wire.PATH_STACKS)
    def stacks() -> Response:
        try:
            return _text(box.stacks(native=_flag("native")))
        except StacksError as exc:
            raise RefusalError(503, str(exc)) from exc
        except LookupError as exc:
            raise RefusalError(410, str(exc.args[0])) from exc

    @app.get(wire.PATH_WAIT_COUNTERS)
    def wait_counters() -> Response:
        try:
            return _json(box.wait_counters())
        except ControlPlaneError as exc:
            raise RefusalError(503, str(exc)) from exc

    @app.get(wire.PATH_METRICS)
    def metrics() -> Response:
        return Response(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)

    @app.post(wire.PATH_EVICT)
    def evict() -> Response:
        _authorize(request.headers.get("Authorization", ""), token)
        reason, grace_s = _parse_evict(request.get_data(), box.identity)
        _log.warning("evict asked by %s: %s", request.remote_addr, reason)
        eviction = evictor(grace_s)
        _log.warning("evicted: signalled %s, gone %s", eviction.signalled, eviction.gone)
        return _json(
            {"schema": wire.SCHEMA, "signalled": list(eviction.signalled), "gone": eviction.gone}
        )

    app.register_error_handler(Exception, _refuse)
    return app


def _refuse(exc: Exception) -> Response:
    match exc:
        case RefusalError():
            status, message = exc.status, str(exc)
        case HTTPException():
            status, message = exc.code or 500, f"{exc.name.lower()}: {request.path}"
        case _:
            _log.exception("%s %s failed", request.method, request.path)
            status, message = 500, f"internal error: {type(exc).__name__}; see the sidecar's log"
    response = _json({"error": " ".join(message.split())})
    response.status_code = status
    if isinstance(exc, HTTPException):
        for name, value in exc.get_headers():
            if name == "Allow":
                response.headers[name] = value
    return response


def _flag(name: str) -> bool:
    return request.args.get(name, "0").lower() in ("1", "true", "yes")


def _authorize(header: str, token: str | None) -> None:
    if token is None:
        raise RefusalError(
            403, "eviction is off: start the rank with LIGHTKEEPER_TOKEN or LIGHTKEEPER_TOKEN_FILE"
        )
    scheme, _, given = header.partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(
        given.strip().encode(), token.encode()
    ):
        raise RefusalError(401, "wrong or missing bearer token")


def _parse_evict(body: bytes, identity: wire.Identity) -> tuple[str, float]:
    try:
        data: Any = json.loads(body)
    except (ValueError, RecursionError) as exc:
        raise RefusalError(400, f"the body is not JSON: {exc}") from exc
    if not isinstance(data, dict):
        raise RefusalError(400, "the body is not a JSON object")
    reason, grace_s = data.get("reason"), data.get("grace_s", 2.0)
    if not isinstance(reason, str) or not reason.strip():
        raise RefusalError(400, "'reason' is not a text: say why the rank is evicted")
    if isinstance(grace_s, bool) or not isinstance(grace_s, int | float):
        raise RefusalError(400, "'grace_s' is not a number")
    if not math.isfinite(grace_s) or not 0 <= grace_s <= _MAX_GRACE_S:
        raise RefusalError(400, f"'grace_s' is {grace_s}, expected 0 to {_MAX_GRACE_S:g}")
    meant = data.get("incarnation", identity.incarnation)
    if meant != identity.incarnation:
        # A port may be taken over between the accusation and the kill.
        raise RefusalError(
            409, f"meant for incarnation {meant!r:.80}, this is {identity.incarnation!r}"
        )
    return " ".join(reason.split())[:_MAX_REASON], float(grace_s)


def _json(content: dict[str, Any]) -> Response:
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    return Response(text + "\n", content_type="application/json")


def _text(content: str) -> Response:
    return Response(content, content_type="text/plain; charset=utf-8")


def _help(identity: wire.Identity, url: str) -> str:
    base = url.rstrip("/")
    return f"""WorkerServer of rank {identity.rank} (job {identity.job}, host {identity.host}, \
pid {identity.pid})
It answers while the rank hangs, is stopped, or is dead.

curl {base}{wire.PATH_STATE}                        step, phase, process, process groups
curl {base}{wire.PATH_FLIGHT_RECORDER}              collectives (?active=1: unfinished)
curl {base}{wire.PATH_STACKS}                       Python stacks by py-spy (?native=1)
curl {base}{wire.PATH_WAIT_COUNTERS}                torch's wait counters
curl {base}{wire.PATH_METRICS}                          Prometheus
curl {base}{wire.PATH_HEALTHZ}
curl -X POST {base}{wire.PATH_EVICT} -H "Authorization: Bearer $LIGHTKEEPER_TOKEN" \\
     -d '{{"reason": "why", "grace_s": 2}}'             ends the rank's process
"""
