"""`make loss-band`: two groups of two ranks, with evictions and without, on the same seed.

Three runs one after the other: without faults; with a fault every 40 steps, each found by the
monitor and ended by an eviction; and without faults on another seed, as a yardstick for how far
two sound runs are apart. The plot is evidence/images/loss-band.svg.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from experiments import harness
from experiments.band import judge, plot
from experiments.fleet import Fleet, Setting
from experiments.harness import FleetError, say
from lightkeeper.trainer import status
from lightkeeper.trainer.demo import MonitorAwayError, unhealthy

SHAPE: Final = "2x2"
STEPS: Final = 300
EVERY: Final = 40
KINDS: Final = ("gil", "hang", "mismatch", "stop", "gil", "hang")
LIMIT_S: Final = 150.0
COMMAND: Final = "make loss-band"


@dataclass(frozen=True)
class Run:
    """One of the three."""

    name: str
    seed: int
    kinds: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Names it in the results."""
        return self.name


class Runner(harness.Runner):
    """A fleet for each, to its last step."""

    def run(self, case: Run) -> harness.Row:
        """Raises FleetError: it did not recover."""
        return {"key": case.key, **run(case, self.base / case.name.replace(" ", "-"))}


class LossBand(harness.Experiment):
    name, what = "loss-band", "Does a run with faults learn what one without them learns?"
    page_name = "images/loss-band.svg"

    def cases(self, args: argparse.Namespace) -> list[Run]:
        return [
            Run("without faults", 0),
            Run("with evictions", 0, KINDS),
            Run("without faults, another seed", 1),
        ]

    def runner(self, args: argparse.Namespace) -> Runner:
        return Runner(args.folder)

    def failed(self, row: harness.Row) -> bool:
        return bool(row["lost"])

    def told(self, row: harness.Row) -> str:
        return f"{len(row['evictions'])} evictions; lost steps: {'; '.join(row['lost']) or 'none'}"

    def page(self, out: Path) -> str:
        rows = harness.read(out)
        say(summary(rows))
        return plot.draw(rows, COMMAND)


def summary(runs: Sequence[dict[str, Any]]) -> str:
    """How far the three are apart."""
    calm, harmed, other = (dict(row["loss"]) for row in runs)
    by_faults = max(map(abs, judge.apart(harmed, calm).values()))
    by_seed = max(map(abs, judge.apart(other, calm).values()))
    return (
        f"largest difference of the mean loss of {judge.WINDOW} steps, nats a byte: "
        f"{by_faults:.3f} by evictions, {by_seed:.3f} by another seed"
    )


def run(case: Run, folder: Path) -> dict[str, Any]:
    """What came of one."""
    options = ("--seed", str(case.seed), "--fingerprint-every", "1")
    fleet = Fleet(Setting(SHAPE), folder, trainer_options=options)
    began_s = time.monotonic()
    fleet.start()
    try:
        wait(lambda: whole(fleet), "a whole fleet")
        evictions = [strike(fleet, number, kind) for number, kind in enumerate(case.kinds, 1)]
        wait(lambda: step_of(fleet) >= STEPS, f"step {STEPS}", limit_s=300.0)
    finally:
        fleet.stop()
    events = [e for e in status.read_events(fleet.folder / "steps.jsonl") if e["step"] <= STEPS]
    return {
        "run": case.name, "seed": case.seed, "shape": SHAPE, "steps": STEPS,
        "seconds": round(time.monotonic() - began_s, 1),
        "load": os.getloadavg()[1],
        "evictions": evictions,
        "uncommitted": sum(e["event"] == "step" and not e["committed"] for e in events),
        "lost": judge.lost(events, STEPS),
        "loss": [(step, round(loss, 5)) for step, loss in judge.curve(events).items()],
    }  # fmt: skip


def strike(fleet: Fleet, number: int, kind: str) -> dict[str, Any]:
    """Make a rank ill when it is time, wait until its group was evicted and is back."""
    wait(lambda: step_of(fleet) >= EVERY * number, f"step {EVERY * number}")
    rank = f"rg_{number % 2}.1"
    fault = f"band-{number}"
    fleet.inject([{"id": fault, "kind": kind, "rank": rank}])
    wait(lambda: fleet.marker(fault) is not None, f"{kind} strikes {rank}")
    at = step_of(fleet)
    say(f"  step {at}: {kind} in {rank}")
    group = rank.rpartition(".")[0]
    wait(lambda: evicted(fleet, group, number), f"the eviction of {group}")
    fleet.repair()
    wait(lambda: whole(fleet), "a whole fleet again")
    say(f"  step {step_of(fleet)}: {group} is back")
    return {"kind": kind, "rank": rank, "at": at, "back": step_of(fleet)}


def evicted(fleet: Fleet, group: str, number: int) -> bool:
    """Whether there were as many evictions as faults, the last of this group."""
    try:
        incidents = fleet.client().incidents()
    except MonitorAwayError:
        return False
    done = [
        incident
        for incident in incidents
        if incident["milestones"].get("evict_asked_s") is not None
    ]
    return len(done) >= number and any(group in incident["groups"] for incident in done)


def whole(fleet: Fleet) -> bool:
    """Whether every rank commits and no incident is open."""
    fleet.check()
    try:
        return unhealthy(fleet.client().snapshot(), fleet.groups, fleet.ranks_per_group) is None
    except MonitorAwayError:
        return False


def step_of(fleet: Fleet) -> int:
    """The newest committed step."""
    events = status.read_events(fleet.folder / "steps.jsonl")
    return max((e["step"] for e in events if e["event"] == "step"), default=0)


def wait(condition: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
    """Until it holds. Raises FleetError when it does not in time."""
    until = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > until:
            raise FleetError(f"waited {limit_s:.0f} s in vain for {what}")
        time.sleep(0.3)
