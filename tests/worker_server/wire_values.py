"""Values of everything that the wire can carry, drawn from its annotations.

A field that the wire gets later is covered by itself.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from hypothesis import strategies as st

from lightkeeper.worker_server import wire


def parse_last_words(data: Any) -> wire.LastWords:
    """The answer of `GET /v1/last_words`, checked."""
    return wire._read(wire.LastWords, wire._answer(data))


def parse_network(data: Any) -> wire.NetworkReport:
    """The answer of `GET /v1/network`, checked."""
    return wire._read(wire.NetworkReport, wire._answer(data))


PARSERS = {
    wire.StateReport: wire.parse_state,
    wire.StepLog: wire.parse_steps,
    wire.FlightRecord: wire.parse_flight_record,
    wire.LastWords: parse_last_words,
    wire.HostReport: wire.parse_host,
    wire.NetworkReport: parse_network,
    wire.MachineReport: wire.parse_machine,
    wire.Registration: wire.parse_registration,
    wire.Identity: wire.parse_identity,
}


@cache
def parts(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def plain(hint: Any) -> tuple[Any, Any, tuple[Any, ...], msgspec.Meta | None]:
    """What a hint comes to: type, origin, arguments, bounds."""
    bounds = None
    while get_origin(hint) in (Annotated, Union, UnionType) or hasattr(hint, "__supertype__"):
        for meta in getattr(hint, "__metadata__", ()):
            bounds = meta
        hint = getattr(hint, "__supertype__", None) or get_args(hint)[0]
    return hint, get_origin(hint), get_args(hint), bounds


WHO = wire.Identity("job", wire.GroupName("rg_1"), 0, 2, wire.Host("h"), 7, "abc")
PLACED = replace(WHO, place={"node": "a"}, launched_as=wire.GroupName("0"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
"""As in torch's records, which nobody checks; nan is left out: it equals nothing."""
SECONDS = st.integers(0, 10**9).map(lambda n: n / 1000)
COUNTS = st.integers(0, 2**53)
LINES = st.sampled_from(["Deadlock.log_step", "train.py", "RuntimeError: shape 65, got 64"])


@st.composite
def took(draw):
    """What a rank measured; without bytes where there are none, or they cannot be counted."""
    sum_bytes = draw(st.just(0) | COUNTS)
    last_bytes = draw(COUNTS) if sum_bytes else 0
    return wire.Took(draw(COUNTS), draw(SECONDS), draw(SECONDS), sum_bytes, last_bytes)


@st.composite
def head(draw):
    unfinished, enqueued = sorted((draw(COUNTS), draw(COUNTS)))
    return wire.GroupHead(
        name=draw(st.text()), size=draw(COUNTS), enqueued=enqueued, unfinished=unfinished,
        op=draw(st.text()), age_s=draw(st.integers(0, 10**9)) / 100,
        held=draw(st.integers(0, enqueued)),
    )  # fmt: skip


@st.composite
def transfers(draw):
    unfinished, posted = sorted((draw(COUNTS), draw(COUNTS)))
    return wire.TransferHead(
        group=draw(st.text()), peer=draw(st.integers(-1, 99)), tag=draw(st.integers(0, 9)),
        sends=draw(st.integers(0, 1)), posted=posted, unfinished=unfinished,
        age_s=draw(st.integers(0, 10**9)) / 100, held=draw(st.integers(0, posted)),
    )  # fmt: skip


CHOSEN = {
    wire.Identity: st.sampled_from([WHO, PLACED]), wire.Took: took(), wire.GroupHead: head(),
    wire.TransferHead: transfers(), "call": LINES,
    float: SECONDS, bool: st.booleans(), str: st.text(max_size=8),
    Any: JSON,
    "url": st.just("http://h:1"), "rank": st.just(WHO.rank),
    "loss": st.integers(-99999, 99999).map(lambda n: n / 1000),
    "function": LINES, "file": LINES, "sentence": LINES, "exception": LINES,
}  # fmt: skip
"""By type or key: what may not be anything, or is rounded on its way."""


def values(hint, key=""):  # noqa: C901  one case each
    """What may stand where this is meant."""
    kind, origin, args, bounds = plain(hint)
    if type(None) in get_args(hint):
        return st.none() | values(get_args(hint)[0], key)
    if (key in CHOSEN and kind is str) or key == "loss":
        return CHOSEN[key]
    if kind is str and bounds is not None and bounds.pattern:
        return st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=8)
    if kind in CHOSEN:
        return CHOSEN[kind]
    if kind is int:
        return st.integers(bounds.ge, bounds.le)
    if origin is tuple and ... in args:
        return st.lists(values(args[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, args))
    if origin is Mapping:
        return st.dictionaries(st.text(max_size=8), values(args[1]), max_size=3)
    if origin is Literal:
        return st.sampled_from(args)
    if issubclass(kind, Enum):
        return st.sampled_from(kind)
    return st.builds(kind, **{name: values(part, name) for name, part in parts(kind).items()})
