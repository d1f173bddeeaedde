"""One living fleet; one process after another is killed, and the fleet waited for."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from experiments import harness
from experiments.fleet import Setting
from experiments.harness import StepLog, say
from experiments.killing import measure
from experiments.killing.fleet import KillFleet
from experiments.killing.roles import Roles
from experiments.watch import Watch
from lightkeeper.trainer import status

LOOK_S: Final = 0.1
CALM_S: Final = 5.0
"""The fleet is whole again when it was so for that long."""
LIMIT_S: Final = 300.0

Row = dict[str, Any]


def role_of(name: str) -> str:
    """Of `rank rg_1.0`: `rank 0`, the one that hosts its group's manager; else the first word."""
    kind, _, whose = name.partition(" ")
    if kind in ("rank", "sidecar"):
        return f"{kind} {whose.rpartition('.')[2]}"
    return name if kind == "gate" else kind


def group_hit(name: str) -> str | None:
    """The group that loses its ranks with this process."""
    kind, _, whose = name.partition(" ")
    return whose.partition(".")[0] if kind in ("rank", "torchrun", "supervisor") else None


@dataclass
class Bench:
    """A fleet with everything that looks at it."""

    fleet: KillFleet
    calm_s: float = CALM_S
    look_s: float = LOOK_S
    whole: bool = False
    """Whether it was so at the last look."""
    steps: StepLog = field(init=False)
    roles: Roles = field(init=False)
    watch: Watch = field(init=False)

    def __post_init__(self) -> None:
        self.steps = StepLog(self.fleet.steps)
        self.roles = Roles(self.fleet, self.steps)
        self.watch = Watch(self.fleet.monitor_url)

    def close(self) -> None:
        """End the fleet."""
        self.watch.close()
        self.fleet.stop()

    # -- whole -------------------------------------------------------------------------------

    def interruption(self, struck_s: float) -> measure.Interruption:
        """Of the fleet since then."""
        return measure.interruption(
            self.steps.read(), self.fleet.ranks, self.fleet.groups, struck_s, time.time()
        )

    def not_whole(self, since_s: float) -> str | None:
        """Why not every process is there and every rank has committed in peace for a while."""
        self.fleet.check()
        missing = self.roles.missing()
        if missing:
            return f"{missing[0]} is not there"
        seen = self.interruption(since_s)
        if seen.whole_s is None:
            return "not every rank commits with all groups"
        if time.time() - seen.last_end_s < self.calm_s:
            return "it has only begun"
        self.watch.look()
        return self.watch.not_whole(self.fleet.groups, self.fleet.ranks_per_group)

    def until_whole(self, limit_s: float = LIMIT_S) -> None:
        """Wait for it, if it was not so at the end of the last kill.

        Raises:
            FleetError: not in time, or a keeper ended.
        """
        began_s = time.time()
        if self.whole:
            return
        why = harness.until_calm(self.fleet, lambda: self.not_whole(began_s), limit_s, 0.0)
        self.whole = why is None
        if why is not None:
            raise harness.FleetError(f"the fleet is not whole after {limit_s:.0f} s: {why}")

    # -- one kill ----------------------------------------------------------------------------

    def kill(self, name: str, limit_s: float = LIMIT_S) -> Row:
        """From a whole fleet to a row; whether it became whole again is in the row."""
        self.watch.look()
        self.watch.forget()
        pids = self.roles.find()
        load = os.getloadavg()[0]
        step = self.watch.step()
        self.whole = False
        os.kill(pids[name], signal.SIGKILL)
        struck_s = time.time()
        back_s, problem = None, None
        while True:
            self.watch.look()
            now = self.roles.find()
            if back_s is None and now.get(name, pids[name]) != pids[name]:
                back_s = time.time() - struck_s
            why = self.not_whole(struck_s) or (None if back_s else f"{name} is not back")
            if why is None:
                self.whole = True
                break
            if time.time() - struck_s > limit_s:
                problem = why
                break
            time.sleep(self.look_s)
        row = self._row(name, struck_s, back_s, [pids, self.roles.find()])
        if problem is not None:
            say("\n".join(self._stands()))
        return row | {"at_step": step, "load_before": round(load, 1), "problem": problem}

    def _row(
        self, name: str, struck_s: float, back_s: float | None, pids: Sequence[dict[str, int]]
    ) -> Row:
        steps, now_s = self.steps.read(), time.time()
        seen = self.interruption(struck_s)
        hit = group_hit(name)
        names = [f"rg_{index}" for index in range(self.fleet.groups)]
        others = [group for group in names if group != hit]
        mine = [line for line in steps if line["time"] > struck_s - 10.0]
        over_s = now_s if seen.whole_s is None else max(seen.last_end_s, struck_s + (back_s or 0.0))
        before, after = pids
        return {
            "name": name,
            "role": role_of(name),
            "time": struck_s,
            "whole_s": _round(seen.whole_s),
            "back_s": _round(back_s),
            "next_commit_s": _round(measure.next_commit_s(mine, struck_s)),
            "pause_s": _round(measure.pause_s(mine, struck_s, now_s)),
            "others_steps": min(
                measure.steps_of(group, mine, struck_s, over_s) for group in others
            ),
            "steps_lost": sum(n for at_s, n in measure.steps_lost(steps) if at_s > struck_s),
            "failed": sum(
                event["event"] == "step" and not event["committed"] and event["time"] > struck_s
                for event in mine
            ),
            "compared": measure.compared(mine),
            "unequal": len(measure.unequal(mine)),
            "also_replaced": [
                other for other in before if other != name and after.get(other) != before[other]
            ],
            "others_left": [group for group in others if self._left(group, struck_s)],
            **self._said(hit),
        }

    def _stands(self) -> Iterator[str]:
        """What the monitor sees of a fleet that did not become whole, for whoever mends it."""
        snapshot = self.watch.snapshot or {"incidents": [], "ranks": []}
        for incident in snapshot["incidents"]:
            yield f"{incident['id']}: {incident.get('sentence') or incident.get('reason')}"
        for rank in snapshot["ranks"]:
            yield json.dumps(rank)[:1000]

    def _left(self, group: str, struck_s: float) -> bool:
        lines = status.read_events(self.fleet.folder / "events" / f"{group}.jsonl")
        return any(event["event"] == "left" and event["time"] > struck_s for event in lines)

    def _said(self, hit: str | None) -> Row:
        """What the monitor told and did; wrong is what concerns another group than the one hit."""
        accused = {
            f"{rank} {state}: {incident.latest['kind']}"
            for incident in self.watch.seen.values()
            for rank, state in incident.states.items()
            if measure.group_of(rank) != hit
        }
        return {
            "fired": [[seen.latest["kind"], sorted(seen.accused)] for seen in self.watch.fired],
            "accused_wrongly": sorted(accused),
            "evicted": self.watch.evicted,
            "evicted_wrongly": [group for group in self.watch.evicted if group != hit],
        }


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


@dataclass(frozen=True)
class Kill:
    """One process, in a fleet with a gate or without."""

    name: str
    number: int
    setting: Setting

    @property
    def key(self) -> str:
        """Names it in the results."""
        return f"{'gate' if self.setting.gate else 'no gate'}/{self.number}/{self.name}"


class Runner(harness.Runner):
    """Keeps a fleet with a gate, or one without."""

    def run(self, case: Kill) -> Row:
        """Raises FleetError."""
        fleet = self.ready(case.setting)
        row = {"key": case.key, "gate": case.setting.gate, **self._bench.kill(case.name)}
        if row["problem"]:
            say(f"   another fleet is started instead of {fleet.folder}")
            self.close()
        return row

    def make(self, setting: Setting, folder: Path) -> KillFleet:
        return KillFleet.made(folder, gate=setting.gate)

    def started(self) -> None:
        self._bench = Bench(self.fleet)
        self.watch = self._bench.watch

    def until_whole(self) -> str | None:
        if self._bench.whole:
            return None
        try:
            self._bench.until_whole()
        except harness.FleetError as exc:
            return str(exc)
        others = self._bench.roles.others()
        return f"processes that nobody would kill: {others}" if others else None
