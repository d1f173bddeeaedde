"""The Python stacks of all threads, as the beat writes them into the page.

They are what is left when nobody can look from outside: py-spy is missing, ptrace is forbidden,
or the process is dead. Taken with the GIL held and without giving it up in between, so no other
Python thread runs meanwhile and no frame outlives its call because of us.
"""

from __future__ import annotations

import sys
import threading
from types import FrameType

_MAX_FRAMES = 48
"""Of one thread, the newest ones: a recursion must not crowd out the other threads."""
_MAX_THREADS = 64
_MAX_NAMES = 4096
_short: dict[str, str] = {}


def stacks_text() -> str:
    """Stacks of all threads but the caller's, main thread first, newest call first.

    Written as py-spy writes them: `Thread 42: "MainThread"`, then `    function (file:line)`.
    """
    names = {thread.ident: thread for thread in threading.enumerate()}
    main = threading.main_thread().ident
    frames = sys._current_frames()
    frames.pop(threading.get_ident(), None)
    lines: list[str] = []
    for ident in sorted(frames, key=lambda ident: (ident != main, ident))[:_MAX_THREADS]:
        thread = names.get(ident)
        if thread is None:
            lines.append(f"Thread {ident:#x}: (not started by Python)")
        else:
            lines.append(f'Thread {thread.native_id}: "{thread.name}"')
        _add_frames(lines, frames[ident])
    if len(frames) > _MAX_THREADS:
        lines.append(f"... and {len(frames) - _MAX_THREADS} more threads")
    return "\n".join(lines) + "\n"


def _add_frames(lines: list[str], newest: FrameType) -> None:
    frame: FrameType | None = newest
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return
        code = frame.f_code
        file = _short.get(code.co_filename) or _shorten(code.co_filename)
        lines.append(f"    {code.co_qualname} ({file}:{frame.f_lineno})")
        frame = frame.f_back
    if frame is not None:
        lines.append("    ... older calls")


def _shorten(path: str) -> str:
    """The path below the entry of sys.path that it was imported from, as py-spy has it."""
    roots = [root for root in sys.path if root and path.startswith(root.rstrip("/") + "/")]
    short = path[len(max(roots, key=len).rstrip("/")) + 1 :] if roots else path
    if len(_short) >= _MAX_NAMES:
        _short.clear()  # code generated without end has file names without end
    _short[path] = short
    return short
