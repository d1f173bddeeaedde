"""Put this one rank out, with what it has started: SIGTERM, grace, SIGKILL, then look.

Loader workers, forks and compilers go when their rank goes. They are found in /proc while it lives,
by their parents; and by the rank's process group and session where it leads these (torchrun starts
each rank in a session of its own), which finds those whose parent is gone, and those of a rank that
is dead. Never found: who started the rank, WorkerServers, other ranks, and what these started.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from worker_server import run_dir, wire
from worker_server.sidecar.process import GoneError, PidfdProcess
from worker_server.sidecar.witness import DEAF_S
from worker_server.wire import Count

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


def process_table(proc: Path = Path("/proc")) -> dict[int, Relation]:
    """All processes that can be seen, without the dead ones."""
    table = {}
    for pid in (int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal()):
        state, *numbers = run_dir.stat_fields(pid, proc) or ["X"]
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
        self._leads: Relation | None = table().get(pid)
        self._lock = threading.Lock()
        self._members: dict[tuple[int, int], PidfdProcess] = {}

    def look(self) -> None:
        """Find who there is now, beside those found before."""
        table = self._table()
        with self._lock:
            for pid in self._found(table):
                key = pid, table[pid].start_ticks
                if key not in self._members:
                    with contextlib.suppress(GoneError, OSError):
                        self._members[key] = PidfdProcess(*key)

    def _found(self, table: dict[int, Relation]) -> set[int]:
        others = set(self._spared())
        others |= {pid for pid, one in table.items() if one.group == self._own_group}
        others |= _below(others, table, {self._pid})
        spared = {self._pid, *others, *_ancestors(self._pid, table)}
        known = {
            pid for pid, ticks in self._members if pid in table and table[pid].start_ticks == ticks
        }
        leads = self._leads
        now = table.get(self._pid, leads)
        found: set[int] = set()
        if leads is not None and now is not None and now.start_ticks == leads.start_ticks:
            known.add(self._pid)  # else the number has gone to a stranger
            self._leads = leads = now
            found = {
                pid
                for pid, one in table.items()
                if one.group == self._pid == leads.group
                or one.session == self._pid == leads.session
            }
        found -= spared
        found |= _below(known | found, table, spared)
        return found

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
    found: set[int] = set()
    queue = list(roots)
    while queue:
        for child in children.get(queue.pop(), ()):
            if child not in spared and child not in found:
                found.add(child)
                queue.append(child)
    return found
