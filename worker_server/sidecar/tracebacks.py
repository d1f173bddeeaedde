"""Tracebacks as text: which exception was the last, and where it was raised. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from worker_server import wire
from worker_server.sidecar.user_code import Call, frame_of, innermost, origin

_RANK = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)
"""How torch.distributed begins the lines of an uncaught exception."""
_HEAD = re.compile(r"^.{0,40}Traceback \(most recent call last\)")
_FILE = re.compile(r'^\s+File "(.+)", line (\d+)(?:,? in (.+))?$')
_TERMINATE = re.compile(
    r"terminate called after throwing an instance of '([^']+)'\s+what\(\):\s*(.*)"
)
_FATAL = re.compile(r"^Fatal Python error: (.+)$", re.MULTILINE)
_CURRENT = re.compile(r"^Current thread .*:\n((?: .*\n?)*)", re.MULTILINE)
_LOADER_LOST = "exited unexpectedly"
_LOADER_KILLED = re.compile(r"DataLoader worker \(pid \d+\) is killed by signal: \w+")
"""The cause of what torch's DataLoader raises last, which names the process and not the signal."""


class Raised(NamedTuple):
    """An exception: its line, and the innermost place of the user's in its traceback."""

    exception: str
    frame: wire.Frame | None
    lines_after: int = 0
    """How much was written since."""


class _Block(NamedTuple):
    exception: str
    calls: list[Call]
    end: int


def last_raised(text: str) -> Raised | None:
    """The last exception in a text that may hold several: a chain of causes, or one that a worker
    process sent ("Original Traceback"). None: there is no whole traceback.
    """
    text = _RANK.sub("", text)
    lines = text.splitlines()
    blocks = list(_blocks(lines))
    if not blocks:
        return None
    last = blocks[-1]
    exception = last.exception
    if _LOADER_LOST in exception and (killed := _LOADER_KILLED.search(text)):
        exception = f"{exception.partition(':')[0]}: {killed[0]}"
    best = min(reversed(blocks), key=_weight)
    return Raised(_line(exception), _frame(best.calls), len(lines) - last.end)


def _blocks(lines: list[str]) -> Iterator[_Block]:
    calls: list[Call] | None = None
    for number, line in enumerate(lines, 1):
        if _HEAD.match(line):
            calls = []
        elif calls is not None and (at := _FILE.match(line)):
            calls.insert(0, Call(at[3] or "<module>", at[1], int(at[2])))
        elif calls is not None and line and not line.startswith(" "):
            yield _Block(line, calls, number)
            calls = None


def _weight(block: _Block) -> int:
    index = innermost(block.calls)
    return 9 if index is None else origin(block.calls[index].path)


def terminated(text: str) -> str | None:
    """The C++ exception that ended a process, by what its runtime prints."""
    said = list(_TERMINATE.finditer(text))
    return _line(f"{said[-1][1]}: {said[-1][2]}") if said else None


def crashed(text: str) -> Raised | None:
    """The fatal error that faulthandler wrote, and where the thread stood that it came in."""
    fatal = _FATAL.search(text)
    if fatal is None:
        return None
    current = _CURRENT.search(text)
    places = (_FILE.match(line) for line in current[1].splitlines()) if current else ()
    calls = [Call(at[3] or "?", at[1], int(at[2])) for at in places if at]
    return Raised(_line(fatal[0]), _frame(calls))


def _frame(calls: list[Call]) -> wire.Frame | None:
    index = innermost(calls)
    return None if index is None else frame_of(calls, index)


def _line(text: str) -> str:
    return " ".join(text.split())[: wire.LINE_MAX_CHARS]
