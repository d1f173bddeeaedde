"""The black box: everything known about the rank, now or when it died."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from msgspec import structs

from lightkeeper.worker_server import run_dir, wire
from lightkeeper.worker_server.rank.page import layout
from lightkeeper.worker_server.rank.page.reader import PageReader
from lightkeeper.worker_server.sidecar import RefusalError, SilentError, merge
from lightkeeper.worker_server.sidecar.ask_again import AskAgain, asks_again
from lightkeeper.worker_server.sidecar.blocked_on import awaited_by, blocked_on
from lightkeeper.worker_server.sidecar.host import share
from lightkeeper.worker_server.sidecar.last_words import Remains
from lightkeeper.worker_server.sidecar.machine import Machine
from lightkeeper.worker_server.sidecar.merge import ClockPairs
from lightkeeper.worker_server.sidecar.metrics import StepFollower
from lightkeeper.worker_server.sidecar.network import Network, interfaces
from lightkeeper.worker_server.sidecar.process import DEAF_S, PidfdProcess
from lightkeeper.worker_server.sidecar.recorders import MAIN, ControlPlane, Recorders
from lightkeeper.worker_server.sidecar.stacks import (
    HangWatch,
    Mark,
    RankProgress,
    Stacks,
    StackSample,
    StandstillWitness,
    Taken,
    first_in_note,
)

_RECORD_EVERY_S = 30.0
_RECORD_DUTY = 0.001
"""Share of one CPU of the rank that fetching torch's record may cost: a record of 2,000 entries
takes the rank 18 ms, one of 20,000 more than a second."""
_RECORD_FRESH_S = 1.0
_STANDS_EVERY_S, _STANDS_DUTY = 5.0, 0.05
"""How often while the rank hangs, if some heads come only with a full record."""
_STANDS_S = 1.5
"""Without a move for so long, its connections are looked at each second."""
_BEAT_S = 1.0
"""A rank looks for orders four times a second."""
_OOM_LOOKS, _OOM_LOOK_S = 8, 0.5
"""How often, and in how many seconds, the kernel's log is asked why a rank was killed."""
_WITHOUT = "What there is: /v1/state has the phase and its age, /v1/flight_recorder the call sites."


