"""`GET /openapi.json`: every endpoint, parameter, body and answer, errors included.

Types and bounds are those of the annotations, descriptions those of the docstrings: what travels is
described where it is declared, in JSON Schema (2020-12).
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from typing import Any, Final

from msgspec import Struct
from msgspec.json import schema_components

from worker_server import wire
from worker_server.sidecar import evict, queries
from worker_server.wire import LEFT_OUT

Schema = dict[str, Any]
JSON: Final = ("application/json",)
TEXT: Final = ("text/plain",)
BOTH: Final = (*JSON, *TEXT)
"""As `?format=` says."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One thing to ask for: its route, its line of help and its part of the document."""

    name: str
    path: str
    what: str
    answer: Callable[..., Any]
    """Gets what it answers from, and the parameters; the response, or what is to be written as JSON
    or text."""
    kind: type | None = None
    """What its JSON says; None: whatever torch or OpenAPI say."""
    formats: tuple[str, ...] = JSON
    query: type[Struct] | None = queries.Nothing
    """None: not looked at."""
    errors: Mapping[int, str] = field(default_factory=dict)
    slow: str = ""
    """Of which work it needs a place."""
    example: str = ""
    """Parameters for the line of help."""
    acts: bool = False
    """Whether it needs the token even on loopback."""
    body: str | None = None
    """An example; then it is a POST."""

    @property
    def method(self) -> str:
        """Of HTTP."""
        return "POST" if self.body else "GET"

    @property
    def ask(self) -> str:
        """The path with an example of its parameters."""
        return self.path + self.example

    def curl(self, base: str) -> str:
        """A line for a shell."""
        url = base + self.ask
        words = ["curl", "-X POST" if self.body else "", f"'{url}'" if self.example else url]
        words += ['-H "Authorization: Bearer $LIGHTKEEPER_TOKEN"' if self.acts else ""]
        words += [f"-d '{self.body}'" if self.body else ""]
        return " ".join(filter(None, words))


_ROWS: Final = {"GroupHead": wire.HeadCells}
_ERROR: Final[Schema] = {
    "type": "object",
    "description": "What was wrong, in one line.",
    "required": ["error"],
    "properties": {"error": {"type": "string"}},
}
_UNKNOWN: Final = "a parameter is unknown, doubled or makes no sense"
_ABOUT: Final = """\
The black box beside one rank: it answers while the rank hangs, is stopped, or is dead.

Bound to loopback, reading needs no token, but a Host header that names this machine. Bound to \
anything else, every endpoint needs the bearer token, unless LIGHTKEEPER_OPEN_READS=1; evict and \
profile need it always. A request whose syntax is broken, or whose header or body is too large, \
is answered in plain text by the server in front of these endpoints; one that is not complete \
within 10 s is dropped without an answer.
"""
_OF_READING: Final = {
    401: "wrong or missing token (never on loopback)",
    403: "no token is configured and others could reach the port, or the Host header names "
    "another host",
}
_OF_ACTING: Final = {
    401: "wrong or missing token",
    403: "off: no token is configured where the rank was started",
}
_HEADERS: Final[Mapping[int, Schema]] = {
    401: {"WWW-Authenticate": {"description": "Bearer", "required": True,
                               "schema": {"const": "Bearer"}}},
    503: {"Retry-After": {"description": "seconds", "required": False,
                          "schema": {"type": "string"}}},
}  # fmt: skip


