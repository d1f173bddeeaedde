"""The rank's process, observed, signalled and ended from outside."""

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
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from lightkeeper.worker_server import run_dir, wire
from lightkeeper.worker_server.sidecar.blocked_on import syscall_of
from lightkeeper.worker_server.sidecar.files import levels, numbers_in, sized, text_in
from lightkeeper.worker_server.wire import Count

# How a process ended, without being its parent; and whether memory ran out.
#
# Linux 6.15 gives the wait status of a dead process to any holder of its pidfd, once its parent
# has collected it (`PIDFD_GET_INFO`, linux/pidfd.h). Until then it is a zombie, and field 52 of
# /proc/PID/stat has the status. On an older kernel the status is lost once it is collected.

_INFO = struct.Struct("=QQ11Ii")
"""struct pidfd_info, first version: mask, cgroup id, pid ... fsgid, exit_code; 64 bytes."""
_GET_INFO = 0xC0000000 | _INFO.size << 16 | 0xFF << 8 | 11
"""_IOWR(PIDFS_IOCTL_MAGIC, 11, struct pidfd_info)"""
_INFO_EXIT = 1 << 3


def wait_status(pidfd: int, pid: int, start_ticks: int) -> int | None:
    """The wait status of a dead process; None if it cannot be known."""
    status = _collected(pidfd)
    if status is None:
        status = _zombie(pid, start_ticks)
    return _collected(pidfd) if status is None else status  # collected between the two looks


def _collected(pidfd: int) -> int | None:
    buffer = bytearray(_INFO.size)
    _INFO.pack_into(buffer, 0, _INFO_EXIT, *(0,) * 13)
    try:
        fcntl.ioctl(pidfd, _GET_INFO, buffer)
    except OSError:  # an older kernel, or another PID namespace
        return None
    mask, *_, status = _INFO.unpack(buffer)
    return int(status) if mask & _INFO_EXIT else None


def _zombie(pid: int, start_ticks: int) -> int | None:
    """Field 52, if this is still that process and the value is real.

    Without permission to inspect the process, the kernel shows 0 there, which looks like success.
    It makes the same check (ptrace_may_access) before it opens `io`.
    """
    fields = run_dir.stat_fields(pid)
    if len(fields) < 50 or fields[0] != "Z" or int(fields[19]) != start_ticks:
        return None
    status = int(fields[49])
    return None if not status and text_in(Path(f"/proc/{pid}/io")) is None else status


def decode_status(status: int | None) -> tuple[int | None, str | None]:
    """Exit code and name of the signal; at most one is not None."""
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
    """Counts the OOM kills in a process's cgroup, which it finds while the process lives."""

    def __init__(self, pid: int, cgroups: Path = Path("/sys/fs/cgroup")) -> None:
        self._pid, self._cgroups = pid, cgroups
        self._counter: Path | None = None
        self._latest: int | None = None
        self.look()

    def look(self) -> None:
        """Take the count again; call while the process lives, which may move to another cgroup.

        Who is killed is there for a while, and counted already: so the count before the last holds.
        """
        counter, self._counter = self._counter, None
        with contextlib.suppress(OSError, ValueError, StopIteration):
            lines = Path(f"/proc/{self._pid}/cgroup").read_text(encoding="utf-8")
            files = ("memory.events", "memory.oom_control")  # of version 2 and of version 1
            self._counter, level = next(
                (level.folder / name, level)
                for level in levels(self._cgroups, lines, "memory")
                for name in files
                if (level.folder / name).is_file()
            )
            limit = level.limit()
            self._where = level.name + (f", limit {sized(limit)}" if limit else "")
        count = self._count()
        self._before = self._latest if counter == self._counter else count
        self._latest = count

    def said(self) -> str:
        """What the OOM killer did in the cgroup since the look before the last; empty: nothing."""
        now = self._count()
        kills = 0 if now is None or self._before is None else now - self._before
        if not kills:
            return ""
        return f"the OOM killer ended {kills} of its cgroup {self._where}: likely pid {self._pid}"

    def _count(self) -> int | None:
        return None if self._counter is None else numbers_in(self._counter).get("oom_kill")


# What the kernel counts of a rank: cores used, cores waited for, bytes moved. Over some seconds.
#
# Waiting for a core means a cgroup limit, or a busy host. A rank that uses cores or moves bytes is
# working, wherever its training thread stands. So is one that waits for a child that does: a
# loader's worker, a program that it runs.

_SPAN_S: Final = 5.0
_EVERY_S: Final = 1.0
_THREADS: Final = 256
"""Only the oldest ones: 8 us each."""


