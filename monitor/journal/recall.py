"""The inverse of `memory`: a pipeline's memory from plain JSON. Pure."""

from __future__ import annotations

import json
import sys
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from typing import Any

from monitor.config import KeeperConfig
from monitor.journal.memory import ATOMS, OURS, MemoryFormatError, names_of


def read(data: Any, config: KeeperConfig) -> Any:
    """What was written, thawed; `data` is the parsed JSON.

    Raises:
        MemoryFormatError: not written by `write`, or by a version whose classes have other fields.
    """
    try:
        return _Reader([_class(*one) for one in data["classes"]], config).read(data["value"])
    except MemoryFormatError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as exc:
        raise MemoryFormatError(f"no memory of a pipeline: {type(exc).__name__}: {exc}") from exc


def _class(module: str, name: str, told: list[str]) -> type:
    """A class of ours that is loaded; nothing is imported because a file names it."""
    loaded = sys.modules.get(module) if module.startswith(OURS) else None
    kind = getattr(loaded, name, None)
    if not isinstance(kind, type) or kind.__module__ != module:
        raise MemoryFormatError(f"there is no {module}.{name} here: another version wrote this")
    if not issubclass(kind, Enum) and list(names_of(kind)) != told:
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
        items = [self.read(one) for one in data[1:]]
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
        made: Any = object.__new__(kind)
        self._objects.append(made)
        for name, value in zip(names, values, strict=True):
            object.__setattr__(made, name, self.read(value))
        return made


def as_mapping(value: Any) -> Mapping[str, Any]:
    """`value`, which has to be a dict by names.

    Raises:
        MemoryFormatError: it is not.
    """
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise MemoryFormatError("no memory of a pipeline: not a dict by names")
    return value


def parsed(text: Any) -> Any:
    """What a text of `write` holds.

    Raises:
        MemoryFormatError: it is no JSON.
    """
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError) as exc:
        raise MemoryFormatError(f"no memory of a pipeline: {exc}") from exc
