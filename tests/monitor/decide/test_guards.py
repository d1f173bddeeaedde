"""Each guard says no alone, with its reason; with none of them, the group goes."""

from dataclasses import replace

import pytest

from lightkeeper.monitor.decide.guards import (
    Cost,
    DecisionFacts,
    GroupFacts,
    cost,
    decide,
    min_replicas_named,
)
from lightkeeper.monitor.decide.rules import DEFAULT, Policy, PolicyAction
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import EndManner, Eviction, Guard, Hold
from lightkeeper.monitor.model.incident import Incident, Milestones, State, Transition
from lightkeeper.monitor.model.names import GroupName, Host, IncidentId, RankName, ReplicaId
from lightkeeper.monitor.model.observation import NO_LIGHTHOUSE, Pause
from lightkeeper.monitor.model.verdict import Confidence, Kind, Severity, Verdict
from tests.monitor.decided import to_evict

NOW_S = 10_000.0
CULPRIT = RankName("rg_1.0")


def view(name: str, **changes) -> GroupFacts:
    rank = RankName(f"{name}.0")
    return replace(
        GroupFacts(
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


def fleet(**changes) -> DecisionFacts:
    groups = {GroupName(name): view(name) for name in ("rg_0", "rg_1", "rg_2")}
    return replace(
        DecisionFacts(
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
        kind=kind, culprits=(CULPRIT,), groups=(GroupName("rg_1"),), reason="it stands still",
        confidence=confidence, since_s=NOW_S - 9, lost_s=lost_s, signature=f"{kind.value}:rg_1.0",
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
) -> Incident:
    """An incident that ended by an eviction."""
    at_s = NOW_S - ago_s
    return replace(
        incident(), id=IncidentId(f"before {ago_s}"), signature=signature, hosts=(Host(host),),
        state=State.RESOLVED, story=(Transition(at_s, "resolved", "evicted"),), last_seen_s=at_s,
        milestones=Milestones(at_s - 9, at_s - 8, at_s - 5),
    )  # fmt: skip


def only_observed() -> Incident:
    made = lesson(host="another")
    return replace(made, milestones=replace(made.milestones, evict_asked_s=None))


def past(ago_s: float, name: str = "other", group: str = "rg_0") -> Eviction:
    return Eviction(IncidentId(name), GroupName(group), None, NOW_S - ago_s)


def with_group(**changes) -> DecisionFacts:
    groups = dict(fleet().groups)
    groups[GroupName("rg_1")] = view("rg_1", **changes)
    return fleet(groups=groups)


def test_without_an_objection_the_group_is_evicted_and_may_come_back_where_it_was() -> None:
    assert decide(KeeperConfig(), fleet(), [incident()]) == (
        to_evict(
            IncidentId("one"), GroupName("rg_1"), ReplicaId("rg_1:a"), (),
            "not_entered: it stands still", at_s=NOW_S,
        ),
    )  # fmt: skip


HERE = Host("host-rg_1")


def over(group: str, kind: Kind, signature: str) -> Incident:
    """A fault that is over."""
    return replace(incident(kind), groups=(GroupName(group),), signature=signature)


def blamed(fault: Incident) -> Incident:
    """Its machine says that it is broken."""
    return replace(fault, verdict=replace(fault.verdict, blamed=(HERE,)))


def policy(action: PolicyAction, kind: Kind = Kind.NOT_ENTERED) -> Policy:
    return Policy({**DEFAULT.actions, **{(kind, severity): action for severity in Severity}})


def before(*past: Incident) -> DecisionFacts:
    return fleet(faults={HERE: past})


@pytest.mark.parametrize(
    ("seen", "fault", "manner"),
    [
        pytest.param(fleet(), incident(), EndManner("abort", 0.0, 1.0), id="it stands, on a CPU"),
        pytest.param(with_group(kernels=True), incident(), EndManner("abort", 5.0, 1.0),
                     id="it stands, on devices"),
        pytest.param(fleet(), incident(Kind.STRAGGLER, lost_s=99.0), EndManner("park", 5.0, 5.0),
                     id="it trains"),
    ],
)  # fmt: skip
def test_what_a_group_does_decides_how_it_is_ended(seen, fault, manner) -> None:
    (evict,) = decide(KeeperConfig(), seen, [fault])
    assert evict.manner == manner


def test_the_policy_sets_the_grace_by_fault_and_can_switch_the_gentle_part_off() -> None:
    rules = replace(DEFAULT, grace_s={**DEFAULT.grace_s, Kind.NOT_ENTERED: 12.0})
    config = replace(KeeperConfig(), gentle_end_s=0.0)
    (evict,) = decide(config, with_group(kernels=True), [incident()], rules)
    assert evict.manner == EndManner("abort", 0.0, 12.0)


@pytest.mark.parametrize(
    ("seen", "fault", "rules", "hosts"),
    [
        pytest.param(before(over("rg_7", Kind.DEAD, "")), incident(), DEFAULT, (HERE,),
                     id="where another group failed"),
        pytest.param(before(over("rg_1", Kind.NOT_ENTERED, "not_entered@b.py:7:g")), incident(),
                     DEFAULT, (HERE,), id="where the same group failed in another state"),
        pytest.param(before(over("rg_1", Kind.NOT_ENTERED, "not_entered:rg_1.0")), incident(),
                     DEFAULT, (), id="not where the same group failed in the same state"),
        pytest.param(
            replace(with_group(alive=(RankName("rg_1.1"),)),
                    faults={HERE: (over("rg_1", Kind.DEAD, ""),)}),
            incident(Kind.DEAD), DEFAULT, (HERE,), id="where it died before",
        ),
        pytest.param(with_group(disk_wait=frozenset({CULPRIT})), incident(), DEFAULT, (HERE,),
                     id="of a wait in the kernel"),
        pytest.param(fleet(), blamed(incident()), DEFAULT, (HERE,), id="of what its machine says"),
        pytest.param(fleet(), blamed(incident(Kind.DEAD)), DEFAULT, (HERE,), id="of a death there"),
        pytest.param(
            fleet(faults={HERE: (over("rg_7", Kind.DEAD, ""),), **{
                Host(f"other-{n}"): (incident(),) for n in range(2)}}),
            incident(), DEFAULT, (), id="not where the same line failed on two other hosts",
        ),
        pytest.param(fleet(), incident(Kind.STRAGGLER, lost_s=99.0), DEFAULT, (HERE,),
                     id="of a straggler"),
        pytest.param(with_group(disk_wait=frozenset({CULPRIT})), incident(),
                     policy(PolicyAction.EVICT), (), id="not where the policy only evicts"),
        pytest.param(fleet(), incident(Kind.MISMATCH),
                     policy(PolicyAction.EVICT_AND_QUARANTINE, Kind.MISMATCH), (HERE,),
                     id="of the program's fault where the policy says so"),
    ],
)  # fmt: skip
def test_a_host_is_blamed(seen, fault, rules, hosts) -> None:
    (evict,) = decide(KeeperConfig(), seen, [fault], rules)
    assert evict.quarantine == hosts


CASES = [
    (Guard.UNSURE, {}, fleet(), incident(confidence=Confidence.UNSURE)),
    (Guard.ALREADY_GONE, {}, with_group(replica_id=ReplicaId("rg_1:b")), incident()),
    (Guard.ALREADY_GONE, {}, with_group(alive=(), heartbeat_age_s=4.0, dead_for_s=4.0),
     incident(Kind.DEAD)),
    (Guard.ALREADY_GONE, {}, with_group(alive=(), heartbeat_age_s=0.1, dead_for_s=9.0,
                                        in_quorum=False), incident(Kind.DEAD)),
    (Guard.NOT_WORTH_IT, {}, fleet(), incident(Kind.STRAGGLER, lost_s=15.0)),
    (Guard.CRASH_LOOP, {}, fleet(lessons=(lesson("state_corrupt:rg_1.0", "another"),)),
     incident(Kind.STATE_CORRUPT)),
    (Guard.CRASH_LOOP, {}, fleet(lessons=(lesson("state_corrupt:rg_1.0"),)),
     incident(Kind.STATE_CORRUPT)),
    (Guard.TRACED, {}, with_group(traced="rg_1.1 is traced by gdb (pid 7)"), incident()),
    (Guard.TRACED, {}, with_group(traced="rg_1.1 is traced by strace (pid 7)"),
     incident(Kind.STRAGGLER, lost_s=99.0)),
    (Guard.SELF_DOUBT, {}, fleet(doubt="it runs late by 3.0 s"), incident()),
    (Guard.LIGHTHOUSE_AWAY, {}, fleet(lighthouse_away="refused"), incident()),
    (Guard.BREAKER, {}, fleet(accused=frozenset(map(GroupName, ("rg_1", "rg_2")))), incident()),
    (Guard.MIN_REPLICAS, {"min_replicas": 3}, fleet(), incident()),
    (Guard.IN_FLIGHT, {}, fleet(in_flight=(GroupName("rg_0"),)), incident()),
    (Guard.BUDGET, {"budget_per_hour": 2}, fleet(past=(past(100), past(3599))), incident()),
    (Guard.COOL_DOWN, {}, fleet(past=(past(19.0),)), incident()),
    (Guard.MIN_REPLICAS, {}, fleet(lighthouse_min_replicas=3), incident()),
    (Guard.BUDGET, {"budget_per_hour": 0}, fleet(), incident()),
    (Guard.GROUP_BUDGET, {"budget_per_group": 1}, fleet(past=(past(100, group="rg_1"),)),
     incident()),
    (Guard.PAUSED, {}, fleet(pause=Pause("rack 7", "alice", NOW_S, None)), incident()),
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


# -- groups out of sight ---------------------------------------------------------------------------


def unseen(silent_s: float = 31.0) -> Incident:
    made = incident(Kind.DEAD)
    since_s = NOW_S - silent_s
    return replace(made, verdict=replace(made.verdict, since_s=since_s, signature="", lost=True))


def out_of_sight(**changes) -> DecisionFacts:
    """rg_1 is silent and its heartbeat over; there is a scheduler."""
    seen = with_group(alive=(), heartbeat_age_s=25.0, in_quorum=False)
    return replace(seen, **{"schedulers": True, **changes})


def lost_before(*ago_s: float) -> tuple[Eviction, ...]:
    return tuple(replace(past(each, f"lost {each}"), lost={HERE: True}) for each in ago_s)


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        ({}, {}),
        ({"min_replicas": 3}, {}),  # it is no healthy group now
        ({"budget_per_hour": 1}, {"past": (past(100),)}),  # its budget is another
        ({}, {"past": (past(3.0),)}),
        ({}, {"in_flight": (GroupName("rg_0"),)}),
        ({"budget_lost": 2}, {"past": lost_before(100.0, 3601.0)}),
    ],
)
def test_a_group_out_of_sight_is_ended_by_its_scheduler(options, changes) -> None:
    (decision,) = decide(KeeperConfig(**options), out_of_sight(**changes), [unseen()])
    assert isinstance(decision, Eviction), decision
    assert (decision.lost, decision.quarantine) == ({HERE: True}, ())


def test_the_policy_says_whether_its_host_may_be_quarantined() -> None:
    rules = policy(PolicyAction.EVICT, Kind.DEAD)
    (decision,) = decide(KeeperConfig(), out_of_sight(), [unseen()], rules)
    assert decision.lost == {HERE: False}


def test_evictions_do_not_wait_for_lost_groups() -> None:
    (decision,) = decide(KeeperConfig(), fleet(past=lost_before(1, 2, 3, 4, 5)), [incident()])
    assert isinstance(decision, Eviction)


ALONE = {
    GroupName("rg_0"): view("rg_0", healthy=False),
    GroupName("rg_1"): view("rg_1", alive=(), heartbeat_age_s=25.0, in_quorum=False),
}


BEATS = with_group(alive=(RankName("rg_1.1"),), in_quorum=True).groups


def test_a_group_of_which_one_host_is_lost_is_ended_there_by_its_scheduler() -> None:
    (decision,) = decide(KeeperConfig(), out_of_sight(groups=BEATS), [unseen(16.0)])
    assert decision.lost == {HERE: True}


@pytest.mark.parametrize(
    ("guard", "options", "changes"),
    [
        (Guard.ALREADY_GONE, {}, {"schedulers": False}),
        (Guard.SELF_DOUBT, {}, {"doubt": "3 of 4 are silent"}),
        (Guard.LIGHTHOUSE_AWAY, {}, {"lighthouse_away": "refused"}),
        (Guard.MIN_REPLICAS, {}, {"groups": ALONE}),  # it may have the job's only state
        (Guard.BUDGET, {"budget_lost": 2}, {"past": lost_before(100.0, 3599.0)}),
        (Guard.BUDGET, {"budget_lost": 0}, {}),
        (Guard.PAUSED, {}, {"pause": Pause("rack 7", "alice", NOW_S, None)}),
        (Guard.OBSERVE, {"observe": True}, {}),
        # a host of it is lost, and its Manager on another still beats
        (Guard.MIN_REPLICAS, {"min_replicas": 3}, {"groups": BEATS}),
        (Guard.IN_FLIGHT, {}, {"groups": BEATS, "in_flight": (GroupName("rg_0"),)}),
        (Guard.COOL_DOWN, {}, {"groups": BEATS, "past": (past(3.0),)}),
        (Guard.BUDGET, {"budget_lost": 1}, {"groups": BEATS, "past": lost_before(30.0)}),
    ],
)
def test_a_group_out_of_sight_is_left_alone(guard, options, changes) -> None:
    (decision,) = decide(KeeperConfig(**options), out_of_sight(**changes), [unseen()])
    assert isinstance(decision, Hold), decision
    assert decision.guard is guard
    if guard in (Guard.PAUSED, Guard.OBSERVE):
        assert "would have rg_1 ended by its scheduler" in decision.reason
    if guard is Guard.OBSERVE:
        assert decision.would.lost == {HERE: True}


def test_a_group_is_out_of_sight_for_a_while_before_its_scheduler_is_asked() -> None:
    (decision,) = decide(KeeperConfig(), out_of_sight(), [unseen(29.0)])
    assert (decision.guard, "Its scheduler is asked to end it at" in decision.release) == (
        Guard.ALREADY_GONE, True,
    )  # fmt: skip


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
    ({}, fleet(lighthouse_min_replicas=2), incident()),
    ({"budget_per_group": 1}, fleet(past=(past(100),)), incident()),
    ({"budget_per_hour": 2}, fleet(past=(past(100), past(3601))), incident()),
    ({}, fleet(past=(past(20.0),)), incident()),
    ({}, fleet(), incident(Kind.STRAGGLER, lost_s=15.1)),
    ({}, with_group(in_quorum=False), incident()),
]


@pytest.mark.parametrize(("options", "seen", "case"), ALLOWED, ids=map(str, range(len(ALLOWED))))
def test_just_inside_each_limit_the_eviction_goes_ahead(options, seen, case) -> None:
    (decision,) = decide(KeeperConfig(**options), seen, [case])
    assert isinstance(decision, Eviction)


def test_never_two_groups_at_once() -> None:
    second = replace(incident(), id=IncidentId("two"), groups=(GroupName("rg_2"),),
                     replica_ids=(ReplicaId("rg_2:a"),))  # fmt: skip
    first, other = decide(KeeperConfig(), fleet(), [second, incident()])
    assert isinstance(first, Eviction)
    assert other == Hold(
        IncidentId("two"),
        Guard.IN_FLIGHT,
        "rg_1 is being evicted",
        "Its turn comes when that eviction is over",
    )  # fmt: skip


def test_observe_mode_speaks_last() -> None:
    config = KeeperConfig(observe=True, min_replicas=3)
    (decision,) = decide(config, fleet(), [incident()])
    assert decision.guard is Guard.MIN_REPLICAS


# -- the operator's rules ------------------------------------------------------------------------


def test_a_policy_that_pages_never_evicts_and_says_what_would() -> None:
    (hold,) = decide(KeeperConfig(), fleet(), [incident()], policy(PolicyAction.PAGE))
    assert hold == Hold(
        IncidentId("one"), Guard.POLICY,
        "the policy pages for not_entered of severity warning and never evicts",
        "A person decides. To evict it yourself: lightkeeper evict rg_1. To let lightkeeper do it: "
        "change actions.not_entered in the policy file",
    )  # fmt: skip


# -- promises that hold --------------------------------------------------------------------------


def released(seen: DecisionFacts, case: Incident, **options) -> str:
    (hold,) = decide(KeeperConfig(**options), seen, [case])
    assert isinstance(hold, Hold)
    return hold.release


UNSURE = incident(confidence=Confidence.UNSURE)
EVERY = pytest.mark.parametrize(
    ("options", "seen", "case"),
    [c[1:] for c in CASES],
    ids=[f"{n}-{c[0]}" for n, c in enumerate(CASES)],
)


@EVERY
def test_in_a_job_without_a_lighthouse_no_eviction_is_promised(options, seen, case) -> None:
    plain = replace(seen, lighthouse_away=NO_LIGHTHOUSE)
    says = released(plain, case, **options)
    assert "may be evicted" not in says
    assert "lightkeeper evict" not in says


def test_an_unsure_incident_of_such_a_job_says_what_a_person_can_do() -> None:
    assert released(fleet(lighthouse_away=NO_LIGHTHOUSE), UNSURE) == (
        "End the rank or the job by its scheduler"
    )


@EVERY
def test_in_observe_mode_no_eviction_is_promised(options, seen, case) -> None:
    says = released(seen, case, **{**options, "observe": True})
    assert "may be evicted" not in says or "heartbeat continues after all" in says


def test_an_unsure_incident_of_other_jobs_waits_for_evidence() -> None:
    assert released(fleet(), UNSURE) == (
        "A group may be evicted once the evidence names a rank. "
        "To evict it yourself: lightkeeper evict rg_1"
    )


def test_where_all_processes_of_the_group_are_gone_nobody_is_left_to_evict() -> None:
    gone = with_group(alive=(), heartbeat_age_s=9.0, dead_for_s=9.0)
    assert released(gone, UNSURE) == "Nobody is left to evict"


@pytest.mark.parametrize("kind", [Kind.DEAD, Kind.NOT_ENTERED, Kind.MISMATCH])
@pytest.mark.parametrize("confidence", list(Confidence))
def test_in_a_job_without_a_lighthouse_that_is_gone_nothing_is_left_to_end(
    kind, confidence
) -> None:
    gone = replace(with_group(alive=(), dead_for_s=9.0), lighthouse_away=NO_LIGHTHOUSE)
    gone = replace(gone, groups={
        name: replace(seen, heartbeat_age_s=None, in_quorum=None, replica_id=None)
        for name, seen in gone.groups.items()
    })  # fmt: skip
    assert released(gone, incident(kind, confidence)) == ""


def test_a_group_that_nobody_sees_can_be_evicted_by_the_lighthouse() -> None:
    name = GroupName("rg_1~1f0c2d3e")
    orphan = GroupFacts(name, healthy=False, alive=(), replica_id=ReplicaId("rg_1:1f0c2d3e"))
    seen = fleet(groups={**fleet().groups, name: orphan}, doubt="it runs late by 3.0 s")
    assert released(seen, replace(incident(), groups=(name,), replica_ids=())) == (
        "It may be evicted once the monitor is well again. "
        "To evict it yourself: lightkeeper evict 'rg_1~1f0c2d3e'"
    )


def test_the_only_group_is_said_to_be_the_only_one() -> None:
    alone = fleet(groups={GroupName("rg_1"): view("rg_1")})
    assert released(alone, incident()).startswith("rg_1 is the only group: an eviction would end")


# -- what only observe mode holds back -----------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "rules"),
    [({"observe": True}, DEFAULT), ({}, policy(PolicyAction.OBSERVE))],
    ids=["the mode", "the action"],
)
def test_observe_mode_says_the_whole_eviction_that_it_held_back(options, rules) -> None:
    (hold,) = decide(KeeperConfig(**options), fleet(), [incident()], rules)
    (evict,) = decide(KeeperConfig(), fleet(), [incident()])
    assert (hold.guard, hold.would) == (Guard.OBSERVE, evict)


