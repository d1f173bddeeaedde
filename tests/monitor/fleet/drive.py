"""A fleet and a pipeline against each other."""

from __future__ import annotations

from collections.abc import Callable

from lightkeeper.monitor.decide.pipeline import Pipeline, TickResult
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import Eviction, Hold, Release
from lightkeeper.monitor.model.incident import Incident, State
from lightkeeper.monitor.model.names import RankName
from lightkeeper.monitor.model.observation import Snapshot
from lightkeeper.monitor.model.verdict import Confidence
from tests.monitor.fleet.fleet import SimFleet
from tests.monitor.fleet.rank import START_S


class Drive:
    """A fleet and a pipeline against each other; what was decided, with its times."""

    def __init__(
        self,
        fleet: SimFleet,
        config: KeeperConfig | None = None,
        *,
        pipeline: Pipeline | None = None,
        alter: Callable[[Snapshot], Snapshot] = lambda snapshot: snapshot,
        may_crash: bool = False,
    ) -> None:
        self.fleet = fleet
        self.config = config or KeeperConfig()
        self.pipeline = pipeline or Pipeline(self.config)
        self.alter = alter
        self.may_crash = may_crash
        """A detector; else a crashed one, which finds nothing, would look like a healthy fleet."""
        self.results: list[TickResult] = []
        self.evicts: list[tuple[float, Eviction]] = []
        self.holds: list[tuple[float, Hold]] = []
        self.releases: list[tuple[float, Release]] = []
        self.fired: dict[str, float] = {}
        """Incident id -> seconds after the start at which it fired."""
        self.seen: dict[str, Incident] = {}
        """Every incident ever changed, in its latest form."""
        self._wanted: tuple[RankName, ...] = ()
        self._past: tuple[RankName, ...] = ()

    def run(self, ticks: int) -> Drive:
        for _ in range(ticks):
            self.step()
        return self

    def step(self) -> TickResult:
        result = self.pipeline.tick(self.alter(self.fleet.snapshot(self._wanted, self._past)))
        assert self.may_crash or not result.detector_failures, result.detector_failures
        self._wanted, self._past = result.wants_records, result.wants_steps
        self.results.append(result)
        at_s = round(result.now_s - START_S, 3)
        for incident in result.changed:
            self.seen[incident.id] = incident
            if incident.state is State.FIRING and incident.id not in self.fired:
                self.fired[incident.id] = at_s
        for decision in result.decisions:
            if isinstance(decision, Eviction):
                self.evicts.append((at_s, decision))
                self.fleet.evict(decision)
            elif isinstance(decision, Hold):
                self.holds.append((at_s, decision))
            else:
                self.releases.append((at_s, decision))
        return result

    @property
    def last(self) -> TickResult:
        return self.results[-1]

    def incident(self, kind: str) -> Incident:
        """The one fired incident of a kind."""
        incidents = [i for i in self.seen.values() if i.kind == kind and i.id in self.fired]
        assert len(incidents) == 1, [(i.id, i.state, i.resolution) for i in self.seen.values()]
        return incidents[0]

    def kinds(self) -> list[str]:
        """Of those that fired, sorted."""
        return sorted(str(self.seen[key].kind) for key in self.fired)

    def accused(self) -> set[str]:
        """Everybody who was ever named with more than doubt, by an incident that fired."""
        incidents = [self.seen[key] for key in self.fired]
        sure = [i for i in incidents if i.verdict.confidence is not Confidence.UNSURE]
        return {rank for incident in sure for rank in incident.culprits}

    def evicted(self) -> list[str]:
        return [decision.group for _, decision in self.evicts]
