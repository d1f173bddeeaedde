"""A rank's last output (exception, crash, torchelastic's file, stderr), and how it ended."""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

from lightkeeper.worker_server import home, wire
from lightkeeper.worker_server.rank.page import layout
from lightkeeper.worker_server.rank.page.reader import PageReader
from lightkeeper.worker_server.run_dir import parent_of, sockets
from lightkeeper.worker_server.sidecar.files import text_in
from lightkeeper.worker_server.sidecar.machine import Machine
from lightkeeper.worker_server.sidecar.process import OomWatch, PidfdProcess
from lightkeeper.worker_server.sidecar.stacks import (
    Call,
    Origin,
    frame_of,
    innermost,
    origin,
    short,
)

# The tail of the rank's stderr, if that is a file.
#
# The file is opened while the rank lives, so that it can be read after the rank, or the file's
# name, is gone. If stderr is a pipe, a terminal or a socket, another process has the output: the
# answer then says so, and how to redirect it to a file.

_LINES = 64
_BYTES = 16 * 1024
_REMEDY = "with torchrun --redirects 3 --log-dir DIR, or with 2> FILE, it would be here"


class StderrTail:
    """Follows file descriptor 2 of one process."""

    def __init__(self, pid: int, proc: Path = Path("/proc")) -> None:
        self._pid = pid
        self._proc = proc
        self._fd: int | None = None
        self._inode: tuple[int, int] | None = None
        self._seen: tuple[str, str] | None = None
        self._path = ""
        self._sharers = 0
        self.shared = False
        """True if processes other than its launchers wrote to the file: its end may be theirs."""
        self._problem = "it was not looked at while the rank lived"

    def look(self) -> None:
        """Open the current stderr; call while the process lives. Cheap if nothing changed."""
        link = self._proc / str(self._pid) / "fd" / "2"
        try:
            seen = str(link.readlink()), self._file_number()
            if seen == self._seen:
                return
            self._release()
            facts = link.stat()
            self._inode, self._seen = (facts.st_dev, facts.st_ino), seen
            self._path = seen[0]
            if stat.S_ISREG(facts.st_mode):
                self._fd = os.open(link, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
                sharers = self._find_sharers()
                self._sharers = len(sharers)
                self.shared = bool(sharers - self._launchers())
            else:
                kind = _kind(facts.st_mode, self._path)
                self._problem = f"stderr is {kind}: what was written there is not kept; {_REMEDY}"
        except FileNotFoundError:
            self._release()
            self._problem = "stderr is closed"
        except OSError as exc:
            self._problem = f"stderr cannot be opened: {exc.strerror}"

    def _file_number(self) -> str:
        """The file's inode from the kernel (Linux 5.14), without asking its file system: one on an
        unreachable server would block us forever, and we ask once a second.
        """
        lines = (text_in(self._proc / str(self._pid) / "fdinfo" / "2") or "").splitlines()
        return " ".join(line for line in lines if line.startswith(("mnt_id:", "ino:")))

    def _release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
        self._fd = self._inode = self._seen = None

    def _find_sharers(self) -> set[int]:
        """Other processes that write to the same file now, as far as we may see."""
        sharers = set[int]()
        for pid, fd in product(filter(str.isdecimal, os.listdir(self._proc)), "12"):
            with suppress(OSError):  # gone, or not ours
                facts = (self._proc / pid / "fd" / fd).stat()
                if (facts.st_dev, facts.st_ino) == self._inode:
                    sharers.add(int(pid))
        return sharers - {self._pid}

    def _launchers(self) -> set[int]:
        """Its parent, that one's parent, and so on."""
        ancestors: set[int] = set()
        pid = parent_of(self._pid, self._proc)
        while pid and pid not in ancestors:
            ancestors.add(pid)
            pid = parent_of(pid, self._proc)
        return ancestors

    def read(self) -> tuple[wire.Trace | None, str | None]:
        """The last lines, or why there are none."""
        if self._fd is None:
            return None, self._problem
        try:
            facts = os.fstat(self._fd)
            blob = os.pread(self._fd, _BYTES, max(0, facts.st_size - _BYTES))
        except OSError as exc:
            return None, f"stderr cannot be read: {exc.strerror}"
        if not blob:
            return None, f"nothing was written to {self._path}"
        text = blob.decode(errors="replace")
        lines = text.splitlines(keepends=True)
        if facts.st_size > _BYTES:
            lines = lines[1:] or lines  # the first is incomplete
        shared = ""
        if self._sharers:
            shared = f" (shared with {self._sharers} more process(es) when it was opened)"
        age_s = max(0.0, time.time() - facts.st_mtime)
        return wire.Trace("".join(lines[-_LINES:]), f"{self._path}{shared}", age_s), None


def _kind(mode: int, path: str) -> str:
    if stat.S_ISFIFO(mode):
        return "a pipe"
    if stat.S_ISSOCK(mode):
        return "a socket"
    return "a terminal" if path.startswith(("/dev/pts", "/dev/tty")) else path


# Tracebacks as text: the last exception, and where it was raised.

_RANK = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)
"""torch.distributed's prefix for the lines of an uncaught exception."""
_HEAD = re.compile(
    r"^(?:.{0,40}Traceback \(most recent call last\)(?:: \(RANK (\d+)\)$)?|\.\.\. cut$)"
)
"""A traceback's first line, or what the rank put in its place. The exceptions of torch's
checkpoints show those of all ranks that raised, on every rank."""
_CAUSED = "The above exception was the direct cause of the following exception:"
_FILE = re.compile(r'^\s+File "(.+)", line (\d+)(?:,? in (.+))?$')
_TERMINATE = re.compile(
    r"terminate called after throwing an instance of '([^']+)'\s+what\(\):\s*(.*)"
)
_FATAL = re.compile(r"^Fatal Python error: (.+)$", re.MULTILINE)
_THREAD = re.compile(r"^(?P<current>Current t|T)hread .*:\n(?P<calls>(?: .*\n?)*)", re.MULTILINE)
_DDP, _DDP_BUG = "torchft/ddp.py", "it died of TorchFT's bug 1 (docs/versions.md)"
_LOADER_LOST = "exited unexpectedly"
_LOADER_KILLED = re.compile(r"DataLoader worker \(pid \d+\) is killed by signal: \w+")
"""The cause of the DataLoader's last exception, which names the process but not the signal."""


