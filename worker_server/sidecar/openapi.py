"""`GET /openapi.json`: every endpoint, parameter, body and answer, errors included."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from worker_server import wire
from worker_server.sidecar.queries import MAX_CURSOR, MAX_PROFILE_S, MAX_SINCE
from worker_server.sidecar.schemas import ref, schemas

_Json = dict[str, Any]

_ABOUT: Final = """\
The black box beside one rank: it answers while the rank hangs, is stopped, or is dead.

Bound to loopback, reading needs no token, but a Host header that names this machine. Bound to \
anything else, every endpoint needs the bearer token, unless LIGHTKEEPER_OPEN_READS=1; evict and \
profile need it always. A request whose syntax is broken, or whose header or body is too large, \
is answered in plain text by the server in front of these endpoints; one that is not complete \
within 10 s is dropped without an answer.
"""
_OF_READING: Final = {
    "401": "wrong or missing token (never on loopback)",
    "403": "no token is configured and others could reach the port, or the Host header names "
    "another host",
}
_OF_ACTING: Final = {
    "401": "wrong or missing token",
    "403": "off: no token is configured where the rank was started",
}
_BUSY: Final = "as many such requests as may be are under way"


def _parameter(name: str, about: str, schema: _Json, *, required: bool = False) -> _Json:
    return {"name": name, "in": "query", "description": about, "required": required,
            "schema": schema}  # fmt: skip


def _flag(name: str, about: str) -> _Json:
    return _parameter(name, about, {"type": "string", "enum": ["0", "1"], "default": "0"})


_ACTIVE: Final = _flag("active", "1: only what is unfinished")
_NATIVE: Final = _flag("native", "1: with C frames")
_CURSOR: Final = _parameter(
    "since",
    "`cursor` of a former answer, RING.TORCH.MOMENT: only what was entered or left after that "
    "answer, and what is unfinished. RING (the `id` of an entry of `ring`) and RING.TORCH (a "
    "`record_id` of torch's, -1 for none) are taken too: what was entered after them, and what is "
    "unfinished; what was left since does not come again. RING, TORCH and MOMENT (milliseconds of "
    "the host's monotonic clock) are whole numbers of at most 18 digits. A cursor from the future, "
    "so of another incarnation, gives everything.",
    {"type": "string", "minLength": 1, "maxLength": MAX_CURSOR,
     "examples": ["1024.2047.86400000", "1024.2047", "1024"]},
)  # fmt: skip
_FORMAT: Final = _parameter(
    "format", "text: a table for people", {"type": "string", "enum": ["json", "text"]}
)
_SINCE: Final = _parameter(
    "since", "number of an attempt: only later ones",
    {"type": "integer", "minimum": 0, "maximum": MAX_SINCE, "default": 0},
)  # fmt: skip
_DURATION: Final = _parameter(
    "duration", "seconds, plainly written: more than 0", required=True,
    schema={"type": "number", "exclusiveMinimum": 0, "maximum": MAX_PROFILE_S},
)  # fmt: skip


def _json(name: str) -> _Json:
    return {"application/json": {"schema": ref(name)}}


_TEXT: Final[_Json] = {"text/plain": {"schema": {"type": "string"}}}
_OPENMETRICS: Final[_Json] = {"application/openmetrics-text": {"schema": {"type": "string"}}}
_HTML: Final[_Json] = {"text/html": {"schema": {"type": "string"}}}
_RETRY: Final[_Json] = {
    "Retry-After": {"description": "seconds", "required": False, "schema": {"type": "string"}}
}
_CHALLENGE: Final[_Json] = {
    "WWW-Authenticate": {"description": "Bearer", "required": True, "schema": {"const": "Bearer"}}
}
_HEADERS: Final = {"401": _CHALLENGE, "503": _RETRY}


def _errors(errors: dict[str, str]) -> _Json:
    answers: _Json = {}
    for status, about in sorted(errors.items()):
        answers[status] = {"description": about, "content": _json("Error")}
        if status in _HEADERS:
            answers[status]["headers"] = _HEADERS[status]
    return answers


def _read(
    name: str, summary: str, content: _Json, parameters: tuple[_Json, ...] = (), **errors: str
) -> _Json:
    """A GET that needs a token only where others could reach the port."""
    wrong = {status.removeprefix("e"): about for status, about in errors.items()}
    return {
        "get": {
            "operationId": name,
            "summary": summary,
            "security": [{}, {"token": []}],
            "parameters": list(parameters),
            "responses": {
                "200": {"description": summary, "content": content},
                **_errors({**_OF_READING, **wrong}),
            },
        }
    }


_UNKNOWN: Final = "a parameter is unknown, doubled or makes no sense"
_PROFILE: Final[_Json] = {
    "get": {
        "operationId": "profile",
        "summary": "torch's profiler in the rank, for a while",
        "security": [{"token": []}],
        "parameters": [_DURATION],
        "responses": {
            "200": {"description": "a Chrome trace", "content": _json("Profile")},
            **_errors(
                {
                    **_OF_ACTING,
                    "400": _UNKNOWN,
                    "409": "a profile is being taken",
                    "410": "the rank is dead",
                    "501": "the rank has no torch",
                    "503": f"the rank's interpreter does not run or did not answer, or {_BUSY}",
                }
            ),
        },
    }
}
_EVICT: Final[_Json] = {
    "post": {
        "operationId": "evict",
        "summary": "end the rank's process: SIGTERM, grace, SIGKILL",
        "security": [{"token": []}],
        "requestBody": {"required": True, "content": _json("EvictionOrder")},
        "responses": {
            "200": {"description": "what was done", "content": _json("Eviction")},
            **_errors(
                {
                    **_OF_ACTING,
                    "400": "the body is not such an order",
                    "409": "meant for another incarnation of the rank",
                    "413": "the body is larger than 16 KiB",
                    "503": _BUSY,
                }
            ),
        },
    }
}
_PATHS: Final[_Json] = {
    "/": _read("help", "what is here, for a person", {**_TEXT, **_HTML}),
    wire.PATH_STATE: _read("state", "where the rank stands", _json("StateReport"), e400=_UNKNOWN),
    wire.PATH_STEPS: _read(
        "steps", "the last attempts of steps", _json("StepLog"), (_SINCE,), e400=_UNKNOWN
    ),
    wire.PATH_FLIGHT_RECORDER: _read(
        "flight_recorder", "collectives: the rank's ring and torch's record",
        {**_json("FlightRecord"), **_TEXT}, (_ACTIVE, _CURSOR, _FORMAT),
        e400=f"{_UNKNOWN}, or 'since' is no cursor", e503=_BUSY,
    ),
    wire.PATH_STACKS: _read(
        "stacks", "Python stacks of all threads, taken from outside", _TEXT, (_NATIVE,),
        e400=_UNKNOWN, e410="the rank is dead, and none were taken before",
        e503=f"none can be had; it says what is missing; or {_BUSY}",
    ),
    wire.PATH_LAST_WORDS: _read(
        "last_words", "how the process ended and what it said last", _json("LastWords"),
        e400=_UNKNOWN, e503=_BUSY,
    ),
    wire.PATH_HOST: _read(
        "host", "the states of all ranks of this host", _json("HostReport"), e400=_UNKNOWN
    ),
    wire.PATH_WAIT_COUNTERS: _read(
        "wait_counters", "torch's wait counters", _json("WaitCounters"), e400=_UNKNOWN,
        e503=f"torch's control plane does not answer, or {_BUSY}",
    ),
    wire.PATH_METRICS: _read("metrics", "for Prometheus", {**_TEXT, **_OPENMETRICS}),
    wire.PATH_HEALTHZ: _read("healthz", "this server answers", _TEXT),
    wire.PATH_OPENAPI: _read(
        "openapi", "this document", {"application/json": {"schema": {"type": "object"}}}
    ),
    wire.PATH_PROFILE: _PROFILE,
    wire.PATH_EVICT: _EVICT,
}  # fmt: skip


@cache
def document() -> _Json:
    """The OpenAPI 3.1 document of a rank's WorkerServer."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "lightkeeper WorkerServer",
            "version": str(wire.SCHEMA),
            "description": _ABOUT,
        },
        "paths": _PATHS,
        "components": {
            "schemas": schemas(),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
