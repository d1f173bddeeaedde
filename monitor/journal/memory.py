"""Our own values as plain JSON: no pickle, so reading it runs no code. Pure.

Theory of operation. A journal file in the middle of a run begins with everything that the pipeline
remembers, and continues with snapshots. `freeze` runs between two ticks and is quick: it copies
what changes (lists, dicts, deques, sets, mutable dataclasses) and keeps what is frozen. `Writer`
may be slow: it runs in another thread. An object that occurs twice, or was in the value written
before, is written once and then referred to by number, so that `Reader` restores the same graph.
What the wire carries is msgspec's to write and to check; the rest is made field by field, without
a call of its code: dataclasses, structs, named tuples and enums of this project that are already
loaded. A class with other fields than those written is an error. The configuration is not written:
the reader supplies it, since a what-if replay has another one.
"""

from __future__ import annotations

import json
import sys
from base64 import b64decode, b64encode
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from functools import cache
from itertools import chain
from math import isfinite
from operator import attrgetter
from typing import Any, Final
from uuid import uuid4

from msgspec import Raw, Struct, convert, structs, to_builtins
from msgspec.json import Encoder

from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.observation import Observation
from lightkeeper.worker_server.wire import FlightRecord, Identity, Process, StateReport, StepState

ATOMS: Final = frozenset({type(None), bool, int, float, str})
_WIRE: Final = "lightkeeper.worker_server.wire"
OURS: Final = ("lightkeeper.monitor.", _WIRE)
_PREFIX: Final = "lightkeeper."
"""Not in a journal: there the modules are named as they have always been."""
_ENCODER: Final = Encoder()
APART: Final = uuid4().hex
"""Stands for the observations in the JSON of a tick; random, so that no rank can say it."""
_PIECE_BYTES: Final = 60_000
"""Longer texts have pages of their own, of which the allocator keeps some."""
_TAGS: Final[dict[type, str]] = {
    tuple: "t", list: "l", set: "s", frozenset: "z", deque: "q", dict: "d", Counter: "c",
}  # fmt: skip
_MADE: Final = {tag: kind for kind, tag in _TAGS.items()}
UNUSABLE: Final = (
    LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError,
)  # fmt: skip
"""Errors from well-formed JSON that is not ours."""


class MemoryFormatError(ValueError):
    """A value cannot be written, or another version wrote it; the message is one line."""


@dataclass(slots=True, eq=False)
class _Node:
    """A container or a mutable dataclass as it was when frozen; one for each dataclass object."""

    kind: type
    values: tuple[Any, ...] = ()


@cache
def names_of(kind: type[Any]) -> tuple[str, ...]:
    """The fields of one of our dataclasses, msgspec structs or named tuples; none for an enum.

    Raises:
        MemoryFormatError: it is none of these.
    """
    if kind.__module__.startswith(OURS):
        if issubclass(kind, Enum):
            return ()
        if issubclass(kind, Struct):
            return kind.__struct_fields__
        if _is_named_tuple(kind):
            return tuple(kind._fields)
        if is_dataclass(kind):
            return tuple(part.name for part in fields(kind))
    raise MemoryFormatError(f"{kind.__module__}.{kind.__qualname__} cannot be journalled")


@cache
def _values_of(kind: type) -> Callable[[Any], tuple[Any, ...]]:
    """Returns all fields of an object of this class at once."""
    names = names_of(kind)
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)


def _is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


@cache
def _is_frozen(kind: type[Any]) -> bool:
    """True if it is a named tuple, or a frozen dataclass or struct."""
    params = getattr(kind, "__dataclass_params__", None) or getattr(kind, "__struct_config__", None)
    return bool(params.frozen) if params is not None else _is_named_tuple(kind)


@cache
def _is_message(kind: type) -> bool:
    """True if msgspec writes and reads it whole: all of the wire but reports and identities, which
    occur in one tick after the other.
    """
    occur_again = (StateReport, Identity)
    return kind.__module__ == _WIRE and kind not in occur_again and not issubclass(kind, Enum)


def dumped(value: Any, *, odd: bool = False) -> bytes:
    """Compact JSON text of `value`, in which wire types and raw JSON are allowed. `odd`: it may
    hold infinite numbers.
    """
    if not odd:
        with suppress(UnicodeEncodeError):  # a lone surrogate in a sentence on a record from torch
            return _ENCODER.encode(value)
    builtins = to_builtins(value, enc_hook=lambda raw: json.loads(bytes(raw)))
    return json.dumps(builtins, separators=(",", ":")).encode()


def freeze(value: Any) -> Any:
    """A copy of `value` that later changes do not affect.

    Raises:
        MemoryFormatError: it holds something that `Writer` cannot write.
    """
    return _freeze(value, {})