# -- two groups of one dead host -----------------------------------------------------------------


def shared(**changes) -> DecisionFacts:
    """Rank 1 of rg_1 and of rg_2 were on one host, which is dead; the others live."""
    groups = {GroupName(name): view(name) for name in ("rg_0", "rg_3", "rg_4", "rg_5")}
    for name in ("rg_1", "rg_2"):
        hosts = {RankName(f"{name}.0"): Host(f"host-{name}"), RankName(f"{name}.1"): Host("rack")}
        groups[GroupName(name)] = view(name, healthy=False, hosts=hosts)
    seen = fleet(groups=groups, dead_hosts=frozenset({Host("rack")}), **changes)
    return replace(seen, accused=frozenset(map(GroupName, ("rg_1", "rg_2"))))


def of_group(name: str) -> Incident:
    return replace(incident(), id=IncidentId(name), groups=(GroupName(name),),
                   culprits=(RankName(f"{name}.1"),), replica_ids=(ReplicaId(f"{name}:a"),),
                   hosts=(Host("rack"),))  # fmt: skip


def test_two_groups_that_share_a_dead_host_go_together() -> None:
    decisions = decide(
        KeeperConfig(breaker_share=0.0), shared(), [of_group("rg_1"), of_group("rg_2")]
    )
    assert [(type(decision), decision.group) for decision in decisions] == [
        (Eviction, "rg_1"),
        (Eviction, "rg_2"),
    ]
    assert [decision.quarantine for decision in decisions] == [(Host("rack"),)] * 2