class Raised(NamedTuple):
    """An exception: its line, and the user's innermost frame in its traceback."""

    exception: str
    frame: wire.Frame | None
    of_peers: bool | None = None
    """As `wire.Ending` has it."""
    lines_after: int = 0
    """Lines written since."""
    detail: str | None = None
    """As `wire.Ending` has it."""


class _Block(NamedTuple):
    exception: str
    calls: list[Call]
    end: int
    more: str
    """The next lines, which may be the exception's."""
    caused: bool
    """True if the block before is its cause: `raise ... from` that one."""
    raiser: int | None
    """Rank of the group that raised it; None: this one."""


def last_raised(text: str, rank: int | None = None) -> Raised | None:
    """The last exception in a text that may hold several: a chain of causes, one from a worker
    process ("Original Traceback"), or those of several ranks, of which `rank` is this one.
    None: there is no complete traceback.
    """
    text = _RANK.sub("", text)
    lines = text.splitlines()
    blocks = list(_blocks(lines))
    if not blocks:
        return None
    end = blocks[-1].end
    own = [block for block in blocks if block.raiser in (None, rank)]
    if own and own[-1].raiser is not None:
        blocks = own
    exception = blocks[-1].exception
    if _LOADER_LOST in exception and (killed := _LOADER_KILLED.search(text)):
        exception = f"{exception.partition(':')[0]}: {killed[0]}"
    best = min(reversed(blocks), key=_weight)
    whose = _whose(blocks) if blocks[-1].raiser in (None, rank) else True
    at_fault = (short(call.path) for call in blocks[-1].calls)
    bug = _DDP_BUG if exception == "AssertionError" and _DDP in at_fault else None
    return Raised(_one_line(exception), _frame(best.calls), whose, len(lines) - end, bug)


def _blocks(lines: list[str]) -> Iterator[_Block]:
    calls: list[Call] | None = None
    caused, raiser = False, None
    for number, line in enumerate(lines, 1):
        if head := _HEAD.match(line):
            calls, raiser = [], None if head[1] is None else int(head[1])
        elif calls is not None and (at := _FILE.match(line)):
            calls.insert(0, Call(at[3] or "<module>", at[1], int(at[2])))
        elif calls is not None and line and not line.startswith(" "):
            more = "\n".join(lines[number : number + _MORE])
            yield _Block(line, calls, number, more, caused, raiser)
            calls, caused = None, False
        elif line == _CAUSED:
            caused = True


