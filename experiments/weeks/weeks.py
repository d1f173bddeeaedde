"""`python -m experiments.weeks --ranks 16384 --days 28`: weeks of a large fleet in minutes.

The real pipeline (history, detectors, tracker, policy with its guards and budgets), the real
quarantine, and the real orders to evict, over a simulated fleet and what happens to one
(`experiments.weeks.faults`), on a virtual clock: nobody sleeps. Each accusation and each eviction
is held against the truth.

**What is left out, and why the result holds.**

- *Quiet time.* Between two events all ranks step as they did before; `LongFleet.skip` moves the
  fleet on by whole steps, and the pipeline's next snapshot is hours later. Its memory, budgets,
  lessons and quarantines stay, and age. Ticked one by one are each event until nothing has changed
  for a while, and healthy windows at random. `tests/experiments/test_weeks.py` runs the same hours
  with and without skipping: the same accusations and evictions.
- *Groups to which nothing happens.* Simulated are some groups with all their ranks (`--sample`
  ranks). What happens anywhere in the fleet happens to them, in turn; after each, its group comes
  back on hosts of other names, as it stands for another group then. So budgets, cool-downs and
  overlaps are those of the whole fleet, and shares (breaker, silent targets) are stricter than
  there: one group of four is more than one of a thousand. What a sample cannot show is the chance
  noise of all
  others: healthy rank-hours that were looked at are told beside the result.

Lost time is counted in rank-seconds of the whole fleet: what the other groups stood, times all
ranks, and what a group was away, times its ranks. Two more worlds are reckoned for each event:

- *without a keeper*: TorchFT alone with its defaults (measured, docs and `LOST_JOB_S`): who waits
  inside a collective for a group that heartbeats ends after 125 s, the job with it, and begins
  again from its last checkpoint; slow ranks stay slow; who dies whole is forgotten after 5.6 s.
- *an oracle*: the culprit's group is put out at once, at the price of one eviction.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import time
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

from experiments.weeks.faults import DAY_S, NOBODY, STOPS, WORTHY, Fault, timeline
from experiments.weeks.long import A_HOST, START_S, LongFleet
from lightkeeper.monitor.act import quarantine as offences
from lightkeeper.monitor.act.evictor import deny_launchers
from lightkeeper.monitor.act.quarantine import Quarantine
from lightkeeper.monitor.decide.pipeline import Pipeline
from lightkeeper.monitor.loop.evictions import accused_in, handed_over
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import Eviction, Scope
from lightkeeper.monitor.model.incident import Incident, State
from lightkeeper.monitor.model.names import Host
from lightkeeper.monitor.model.observation import Failure, Snapshot, Vitals
from lightkeeper.monitor.model.verdict import Confidence
from tests.changed import replace
from tests.monitor.fleet import (
    cpu_stall,
    flip,
    gil,
    hang,
    lighthouse_restart,
    mismatch,
    nan,
    pause,
    raises,
    recover,
    runs,
    slow,
    stop,
)
from tests.monitor.fleet.rank import START_S as BEGAN_S

TIMEOUT_S: Final = 125.0
"""After which survivors of a hang have crashed, with TorchFT's defaults (docs, measured)."""
JOB_RESTART_S: Final = 600.0
CHECKPOINT_S: Final = 1800.0
"""Between two checkpoints; half of it is lost with a job."""
LOST_JOB_S: Final = TIMEOUT_S + JOB_RESTART_S + CHECKPOINT_S / 2
FORGOTTEN_S: Final = 5.6
"""Until the others go on without a group whose heartbeat has ended (measured)."""
PERSON_S: Final = 1800.0
"""Until a person has dealt with what waits for one."""

