"""A small model of a job: CPUs that launch, GPU streams that execute, members that must meet.

Theory of operation. A rank's CPU walks through its program and launches kernels; launching costs
microseconds and waits for nothing, so that it runs ahead, until it asks for a result (`Sync`; in
blocking mode after each call). A kernel is ready when the one before it on its stream is done, and
when the compute stream has reached the point at which it was launched. A collective's kernels start
when ready and end together when all members' kernels have started and brought the same; if they
brought different things, they stay inside for ever. A send and its recv meet likewise, n-th with
n-th. Nothing else makes a rank wait. So run-ahead, completion out of order, cascades of victims and
deadlocks follow from the programs and are not written by hand.

Streams are as in ProcessGroupNCCL: one for each communicator, and one for each pair of ranks that
exchange single sends and recvs in a group. Gloo has no GPU: its calls run in order in a thread for
each group, and compute is time of the CPU.

Every time is known when the model stops; those of kernels that never end are `inf`. A record "as of
time T" is a filter over these times (see `records`).
"""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass, field

from tests.corpus.calls import Batch, Call, Compute, Halt, Join, Programs, Step, Sync

LAUNCH_MS = 0.03
"""What the CPU needs to launch a collective; a kernel of its own takes a third."""
WIRE_MS = 0.25
"""A transfer at the least."""
ERROR_NOTICED_MS = 4.0
"""How long after an error on its GPU a CPU goes on launching."""


@dataclass(eq=False)
class Kernel:
    """One launch on one rank's GPU (with gloo: one task of a group's thread)."""

    rank: int
    launched: float
    lasts: float
    calls: tuple[Call, ...] = ()
    keys: tuple[tuple[object, ...], ...] = ()
    """Where it meets its peers."""
    missing: int = 0
    """How many kernels must be done before this one may start."""
    ready: float = 0.0
    done: float = math.inf
    fate: str = ""
    mark: str = ""
    open_legs: int = 0
    latest: float = 0.0
    waiters: list[Kernel] = field(default_factory=list)
    cpu_waits: bool = False

    @property
    def is_done(self) -> bool:
        return self.done < math.inf

    @property
    def started(self) -> float:
        return math.inf if self.missing else self.ready


@dataclass
class Entry:
    """What one rank's recorder noted of one call."""

    call: Call
    kernel: Kernel
    collective_seq: int
    p2p_seq: int
    op_id: int
    created: float
    part: bool = False
    """Of a batch: NCCL gives such a part no events, so its state stays `scheduled` for ever."""
    ends: bool = False
    """The entry `nccl:coalesced` that ends a batch."""


@dataclass
class Run:
    """Everything that happened."""

    programs: Programs
    entries: dict[int, list[Entry]]
    halted: dict[int, str]
    """Ranks whose CPU reached a `Halt`: its mark."""
    errors: dict[int, float]
    """Ranks whose GPU failed: when."""
    fired: set[str]
    """Marks of the faults that were reached."""

    @property
    def last(self) -> float:
        """When the last thing happened."""
        times = [0.0]
        for entries in self.entries.values():
            for entry in entries:
                times.append(entry.created)
                times += [t for t in (entry.kernel.started, entry.kernel.done) if t < math.inf]
        return max(times)


class _Cpu:
    def __init__(self, rank: int, steps: list[Step], start: float) -> None:
        self.rank, self.steps, self.now = rank, steps, start
        self.at = 0
        self.waits_for: list[Kernel] = []
        self.tails: dict[object, Kernel] = {}
        self.last_of: dict[int, Kernel] = {}
        self.joins: list[Kernel] = []
        self.seqs: dict[int, list[int]] = {}
        self.counts: dict[tuple[object, ...], int] = {}


