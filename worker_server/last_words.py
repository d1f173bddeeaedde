"""What the rank leaves behind when it ends badly: the exception, and stacks at a fatal signal.

Nothing here may change what the job prints or returns:

- The main thread's exception is read from `sys.last_value`, which the interpreter sets before it
  prints: `sys.excepthook` stays whose it is, also when it is replaced after the attach, and a
  hook that fails prints no frame of ours. Others set it too and live on (each failing cell of a
  notebook, `python -i`, C code that prints an exception): that is no end, see `_is_the_end`.
- `threading.excepthook` is chained, because threads have no such variable; the former hook is
  always called.
- faulthandler is enabled only where nobody enabled it, into a file of ours; it then lets the
  signal do what it would have done.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

from worker_server import frames
from worker_server.page import layout
from worker_server.page.writer import PageWriter

_MAX_TRACEBACK = 7000
_MAX_MESSAGE = 500
_HIGH_FD = 400
"""Programs that close or reuse low descriptors by number must not find ours among them."""

_page: PageWriter | None = None
_looked_at: tuple[int, int] | None = None
"""Which exception was judged last. Not the exception: it would keep the tensors of its frames."""
_ended = False
"""Whether the main thread's end is on the page: no thread's that follows may take its place."""
_hooked = False
_crash_fd: int | None = None
_kept: str | None = None
"""The first error that TorchFT kept from the program since it last asked for a quorum."""


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
        _note("the main thread", value)


def _is_the_end(value: BaseException) -> bool:
    """Whether the interpreter itself gave up on this exception and is about to go.

    Then no `__main__` runs any more. What is interactive goes on, and may end at once after its
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
    """Whether the main thread is still in what `python` was told to run: that is outermost then."""
    calls = frames.stacks().get(threading.main_thread().ident or 0, [])
    return bool(calls) and (
        len(calls) >= frames.DEEPEST or calls[-1].name in ("<module>", "_run_module_as_main")
    )


def forget() -> None:
    """In a forked child, which is not the rank: its end is no news of the rank."""
    global _page  # noqa: PLW0603
    _page = None
    if _crash_fd is not None:
        with contextlib.suppress(OSError):
            _point(_crash_fd, Path(os.devnull))


def keep(error: BaseException | None) -> None:
    """TorchFT keeps this from the program, which may die of what follows; None: that is over."""
    global _kept  # noqa: PLW0603
    if error is None:
        _kept = None
    elif _kept is None:
        _kept = _summary(error)


def _summary(value: BaseException) -> str:
    told = traceback.format_exception_only(value)[-1].strip().partition("\n")[0]
    return told[:_MAX_MESSAGE]


def _raised_by_torchft(value: BaseException) -> bool:
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(value.__traceback__)]
    return bool(files) and Path(files[-1]).parent.name == "torchft"


def _note(who: str, value: BaseException) -> None:
    page = _page
    if page is None:
        return
    # never let an exception that cannot be printed end the beat, or the original hook
    with contextlib.suppress(Exception):
        text = "".join(_qualified(value).format())
        if len(text) > _MAX_TRACEBACK:  # the end has the innermost call and the message
            text = "... cut\n" + text[-_MAX_TRACEBACK:]
        summary = _kept if _kept and _raised_by_torchft(value) else _summary(value)
        page.write_note(layout.NOTE_EXCEPTION, f"{who}\n{summary}\n{text}")


def _qualified(value: BaseException) -> traceback.TracebackException:
    """Its traceback, with classes: `Deadlock.log_step`, where the interpreter prints `log_step`."""
    whole = traceback.TracebackException.from_exception(value)
    queue: list[tuple[traceback.TracebackException | None, BaseException | None]] = [(whole, value)]
    while queue:
        told, exc = queue.pop()
        if told is None or exc is None:
            continue
        for line, (frame, _) in zip(told.stack, traceback.walk_tb(exc.__traceback__), strict=False):
            line.name = frame.f_code.co_qualname
        queue += [(told.__cause__, exc.__cause__), (told.__context__, exc.__context__)]
    return whole


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
    global _crash_fd  # noqa: PLW0603
    if _crash_fd is not None:  # a forked child that attaches as a rank of its own
        _point(_crash_fd, path)
        return
    if faulthandler.is_enabled():
        return
    low = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_APPEND, 0o600)
    try:
        _crash_fd = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _HIGH_FD)
    except OSError:  # a low limit of open files
        _crash_fd = os.dup(low)
    finally:
        os.close(low)
    faulthandler.enable(file=_crash_fd, all_threads=True)


def _point(fd: int, path: Path) -> None:
    """Let this descriptor, which faulthandler may hold, lead to another file."""
    new = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_APPEND, 0o600)
    try:
        os.dup2(new, fd, inheritable=False)
    finally:
        os.close(new)