class BlackBox:
    """Answers for one rank, alive or dead."""

    def __init__(
        self,
        page: PageReader,
        process: PidfdProcess,
        torch: ControlPlane,
        stacks: Stacks,
        files: run_dir.RankFiles,
        *,
        machine: bool = True,
    ) -> None:
        """`machine`: whether the host's witnesses are heard."""
        self.follower = StepFollower(page)
        self.page = page
        self._process = process
        self.recorders = Recorders(torch, self.process, lambda: page.backends)
        self.network = Network(process.pid, self._opened)
        self.ask_again = AskAgain(lambda: page.lighthouse, self._shut, on=asks_again(os.environ))
        self._files = files
        self._ordering = threading.Lock()
        self._stacks = stacks
        self.machine = Machine(files.page.parent, page.identity.host, on=machine)
        self._remains = Remains(page, process, files.crash, os.environ, self.machine)
        self._shares = files.seen.exists()  # a sidecar before this one did
        self._clock = ClockPairs().read()
        self._last_stacks: Taken | None = None
        self._hangs = HangWatch()
        self._standstill = StandstillWitness()
        self._unseen = False
        """True if the neighbours were given connections or heads that no page holds."""
        self._file: str | None = None
        """What it waited for in the kernel when its stacks were last taken."""
        self._hang_kept_s = 0.0
        """Start of the hang for which a record was fetched."""

    @property
    def identity(self) -> wire.Identity:
        return self.page.identity

    @property
    def age_s(self) -> float:
        """Since the rank's process began."""
        born_s = self.page.start_ticks / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - born_s)

    def process(self) -> wire.Process:
        age_s = None if self.page.leaving else self.page.beat_age_s(time.monotonic_ns())
        process = self._process.look(age_s)
        if process.dead_age_s is not None and age_s is not None and age_s + 1 < process.dead_age_s:
            return wire.Process(alive=True, state=None, interpreter_age_s=age_s)  # its page moves
        if self._hangs.hanging and process.alive and process.tracer is None:
            return structs.replace(process, tracer=self._process.tracer_of_a_thread())
        return process

    def state(self) -> wire.StateReport:
        """The answer of `GET /v1/state`."""
        process = self.process()
        now_ns = time.monotonic_ns()
        report = self.page.report(process, now_ns)
        heads = report.heads + self._recorded(process, now_ns)
        mark = RankProgress(report.step, heads, report.transfers).mark
        return structs.replace(
            report,
            heads=heads,
            witness=self._standstill.witness(mark, now_ns * 1e-9),
            addresses=self.network.addresses,
            connections=self._odd(now_ns * 1e-9),
            machine=self._machine(now_ns * 1e-9),
            ending=None if process.alive else self._remains.ending(process),
        )

    def parting(self) -> wire.StateReport:
        """The state of a rank that is ending, as if it were dead by now."""
        report = self.state()
        if not report.process.alive:
            return report
        signum = "SIGTERM" if self.page.ends_by_sigterm else None
        process = structs.replace(report.process, alive=False, dead_age_s=0.0, exit_signal=signum)
        return structs.replace(report, process=process, ending=self._remains.ending(process))

    def _machine(self, now_s: float) -> tuple[wire.Testimony, ...]:
        """What its host's witnesses say, and the file that it waits for while it stands still."""
        said = self.machine.of_rank(self._process.pid)
        if self._file is None or not self._hangs.hanging:
            return said
        for_s = max(0.0, now_s - self._hangs.since_s)
        text = f"it waits for {self._file}"[:200]
        pids = (self._process.pid,)
        row = wire.Testimony("kernel", wire.Weight.SLOW, "file-blocked", text, 0, for_s, pids=pids)
        return (*said[: wire.TESTIMONIES_MOST - 1], row)

    def learn_ending(self) -> None:
        """Learn how the rank ended; called once, after its death. May wait for a file server."""
        self._remains.learn(process := self.process())
        self._share()
        for _ in range(_OOM_LOOKS if process.exit_signal == "SIGKILL" else 0):
            time.sleep(_OOM_LOOK_S)
            if self._remains.oom_kill(process) is not None:
                self._share()
                return

    def _share(self) -> None:
        """Share with the neighbours what the page does not hold."""
        with contextlib.suppress(OSError):  # no space: they know less
            self._shares = share(self._files.seen, self.state(), time.monotonic())

    def steps(self, since: int = 0) -> wire.StepLog:
        """The answer of `GET /v1/steps`: finished attempts after `since`."""
        alive = not self._process.wait_death(0)
        rows, dropped = self.page.steps(since, time.monotonic_ns())
        return wire.StepLog(self.identity, alive, rows, dropped)

    def last_words(self) -> wire.LastWords:
        """The answer of `GET /v1/last_words`."""
        return self._remains.words(self.process())

    def flight_record(self, *, only_active: bool = False) -> wire.FlightRecord:
        """The answer of `GET /v1/flight_recorder`; asks torch if the last answer is old."""
        alive = not self._process.wait_death(0)
        if alive:
            self.recorders.refresh(_RECORD_FRESH_S, self.page.entered)
        kept = self.recorders.kept
        main = kept[MAIN]
        self._clock = clock = self._clock.read()
        now_ns = time.monotonic_ns()
        entries, dropped = self.page.ring(now_ns)
        whole = merge.merge(entries, main.record, now_ns, clock)
        others: dict[str, wire.BackendRecord] = {}
        for name in kept.keys() - {MAIN}:
            other = merge.merge(whole.ring, kept[name].record, now_ns, clock, name)
            whole = replace(whole, ring=other.ring)
            other = merge.open_in(other) if only_active else other
            others[name] = wire.BackendRecord(
                other.torch, kept[name].age_s, kept[name].error, other.torch_only
            )
        merged = merge.unfinished(whole) if only_active else whole
        return wire.FlightRecord(
            identity=self.identity,
            alive=alive,
            members=self.page.members(),
            ring=merged.ring,
            dropped=dropped,
            torch=merged.torch,
            torch_age_s=main.age_s,
            torch_error=main.error,
            torch_last_age_s=merge.last_age_s(merged, now_ns, clock),
            torch_only=merged.torch_only,
            recorders=dict(sorted(others.items())),
        )

    def _opened(self) -> dict[str, Any]:
        """What the rank's sockets are for, by inode, or by the port of a server."""
        uses = run_dir.read_json(self._files.sockets)
        servers = {"store": os.environ.get("MASTER_PORT"), "lighthouse": self.page.lighthouse}
        for use, address in servers.items():
            if address:
                uses[f":{address.rpartition(':')[2]}"] = use
        return uses

    def network_report(self) -> wire.NetworkReport:
        """The answer of `GET /v1/network`."""
        network, now_s = self.network, time.monotonic()
        alive = not self._process.wait_death(0)
        rows = network.connections() if alive else network.odd(now_s)
        return wire.NetworkReport(
            self.identity, alive, 0.0 if alive else network.age_s(now_s), network.addresses, rows,
            interfaces(), network.error,
        )  # fmt: skip

    def release(self, quorum_id: int, addresses: Sequence[str], wait_s: float) -> tuple[int, str]:
        """Have the rank end its exchange in a quorum: how many connections, and what it said.

        Raises:
            SilentError: no answer in time; it may follow still.
        """
        answer = self._order({"quorum_id": quorum_id, "addresses": [*addresses]}, wait_s)
        return int(answer.get("ended", 0)), str(answer.get("said", ""))

    def end_gently(self, manner: str, wait_s: float) -> str:
        """Have the rank end what it runs on its devices; returns what it did, or why it did not.

        `manner`: `park` or `abort`; empty: by whether it hangs. `wait_s`: for the end of a step.
        """
        park = manner == "park" or (not manner and not self._hangs.hanging)
        try:
            answer = self._order({"park": park, "wait_s": wait_s}, wait_s + _BEAT_S)
        except (SilentError, OSError) as exc:
            return str(exc)
        return str(answer.get("said", ""))[:200]

    def _odd(self, now_s: float) -> tuple[wire.Connection, ...]:
        odd = (*self.ask_again.ended(now_s), *self.network.odd(now_s))
        return odd[: wire.CONNECTIONS_MOST]

    def _shut(self, inodes: Collection[int]) -> int:
        """Have the rank shut sockets: how many."""
        with contextlib.suppress(SilentError, OSError):
            return int(self._order({"shut": [*inodes]}, _BEAT_S).get("ended", 0))
        return 0

    def _order(self, order: Mapping[str, Any], wait_s: float) -> Mapping[str, Any]:
        order = {"id": os.urandom(8).hex(), **order}
        with self._ordering:  # a second one would replace one that is not read yet
            run_dir.write_json(self._files.order, order)
            until_s = time.monotonic() + wait_s
            while time.monotonic() < until_s:
                answer = run_dir.read_json(self._files.answer)
                if answer.get("id") == order["id"]:
                    return answer
                if self._process.wait_death(0.05):
                    raise SilentError("the rank is dead")
        raise SilentError(f"the rank has not answered within {wait_s:g} s")

    def tick(self) -> None:
        """Fetch what a dead rank could not give; called about once a second."""
        self.follower.follow()
        self._clock = self._clock.read()
        if self._process.wait_death(0):
            return
        self._remains.look()
        self.recorders.look(self._hangs.since_s)
        self._keep_record()
        self._look_at_hang()
        now_s = time.monotonic()
        self.network.look(now_s, stands=now_s - self._hangs.since_s > _STANDS_S)
        self.ask_again.look(self.network.broken, now_s)

    def _keep_record(self) -> None:
        entered, kept = self.page.entered, self.recorders.kept.values()
        taken_s = max(answer.taken_s for answer in kept)
        if not (entered or self.page.backends):
            return
        if not taken_s:
            self.recorders.refresh(_RECORD_EVERY_S, entered)
            return
        cost_s, age_s = sum(answer.cost_s for answer in kept), time.monotonic() - taken_s
        due = age_s > max(_RECORD_EVERY_S, cost_s / _RECORD_DUTY)
        moved = len(kept) > 1 or all(answer.entered != entered for answer in kept)
        stands = self._hangs.hanging and self.recorders.blind
        if stands and age_s > max(_STANDS_EVERY_S, cost_s / _STANDS_DUTY):
            due = moved = True
        since_s = self._hangs.since_s
        # once per hang, before a watchdog or an operator kills the rank
        hangs_anew = self._hangs.hanging and since_s != self._hang_kept_s
        if (due and moved) or hangs_anew:
            self._hang_kept_s = since_s
            self.recorders.refresh(_RECORD_FRESH_S, entered)

    def _look_at_hang(self) -> None:
        """Take the stacks of a rank without progress, without stopping it."""
        process = self.process()
        progress = self._progress(process)
        due = self._hangs.due(process, progress, time.monotonic())
        step, mark = progress.step, progress.mark
        self._share_what_changed(progress.heads, mark)
        if not due or self.page.closed:
            return
        sample = self._sample(process)
        if sample is None or sample.taken_s < self._hangs.since_s:
            return
        if mark == self._progress(process).mark:
            hidden = self._remains.hidden(None if step is None else step.last_commit_age_s)
            self._standstill.add(sample._replace(error=hidden), mark, waits=progress.waits)
            self._share()

    def _share_what_changed(self, heads: Sequence[wire.GroupHead], mark: Mark) -> None:
        unseen = bool(self.network.odd(0.0)) or any(h.read_age_s is not None for h in heads)
        if unseen or self._unseen or (self._shares and not self._standstill.witness(mark, 0.0)):
            self._share()
        self._unseen = unseen

    def _progress(self, process: wire.Process) -> RankProgress:
        now_ns = time.monotonic_ns()
        heads = self.page.heads(now_ns) + self._recorded(process, now_ns)
        return RankProgress(self.page.step_state(now_ns), heads, self.page.transfers(now_ns))

    def _recorded(self, process: wire.Process, now_ns: int) -> tuple[wire.GroupHead, ...]:
        """Heads of torch's recorders."""
        now_s, dead_s = now_ns * 1e-9, process.dead_age_s
        ended_s = None if dead_s is None else now_s - dead_s
        return self.recorders.heads.by_now(now_s, self._hangs.since_s, ended_s)

    def _sample(self, process: wire.Process) -> StackSample | None:
        """By py-spy, else from the beat."""
        note = self.page.note(layout.NOTE_STACKS, time.monotonic_ns())
        _, trains, noted = first_in_note(note[0] if note else "")
        self._process.activity.trains = str(trains or self._process.pid)
        try:
            look = self._stacks.look(trains)
        except SilentError:
            return note and StackSample(noted, time.monotonic() - note[1])
        self._last_stacks = look.taken
        deaf = (process.interpreter_age_s or 0.0) > DEAF_S and not look.owns_gil
        # waiting for the GIL is a futex call, like waiting for a lock
        stands = look.behind or look.main
        self.network.awaited = awaited_by(self._process.pid, stands.number)
        self._file = blocked_on(self._process.pid, stands.number)
        syscall = None if deaf else self._process.syscall(stands.number)
        behind = look.behind and look.behind.name
        return StackSample(stands.calls, look.taken.taken_s, syscall, behind)

    def stacks(self, *, native: bool = False) -> wire.Trace:
        """The rank's stacks; after its death, all that were kept, newest first.

        Raises:
            SilentError: none could be taken.
            RefusalError: the rank is dead and none were taken before.
        """
        process = self.process()
        if process.alive:
            try:
                taken = self._stacks.take(
                    pause=not (process.stopped or process.tracer), native=native
                )
            except SilentError as exc:
                if not self._process.wait_death(0):  # else it died meanwhile
                    return self._stacks_from_inside(exc, native=native)
            else:
                self._last_stacks = taken
                if not taken.again:
                    return wire.Trace(taken.text, "py-spy", 0.0)
                age_s = time.monotonic() - taken.taken_s
                again = f"# by py-spy, {age_s:.2f} s ago, for an earlier request\n"
                return wire.Trace(again + taken.text, "py-spy", age_s)
        return self._stacks_of_the_dead()

    def _stacks_from_inside(self, why: SilentError, *, native: bool) -> wire.Trace:
        """What the beat wrote, for when py-spy fails."""
        note = self.page.note(layout.NOTE_STACKS, time.monotonic_ns())
        if note is None:
            raise SilentError(f"{why}. Nor did the rank write any by itself. {_WITHOUT}") from why
        text, age_s = note
        lacks = "no native frames, " if native else ""
        return wire.Trace(
            f"# {why}.\n"
            f"# These the rank wrote {age_s:.1f} s ago by its beat, once a second while its\n"
            f"# interpreter runs: not of this moment, {lacks}and nothing tells who was idle.\n"
            f"{text}",
            "the rank's own beat",
            age_s,
        )

    def _stacks_of_the_dead(self) -> wire.Trace:
        kept, now_ns = [], time.monotonic_ns()
        if self._last_stacks is not None:
            age_s = now_ns * 1e-9 - self._last_stacks.taken_s
            kept.append((age_s, "by py-spy", self._last_stacks.text))
        note = self.page.note(layout.NOTE_STACKS, now_ns)
        if note is not None:
            kept.append((note[1], "by the rank's own beat, once a second", note[0]))
        crash = self._remains.crash()
        if crash is not None:
            kept.append((crash.age_s or 0.0, f"by {crash.source}", crash.text))
        if not kept:
            raise RefusalError(410, "the rank is dead and no stacks were taken before it died")
        dead_age_s = self.process().dead_age_s or 0.0
        text = "\n".join(
            f"# {source}, {age_s:.1f} s ago: {max(0.0, age_s - dead_age_s):.1f} s before the rank "
            f"died\n{text.rstrip()}\n"
            for age_s, source, text in sorted(kept)
        )
        return wire.Trace(text, "what was kept", min(kept)[0])
