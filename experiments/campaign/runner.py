"""One living fleet, one fault after another."""

from __future__ import annotations

import contextlib
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from experiments import harness
from experiments.campaign.classes import Act, Run, Whom
from experiments.campaign.judge import Result, judge, main_incident
from experiments.fleet import SMALL, Fleet, Setting
from experiments.harness import LOOK_S, FleetError, say
from experiments.watch import Watch

START_LIMIT_S: Final = 180.0
STRIKE_LIMIT_S: Final = 60.0
HEAL_LIMIT_S: Final = 150.0
RESTART_LIMIT_S: Final = 20.0
CALM_S: Final = 1.8
"""For so long the fleet is whole before the next fault."""


class Runner(harness.Runner):
    """Keeps the fleet of one shape."""

    def __init__(self, folder: Path | None = None, *, small: bool = False) -> None:
        super().__init__(folder)
        self._small = small

    def run(self, run: Run) -> Result:
        """One fault, from a whole fleet to a whole fleet; a fleet that breaks is replaced.

        Raises:
            FleetError: a fresh fleet did not become whole, or the fault would not strike.
        """
        fleet: Fleet = self.ready(run.setting)
        watch: Watch = self.watch
        if run.kind.settle_s:
            self.look_for(run.kind.settle_s)
        watch.forget()
        before = watch.processes(run.group)
        struck = _strike(fleet, watch, run)
        with _undone(fleet, run):
            self._until_fired(fleet, watch, run, struck["time"])
        meddled_s = None
        if run.kind.whom is not Whom.NOBODY and not self._replaced(watch, run, before):
            meddled_s = time.time()
            fleet.restart_group(run.group)
        fleet.repair()
        problem = until_whole(fleet, watch, HEAL_LIMIT_S)
        result = judge(run, watch.seen.values(), struck, meddled_s)
        result["fleet"] = problem or "whole again"
        result["lateness_s"] = round(watch.lateness_s, 2)
        result["took_s"] = round(time.time() - struck["time"], 1)
        result["exits"] = _exits(fleet, run, struck["time"])
        if problem is not None:
            say(f"   the fleet is not whole: {problem}; another one is started")
            self._abandon(run)
        return result

    # -- stages --------------------------------------------------------------------------

    def make(self, setting: Setting, folder: Path) -> Fleet:
        return Fleet(setting, folder, SMALL if self._small else ())

    def started(self) -> None:
        self.watch = Watch(self.fleet.monitor_url)

    def until_whole(self) -> str | None:
        return until_whole(self.fleet, self.watch, START_LIMIT_S)

    def _abandon(self, run: Run) -> None:
        folder = self.fleet.folder
        self.close()
        with contextlib.suppress(OSError):
            shutil.move(str(folder / "logs"), f"{folder}-{run.name}-{run.number}")

    def _until_fired(self, fleet: Fleet, watch: Watch, run: Run, at_s: float) -> None:
        """Until the monitor has named somebody and the group is out, or the limit."""
        limit_s = run.kind.limit_s if run.guilty else run.kind.follow_s
        while time.time() - at_s < limit_s:
            fleet.check()
            watch.look()
            incident = main_incident(run, watch.seen.values()) if run.guilty else None
            if incident is not None and incident["state"] == "resolved":
                return
            if incident is not None and time.time() - at_s > limit_s / 2 and _stays(incident):
                return
            if incident is not None and run.kind.act is Act.HOST:
                return  # the scheduler notices as well now
            time.sleep(LOOK_S)

    def _replaced(self, watch: Watch, run: Run, before: frozenset[str]) -> bool:
        """Whether other processes are in the place of the group; awaited when it was put out."""
        incident = main_incident(run, watch.seen.values())
        out = run.kind.act is Act.HOST or (incident is not None and incident["state"] == "resolved")
        until = time.monotonic() + (RESTART_LIMIT_S if out else 2.0)
        while time.monotonic() < until:
            watch.look()
            if watch.snapshot is not None and watch.processes(run.group) != before:
                return True
            time.sleep(LOOK_S)
        return False


def until_whole(fleet: Fleet, watch: Watch, limit_s: float) -> str | None:
    """Wait until the fleet is whole, and has been for a while; else why it is not."""

    def not_whole() -> str | None:
        watch.look()
        return watch.not_whole(fleet.groups, fleet.ranks_per_group)

    return harness.until_calm(fleet, not_whole, limit_s, CALM_S)


def _stays(incident: dict[str, Any]) -> bool:
    """Whether nothing more will come of a firing incident: its eviction is held."""
    decisions = incident.get("decisions", [])
    return bool(decisions) and decisions[-1]["action"] == "hold"


def _strike(fleet: Fleet, watch: Watch, run: Run) -> dict[str, Any]:
    """Make the fault happen; when, at which step, in which phase."""
    match run.kind.act:
        case Act.INJECT:
            return _inject(fleet, watch, run)
        case Act.HOST:
            frozen = run.name == "host-frozen"
            at_s, step = time.time(), watch.step()
            fleet.lose_host(run.group, signal.SIGSTOP if frozen else signal.SIGKILL)
            return {"time": at_s, "step": step, "phase": None, "fault": run.fault}
        case Act.LIGHTHOUSE:
            at_s, step = time.time(), watch.step()
            fleet.kill("lighthouse")
            until = time.monotonic() + float(run.fault["away_s"])
            while time.monotonic() < until:
                watch.look()
                time.sleep(LOOK_S)
            fleet.start_lighthouse()
            return {"time": at_s, "step": step, "phase": None, "fault": run.fault}


def _inject(fleet: Fleet, watch: Watch, run: Run) -> dict[str, Any]:
    step = watch.step() + run.in_steps
    stamp = f"{int(time.time())}-{run.name}-{run.number}"
    items = [{**run.fault, "id": f"{stamp}-{rank}", "rank": rank, "step": step} for rank in run.hit]
    fleet.inject(items)
    deadline = time.monotonic() + STRIKE_LIMIT_S
    while time.monotonic() < deadline:
        marks = [fleet.marker(item["id"]) for item in items]
        struck = [mark for mark in marks if mark is not None]
        if len(struck) == len(items):
            return {
                "time": max(mark.time for mark in struck),
                "step": struck[0].step,
                "phase": struck[0].phase,
                "host": struck[0].host,
                "fault": run.fault,
            }
        watch.look()
        time.sleep(0.1)
    raise FleetError(f"{run.key} did not strike within {STRIKE_LIMIT_S:.0f} s")


@contextlib.contextmanager
def _undone(fleet: Fleet, run: Run) -> Iterator[None]:
    try:
        yield
    finally:
        if run.kind.act is Act.HOST:
            fleet.thaw(run.group)


def _exits(fleet: Fleet, run: Run, since_s: float) -> list[list[Any]]:
    """Which launches ended after the fault: the group that was hit, and who else."""
    from lightkeeper.trainer import status

    return [
        [group, round(event["time"] - since_s, 2), event["rc"]]
        for group in (f"rg_{index}" for index in range(fleet.groups))
        for event in status.read(fleet.folder / "events" / f"{group}.jsonl")
        if event["event"] == "left" and event["time"] >= since_s
    ]
