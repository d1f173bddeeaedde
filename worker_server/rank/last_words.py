"""What a rank that ends badly leaves behind: its exception, and stacks at a fatal signal.

Nothing here may change what the job prints or returns:

- The main thread's exception is read from `sys.last_value`, which the interpreter sets before it
  prints: `sys.excepthook` stays as it is, even if it is replaced after the attach, and a hook that
  fails prints no frame of ours. Others set it too and continue (each failing cell of a notebook,
  `python -i`, C code that prints an exception): that is no end, see `_is_the_end`.
- `threading.excepthook` is chained, because threads have no such variable; the previous hook is
  always called.
- faulthandler is enabled only if nobody enabled it, into a file of ours; it then lets the signal do
  what it would have done.
- The kernel drops SIGTERM for process 1 of a container without a handler, which Kubernetes then
  kills after its grace. There a handler of faulthandler's stands in: one in C, which works while
  the main thread waits in C++, and which no table of Python's shows. The process ends as by SIGTERM
  elsewhere. A handler that the program sets replaces it.
"""

from __future__ import annotations

import _thread
import contextlib
import faulthandler
import fcntl
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from time import monotonic, thread_time
from typing import Any, NamedTuple

from lightkeeper.worker_server.rank.page import layout
from lightkeeper.worker_server.rank.page.writer import PageWriter

# The Python stacks of all threads, as the beat writes them into the page.
#
# They are what remains when nobody can look from outside: py-spy is missing, ptrace is forbidden,
# or the process is dead. faulthandler writes them in C, in one go with the GIL held. A walk over
# `sys._current_frames()` keeps frames of threads that run meanwhile; one such walk ended its
# rank with a segmentation fault in `frame.f_back` (Python 3.11.7, in the campaign).
#
# Python 3.11 lists a thread before it is complete. One that C++ starts (a callback of gloo or
# autograd) and the kernel suspends in that moment ends the walk, and the rank, by SIGSEGV: seen
# once in weeks, within seconds in tests/worker_server/test_thread_race.py. 3.12 completes it first.
# So on 3.11 stacks are taken only of a rank that stands still, which starts no such threads.

_MAX_FRAMES = 48
"""Per thread, the newest ones: a recursion must not crowd out the other threads."""
_MAX_THREADS = 64
DEEPEST = 100
"""Calls per thread, and threads, that faulthandler writes; the newest."""
_MAX_BYTES = 4 * 2**20
_THREAD = re.compile(r"(?:Current t|T)hread 0x([0-9a-f]+)\b.*\(most recent call first\):")
_CALL = re.compile(r'  File "(.*)", line (\S+) in (.*)')
_ESCAPED = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")
_LISTS_UNFINISHED_THREADS = sys.version_info < (3, 12)
_STILL_S = 2.0
"""Without progress for so long, a rank stands still."""
_DUTY = 0.001
"""Share of a core that the beat's stacks may cost: faulthandler writes each word separately, 0.2 ms
for a dozen threads, 20 ms for a hundred deep ones."""


class _Call(NamedTuple):
    """One frame; newest first in a thread."""

    file: str
    line: str
    name: str


def stacks() -> dict[int, list[_Call]]:
    """By thread, as `threading.get_ident` names it; at most `DEEPEST` of each.

    Raises:
        OSError: no descriptor or memory is left to write them into.
    """
    fd = os.memfd_create("lightkeeper-stacks")
    try:
        faulthandler.dump_traceback(file=fd, all_threads=True)
        text = os.pread(fd, _MAX_BYTES, 0).decode("ascii", "replace")
    finally:
        os.close(fd)
    return dict(_threads(text))


def _threads(text: str) -> Iterator[tuple[int, list[_Call]]]:
    calls: list[_Call] = []
    for line in text.splitlines():
        if (head := _THREAD.match(line)) is not None:
            calls = []
            yield int(head[1], 16), calls
        elif (call := _CALL.fullmatch(line)) is not None:
            calls.append(_Call(_plain(call[1]), call[2], _plain(call[3])))


def _plain(text: str) -> str:
    """Undo faulthandler's escapes of non-ASCII text."""
    return _ESCAPED.sub(lambda escape: chr(int(escape[1] or escape[2] or escape[3], 16)), text)


