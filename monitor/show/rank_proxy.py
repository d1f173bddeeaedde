"""A rank's own endpoints, for browsers that can reach the monitor but not the rank.

The monitor asks with a token, so it asks for those only who may read the rank: on loopback for
everybody, bound to anything else for who has the token, unless it was started with --open-reads.
What costs the rank something needs the token always. (What the monitor itself says of ranks, on
its page and in its snapshot, needs none: launchers and Prometheus read that.)
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

from flask import Blueprint, Response, request, send_file

from monitor.act.http import FetchError, Question
from monitor.act.poller import describe_status
from monitor.act.targets import Target
from monitor.model.names import IncidentId, RankName
from monitor.show.answers import (
    Refusal,
    app_context,
    check_origin,
    check_reader,
    check_token,
)
from worker_server.wire import (
    PATH_FLIGHT_RECORDER,
    PATH_LAST_WORDS,
    PATH_PROFILE,
    PATH_STACKS,
    PATH_STATE,
    PATH_STEPS,
    PATH_WAIT_COUNTERS,
)

_MIB: Final = 1024 * 1024
_QUERY_MAX_CHARS: Final = 200
_PROFILE_MAX_S: Final = 60.0
_AT_ONCE: Final = 3
"""Each holds one of the server's threads: the others stay free for the page and the leases."""


@dataclass(frozen=True, slots=True)
class _Page:
    path: str
    timeout_s: float
    max_bytes: int
    parameters: tuple[str, ...] = ()
    """What is passed on; the WorkerServer judges it."""


_TEXT: Final = ("format", "rows")
_PAGES: Final = {
    "state": _Page(PATH_STATE, 3.0, _MIB // 16, _TEXT),
    "steps": _Page(PATH_STEPS, 5.0, 4 * _MIB, ("since", *_TEXT)),
    "flight_recorder": _Page(PATH_FLIGHT_RECORDER, 10.0, 16 * _MIB, ("active", "since", *_TEXT)),
    "stacks": _Page(PATH_STACKS, 20.0, 4 * _MIB, ("native",)),
    "last_words": _Page(PATH_LAST_WORDS, 5.0, _MIB, _TEXT),
    "wait_counters": _Page(PATH_WAIT_COUNTERS, 5.0, _MIB, _TEXT),
}
_PROFILE: Final = _Page(PATH_PROFILE, 70.0, 64 * _MIB, ("duration",))
"""Its duration comes on top, twice: that is what a WorkerServer gives the rank."""

passing = Blueprint("passing", __name__)
"""`GET /v1/ranks/RANK/{state,steps,flight_recorder,stacks,last_words,wait_counters,profile}`, and
what of it was saved: `GET /v1/incidents/ID/bundle`."""
_places = threading.BoundedSemaphore(_AT_ONCE)
_profiling = threading.BoundedSemaphore(1)


@passing.get("/v1/incidents/<incident_id>/bundle")
def bundle(incident_id: str) -> Response:
    """What ranks said when the incident began and before the eviction, as a zip."""
    check_reader()
    path = app_context().bundle(IncidentId(incident_id))
    if path is None:
        raise Refusal(404, f"no evidence of {incident_id}: too old, or none was taken")
    try:
        response = send_file(path, "application/zip", as_attachment=True)
    except OSError as exc:
        raise Refusal(404, f"the evidence of {incident_id} is gone: {exc.strerror}") from exc
    response.headers["Cache-Control"] = "no-store"
    return response


@passing.get("/v1/ranks/<rank>/profile")
def profile(rank: str) -> Response:
    """A profile of one rank; needs the token, as at the rank itself."""
    check_origin()
    check_token()
    text = request.args.get("duration", "")
    try:
        duration_s = float(text)
    except ValueError:
        duration_s = 0.0
    if not 0 < duration_s <= _PROFILE_MAX_S:
        raise Refusal(400, f"'duration' is {text[:40]!r}, expected 0 to {_PROFILE_MAX_S:g} s")
    target = _target(rank)
    if not _profiling.acquire(blocking=False):
        raise Refusal(503, "a profile is being taken: try again")
    try:
        return _pass(target, _PROFILE, _PROFILE.timeout_s + 2 * duration_s)
    finally:
        _profiling.release()


@passing.get("/v1/ranks/<rank>/<what>")
def passed(rank: str, what: str) -> Response:
    """One page of one rank."""
    check_reader()
    page = _PAGES.get(what)
    if page is None:
        raise Refusal(404, f"no such page of a rank: {what}, expected {', '.join(_PAGES)}, profile")
    target = _target(rank)
    if not _places.acquire(blocking=False):
        raise Refusal(503, f"{_AT_ONCE} such requests are under way: try again")
    try:
        return _pass(target, page, page.timeout_s)
    finally:
        _places.release()


def _target(rank: str) -> Target:
    target = app_context().registry.get(RankName(rank))
    if target is None:
        raise Refusal(404, f"no such rank: {rank}")
    return target


def _pass(target: Target, page: _Page, timeout_s: float) -> Response:
    asked = {name: request.args[name] for name in page.parameters if name in request.args}
    if any(len(value) > _QUERY_MAX_CHARS for value in asked.values()):
        raise Refusal(400, f"a parameter has more than {_QUERY_MAX_CHARS} characters")
    query = f"?{urlencode(asked)}" if asked else ""
    url, group = target.url + page.path + query, target.identity.group
    question = Question(url, timeout_s, page.max_bytes, group=group)
    try:
        said = app_context().fetcher.ask(question)
    except FetchError as exc:
        raise Refusal(502, f"the rank's WorkerServer gave no answer: {exc}") from exc
    if said.status in (401, 403):  # not the asker's fault
        raise Refusal(502, f"the rank's WorkerServer answers {describe_status(said.status)}")
    plain = said.content_type.startswith(("application/json", "text/plain"))
    kind = said.content_type if plain else "text/plain; charset=utf-8"
    status = said.status if 200 <= said.status < 600 and said.status // 100 != 3 else 502
    return Response(said.body, status, content_type=kind)