def _weight(block: _Block) -> int:
    index = innermost(block.calls)
    return 9 if index is None else origin(block.calls[index].path)


# Whose an exception is: raised by what waits for other ranks, or by the rank's own code.
#
# Where it was raised and its type decide, never what it says. Most waits are in C++, which has no
# Python frame: gloo puts its own source file first into the text, and torch has types for what its
# stores, connections and backends raise. A RuntimeError of torch.distributed with neither may be
# about a wrong argument or about what others did: not known. What TorchFT raises is about others,
# except for wrong arguments; its DDP asserts no more than that a peer's numbers have come.
#
# Tried with torch 2.13 and gloo: peers that die, come too late, or call something else, in twelve
# collectives, DDP, stores and groups, and wrong arguments to these. Sizes that differ end either
# side: who raised it did not necessarily cause it.

_MORE: Final = 3
"""Lines of an exception after its first; monitored_barrier names gloo's file in its third."""
_GLOO: Final = re.compile(
    r"^\s*([\w.:]+: )?\[(enforce fail at )?\S*\bgloo/(transport|rendezvous)/\S+:\d+\]",
    re.MULTILINE,
)
_C10D: Final = re.compile(
    r"(torch\.distributed\.|c10::)(Dist(Backend|Network|Store)?|QueueEmpty)Error:"
)
_TAKEN: Final = re.compile(r"\bport: (\d{1,5})\b.*\bname: EADDRINUSE\b")
"""TCPStore's server socket, as torch's socket.cpp writes it."""
_OWN_ADDRESS: Final = re.compile(r"\bname: (EADDRINUSE|EADDRNOTAVAIL|EACCES)\b")
"""This host refuses its store's server an address."""
_WAITS: Final = re.compile(r"torchft/|torch/distributed/(\w+\.py|elastic/utils/)")
"""Files, as `short` has them, that wait for other ranks. What is built on them, such as DDP, FSDP
and DTensor, raises errors about the program."""
_ENGINE: Final = re.compile(r"torch/autograd/graph\.py")
"""Where all that C++ raises in a backward pass comes out: DDP's reducer waits for peers there."""
_BARRIER: Final = re.compile(r"(\w+_)?barrier")
"""Functions without arguments that could be wrong."""
_PROGRAM: Final = re.compile(
    r"(Attribute|Import|Index|Key|Lookup|Memory|ModuleNotFound|Name|NotImplemented|Recursion|Type"
    r"|UnboundLocal|Value|torch\.(cuda\.)?OutOfMemory|torch\.Accelerator)Error"
    r"|KeyboardInterrupt|SystemExit"
)
"""Types for wrong arguments, and for what no peer can do."""


def of_peers(exception: str, calls: Sequence[Call]) -> bool | None:
    """True if what waits for other ranks raised this, as `wire.Ending` has it.

    Args:
        exception: its lines, `TYPE: TEXT` first.
        calls: where it was raised, newest first; empty: not known.
    """
    if _C10D.match(exception):
        return _OWN_ADDRESS.search(exception.partition("\n")[0]) is None
    if _GLOO.search(exception):
        return True
    paths = (short(call.path) for call in calls if origin(call.path) is not Origin.STANDARD)
    path = next((path for path in paths if not path.startswith("lightkeeper/worker_server/")), None)
    if path is None:
        return None
    kind = re.split(r"[:\n]", exception, maxsplit=1)[0].strip()
    if kind == "RuntimeError" and _of_either(path, calls[0].function):
        return None
    if not _WAITS.match(path) or _PROGRAM.fullmatch(kind):
        return False
    return not (path.startswith("torch/") and kind == "AssertionError")


def _of_either(path: str, function: str) -> bool:
    """True if C++ raises there about peers and about the program alike."""
    waits = path.startswith("torch/") and _WAITS.match(path) and not _BARRIER.fullmatch(function)
    return bool(waits or _ENGINE.match(path))


def _whose(blocks: Sequence[_Block]) -> bool | None:
    """By the last one, or by what it says was its cause."""
    *causes, last = blocks
    whose = of_peers(f"{last.exception}\n{last.more}", last.calls)
    if causes and last.caused and not whose:
        return _whose(causes) or whose
    return whose


