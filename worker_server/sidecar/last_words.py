"""What the rank said last (exception, crash, torchelastic's file, stderr), and how it ended."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

from worker_server import wire
from worker_server.page import layout
from worker_server.page.reader import PageReader
from worker_server.sidecar.ending import OomWatch
from worker_server.sidecar.process import RankProcess
from worker_server.sidecar.stderr import StderrTail
from worker_server.sidecar.tracebacks import Raised, crashed, last_raised, terminated

_MAX_FILE = 32 * 1024
_LINES_AFTER = 24
"""An exception that ended its process is among the last that it wrote; one that was logged and
survived is not."""
_LAUNCHER = "torch.distributed.elastic."
"""Of torchrun's own, which may share the file."""
_FATAL_SIGNALS = frozenset({"SIGABRT", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL"})
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
        self._raised: Raised | None = None
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
        return summary, wire.Trace(traceback, f"uncaught in {who}", age_s)

    def words(self, process: wire.Process) -> wire.LastWords:
        """The answer of `GET /v1/last_words`."""
        if process.alive:
            self._stderr.look()
        stderr, stderr_error = self._stderr.read()
        exception, crash = self.exception(), self.crash()
        return wire.LastWords(
            identity=self._page.identity,
            process=process,
            ended=self._ended(process, exception, crash),
            exception=exception[1] if exception else None,
            crash=crash,
            error_file=self._elastic(),
            stderr=stderr,
            stderr_error=stderr_error,
        )

    def _ended(
        self,
        process: wire.Process,
        exception: tuple[str, wire.Trace] | None,
        crash: wire.Trace | None,
    ) -> str:
        return how_it_ended(
            process,
            closed=self._page.closed,
            exception=exception,
            crash=crash,
            sent=self._process.sent,
            oom_kills=None if process.alive else self._oom.kills(),
        )

    def ending(self, process: wire.Process) -> wire.Ending:
        """In short, of a dead one, and at once: `learn` says when the files were read."""
        exception = self.exception()
        raised = self._raised or _noted(process, exception)
        return wire.Ending(
            _one_line(self._ended(process, exception, self.crash())),
            raised.exception if raised else None,
            raised.frame if raised else None,
        )

    def learn(self, process: wire.Process) -> None:
        """Find the exception that ended a dead one; may wait for a file server."""
        self._raised = (
            _noted(process, self.exception())
            or self._from_elastic(process)
            or self._from_fatal(process)
            or self._from_stderr(process)
        )

    def _from_elastic(self, process: wire.Process) -> Raised | None:
        """What torchelastic's `record` writes when an exception ends its function."""
        trace = self._elastic() if process.exit_code else None
        try:
            told = json.loads(trace.text)["message"] if trace else None
            stack = told["extraInfo"]["py_callstack"] if told else ""
            return last_raised(stack) or (
                Raised(_one_line(told["message"]), None) if told else None
            )
        except (ValueError, KeyError, TypeError):
            return None

    def _from_fatal(self, process: wire.Process) -> Raised | None:
        if process.exit_signal not in _FATAL_SIGNALS:
            return None
        said, own = self._last_said(process), self.crash()
        crash = crashed(own.text if own else said)
        exception = terminated(said)
        if exception is not None:
            return Raised(exception, crash.frame if crash else None)
        return crash

    def _from_stderr(self, process: wire.Process) -> Raised | None:
        raised = last_raised(self._last_said(process)) if process.exit_code else None
        if raised is None or raised.lines_after > _LINES_AFTER:
            return None
        return None if raised.exception.startswith(_LAUNCHER) else raised

    def _last_said(self, process: wire.Process) -> str:
        """The tail of stderr, where it is the rank's alone and was written until the end."""
        trace, _ = self._stderr.read()
        if trace is None or trace.age_s is None or self._stderr.shared:
            return ""
        return trace.text if trace.age_s - (process.dead_age_s or 0.0) < _ENDED_BY_S else ""

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
    return wire.Trace(text + cut, source, max(0.0, time.time() - written_s))


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


def _noted(process: wire.Process, exception: tuple[str, wire.Trace] | None) -> Raised | None:
    summary = _raised(process, exception)
    if summary is None or exception is None or process.exit_code == 0:
        return None
    raised = last_raised(exception[1].text) or Raised(_one_line(summary), None)
    # what TorchFT kept from the program is not in its traceback
    return raised if summary in exception[1].text else raised._replace(exception=_one_line(summary))


def _one_line(text: str) -> str:
    return " ".join(text.split())[: wire.LINE_MAX_CHARS]


def _first_line(trace: wire.Trace) -> str:
    return trace.text.strip().partition("\n")[0]
