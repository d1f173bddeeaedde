"""A rank's own endpoints, for browsers that can reach the monitor but not the rank."""

from __future__ import annotations

import threading
from typing import Final

from flask import Blueprint, Response, request

from monitor.app.answers import Refusal
from monitor.app.desk import the_desk
from monitor.fetch import FetchError, Question
from monitor.names import RankName
from worker_server.wire import PATH_FLIGHT_RECORDER, PATH_STACKS, PATH_STATE

_PATHS: Final = {
    # name: path, timeout in seconds, most bytes, flags that are passed on
    "state": (PATH_STATE, 3.0, 64 * 1024, ()),
    "flight_recorder": (PATH_FLIGHT_RECORDER, 10.0, 16 * 1024 * 1024, ("active",)),
    "stacks": (PATH_STACKS, 15.0, 4 * 1024 * 1024, ("native",)),
}
_AT_ONCE: Final = 3
"""Each holds one of the server's threads: the others stay free for the page and the leases."""


passing = Blueprint("passing", __name__)
"""`GET /v1/ranks/RANK/{state,flight_recorder,stacks}`."""
_places = threading.BoundedSemaphore(_AT_ONCE)


@passing.get("/v1/ranks/<rank>/<what>")
def passed(rank: str, what: str) -> Response:
    """One page of one rank."""
    if what not in _PATHS:
        raise Refusal(404, f"no such page of a rank: {what}, expected {', '.join(_PATHS)}")
    target = the_desk().registry.get(RankName(rank))
    if target is None:
        raise Refusal(404, f"no such rank: {rank}")
    if not _places.acquire(blocking=False):
        raise Refusal(503, f"{_AT_ONCE} such requests are under way: try again")
    try:
        return _pass(target.url, what)
    finally:
        _places.release()


def _pass(url: str, what: str) -> Response:
    path, timeout_s, max_bytes, flags = _PATHS[what]
    query = "&".join(f"{flag}=1" for flag in flags if request.args.get(flag) == "1")
    try:
        said = the_desk().fetcher.ask(
            Question(f"{url}{path}?{query}" if query else url + path, timeout_s, max_bytes)
        )
    except FetchError as exc:
        raise Refusal(502, f"the rank's WorkerServer gave no answer: {exc}") from exc
    plain = said.content_type.startswith(("application/json", "text/plain"))
    kind = said.content_type if plain else "text/plain; charset=utf-8"
    status = said.status if 200 <= said.status < 600 and said.status // 100 != 3 else 502
    return Response(said.body, status, content_type=kind)
