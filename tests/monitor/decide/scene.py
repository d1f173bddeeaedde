"""One hang on a fleet of 3 groups x 2 ranks, every moment of which is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lightkeeper.monitor.decide.accounts import IncidentAccount, account
from lightkeeper.monitor.model.eviction import Eviction, Guard, Hold, Release, Rung, RungOutcome
from lightkeeper.monitor.model.incident import Incident, Milestones, State, Transition
from lightkeeper.monitor.model.names import GroupName, Host, IncidentId, ReplicaId
from lightkeeper.monitor.model.verdict import Kind
from tests.monitor.samples import incident

ID = IncidentId("inc-1")
MARKS = Milestones(
    first_seen_s=105.0,
    firing_s=106.0,
    evict_asked_s=111.0,
    left_quorum_s=116.0,
    survivor_commit_s=117.0,
    rejoined_s=136.0,
)
"""The fault began at 100."""
RELEASE = Release(
    ID, GroupName("rg_1"), 3, (), (), "rg_0.0 does not wait for rg_1 any more",
    at_s=109.5, state="confirmed", ended_s=110.0, outcome="rg_0.0 ended 2 connections",
)  # fmt: skip
"""Others were freed."""
ROWS = (
    Hold(ID, Guard.COOL_DOWN, "too soon", at_s=106.0),
    Hold(ID, Guard.BUDGET, "4 an hour are used up", at_s=108.0),
    Hold(ID, Guard.BUDGET, "4 an hour are used up, still", at_s=109.0),
)
EVICTION = Eviction(
    incident_id=ID,
    group=GroupName("rg_1"),
    replica_id=ReplicaId("rg_1:uuid1"),
    asked_s=111.0,
    rungs=(
        RungOutcome(Rung.QUARANTINE, 111.0, 111.0, "launchers are refused on node1"),
        RungOutcome(Rung.LIGHTHOUSE_KILL, 111.1, 114.1, "no answer"),
        RungOutcome(Rung.WORKER_EVICT, 114.1, 115.0, "gone"),
    ),
    gone_s=115.0,
    left_quorum_s=116.0,
    decided_s=110.5,
    reason="not_entered: hung",
)


def hang(**changes: Any) -> Incident:
    """Resolved, evicted, everything seen."""
    made = incident("inc-1")
    made = replace(
        made,
        state=State.RESOLVED,
        verdict=replace(made.verdict, since_s=100.0),
        milestones=MARKS,
        story=(
            Transition(105.0, "pending", "seen"),
            Transition(106.0, "firing", "held"),
            Transition(111.0, "evicting", "asked for rg_1"),
            Transition(116.0, "resolved", "evicted: left the quorum"),
        ),
        last_seen_s=112.0,
        resolution="evicted: left the quorum",
        hosts=(Host("node1"),),
        back_on=(Host("node4"),),
    )
    return replace(made, **changes)


def case(subject: Incident | None = None, **changes: Any) -> IncidentAccount:
    """The account of the hang with all that belongs to it, long after."""
    made = {"rows": (*ROWS, EVICTION), "lost": 140.0, "now_s": 2000.0}
    return account(subject or hang(), **{**made, **changes})


def unevicted(hung: Incident, **changes: Any) -> IncidentAccount:
    """The same fault, nobody having done anything about it."""
    before = replace(hung.milestones, evict_asked_s=None, left_quorum_s=None, rejoined_s=None)
    return case(replace(hung, milestones=before), **{"rows": (), **changes})


def of_kind(kind: Kind, lost_s: float = 0.0) -> Incident:
    """The same times, another fault."""
    made = hang()
    return replace(made, kind=kind, verdict=replace(made.verdict, kind=kind, lost_s=lost_s))
