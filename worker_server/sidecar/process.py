"""The rank's process, seen, signalled and ended from outside."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final, Literal, NamedTuple

from worker_server import run_dir, wire
from worker_server.wire import Count

# How a process ended, without being its parent; and whether memory ran out.
#
# Linux 6.15 tells the wait status of a dead process to whoever holds its pidfd, once its parent
# has collected it (`PIDFD_GET_INFO`, linux/pidfd.h). Until then it is a zombie, and field 52 of
# /proc/PID/stat has the status. On an older kernel a collected process has taken it along.

_INFO = struct.Struct("=QQ11Ii")
"""struct pidfd_info, first version: mask, cgroup id, pid ... fsgid, exit_code; 64 bytes."""
_GET_INFO = 0xC0000000 | _INFO.size << 16 | 0xFF << 8 | 11
"""_IOWR(PIDFS_IOCTL_MAGIC, 11, struct pidfd_info)"""
_INFO_EXIT = 1 << 3


def wait_status(pidfd: int, pid: int, start_ticks: int) -> int | None:
    """The wait status of a dead process; None where it cannot be known."""
    status = _collected(pidfd)
    if status is None:
        status = _zombie(pid, start_ticks)
    return _collected(pidfd) if status is None else status  # it may go between the two looks


def _collected(pidfd: int) -> int | None:
    buffer = bytearray(_INFO.size)
    _INFO.pack_into(buffer, 0, _INFO_EXIT, *(0,) * 13)
    try:
        fcntl.ioctl(pidfd, _GET_INFO, buffer)
    except OSError:  # an older kernel, or another one's pid namespace
        return None
    mask, *_, status = _INFO.unpack(buffer)
    return int(status) if mask & _INFO_EXIT else None


def _zombie(pid: int, start_ticks: int) -> int | None:
    """Field 52, if this is still that process and we are told the truth.

    Who may not look into a process is told 0 there, which is also what a good end looks like. The
    kernel asks the same question (ptrace_may_access) before it opens `io`.
    """
    fields = run_dir.stat_fields(pid)
    if len(fields) < 50 or fields[0] != "Z" or int(fields[19]) != start_ticks:
        return None
    status = int(fields[49])
    if not status:
        try:
            Path(f"/proc/{pid}/io").read_text(encoding="ascii")
        except OSError:
            return None
    return status


def decode_status(status: int | None) -> tuple[int | None, str | None]:
    """Exit code and name of the signal, of which at most one is there."""
    if status is None:
        return None, None
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            return None, signal.Signals(number).name
        except ValueError:
            return None, f"signal {number}"  # a real-time signal
    return os.WEXITSTATUS(status), None


class OomWatch:
    """Counts the OOM kills in the cgroup of a process; remembers where, while it lives."""

    def __init__(self, pid: int, cgroups: Path = Path("/sys/fs/cgroup")) -> None:
        self._file = _find_counter(pid, cgroups)
        self.look()

    def look(self) -> None:
        """Take the count again; call while the process lives."""
        self._before = self._count()

    def kills(self) -> int | None:
        """OOM kills in the cgroup since the last look; None when it cannot be known."""
        now = self._count()
        return None if now is None or self._before is None else now - self._before

    def _count(self) -> int | None:
        if self._file is None:
            return None
        try:
            lines = self._file.read_text(encoding="ascii", errors="replace").splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
        except (OSError, ValueError, IndexError, StopIteration):
            return None


def _find_counter(pid: int, cgroups: Path) -> Path | None:
    """`memory.events` of version 2, `memory.oom_control` of version 1.

    In a container the path is often that of the host: then the container's own root is meant.
    """
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return None
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            roots, name = [cgroups, cgroups / "unified"], "memory.events"
        elif "memory" in controllers.split(","):
            roots, name = [cgroups / "memory"], "memory.oom_control"
        else:
            continue
        for root in roots:
            for folder in (root / path.lstrip("/"), root):
                if (folder / name).is_file():
                    return folder / name
    return None


# What the kernel counts of a rank: cores used, cores waited for, bytes moved. Over some seconds.
#
# Waiting for a core is the sign of a cgroup's limit, or of others on its host. Who uses cores or
# moves bytes is at work, wherever its main thread stands, and so is who waits for a child that
# does: a loader's worker, a program that it runs.

_SPAN_S: Final = 5.0
_EVERY_S: Final = 1.0
_THREADS: Final = 256
"""Of these the oldest: 8 us each."""
_CHILDREN: Final = 64


class Counts(NamedTuple):
    """What a process has used since it began."""

    threads: dict[str, tuple[float, float]]
    """Seconds on a core, and ready to run without one (proc(5), schedstat); of its children, the
    first thread of each, seconds on a core alone."""
    bytes: int | None
    """Read and written by system calls, pipes and files alike."""


class Rates(NamedTuple):
    """What it uses a second; None: not known (yet), or the kernel does not tell."""

    cores: float | None = None
    starved: float | None = None
    """Share of the time, of the thread that waited for a core most."""
    bytes_s: float | None = None


def counts(pid: int) -> Counts:
    """As far as they can be read."""
    threads: dict[str, tuple[float, float]] = {}
    children: list[str] = []
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/task") as tasks:
        for task in islice(tasks, _THREADS):
            with contextlib.suppress(OSError, ValueError):  # it has gone, or this kernel counts not
                threads[task.name] = _seconds(task.path)
    with contextlib.suppress(OSError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()[:_CHILDREN]
    for child in children:
        with contextlib.suppress(OSError, ValueError):
            threads[child] = _seconds(f"/proc/{child}")[0], 0.0
    moved = [nbytes for each in (str(pid), *children) if (nbytes := _bytes(each)) is not None]
    return Counts(threads, sum(moved) if moved else None)


def _seconds(folder: str) -> tuple[float, float]:
    ran, waited, _ = Path(folder, "schedstat").read_text("ascii").split()
    return int(ran) / 1e9, int(waited) / 1e9


def _bytes(pid: str) -> int | None:
    try:
        words = Path(f"/proc/{pid}/io").read_text("ascii").split()
        return int(words[words.index("rchar:") + 1]) + int(words[words.index("wchar:") + 1])
    except (OSError, ValueError, IndexError):
        return None


class Activity:
    """Compares what is counted now with what was 5 s ago, or longer where nobody asks."""

    def __init__(
        self, pid: int, clock: Callable[[], float], count: Callable[[int], Counts] = counts
    ) -> None:
        self._pid = pid
        self._clock = clock
        self._count = count
        self._taken: deque[tuple[float, Counts]] = deque()

    def rates(self) -> Rates:
        now_s = self._clock()
        if not self._taken or now_s - self._taken[-1][0] >= _EVERY_S:
            self._taken.append((now_s, self._count(self._pid)))
        while len(self._taken) > 1 and now_s - self._taken[1][0] >= _SPAN_S:
            self._taken.popleft()
        (before_s, before), (until_s, now) = self._taken[0], self._taken[-1]
        span_s = until_s - before_s
        if span_s < _SPAN_S or not now.threads:
            return Rates()
        used = [
            (ran_s - before.threads[task][0], waited_s - before.threads[task][1])
            for task, (ran_s, waited_s) in now.threads.items()
            if task in before.threads
        ]
        waits = [waited_s / span_s for _, waited_s in used]
        bytes_s = None
        if before.bytes is not None and now.bytes is not None:
            bytes_s = round(max(0.0, (now.bytes - before.bytes) / span_s), 0)
        return Rates(
            cores=round(max(0.0, sum(ran_s for ran_s, _ in used) / span_s), 3),
            starved=round(min(1.0, max(0.0, *waits)), 3) if waits else 0.0,
            bytes_s=bytes_s,
        )


_SIDECAR = b"worker_server.sidecar"
"""A word of its command line, see `worker_server.rank.attach`."""


class GoneError(Exception):
    """The rank had died before its sidecar could take hold of it."""


class PidfdProcess:
    """A process held by a pidfd: a recycled pid is never mistaken for it.

    `pidfd` is one that the process itself opened and passed on; then it may be dead already.

    Raises:
        GoneError: no pidfd, and no such process, or another one with its pid.
    """

    def __init__(
        self,
        pid: int,
        start_ticks: int,
        pidfd: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pid = pid
        self._ticks = start_ticks
        self._clock = clock
        self._died_s: float | None = None
        self._lock = threading.Lock()
        self._fd = _open(pid, start_ticks) if pidfd is None else pidfd
        self._status: int | None = None
        self._sent: list[str] = []
        self._activity = Activity(pid, clock)

    @property
    def sent(self) -> tuple[str, ...]:
        """Signals that the process was sent through us."""
        return tuple(self._sent)

    def wait_death(self, timeout_s: float) -> bool:
        """Whether the process is dead, waiting for it at most `timeout_s`."""
        if self._died_s is not None:
            return True
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        if not poll.poll(timeout_s * 1000):
            return False
        self._note_death()
        return True

    def _note_death(self) -> None:
        with self._lock:  # the first who sees it sets the time
            if self._died_s is None:
                self._died_s = self._clock()

    def send(self, signum: signal.Signals) -> bool:
        """Send a signal to this very process; False when it is gone."""
        try:
            signal.pidfd_send_signal(self._fd, signum)
        except ProcessLookupError:
            return False
        self._sent.append(signum.name)
        return True

    def close(self) -> None:
        """Let go of the process; nothing may be asked afterwards."""
        os.close(self._fd)

    def look(self, interpreter_age_s: float | None) -> wire.Process:
        if self.wait_death(0):
            zombie = _status(self.pid).get("State", "").startswith("Z")
            if self._status is None:
                self._status = wait_status(self._fd, self.pid, self._ticks)
            code, signum = decode_status(self._status)
            return wire.Process(
                alive=False,
                state="Z" if zombie else None,
                dead_age_s=self._clock() - (self._died_s or 0.0),
                exit_code=code,
                exit_signal=signum,
            )
        status = _status(self.pid)
        rss = status.get("VmRSS", "").split()
        threads = status.get("Threads", "")
        return wire.Process(
            alive=True,
            state=status.get("State", "")[:1] or None,
            threads=int(threads) if threads.isdecimal() else None,
            rss_bytes=int(rss[0]) * 1024 if rss else None,
            interpreter_age_s=interpreter_age_s,
            tracer=_tracer(status),
            **self._activity.rates()._asdict(),
        )

    def tracer_of_a_thread(self) -> wire.Tracer | None:
        """Who traces one of its threads: `strace -p THREAD` leaves the others alone."""
        try:
            tasks = sorted(os.listdir(f"/proc/{self.pid}/task"))
        except OSError:
            return None
        tracers = (_tracer(_status(f"{self.pid}/task/{task}")) for task in tasks)
        return next((tracer for tracer in tracers if tracer is not None), None)

    def syscall(self) -> int | None:
        """Which system call its main thread is in; None: in none, or nobody may know."""
        try:
            word = Path(f"/proc/{self.pid}/syscall").read_text(encoding="ascii").partition(" ")[0]
        except OSError:
            return None
        return int(word) if word.isdecimal() else None


def _tracer(status: dict[str, str]) -> wire.Tracer | None:
    """Who traces a task, but for the py-spy of a WorkerServer. One of another PID namespace is not
    seen: the kernel says 0.
    """
    pid = int(status.get("TracerPid") or 0)
    tracer = _status(pid) if pid else {}
    if not tracer:
        return None
    try:
        parent = Path(f"/proc/{tracer['PPid']}/cmdline").read_bytes().split(b"\0")
    except OSError:
        parent = []
    return None if _SIDECAR in parent else wire.Tracer(pid, tracer["Name"])


def _open(pid: int, start_ticks: int) -> int:
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError as exc:
        raise GoneError(f"process {pid} is gone") from exc
    if run_dir.start_ticks(pid) != start_ticks:  # checked after the open: no gap
        os.close(fd)
        raise GoneError(f"process {pid} is not the rank any more")
    return fd


def _status(pid: int | str) -> dict[str, str]:
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.splitlines())
    return {key: value.strip() for key, _, value in pairs}


# Put this one rank out, with what it has started: SIGTERM, grace, SIGKILL, then look.
#
# Loader workers, forks and compilers go when their rank goes. They are found in /proc while it
# lives, by their parents; and by the rank's process group and session where it leads these
# (torchrun starts each rank in a session of its own), which finds those whose parent is gone, and
# those of a rank that is dead. Never found: who started the rank, WorkerServers, other ranks, and
# what these started.

DEAF_S = 3.0
"""Beats come every second. Who missed three cannot run a handler of SIGTERM either."""
_KILL_WAIT_S = 5.0
_FAMILY_WAIT_S = 1.0
"""One of them may sit in the kernel (state D) for as long as a file server is away."""


@dataclass(frozen=True, slots=True)
class EvictionResult:
    """What was sent, and whether the process is gone (it may sit in the kernel, state D)."""

    signalled: tuple[Literal["SIGTERM", "SIGKILL"], ...]
    gone: bool
    started_gone: Count = 0
    """Processes that the rank had started and that were ended with it."""
    started_left: Count = 0
    """Those that were sent SIGKILL and are not gone yet."""


def evict(
    rank: PidfdProcess, view: wire.Process, grace_s: float, started: Family
) -> EvictionResult:
    """End the process, politely where it can still hear, and all that it has started.

    A stopped process keeps SIGTERM pending and a deaf interpreter never sees it: both get
    SIGKILL at once. One that is traced may be so for milliseconds only, while its
    stacks are taken.
    """
    started.look()  # who dies takes its children's parent along
    sent: list[Literal["SIGTERM", "SIGKILL"]] = []
    gone = not view.alive
    if not gone and _can_hear(view) and rank.send(signal.SIGTERM):
        sent.append("SIGTERM")
        gone = rank.wait_death(grace_s)
    if not gone:
        started.look()  # who was started meanwhile
        if rank.send(signal.SIGKILL):
            sent.append("SIGKILL")
        gone = rank.wait_death(_KILL_WAIT_S)
    return EvictionResult(tuple(sent), gone, *started.end(_FAMILY_WAIT_S))


def _can_hear(view: wire.Process) -> bool:
    deaf = view.interpreter_age_s is not None and view.interpreter_age_s > DEAF_S
    return not deaf and (view.traced or not view.stopped)


class Relation(NamedTuple):
    """One line of the process table."""

    parent: int
    group: int
    session: int
    start_ticks: int


def process_table() -> dict[int, Relation]:
    """All processes that can be seen, without the dead ones."""
    table = {}
    for pid in (int(name) for name in os.listdir("/proc") if name.isdecimal()):
        state, *numbers = run_dir.stat_fields(pid) or ["X"]
        if state not in "ZX":
            parent, group, session = map(int, numbers[:3])
            table[pid] = Relation(parent, group, session, int(numbers[18]))
    return table


class Family:
    """Holds every member by a pidfd from the look that found it: no recycled pid is hit."""

    def __init__(
        self,
        pid: int,
        spared: Callable[[], Collection[int]],
        table: Callable[[], dict[int, Relation]] = process_table,
        own_group: int | None = None,
    ) -> None:
        """`spared`: processes that are not the rank's. `own_group`: of this sidecar's processes."""
        self._pid = pid
        self._spared = spared
        self._table = table
        self._own_group = os.getpgid(0) if own_group is None else own_group
        self._rank: Relation | None = table().get(pid)
        """As it was seen last."""
        self._lock = threading.Lock()
        self._members: dict[tuple[int, int], PidfdProcess] = {}

    def look(self) -> None:
        """Find who there is now, beside those found before."""
        table = self._table()
        with self._lock:
            for pid in self._find(table):
                key = pid, table[pid].start_ticks
                if key not in self._members:
                    with contextlib.suppress(GoneError, OSError):
                        self._members[key] = PidfdProcess(*key)

    def _find(self, table: dict[int, Relation]) -> set[int]:
        others = set(self._spared())
        others |= {pid for pid, relation in table.items() if relation.group == self._own_group}
        others |= _below(others, table, {self._pid})
        spared = {self._pid, *others, *_ancestors(self._pid, table)}
        roots = {
            pid for pid, ticks in self._members if pid in table and table[pid].start_ticks == ticks
        }
        rank = self._rank
        now = table.get(self._pid, rank)
        led: set[int] = set()
        if rank is not None and now is not None and now.start_ticks == rank.start_ticks:
            roots.add(self._pid)  # else the number has gone to a stranger
            self._rank = rank = now
            led = {
                pid
                for pid, relation in table.items()
                if relation.group == self._pid == rank.group
                or relation.session == self._pid == rank.session
            }
        led -= spared
        return led | _below(roots | led, table, spared)

    def end(self, wait_s: float) -> tuple[int, int]:
        """SIGKILL to all; how many are gone, and how many are not within this time."""
        self.look()
        with self._lock:
            members, self._members = list(self._members.values()), {}
        for member in members:
            with contextlib.suppress(PermissionError):  # another user's by now
                member.send(signal.SIGKILL)
        until_s = time.monotonic() + wait_s
        gone = sum(member.wait_death(max(0.0, until_s - time.monotonic())) for member in members)
        for member in members:
            member.close()
        return gone, len(members) - gone


def _ancestors(pid: int, table: dict[int, Relation]) -> Iterator[int]:
    seen = {pid}
    while (relation := table.get(pid)) is not None and relation.parent not in seen:
        pid = relation.parent
        seen.add(pid)
        yield pid


def _below(roots: set[int], table: dict[int, Relation], spared: set[int]) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid, relation in table.items():
        children.setdefault(relation.parent, []).append(pid)
    descendants: set[int] = set()
    queue = list(roots)
    while queue:
        for child in children.get(queue.pop(), ()):
            if child not in spared and child not in descendants:
                descendants.add(child)
                queue.append(child)
    return descendants
