"""The wire's types as JSON Schema (2020-12): what `worker_server.wire.to_json` makes of them.

Types and bounds are those of the annotations, descriptions those of the docstrings.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from typing import Any, Final

from msgspec.json import schema_components

from worker_server import wire
from worker_server.sidecar import evict, queries
from worker_server.wire import messages
from worker_server.wire.codec import LEFT_OUT

Schema = dict[str, Any]

_ANSWERS: Final = (
    wire.StateReport, wire.StepLog, wire.FlightRecord, wire.LastWords, wire.HostReport,
    evict.Eviction,
)  # fmt: skip
_ROWS: Final = {"GroupHead": messages.HeadCells, "StepRow": messages.StepCells}
_OTHERS: Final[dict[str, Schema]] = {
    "WaitCounters": {"type": "object", "description": "torch's wait counters, by name"},
    "Profile": {"type": "object", "description": "a Chrome trace"},
    "Error": {
        "type": "object",
        "description": "What was wrong, in one line.",
        "required": ["error"],
        "properties": {"error": {"type": "string"}},
    },
}


def ref(name: str) -> Schema:
    """A reference to a component."""
    return {"$ref": f"#/components/schemas/{name}"}


def schemas() -> dict[str, Schema]:
    """All components of the OpenAPI document, by name."""
    kinds = (*_ANSWERS, *_ROWS.values(), queries.EvictionOrder)
    _, found = schema_components(kinds, ref_template=ref("{name}")["$ref"])
    left_out = {kind.__name__: names for kind, names in LEFT_OUT.items()}
    for name, about in _docstrings():
        if name in found:
            _describe(found[name], about)
    for name, schema in found.items():
        schema["description"] = inspect.cleandoc(schema.get("description", name))
        if "properties" in schema and name != queries.EvictionOrder.__name__:
            _leave_out(schema, left_out.get(name, ()))
    for name, cells in _ROWS.items():
        found[name] = found.pop(cells.__name__)
    found["HostEntry"]["properties"]["report"] = dict(found["StateReport"])
    for kind in _ANSWERS:
        answer = found[kind.__name__]
        answer["properties"] = {"schema": {"const": wire.SCHEMA}, **answer["properties"]}
        answer["required"] = ["schema", *answer["required"]]
    return {**found, **_OTHERS}


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
        if "anyOf" in value and key != "committed_step":  # whose null says something
            about = {"description": value["description"]} if "description" in value else {}
            told[key] = {**value["anyOf"][0], **about}


def _docstrings() -> Iterator[tuple[str, dict[str, str]]]:
    """Class -> field -> the text below it, which the interpreter does not keep."""
    for module in (messages, evict, queries):
        for node in ast.parse(inspect.getsource(module)).body:
            if isinstance(node, ast.ClassDef):
                yield node.name, dict(_fields(node.body))


def _fields(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for line, below in zip(body, [*body[1:], ast.Pass()], strict=True):
        if isinstance(line, ast.AnnAssign):
            text = ast.literal_eval(below.value) if isinstance(below, ast.Expr) else ""
            yield ast.unparse(line.target), inspect.cleandoc(text)