def terminated(text: str) -> str | None:
    """The C++ exception that ended a process, as its runtime printed it."""
    matches = list(_TERMINATE.finditer(text))
    return _one_line(f"{matches[-1][1]}: {matches[-1][2]}") if matches else None


def crashed(text: str) -> Raised | None:
    """The fatal error that faulthandler wrote, and where its thread was.

    An error in a thread of C++ (gloo's) has no Python calls: then where the main thread was, which
    faulthandler writes last.
    """
    fatal = _FATAL.search(text)
    if fatal is None:
        return None
    threads = list(_THREAD.finditer(text))
    if threads and all("<no Python frame>" in thread["calls"] for thread in threads):
        said = f"{_one_line(fatal[0])} as it exited, when its Python code was over"
        return Raised(said, None, of_peers=False)
    current = next((thread for thread in threads if len(thread["current"]) > 1), None)
    chosen = current or (threads[-1] if threads else None)
    places = (_FILE.match(line) for line in chosen["calls"].splitlines()) if chosen else ()
    calls = [Call(at[3] or "?", at[1], int(at[2])) for at in places if at]
    return Raised(_one_line(fatal[0]), _frame(calls))


def _frame(calls: list[Call]) -> wire.Frame | None:
    index = innermost(calls)
    return None if index is None else frame_of(calls, index)