def test_the_second_of_them_still_needs_budget_and_healthy_groups() -> None:
    both = [of_group("rg_1"), of_group("rg_2")]
    _, second = decide(KeeperConfig(budget_per_hour=1), shared(), both)
    assert second.guard is Guard.BUDGET
    _, second = decide(KeeperConfig(min_replicas=4), shared(), both)
    assert isinstance(second, Eviction)
    first, _ = decide(KeeperConfig(min_replicas=5), shared(), both)
    assert first.guard is Guard.MIN_REPLICAS


def test_a_living_host_makes_nobody_go_together() -> None:
    seen = replace(shared(), dead_hosts=frozenset())
    _, second = decide(KeeperConfig(), seen, [of_group("rg_1"), of_group("rg_2")])
    assert second.guard is Guard.IN_FLIGHT
    lately = replace(shared(), past=(past(5.0),))  # of rg_0, which was not on that host
    (hold,) = decide(KeeperConfig(), lately, [of_group("rg_1")])
    assert hold.guard is Guard.COOL_DOWN


# -- what was learned ----------------------------------------------------------------------------


def measured(stall_s: float, away_s: float) -> Incident:
    marks = lesson().milestones
    times = {"survivor_commit_s": marks.evict_asked_s + stall_s,
             "rejoined_s": marks.evict_asked_s + away_s}  # fmt: skip
    return replace(lesson(), milestones=replace(marks, **times))