def stacks_text() -> str:
    """Stacks of all threads but the caller's, newest call first: first of the one that trains.

    Written as py-spy writes them: `Thread 42: "MainThread"`, then `    function (file:line)`.
    """
    names = {thread.ident: thread for thread in threading.enumerate()}
    first = (_page and _page.trains, threading.main_thread().ident)
    calls_by_thread = stacks()
    calls_by_thread.pop(threading.get_ident(), None)
    lines: list[str] = []
    order = sorted(calls_by_thread, key=lambda ident: (*(ident != at for at in first), ident))
    for ident in order[:_MAX_THREADS]:
        thread = names.get(ident)
        if thread is None:
            lines.append(f"Thread {ident:#x}: (not started by Python)")
        else:
            lines.append(f'Thread {thread.native_id}: "{thread.name}"')
        calls = calls_by_thread[ident]
        lines += [
            f"    {call.name} ({_shorten(call.file)}:{call.line})" for call in calls[:_MAX_FRAMES]
        ]
        if calls[_MAX_FRAMES:]:
            lines.append("    ... older calls")
    return "\n".join(lines) + "\n"


def keeping(write: Callable[[str], None], progress: Callable[[], object]) -> Callable[[], None]:
    """A chore of the beat that writes the stacks, less often where they cost much.

    Args:
        write: keeps the text.
        progress: something that changes whenever the rank gets on.
    """
    due_s, last, since_s = 0.0, progress(), monotonic()

    def keep() -> None:
        nonlocal due_s, last, since_s
        now_s, now = monotonic(), progress()
        if now != last:
            last, since_s = now, now_s
        if now_s < due_s or (_LISTS_UNFINISHED_THREADS and now_s - since_s < _STILL_S):
            return
        began_s = thread_time()
        write(stacks_text())
        due_s = monotonic() + (thread_time() - began_s) / _DUTY - 1.0  # a beat comes each second

    return keep


@lru_cache(maxsize=4096)
def _shorten(path: str) -> str:
    """The path below its entry of sys.path, as py-spy shows it."""
    roots = [root for root in sys.path if root and path.startswith(root.rstrip("/") + "/")]
    return path[len(max(roots, key=len).rstrip("/")) + 1 :] if roots else path


_MAX_TRACEBACK = 7000
_MAX_MESSAGE = 500
_HIGH_FD = 400
"""Programs that close or reuse low descriptors by number must not hit ours."""

_page: PageWriter | None = None
_looked_at: tuple[int, int] | None = None
"""Ids of the exception judged last; keeping it would keep the tensors of its frames."""
_ended = False
"""True if the main thread's end is on the page: a later thread's must not replace it."""
_hooked = False
_crash_fd: int | None = None
_crash_file: os.stat_result | None = None
"""After an `os.closerange` the number may be another file's."""
_stands_in = False
"""True if SIGTERM has a handler of ours."""
_kept: str | None = None
"""The first error that TorchFT hid from the program since it last asked for a quorum."""


def install(page: PageWriter, crash_file: Path) -> None:
    """Leave notes in this page, and stacks at a fatal signal in this file."""
    global _page, _hooked  # noqa: PLW0603  hooks are the process's
    _page = page
    if not _hooked:
        _hooked = True
        _chain_thread_hook()
    _arm(crash_file)


def note_uncaught() -> None:
    """Note the main thread's exception, once the interpreter has given up on it."""
    global _looked_at, _ended  # noqa: PLW0603
    value = getattr(sys, "last_exc", None)
    if value is None:
        value = getattr(sys, "last_value", None)
    if not isinstance(value, BaseException):
        return
    which = id(value), id(value.__traceback__)
    if which == _looked_at:
        return
    _looked_at = which
    if _is_the_end(value):
        _ended = True
        _note(layout.MAIN_THREAD, value)


def _is_the_end(value: BaseException) -> bool:
    """True if the interpreter itself gave up on this exception and is about to exit.

    Then `__main__` no longer runs. An interactive interpreter continues, or ends right after its
    last error: there the exception must have left the main module of a file, and nothing else.
    """
    if sys.flags.interactive or sys.flags.inspect or _main_module_runs():
        return False
    if not hasattr(sys, "ps1"):
        return True
    if value.__traceback__ is None:
        return False
    outermost = value.__traceback__.tb_frame
    code = outermost.f_code
    return outermost.f_back is None and not code.co_filename.startswith("<")


def _main_module_runs() -> bool:
    """True if the main thread still runs what `python` was started for: its outermost call."""
    calls = stacks().get(threading.main_thread().ident or 0, [])
    return bool(calls) and (
        len(calls) >= DEEPEST or calls[-1].name in ("<module>", "_run_module_as_main")
    )


