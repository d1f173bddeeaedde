"""What incidents of a simulated fleet say about its hosts."""

from __future__ import annotations

from lightkeeper.monitor.act.quarantine import (
    FINDINGS_MAX_CHARS,
    accusations,
    evictions,
    findings_of,
)
from lightkeeper.monitor.decide.pipeline import Pipeline, TickResult
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import Change, QuarantineEvent
from lightkeeper.monitor.model.incident import Incident
from lightkeeper.monitor.model.names import IncidentId
from lightkeeper.monitor.model.observation import Snapshot
from lightkeeper.monitor.model.verdict import Confidence
from tests.changed import replace
from tests.monitor.fleet import Drive, SimFleet, at, crash, hang, mismatch, slow
from tests.monitor.fleet.told import observed


class Told:
    """As the keeper does: after each tick the incidents as they were before it."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.events: list[QuarantineEvent] = []
        self.known: dict[IncidentId, Incident] = {}

    def tick(self, snapshot: Snapshot) -> TickResult:
        result = self.pipeline.tick(snapshot)
        self.events += accusations(result.changed, self.known, snapshot.now_s)
        self.known.update({incident.id: incident for incident in result.changed})
        self.events += evictions(result.decisions, self.known.get, snapshot)
        return result


def told(fleet: SimFleet, ticks: int, config: KeeperConfig | None = None) -> Told:
    drive = Drive(fleet, config)
    drive.pipeline = listening = Told(drive.pipeline)
    drive.run(ticks)
    return listening


def test_a_hang_accuses_the_host_of_its_culprit_once_and_its_eviction_too() -> None:
    events = told(SimFleet(3, 1, [at(20, hang("rg_1.0"))]), 60).events
    assert [(event.change, event.name, event.kind) for event in events] == [
        (Change.ACCUSED, "host-rg_1", "not_entered"), (Change.EVICTED, "host-rg_1", "not_entered"),
    ]  # fmt: skip
    first = events[0]
    assert first.wide
    assert first.reason.startswith("rank rg_1.0 hangs in phase 'forward'")
    assert first.findings
    assert first.signature == "not_entered:rg_1.0:forward"


def test_in_observe_mode_hosts_are_accused_and_nobody_is_evicted() -> None:
    fleet = SimFleet(3, 1, [at(20, hang("rg_1.0"))])
    events = told(fleet, 40, KeeperConfig(observe=True)).events
    assert [event.change for event in events] == [Change.ACCUSED]


def test_a_straggler_and_a_death_accuse_their_hosts() -> None:
    events = told(SimFleet(4, 1, [at(20, slow("rg_2.0", 4))]), 120).events
    assert (events[0].name, events[0].kind) == ("host-rg_2", "straggler")
    events = told(SimFleet(3, 2, [at(20, crash("rg_1.1"))]), 40).events
    assert (events[0].name, events[0].kind) == ("host-rg_1", "dead")


def test_a_verdict_that_cannot_tell_accuses_no_host() -> None:
    listening = told(SimFleet(3, 2, [at(20, mismatch("rg_1.1"))]), 60)
    unsure = {
        incident.id for incident in listening.known.values()
        if incident.verdict.confidence is Confidence.UNSURE
    }  # fmt: skip
    assert not [event for event in listening.events if event.incident_id in unsure]


def test_a_pod_whose_node_nobody_knows_is_no_host() -> None:
    fleet = SimFleet(3, 1, [at(20, hang("rg_1.0"))])
    in_pods = observed(
        lambda observation: replace(
            observation, identity=replace(observation.identity, host=f"pod:{observation.rank}")
        )
    )
    drive = Drive(fleet, alter=in_pods)
    drive.pipeline = listening = Told(drive.pipeline)
    drive.run(40)
    assert drive.evicts
    assert listening.events == []


def test_findings_are_one_line_of_bounded_length() -> None:
    listening = told(SimFleet(3, 1, [at(20, hang("rg_1.0"))]), 40)
    (incident,) = [
        known_incident for known_incident in listening.known.values() if known_incident.culprits
    ]
    verdict = replace(incident.verdict, evidence={"a": "x\ny", "b": "z" * 1000})
    line = findings_of(replace(incident, verdict=verdict))
    assert line.startswith("a: x y; b: zzz")
    assert len(line) == FINDINGS_MAX_CHARS
