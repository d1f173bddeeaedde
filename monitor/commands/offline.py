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
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import msgspec
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from lightkeeper.monitor.commands.command import CommandError, F, HelpPage, Within, option
from lightkeeper.monitor.model.units import clean, counted, sentence
from lightkeeper.monitor.model.verdict import Confidence
from lightkeeper.monitor.show.report import FindingWords, Report, ReportTable, Role

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


def say(report: str) -> None:
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
def reading_bar() -> Iterator[Progress | None]:
    """Moves a bar on stderr, removed at the end; None if that is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def print_judgement(
    work: Callable[[Progress], tuple[int, str]], *, deadline_s: float, as_json: bool
) -> int:
    """Print the report of `work`, which returns the exit status and the report; the status.

    Where a limit was reached, JSON says so too.

    Raises:
        CommandError: no usable input, or no answer.
    """
    try:
        with reading_bar() as progress:
            status, report = confined(work, deadline_s=deadline_s, progress=progress)
    except CannotTellError as exc:
        if not as_json:
            raise
        limit = {"reason": exc.reason, "files_read": exc.done, "files": exc.total}
        body = {"schema": 1, "cannot_tell": limit, "verdicts": [], "culprits": [], "problems": [],
                "notes": []}  # fmt: skip
        say(json.dumps(body, indent=2) + "\n")
        return exc.exit_code
    say(report)
    return status


def shown_path(path: Path) -> str:
    return clean(str(path), 300)


# -- a report on a terminal ------------------------------------------------------------------------

_INDENT = (0, 0, 0, 3)
_STYLES = {
    Role.CULPRIT: "bold red",
    Role.SUSPECT: "magenta",
    Role.SILENT: "magenta",
    Role.VICTIM: "yellow",
    Role.WAITING: "yellow",
}


def print_analysis(out: Console, report: Report, *, details: bool = False) -> None:
    """`details`: who waits for whom, also without a fault: in a healthy job all wait."""
    if report.live is not None:
        out.print(Text(report.live.heading, "bold red" if report.live.sure else "bold magenta"))
        for name, seen in report.live.facts:
            out.print(Text(f"   {name}: {seen}"))
        out.print(Text("\nby the flight records alone:", "dim"))
    waits = report.waits if report.findings or details else None
    print_verdicts(out, (report.answer, report.read), report.findings, waits, report.limits)


def print_verdicts(
    out: Console, answer: tuple[str, str], findings: Sequence[FindingWords],
    table: ReportTable | None, limits: Sequence[str],
) -> None:  # fmt: skip
    """The answer and what was read, each verdict, a table, what limits the answer."""
    out.print(Text(answer[0], "bold red" if findings else "bold green"))
    out.print(Text(answer[1], "dim"))
    for number, finding in enumerate(findings, start=1):
        out.print("", *_verdict(number, finding), sep="\n")
    if table is not None:
        out.print("", _drawn(table), sep="\n")
    if limits:
        out.print(Text("\nwhat limits this", "bold"))
    for line in limits:
        out.print(Padding(Text(f"- {line}"), (0, 0, 0, 2)))


def _verdict(number: int, words: FindingWords) -> Iterator[RenderableType]:
    """Lines of one verdict, texts as they are: clean those from files first."""
    unsure = words.confidence is Confidence.UNSURE
    heading = Text(f"{number}. {words.who}", "bold magenta" if unsure else "bold red")
    heading.append(f": {words.what}", "bold")
    heading.append(f"  ({words.kind}, {words.confidence})", "dim")
    yield heading
    yield Padding(Text(sentence(words.reason)), _INDENT)
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", max_width=44)
    grid.add_column(overflow="fold")
    for name, seen in words.known:
        grid.add_row(Text(name), Text(seen))
    yield Padding(grid, _INDENT)


def _drawn(shown: ReportTable) -> Table:
    """The first two cells of a row with a role have its colour."""
    table = Table(
        title=shown.title or None, title_justify="left", title_style="bold", header_style="bold"
    )
    for head in shown.heads:
        table.add_column(head, overflow="fold")
    for row in shown.rows:
        style = _STYLES.get(Role(row.role), "") if row.role else ""
        table.add_row(*(Text(cell, style if at < 2 else "") for at, cell in enumerate(row.cells)))
    if shown.left_out:
        table.caption = f"and {counted(shown.left_out, 'rank')} more"
    return table