TICK_S: Final = 2.0
_SETTLED_TICKS: Final = 12
"""Without a change of any incident, before time is skipped; more of them beside a slow rank."""
_LEAD_S: Final = 4.0
"""Ticked before an event."""
_MISSED_S: Final = 900.0
"""A fault that stands for so long has been missed; a person ends it."""
_AFTERWARDS_S: Final = 10.0
"""Who is accused so long after the group began anew is another process, and well."""
_NOT_OF_RANKS: Final = NOBODY
_STANDS: Final = frozenset({"checkpoint", "evaluation", "undeclared pause", "data away",
                            "Lighthouse restarts", "slow network"})  # fmt: skip
"""What holds the fleet up for a while, whoever looks."""


class Clock:
    """What the quarantine asks; the fleet's."""

    def __init__(self) -> None:
        self.fleet: LongFleet | None = None

    def ahead_s(self) -> float:
        return 0.0

    def troubles(self):
        return iter(())

    def now_s(self) -> float:
        """Now."""
        return BEGAN_S if self.fleet is None else self.fleet.now_s

    def monotonic_s(self) -> float:
        """The same."""
        return self.now_s()


class Nowhere:
    """A store of the quarantine that keeps nothing: the list itself is never lost here."""

    def save_quarantine(self, entry: Any) -> None:
        """Nothing."""

    def drop_quarantine(self, scope: Any, name: str) -> None:
        """Nothing."""

    def save_quarantine_event(self, event: Any) -> None:
        """Nothing."""

    def drop_quarantine_event(self, event: Any) -> None:
        """Nothing."""

    def flush(self) -> bool:
        """Done."""
        return True


@dataclass
class Happened:
    """One fault, what was made of it, and what it cost."""

    fault: Fault
    at_s: float
    group: str
    culprits: frozenset[str]
    born: int
    host: str
    named_s: float | None = None
    evicted_s: float | None = None
    over_s: float | None = None
    missed: bool = False
    why_held: str = ""
    stall_s: float = 0.0
    """Of the other groups."""
    lost: float = 0.0
    """Rank-seconds of the whole fleet."""


@dataclass
class Account:
    """All that a run tells."""

    happened: list[Happened] = field(default_factory=list)
    right: int = 0
    wrong: list[str] = field(default_factory=list)
    unsure: int = 0
    nobody: int = 0
    wrong_evictions: list[str] = field(default_factory=list)
    crashed: list[str] = field(default_factory=list)
    refused: int = 0
    guards: Counter[str] = field(default_factory=Counter)
    ticks: int = 0
    rank_ticks: int = 0
    sequence: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    """Accusations and evictions in order."""


