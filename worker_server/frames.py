"""The Python stacks of all threads, as the beat writes them into the page.

They are what is left when nobody can look from outside: py-spy is missing, ptrace is forbidden,
or the process is dead. faulthandler writes them in C, in one go with the GIL held. A walk over
`sys._current_frames()` keeps frames of threads that go on meanwhile; one such walk ended its rank
with a segmentation fault in `frame.f_back` (Python 3.11.7, in the campaign).
"""

from __future__ import annotations

import faulthandler
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from time import monotonic, thread_time
from typing import NamedTuple

_MAX_FRAMES = 48
"""Of one thread, the newest ones: a recursion must not crowd out the other threads."""
_MAX_THREADS = 64
DEEPEST = 100
"""Calls of one thread, and threads, that faulthandler writes; the newest."""
_MAX_BYTES = 4 * 2**20
_THREAD = re.compile(r"(?:Current t|T)hread 0x([0-9a-f]+)\b.*\(most recent call first\):")
_CALL = re.compile(r'  File "(.*)", line (\S+) in (.*)')
_ESCAPED = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")
_DUTY = 0.001
"""Of a core that the beat's stacks may cost: faulthandler writes each word by itself, 0.2 ms for a
dozen threads, 20 ms for a hundred deep ones."""


class Call(NamedTuple):
    """One frame; newest first in a thread."""

    file: str
    line: str
    name: str


def stacks() -> dict[int, list[Call]]:
    """By thread, as `threading.get_ident` names it; at most `DEEPEST` of each.

    Raises:
        OSError: there is no descriptor or memory left to write them into.
    """
    fd = os.memfd_create("lightkeeper-stacks")
    try:
        faulthandler.dump_traceback(file=fd, all_threads=True)
        text = os.pread(fd, _MAX_BYTES, 0).decode("ascii", "replace")
    finally:
        os.close(fd)
    return dict(_threads(text))


def _threads(text: str) -> Iterator[tuple[int, list[Call]]]:
    calls: list[Call] = []
    for line in text.splitlines():
        if (head := _THREAD.match(line)) is not None:
            calls = []
            yield int(head[1], 16), calls
        elif (call := _CALL.fullmatch(line)) is not None:
            calls.append(Call(_plain(call[1]), call[2], _plain(call[3])))


def _plain(text: str) -> str:
    """Without faulthandler's escapes of what is not ASCII."""
    return _ESCAPED.sub(lambda found: chr(int(found[1] or found[2] or found[3], 16)), text)


def stacks_text() -> str:
    """Stacks of all threads but the caller's, main thread first, newest call first.

    Written as py-spy writes them: `Thread 42: "MainThread"`, then `    function (file:line)`.
    """
    names = {thread.ident: thread for thread in threading.enumerate()}
    main = threading.main_thread().ident
    found = stacks()
    found.pop(threading.get_ident(), None)
    lines: list[str] = []
    for ident in sorted(found, key=lambda ident: (ident != main, ident))[:_MAX_THREADS]:
        thread = names.get(ident)
        if thread is None:
            lines.append(f"Thread {ident:#x}: (not started by Python)")
        else:
            lines.append(f'Thread {thread.native_id}: "{thread.name}"')
        calls = found[ident]
        lines += [
            f"    {call.name} ({_shorten(call.file)}:{call.line})" for call in calls[:_MAX_FRAMES]
        ]
        if calls[_MAX_FRAMES:]:
            lines.append("    ... older calls")
    return "\n".join(lines) + "\n"


def keeping(write: Callable[[str], None]) -> Callable[[], None]:
    """A chore of the beat that hands the stacks on, less often where they cost much."""
    due_s = 0.0

    def keep() -> None:
        nonlocal due_s
        if monotonic() < due_s:
            return
        began_s = thread_time()
        write(stacks_text())
        due_s = monotonic() + (thread_time() - began_s) / _DUTY - 1.0  # a beat comes each second

    return keep


@lru_cache(maxsize=4096)
def _shorten(path: str) -> str:
    """The path below the entry of sys.path that it was imported from, as py-spy has it."""
    roots = [root for root in sys.path if root and path.startswith(root.rstrip("/") + "/")]
    return path[len(max(roots, key=len).rstrip("/")) + 1 :] if roots else path
