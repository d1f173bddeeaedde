"""Each guard says no alone, with its reason; with none of them, the group goes."""

from dataclasses import replace

import pytest

from monitor.config import KeeperConfig
from monitor.detectors.verdict import Confidence, Kind, Verdict
from monitor.incident import Incident, Milestones, State
from monitor.names import GroupName, Host, IncidentId, RankName, ReplicaId
from monitor.policy import (
    Evict,
    Fleet,
    GroupView,
    Guard,
    Hold,
    Lesson,
    PastEviction,
    decide,
)

NOW_S = 10_000.0
CULPRIT = RankName("rg_1.0")


def view(name: str, **changes) -> GroupView:
    rank = RankName(f"{name}.0")
    return replace(
        GroupView(
            group=GroupName(name),
            healthy=name != "rg_1",
            alive=(rank,),
            replica_id=ReplicaId(f"{name}:a"),
            in_quorum=True,
            heartbeat_age_s=0.2,
            hosts={rank: Host(f"host-{name}")},
        ),
        **changes,
    )


def fleet(**changes) -> Fleet:
    groups = {GroupName(name): view(name) for name in ("rg_0", "rg_1", "rg_2")}
    return replace(
        Fleet(
            now_s=NOW_S,
            groups=groups,
            accused=frozenset({GroupName("rg_1")}),
            doubt=None,
            lighthouse_away=None,
        ),
        **changes,
    )


def incident(kind: Kind = Kind.NOT_ENTERED, confidence=Confidence.CERTAIN, lost_s=0.0) -> Incident:
    verdict = Verdict(
        kind, (CULPRIT,), (GroupName("rg_1"),), "it stands still", confidence, NOW_S - 9,
        lost_s=lost_s, signature=f"{kind.value}:rg_1.0",
    )  # fmt: skip
    return Incident(
        id=IncidentId("one"), kind=kind, fingerprint="f", signature=verdict.signature,
        state=State.FIRING, culprits=verdict.culprits, groups=verdict.groups,
        replica_ids=(ReplicaId("rg_1:a"),), incarnations=("i",), verdict=verdict,
        milestones=Milestones(NOW_S - 3, NOW_S - 1), story=(), last_seen_s=NOW_S,
        hosts=(Host("host-rg_1"),),
    )  # fmt: skip


def lesson(
    signature: str = "not_entered:rg_1.0", host: str = "host-rg_1", ago_s: float = 100.0
) -> Lesson:
    return Lesson(
        IncidentId(f"before {ago_s}"), signature, (GroupName("rg_1"),), (Host(host),), NOW_S - ago_s
    )


def past(ago_s: float, name: str = "other") -> PastEviction:
    return PastEviction(IncidentId(name), GroupName("rg_0"), NOW_S - ago_s)


def with_group(**changes) -> Fleet:
    groups = dict(fleet().groups)
    groups[GroupName("rg_1")] = view("rg_1", **changes)
    return fleet(groups=groups)


def test_without_an_objection_the_group_is_evicted_and_its_host_quarantined() -> None:
    assert decide(KeeperConfig(), fleet(), [incident()]) == (
        Evict(
            IncidentId("one"), GroupName("rg_1"), ReplicaId("rg_1:a"), (Host("host-rg_1"),),
            "not_entered: it stands still",
        ),
    )  # fmt: skip