def _freeze(value: Any, nodes: dict[int, _Node]) -> Any:
    kind = value.__class__
    if kind in ATOMS or kind is bytes or kind is KeeperConfig or isinstance(value, Enum):
        return value
    if kind is tuple:
        return _each(value, nodes)
    if kind in _TAGS:
        items = value
        if kind is dict or kind is Counter:
            items = chain.from_iterable(value.items())
        elif kind is deque:
            items = (value.maxlen, *value)
        elif kind is not list:
            items = sorted(value, key=repr)
        return _Node(kind, _each(items, nodes))
    if _is_frozen(kind):
        return value
    node = nodes.get(id(value))
    if node is None:
        node = nodes[id(value)] = _Node(kind)
        node.values = _each(_values_of(kind)(value), nodes)
    return node


def _each(values: Iterable[Any], nodes: dict[int, _Node]) -> tuple[Any, ...]:
    return tuple([_freeze(item, nodes) for item in values])


class Writer:
    """Turns values, frozen or about to be, into what msgspec can encode; one for each file."""

    def __init__(self, config: KeeperConfig) -> None:
        self._config = config
        self._classes: dict[type, int] = {}
        self._new: list[Any] = []
        self._count = self._referred = 0
        self._pieces: list[bytes] | None = None
        self._before: dict[int, tuple[int, Any]] = {}
        """id() -> number and object, which so stays alive, of the last value written."""
        self._now: dict[int, tuple[int, Any]] = {}

    def plain(self, value: Any, pieces: list[bytes] | None = None) -> dict[str, Any]:
        """The value, with the classes that no earlier one had: module, name, fields.

        Args:
            pieces: takes the text of a snapshot's observations, for which `APART` stands: the rows
                of 10,000 are 20 MB.

        Raises:
            MemoryFormatError: it holds something that cannot be written.
        """
        self._new, self._before, self._now, self._pieces = [], self._now, {}, pieces
        try:
            plain = {"value": self._plain(value), "classes": self._new}
        except MemoryFormatError:
            raise
        except UNUSABLE as exc:
            raise MemoryFormatError(f"cannot be journalled: {type(exc).__name__}: {exc}") from exc
        self._now.pop(id(value), None)  # a tick's reports are not kept until the next
        return plain

    def _number(self, kind: type) -> int:
        if kind not in self._classes:
            module = kind.__module__.removeprefix(_PREFIX)
            self._new.append([module, kind.__qualname__, names_of(kind)])
            self._classes[kind] = len(self._classes)
        return self._classes[kind]

    def _plain(self, value: Any) -> Any:  # noqa: PLR0911 - one type a line
        kind = value.__class__
        if kind in ATOMS:
            return value if kind is not float or isfinite(value) else ["f", str(value)]
        if kind is tuple:
            return self._tuple(value)
        if kind is _Node and value.kind in _TAGS:
            return [_TAGS[value.kind], *map(self._plain, value.values)]
        if kind is bytes:
            return ["b", b64encode(value).decode()]
        if kind is KeeperConfig:
            names = names_of(KeeperConfig)  # thresholds are scaled while the monitor doubts itself
            options = ((n, getattr(value, n)) for n in names)
            return ["k", {n: v for n, v in options if v != getattr(self._config, n)}]
        if isinstance(value, Enum):
            return ["e", self._number(kind), value.value]
        if _is_message(kind):
            return ["w", self._number(kind), _row(value)]
        if kind is _Node or _is_frozen(kind):
            return self._object(value)
        return self._plain(freeze(value))  # inside something frozen: nobody changes it

    def _object(self, value: Any) -> list[Any]:
        key = id(value)
        before = self._now.get(key) or self._before.get(key)
        if before is not None:
            self._now[key] = before
            ahead, self._referred = before[0] - self._referred, before[0]
            return ["r", ahead]
        self._now[key] = (self._count, value)
        self._count += 1
        kind = value.__class__
        if kind is StateReport:
            return ["o", *self._report(value)]
        if kind is _Node:
            return ["o", self._number(value.kind), *map(self._plain, value.values)]
        return ["o", self._number(kind), *map(self._plain, _values_of(kind)(value))]

    def _tuple(self, value: tuple[Any, ...]) -> list[Any] | str:
        pieces = self._pieces
        if pieces is None or not value or value[0].__class__ is not Observation:
            return ["t", *map(self._plain, value)]
        text = bytearray(b'["t"')
        for seen in value:
            text += b","
            row, end = self._seen(seen), len(text)
            try:
                _ENCODER.encode_into(row, text, end)
            except UnicodeEncodeError:
                text[end:] = dumped(row)
            if len(text) > _PIECE_BYTES:
                pieces.append(bytes(text))
                text.clear()
        pieces.append(bytes(text) + b"]")
        return APART

    def _seen(self, seen: Observation) -> list[Any]:
        """In a snapshot: it and its report occur nowhere else, so they need no number."""
        report = seen.outcome
        if report.__class__ is not StateReport:
            return self._object(seen)
        kind = self._classes.get(Observation) or self._number(Observation)
        identity = self._object(seen.identity)  # in the order in which they are read
        return [
            "n",
            kind,
            identity,
            seen.url,
            ["n", *self._report(report)],
            seen.round_trip_s,
            seen.bringer,
            seen.trained_as,
        ]

    def _report(self, report: StateReport) -> list[Any]:
        """Nothing in it but its identity occurs again."""
        kind = self._classes.get(StateReport) or self._number(StateReport)
        identity, process, step, *rest = structs.astuple(report)
        step = step and structs.astuple(step)
        return [kind, self._object(identity), structs.astuple(process), step, *rest]


