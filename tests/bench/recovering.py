"""Whole recoveries on real fleets, as lightkeeper itself tells them: from a fault to all together.

The matrix's fleets (`experiments.matrix`: three groups of one rank, a real Lighthouse, TorchFT's
default timeouts), the same faults; what is kept beside the matrix's own columns is what the monitor
exports: firing to a commit of as many groups as before, steps lost, and what the heal took.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

from experiments import harness
from experiments.fleet import Setting
from experiments.harness import FleetError
from experiments.matrix.cases import Case
from experiments.matrix.runner import Runner

FAULTS: Final = ("hang", "stop", "crash")
WHOLE_S: Final = 60.0
_SAMPLE: Final = re.compile(
    r'lightkeeper_group_(last_(?:checkpoint|reconfigure)\w*){replica_group="(\w+)"} (\S+)'
)
Row = dict[str, Any]


def measure(times: int) -> Iterator[Row]:
    """A row for each fault; one that would not strike is told on stderr, and left out."""
    harness.begin("tests.bench.seeds")
    runner, setting = Runner(), Setting("3x1")
    try:
        for number in range(times):
            for fault in FAULTS:
                case = Case(fault, lighthouse_down=False, setting=setting)
                try:
                    row = runner.run(case)
                    incidents, metrics = runner.afterwards(WHOLE_S)
                except FleetError as exc:
                    print(f"{fault}: {exc}", file=sys.stderr)
                    runner.close()
                    continue
                yield {"what": "recovery", "number": number, **_kept(row),
                       **of_incidents(row["group"], incidents),
                       **of_metrics(row["group"], metrics)}  # fmt: skip
    finally:
        runner.close()


def _kept(row: Row) -> Row:
    names = ("fault", "to_firing", "to_decided", "to_gone", "to_left_quorum", "to_survivors",
             "to_back", "problems")  # fmt: skip
    return {name: row[name] for name in names}


def of_incidents(group: str, incidents: list[Mapping[str, Any]]) -> Row:
    """From the first incident of the group that fired: until all were together, what it cost."""
    mine = [
        incident
        for incident in incidents
        if group in incident["groups"] and incident["milestones"]["firing_s"]
    ]
    mine.sort(key=lambda incident: incident["milestones"]["firing_s"])
    if not mine:
        return {"firing_to_resumed": None, "lost_steps": None}
    marks = mine[0]["milestones"]
    resumed_s = marks.get("resumed_s")
    return {
        "firing_to_resumed": None if resumed_s is None else round(resumed_s - marks["firing_s"], 2),
        "lost_steps": mine[0]["lost_steps"],
    }


def of_metrics(group: str, metrics: str) -> Row:
    """What the group that healed, and the donor, tell of it: `healer` and `donor`."""
    samples: dict[str, dict[str, float]] = {"healer": {}, "donor": {}}
    for name, whose, value in _SAMPLE.findall(metrics):
        staged = name.startswith("last_checkpoint_staging")
        if staged == (whose != group):
            samples["donor" if staged else "healer"][name] = float(value)
    return dict(samples)
