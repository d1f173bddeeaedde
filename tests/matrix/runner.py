"""One living fleet of a setting, one fault after another."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

import requests

from lightkeeper.trainer import status
from tests import harness
from tests.campaign.watch import Watch, pause
from tests.harness import LOOK_S, FleetError, StepLog
from tests.matrix.cases import INJECTED, Case, Setting
from tests.matrix.fleet import MatrixFleet
from tests.matrix.measure import Event, Row, measure, over, problems

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

    def __init__(self, setting: Setting, folder: Path | None = None) -> None:
        super().__init__(str(setting), folder)
        self.setting = setting
        self._steps = StepLog(Path("/nonexistent"))

    def run(self, case: Case) -> Row:
        """From a whole fleet to a row.

        Raises:
            FleetError: the fleet did not become whole, or the fault would not strike.
        """
        if not self.setting.keeper:
            self.close()
        fleet = self._ready()
        if case.fault == "slow":
            self._look_for(SLOW_SETTLE_S)
        if self._watch is not None:
            self._watch.look()
            self._watch.forget()
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
        assert self._fleet is not None
        assert self._watch is not None
        deadline = time.monotonic() + within_s
        while True:
            self._watch.look()
            incidents = [seen.latest for seen in self._watch.seen.values()]
            marks = [incident["milestones"] for incident in incidents]
            whole = any(milestones.get("rejoined_s") for milestones in marks)
            if whole or time.monotonic() > deadline:
                metrics = requests.get(f"{self._fleet.monitor_url}/metrics", timeout=10)
                return incidents, metrics.text
            pause(LOOK_S)

    # -- stages ----------------------------------------------------------------------------

    def _made(self, folder: Path) -> MatrixFleet:
        self._steps = StepLog(folder / "steps.jsonl")
        return MatrixFleet.of(self.setting, folder)

    def _started(self) -> None:
        if self.setting.keeper:
            fleet = self._fleet
            self._watch = Watch(fleet.client(), fleet.groups, fleet.ranks_per_group)

    def _until_whole(self) -> str | None:
        fleet = self._fleet
        return harness.until_calm(fleet, lambda: self._not_whole(fleet), WHOLE_LIMIT_S, CALM_S)

    def _not_whole(self, fleet: MatrixFleet) -> str | None:
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
        if self._watch is not None:
            self._watch.look()
            return self._watch.not_whole()
        return None

    def _strike(self, fleet: MatrixFleet, case: Case, rank: str) -> tuple[float, str]:
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
            pause(0.05)
        raise FleetError(f"{case.key} did not strike within {STRIKE_LIMIT_S:.0f} s")

    def _follow(self, fleet: MatrixFleet, case: Case, group: str, host: str, began_s: float) -> Row:
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
            pause(LOOK_S)

    def _rogue(self, fleet: MatrixFleet, row: Row, since_s: float) -> bool:
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

    def _row(self, fleet: MatrixFleet, case: Case, group: str, host: str, began_s: float) -> Row:
        incidents: list[dict[str, Any]] = []
        if self._watch is not None:
            self._watch.look()
            incidents = [seen.latest for seen in self._watch.seen.values()]
        return measure(
            case,
            group=group,
            host=host,
            struck_s=began_s,
            steps=self._steps.read(),
            exits={
                f"rg_{index}": status.read_events(fleet.folder / "events" / f"rg_{index}.jsonl")
                for index in range(fleet.groups)
            },
            incidents=incidents,
            watched_s=time.time() - began_s,
        )

    def _heal(self, fleet: MatrixFleet, group: str, row: Row) -> None:
        """Hosts are sound again; whoever is still ill is put out by hand."""
        if row["to_back"] is None or row["fault"] == "slow":
            fleet.restart_group(group)
        fleet.repair()

    def _look_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self._watch is not None:
                self._watch.look()
            pause(LOOK_S)
