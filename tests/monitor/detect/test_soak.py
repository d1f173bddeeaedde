"""Healthy training, on the virtual clock: nobody is accused."""

import pytest

from lightkeeper.monitor.decide.pipeline import Pipeline
from lightkeeper.monitor.model.config import KeeperConfig
from tests.deep import EXPLORES, only_explored
from tests.monitor.fleet import (
    At,
    Drive,
    SimFleet,
    at,
    cpu_stall,
    gil,
    late,
    lighthouse_away,
    pause,
    recover,
    restart,
    runs,
    silent,
    slow,
)

pytestmark = pytest.mark.integration  # no processes, but 4 s of CPU each

HALF_AN_HOUR = 1800
PACE = 1.0 if EXPLORES else 0.5
"""In `make test` the same things happen in a quarter of an hour."""


def ordinary(names: list[str]) -> list[At]:
    """What a job does in half an hour, all of it healthy; seconds since the start."""
    first, last = names[0], names[-1]
    script = [
        at(60, pause(names, "compile", 45.0)),
        at(200, pause(names, "evaluation", 60.0)),
        at(330, pause(names, "other", 25.0)),  # an evaluation that nobody declared
        at(420, pause([first], "checkpoint", 50.0)),
        at(560, restart("rg_1", start_s=40.0)),
        at(700, late(8.0, 2)),
        at(760, silent(first, 15.0)),
        at(820, lighthouse_away(9.0)),
        at(900, pause(names, "other", 25.0)),
        at(1000, runs(last)),
        at(1001, gil(last)),  # a garbage collection
        at(1007, recover(last)),
        at(1010, runs(last, "S")),
        at(1100, runs(first)),
        at(1101, pause([first], "backward", 12.0)),  # a recompilation
        at(1130, runs(first, "S")),
        at(1300, pause([first], "checkpoint", 55.0)),
        at(1500, pause(names, "evaluation", 60.0)),
    ]
    script += [at(100 + 37 * n, cpu_stall(names[n % len(names)], 2.9)) for n in range(45)]
    for n in range(60):  # long sequences, now here and now there
        name = names[n % len(names)]
        script += [at(1150 + 2 * n, slow(name, 3.0)), at(1151.2 + 2 * n, slow(name, 1.0))]
    return script


class Restarted(Drive):
    """A drive whose monitor starts again twice, with what the store holds."""

    def step(self):
        if self.fleet.tick and self.fleet.tick % round(PACE * 600) == 0:
            stored = [incident for incident in self.seen.values() if incident.open]
            self.pipeline = Pipeline(self.config, stored)
        return super().step()


@pytest.mark.parametrize(
    ("groups", "size", "options"),
    [
        pytest.param(3, 1, {}, id="3 groups of 1", marks=only_explored),
        pytest.param(2, 2, {}, id="2 groups of 2"),
        pytest.param(
            3,
            1,
            {"source": "torchft", "across": True},
            id="TorchFT tells the steps",
            marks=only_explored,
        ),
        pytest.param(
            3, 1, {"source": "torchft", "across": True, "asynchronous": True}, id="DDP waits in C++"
        ),
        pytest.param(2, 2, {"source": None, "across": True}, id="attached only"),
    ],
)
def test_healthy_training_accuses_nobody(groups, size, options) -> None:
    names = [f"rg_{group}.{rank}" for group in range(groups) for rank in range(size)]
    script = ordinary(names)
    if options:  # what is declared there, nobody hears: only pauses of all pass unlearned
        script = [line for line in script if line.at_s not in (420, 1101, 1300)]
    script = [At(PACE * line.at_s, line.fault) for line in script]
    launched = options.pop("asynchronous", False)
    fleet = SimFleet(groups, size, script, noise=0.2, seed=3, **options)
    fleet.asynchronous, fleet.tells_waits = launched, options.get("source") == "torchft"
    drive = Restarted(fleet, KeeperConfig()).run(round(PACE * HALF_AN_HOUR))
    assert not [drive.seen[key].verdict.reason for key in drive.fired if drive.seen[key].culprits]
    assert not drive.evicts