_MAX_FILE = 32 * 1024
_LINES_AFTER = 24
"""An exception that ended its process is among the last lines it wrote; one that was only logged
is not."""
_LAUNCHER = "torch.distributed.elastic."
"""Exceptions of torchrun, which may share the file."""
_SENT_AS = {
    "SIGHUP": "as when its terminal or ssh session is closed",
    "SIGUSR1": "as a scheduler sends it before it ends a job; the rank has no handler",
    "SIGXCPU": "as when its limit of CPU time is reached",
}
_FATAL_SIGNALS = frozenset({"SIGABRT", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL"})
_UNCAUGHT: Final = "uncaught in "
_IN_MAIN: Final = _UNCAUGHT + layout.MAIN_THREAD
_ENDED_BY_S = 60.0
"""An uncaught exception ends its process within this time, or did not end it."""
_OOM_S = 30.0
"""How far a kill and a death, by two clocks, may lie apart."""
_IN_A_WAIT: Final = (Call("wait", "torch/distributed/distributed_c10d.py", 0),)


@dataclass(eq=False)
class Remains:
    """Reads what a rank leaves; call `look` once a second while it lives."""

    page: PageReader
    process: PidfdProcess
    crash_file: Path
    environ: Mapping[str, str]
    machine: Machine

    def __post_init__(self) -> None:
        self._attached_s = time.time()
        self._stderr = StderrTail(self.process.pid)
        self._oom = OomWatch(self.process.pid)
        self._raised: Raised | None = None
        self._port_taken: str | None = None
        if not self.process.wait_death(0):
            self.look()

    def look(self) -> None:
        """Open what vanishes with the process."""
        self._stderr.look()
        self._oom.look()

    def crash(self) -> wire.Trace | None:
        """Stacks at a fatal signal."""
        return _file(self.crash_file, "faulthandler, at the fatal signal")

    def exception(self) -> tuple[str, wire.Trace] | None:
        """The uncaught exception in one line, and its traceback."""
        note = self.page.note(layout.NOTE_EXCEPTION, time.monotonic_ns())
        if note is None:
            return None
        text, age_s = note
        thread, summary, traceback = (*text.split("\n", 2), "", "")[:3]
        return summary, wire.Trace(traceback, _UNCAUGHT + thread, age_s)

    def hidden(self, since_s: float | None) -> str | None:
        """The rank's own error that TorchFT hid, and where, if it is younger than `since_s`."""
        note = self.page.note(layout.NOTE_HIDDEN, time.monotonic_ns())
        if note is None or (since_s is not None and note[1] > since_s):
            return None
        raised = self._last_raised(note[0])
        own = raised is not None and raised.of_peers is False
        return f"{raised.exception} in {raised.frame}" if raised is not None and own else None

    def words(self, process: wire.Process) -> wire.LastWords:
        """The answer of `GET /v1/last_words`."""
        if process.alive:
            self._stderr.look()
        stderr, stderr_error = self._stderr.read()
        facts = self._facts(process)
        whose = "" if process.alive else _whose_it_is(self.ending(process))
        return wire.LastWords(
            identity=self.page.identity,
            process=process,
            ended=facts.sentence() + whose,
            exception=facts.exception[1] if facts.exception else None,
            crash=facts.crash,
            error_file=self._elastic(),
            stderr=stderr,
            stderr_error=stderr_error,
        )

    def _facts(self, process: wire.Process) -> EndFacts:
        closed, sent, oom = self.page.closed, self.process.sent, self._oom_said(process)
        return EndFacts(process, closed, self.exception(), self.crash(), sent, oom)

    def oom_kill(self, process: wire.Process) -> wire.Testimony | None:
        """The kill of the dead rank or of a child of it, at the time of its death."""
        pid, died_s_ago = self.process.pid, process.dead_age_s or 0.0
        rows = (row for row in self.machine.of_rank(pid) if row.code == "oom-kill" and row.pids)
        kills = [row for row in rows if abs(row.age_s - died_s_ago) < _OOM_S]
        # the kernel's log names the process, a cgroup's count only that there was a kill
        return min(kills, default=None,
                   key=lambda row: (row.pids[0] != pid, row.witness == "cgroup"))  # fmt: skip

    def _oom_said(self, process: wire.Process) -> str:
        """What is known of an OOM kill of this process; empty: nothing."""
        if process.alive:
            return ""
        kill = self.oom_kill(process)
        named = kill is not None and kill.pids[0] == self.process.pid
        return kill.text if kill is not None and named else self._oom.said()

    def ending(self, process: wire.Process) -> wire.Ending:
        """How a dead rank ended, in short, at once; `learn` adds what files say."""
        facts = self._facts(process)
        raised = self._raised or self._noted(facts)
        sentence = _one_line(facts.sentence())
        if raised is None:
            why = facts.why() if process.exit_signal else ""
            return wire.Ending(sentence, detail=why or None)
        kill = self.oom_kill(process)
        detail = raised.detail or self._port_taken or (None if kill is None else kill.text)
        return wire.Ending(sentence, raised.exception, raised.frame, raised.of_peers, detail)

    def learn(self, process: wire.Process) -> None:
        """Find the exception that ended the rank; may wait for a file server."""
        self._raised = (
            self._noted(self._facts(process))
            or self._from_elastic(process)
            or self._from_fatal(process)
            or self._from_stderr(process)
        )
        self._port_taken = None if self._raised is None else port_taken(self._raised.exception)

    def _noted(self, facts: EndFacts) -> Raised | None:
        """What the rank wrote down itself."""
        summary = facts.raised()
        if summary is None or facts.exception is None or facts.process.exit_code == 0:
            return None
        text = facts.exception[1].text
        raised = self._last_raised(text) or Raised(_one_line(summary), None)
        if summary in text:
            return raised
        # TorchFT hid it from the program, in a wait of its own: the traceback is not this one's
        whose = of_peers(summary, _IN_A_WAIT)
        return raised._replace(exception=_one_line(summary), of_peers=whose)

    def _last_raised(self, text: str) -> Raised | None:
        return last_raised(text, self.page.identity.group_rank)

    def _from_elastic(self, process: wire.Process) -> Raised | None:
        """What torchelastic's `@record` wrote if an exception ended its function."""
        trace = self._elastic() if process.exit_code else None
        try:
            error = json.loads(trace.text)["message"] if trace else None
            if not error:
                return None
            stack = error["extraInfo"]["py_callstack"]
            return self._last_raised(stack) or Raised(_one_line(error["message"]), None)
        except (ValueError, KeyError, TypeError):
            return None

    def _from_fatal(self, process: wire.Process) -> Raised | None:
        if process.exit_signal not in _FATAL_SIGNALS:
            return None
        said, own = self._last_said(process), self.crash()
        crash = crashed(own.text if own else said)
        exception = terminated(said)
        if exception is not None:
            return Raised(exception, crash.frame if crash else None, of_peers(exception, ()))
        if crash is not None and process.exit_signal != "SIGABRT":
            return crash._replace(of_peers=False)
        return crash  # whoever aborted, in C, has said nothing that is understood

    def _from_stderr(self, process: wire.Process) -> Raised | None:
        raised = self._last_raised(self._last_said(process)) if process.exit_code else None
        if raised is None or raised.lines_after > _LINES_AFTER:
            return None
        return None if raised.exception.startswith(_LAUNCHER) else raised

    def _last_said(self, process: wire.Process) -> str:
        """The tail of stderr, if it is the rank's alone and was written until the end."""
        trace, _ = self._stderr.read()
        if trace is None or trace.age_s is None or self._stderr.shared:
            return ""
        return trace.text if trace.age_s - (process.dead_age_s or 0.0) < _ENDED_BY_S else ""

    def _elastic(self) -> wire.Trace | None:
        file = self.environ.get("TORCHELASTIC_ERROR_FILE")
        trace = _file(Path(file), file) if file else None
        if trace is None or trace.age_s is None:
            return trace
        written_s = time.time() - trace.age_s
        return trace if written_s > self._attached_s - _ENDED_BY_S else None  # an older process's


def _file(path: Path, source: str) -> wire.Trace | None:
    """The start of a small file; None if it is missing or empty."""
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


def port_taken(exception: str) -> str | None:
    """Who listens on the port that the exception says is in use; None: no process that we see.

    Processes of other users do not show their sockets.
    """
    proc, taken = Path("/proc"), _TAKEN.search(exception)
    rows = home.listening(int(taken[1]), proc / "net") if taken else []
    inodes = {int(row[9]) for row in rows}
    for pid in (folder.name for folder in proc.iterdir() if inodes and folder.name.isdecimal()):
        if taken and not inodes.isdisjoint(sockets(pid)):
            name = text_in(proc / pid / "comm") or "a process"
            return f"port {taken[1]} is taken by {name} (pid {pid})"
    return None


@dataclass(frozen=True, slots=True)
class EndFacts:
    """What is known of an end, now or to come."""

    process: wire.Process
    closed: bool
    """True if it had announced that its work was over."""
    exception: tuple[str, wire.Trace] | None
    crash: wire.Trace | None
    sent: tuple[str, ...]
    """Signals that its WorkerServer sent."""
    oom: str = ""

    def sentence(self) -> str:
        """One sentence that says only what is known."""
        process, raised = self.process, self.raised()
        over = ", after it had announced that its work was over" if self.closed else ""
        if process.alive:
            return f"It lives{', and has announced that its work is over' if self.closed else ''}."
        if process.exit_signal is not None:
            why = self.why()
            return f"Killed by {process.exit_signal}{why and f'; {why}'}{over}."
        if process.exit_code is not None:
            cause = f"Raised {raised} and exited" if process.exit_code and raised else "Exited"
            return f"{cause} with code {process.exit_code}{over}."
        if self.crash is not None:
            fatal = _first_line(self.crash)
            return f"Ended by a fatal error ({fatal}); exit status not known{over}."
        if raised:
            return f"Raised {raised}; exit status not known{over}."
        return f"Ended; how is not known (its parent has collected the exit status){over}."

    def why(self) -> str:
        """What is known beside the signal; empty: nothing."""
        signum = self.process.exit_signal or ""
        if signum in self.sent:
            return "sent by its WorkerServer (eviction)"
        if signum == "SIGKILL" and self.oom:
            return self.oom
        return _SENT_AS.get(signum, "") if self.crash is None else _first_line(self.crash)

    def raised(self) -> str | None:
        """The exception, if the main thread raised it right before the end."""
        summary, trace = self.exception or (None, None)
        if trace is None or trace.source != _IN_MAIN:
            return None
        lived_on_s = (trace.age_s or 0.0) - (self.process.dead_age_s or 0.0)
        return summary if lived_on_s < _ENDED_BY_S else None


def _whose_it_is(ending: wire.Ending) -> str:
    """` ValueError comes from its own code.`; empty: not known, or no exception."""
    kind = (ending.exception or "").partition(": ")[0].rstrip(":")
    if ending.of_peers is None or not kind or " " in kind:
        return ""
    source = "other ranks, or from a wait for them" if ending.of_peers else "its own code"
    return f" {kind} comes from {source}."


def _one_line(text: str) -> str:
    return " ".join(text.split())[: wire.LINE_MAX_CHARS]


def _first_line(trace: wire.Trace) -> str:
    return trace.text.strip().partition("\n")[0]