class Weeks:
    """One run. `skip`: leave quiet time out."""

    def __init__(
        self, *, ranks: int = 16_384, sample: int = 64, size: int = 16, days: float = 1.0,
        seed: int = 1, skip: bool = True, script: list[Fault] | None = None,
    ) -> None:  # fmt: skip
        self.ranks, self.size, self.skip = ranks, size, skip
        self.end_s = BEGAN_S + days * DAY_S
        groups = sample // size
        self.chance = random.Random(seed + 2)
        self.config = KeeperConfig(tick_s=TICK_S)
        clock = Clock()
        self.clock = clock
        self.quarantine = Quarantine(clock, Nowhere(), self.config)
        self.fleet = clock.fleet = LongFleet(
            groups, size, seed=seed, admit=self._admit, restarted=self._restarted
        )
        self.fleet.tick_s = TICK_S
        self.pipeline = Pipeline(self.config)
        self.account = Account()
        self.open: list[Happened] = []
        self.window: list[Happened] = []
        events = timeline(seed, days, ranks, groups, size) if script is None else script
        self.queue: list[tuple[float, int, Any]] = [
            (BEGAN_S + fault.at_s, n, fault) for n, fault in enumerate(events)
        ]
        self._numbers = len(self.queue)
        self.incidents: dict[str, Incident] = {}
        self.evictions: dict[str, Eviction] = {}
        self._certain: set[str] = set()
        self._wanted: tuple[Any, ...] = ()
        self._past: tuple[Any, ...] = ()
        self._wall_s = 0.0
        self._still = 0
        self._busy_until_s = 0.0
        self._step_s = 0.0
        self._counted: dict[str, tuple[int, int]] = {}
        self._lost_s: dict[str, float] = defaultdict(float)
        self._accounted_s = BEGAN_S
        self._broken: dict[str, Happened] = {}

    # -- the world ---------------------------------------------------------------------------

    def _admit(self, host: Host, group: str) -> bool:
        return self.quarantine.admission(host, group).admit  # type: ignore[arg-type]

    def _later(self, in_s: float, what: Any) -> None:
        self._numbers += 1
        self.queue.append((self.fleet.now_s + in_s, self._numbers, what))
        self.queue.sort(key=lambda line: line[:2])

    def _restarted(self, group: str) -> None:
        """Hardware that is still broken under a group that came back shows it again."""
        for rank in self.fleet.groups[group]:
            broken = self._broken.get(rank.host)
            if broken is not None and broken.group == group:
                again = self.chance.random() < 0.5
                fault = replace(broken.fault, again=again, rank=rank.index)
                del self._broken[rank.host]
                self.fleet.broken.discard(rank.host)
                self._later(START_S + self.chance.uniform(60, 400), replace(fault, at_s=-1.0))
                return

    def _happen(self, fault: Fault) -> None:
        fleet, now_s = self.fleet, self.fleet.now_s
        group = f"rg_{fault.group}"
        members = fleet.groups[group]
        busy = any(earlier.group == group for earlier in self.open) or group not in fleet.quorum
        if fault.shows not in _NOT_OF_RANKS and (busy or not all(r.alive for r in members)):
            if fault.at_s >= 0:  # two faults of one group at once are beyond a sample
                self._later(300.0, replace(fault, group=(fault.group + 1) % len(fleet.groups)))
            return
        rank = members[fault.rank]
        host = [member for member in members if member.host == rank.host]
        by_kind = {
            "jam": members, "slow link": members, "host gone": host, "drained": host,
            "drained in part": host,
        }  # fmt: skip
        culprits = [] if fault.shows in _NOT_OF_RANKS else by_kind.get(fault.shows, [rank])
        happened = Happened(fault, now_s, group, frozenset(r.name for r in culprits), rank.born,
                       rank.host)  # fmt: skip
        self.account.happened.append(happened)
        self.open.append(happened)
        self.window.append(happened)
        if fault.again:
            self._broken[rank.host] = happened
            fleet.broken.add(rank.host)
        self._still = 0
        self._cause(happened, rank)

    def _cause(self, happened: Happened, rank: Any) -> None:  # noqa: C901 - one case a kind
        fleet, fault = self.fleet, happened.fault
        name, lasts_s = rank.name, 1.0
        names = [r.name for r in fleet.ranks() if r.alive]
        match fault.shows:
            case "crash":
                raises(name, "RuntimeError: CUDA error", 100 + self.chance.randrange(40))(fleet)
            case "left behind":
                fleet.abandoned.add(happened.group)
                raises(name, "RuntimeError: CUDA error", 100 + self.chance.randrange(40))(fleet)
            case "hang":
                hang(name, self.chance.choice(("data", "forward", "backward", "optimizer")))(fleet)
            case "kernel":
                gil(name)(fleet)
            case "stopped":
                stop(name)(fleet)
            case "disk wait":
                fleet.kernel.add(name)
                runs(name, "D")(fleet)
                hang(name, self.chance.choice(("data", "forward")))(fleet)
            case "mismatch":
                mismatch(name, self.chance.choice(("op", "size")))(fleet)
            case "jam":
                fleet.jammed_until_s[happened.group] = fleet.now_s + 1e9
            case "slow link":
                fleet.link_s[happened.group] = fault.amount
                self._later(fault.lasts_s, (self._mend, happened))
            case "slow network":
                fleet.network_s = fault.amount
                self._later(fault.lasts_s, (self._mend, happened))
            case "straggler":
                slow(name, fault.amount)(fleet)
                self._later(fault.lasts_s, (self._mend, happened))
            case "host gone":
                fleet.host_goes(rank.host)
            case "drained" | "drained in part":
                if fault.shows != "drained":
                    fleet.abandoned.add(happened.group)
                for other in fleet.groups[happened.group]:
                    if other.host == rank.host:
                        other.exit_signal = "SIGTERM"
                        fleet.kill(other)
                fleet.gone_hosts.add(rank.host)
            case "nan":
                nan(name)(fleet)
            case "corrupt":
                flip(name)(fleet)
            case "checkpoint" | "evaluation":
                pause(names, fault.shows, fault.amount)(fleet)
                lasts_s = fault.amount + 15
            case "undeclared pause":
                pause(names, "other", fault.amount)(fleet)
                lasts_s = fault.amount + 15
            case "data away":
                pause(names, "data", fault.amount)(fleet)
                lasts_s = fault.amount + 15
            case "data late":
                pause([name], "data", fault.amount)(fleet)
                lasts_s = fault.amount + 15
            case "stalled CPU":
                cpu_stall(name, fault.amount)(fleet)
            case "garbage collection":
                gil(name)(fleet)
                self._later(fault.amount, lambda: recover(name)(fleet))
                lasts_s = fault.amount + 5
            case "sidecar gone":
                fleet.silent_until[name] = (fleet.now_s + fault.amount, Failure.REFUSED)
                lasts_s = fault.amount + 5
            case "partition":
                for other in fleet.ranks():
                    if int(other.group[3:]) % 2:
                        fleet.silent_until[other.name] = (
                            fleet.now_s + fault.amount, Failure.TIMEOUT)  # fmt: skip
                lasts_s = fault.amount + 5
            case "Lighthouse restarts":
                lighthouse_restart(2.0)(fleet)
                lasts_s = 75.0
            case "monitor restarts":
                self._new_monitor()
                lasts_s = 60.0
            case "clock step":
                self._wall_s += fault.amount
            case "monitor late":
                fleet.late_ticks = [fault.amount]
                lasts_s = 20.0
            case "nothing":
                lasts_s = 90.0
            case other:
                raise AssertionError(other)
        if fault.shows in _NOT_OF_RANKS and fault.shows != "slow network":
            self._later(lasts_s, (self._mend, happened))
            self._busy_until_s = max(self._busy_until_s, fleet.now_s + lasts_s)

    def _mend(self, happened: Happened) -> None:
        """It ends by itself, unless its rank is another process by now."""
        fleet = self.fleet
        if happened.over_s is not None:
            return
        if happened.fault.shows == "straggler":
            slow(min(happened.culprits), 1.0)(fleet)
        fleet.link_s.pop(happened.group, None)
        if happened.fault.shows == "slow network":
            fleet.network_s = 0.0
        if happened.fault.worthy and happened.evicted_s is None:
            happened.missed = True
        self._over(happened)

    def _over(self, happened: Happened) -> None:
        happened.over_s = self.fleet.now_s
        self._still = 0

    def _new_monitor(self) -> None:
        self.fleet.run_to(self.fleet.now_s + 8.0)
        since_s = self.fleet.now_s - 3600
        kept = [i for i in self.incidents.values() if i.open or i.last_seen_s > since_s]
        late = [e for e in self.evictions.values() if e.asked_s > since_s]
        self.pipeline = Pipeline(self.config, kept, late)

    # -- time --------------------------------------------------------------------------------

    def run(self) -> Account:
        """To the end."""
        while self.fleet.now_s < self.end_s:
            due_s = min(self.queue[0][0] if self.queue else self.end_s, self.end_s)
            if self.skip and self._quiet():
                self._account()
                self.fleet.skip(due_s - self.fleet.now_s - _LEAD_S, self._period())
                self._account(skipped=True)
            while self.queue and self.queue[0][0] <= self.fleet.now_s:
                what = self.queue.pop(0)[2]
                match what:
                    case Fault():
                        self._happen(what)
                    case ("person", group):
                        self._person(group)
                    case (call, argument):
                        call(argument)
                    case call:
                        call()
            self._tick()
        self._account()
        return self.account

    def _quiet(self) -> bool:
        slow_ones = [happened for happened in self.open if happened.over_s is None]
        if any(happened.fault.shows not in ("straggler", "slow link", "slow network")
               for happened in slow_ones):  # fmt: skip
            return False
        needed = _SETTLED_TICKS * (16 if slow_ones else 1)
        return (
            self._step_s > 0 and self._still >= needed and self.fleet.trains
            and self.fleet.now_s >= self._busy_until_s
        )  # fmt: skip

    def _period(self) -> float:
        """Seconds of a step, as the last ones were."""
        log = next(
            r for ranks in self.fleet.groups.values() for r in ranks[:1] if r.alive
        ).log  # fmt: skip
        made = log[-4:]
        return (made[-1][2] - made[0][2]) / (len(made) - 1) if len(made) > 1 else self._step_s

    def _tick(self) -> None:
        fleet, account = self.fleet, self.account
        snapshot = fleet.snapshot(self._wanted, self._past)
        snapshot = replace(snapshot, vitals=Vitals(wall_s=fleet.now_s + self._wall_s))
        account.ticks += 1
        account.rank_ticks += len(snapshot.observations)
        result = self.pipeline.tick(snapshot)
        self._wanted, self._past = result.wants_records, result.wants_steps
        if account.ticks % 500 == 0:
            day = (fleet.now_s - BEGAN_S) / DAY_S
            print(f"day {day:.1f}: {len(account.happened)} events, {account.right} accusations "
                  f"right, wrong: {account.wrong}", file=sys.stderr, flush=True)  # fmt: skip
        account.crashed += [f"{k}: {v}" for k, v in result.detector_failures.items()]
        before = {i.id: self.incidents[i.id] for i in result.changed if i.id in self.incidents}
        self.quarantine.take(offences.accusations(result.changed, before, snapshot.now_s))
        for incident in result.changed:
            self.incidents[incident.id] = incident
            self._judge(incident)
        for decision in result.decisions:
            if isinstance(decision, Eviction):
                self._evict(decision, snapshot)
            else:
                account.guards[str(decision.guard)] += 1
                self._held(decision.incident_id, f"{decision.guard}: {decision.reason}")
        evicted = offences.evictions(result.decisions, self.incidents.get, snapshot.now_s)
        self.quarantine.take(evicted)
        for progress in fleet.evictions.values():
            self.evictions[progress.incident_id] = progress
        moving = bool(result.changed) or result.health.score or not fleet.trains
        self._still = 0 if moving else self._still + 1
        self._ends()
        if not self._step_s and fleet.now_s > BEGAN_S + 240:
            log = fleet.groups["rg_0"][0].log
            self._step_s = (log[-1][2] - log[5][2]) / (len(log) - 6)
            self._account(fresh=True)
        if self._quiet() and not self.queue_soon():
            self._account()

    def queue_soon(self) -> bool:
        """Whether something is due."""
        return bool(self.queue) and self.queue[0][0] <= self.fleet.now_s + _LEAD_S

    def _ends(self) -> None:
        """Which faults are over: their processes are others now, and train."""
        fleet = self.fleet
        for happened in list(self.open):
            shows = happened.fault.shows
            ranks = fleet.groups[happened.group]
            replaced = ranks[0].born > happened.born
            if happened.over_s is None and shows not in _NOT_OF_RANKS and replaced:
                self._over(happened)
            late = fleet.now_s - happened.at_s > _MISSED_S and shows in WORTHY
            if happened.over_s is None and late and happened.evicted_s is None:
                happened.missed = True
                fleet.abandoned.discard(happened.group)
                for rank in ranks:
                    fleet.silent_until.pop(rank.name, None)
                    fleet.kill(rank)
                self._over(happened)
            if happened.over_s is not None and fleet.now_s - happened.over_s > 60 and (
                happened.group in fleet.quorum or happened.group in fleet.held_start
            ):  # fmt: skip
                self.open.remove(happened)
        for group in fleet.held_start:
            if not any(what == ("person", group) for _, _, what in self.queue):
                self._later(PERSON_S, ("person", group))

    def _person(self, group: str) -> None:
        """Repairs what was kept out, and lets it in again, on other hosts."""
        self.fleet.gone_hosts |= {rank.host for rank in self.fleet.groups[group]}
        self.quarantine.release(group, Scope.GROUP)
        self._still = 0

    # -- judging -----------------------------------------------------------------------------

    def _judge(self, incident: Incident) -> None:
        verdict = incident.verdict
        fires = incident.state in (State.FIRING, State.EVICTING)
        if not fires or incident.id in self._certain:
            return
        if not incident.suspects:
            self._certain.add(incident.id)
            self.account.nobody += 1
            return
        if verdict.confidence is Confidence.UNSURE:
            self.account.unsure += 1
            return
        self._certain.add(incident.id)
        self.account.sequence.append((str(incident.kind), tuple(incident.culprits)))
        accused = set(incident.culprits)
        for happened in self.open:
            anew = (
                happened.over_s is not None
                and self.fleet.groups[happened.group][0].born > happened.born
            )
            late = anew and self.fleet.now_s - (happened.over_s or 0.0) > _AFTERWARDS_S
            if accused <= happened.culprits and not late:
                self.account.right += 1
                happened.named_s = happened.named_s or self.fleet.now_s - happened.at_s
                return
        self.account.wrong.append(
            f"day {(self.fleet.now_s - BEGAN_S) / DAY_S:.2f}: {incident.kind} "
            f"{sorted(accused)[:4]}: {verdict.reason}; truth: {self._truth()}"
        )

    def _truth(self) -> str:
        faults = (f"{happened.fault.shows} of {sorted(happened.culprits)[:3]} for "
                f"{self.fleet.now_s - happened.at_s:.0f} s" for happened in self.open)  # fmt: skip
        return ", ".join(faults) or "nothing"

    def _evict(self, evict: Eviction, snapshot: Snapshot) -> None:
        incident = self.incidents[evict.incident_id]
        eviction = replace(evict, accused=accused_in(evict.group, snapshot))
        if handed_over(eviction, snapshot, incident).refused is not None:
            self.account.refused += 1
            return
        self.account.sequence.append(("evict", (evict.group,)))
        guilty = [
            candidate
            for candidate in self.open
            if candidate.group == evict.group and candidate.culprits
        ]
        if not guilty:
            self.account.wrong_evictions.append(f"{evict.group}: {evict.reason}; {self._truth()}")
        for happened in guilty:
            happened.evicted_s = happened.evicted_s or self.fleet.now_s - happened.at_s
        if evict.quarantine or evict.keep_out:
            deny_launchers(eviction, self.quarantine, self.clock, 24 * 3600.0)
        self.fleet.evict(evict)

    def _held(self, incident_id: str, why: str) -> None:
        groups = self.incidents[incident_id].groups
        for happened in self.open:
            if happened.group in groups:
                happened.why_held = why

    # -- accounting --------------------------------------------------------------------------

    def _account(self, *, skipped: bool = False, fresh: bool = False) -> None:
        """What was lost since the last time, for what has happened meanwhile."""
        if not self._step_s:
            return
        span_s, self._accounted_s = self.fleet.now_s - self._accounted_s, self.fleet.now_s
        lost: dict[str, float] = {}
        for group, ranks in self.fleet.groups.items():
            born, commits = self._counted.get(group, (-1, 0))
            made = ranks[0].commits - (commits if born == ranks[0].born else 0)
            lost[group] = span_s - made * self._step_s
            self._counted[group] = (ranks[0].born, ranks[0].commits)
        if fresh:
            return
        blamed = self.window if not skipped and self.window else [
            candidate for candidate in (*self.open, *self.account.happened[-8:])
            if candidate.over_s is None or candidate.group in self.fleet.held_start
        ]  # fmt: skip
        if not skipped:
            self.window = []
        blamed = [
            candidate
            for candidate in blamed
            if candidate.fault.shows in _STANDS or candidate.culprits
        ] or blamed
        if not blamed:
            return
        away = {candidate.group for candidate in blamed if candidate.culprits}
        others = [s for group, s in lost.items() if group not in away]
        stall_s = sum(others) / len(others) if others else 0.0
        total = stall_s * (self.ranks - self.size * len(away))
        total += sum(lost[group] * self.size for group in away)
        for happened in blamed:
            happened.stall_s += stall_s / len(blamed)
            happened.lost += total / len(blamed)


