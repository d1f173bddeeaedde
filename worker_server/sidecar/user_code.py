"""Whose code a call is, and the one line of a stack that says most: the innermost of the user's.

Paths are whole (a traceback, py-spy's JSON) or below an entry of sys.path (the beat's note).
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from worker_server import wire

_PARTS = frozenset({"torch", "torchft", "worker_server"})
"""What training is made of: its frames are never the answer to where a program stands."""
_INSTALLED = ("/site-packages/", "/dist-packages/")
_TYPED = frozenset({"<string>", "<stdin>"})
"""`python -c` and the like; other names in brackets are of code that a program generated."""


class Call(NamedTuple):
    """One frame of a stack."""

    function: str
    path: str
    line: int


class Origin(IntEnum):
    """Whose a file is; the lower, the more it says."""

    USER = 0
    INSTALLED = 1  # a package: a training framework, perhaps
    MACHINERY = 2  # the standard library, torch, torchft, ours


@lru_cache(4096)
def origin(path: str) -> Origin:
    """Whose this file is."""
    if path.startswith("<"):
        return Origin.USER if path in _TYPED else Origin.MACHINERY
    for mark in _INSTALLED:
        before, _, below = path.rpartition(mark)
        if before:
            machinery = below.partition("/")[0] in _PARTS
            return Origin.MACHINERY if machinery else Origin.INSTALLED
    if os.path.isabs(path):
        ours = path.startswith(_roots()) or "/torchinductor_" in path
        return Origin.MACHINERY if ours else Origin.USER
    top = path.partition("/")[0].removesuffix(".py")
    if top in _PARTS or top in sys.stdlib_module_names:
        return Origin.MACHINERY
    installed = (sysconfig.get_path(name) for name in ("purelib", "platlib"))
    return Origin.INSTALLED if any(Path(i, path).exists() for i in installed) else Origin.USER


@lru_cache(1)
def _roots() -> tuple[str, ...]:
    paths = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    # in a virtual environment both are those of the interpreter that it was made of
    paths |= {str(Path(__file__).parents[1]), os.path.dirname(os.path.realpath(os.__file__))}
    return tuple(f"{path}/" for path in sorted(paths))


@lru_cache(4096)
def short(path: str) -> str:
    """A path below its entry of sys.path, as far as that is one that is installed."""
    for mark in _INSTALLED:
        before, _, below = path.rpartition(mark)
        if before:
            return below
    root = next((root for root in _roots() if path.startswith(root)), "")
    return path.removeprefix(root)


def innermost(calls: Sequence[Call]) -> int | None:
    """Which of these calls, newest first, is the innermost of the user's code.

    Where none is the user's, the innermost of an installed package, else of all.
    """
    if not calls:
        return None
    return min(range(len(calls)), key=lambda n: (origin(calls[n].path), n))


def frame_of(calls: Sequence[Call], index: int) -> wire.Frame:
    """A call as it is told: a lambda or a generator by the function that it stands in."""
    call = calls[index]
    name = _told(call.function)
    if name.startswith("<") and name != "<module>":
        outer = (_told(c.function) for c in calls[index + 1 :] if c.path == call.path)
        name = next((known for known in outer if not known.startswith("<")), name)
    return wire.Frame(name, call.path.rpartition("/")[2], call.line)


def _told(function: str) -> str:
    """`Loader.rows.<locals>.<genexpr>` is `Loader.rows`, `main.<locals>.helper` is `helper`."""
    parts = function.split(".<locals>.")
    while len(parts) > 1 and parts[-1].startswith("<"):
        parts.pop()
    return parts[-1]
