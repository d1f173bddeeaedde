"""One living fleet of a setting, one fault after another."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

import requests

from experiments import harness
from experiments.fleet import Fleet, Setting
from experiments.harness import LOOK_S, FleetError, StepLog
from experiments.matrix.cases import INJECTED, Case
from experiments.matrix.measure import Event, Row, measure, over, problems
from experiments.watch import Watch
from lightkeeper.trainer import status

WHOLE_LIMIT_S: Final = 240.0
STRIKE_LIMIT_S: Final = 60.0
DOWN_AFTER_S: Final = 1.0
"""From the fault to the end of the Lighthouse."""
DOWN_FOR_S: Final = 15.0
"""Until it is started again: beyond the moment at which a hang is told (6 to 9 s)."""
FRESH_COMMITS: Final = 10
CALM_S: Final = 3.0
KEPT_OUT_S: Final = 90.0
"""A group whose launcher starts it again at once is tried in vain for so long: 60 s of quorum
timeout, and a restart after it."""
_REFUSED: Final = "lightkeeper: "
SLOW_SETTLE_S: Final = 20.0
"""A straggler is found by its pace: calm before it."""


class Runner(harness.Runner):
    """Keeps the fleet of one setting.

    TorchFT alone gets a fleet for each run: what one fault leaves behind is not what the next one
    is measured by.
    """

    _steps = StepLog(Path("/nonexistent"))

    def run(self, case: Case) -> Row:
        """From a whole fleet to a row.

        Raises:
            FleetError: the fleet did not become whole, or the fault would not strike.
        """
        if not case.setting.keeper:
            self.close()
        fleet = self.ready(case.setting)
        if case.fault == "slow":
            self.look_for(SLOW_SETTLE_S)
        if self.watch is not None:
            self.watch.look()
            self.watch.forget()
        group = f"rg_{fleet.groups - 1}"
        began_s, host = self._strike(fleet, case, f"{group}.0")
        row = self._follow(fleet, case, group, host, began_s)
        row["load"] = round(sum(map(float, Path("/proc/loadavg").read_text().split()[:1])), 1)
        row["problems"] = problems(row)
        self._heal(fleet, group, row)
        return row

    def afterwards(self, within_s: float) -> tuple[list[Event], str]:
        """What the monitor says of the last run: incidents, metrics.

        Once the job is whole again and the group's new ranks are seen: what they tell is of the
        heal.
        """
        assert self.fleet is not None
        assert self.watch is not None
        deadline = time.monotonic() + within_s
        while True:
            self.watch.look()
            incidents = [seen.latest for seen in self.watch.seen.values()]
            marks = [incident["milestones"] for incident in incidents]
            whole = any(milestones.get("rejoined_s") for milestones in marks)
            if whole or time.monotonic() > deadline:
                metrics = requests.get(f"{self.fleet.monitor_url}/metrics", timeout=10)
                return incidents, metrics.text
            time.sleep(LOOK_S)

    # -- stages ----------------------------------------------------------------------------

    def make(self, setting: Setting, folder: Path) -> Fleet:
        self._steps = StepLog(folder / "steps.jsonl")
        rust_log = "info" if setting.special == "rogue" else "warn"
        return Fleet(setting, folder, rust_log=rust_log)

    def started(self) -> None:
        if self.fleet.setting.keeper:
            self.watch = Watch(self.fleet.monitor_url)

    def until_whole(self) -> str | None:
        fleet = self.fleet
        return harness.until_calm(fleet, lambda: self._not_whole(fleet), WHOLE_LIMIT_S, CALM_S)

    def _not_whole(self, fleet: Fleet) -> str | None:
        """Why not every rank commits with every group, or an incident is open."""
        last: dict[str, Event] = {}
        counts: dict[tuple[str, int], int] = {}
        for line in self._steps.read():
            if line["event"] == "step" and line["committed"]:
                last[line["rank"]] = line
                counts[line["rank"], line["pid"]] = counts.get((line["rank"], line["pid"]), 0) + 1
        for rank in fleet.ranks:
            line = last.get(rank)
            if line is None or time.time() - line["time"] > CALM_S:
                return f"{rank} does not commit"
            if line["participants"] != fleet.groups:
                return f"{rank} commits with {line['participants']} of {fleet.groups} groups"
            if counts[rank, line["pid"]] < FRESH_COMMITS:
                return f"{rank} has only begun"
        if self.watch is not None:
            self.watch.look()
            return self.watch.not_whole(fleet.groups, fleet.ranks_per_group)
        return None

    def _strike(self, fleet: Fleet, case: Case, rank: str) -> tuple[float, str]:
        if case.fault == "cut":
            fleet.set_link(up=False)
            return time.time(), f"host-{fleet.groups - 1}a"
        step = max(line["step"] for line in self._steps.read() if line["event"] == "step") + 5
        name = f"{int(time.time())}-{case.fault}"
        fleet.inject([{**INJECTED[case.fault], "id": name, "rank": rank, "step": step}])
        deadline = time.monotonic() + STRIKE_LIMIT_S
        while time.monotonic() < deadline:
            marker = fleet.marker(name)
            if marker is not None:
                if case.fault == "rogue":
                    fleet.quarantine(str(marker.host))
                return marker.time, str(marker.host)
            time.sleep(0.05)
        raise FleetError(f"{case.key} did not strike within {STRIKE_LIMIT_S:.0f} s")

    def _follow(self, fleet: Fleet, case: Case, group: str, host: str, began_s: float) -> Row:
        down = not case.lighthouse_down
        back = down
        cut = case.fault == "cut"
        while True:
            since_s = time.time() - began_s
            if cut and (row := self._row(fleet, case, group, host, began_s))["to_survivors"]:
                fleet.set_link(up=True)
                cut = False
            if not down and since_s >= DOWN_AFTER_S:
                fleet.kill("lighthouse")
                down = True
            if not back and since_s >= DOWN_AFTER_S + DOWN_FOR_S:
                fleet.start_lighthouse()
                back = True
            row = self._row(fleet, case, group, host, began_s)
            if case.fault == "rogue" and self._rogue(fleet, row, since_s):
                return row
            if (over(case, row) and back) or since_s > case.limit_s:
                return row
            time.sleep(LOOK_S)

    def _rogue(self, fleet: Fleet, row: Row, since_s: float) -> bool:
        """Whether the group came back though its host is quarantined, or was kept out for long."""
        log = fleet.folder / "logs" / "zygote.log"
        own = fleet.folder / "logs" / f"{row['group']}.log"
        lines = (log.read_text(errors="replace") + own.read_text(errors="replace")).splitlines()
        refusals = [line for line in lines if _REFUSED in line]
        row["told"] = refusals[-1].strip()[:300] if refusals else None
        row["kept_out_s"] = None
        if row["to_survivors"] is None or row["to_back"] is not None:
            return row["to_back"] is not None
        row["kept_out_s"] = round(since_s - row["to_survivors"], 1)
        return bool(row["kept_out_s"] >= KEPT_OUT_S)

    def _row(self, fleet: Fleet, case: Case, group: str, host: str, began_s: float) -> Row:
        incidents: list[dict[str, Any]] = []
        if self.watch is not None:
            self.watch.look()
            incidents = [seen.latest for seen in self.watch.seen.values()]
        return measure(
            case,
            group=group,
            host=host,
            struck_s=began_s,
            steps=self._steps.read(),
            exits={
                f"rg_{index}": status.read(fleet.folder / "events" / f"rg_{index}.jsonl")
                for index in range(fleet.groups)
            },
            incidents=incidents,
            watched_s=time.time() - began_s,
        )

    def _heal(self, fleet: Fleet, group: str, row: Row) -> None:
        """Hosts are sound again; whoever is still ill is put out by hand."""
        if row["to_back"] is None or row["fault"] == "slow":
            fleet.restart_group(group)
        fleet.repair()
