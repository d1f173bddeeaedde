"""The sidecar's endpoints: what is asked, who may ask, and what answers it."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Any, Final

from flask import Flask, Response, render_template_string, request
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from worker_server import wire
from worker_server.http_server import names_us
from worker_server.rank.settings import Settings
from worker_server.sidecar import evict, queries, timeline
from worker_server.sidecar.black_box import BlackBox
from worker_server.sidecar.openapi import JSON, TEXT, Endpoint, document
from worker_server.sidecar.queries import RefusalError, WorkSlots, harden, in_json, in_text, refuse

# -- Who may ask what -----------------------------------------------------------------------------
# Bound to loopback, reading needs no token, but a `Host` that names this machine: a page of any web
# site can have its own name resolve to 127.0.0.1 (DNS rebinding) and would then read along. Bound
# to anything else, everything needs the token, unless reading is configured open. Ending the rank
# and profiling it need the token always.


_HOW = "set LIGHTKEEPER_TOKEN_FILE or LIGHTKEEPER_TOKEN where the rank is started"
_OPEN = "or LIGHTKEEPER_OPEN_READS=1, or LIGHTKEEPER_BIND=127.0.0.1"


class RequestGuard:
    """Checks one request after the other; keeps nothing."""

    def __init__(self, settings: Settings, names: Collection[str] = ()) -> None:
        """`names`: of this host, beside what the system calls it."""
        self._token = None if settings.token is None else settings.token.encode()
        self._loopback = settings.loopback and not settings.closed_reads
        self._open = settings.open_reads
        self._names = frozenset(names)

    def may_read(self) -> None:
        """The request may read.

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
        """The request may end the rank, or slow it down.

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
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        told = given.strip().encode("utf-8", "surrogateescape")
        right = hmac.compare_digest(told, self._token or b"")
        return right and self._token is not None and scheme.lower() == "bearer"


# -- the endpoints --------------------------------------------------------------------------------

THREADS = 10
_PLACES: Final = {"stacks or profiles": 2, "records": 3, "last words": 2, "eviction": 2}
"""Who looks into the rank waits for it, and who reads what it wrote, for a file server: these leave
at least one of the threads to the rest."""
_MAX_BODY: Final = 16 * 1024
_log = logging.getLogger("worker_server.sidecar")


@dataclass(frozen=True, slots=True)
class Served:
    """What the endpoints answer from."""

    box: BlackBox
    evict: Callable[[float], evict.EvictionResult]
    """End the rank, with so many seconds between SIGTERM and SIGKILL."""
    registry: CollectorRegistry
    host: Callable[[], wire.HostReport]


def make_app(served: Served, guard: RequestGuard) -> Flask:
    """The WSGI application of one rank's WorkerServer."""
    app = Flask(__name__, static_folder=None)
    app.url_map.merge_slashes = False  # `/v1//state` is no path of ours, rather than a redirect
    app.config["MAX_CONTENT_LENGTH"] = _MAX_BODY
    acting = {one.name for one in ENDPOINTS if one.acts}
    app.before_request(lambda: guard.may_act() if request.endpoint in acting else guard.may_read())
    app.after_request(harden)
    app.register_error_handler(Exception, refuse)
    places = {work: WorkSlots(count, work) for work, count in _PLACES.items()}
    for one in ENDPOINTS:
        view = partial(_answer, served, one, places.get(one.slow))
        app.add_url_rule(one.path, one.name, view, methods=[one.method])
    return app


def _answer(served: Served, endpoint: Endpoint, places: WorkSlots | None) -> Response:
    query = None if endpoint.query is None else queries.parameters(endpoint.query)
    with nullcontext() if places is None else places.taken():
        return endpoint.answer(served, query)


def _steps(served: Served, query: queries.Attempts) -> Response:
    return in_json(wire.to_json(served.box.steps(query.since)))


def _flight_recorder(served: Served, query: queries.RecordQuery) -> Response:
    try:
        record = served.box.flight_record(only_active=bool(query.active), since=query.since)
    except ValueError as exc:
        raise RefusalError(400, str(exc)) from exc
    if query.format == "text":
        return in_text(timeline.render(record))
    return in_json(wire.to_json(record))


def _stacks(served: Served, query: queries.Threads) -> Response:
    try:
        return in_text(served.box.stacks(native=bool(query.native)))
    except LookupError as exc:
        raise RefusalError(410, str(exc.args[0])) from exc


def _profile(served: Served, query: queries.Profile) -> Response:
    return Response(served.box.profile(query.duration), content_type="application/json")


def _evict(served: Served, _: queries.Nothing) -> Response:
    reason, grace_s = queries.eviction(request.get_data(), served.box.identity)
    _log.warning("evict asked by %s: %a", request.remote_addr, reason)
    eviction = served.evict(grace_s)
    _log.warning("evicted: %s", eviction)
    return in_json({"schema": wire.SCHEMA, **asdict(eviction)})