def test_an_eviction_costs_the_stall_of_all_and_the_absence_of_one() -> None:
    config = KeeperConfig()
    assert cost([], 4, config) == Cost(15.0, 0)
    assert cost([lesson()], 4, config) == Cost(15.0, 0)  # nobody saw how it went on
    assert cost([measured(6.0, 26.0)], 4, config) == Cost(6.0 + 20.0 / 4, 1)
    odd = [measured(6.0, 26.0), measured(6.0, 30.0), measured(500.0, 600.0)]
    assert cost(odd, 4, config) == Cost(12.0, 3)
    assert cost([measured(0.1, 0.2)], 4, config) == Cost(3.0, 1)  # a fifth at least
    assert cost([measured(900.0, 900.0)], 4, config) == Cost(300.0, 1)  # twenty times at most


def test_a_straggler_goes_once_it_has_cost_more_than_was_measured() -> None:
    seen = fleet(lessons=(measured(3.0, 12.0),))  # 6 s, of 15 s configured
    (hold,) = decide(KeeperConfig(), seen, [incident(Kind.STRAGGLER, lost_s=6.0)])
    assert (hold.guard, hold.reason) == (
        Guard.NOT_WORTH_IT, "it has cost less than an eviction would (6.0 s, measured on 1)"
    )  # fmt: skip
    (evict,) = decide(KeeperConfig(), seen, [incident(Kind.STRAGGLER, lost_s=6.1)])
    assert isinstance(evict, Eviction)