def stand_in(part: Callable[[], None]) -> None:
    """At SIGTERM call this, and end; for process 1 alone, unless the program has a handler."""
    global _stands_in  # noqa: PLW0603
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return
    heard, says = (move_high(end) for end in os.pipe2(os.O_CLOEXEC))
    faulthandler.register(signal.SIGTERM, file=says, all_threads=False)
    _stands_in = True

    def end() -> None:
        os.read(heard, 1)
        with contextlib.suppress(Exception):
            part()
        os._exit(128 + signal.SIGTERM)

    masks: dict[int, set[int | signal.Signals]] = {}

    def block() -> None:
        """Before a fork: what the child gets before the handler is gone would end this process."""
        masks[threading.get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.pop(threading.get_ident()))

    def unblock_child() -> None:
        try:
            stand_down()
        finally:
            unblock()

    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=unblock_child)
    _thread.start_new_thread(end, ())  # `threading` does not know it, as the beat


def stand_down() -> None:
    """Take the handler back, if it is still ours: at the end, and in a forked child."""
    if _stands_in and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        faulthandler.unregister(signal.SIGTERM)


def forget() -> None:
    """In a forked child, which is not the rank: do not report its end."""
    global _page  # noqa: PLW0603
    _page = None
    if _crash_fd is not None:
        with contextlib.suppress(OSError):
            _point(_crash_fd, Path(os.devnull))


def keep_hidden_error(error: BaseException | None) -> None:
    """TorchFT hides this from the program, which may die of its effects; None: that is over."""
    global _kept  # noqa: PLW0603
    if error is None:
        _kept = None
    elif _kept is None:
        _kept = _summary(error)
        with contextlib.suppress(Exception):  # as below
            if _page is not None:
                _page.write_note(layout.NOTE_HIDDEN, _traceback(error))


def _summary(value: BaseException) -> str:
    summary = traceback.format_exception_only(value)[-1].strip().partition("\n")[0]
    return summary[:_MAX_MESSAGE]


def _raised_by_torchft(value: BaseException) -> bool:
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(value.__traceback__)]
    return bool(files) and Path(files[-1]).parent.name == "torchft"


def _note(thread: str, value: BaseException) -> None:
    page = _page
    if page is None:
        return
    # never let an exception that cannot be printed end the beat, or the original hook
    with contextlib.suppress(Exception):
        summary = _kept if _kept and _raised_by_torchft(value) else _summary(value)
        page.write_note(layout.NOTE_EXCEPTION, f"{thread}\n{summary}\n{_traceback(value)}")


def _traceback(value: BaseException) -> str:
    text = "".join(_qualified(value).format())
    if len(text) > _MAX_TRACEBACK:  # the end has the innermost call and the message
        text = "... cut\n" + text[-_MAX_TRACEBACK:]
    return text


def _qualified(value: BaseException) -> traceback.TracebackException:
    """Its traceback, with classes: `Deadlock.log_step`, where the interpreter prints `log_step`."""
    outermost = traceback.TracebackException.from_exception(value)
    pairs: list[tuple[Any, Any]] = [(outermost, value)]
    while pairs:
        report, exc = pairs.pop()
        if report is None or exc is None:
            continue
        frames = traceback.walk_tb(exc.__traceback__)
        for line, (frame, _) in zip(report.stack, frames, strict=False):
            line.name = frame.f_code.co_qualname
        pairs += [(report.__cause__, exc.__cause__), (report.__context__, exc.__context__)]
    return outermost


def _chain_thread_hook() -> None:
    original = threading.excepthook

    def note_and_go_on(args: Any, /) -> None:
        if args.exc_value is not None and args.exc_type is not SystemExit and not _ended:
            name = args.thread.name if args.thread is not None else "?"
            _note(f'the thread "{name}"', args.exc_value)
        original(args)

    threading.excepthook = note_and_go_on


def _arm(path: Path) -> None:
    """Have stacks written at SIGSEGV, SIGABRT, SIGBUS, SIGFPE and SIGILL."""
    global _crash_fd, _crash_file  # noqa: PLW0603
    if _crash_fd is not None:  # a forked child that attaches as its own rank
        _point(_crash_fd, path)
        return
    if faulthandler.is_enabled():
        return
    _crash_fd = move_high(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_APPEND, 0o600)
    )
    _crash_file = os.fstat(_crash_fd)
    faulthandler.enable(file=_crash_fd, all_threads=True)


def move_high(low: int) -> int:
    """The descriptor under a high number, and never under that of a standard stream."""
    try:
        return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _HIGH_FD)
    except OSError:  # a low limit of open files
        return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(low)


def _point(fd: int, path: Path) -> None:
    """Point this descriptor, which faulthandler may hold, to another file, if it is still ours."""
    global _crash_file  # noqa: PLW0603
    if _crash_file is not None and not os.path.samestat(os.fstat(fd), _crash_file):
        return
    new = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_APPEND, 0o600)
    try:
        os.dup2(new, fd, inheritable=False)
        _crash_file = os.fstat(new)
    finally:
        os.close(new)