def _metrics(served: Served, _: None) -> Response:
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    return Response(encode(served.registry), content_type=content_type)


@cache
def _document() -> dict[str, Any]:
    return document(ENDPOINTS)


def _help(served: Served, _: None) -> Response:
    who, base = served.box.identity, request.host_url.rstrip("/")
    title = f"WorkerServer of rank {who.rank} (job {who.job}, host {who.host}, pid {who.pid})"
    if request.accept_mimetypes.best_match(["text/plain", "text/html"]) == "text/html":
        html = render_template_string(_PAGE, title=title, about=_ABOUT, base=base, all=_LISTED)
        return Response(html, content_type="text/html; charset=utf-8")
    return in_text("\n".join([title, _ABOUT, "", *_help_lines(base), ""]))


def _help_lines(base: str) -> Iterator[str]:
    for one in _LISTED:
        command = one.curl(base)
        if len(command) >= _WIDTH:
            yield f"# {one.what}\n{command}"
        else:
            yield f"{command:<{_WIDTH}}  {one.what}"


_ABOUT: Final = "It answers while the rank hangs, is stopped, or is dead."
_WIDTH: Final = 64
_PAGE: Final = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{{ title }}</title>
<style>body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:60em;padding:0 1em}
td{padding:.2em 1em .2em 0;vertical-align:top}code{font-size:13px}
@media(prefers-color-scheme:dark){body{background:#16181c;color:#ddd}a{color:#8ab4f8}}</style>
<h1>{{ title }}</h1>
<p>{{ about }}</p>
<table>
{% for one in all -%}
<tr><td>
{%- if one.acts %}<code>{{ one.curl(base) }}</code>
{%- else %}<a href="{{ one.ask }}"><code>{{ one.ask }}</code></a>
{%- endif %}</td><td>{{ one.what }}</td></tr>
{% endfor -%}
</table>
</html>
"""

ENDPOINTS: Final = (
    Endpoint("help", "/", "what is here, for a person", _help,
             formats=(*TEXT, "text/html"), query=None),
    Endpoint("state", wire.PATH_STATE, "step, phase, process, process groups",
             lambda served, _: in_json(wire.to_json(served.box.state())), wire.StateReport),
    Endpoint("steps", wire.PATH_STEPS, "the last attempts of steps, with seconds by phase",
             _steps, wire.StepLog, query=queries.Attempts, example="?since=0"),
    Endpoint("flight_recorder", wire.PATH_FLIGHT_RECORDER,
             "collectives: ours and torch's record (?format=text: a table for people)",
             _flight_recorder, wire.FlightRecord, (*JSON, *TEXT), queries.RecordQuery,
             slow="records", example="?active=1"),
    Endpoint("stacks", wire.PATH_STACKS,
             "Python stacks of all threads, from outside (?native=1: with C frames)",
             _stacks, formats=TEXT, query=queries.Threads, slow="stacks or profiles",
             errors={410: "the rank is dead, and none were taken before",
                     503: "none can be had; it says what is missing"}),
    Endpoint("last_words", wire.PATH_LAST_WORDS, "how the process ended and what it said last",
             lambda served, _: in_json(wire.to_json(served.box.last_words())), wire.LastWords,
             slow="last words"),
    Endpoint("host", wire.PATH_HOST, "the states of all ranks of this host",
             lambda served, _: in_json(wire.to_json(served.host())), wire.HostReport),
    Endpoint("wait_counters", wire.PATH_WAIT_COUNTERS, "torch's wait counters, by name",
             lambda served, _: in_json(served.box.wait_counters()), slow="records",
             errors={503: "torch's control plane does not answer"}),
    Endpoint("metrics", wire.PATH_METRICS, "for Prometheus", _metrics,
             formats=(*TEXT, "application/openmetrics-text"), query=None),
    Endpoint("healthz", wire.PATH_HEALTHZ, "this server answers",
             lambda _, __: in_text("ok\n"), formats=TEXT, query=None),
    Endpoint("openapi", wire.PATH_OPENAPI, "all of this for programs",
             lambda _, __: in_json(_document()), query=None),
    Endpoint("profile", wire.PATH_PROFILE, "torch's profiler in the rank, a Chrome trace",
             _profile, query=queries.Profile, slow="stacks or profiles", example="?duration=2",
             acts=True,
             errors={409: "a profile is being taken", 410: "the rank is dead",
                     501: "the rank has no torch",
                     503: "the rank's interpreter does not run or did not answer"}),
    Endpoint("evict", wire.PATH_EVICT, "end the rank's process: SIGTERM, grace, SIGKILL",
             _evict, evict.EvictionResult, slow="eviction", acts=True,
             body='{"reason": "why", "grace_s": 2}',
             errors={409: "meant for another incarnation of the rank",
                     413: "the body is larger than 16 KiB"}),
)  # fmt: skip
_LISTED: Final = ENDPOINTS[1:]
