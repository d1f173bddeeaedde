"""What a monitor sees and knows, small: observations, views, an incident and what was done."""

from __future__ import annotations

from lightkeeper.monitor.decide.pipeline import TickResult
from lightkeeper.monitor.decide.view import View
from lightkeeper.monitor.model.eviction import (
    Accused,
    Ask,
    Change,
    Eviction,
    EvictionState,
    Guard,
    Hold,
    QuarantineEntry,
    QuarantineEvent,
    Rung,
    RungOutcome,
    Scope,
)
from lightkeeper.monitor.model.incident import Incident, Milestones, State, Training, Transition
from lightkeeper.monitor.model.names import GroupName, Host, IncidentId, RankName, ReplicaId
from lightkeeper.monitor.model.observation import (
    Failure,
    LighthouseView,
    Member,
    Observation,
    Snapshot,
    Unreachable,
)
from lightkeeper.monitor.model.verdict import Confidence, Kind, Severity, Verdict
from tests.monitor.decided import to_evict
from tests.monitor.fakes import FakeRank, identity

LIGHT = LighthouseView(
    7,
    (Member(ReplicaId("rg_0:a"), 10), Member(ReplicaId("rg_9:z"), 10)),
    {ReplicaId("rg_0:a"): 0.5, ReplicaId("rg_0:old"): 900.0},
    "fine",
)


def seen(group: str, number: int = 0, *, replica_id: str | None = None, step: int = 10, **who):
    who = {"world_size": max(2, number + 1), **who}
    rank = FakeRank(identity(group, number, **who), replica_id=replica_id, step=step)
    return Observation(rank.identity, "http://h:1", rank.report(), 0.01)


def away(group: str) -> Observation:
    return Observation(
        identity(group, 1, world_size=2), "http://h:1", Unreachable(Failure.TIMEOUT, "late"), 1.0
    )


def snapshot(*observations: Observation, now_s: float = 1000.0, lighthouse=LIGHT) -> Snapshot:
    return Snapshot(now_s, 1, 0.0, observations, lighthouse)


def view(*observations: Observation, health: dict | None = None, **more) -> View:
    lighthouse = more.pop("lighthouse", LIGHT)
    shown = snapshot(*observations, lighthouse=lighthouse)
    result = TickResult(1000.0, rank_health=health or {})
    return View(shown, result, observe=False, **more)


def incident(name: str = "inc-1", first_seen_s: float = 100.0, state: State = State.FIRING):
    culprits, groups = (RankName("rg_1.0"),), (GroupName("rg_1"),)
    return Incident(
        id=IncidentId(name),
        kind=Kind.NOT_ENTERED,
        fingerprint="not_entered rg_1.0",
        signature="not_entered:forward",
        state=state,
        culprits=culprits,
        groups=groups,
        replica_ids=(ReplicaId("rg_1:uuid1"),),
        incarnations=("one",),
        verdict=Verdict(
            kind=Kind.NOT_ENTERED,
            culprits=culprits,
            groups=groups,
            reason="rg_1.0 has not moved for 9 s",
            confidence=Confidence.LIKELY,
            since_s=90.0,
            victims=(RankName("rg_0.0"),),
            evidence={"phase": "forward for 9 s"},
            signature="not_entered:forward",
        ),
        milestones=Milestones(first_seen_s=first_seen_s, firing_s=first_seen_s + 2),
        story=(
            Transition(first_seen_s, "pending", "seen"),
            Transition(first_seen_s + 2, "firing", "held for two sweeps"),
        ),
        last_seen_s=first_seen_s + 3,
        severity=Severity.CRITICAL,
        training=Training.STANDS,
        stood=True,
    )


EVICTION = Eviction(
    incident_id=IncidentId("inc-1"),
    group=GroupName("rg_1"),
    replica_id=ReplicaId("rg_1:uuid1"),
    asked_s=103.0,
    rungs=(RungOutcome(Rung.LIGHTHOUSE_KILL, 103.1, 103.5, "answered 500"),),
    gone_s=103.6,
    ended_s=103.6,
    state=EvictionState.CONFIRMED,
    reason="hung",
    quarantine=(Host("node1"),),
    accused=(Accused(RankName("rg_1.0"), "one", "http://h:1", Host("node1"), {"pod": "p"}),),
    asks=(Ask(Rung.LIGHTHOUSE_KILL, "", 103.1, "answered 500", waits=False),),
    outcome="every accused process is gone",
)
ENTRY = QuarantineEntry(Host("node1"), "hung", "lightkeeper", 103.0, 9999.0, IncidentId("inc-1"))
GROUP_ENTRY = QuarantineEntry("rg_2", "bad data", "ann", 104.0, None, None, Scope.GROUP)
EVENT = QuarantineEvent(
    101.0, Change.ACCUSED, "node1", "hung", incident_id=IncidentId("inc-1"), kind="not_entered",
    signature="s", wide=True,
)  # fmt: skip
HOLD = Hold(IncidentId("inc-1"), Guard.COOL_DOWN, "too soon")
EVICT = to_evict(
    IncidentId("inc-1"), GroupName("rg_1"), ReplicaId("rg_1:uuid1"), (Host("node1"),), "hung"
)
