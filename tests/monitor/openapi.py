"""The monitor's OpenAPI document, made of its routes: monitor/show/web/openapi.json.

`python -m tests.openapi` writes the file; a test says whether it is as the code is. Parameters are
those that the routes know. Answers are described by those of a small fleet: each key with its type,
and no key is required but `schema`, since keys may be added, and what is not known is null or left
out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from flask import Flask
from werkzeug.routing import Rule

from lightkeeper.monitor.decide.accounts import _SPAN, WORDS
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.incident import BundleView, State
from lightkeeper.monitor.model.run import Run
from lightkeeper.monitor.model.verdict import Kind
from lightkeeper.monitor.rulebook import standing
from lightkeeper.monitor.show.terminal.tables import GROUP_ORDERS, RANK_ORDERS
from lightkeeper.monitor.show.web import reading
from lightkeeper.monitor.show.web.server import create_app
from tests.changed import replace
from tests.monitor.api import app_context
from tests.monitor.doubles import HandClock
from tests.monitor.samples import ENTRY, EVENT, EVICTION, GROUP_ENTRY, HOLD, incident, seen, view

FILE: Final = Path(reading.__file__).with_name("openapi.json")
Schema = dict[str, Any]

_OF_THE_API: Final = """\
What `lightkeeper monitor` knows, and what a person can ask of it.

