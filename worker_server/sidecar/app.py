"""The sidecar's routes: what is asked, by whom, and what answers it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Protocol

from flask import Flask, Response, request
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from worker_server import wire
from worker_server.sidecar import queries
from worker_server.sidecar.answers import (
    Places,
    RefusalError,
    harden,
    in_json,
    in_text,
    refuse,
)
from worker_server.sidecar.control_plane import ControlPlaneError
from worker_server.sidecar.evict import Eviction
from worker_server.sidecar.guard import Guard
from worker_server.sidecar.help import help_html, help_text
from worker_server.sidecar.openapi import document
from worker_server.sidecar.profile import ProfileError
from worker_server.sidecar.stacks import StacksError

THREADS = 10
_LOOKERS = 2
_RECORD_READERS = 3
_EVICTORS = 2
_LISTENERS = 2
"""Who looks into the rank waits for it, and who reads what it wrote, for a file server: these leave
at least one of the threads to the rest."""
_MAX_BODY = 16 * 1024
_ACTS = frozenset({wire.PATH_EVICT, wire.PATH_PROFILE})
_log = logging.getLogger("worker_server.sidecar")


class Box(Protocol):
    """What the HTTP layer needs of the black box."""

    @property
    def identity(self) -> wire.Identity:
        """Who the rank is."""

    def state(self) -> wire.StateReport:
        """State now."""

    def process(self) -> wire.Process:
        """The rank's process."""

    def steps(self, since: int = 0) -> wire.StepLog:
        """Attempts after this one."""

    def flight_record(
        self, *, only_active: bool = False, since: str | None = None
    ) -> wire.FlightRecord:
        """The record; ValueError for a cursor that is none."""

    def last_words(self) -> wire.LastWords:
        """How it ended and what it said."""

    def wait_counters(self) -> dict[str, Any]:
        """Torch's wait counters."""

    def stacks(self, *, native: bool = False) -> str:
        """The stacks."""

    def profile(self, duration_s: float) -> bytes:
        """A Chrome trace, or ProfileError."""


class Evictor(Protocol):
    """Ends the rank."""

    def __call__(self, grace_s: float) -> Eviction:
        """End it, waiting `grace_s` between SIGTERM and SIGKILL."""


def make_app(
    box: Box,
    evictor: Evictor,
    *,
    guard: Guard,
    registry: CollectorRegistry,
    host: Callable[[], wire.HostReport],
    table: Callable[[wire.FlightRecord], str],
) -> Flask:
    """The WSGI application of one rank's WorkerServer."""
    app = Flask(__name__, static_folder=None)
    app.url_map.merge_slashes = False  # `/v1//state` is no path of ours, rather than a redirect
    app.config["MAX_CONTENT_LENGTH"] = _MAX_BODY
    app.before_request(lambda: guard.may_act() if _acts() else guard.may_read())
    app.after_request(harden)
    app.register_error_handler(Exception, refuse)
    _add_reports(app, box, host)
    _add_records(app, box, table)
    _add_looks(app, box)
    _add_services(app, box, registry)
    _add_eviction(app, box, evictor)
    return app


def _acts() -> bool:
    return request.path in _ACTS and request.endpoint is not None


def _add_reports(app: Flask, box: Box, host: Callable[[], wire.HostReport]) -> None:
    """What the page and the operating system know: quick, whatever the rank does."""
    listeners = Places(_LISTENERS, "last words")

    @app.get(wire.PATH_STATE)
    def state() -> Response:
        queries.only()
        return in_json(wire.to_json(box.state()))

    @app.get(wire.PATH_STEPS)
    def steps() -> Response:
        queries.only("since")
        return in_json(wire.to_json(box.steps(queries.since_attempt())))

    @app.get(wire.PATH_LAST_WORDS)
    def last_words() -> Response:
        queries.only()
        with listeners.taken():
            return in_json(wire.to_json(box.last_words()))

    @app.get(wire.PATH_HOST)
    def host_report() -> Response:
        queries.only()
        return in_json(wire.to_json(host()))


def _add_records(app: Flask, box: Box, table: Callable[[wire.FlightRecord], str]) -> None:
    """What torch is asked for, without the interpreter."""
    places = Places(_RECORD_READERS, "records")

    @app.get(wire.PATH_FLIGHT_RECORDER)
    def flight_recorder() -> Response:
        queries.only("active", "since", "format")
        only_active, since, as_text = queries.flag("active"), queries.cursor(), queries.as_text()
        with places.taken():
            try:
                record = box.flight_record(only_active=only_active, since=since)
            except ValueError as exc:
                raise RefusalError(400, str(exc)) from exc
            return in_text(table(record)) if as_text else in_json(wire.to_json(record))

    @app.get(wire.PATH_WAIT_COUNTERS)
    def wait_counters() -> Response:
        queries.only()
        with places.taken():
            try:
                return in_json(box.wait_counters())
            except ControlPlaneError as exc:
                raise RefusalError(503, str(exc)) from exc


def _add_looks(app: Flask, box: Box) -> None:
    """What looks into the rank's interpreter, and takes its time."""
    places = Places(_LOOKERS, "stacks or profiles")

    @app.get(wire.PATH_STACKS)
    def stacks() -> Response:
        queries.only("native")
        native = queries.flag("native")
        with places.taken():
            try:
                return in_text(box.stacks(native=native))
            except StacksError as exc:
                raise RefusalError(503, str(exc)) from exc
            except LookupError as exc:
                raise RefusalError(410, str(exc.args[0])) from exc

    @app.get(wire.PATH_PROFILE)
    def profile() -> Response:
        queries.only("duration")
        duration_s = queries.duration_s()
        with places.taken():
            try:
                trace = box.profile(duration_s)
            except ProfileError as exc:
                raise RefusalError(exc.status, str(exc)) from exc
        return Response(trace, content_type="application/json")


def _add_services(app: Flask, box: Box, registry: CollectorRegistry) -> None:
    """For people, Prometheus and programs that read documents."""

    @app.get("/")
    def help_page() -> Response:
        if request.accept_mimetypes.best_match(["text/plain", "text/html"]) == "text/html":
            html = help_html(box.identity, request.host_url)
            return Response(html, content_type="text/html; charset=utf-8")
        return in_text(help_text(box.identity, request.host_url))

    @app.get(wire.PATH_HEALTHZ)
    def healthz() -> Response:
        return in_text("ok\n")

    @app.get(wire.PATH_METRICS)
    def metrics() -> Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return Response(encode(registry), content_type=content_type)

    @app.get(wire.PATH_OPENAPI)
    def openapi() -> Response:
        return in_json(document())


def _add_eviction(app: Flask, box: Box, evictor: Evictor) -> None:
    places = Places(_EVICTORS, "eviction")

    @app.post(wire.PATH_EVICT)
    def evict() -> Response:
        queries.only()
        reason, grace_s = queries.eviction(request.get_data(), box.identity)
        with places.taken():
            _log.warning("evict asked by %s: %a", request.remote_addr, reason)
            eviction = evictor(grace_s)
            _log.warning("evicted: %s", eviction)
        return in_json({"schema": wire.SCHEMA, **asdict(eviction)})