def test_the_lighthouse_names_its_own_flag_between_two_quorums() -> None:
    said = "New quorum not ready, only have 0 participants, need min_replicas 3 [0/0 participants"
    assert min_replicas_named(said) == 3
    assert min_replicas_named("Valid quorum found [3/3 participants healthy]") is None


def test_a_group_that_fails_again_at_the_same_place_is_kept_out_under_every_name_it_has() -> None:
    both = (GroupName("rg_1"), GroupName("1"))
    seen = replace(with_group(names=both), lessons=(lesson(host="another"),))
    (evict,) = decide(KeeperConfig(), seen, [incident()])
    assert evict.keep_out == both
    assert evict.reason == (
        "not_entered: it stands still; the same as once before on another: a fault of the program"
    )


@pytest.mark.parametrize(
    ("lessons", "fault"),
    [
        ((lesson("not_entered@b.py:7:g"),), incident()),
        ((lesson(""), lesson("")), replace(incident(), signature="")),
        ((only_observed(),), incident()),
    ],
    ids=["another place", "a place that nobody knows", "only observed"],
)
def test_where_it_did_not_fail_again_at_the_same_place_it_may_come_back(lessons, fault) -> None:
    (evict,) = decide(KeeperConfig(), fleet(lessons=lessons), [fault])
    assert evict.keep_out == ()