# -- what it tells -------------------------------------------------------------------------------


def without_keeper(happened: Happened, ranks: int, size: int) -> float:
    """Rank-seconds lost to this had nobody evicted anybody."""
    fault = happened.fault
    alone = FORGOTTEN_S * ranks + PERSON_S * size
    if happened.evicted_s is None and not happened.missed:
        return happened.lost  # TorchFT, its launcher or time has mended it
    match fault.shows:
        case "straggler":
            return fault.lasts_s * ranks * (1 - 1 / (1 + (fault.amount - 1) * 5 / 6))
        case "nan" | "corrupt":
            return PERSON_S * size
        case "stopped" | "host gone" if fault.rank // A_HOST == 0:
            return alone  # its heartbeat ends with it
        case shows if shows in STOPS:
            return LOST_JOB_S * ranks
        case _:
            return max(happened.lost, alone)


def with_oracle(happened: Happened, ranks: int, size: int) -> float:
    """Rank-seconds lost to this had its group been put out at once, where that is cheaper."""
    price = (FORGOTTEN_S + 0.5) * ranks + (START_S + 10.0) * size
    return min(happened.lost, price) if happened.evicted_s or happened.missed else happened.lost


def as_keeper(happened: Happened, ranks: int) -> float:
    """Rank-seconds lost to this: those measured; more, had the job not waited for so long."""
    return (
        LOST_JOB_S * ranks
        if happened.fault.shows in STOPS and happened.stall_s > TIMEOUT_S
        else happened.lost
    )