def document(endpoints: Sequence[Endpoint]) -> Schema:
    """The OpenAPI 3.1 document of a rank's WorkerServer."""
    paths: Schema = {one.path: {} for one in endpoints}
    for one in endpoints:
        paths[one.path][one.method.lower()] = _operation(one)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "lightkeeper WorkerServer",
            "version": str(wire.SCHEMA),
            "description": _ABOUT,
        },
        "paths": paths,
        "components": {
            "schemas": _schemas([one.kind for one in endpoints if one.kind is not None]),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(endpoint: Endpoint) -> Schema:
    kind = {"type": "object"} if endpoint.kind is None else _ref(endpoint.kind.__name__)
    formats = {mime: kind if (mime,) == JSON else {"type": "string"} for mime in endpoint.formats}
    errors = {**(_OF_ACTING if endpoint.acts else _OF_READING), **endpoint.errors}
    if endpoint.body or endpoint.query is not None:
        errors[400] = "the body is not such an order" if endpoint.body else _UNKNOWN
    if endpoint.slow:
        busy = "as many such requests as may be are under way"
        errors[503] = f"{errors[503]}, or {busy}" if 503 in errors else busy
    operation: Schema = {
        "operationId": endpoint.name,
        "summary": endpoint.what,
        "security": [{"token": []}] if endpoint.acts else [{}, {"token": []}],
        "parameters": list(_parameters(endpoint.query)) if endpoint.query else [],
        "responses": {
            "200": {
                "description": endpoint.what,
                "content": {mime: {"schema": schema} for mime, schema in formats.items()},
            },
            **{str(status): _error(status, errors[status]) for status in sorted(errors)},
        },
    }
    if endpoint.body:
        order = {"application/json": {"schema": _ref(queries.EvictionOrder.__name__)}}
        operation["requestBody"] = {"required": True, "content": order}
    return operation


def _error(status: int, about: str) -> Schema:
    answer: Schema = {
        "description": about, "content": {"application/json": {"schema": _ref("Error")}}
    }  # fmt: skip
    return {**answer, "headers": _HEADERS[status]} if status in _HEADERS else answer


def _parameters(query: type[Struct]) -> Iterator[Schema]:
    _, found = schema_components([query])
    schema = found[query.__name__]
    kinds = (kind.__name__ for kind in reversed(query.__mro__))
    _describe(schema, dict(chain(*(_docstrings().get(name, {}).items() for name in kinds))))
    for name, value in schema["properties"].items():
        plain = _said(value)
        yield {"name": name, "in": "query", "description": plain.pop("description"),
               "required": name in schema["required"], "schema": plain}  # fmt: skip


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _schemas(answers: Sequence[type]) -> dict[str, Schema]:
    """All components of the document, by name."""
    kinds = (*answers, *_ROWS.values(), queries.EvictionOrder)
    _, found = schema_components(kinds, ref_template=_ref("{name}")["$ref"])
    left_out = {kind.__name__: names for kind, names in LEFT_OUT.items()}
    for name, about in _docstrings().items():
        if name in found:
            _describe(found[name], about)
    for name, schema in found.items():
        schema["description"] = inspect.cleandoc(schema.get("description", name))
        if "properties" in schema and name != queries.EvictionOrder.__name__:
            _leave_out(schema, left_out.get(name, ()))
    for name, cells in _ROWS.items():
        found[name] = found.pop(cells.__name__)
    found["HostEntry"]["properties"]["report"] = dict(found["StateReport"])
    for kind in answers:
        answer = found[kind.__name__]
        answer["properties"] = {"schema": {"const": wire.SCHEMA}, **answer["properties"]}
        answer["required"] = ["schema", *answer["required"]]
    return {**found, "Error": _ERROR}


def _describe(schema: Schema, about: dict[str, str]) -> None:
    """Say what each key is, and each cell of a row, which a newer server may make longer."""
    told = schema.get("properties")
    if told is None:
        schema.pop("maxItems", None)
        told = dict(zip(about, schema.get("prefixItems", ()), strict=True))
        for title, cell in told.items():
            cell["title"] = title
    for key, value in told.items():
        if about[key]:
            value["description"] = about[key]


def _leave_out(schema: Schema, usual: tuple[str, ...]) -> None:
    """What is None is left out, so is what is as usual; all else is always said."""
    told = schema["properties"]
    absent = {key for key, value in told.items() if "anyOf" in value} | set(usual)
    schema["required"] = [key for key in told if key not in absent]
    for key, value in told.items():
        if key != "committed_step":  # whose null says something
            told[key] = _said(value)


def _said(value: Schema) -> Schema:
    """As it is where something is said: never null."""
    if "anyOf" not in value:
        return value
    about = {"description": value["description"]} if "description" in value else {}
    return {**value["anyOf"][0], **about}


@cache
def _docstrings() -> dict[str, dict[str, str]]:
    """Class -> field -> the text below it, which the interpreter does not keep."""
    return {
        node.name: dict(_fields(node.body))
        for module in (wire, evict, queries)
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.ClassDef)
    }


def _fields(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for line, below in zip(body, [*body[1:], ast.Pass()], strict=True):
        if isinstance(line, ast.AnnAssign):
            text = ast.literal_eval(below.value) if isinstance(below, ast.Expr) else ""
            yield ast.unparse(line.target), inspect.cleandoc(text)
