"""`python -m experiments soak`: healthy training with all that makes a monitor cry wolf.

Evaluation and checkpoints come from the trainer every so many steps. The rest is done one after
another, in an order and with lengths from the seed: pauses in one rank and in all of them,
declared and undeclared, the garbage collector, a C call that holds the GIL, busy processes on the
cores, restarts of the monitor. What counts is incidents that fire and accuse a rank: none may.

An undeclared pause of one rank alone, while the others wait, is a hang once it lasts as long as
the hang's threshold (5 s or 10 step times): those here end before. All ranks at once, as when a
changed shape makes everybody compile, may take longer.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from experiments import harness
from experiments.campaign import page
from experiments.campaign.classes import ACTS
from experiments.campaign.runner import START_LIMIT_S, until_whole
from experiments.fleet import SHAPES, Fleet, Setting
from experiments.harness import LOOK_S, FleetError, say
from experiments.watch import Watch
from lightkeeper.trainer.supervisor import die_with_parent

EVALUATE_EVERY: Final = 150
"""Steps: about every 40 s, 100 batches, some seconds on a shared core."""
CHECKPOINT_EVERY: Final = 200
QUIET_S: Final = (4.0, 15.0)
"""Between two disturbances."""
_BUSY: Final = (
    "import sys, time\nend = time.time() + float(sys.argv[1])\nwhile time.time() < end: pass"
)


class Soak:
    """One fleet, disturbed for some minutes."""

    def __init__(self, case: Stretch, folder: Path) -> None:
        self.case = case
        self.random = Random(f"soak/{case.seed}/{case.name}")
        self.fleet = Fleet(
            Setting(case.name),
            folder,
            trainer_options=(
                "--evaluate-every", str(EVALUATE_EVERY), "--evaluate-batches", "100",
                "--checkpoint-every", str(CHECKPOINT_EVERY),
                "--checkpoint-dir", str(folder / "checkpoints"),
            ),
        )  # fmt: skip
        self.watch = Watch(self.fleet.monitor_url)
        self.done: Counter[str] = Counter()
        self.last = "the start"
        self.after: dict[str, str] = {}
        self.burners: list[subprocess.Popen[bytes]] = []
        self.number = 0
        self.disturbances: tuple[tuple[str, Callable[[], float]], ...] = (
            ("undeclared pause of one rank", lambda: self._pause_one("sleep", 1.0, 3.5)),
            ("declared pause of one rank", lambda: self._pause_one("declared", 8.0, 25.0)),
            ("busy loop of one rank", lambda: self._pause_one("busy", 1.0, 3.5)),
            ("GIL held by one rank", lambda: self._pause_one("gil", 1.0, 3.5)),
            ("garbage collection in one rank", lambda: self._pause_one("gc", 1.0, 3.0)),
            ("undeclared pause of all ranks", lambda: self._pause_all("sleep", 4.0, 10.0)),
            ("declared pause of all ranks", lambda: self._pause_all("declared", 10.0, 30.0)),
            ("busy processes on all cores", self._burn),
            ("SIGKILL of the monitor", lambda: self._restart_monitor(signal.SIGKILL)),
            ("SIGTERM of the monitor", lambda: self._restart_monitor(signal.SIGTERM)),
        )

    def run(self) -> dict[str, Any]:
        """The result, one line.

        Raises:
            FleetError: the fleet did not start, or a process of it ended.
        """
        fleet = self.fleet
        try:
            fleet.start()
            problem = until_whole(fleet, self.watch, START_LIMIT_S)
            if problem is not None:
                raise FleetError(problem)
            began_s, until = time.time(), time.monotonic() + 60 * self.case.minutes
            first_step = self.watch.step()
            say(f"   healthy: {self.case.minutes:g} minutes from now, in {fleet.folder}")
            queue: list[tuple[str, Callable[[], float]]] = []
            while time.monotonic() < until:
                self._look_for(self.random.uniform(*QUIET_S))
                if not queue:
                    queue = self.random.sample(self.disturbances, len(self.disturbances))
                self.last, disturb = queue.pop()
                lasts_s = disturb()
                self.done[self.last] += 1
                say(f"   {self.last}, {lasts_s:.1f} s; step {self.watch.step()}, {self._count()}")
                self._look_for(lasts_s)
            self._look_for(15.0)
            return self._result(began_s, first_step)
        finally:
            for burner in self.burners:
                burner.kill()
                burner.wait()
            self.watch.close()
            fleet.stop()

    # -- disturbances: each gives the seconds for which it lasts -----------------------------

    def _pause_one(self, variant: str, low_s: float, high_s: float) -> float:
        return self._pause([self.random.choice(self.fleet.ranks)], variant, low_s, high_s)

    def _pause_all(self, variant: str, low_s: float, high_s: float) -> float:
        return self._pause(self.fleet.ranks, variant, low_s, high_s)

    def _pause(self, ranks: Sequence[str], variant: str, low_s: float, high_s: float) -> float:
        seconds = self.random.uniform(low_s, high_s)
        phase = self.random.choice(("data", "forward", "backward", "optimizer"))
        self.number += 1
        self.fleet.inject(
            [
                {
                    "id": f"{self.number}-{rank}", "kind": f"{ACTS}:pause_{variant}",
                    "rank": rank, "factor": seconds, "phase": phase,
                    "step": self.watch.step() + 10,
                }
                for rank in ranks
            ]
        )  # fmt: skip
        return seconds + 4.0

    def _burn(self) -> float:
        seconds = self.random.uniform(15.0, 40.0)
        self.burners = [process for process in self.burners if process.poll() is None]
        self.burners += [
            subprocess.Popen(
                [sys.executable, "-c", _BUSY, str(seconds)],
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - this process has one thread
            )
            for _ in range(2 * (os.cpu_count() or 1))
        ]
        return seconds

    def _restart_monitor(self, number: signal.Signals) -> float:
        self.fleet.kill("monitor", number)
        time.sleep(self.random.uniform(0.0, 5.0))
        self.fleet.start_monitor()
        return 5.0

    # -- looking -----------------------------------------------------------------------------

    def _look_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.fleet.check()
            self.watch.look()
            for name in self.watch.seen:
                self.after.setdefault(name, self.last)
            time.sleep(LOOK_S)

    def _count(self) -> str:
        fired = sum(bool(incident.accused) for incident in self.watch.seen.values())
        return f"{fired} fired, {len(self.watch.seen) - fired} pending only"

    def _result(self, began_s: float, first_step: int) -> dict[str, Any]:
        fired, pending = [], []
        for name, incident in self.watch.seen.items():
            state = "firing" if incident.accused else "pending"
            (fired if state == "firing" else pending).append(
                {
                    "state": state,
                    "kind": incident.latest["kind"],
                    "culprits": sorted(incident.states),
                    "reason": incident.latest["reason"],
                    "after": self.after.get(name, "?"),
                    "at_min": (incident.latest["milestones"]["first_seen_s"] - began_s) / 60,
                    "story": incident.latest["story"],
                }
            )
        evicted = sum(bool(incident.evicted) for incident in self.watch.seen.values())
        return {
            "key": self.case.key,
            "shape": self.case.name,
            "seed": self.case.seed,
            "minutes": (time.time() - began_s) / 60,
            "steps": self.watch.step() - first_step,
            "done": {
                **self.done,
                "evaluation": (self.watch.step() - first_step) // EVALUATE_EVERY,
                "checkpoint": (self.watch.step() - first_step) // CHECKPOINT_EVERY,
            },
            "fired": fired,
            "pending": pending,
            "evictions": evicted,
        }


@dataclass(frozen=True)
class Stretch:
    """The soak of one shape."""

    name: str
    """The shape."""
    seed: int
    minutes: float

    @property
    def key(self) -> str:
        """Names it in the results."""
        return f"soak-{self.name}-{self.seed}"


class Runner(harness.Runner):
    """A fleet of its own for each."""

    def run(self, case: Stretch) -> harness.Row:
        """Raises FleetError: it did not start, or a process of it ended."""
        return Soak(case, self.base / case.name).run()


class SoakExperiment(harness.Experiment):
    name, what = "soak", "Healthy training; nobody may be accused."
    on_page = "campaign"

    def options(self, add: Callable[..., Any]) -> None:
        add("--minutes", type=float, default=30.0, help="for each shape (%(default)s)")
        add("--seed", type=int, default=5, help="of what is done when (%(default)s)")

    def cases(self, args: argparse.Namespace) -> list[Stretch]:
        return [Stretch(shape, args.seed, args.minutes) for shape in SHAPES]

    def runner(self, args: argparse.Namespace) -> Runner:
        return Runner(args.folder)

    def told(self, row: harness.Row) -> str:
        return f"{len(row['fired'])} fired, {len(row['pending'])} pending only"

    def failed(self, row: harness.Row) -> bool:
        return bool(row["fired"])

    def page(self, out: Path) -> str:
        return page.made(out.with_name("campaign.jsonl"), out)