class Counts(NamedTuple):
    """What a process has used since it started."""

    threads: dict[str, tuple[float, float]]
    """Seconds on a core, and ready to run without one (proc(5), schedstat). Of each child: its
    first thread, seconds on a core only."""
    bytes: int | None
    """Read and written by system calls, pipes and files alike."""
    wakes: dict[str, int]
    """Times that each thread came to a core."""


def counts(pid: int) -> Counts:
    """As far as they can be read."""
    threads: dict[str, tuple[float, float]] = {}
    family, wakes = [*map(str, run_dir.family(pid))], dict[str, int]()
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/task") as tasks:
        for task in islice(tasks, _THREADS):
            with contextlib.suppress(OSError, ValueError):  # it is gone, or the kernel has no count
                ran_s, waited_s, wakes[task.name] = _scheduled(task.path)
                threads[task.name] = ran_s, waited_s
    for child in family[1:]:
        with contextlib.suppress(OSError, ValueError):
            threads[child] = _scheduled(f"/proc/{child}")[0], 0.0
    moved = [nbytes for each in family if (nbytes := _bytes(each)) is not None]
    return Counts(threads, sum(moved) if moved else None, wakes)


def _scheduled(folder: str) -> tuple[float, float, int]:
    ran, waited, runs = Path(folder, "schedstat").read_text("ascii").split()
    return int(ran) / 1e9, int(waited) / 1e9, int(runs)


def _bytes(pid: str) -> int | None:
    try:
        words = Path(f"/proc/{pid}/io").read_text("ascii").split()
        return int(words[words.index("rchar:") + 1]) + int(words[words.index("wchar:") + 1])
    except (OSError, ValueError, IndexError):
        return None


@dataclass(eq=False)
class Activity:
    """Compares counts now with those of 5 s ago, or longer if nobody asks."""

    pid: int
    clock: Callable[[], float]
    count: Callable[[int], Counts] = counts

    def __post_init__(self) -> None:
        self._taken: deque[tuple[float, Counts]] = deque()
        self.trains = str(self.pid)
        """The thread that trains, whose waking counts."""

    def rates(self) -> dict[str, Any]:
        """`cores`, `starved`, `bytes_s`, `wakes_s` of `wire.Process`; empty: not known (yet)."""
        now_s = self.clock()
        if not self._taken or now_s - self._taken[-1][0] >= _EVERY_S:
            self._taken.append((now_s, self.count(self.pid)))
        while len(self._taken) > 1 and now_s - self._taken[1][0] >= _SPAN_S:
            self._taken.popleft()
        (before_s, before), (until_s, now) = self._taken[0], self._taken[-1]
        span_s = until_s - before_s
        if span_s < _SPAN_S or not now.threads:
            return {}
        used = [
            (ran_s - before.threads[task][0], waited_s - before.threads[task][1])
            for task, (ran_s, waited_s) in now.threads.items()
            if task in before.threads
        ]
        waits = [waited_s / span_s for _, waited_s in used]
        return {
            "cores": round(max(0.0, sum(ran_s for ran_s, _ in used) / span_s), 3),
            "starved": round(min(1.0, max(0.0, *waits)), 3) if waits else 0.0,
            "bytes_s": _rate(before.bytes, now.bytes, span_s),
            "wakes_s": _rate(before.wakes.get(self.trains), now.wakes.get(self.trains), span_s),
        }


def _rate(before: int | None, now: int | None, span_s: float) -> float | None:
    return None if before is None or now is None else round(max(0.0, (now - before) / span_s), 0)


_SIDECAR = "lightkeeper.worker_server.sidecar"
"""A word of its command line, see `rank.attach`."""


class GoneError(Exception):
    """The rank had died before its sidecar could open it."""


