"""The WorkerServer's OpenAPI document, made of its code: worker_server/sidecar/openapi.json.

`python -m tests.openapi` writes the file; a test says whether it is as the code is. Types and
bounds come from the annotations, descriptions from the docstrings: everything is described where it
is declared. JSON Schema 2020-12.
"""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.json import schema_components

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.sidecar import app, process
from lightkeeper.worker_server.sidecar.app import ENDPOINTS, JSON, Endpoint

FILE: Final = Path(app.__file__).with_name("openapi.json")
Schema = dict[str, Any]

_ERROR: Final[Schema] = {
    "type": "object",
    "description": "What was wrong, in one line.",
    "required": ["error"],
    "properties": {"error": {"type": "string"}},
}
_UNKNOWN: Final = "a parameter is unknown, doubled or makes no sense"
_OF_THE_API: Final = """\
The black box beside one rank: it answers while the rank hangs, is stopped, or is dead.

Bound to loopback, reading needs no token, but a Host header that names this machine. Bound to \
anything else, every endpoint needs the bearer token, unless LIGHTKEEPER_OPEN_READS=1; evict \
needs it always. A request whose syntax is broken, or whose header or body is too large, is \
answered in plain text by the server in front of these endpoints; one that is not complete within \
10 s is dropped without an answer.
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


@cache
def document() -> Schema:
    """The OpenAPI 3.1 document of a rank's WorkerServer."""
    paths: Schema = {endpoint.path: {} for endpoint in ENDPOINTS}
    for endpoint in ENDPOINTS:
        paths[endpoint.path][endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "lightkeeper WorkerServer",
            "version": str(wire.SCHEMA),
            "description": _OF_THE_API,
        },
        "paths": paths,
        "components": {
            "schemas": _schemas([kind for kind in (e.kind for e in ENDPOINTS) if kind]),
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
    if endpoint.order is not None:
        order = {"application/json": {"schema": _ref(endpoint.order.__name__)}}
        operation["requestBody"] = {"required": True, "content": order}
    return operation


def _error(status: int, about: str) -> Schema:
    answer: Schema = {
        "description": about, "content": {"application/json": {"schema": _ref("Error")}}
    }  # fmt: skip
    return {**answer, "headers": _HEADERS[status]} if status in _HEADERS else answer


def _parameters(query: type[Struct]) -> Iterator[Schema]:
    _, schemas = schema_components([query])
    schema = schemas[query.__name__]
    kinds = (kind.__name__ for kind in reversed(query.__mro__))
    _describe(schema, dict(chain(*(_docstrings().get(name, {}).items() for name in kinds))))
    for name, value in schema["properties"].items():
        plain = _said(value)
        yield {"name": name, "in": "query", "description": plain.pop("description"),
               "required": name in schema["required"], "schema": plain}  # fmt: skip


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _schemas(answers: Sequence[type]) -> dict[str, Schema]:
    orders = [endpoint.order for endpoint in ENDPOINTS if endpoint.order is not None]
    kinds = (*answers, *orders)
    _, schemas = schema_components(kinds, ref_template=_ref("{name}")["$ref"])
    left_out = {kind.__name__: set(usual) for kind, usual in wire.LEFT_OUT.items()}
    for name, about in _docstrings().items():
        if name in schemas:
            _describe(schemas[name], about)
    for name, schema in schemas.items():
        schema["description"] = inspect.cleandoc(schema.get("description", name))
        for value in schema.get("properties", {}).values():
            if value.get("default") == {}:  # msgspec 0.22 says it, 0.23 of some does not
                del value["default"]
        if "properties" in schema and name not in {order.__name__ for order in orders}:
            _leave_out(schema, left_out.get(name, set()))
    schemas["HostEntry"]["properties"]["report"] = dict(schemas["StateReport"])
    for kind in answers:
        answer = schemas[kind.__name__]
        answer["properties"] = {"schema": {"const": wire.SCHEMA}, **answer["properties"]}
        answer["required"] = ["schema", *answer["required"]]
    return {**schemas, "Error": _ERROR}


def _describe(schema: Schema, about: dict[str, str]) -> None:
    """Describe each key, or each cell of a row, which a newer server may make longer."""
    parts = schema.get("properties")
    if parts is None:
        schema.pop("maxItems", None)
        parts = dict(zip(about, schema.get("prefixItems", ()), strict=True))
        for title, cell in parts.items():
            cell["title"] = title
    for key, value in parts.items():
        if about[key]:
            value["description"] = about[key]


def _leave_out(schema: Schema, usual: set[str]) -> None:
    """None and usual values are left out; every other key is required."""
    properties = schema["properties"]
    absent = {key for key, value in properties.items() if "anyOf" in value} | usual
    schema["required"] = [key for key in properties if key not in absent]
    for key, value in properties.items():
        if key != "committed_step":  # its null has a meaning
            properties[key] = _said(value)


def _said(value: Schema) -> Schema:
    """The schema without null."""
    if "anyOf" not in value:
        return value
    about = {"description": value["description"]} if "description" in value else {}
    return {**value["anyOf"][0], **about}


@cache
def _docstrings() -> dict[str, dict[str, str]]:
    """Class -> field -> its docstring, which the interpreter does not keep."""
    return {
        node.name: dict(_fields(node.body))
        for module in (wire, process, app)
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.ClassDef)
    }


def _fields(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for line, below in zip(body, [*body[1:], ast.Pass()], strict=True):
        if isinstance(line, ast.AnnAssign):
            text = ast.literal_eval(below.value) if isinstance(below, ast.Expr) else ""
            yield ast.unparse(line.target), inspect.cleandoc(text)


def text() -> str:
    """What the file has to hold."""
    return json.dumps(document(), ensure_ascii=False, indent=1) + "\n"


if __name__ == "__main__":
    from tests.monitor import openapi

    for file, content in ((FILE, text()), (openapi.FILE, openapi.text())):
        file.write_text(content)
        print(file)