def test_who_is_kept_out_waits_for_no_budget_but_for_min_replicas() -> None:
    used_up = fleet(lessons=(lesson(),), past=(past(100), past(200), past(300), past(5)))
    (evict,) = decide(KeeperConfig(budget_per_hour=4), used_up, [incident()])
    assert evict.keep_out == (GroupName("rg_1"),)
    (hold,) = decide(KeeperConfig(min_replicas=3), used_up, [incident()])
    assert hold.guard is Guard.MIN_REPLICAS


def test_groups_that_others_are_seen_waiting_for_are_no_doubt_of_the_monitor() -> None:
    two = frozenset(map(GroupName, ("rg_1", "rg_2")))
    (evict,) = decide(KeeperConfig(), fleet(accused=two, waited_for=two), [incident()])
    assert isinstance(evict, Eviction)


def test_groups_that_the_same_ones_wait_for_go_together() -> None:
    """No quorum forms before both are gone, so the first never leaves it alone."""
    two = frozenset(map(GroupName, ("rg_1", "rg_2")))
    going = (GroupName("rg_2"),)
    seen = fleet(accused=two, waited_for=two, in_flight=going, past=(past(3.0, group="rg_2"),))
    (evict,) = decide(KeeperConfig(), seen, [incident()])
    assert isinstance(evict, Eviction)
    (hold,) = decide(KeeperConfig(), replace(seen, waited_for=frozenset()), [incident()])
    assert isinstance(hold, Hold)


def test_what_was_only_observed_proves_a_crash_loop_to_who_observes() -> None:
    seen = fleet(lessons=(only_observed(),))
    (hold,) = decide(KeeperConfig(observe=True), seen, [incident()])
    assert hold.would.keep_out == (GroupName("rg_1"),)