@dataclass(eq=False)
class PidfdProcess:
    """A process held by a pidfd: a recycled pid is never mistaken for it.

    `pidfd` is one that the process itself opened and passed on; then it may already be dead. What
    is not a pidfd of this process is not used. A death is believed when /proc shows it, too.

    Raises:
        GoneError: no such `pidfd`, and no such process, or another one with its pid.
    """

    pid: int
    start_ticks: int
    pidfd: int | None = None
    clock: Callable[[], float] = time.monotonic
    stack: int = 0
    """Of the program that attached (`run_dir.stack_of`); 0: not known."""

    def __post_init__(self) -> None:
        self._died_s: float | None = None
        self._lock = threading.Lock()
        who, held = (self.pid, self.start_ticks), self.pidfd
        self._fd = held if held is not None and _holds(held, *who) else _open(*who)
        self._status: int | None = None
        self._sent: list[str] = []
        self.activity = Activity(self.pid, self.clock)
        self._handles_sigterm: bool | None = None

    @property
    def sent(self) -> tuple[str, ...]:
        """Signals that we sent to the process."""
        return tuple(self._sent)

    def wait_death(self, timeout_s: float) -> bool:
        """True if the process is dead, waiting for it at most `timeout_s`."""
        if self._died_s is not None:
            return True
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        if not poll.poll(timeout_s * 1000):
            return False
        if run_dir.process_state(self.pid, self.start_ticks) is not None:
            with contextlib.suppress(GoneError):  # it went just now
                self._fd = _open(self.pid, self.start_ticks)
                return False
        with self._lock:  # the first to see it sets the time
            if self._died_s is None:
                self._died_s = self.clock()
        return True

    def send(self, signum: signal.Signals) -> bool:
        """Send a signal to this very process; False when it is gone."""
        try:
            signal.pidfd_send_signal(self._fd, signum)
        except ProcessLookupError:
            return False
        self._sent.append(signum.name)
        return True

    def close(self) -> None:
        """Close the pidfd; no other call is allowed afterwards."""
        os.close(self._fd)

    def look(self, interpreter_age_s: float | None) -> wire.Process:
        if self.wait_death(0):
            zombie = _status(self.pid).get("State", "").startswith("Z")
            if self._status is None:
                self._status = wait_status(self._fd, self.pid, self.start_ticks)
            code, signum = decode_status(self._status)
            return wire.Process(
                alive=False,
                state="Z" if zombie else None,
                dead_age_s=self.clock() - (self._died_s or 0.0),
                exit_code=code,
                exit_signal=signum,
                handles_sigterm=self._handles_sigterm,
            )
        status = _status(self.pid)
        # an interpreter that exits has taken its handlers back; lightkeeper's of process 1 goes too
        if not self._handles_sigterm or self.pid == 1:
            self._handles_sigterm = _catches(status, signal.SIGTERM)
        rss = status.get("VmRSS", "").split()
        threads = status.get("Threads", "")
        return wire.Process(
            alive=True,
            state=status.get("State", "")[:1] or None,
            threads=int(threads) if threads.isdecimal() else None,
            rss_bytes=int(rss[0]) * 1024 if rss else None,
            interpreter_age_s=interpreter_age_s,
            tracer=_tracer(status),
            handles_sigterm=self._handles_sigterm,
            **self.activity.rates(),
        )

    def runs_another_program(self) -> bool:
        """True if it has executed another program since the rank attached."""
        return 0 not in {self.stack, now := run_dir.stack_of(self.pid)} and now != self.stack

    def tracer_of_a_thread(self) -> wire.Tracer | None:
        """What traces one of its threads: `strace -p THREAD` leaves the others alone."""
        try:
            tasks = sorted(os.listdir(f"/proc/{self.pid}/task"))
        except OSError:
            return None
        tracers = (_tracer(_status(f"{self.pid}/task/{task}")) for task in tasks)
        return next((tracer for tracer in tracers if tracer is not None), None)

    def syscall(self, thread: int | None = None) -> int | None:
        """Which system call a thread, else its main one, is in; None: in none, or not permitted."""
        return next(iter(syscall_of(self.pid, thread)), None)


def _catches(status: Mapping[str, str], signum: signal.Signals) -> bool | None:
    """True if a process has a handler for a signal; None: not known."""
    try:
        return bool(int(status["SigCgt"], 16) >> (signum - 1) & 1)
    except (KeyError, ValueError):
        return None


def _tracer(status: dict[str, str]) -> wire.Tracer | None:
    """What traces a task, except our py-spy; of one in another PID namespace the kernel says 0."""
    pid = int(status.get("TracerPid") or 0)
    tracer = _status(pid) if pid else {}
    if not tracer:
        return None
    parent = (text_in(Path(f"/proc/{tracer['PPid']}/cmdline")) or "").split("\0")
    return None if _SIDECAR in parent else wire.Tracer(pid, tracer["Name"])


def _holds(pidfd: int, pid: int, start_ticks: int) -> bool:
    """True if it is a pidfd of this process (proc(5), fdinfo); of a dead one the pid is -1."""
    try:
        words = Path(f"/proc/self/fdinfo/{pidfd}").read_text(encoding="ascii").split()
        shown = int(words[words.index("Pid:") + 1])
    except (OSError, ValueError, IndexError):
        return False
    return shown == pid or (shown == -1 and run_dir.process_state(pid, start_ticks) is None)


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
    lines = (text_in(Path(f"/proc/{pid}/status")) or "").splitlines()
    pairs = (line.partition(":") for line in lines)
    return {key: value.strip() for key, _, value in pairs}