def spread(values: list[float]) -> str:
    """Median and 99th percentile."""
    if not values:
        return "-"
    top = quantiles(values, n=100)[98] if len(values) > 1 else values[0]
    return f"{median(values):.0f} / {min(top, max(values)):.0f}"


def told(weeks: Weeks, days: float) -> dict[str, Any]:
    """Everything, for JSON."""
    account, ranks, size = weeks.account, weeks.ranks, weeks.size
    whole = days * DAY_S * ranks
    by: dict[str, list[Happened]] = defaultdict(list)
    for happened in account.happened:
        by[happened.fault.shows].append(happened)
    rows = {}
    for shows, ones in sorted(by.items(), key=lambda line: (line[0] in NOBODY, line[0])):
        worthy = [event for event in ones if event.fault.worthy]
        rows[shows] = {
            "happened": len(ones), "worthy": len(worthy),
            "named": sum(event.named_s is not None for event in ones),
            "evicted": sum(event.evicted_s is not None for event in ones),
            "missed": sum(event.missed and event.fault.worthy for event in ones),
            "named_after_s": spread([event.named_s for event in ones if event.named_s is not None]),
            "evicted_after_s": spread([o.evicted_s for o in ones if o.evicted_s is not None]),
            "others_stood_s": spread([max(0.0, event.stall_s) for event in ones]),
            "lost_rank_h": round(sum(as_keeper(event, ranks) for event in ones) / 3600),
        }  # fmt: skip
    made = account.right + len(account.wrong)
    worlds = {
        "no keeper": sum(without_keeper(event, ranks, size) for event in account.happened),
        "lightkeeper": sum(as_keeper(event, ranks) for event in account.happened),
        "oracle": sum(with_oracle(event, ranks, size) for event in account.happened),
    }
    late = [o for o in account.happened if o.fault.shows in STOPS and o.stall_s > TIMEOUT_S]
    return {
        "ranks": ranks, "days": days, "ticks": account.ticks,
        "rank_hours_looked_at": round(account.rank_ticks / 3600), "step_s": round(weeks._step_s, 2),
        "rows": rows, "accusations": made, "right": account.right,
        "root_precision": round(account.right / made, 4) if made else None,
        "wrong": account.wrong, "unsure": account.unsure, "nobody_named": account.nobody,
        "evictions": sum(event.evicted_s is not None for event in account.happened),
        "wrong_evictions": account.wrong_evictions, "refused": account.refused,
        "missed": [f"day {(o.at_s - BEGAN_S) / DAY_S:.2f}: {o.fault.shows} ({o.fault.cause}, "
                   f"{o.fault.amount:.2f}, {o.fault.lasts_s:.0f} s) of {sorted(o.culprits)[:2]}: "
                   f"{'named' if o.named_s else 'not named'}; {o.why_held}"
                   for o in account.happened if o.missed and o.fault.worthy],
        "stood_longer_than_the_timeout": [f"{o.fault.shows}: {o.stall_s:.0f} s" for o in late],
        "guards": dict(account.guards), "detectors_crashed": sorted(set(account.crashed)),
        "goodput": {name: round(1 - lost / whole, 5) for name, lost in worlds.items()},
    }  # fmt: skip


