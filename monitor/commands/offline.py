"""Shared by commands that analyze files: a process with a deadline, status, output."""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import msgspec
from rich.console import Console
from rich.progress import Progress as Bar

from lightkeeper.monitor.commands.command import CommandError, F, HelpPage, Within, option
from lightkeeper.monitor.show.wording import clean

# -- Work on untrusted files, in a process that ends whatever it reads -----------------------------
# Theory of operation. Checking the time between steps is no deadline: one step may be a loop in C.
# So the work is done in a forked child in its own session. It sends its progress and then its
# result over a pipe; after the deadline the session is killed, and the last progress shows what is
# left out. Its memory is limited too, or the machine's other processes would pay.

CANNOT_TELL: Final = 3
"""Exit status: a limit was reached before an answer."""

T = TypeVar("T")
Progress = Callable[[int, int], None]
"""Takes the number of files done, and of all."""

_KILLED: Final = (os.CLD_KILLED, signal.SIGKILL)
_MEMORY: Final = 0.8
"""Share of the machine's, for each process."""


class CannotTellError(CommandError):
    """There is no answer: partial evidence accuses nobody."""

    def __init__(self, reason: str, done: int = 0, total: int = 0) -> None:
        """`done` of `total` files were read."""
        files = f"{done:,} of {total:,} files were read, none was weighed"
        super().__init__(
            f"cannot tell: {reason}; {files if done else 'no file was read'}", CANNOT_TELL
        )
        self.reason, self.done, self.total = reason, done, total


def confined(work: Callable[[Progress], T], *, deadline_s: float, progress: Progress | None) -> T:
    """What `work` returns: plain values and text, since it comes by a pipe.

    Raises:
        CannotTellError: it took too long, or too much memory.
        CommandError: raised by the work.
        RuntimeError: the work failed otherwise; the message is the traceback.
    """
    mine, theirs = get_context("fork").Pipe(duplex=False)
    child = get_context("fork").Process(target=_work, args=(work, theirs, deadline_s))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # numpy's threads survive a fork
        child.start()
    theirs.close()
    pid = child.pid or os.getpid()
    until_s, done, total = time.monotonic() + deadline_s, 0, 0
    try:
        while mine.poll(max(0.0, until_s - time.monotonic())):
            match mine.recv():
                case "progress", done, total:
                    if progress is not None:
                        progress(done, total)
                case CannotTellError(reason=reason):
                    raise CannotTellError(reason, done, total)
                case BaseException() as exc:
                    raise exc
                case result:
                    return result[1]  # type: ignore[no-any-return]
        raise CannotTellError(f"not done after {deadline_s:g} s (see --deadline)", done, total)
    except EOFError:
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        killed = ended is not None and (ended.si_code, ended.si_status) == _KILLED
        why = "out of memory" if killed else "its process died"
        raise CannotTellError(f"the analysis was cut off: {why}", done, total) from None
    finally:
        for kill in (os.killpg, os.kill):  # the child may not have a session yet
            with contextlib.suppress(OSError):
                kill(pid, signal.SIGKILL)
        child.join()
        mine.close()


def _work(work: Callable[[Progress], Any], pipe: Connection, deadline_s: float) -> None:
    os.setsid()  # its own workers end with it
    pages = os.sysconf("SC_PHYS_PAGES")
    _limit(resource.RLIMIT_AS, int(_MEMORY * os.sysconf("SC_PAGE_SIZE") * pages))
    _limit(resource.RLIMIT_CPU, int(deadline_s) + 60)  # if its parent died
    said: Any
    try:
        said = "result", work(lambda done, total: pipe.send(("progress", done, total)))
    except (CommandError, KeyboardInterrupt) as exc:
        said = exc
    except MemoryError:
        said = CannotTellError("it takes more memory than this machine has to give")
    except Exception:  # noqa: BLE001 - the parent raises it again
        said = RuntimeError(traceback.format_exc())
    with contextlib.suppress(OSError):
        pipe.send(said)


def _limit(which: int, most: int) -> None:
    _, hard = resource.getrlimit(which)
    resource.setrlimit(which, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


# -- status and output ----------------------------------------------------------------------------

BROKEN: Final = 70
"""Our own fault (sysexits.h: EX_SOFTWARE); never 1, which is a fault of the job."""
INTERRUPTED: Final = 130
_WIDTH: Final = 160
"""Columns of a report in a pipe."""


class Judging(HelpPage):
    """A command whose exit status is what it found, or how it failed."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            return INTERRUPTED
        except (click.ClickException, click.exceptions.Exit, BrokenPipeError):
            raise
        except Exception:  # noqa: BLE001 - Python's own status for a crash is 1: "fault found"
            traceback.print_exc()
            sys.stderr.write("error: a fault of lightkeeper itself, please report it\n")
            return BROKEN


def composed(*, as_json: bool, body: Callable[[], Any], text: Callable[[Console], None]) -> str:
    if as_json:
        plain = msgspec.json.decode(msgspec.json.encode(body()))  # NaN is null
        return json.dumps(plain, indent=2) + "\n"
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    with console.capture() as captured:
        text(console)
    return captured.get()


def print_text(report: str) -> None:
    """Print it. A closed pipe (`| head`) is no error and keeps the status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # for ASCII terminals
    try:
        sys.stdout.write(report)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def deadline(why: str) -> Callable[[F], F]:
    """`--deadline SECONDS`; `why` says how long a large input takes."""
    return option("--deadline", type=Within(1e-9, 86_400), default=1800.0, metavar="SECONDS",
                  help=f"give up after SECONDS; {why}")  # fmt: skip


@contextlib.contextmanager
def progress_bar() -> Iterator[Progress | None]:
    """Moves a bar on stderr, removed at the end; None if that is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def print_judgement(
    work: Callable[[Progress], tuple[int, str, T]], *, deadline_s: float, as_json: bool
) -> tuple[int, T | None]:
    """Print the report of `work`: (exit status, report, more); the status and, if known, `more`.

    Where a limit was reached, JSON says so too.

    Raises:
        CommandError: no usable input, or no answer.
    """
    try:
        with progress_bar() as progress:
            status, report, more = confined(work, deadline_s=deadline_s, progress=progress)
    except CannotTellError as exc:
        if not as_json:
            raise
        limit = {"reason": exc.reason, "files_read": exc.done, "files": exc.total}
        body = {"schema": 1, "cannot_tell": limit, "verdicts": [], "culprits": [], "problems": [],
                "notes": []}  # fmt: skip
        print_text(json.dumps(body, indent=2) + "\n")
        return exc.exit_code, None
    print_text(report)
    return status, more


def path_text(path: Path) -> str:
    return clean(str(path), 300)
