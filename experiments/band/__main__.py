"""`make loss-band`: two groups of two ranks, with evictions and without, on the same seed.

Three runs one after the other: without faults; with a fault every 40 steps, each found by the
monitor and ended by an eviction; and without faults on another seed, as a yardstick for how far
two sound runs are apart. Writes evidence/loss-band.jsonl and evidence/images/loss-band.svg.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from experiments.band import judge, plot
from experiments.fleet import Fleet, Setting
from experiments.harness import say
from lightkeeper.trainer import status
from lightkeeper.trainer.demo import MonitorAwayError, unhealthy

ROOT: Final = Path(__file__).parents[2]
SHAPE: Final = "2x2"
STEPS: Final = 300
EVERY: Final = 40
KINDS: Final = ("gil", "hang", "mismatch", "stop", "gil", "hang")
LIMIT_S: Final = 150.0
COMMAND: Final = "make loss-band"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all three, judge, draw; 1 when a committed step was lost or the fleet did not recover."""
    parser = argparse.ArgumentParser(prog="experiments.band", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "evidence/loss-band.jsonl")
    parser.add_argument("--plot", type=Path, default=ROOT / "evidence/images/loss-band.svg")
    options = parser.parse_args(arguments)
    runs = [
        run("without faults", seed=0, kinds=()),
        run("with evictions", seed=0, kinds=KINDS),
        run("without faults, another seed", seed=1, kinds=()),
    ]
    options.out.write_text("".join(json.dumps(row) + "\n" for row in runs))
    options.plot.write_text(plot.draw(runs, COMMAND))
    for line in summary(runs):
        print(line)
    return int(any(row["lost"] for row in runs))


def summary(runs: Sequence[dict[str, Any]]) -> list[str]:
    """What there is to say of the three."""
    calm, harmed, other = (dict(row["loss"]) for row in runs)
    by_faults = max(map(abs, judge.apart(harmed, calm).values()))
    by_seed = max(map(abs, judge.apart(other, calm).values()))
    lost = [line for row in runs for line in row["lost"]]
    return [
        f"{len(runs[1]['evictions'])} evictions; lost steps: {'; '.join(lost) or 'none'}",
        (
            f"largest difference of the mean loss of {judge.WINDOW} steps, nats a byte: "
            f"{by_faults:.3f} by evictions, {by_seed:.3f} by another seed"
        ),
    ]


def run(name: str, *, seed: int, kinds: Sequence[str]) -> dict[str, Any]:
    """One fleet to its last step; what came of it."""
    say(f"{name}: {STEPS} steps")
    with tempfile.TemporaryDirectory(prefix="lightkeeper-band-") as folder:
        fleet = Fleet(
            Setting(SHAPE),
            Path(folder),
            trainer_options=("--seed", str(seed), "--fingerprint-every", "1"),
        )
        began_s = time.monotonic()
        fleet.start()
        try:
            wait(lambda: whole(fleet), "a whole fleet")
            evictions = [strike(fleet, number, kind) for number, kind in enumerate(kinds, 1)]
            wait(lambda: step_of(fleet) >= STEPS, f"step {STEPS}", limit_s=300.0)
        finally:
            fleet.stop()
        events = [e for e in status.read(fleet.folder / "steps.jsonl") if e["step"] <= STEPS]
    return {
        "run": name, "seed": seed, "shape": SHAPE, "steps": STEPS, "command": COMMAND,
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
    events = status.read(fleet.folder / "steps.jsonl")
    return max((e["step"] for e in events if e["event"] == "step"), default=0)


def wait(condition: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
    """Until it holds; ends the script when it does not in time."""
    until = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > until:
            sys.exit(f"waited {limit_s:.0f} s in vain for {what}")
        time.sleep(0.3)


if __name__ == "__main__":
    sys.exit(main())
