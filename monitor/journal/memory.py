"""The pipeline's memory as plain JSON: no pickle, so reading it runs no code. Pure.

Theory of operation. A journal file in the middle of a run begins with everything that the pipeline
remembers. `freeze` runs between two ticks and must be quick: it copies what changes (lists, dicts,
deques, sets, mutable dataclasses) and keeps what is frozen. `write` may be slow: it runs in another
thread. An object that occurs twice is written once and then referred to by number, so that `read`
restores the same graph. `read` makes only dataclasses, structs, named tuples and enums of this
project that are already loaded, and calls no code of theirs but a struct's own checks; a class with
other fields than those written is an error. The configuration is not written: the reader supplies
it, since a what-if replay has another one.
"""

from __future__ import annotations

import json
import sys
from base64 import b64decode, b64encode
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from itertools import chain
from operator import attrgetter
from typing import Any, Final

from msgspec import Struct

from monitor.model.config import KeeperConfig

# -- memory ------------------------------------------------------------------------------------

ATOMS: Final = frozenset({type(None), bool, int, float, str})
OURS: Final = ("monitor.", "worker_server.wire")
_SETS: Final = {set: "s", frozenset: "z"}
_UNUSABLE: Final = (LookupError, TypeError, ValueError, AttributeError, RecursionError)
_dumps: Final = json.JSONEncoder(separators=(",", ":")).encode


class MemoryFormatError(ValueError):
    """A value cannot be written, or another version wrote it; the message is one line."""


@dataclass(frozen=True, slots=True)
class _Items:
    """A container as it was when frozen."""

    tag: str
    values: tuple[Any, ...]


class _Node:
    """A mutable dataclass as it was when frozen; one for each object."""

    __slots__ = ("kind", "values")

    def __init__(self, kind: type) -> None:
        self.kind = kind
        self.values: tuple[Any, ...] = ()


class _Layouts(dict[type, Any]):
    """Class -> getter of all its fields at once, made on first use."""

    def __missing__(self, kind: type) -> Any:
        names = names_of(kind)
        if not kind.__module__.startswith(OURS):
            raise MemoryFormatError(f"{kind.__module__}.{kind.__qualname__} cannot be journalled")
        if len(names) == 1:
            single = attrgetter(names[0])
            self[kind] = lambda value: (single(value),)
        elif names:
            self[kind] = attrgetter(*names)
        else:
            self[kind] = lambda _: ()
        return self[kind]


_layouts: Final = _Layouts()


def names_of(kind: type[Any]) -> tuple[str, ...]:
    """The fields of one of our dataclasses, msgspec structs or named tuples.

    Raises:
        MemoryFormatError: it is none of these.
    """
    if issubclass(kind, Struct):
        return kind.__struct_fields__
    if _is_named_tuple(kind):
        names: tuple[str, ...] = kind._fields
        return names
    if not is_dataclass(kind):
        raise MemoryFormatError(f"{kind.__module__}.{kind.__qualname__} cannot be journalled")
    return tuple(part.name for part in fields(kind))


def _is_frozen(kind: type[Any]) -> bool:
    """Whether it is a named tuple, or a frozen dataclass or struct."""
    params = getattr(kind, "__dataclass_params__", None) or getattr(kind, "__struct_config__", None)
    return bool(params.frozen) if params is not None else _is_named_tuple(kind)


def _is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def freeze(value: Any) -> Any:
    """A copy of `value` that later changes do not affect.

    Raises:
        MemoryFormatError: it holds something that `write` cannot write.
    """
    return _freeze(value, {})


def _freeze(value: Any, nodes: dict[int, _Node]) -> Any:  # noqa: PLR0911 - one type a line
    kind = value.__class__
    if kind in ATOMS or kind is bytes or isinstance(value, Enum) or kind is KeeperConfig:
        return value
    if kind is tuple:
        return _each(value, nodes)
    if kind is dict or kind is Counter:
        flat = chain.from_iterable(value.items())
        return _Items("d" if kind is dict else "c", _each(flat, nodes))
    if kind is list:
        return _Items("l", _each(value, nodes))
    if kind is deque:
        return _Items("q", (value.maxlen, *_each(value, nodes)))
    if kind in _SETS:
        return _Items(_SETS[kind], _each(sorted(value, key=repr), nodes))
    if _is_frozen(kind):
        return value
    node = nodes.get(id(value))
    if node is None:
        node = nodes[id(value)] = _Node(kind)
        node.values = _each(_layouts[kind](value), nodes)
    return node


def _each(values: Iterable[Any], nodes: dict[int, _Node]) -> tuple[Any, ...]:
    return tuple([_freeze(item, nodes) for item in values])