def _row(message: Any) -> Any:
    """A message as msgspec writes it. In a flight record is torch's own: whatever JSON can spell,
    NaN and numbers of any size too, so the standard library writes that.
    """
    if isinstance(message, FlightRecord):
        return Raw(json.dumps(to_builtins(message)).encode())
    return structs.astuple(message) if isinstance(message, Struct) else message


# -- read --------------------------------------------------------------------------------------


def _class(module: str, name: str, names: list[str]) -> type:
    """One of our loaded classes; a name in a file never causes an import."""
    whole = _PREFIX + module
    kind = getattr(sys.modules.get(whole) if whole.startswith(OURS) else None, name, None)
    if not isinstance(kind, type) or kind.__module__ != whole:
        raise MemoryFormatError(f"there is no {module}.{name} here: another version wrote this")
    if kind is not FlightRecord and list(names_of(kind)) != names:  # it is written by name
        raise MemoryFormatError(
            f"{module}.{name} has other fields here: another version wrote this"
        )
    return kind


class Reader:
    """Reads what a `Writer` wrote, in the same order; `config` stands for the writer's."""

    def __init__(self, config: KeeperConfig) -> None:
        self._config = config
        self._classes: list[type] = []
        self._count = self._referred = 0
        self._before: dict[int, Any] = {}
        self._now: dict[int, Any] = {}

    def read(self, data: Any) -> Any:
        """The value that was written; `data` is the parsed JSON.

        Raises:
            MemoryFormatError: no `Writer` wrote it, or its version's classes have other fields.
        """
        self._before, self._now = self._now, {}
        try:
            self._classes += [_class(*row) for row in data["classes"]]
            return self._value(data["value"])
        except MemoryFormatError:
            raise
        except UNUSABLE as exc:
            raise MemoryFormatError(f"not of a journal: {type(exc).__name__}: {exc}") from exc

    def _value(self, data: Any) -> Any:  # noqa: PLR0911 - one tag a line
        if data.__class__ in ATOMS:
            return data
        tag = data[0]
        match tag:
            case "t" | "l" | "s" | "z":
                return _MADE[tag](map(self._value, data[1:]))
            case "q":
                return deque(map(self._value, data[2:]), maxlen=data[1])
            case "d" | "c":
                items = map(self._value, data[1:])
                return _MADE[tag](dict(zip(items, items, strict=True)))
            case "o" | "n" | "r":
                return self._object(data)
            case "w":
                return _message(self._classes[data[1]], data[2])
            case "e":
                return self._classes[data[1]](data[2])
            case "f" | "b":
                return float(data[1]) if tag == "f" else b64decode(data[1])
            case "k":
                return replace(self._config, **data[1]) if data[1] else self._config
            case _:
                raise MemoryFormatError(f"unknown tag {tag!r}")

    def _object(self, data: Any) -> Any:
        tag, number, *values = data
        if tag == "r":
            number = self._referred = self._referred + number
            value = self._now[number] if number in self._now else self._before[number]
            self._now[number] = value
            return value
        kind: Any = self._classes[number]
        names, number = names_of(kind), self._count if tag == "o" else -1
        self._count += tag == "o"
        if kind is StateReport:
            identity, process, step, *rest = values
            step = step and _message(StepState, step)
            row = [self._value(identity), _message(Process, process), step, *rest]
            self._now[number] = convert(dict(zip(names, row, strict=True)), kind, str_keys=True)
            return self._now[number]
        if issubclass(kind, Struct | tuple):  # they are complete when made: nothing refers back
            parts = dict(zip(names, map(self._value, values), strict=True))
            self._now[number] = kind(**parts)
            return self._now[number]
        self._now[number] = instance = object.__new__(kind)
        for name, value in zip(names, values, strict=True):
            object.__setattr__(instance, name, self._value(value))
        return instance


def _message(kind: type, row: Any) -> Any:
    if issubclass(kind, Struct) and not kind.__struct_config__.array_like:
        row = dict(zip(names_of(kind), row, strict=True))
    return convert(row, kind, str_keys=True)
