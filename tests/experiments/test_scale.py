"""What a tick costs grows with the ranks, not with their square; a hang in thousands is named."""

import time

import pytest

from experiments.scale.fleet import Fleet
from lightkeeper.monitor.decide.pipeline import Pipeline
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.incident import State
from lightkeeper.monitor.model.observation import (
    NO_LIGHTHOUSE,
    LighthouseAway,
    Observation,
    Snapshot,
)
from lightkeeper.worker_server import wire

HANG_AT, TICKS = 8, 28


class Watched:
    """A simulated fleet without HTTP, and a pipeline that is given a snapshot a second."""

    def __init__(self, ranks: int) -> None:
        self.now_s = 10_000.0
        self.fleet = Fleet(ranks, clock=lambda: self.now_s)
        self.pipeline = Pipeline(KeeperConfig())
        self.ticks = 0

    def tick(self):
        self.now_s += 1.0
        self.ticks += 1
        seen = []
        for rank in self.fleet.ranks:
            report = wire.parse_state({"schema": wire.SCHEMA, **self.fleet.report(rank)})
            seen.append(Observation(report.identity, rank.url, report, 0.01))
        seen.sort(key=lambda observation: observation.rank)
        return Snapshot(
            now_s=1e9 + self.now_s, tick=self.ticks, lateness_s=0.0, observations=tuple(seen),
            lighthouse=LighthouseAway(NO_LIGHTHOUSE), records={}, evictions=(), steps={},
        )  # fmt: skip


def judged(ranks: int):
    """Seconds of CPU that judging a standing fleet took a tick, and the incidents."""
    watched = Watched(ranks)
    costs, incidents = [], {}
    for number in range(TICKS):
        if number == HANG_AT:
            watched.fleet.hang(watched.fleet.ranks[ranks // 2])
        snapshot = watched.tick()
        began_s = time.thread_time()
        result = watched.pipeline.tick(snapshot)
        costs.append(time.thread_time() - began_s)
        incidents.update({incident.id: incident for incident in result.incidents})
    return sorted(costs[-8:])[3], list(incidents.values())


@pytest.mark.integration
def test_a_standing_fleet_is_judged_in_time_by_its_size_and_its_culprit_named() -> None:
    judged(64)  # what is made at the first time
    small, _ = judged(125)
    large, incidents = judged(1000)
    assert large < 24 * small  # 64 times for a square
    (incident,) = incidents
    assert (incident.culprits, incident.state) == (("rg_62.4",), State.FIRING)
    assert len(incident.verdict.victims) == 999