class Simulation:
    """One job. `run()` once."""

    def __init__(
        self, programs: Programs, rng: random.Random, *, blocking: bool, gloo: bool, eager: bool
    ) -> None:
        self._programs, self._rng = programs, rng
        self._blocking, self._gloo, self._eager = blocking, gloo, eager
        self._cpus = {
            rank: _Cpu(rank, steps, rng.uniform(0, 2)) for rank, steps in programs.steps.items()
        }
        self._meetings: dict[tuple[object, ...], list[tuple[Kernel, Call]]] = {}
        self._run = Run(programs, {rank: [] for rank in programs.steps}, {}, {}, set())
        self._turns: deque[_Cpu] = deque(self._cpus.values())
        self._resolved: deque[Kernel] = deque()

    def run(self) -> Run:
        while self._turns:
            self._walk(self._turns.popleft())
            self._settle()
        self._forget_what_failed_cpus_did()
        for entries in self._run.entries.values():
            self._run.fired |= {entry.call.mark for entry in entries if entry.call.mark}
        return self._run

    # the CPU

    def _walk(self, cpu: _Cpu) -> None:
        while cpu.rank not in self._run.halted:
            if any(not kernel.is_done for kernel in cpu.waits_for):
                for kernel in cpu.waits_for:
                    kernel.cpu_waits = True
                return
            cpu.now = max([cpu.now, *(kernel.done for kernel in cpu.waits_for)])
            cpu.waits_for = []
            if cpu.at == len(cpu.steps):
                return
            step = cpu.steps[cpu.at]
            cpu.at += 1
            if isinstance(step, Halt):
                self._run.halted[cpu.rank] = step.mark
                self._run.fired.add(step.mark)
                return
            self._do(cpu, step)
            self._settle()

    def _do(self, cpu: _Cpu, step: Step) -> None:
        match step:
            case Compute():
                self._compute(cpu, step)
            case Call():
                kernel = self._launch(cpu, (step,))
                if self._blocking:
                    cpu.waits_for = [kernel]
                elif step.waited:
                    self._wait_in_stream(cpu, kernel)
            case Batch():
                kernel = self._launch(cpu, step.calls, batch=True)
                if self._blocking:
                    cpu.waits_for = [kernel]
                else:
                    self._wait_in_stream(cpu, kernel)
            case Join():
                if step.team in cpu.last_of:
                    self._wait_in_stream(cpu, cpu.last_of[step.team])
            case Sync():
                tail = cpu.tails.get("compute")
                cpu.waits_for = [*cpu.joins, *([tail] if tail else [])]

    def _wait_in_stream(self, cpu: _Cpu, kernel: Kernel) -> None:
        if self._gloo:
            cpu.waits_for = [kernel]
        else:
            cpu.joins.append(kernel)

    def _compute(self, cpu: _Cpu, step: Compute) -> None:
        lasts = step.ms * self._rng.uniform(0.95, 1.08)
        if self._gloo:
            cpu.now += lasts
            return
        cpu.now += LAUNCH_MS / 3
        kernel = Kernel(cpu.rank, cpu.now, lasts, fate=step.fate)
        if step.mark and not step.fate:
            self._run.fired.add(step.mark)
        kernel.mark = step.mark
        self._enqueue(cpu, kernel, "compute", cpu.joins)
        cpu.joins = []

    def _launch(self, cpu: _Cpu, calls: tuple[Call, ...], *, batch: bool = False) -> Kernel:
        cpu.now += LAUNCH_MS * self._rng.uniform(0.7, 1.6)
        keys = tuple(self._key(cpu, call) for call in calls)
        kernel = Kernel(
            cpu.rank, cpu.now, WIRE_MS * self._rng.uniform(0.8, 1.3), calls=calls, keys=keys
        )
        self._note(cpu, calls, kernel, batch=batch)
        first = calls[0]
        stream: object = ("group", first.team)
        if first.p2p and not batch:
            stream = ("pair", first.team, first.peer)
        compute = cpu.tails.get("compute")
        before = [*cpu.joins, *([compute] if compute else [])]
        cpu.last_of[first.team] = kernel
        self._enqueue(cpu, kernel, stream, before)
        return kernel

    def _key(self, cpu: _Cpu, call: Call) -> tuple[object, ...]:
        if call.p2p:
            me = self._programs.teams[call.team].members.index(cpu.rank)
            pair = (me, call.peer) if call.sends else (call.peer, me)
            channel: tuple[object, ...] = ("p2p", call.team, *pair)
        else:
            channel = ("all", call.team)
        cpu.counts[channel] = number = cpu.counts.get(channel, 0) + 1
        return (*channel, number)

    def _note(self, cpu: _Cpu, calls: tuple[Call, ...], kernel: Kernel, *, batch: bool) -> None:
        seqs = cpu.seqs.setdefault(calls[0].team, [0, 0, 0])
        seqs[1 if calls[0].p2p else 0] += 1
        noted = self._run.entries[cpu.rank]
        for call in calls:
            seqs[2] += 1
            p2p_seq = seqs[1] if call.p2p else 0
            noted.append(Entry(call, kernel, seqs[0], p2p_seq, seqs[2], cpu.now, part=batch))
        if batch:
            noted.append(
                Entry(calls[-1], kernel, seqs[0], seqs[1], seqs[2], cpu.now + 0.01, ends=True)
            )

    # the GPU

    def _enqueue(self, cpu: _Cpu, kernel: Kernel, stream: object, before: list[Kernel]) -> None:
        previous = cpu.tails.get(stream)
        cpu.tails[stream] = kernel
        needed = {id(item): item for item in [*before, *([previous] if previous else [])]}
        kernel.ready = kernel.launched
        for other in needed.values():
            if other.is_done:
                kernel.ready = max(kernel.ready, other.done)
            else:
                kernel.missing += 1
                other.waiters.append(kernel)
        if kernel.missing == 0:
            self._resolved.append(kernel)

    def _settle(self) -> None:
        while self._resolved:
            self._start(self._resolved.popleft())

    def _start(self, kernel: Kernel) -> None:
        if not kernel.calls:
            if kernel.fate:
                self._run.fired.add(kernel.mark)
            if kernel.fate == "error":
                self._run.errors[kernel.rank] = kernel.ready
            if not kernel.fate:
                self._finish(kernel, kernel.ready + kernel.lasts)
            return
        kernel.open_legs = len(kernel.calls)
        for call, key in zip(kernel.calls, kernel.keys, strict=True):
            meeting = self._meetings.setdefault(key, [])
            meeting.append((kernel, call))
            if call.p2p:
                self._meet_pair(meeting)
            else:
                self._meet_all(meeting, call)

    def _meet_pair(self, meeting: list[tuple[Kernel, Call]]) -> None:
        if len(meeting) < 2 or meeting[0][1].wire != meeting[1][1].wire:
            return
        end = max(kernel.ready for kernel, _ in meeting) + meeting[0][0].lasts
        for kernel, _ in meeting:
            self._leg_done(kernel, end)

    def _meet_all(self, meeting: list[tuple[Kernel, Call]], call: Call) -> None:
        members = self._programs.teams[call.team].members
        if self._eager and call.op == "broadcast":
            self._meet_root(meeting, members)
            return
        if len(meeting) < len(members) or len({met.wire for _, met in meeting}) > 1:
            return
        end = max(kernel.ready for kernel, _ in meeting) + meeting[0][0].lasts
        for kernel, _ in meeting:
            self._leg_done(kernel, end)

    def _meet_root(self, meeting: list[tuple[Kernel, Call]], members: tuple[int, ...]) -> None:
        """A small broadcast fits into NCCL's buffers: its root is done when it has sent."""
        roots = [k for k, call in meeting if call.root is not None and members[call.root] == k.rank]
        if not roots or len({call.wire for _, call in meeting}) > 1:
            return
        for kernel, _ in meeting:
            if not kernel.is_done:
                self._leg_done(kernel, max(kernel.ready, roots[0].ready) + kernel.lasts)

    def _leg_done(self, kernel: Kernel, end: float) -> None:
        kernel.open_legs -= 1
        kernel.latest = max(kernel.latest, end)
        if kernel.open_legs == 0:
            self._finish(kernel, kernel.latest)

    def _finish(self, kernel: Kernel, end: float) -> None:
        kernel.done = end
        for waiter in kernel.waiters:
            waiter.ready = max(waiter.ready, end)
            waiter.missing -= 1
            if waiter.missing == 0:
                self._resolved.append(waiter)
        if kernel.cpu_waits:
            kernel.cpu_waits = False
            self._turns.append(self._cpus[kernel.rank])

    def _forget_what_failed_cpus_did(self) -> None:
        for rank, when in self._run.errors.items():
            entries = self._run.entries[rank]
            last = when + ERROR_NOTICED_MS
            self._run.entries[rank] = [entry for entry in entries if entry.created <= last]