Reading needs no token, but a rank's own pages and the evidence, which are open on loopback \
alone. Every change needs the bearer token. Times are Unix seconds, ages and durations are \
seconds; what is not known is null or left out, never zero. Keys may be added.
"""
_WHAT: Final = {
    "/v1/snapshot": "everything: ranks, groups, the Lighthouse, incidents, troubles",
    "/v1/groups": "every replica group",
    "/v1/ranks": "every rank",
    "/v1/hosts": "every host with its record, worst first",
    "/v1/top": "the screen of `lightkeeper top`",
    "/v1/runs": "every start of the job",
    "/v1/incidents": "what happened, newest first, with totals",
    "/v1/incidents/{prefix}": "one incident; the beginning of its id is enough",
    "/v1/incidents/{incident_id}/bundle": "the evidence of an incident, a zip",
    "/v1/status": "does it train, who holds it back, what was done, is the monitor to be trusted?",
    "/v1/admission": "may a launcher start this group on this host?",
    "/v1/quarantine": "hosts and groups that are out",
    "/v1/quarantine/{name}": "a host: its entry, record and history",
    "/v1/quarantine/groups/{name}": "a replica group: its entry and history",
    "/v1/policy": "the policy in force, where it comes from, what was learned",
    "/v1/sd": "targets for Prometheus' http_sd",
    "/metrics": "for Prometheus",
    "/healthz": "is the process well?",
    "/readyz": "is anything judged?",
    "/openapi.json": "all of this for programs",
    "/v1/ranks/{rank}/{what}": "a rank's own answer; its WorkerServer has a document of it",
    "POST /v1/register": "a WorkerServer asks to be polled",
    "DELETE /v1/register/{rank}": "it goes",
    "PUT /v1/quarantine/{name}": "refuse a host to launchers",
    "PUT /v1/quarantine/groups/{name}": "keep a replica group out",
    "DELETE /v1/quarantine/{name}": "let a host in again",
    "DELETE /v1/quarantine/groups/{name}": "let a replica group in again",
    "POST /v1/groups/{group}/evict": "evict a replica group now",
    "/v1/silences": "silences that hold",
    "POST /v1/silences": "send no messages about what matches, for a time",
    "DELETE /v1/silences/{name}": "end a silence",
    "POST /v1/incidents/{prefix}/ack": "acknowledge an incident",
    "POST /v1/incidents/{prefix}/assign": "to somebody",
    "POST /v1/incidents/{prefix}/comment": "a line of text",
    "POST /v1/incidents/{prefix}/resolve": "with a reason",
    "POST /v1/incidents/{prefix}/label": "was it right?",
    "POST /v1/policy/reload": "read the policy file again",
    "POST /v1/pause": "evict nobody for now",
    "DELETE /v1/pause": "evict again",
}
_TEXT: Final[Schema] = {"type": "string"}
_FLAG: Final[Schema] = {"type": "string", "enum": ["0", "1"]}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 1, "maximum": 10_000_000}
_NAMES: Final[Schema] = {"type": "array", "items": _TEXT}
_PARAMETERS: Final[Mapping[str, Schema]] = {
    "format": {"type": "string", "enum": ["json", "text"]},
    "width": {"type": "integer", "minimum": 0, "maximum": 10_000_000},
    "height": _COUNT, "limit": _COUNT, "rows": _COUNT, "since": _TEXT,
    "raw": _FLAG, "unhealthy": _FLAG, "wide": _FLAG, "native": _FLAG, "active": _FLAG,
    "kind": {"type": "string", "enum": list(Kind)}, "run": _TEXT,
    "state": {"type": "string", "enum": ["open", *State]},
}  # fmt: skip
_OF_PATH: Final[Mapping[tuple[str, str], Schema]] = {
    ("/v1/ranks", "sort"): {"type": "string", "enum": list(RANK_ORDERS)},
    ("/v1/groups", "sort"): {"type": "string", "enum": list(GROUP_ORDERS)},
    ("/v1/top", "sort"): {"type": "string", "enum": list(RANK_ORDERS)},
    ("/v1/top", "width"): {"type": "integer", "minimum": 1, "maximum": 10_000_000},
    ("/v1/incidents", "since"): {"type": "string", "pattern": rf"^\s*{_SPAN.pattern}\s*$|^$"},
    ("/v1/incidents", "limit"): {"type": "integer", "minimum": 1, "maximum": 10_000},
    ("/v1/admission", "host"): {"type": "string", "minLength": 1},
}
_ABOUT: Final = {
    "format": "text: as it is printed", "width": "cells of a line of text, 0: any number",
    "raw": "1: control characters as they are",
    "since": "such as 7d or 12h, or a number of attempts",
    "state": "a state, or `open`", "run": "its id, or `current`", "rows": "rows of a table of text",
    "kind": "of fault", "group": "of this replica group", "host": "on this host",
    "limit": "at most so many", "height": "lines", "native": "1: with C frames",
    "active": "1: the unfinished", "unhealthy": "1: neither healthy nor waiting",
    "wide": "1: more columns", "sort": "worst first",
}  # fmt: skip
_ORDER: Final[Schema] = {
    "type": "object",
    "properties": {
        "reason": {"type": "string", "maxLength": 500},
        "author": {"type": "string", "maxLength": 80},
        "text": {"type": "string", "maxLength": 1000},
        "to": {"type": "string", "maxLength": 80},
        "right": {"type": "boolean"},
        "hours": {"type": "number", "exclusiveMinimum": 0, "maximum": 8760},
    },
}  # fmt: skip


def sample_app() -> Flask:
    """The app of a small fleet with an incident and its eviction."""
    fault = replace(incident(), run="20261127-164512", remedy="kill -CONT 7")
    shown = view(
        seen("rg_0", replica_id="rg_0:a"), seen("rg_1", replica_id="rg_1:uuid1"),
        incidents=(fault,), decisions={fault.id: (HOLD, EVICTION)}, quarantine=(ENTRY,),
        bundles={fault.id: BundleView(1024, 104.0)}, runs=(Run("20261127-164512", "job", 90.0),),
        rules=standing(KeeperConfig()).current,
    )  # fmt: skip
    context = app_context(HandClock(1000.0), view=lambda: shown, loopback=True)
    context.quarantine.take_over((ENTRY, GROUP_ENTRY), (EVENT,))
    return create_app(context)


@cache
def document() -> Schema:
    """The OpenAPI 3.1 document of a monitor."""
    app, paths = sample_app(), {}
    for rule in sorted(app.url_map.iter_rules(), key=lambda each: each.rule):
        path = rule.rule.replace("<path:", "<").replace("<", "{").replace(">", "}")
        for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"}):
            if path.startswith("/v1/") or path in _WHAT:
                paths.setdefault(path, {})[method.lower()] = _operation(app, rule, path, method)
    return {
        "openapi": "3.1.0",
        "info": {"title": "lightkeeper monitor", "version": "1", "description": _OF_THE_API},
        "paths": paths,
        "components": {
            "schemas": {
                "Error": {
                    "type": "object", "description": "What was wrong, in one line.",
                    "required": ["error"], "properties": {"error": _TEXT},
                },
                **{_ROWS[key]: schema_of(rows[0]) for key, rows in _rows(app).items()},
            },
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }  # fmt: skip


def _operation(app: Flask, rule: Rule, path: str, method: str) -> Schema:
    what = _WHAT[path if method == "GET" else f"{method} {path}"]
    which = [rule.endpoint.rpartition(".")[2], *map(str, (rule.defaults or {}).values())]
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    operation: Schema = {
        "operationId": "_".join(which),
        "summary": what,
        "security": [{}, {"token": []}] if method == "GET" else [{"token": []}],
        "parameters": list(_parameters(rule, path, method)),
        "responses": {
            "200": {"description": what, "content": _content(app, path, method)},
            "default": {"description": "refused; the status says why", "content": error},
        },
    }
    if method != "GET" and "register" not in path:
        body = {"application/json": {"schema": _ORDER}}
        operation["requestBody"] = {"required": False, "content": body}
    return operation


def _parameters(rule: Rule, path: str, method: str) -> Iterator[Schema]:
    for name in sorted(rule.arguments - {*(rule.defaults or {})}):
        schema = {"type": "string", "minLength": 1}
        if name == "what":
            schema = {"type": "string", "enum": sorted(reading._PAGES)}
        yield {"name": name, "in": "path", "required": True, "schema": schema}
    names = {
        "/v1/admission": ("host", "group"), "/readyz": ("role",),
        "/v1/ranks/{rank}/{what}": ("format", "rows", "raw", "since", "active", "native"),
        "DELETE /v1/register/{rank}": ("incarnation",),
    }.get(path if method == "GET" else f"{method} {path}", ())  # fmt: skip
    if method == "GET":
        names = names or reading.PARAMETERS.get(rule.rule, ())
    for name in names:
        several = name in ("group", "host") and not {*WORDS} <= {*names} and "admission" not in path
        about = {"description": _ABOUT[name]} if name in _ABOUT else {}
        schema = _NAMES if several else _PARAMETERS.get(name, _TEXT)
        schema, needed = _OF_PATH.get((path, name), schema), (path, name) == _NEEDED
        yield {"name": name, "in": "query", "required": needed, **about, "schema": schema}


_NEEDED: Final = ("/v1/admission", "host")


def _content(app: Flask, path: str, method: str) -> Schema:
    if path in ("/metrics", "/v1/incidents/{incident_id}/bundle"):
        kinds = ("text/plain", "application/openmetrics-text")
        return {kind: {} for kind in (kinds if path == "/metrics" else ("application/zip",))}
    if path == "/v1/ranks/{rank}/{what}":
        return {"application/json": {"schema": {"type": "object"}}, "text/plain": {}}
    content: Schema = {"application/json": {"schema": _answer(app, path, method)}}
    return {**content, "text/plain": {}} if "format" in reading.PARAMETERS.get(
        path.replace("{", "<").replace("}", ">"), ()) else content  # fmt: skip


_ASKED: Final = {"prefix": "inc-1", "name": "node1"}


def _answer(app: Flask, path: str, method: str) -> Schema:
    schema: Schema = {"type": "object"}
    if path == "/openapi.json":
        return schema
    if method == "GET":
        asked = path.format(**_ASKED) + ("?host=node1" if "admission" in path else "")
        said = app.test_client().get(asked)
        assert said.status_code == 200, (asked, said.text)
        schema = schema_of(said.json)
    if "/v1/" in path and path not in ("/v1/sd", "/v1/admission"):
        fixed = {"schema": {"const": 1}}
        schema = {**schema, "properties": {**schema.get("properties", {}), **fixed}}
        schema["required"] = ["schema"]
    return schema


_ROWS: Final = {"incidents": "Incident", "ranks": "Rank", "groups": "Group", "hosts": "Host"}
_ROW_KEYS: Final = {
    "incidents": {"story"}, "ranks": {"phase"}, "groups": {"in_quorum"}, "hosts": {"lemon"},
}  # fmt: skip
"""By which such a row is known."""


def _rows(app: Flask) -> dict[str, Any]:
    return {key: app.test_client().get(f"/v1/{key}").json[key] for key in _ROWS}


_MAPS: Final = frozenset(
    {"evidence", "seen", "links", "place", "incidents", "heartbeats", "conditions", "guards",
     "thresholds", "actions", "after_restart", "evictions_last_hour", "spent", "lost", "observed",
     "lighthouse", "learned", "labels"}
)  # fmt: skip
"""Objects whose keys are data."""


def schema_of(value: Any, key: str = "") -> Schema:
    """What an example shows. A null shows nothing; any value may be null."""
    match value:
        case dict() if key in _MAPS:
            return {"type": ["object", "null"]}
        case dict():
            parts = {name: schema_of(part, name) for name, part in value.items()}
            return {"type": ["object", "null"], "properties": parts} if key else {
                "type": "object", "properties": parts}  # fmt: skip
        case list():
            items = schema_of(value[0], "each") if value else {}
            if key in _ROWS and value and _ROW_KEYS[key] <= {*value[0]}:
                items = {"$ref": f"#/components/schemas/{_ROWS[key]}"}
            return {"type": ["array", "null"], "items": items} if key else {
                "type": "array", "items": items}  # fmt: skip
        case bool():
            return {"type": ["boolean", "null"]}
        case int() | float():
            return {"type": ["number", "null"]}
        case str():
            return {"type": ["string", "null"]}
        case _:
            return {}


def text() -> str:
    """What the file has to hold."""
    said = json.dumps(document(), ensure_ascii=False, indent=1) + "\n"
    return re.sub(r'\[\s+("[a-z]+"),\s+"null"\s+\]', r'[\1, "null"]', said)
