"""A short run in which groups are killed again and again, beside one without faults."""

import pytest

from experiments.band import judge
from lightkeeper.trainer import status
from tests.deep import only_explored
from tests.trainer.fleet import Forks, lighthouse, until

pytestmark = [
    pytest.mark.integration,
    only_explored,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

STEPS = 70
KILLED = {15: "rg_1", 30: "rg_0", 45: "rg_1"}
"""Committed step -> the group that is killed there."""
BAND = 0.25
"""Nats a byte, for means of 20 steps. The long run (evidence/README.md) differs by less: early in
training, where the loss falls by 0.1 a step, a group's batches more or less show more."""


def fleet_in(folder):
    often = ("--steps", str(STEPS), "--log-every", "1", "--fingerprint-every", "1")
    return Forks(folder, *often, "--step-time", "0.04", "--timeout", "20")


def step_of(fleet):
    return max((event["step"] for event in fleet.events("fingerprint")), default=0)


def test_a_run_that_loses_groups_loses_no_step_and_learns_the_same(tmp_path):
    calm, harmed = fleet_in(tmp_path / "calm"), fleet_in(tmp_path / "harmed")
    for fleet in (calm, harmed):
        fleet.add("rg_0", 2).add("rg_1", 2)
    lives = {"rg_0": 0, "rg_1": 0}
    harmed.add("rg_0", 2, life=1).add("rg_1", 2, life=1).add("rg_1", 2, life=2)

    with lighthouse(calm):
        calm.start_all()
        assert calm.exit_codes() == [0, 0, 0, 0]
    with lighthouse(harmed):
        for group in lives:
            harmed.start(*(f"{group}.{n}" for n in range(2)))
        for at, group in KILLED.items():
            until(lambda at=at: step_of(harmed) >= at, f"step {at}")
            ranks = [f"{group}.{n}" for n in range(2)]
            harmed.kill(*ranks, life=lives[group])
            lives[group] += 1
            alone = step_of(harmed) + 4
            until(lambda alone=alone: step_of(harmed) >= alone, "the other goes on alone")
            with harmed.slowed(1.0):
                harmed.start(*ranks, life=lives[group])
                until(
                    lambda group=group, alone=alone: any(
                        event["step"] > alone and event["participants"] == 2
                        for event in harmed.events("step", f"{group}.0")
                    ),
                    f"{group} is back",
                )
        until(lambda: len(harmed.events("finished")) == 4, "the end")
        events = status.read_events(harmed.status_file)

    assert judge.lost(events, STEPS) == []
    alone = [e["step"] for e in events if e["event"] == "step" and e["participants"] == 1]
    assert len(set(alone)) >= 4 * len(KILLED)  # it was harmed indeed
    apart = judge.apart(judge.curve(events), judge.curve(status.read_events(calm.status_file)))
    assert len(apart) == STEPS - judge.WINDOW + 1
    assert max(map(abs, apart.values())) < BAND