# End this one rank, with what it has started: SIGTERM, grace, SIGKILL, then check.
#
# Loader workers, forks and compilers are ended with their rank. They are found in /proc by their
# parents while the rank lives. If the rank leads its process group and session (torchrun starts
# each rank in its own session), these are used too: they find processes whose parent is gone, and
# those of a dead rank. Never included: what started the rank, WorkerServers, other ranks, and
# what these started.

DEAF_S = 3.0
"""Beats come every second. After three missed ones, no SIGTERM handler can run either."""
_KILL_WAIT_S = 5.0
_FAMILY_WAIT_S = 1.0
"""One of them may stay in the kernel (state D) for as long as a file server is away."""


@dataclass(frozen=True, slots=True)
class EvictionResult:
    """What was sent, and whether the process is gone (the kernel may hold it, state D)."""

    signalled: tuple[Literal["SIGTERM", "SIGKILL"], ...]
    gone: bool
    started_gone: Count = 0
    """Processes started by the rank that were ended with it."""
    started_left: Count = 0
    """Those that got SIGKILL and are not gone yet."""
    way: str = ""
    """What the rank did about its kernels before; empty: it was not asked."""


def end_rank(
    rank: PidfdProcess,
    view: wire.Process,
    grace_s: float,
    started: Family,
    gently: Callable[[], str] | None = None,
) -> EvictionResult:
    """End the process, by SIGTERM first if it can handle that, and all that it has started.

    A stopped process keeps SIGTERM pending and a hung interpreter never sees it: both get
    SIGKILL at once. A traced one gets SIGTERM: it may be stopped only briefly, for its stacks.
    Before SIGTERM, `gently` has the rank end its kernels and returns what it did.
    """
    started.look()  # before the rank dies: then its children have another parent
    sent: list[Literal["SIGTERM", "SIGKILL"]] = []
    gone, way = not view.alive, ""
    if not gone and _can_hear(view) and gently is not None:
        way = gently()
        gone = rank.wait_death(0)
    if not gone and _can_hear(view) and rank.send(signal.SIGTERM):
        sent.append("SIGTERM")
        gone = rank.wait_death(grace_s)
    if not gone:
        started.look()  # processes started meanwhile
        if rank.send(signal.SIGKILL):
            sent.append("SIGKILL")
        gone = rank.wait_death(_KILL_WAIT_S)
    return EvictionResult(tuple(sent), gone, *started.end(_FAMILY_WAIT_S), way)


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
    """All visible processes, except dead ones."""
    table = {}
    for pid in (int(name) for name in os.listdir("/proc") if name.isdecimal()):
        state, *numbers = run_dir.stat_fields(pid) or ["X"]
        if state not in "ZX":
            parent, group, session = map(int, numbers[:3])
            table[pid] = Relation(parent, group, session, int(numbers[18]))
    return table


@dataclass(eq=False)
class Family:
    """What the rank has started, each held by a pidfd: no recycled pid is ever signalled."""

    pid: int
    spared: Callable[[], Collection[int]]
    """Processes that are not the rank's."""
    table: Callable[[], dict[int, Relation]] = process_table
    own_group: int = field(default_factory=lambda: os.getpgid(0))
    """The sidecar's process group."""

    def __post_init__(self) -> None:
        self._rank: Relation | None = self.table().get(self.pid)
        """As last seen."""
        self._lock = threading.Lock()
        self._members: dict[tuple[int, int], PidfdProcess] = {}

    def look(self) -> None:
        """Find new members, besides those found before."""
        table = self.table()
        with self._lock:
            for pid in self._find(table):
                key = pid, table[pid].start_ticks
                if key not in self._members:
                    with contextlib.suppress(GoneError, OSError):
                        self._members[key] = PidfdProcess(*key)

    def _find(self, table: dict[int, Relation]) -> set[int]:
        others = set(self.spared())
        others |= {pid for pid, relation in table.items() if relation.group == self.own_group}
        others |= _below(others, table, {self.pid})
        spared = {self.pid, *others, *_ancestors(self.pid, table)}
        roots = {
            pid for pid, ticks in self._members if pid in table and table[pid].start_ticks == ticks
        }
        rank = self._rank
        now = table.get(self.pid, rank)
        led: set[int] = set()
        if rank is not None and now is not None and now.start_ticks == rank.start_ticks:
            roots.add(self.pid)  # else the pid was recycled
            self._rank = rank = now
            led = {
                pid
                for pid, relation in table.items()
                if relation.group == self.pid == rank.group
                or relation.session == self.pid == rank.session
            }
        led -= spared
        return led | _below(roots | led, table, spared)

    def end(self, wait_s: float) -> tuple[int, int]:
        """SIGKILL to all; returns how many are gone within this time, and how many are not."""
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