CASES = [
    (Guard.UNSURE, {}, fleet(), incident(confidence=Confidence.UNSURE)),
    (Guard.ALREADY_GONE, {}, with_group(replica_id=ReplicaId("rg_1:b")), incident()),
    (Guard.ALREADY_GONE, {}, with_group(alive=(), heartbeat_age_s=4.0, dead_for_s=4.0),
     incident(Kind.DEAD)),
    (Guard.ALREADY_GONE, {}, with_group(alive=(), heartbeat_age_s=0.1, dead_for_s=9.0,
                                        in_quorum=False), incident(Kind.DEAD)),
    (Guard.NOT_WORTH_IT, {}, fleet(), incident(Kind.STRAGGLER, lost_s=15.0)),
    (Guard.CRASH_LOOP, {}, fleet(lessons=(lesson("mismatch:rg_1.0", "another"),)),
     incident(Kind.MISMATCH)),
    (Guard.CRASH_LOOP, {}, fleet(lessons=(lesson(host="another"),)), incident()),
    (Guard.CRASH_LOOP, {}, fleet(lessons=(lesson(), lesson())), incident()),
    (Guard.SELF_DOUBT, {}, fleet(doubt="it runs late by 3.0 s"), incident()),
    (Guard.LIGHTHOUSE_AWAY, {}, fleet(lighthouse_away="refused"), incident()),
    (Guard.BREAKER, {}, fleet(accused=frozenset(map(GroupName, ("rg_1", "rg_2")))), incident()),
    (Guard.MIN_REPLICAS, {"min_replicas": 3}, fleet(), incident()),
    (Guard.IN_FLIGHT, {}, fleet(in_flight=(GroupName("rg_0"),)), incident()),
    (Guard.BUDGET, {"budget_per_hour": 2}, fleet(past=(past(100), past(3599))), incident()),
    (Guard.COOL_DOWN, {}, fleet(past=(past(19.0),)), incident()),
    (Guard.OBSERVE, {"observe": True}, fleet(), incident()),
]  # fmt: skip


@pytest.mark.parametrize(
    ("guard", "options", "seen", "case"), CASES, ids=[f"{n}-{c[0]}" for n, c in enumerate(CASES)]
)
def test_each_guard_alone_holds_the_eviction_and_says_why(guard, options, seen, case) -> None:
    (decision,) = decide(KeeperConfig(**options), seen, [case])
    assert isinstance(decision, Hold)
    assert decision.guard is guard
    assert decision.reason
    assert decision.release


ALLOWED = [
    ({}, with_group(alive=(), heartbeat_age_s=0.1, dead_for_s=3.0), incident(Kind.DEAD)),
    ({}, fleet(lessons=(lesson(),)), incident()),
    ({}, fleet(lessons=(lesson("mismatch:rg_1.0"),)), incident(Kind.MISMATCH)),
    (
        {},
        fleet(lessons=(lesson(host="another", ago_s=3601), lesson(host="another", ago_s=3700))),
        incident(),
    ),
    ({}, fleet(lessons=(replace(lesson(), hosts=()),)), incident()),
    ({}, fleet(), incident(Kind.REPLICA_LAG)),
    ({"min_replicas": 2}, fleet(), incident()),
    ({"budget_per_hour": 2}, fleet(past=(past(100), past(3601))), incident()),
    ({}, fleet(past=(past(20.0),)), incident()),
    ({}, fleet(), incident(Kind.STRAGGLER, lost_s=15.1)),
    ({}, with_group(in_quorum=False), incident()),
]


@pytest.mark.parametrize(("options", "seen", "case"), ALLOWED, ids=map(str, range(len(ALLOWED))))
def test_just_inside_each_limit_the_eviction_goes_ahead(options, seen, case) -> None:
    (decision,) = decide(KeeperConfig(**options), seen, [case])
    assert isinstance(decision, Evict)


def test_never_two_groups_at_once() -> None:
    second = replace(incident(), id=IncidentId("two"), groups=(GroupName("rg_2"),),
                     replica_ids=(ReplicaId("rg_2:a"),))  # fmt: skip
    first, other = decide(KeeperConfig(), fleet(), [second, incident()])
    assert isinstance(first, Evict)
    assert other == Hold(
        IncidentId("two"), Guard.IN_FLIGHT, "rg_1 is being evicted", "the end of that eviction"
    )


def test_observe_mode_speaks_last() -> None:
    config = KeeperConfig(observe=True, min_replicas=3)
    (decision,) = decide(config, fleet(), [incident()])
    assert decision.guard is Guard.MIN_REPLICAS


def test_a_second_death_on_the_same_host_quarantines_it() -> None:
    seen = with_group(alive=(RankName("rg_1.1"),))
    (decision,) = decide(
        KeeperConfig(), replace(seen, deaths={Host("host-rg_1"): 1}), [incident(Kind.DEAD)]
    )
    assert decision.quarantine == (Host("host-rg_1"),)
