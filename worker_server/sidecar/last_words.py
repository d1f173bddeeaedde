"""What the rank said last (exception, crash, torchelastic's file, stderr), and how it ended."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from worker_server import wire
from worker_server.page import layout
from worker_server.page.reader import PageReader
from worker_server.sidecar.ending import OomWatch
from worker_server.sidecar.process import RankProcess
from worker_server.sidecar.stderr import StderrTail

_MAX_FILE = 32 * 1024
_ENDED_BY_S = 60.0
"""An exception that nobody caught ends its process within this, or did not end it."""


class Remains:
    """Reads what a rank leaves; `look` once a second while it lives."""

    def __init__(
        self,
        page: PageReader,
        process: RankProcess,
        crash_file: Path,
        environ: Mapping[str, str],
    ) -> None:
        self._page = page
        self._process = process
        self._crash_file = crash_file
        error_file = environ.get("TORCHELASTIC_ERROR_FILE")
        self._error_file = Path(error_file) if error_file else None
        self._attached_s = time.time()
        self._stderr = StderrTail(process.pid)
        self._oom = OomWatch(process.pid)
        if not process.wait_death(0):
            self.look()

    def look(self) -> None:
        """Hold what goes with the process."""
        self._stderr.look()
        self._oom.look()

    def crash(self) -> wire.Trace | None:
        """Stacks at a fatal signal."""
        return _file(self._crash_file, "faulthandler, at the fatal signal")

    def exception(self) -> tuple[str, wire.Trace] | None:
        """One line that names the exception that nobody caught, and its traceback."""
        note = self._page.note(layout.NOTE_EXCEPTION, time.monotonic_ns())
        if note is None:
            return None
        text, age_s = note
        who, _, rest = text.partition("\n")
        summary, _, traceback = rest.partition("\n")
        return summary, wire.Trace(traceback, age_s, f"uncaught in {who}")

    def words(self, process: wire.Process) -> wire.LastWords:
        """The answer of `GET /v1/last_words`."""
        if process.alive:
            self._stderr.look()
        stderr, stderr_error = self._stderr.read()
        exception, crash = self.exception(), self.crash()
        return wire.LastWords(
            identity=self._page.identity,
            process=process,
            ended=how_it_ended(
                process,
                closed=self._page.closed,
                exception=exception,
                crash=crash,
                sent=self._process.sent,
                oom_kills=None if process.alive else self._oom.kills(),
            ),
            exception=exception[1] if exception else None,
            crash=crash,
            error_file=self._elastic(),
            stderr=stderr,
            stderr_error=stderr_error,
        )

    def _elastic(self) -> wire.Trace | None:
        if self._error_file is None:
            return None
        trace = _file(self._error_file, str(self._error_file))
        if trace is None or trace.age_s is None:
            return trace
        written_s = time.time() - trace.age_s
        return trace if written_s > self._attached_s - _ENDED_BY_S else None  # a former attempt's


def _file(path: Path, source: str) -> wire.Trace | None:
    """The last part of a small file; None when there is none, or nothing in it."""
    try:
        with path.open("rb") as file:
            blob = file.read(_MAX_FILE + 1)
        written_s = path.stat().st_mtime
    except OSError:
        return None
    if not blob:
        return None
    text = blob[:_MAX_FILE].decode(errors="replace")
    cut = "\n... cut" if len(blob) > _MAX_FILE else ""
    return wire.Trace(text + cut, max(0.0, time.time() - written_s), source)


def how_it_ended(
    process: wire.Process,
    *,
    closed: bool,
    exception: tuple[str, wire.Trace] | None,
    crash: wire.Trace | None,
    sent: tuple[str, ...],
    oom_kills: int | None,
) -> str:
    """One sentence that claims no more than is known."""
    over = ", after it had announced that its work was over" if closed else ""
    if process.alive:
        return f"It lives{', and has announced that its work is over' if closed else ''}."
    if process.exit_signal is not None:
        return f"Killed by {process.exit_signal}{_why(process, crash, sent, oom_kills)}{over}."
    raised = _raised(process, exception)
    if process.exit_code is not None:
        cause = f"Raised {raised} and exited" if process.exit_code and raised else "Exited"
        return f"{cause} with code {process.exit_code}{over}."
    if crash is not None:
        return f"Ended by a fatal error ({_first_line(crash)}); exit status not known{over}."
    if raised:
        return f"Raised {raised}; exit status not known{over}."
    return f"Ended; how is not known (its parent has collected the exit status){over}."


def _why(
    process: wire.Process, crash: wire.Trace | None, sent: tuple[str, ...], oom_kills: int | None
) -> str:
    if process.exit_signal in sent:
        return ", which its WorkerServer sent (eviction)"
    if process.exit_signal == "SIGKILL" and oom_kills:
        return f"; the OOM killer was at work in its cgroup ({oom_kills} kill(s) at that time)"
    if crash is not None:
        return f" ({_first_line(crash)})"
    return ""


def _raised(process: wire.Process, exception: tuple[str, wire.Trace] | None) -> str | None:
    """The exception, if it is the main thread's and the end came right after it."""
    if exception is None:
        return None
    summary, trace = exception
    if "the main thread" not in trace.source:
        return None
    lived_on_s = (trace.age_s or 0.0) - (process.dead_age_s or 0.0)
    return summary if lived_on_s < _ENDED_BY_S else None


def _first_line(trace: wire.Trace) -> str:
    return trace.text.strip().partition("\n")[0]
