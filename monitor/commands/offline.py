"""What commands that judge files have in common: their status, their output, their progress."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from monitor.commands.command import CommandError, F, Page, Within, option
from monitor.commands.confined import Progress
from monitor.show.wording import clean

BROKEN: Final = 70
"""A fault of ours (sysexits.h: EX_SOFTWARE): never 1, which says that the job has one."""
INTERRUPTED: Final = 130
_WIDTH: Final = 160
"""Columns of a report that is piped into a file."""


class Judging(Page):
    """A command whose exit status says what it found, or how it ended."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run it."""
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
    """A report as it is printed here."""
    if as_json:
        return json.dumps(body(), indent=2) + "\n"
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    with console.capture() as captured:
        text(console)
    return captured.get()


def say(report: str) -> None:
    """Print it. A closed pipe (`| head`) is no failure and does not change the status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # an ASCII terminal shows what it can
    try:
        sys.stdout.write(report)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def deadline(why: str) -> Callable[[F], F]:
    """`--deadline SECONDS`; `why` tells how long a large one takes."""
    return option("--deadline", type=Within(1e-9, 86_400), default=1800.0, metavar="SECONDS",
                  help=f"end without an answer after so long; {why}")  # fmt: skip


@contextlib.contextmanager
def reading() -> Iterator[Progress | None]:
    """What moves a bar on stderr, gone when done; None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("reading"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def shown(path: Path) -> str:
    """A path in a message."""
    return clean(str(path), 300)


def check_writable(path: Path) -> None:
    """Before the work, not after it.

    Raises:
        CommandError: a file cannot be written there.
    """
    if path.is_dir():
        raise CommandError(f"cannot write {shown(path)}: it is a folder")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        why = "no such folder" if not path.parent.is_dir() else "not allowed"
        raise CommandError(f"cannot write {shown(path)}: {why}")


def write(path: Path, text: str) -> None:
    """A file of text.

    Raises:
        CommandError: it cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise CommandError(f"cannot write {shown(path)}: {exc.strerror}") from exc