class Writer:
    """Writes frozen values as JSON; all values of one writer share classes and object numbers."""

    def __init__(self, config: KeeperConfig) -> None:
        self._config = config
        self._classes: dict[type, int] = {}
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []  # numbers are keyed by id(): the objects must stay alive
        self._out: list[str] = []

    def text(self, value: Any) -> str:
        self._out = []
        self._write(value)
        return "".join(self._out)

    def classes(self) -> str:
        """JSON text of the classes met so far: module, name, fields."""
        rows = [
            [kind.__module__, kind.__qualname__, [] if issubclass(kind, Enum) else names_of(kind)]
            for kind in self._classes
        ]
        return _dumps(rows)

    def _number(self, kind: type) -> int:
        if not kind.__module__.startswith(OURS):
            raise MemoryFormatError(f"{kind.__module__}.{kind.__qualname__} cannot be journalled")
        return self._classes.setdefault(kind, len(self._classes))

    def _write(self, value: Any) -> None:
        kind = value.__class__
        if kind in ATOMS:
            self._out.append(_dumps(value))
        elif kind is tuple:
            self._listed("t", value)
        elif kind is _Items:
            self._listed(value.tag, value.values)
        elif kind is bytes:
            self._out.append(f'["b","{b64encode(value).decode()}"]')
        elif kind is KeeperConfig:
            self._out.append(_dumps(["k", _apart(self._config, value)]))
        elif isinstance(value, Enum):
            self._out.append(_dumps(["e", self._number(kind), value.value]))
        elif kind is _Node or _is_frozen(kind):
            self._object(value)
        else:  # inside something frozen: nobody changes it, so it is copied only now
            self._write(freeze(value))

    def _listed(self, tag: str, values: Iterable[Any]) -> None:
        out = self._out
        out.append(f'["{tag}"')
        for item in values:
            out.append(",")
            self._write(item)
        out.append("]")

    def _object(self, value: Any) -> None:
        number = self._numbers.get(id(value))
        if number is not None:
            self._out.append(f'["r",{number}]')
            return
        self._numbers[id(value)] = len(self._numbers)
        self._kept.append(value)
        kind = value.kind if value.__class__ is _Node else value.__class__
        row = value.values if value.__class__ is _Node else _layouts[kind](value)
        head = f'["o",{self._number(kind)}'
        if row and ATOMS.issuperset(map(type, row)):  # by far the most common
            self._out.append(f"{head},{_dumps(row)[1:]}")
            return
        self._out.append(head)
        for item in row:
            self._out.append(",")
            self._write(item)
        self._out.append("]")


def _apart(config: KeeperConfig, other: KeeperConfig) -> dict[str, Any]:
    """Options in which `other` differs: thresholds are scaled while the monitor doubts itself."""
    names = names_of(KeeperConfig)
    return {n: getattr(other, n) for n in names if getattr(other, n) != getattr(config, n)}


def write(frozen: Any, config: KeeperConfig) -> str:
    """JSON text of what `freeze` returned; `config`, the one in force, is not written.

    Raises:
        MemoryFormatError: it holds something that cannot be written.
    """
    writer = Writer(config)
    try:
        body = writer.text(frozen)
    except MemoryFormatError:
        raise
    except _UNUSABLE as exc:
        raise MemoryFormatError(f"cannot be journalled: {type(exc).__name__}: {exc}") from exc
    return f'{{"classes":{writer.classes()},"value":{body}}}'


# -- read --------------------------------------------------------------------------------------


def read(data: Any, config: KeeperConfig) -> Any:
    """The value that was written; `data` is the parsed JSON.

    Raises:
        MemoryFormatError: `write` did not write it, or its version's classes have other fields.
    """
    try:
        return _Reader([_class(*row) for row in data["classes"]], config).read(data["value"])
    except MemoryFormatError:
        raise
    except _UNUSABLE as exc:
        raise MemoryFormatError(f"no memory of a pipeline: {type(exc).__name__}: {exc}") from exc


def _class(module: str, name: str, names: list[str]) -> type:
    """One of our loaded classes; a name in a file never causes an import."""
    loaded = sys.modules.get(module) if module.startswith(OURS) else None
    kind = getattr(loaded, name, None)
    if not isinstance(kind, type) or kind.__module__ != module:
        raise MemoryFormatError(f"there is no {module}.{name} here: another version wrote this")
    if not issubclass(kind, Enum) and list(names_of(kind)) != names:
        raise MemoryFormatError(
            f"{module}.{name} has other fields here: another version wrote this"
        )
    return kind


class _Reader:
    def __init__(self, classes: list[type], config: KeeperConfig) -> None:
        self._classes = classes
        self._config = config
        self._objects: list[Any] = []

    def read(self, data: Any) -> Any:  # noqa: PLR0911 - one tag a line
        if data.__class__ in ATOMS:
            return data
        tag = data[0]
        match tag:
            case "t" | "l" | "s" | "z" | "q":
                return self._container(tag, data)
            case "d" | "c":
                keys, values = data[1::2], data[2::2]
                pairs = ((self.read(k), self.read(v)) for k, v in zip(keys, values, strict=True))
                return dict(pairs) if tag == "d" else Counter(dict(pairs))
            case "b":
                return b64decode(data[1], validate=True)
            case "e":
                return self._classes[data[1]](data[2])
            case "k":
                return replace(self._config, **data[1]) if data[1] else self._config
            case "r":
                return self._objects[data[1]]
            case "o":
                return self._object(self._classes[data[1]], data[2:])
            case _:
                raise MemoryFormatError(f"unknown tag {tag!r}")

    def _container(self, tag: str, data: list[Any]) -> Any:
        items = [self.read(item) for item in data[1:]]
        match tag:
            case "l":
                return items
            case "q":
                return deque(items[1:], maxlen=items[0])
            case "s":
                return set(items)
            case "z":
                return frozenset(items)
            case _:
                return tuple(items)

    def _object(self, kind: type, values: list[Any]) -> Any:
        names = names_of(kind)
        if len(names) != len(values):
            raise MemoryFormatError(
                f"{kind.__qualname__} has {len(names)} fields, {len(values)} given"
            )
        if issubclass(kind, Struct | tuple):  # they are complete when made: nothing refers back
            at = len(self._objects)
            self._objects.append(None)
            parts = map(self.read, values)
            made = tuple.__new__(kind, parts) if issubclass(kind, tuple) else kind(*parts)
            self._objects[at] = made
            return made
        instance: Any = object.__new__(kind)
        self._objects.append(instance)
        for name, value in zip(names, values, strict=True):
            object.__setattr__(instance, name, self.read(value))
        return instance