def table(report: dict[str, Any]) -> str:
    """For people, in Markdown."""
    columns = ("happened", "worthy", "named", "evicted", "missed", "named_after_s",
               "evicted_after_s", "others_stood_s", "lost_rank_h")  # fmt: skip
    lines = ["| what | " + " | ".join(column.replace("_", " ") for column in columns) + " |",
             "|---" * (len(columns) + 1) + "|"]  # fmt: skip
    for shows, row in report["rows"].items():
        lines.append(f"| {shows} | " + " | ".join(str(row[column]) for column in columns) + " |")
    goodput = ", ".join(f"{name} {share:.2%}" for name, share in report["goodput"].items())
    told_so = (
        f"Accusations: {report['accusations']}, right {report['right']}, root precision "
        f"{report['root_precision']}; unsure {report['unsure']}. Evictions {report['evictions']}, "
        f"wrong {len(report['wrong_evictions'])}; missed {len(report['missed'])}. "
        f"Goodput: {goodput}."
    )
    lines += ["", told_so]
    return "\n".join(lines)


def main() -> int:
    """One run; the exit status says whether it was good enough."""
    top = argparse.ArgumentParser(prog="experiments.weeks", description="Weeks of a large fleet.")
    top.add_argument("--ranks", type=int, default=16_384)
    top.add_argument("--days", type=float, default=28.0)
    top.add_argument("--seed", type=int, default=1)
    top.add_argument("--sample", type=int, default=64, help="ranks that are simulated one by one")
    top.add_argument("--group", type=int, default=16, help="ranks of a replica group")
    top.add_argument("--no-skip", action="store_true", help="tick all of it")
    top.add_argument("--json", type=Path)
    args = top.parse_args()
    began_s = time.monotonic()
    weeks = Weeks(ranks=args.ranks, sample=args.sample, size=args.group, days=args.days,
                  seed=args.seed, skip=not args.no_skip)  # fmt: skip
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):  # what there is until now
        weeks.run()
    days = min(args.days, (weeks.fleet.now_s - BEGAN_S) / DAY_S)
    report = told(weeks, round(days, 2)) | {"took_s": round(time.monotonic() - began_s)}
    if args.json:
        args.json.write_text(json.dumps(report, indent=1))
    print(table(report))
    print(json.dumps({key: value for key, value in report.items() if key != "rows"}, indent=1))
    good = (report["root_precision"] or 1.0) >= 0.99
    return 0 if good and not report["wrong_evictions"] and not report["missed"] else 1
