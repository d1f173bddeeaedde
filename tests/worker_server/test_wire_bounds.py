"""Every value of every message has a type and every number has bounds, found by walking the types.

A field that the wire gets later is covered by itself: it is part of the example, and its bad
values are derived from its annotation.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from typing import Any, Literal

import msgspec
import pytest

from lightkeeper.worker_server import wire
from tests.worker_server.wire_values import PARSERS, parts, plain

CHOSEN = {"group_rank": 0, "url": "http://h:1", "rank": "rg_1.0"}
HUGE = 10**400


def is_row(kind: Any) -> bool:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind.__struct_config__.array_like
    return isinstance(kind, type) and issubclass(kind, tuple)


def example(hint: Any, name: str = "") -> Any:
    """A value as it travels, with every key that there is."""
    kind, origin, args, _ = plain(hint)
    leaves = {int: 1, float: 1.5, bool: True, str: "x", Any: {}}
    if name in CHOSEN or kind in leaves:
        return CHOSEN.get(name, leaves.get(kind))
    if origin is tuple:
        return [example(part) for part in args if part is not ...]
    if origin is Mapping:
        return {"k": example(args[1])}
    if origin is Literal:
        return args[0]
    if issubclass(kind, Enum):
        return list(kind)[-1].value
    fields = {key: example(part, key) for key, part in parts(kind).items()}
    return list(fields.values()) if is_row(kind) else fields


def leaves(hint: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any, Any]]:
    """Where what stands: path, type and bounds of every value that is no container."""
    kind, origin, args, bounds = plain(hint)
    if origin is tuple:
        for at, element in enumerate(argument for argument in args if argument is not ...):
            yield from leaves(element, (*path, at))
    elif origin is Mapping:
        yield from leaves(args[1], (*path, "k"))
    elif kind in (int, float, bool, str, Any) or origin is Literal or issubclass(kind, Enum):
        yield path, kind, bounds
    else:
        for at, (key, part) in enumerate(parts(kind).items()):
            yield from leaves(part, (*path, at if is_row(kind) else key))


@cache
def text_of(kind: type) -> str:
    return json.dumps({"schema": wire.SCHEMA, **example(kind)})


def answer_of(kind: type) -> Any:
    return json.loads(text_of(kind))


def bad(kind: Any, bounds: msgspec.Meta | None) -> list[Any]:
    """What must not stand where this is meant."""
    if kind is int:
        return [bounds.le + 1, bounds.ge - 1, HUGE, -HUGE, 1.5, 1.0, math.nan, math.inf, True, "1"]
    if kind is float:
        below = bounds.ge - 1e-9 if bounds.ge == 0 else bounds.ge * 1.01
        return [below, bounds.le * 1.01, 1e308, -1e308, HUGE, -HUGE, math.nan, math.inf, -math.inf,
                True, "1", [1.0]]  # fmt: skip
    if kind is bool:
        return [1, 0, "true", math.nan]
    return [1, True, HUGE, math.nan, ["x"]]


def refusal(kind: type, answer: Any) -> str | None:
    try:
        PARSERS[kind](answer)
    except wire.WireError as exc:
        return str(exc)
    return None


@pytest.mark.parametrize("kind", PARSERS, ids=lambda kind: kind.__name__)
def test_an_example_with_every_key_is_read(kind):
    assert isinstance(PARSERS[kind](answer_of(kind)), kind)


@pytest.mark.parametrize("kind", PARSERS, ids=lambda kind: kind.__name__)
def test_a_value_out_of_its_type_or_bounds_costs_that_answer_and_names_its_place(kind):
    for path, leaf, bounds in leaves(kind):
        named = [key for key in path if isinstance(key, str) and key != "k"]
        place = answer = answer_of(kind)
        for key in path[:-1]:
            place = place[key]
        for value in [] if leaf is Any else bad(leaf, bounds):
            place[path[-1]] = value
            said = refusal(kind, answer)
            assert said is not None, (path, value)
            assert "\n" not in said
            assert not named or any(key in said for key in named), said


@pytest.mark.parametrize("kind", PARSERS, ids=lambda kind: kind.__name__)
def test_null_is_as_good_as_absent(kind):
    """For every key: both are read alike, or both refused."""

    def read(answer):
        try:
            return PARSERS[kind](answer)
        except wire.WireError:
            return wire.WireError

    ends = ((leaf, end) for leaf, _, _ in leaves(kind) for end in range(1, len(leaf) + 1))
    for path in {leaf[:end] for leaf, end in ends}:
        if isinstance(path[-1], int) or path[-1] in ("k", "committed_step"):
            continue
        read_as = []
        for change in ("null", "absent"):
            place = answer = answer_of(kind)
            for key in path[:-1]:
                place = place[key]
            place.pop(path[-1])
            if change == "null":
                place[path[-1]] = None
            read_as.append(read(answer))
        assert read_as[0] == read_as[1], path


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        pytest.param(wire.StateReport, ("heads", 0), id="a head"),
        pytest.param(wire.StateReport, ("step", "times", "k"), id="a time"),
        pytest.param(wire.StateReport, ("step", "prints", "rows", 0), id="a fingerprint"),
        pytest.param(wire.StepLog, ("rows", 0), id="a step"),
    ],
)
def test_a_row_that_a_newer_side_made_longer_is_read_as_far_as_it_is_known(kind, path):
    answer = answer_of(kind)
    parsed = PARSERS[kind](answer)
    row = answer
    for key in path:
        row = row[key]
    row += [{"new": 1}, None]
    assert PARSERS[kind](answer) == parsed


def test_every_number_of_the_wire_is_bounded():
    for kind in PARSERS:
        for path, leaf, bounds in leaves(kind):
            if leaf in (int, float):
                assert bounds is not None, path
                assert bounds.le <= (2**63 - 1 if leaf is int else 1e100), path
                assert bounds.ge >= (-(2**63) if leaf is int else -1e100), path


def test_every_list_that_is_polled_is_bounded_for_each_row_costs_the_monitor_time():
    def look(hint: Any, *path: str) -> None:
        kind, origin, args, bounds = plain(hint)
        if origin is Mapping or ... in args:
            assert bounds is not None, path
            assert bounds.max_length <= 1024, path
        for part in args if origin in (Mapping, tuple) else ():
            look(part, *path)
        if not origin and kind not in (int, float, bool, str, ...) and not issubclass(kind, Enum):
            for key, part in parts(kind).items():
                look(part, *path, key)

    look(wire.StateReport)
