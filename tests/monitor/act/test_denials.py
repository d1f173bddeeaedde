"""Whom the gate should refuse: everybody evicted or come back where they must not, nobody else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightkeeper.gate.denylist import Denial, DenialScope, denials_json, parse_denials
from lightkeeper.monitor.act.gate import LASTS_S, LINGER_S, ReplicaHosts, deny_list
from lightkeeper.monitor.act.launches import Target
from lightkeeper.monitor.model.eviction import Eviction, QuarantineEntry, Rung, RungOutcome
from lightkeeper.monitor.model.eviction import Scope as QuarantineScope
from lightkeeper.monitor.model.names import GroupName, Host, IncidentId, ReplicaId
from lightkeeper.monitor.model.observation import Failure, Observation, Unreachable
from tests.changed import replace
from tests.monitor.fakes import FakeRank, identity

NOW = 1_000_000.0


def evicted(replica_id: str | None = "rg_1:a", *, asked: float = -5.0, **changes) -> Eviction:
    made = Eviction(
        incident_id=IncidentId("inc-1"),
        group=GroupName("rg_1"),
        replica_id=None if replica_id is None else ReplicaId(replica_id),
        asked_s=NOW + asked,
        rungs=(RungOutcome(Rung.GATE, NOW + asked, None, "asked"),),
    )
    return replace(made, **changes)


def barred(host: str = "node1", *, since: float = -5.0, until: float | None = 3600.0):
    until_s = None if until is None else NOW + until
    return QuarantineEntry(
        Host(host), "hung:\n no step", "lightkeeper", NOW + since, until_s, IncidentId("inc-1")
    )


def seen(rank: str, replica_id: str | None, host: str, *, world: int = 1, alive: bool = True):
    group, _, number = rank.rpartition(".")
    life = f"{rank}{replica_id}"
    who = identity(group, int(number), world_size=world, host=host, incarnation=life)
    report = FakeRank(who, replica_id=replica_id, alive=alive).report()
    return Observation(who, "http://x", report, 0.01)


def where(*ticks, born: float | None = None) -> ReplicaHosts:
    """Each tick: offset from now, observations."""
    made, (_, first, *_) = ReplicaHosts(), ticks[0]
    target = Target(first.identity, first.url, 15.0, NOW, None if born is None else NOW + born)
    for at_s, *observations in ticks:
        made.saw(observations, NOW + at_s, lambda _: target)
    return made


def names(denials: tuple[Denial, ...]) -> list[str]:
    return [f"{denial.scope} {denial.name}" for denial in denials]


# -- evicted --------------------------------------------------------------------------------------


def test_an_evicted_replica_id_is_refused_from_the_first_rung_on() -> None:
    (denial,) = deny_list([evicted()], (), (), NOW)
    assert (denial.scope, denial.name, denial.until_s) == (
        DenialScope.REPLICA, "rg_1:a", NOW - 5 + LASTS_S,
    )  # fmt: skip
    assert denial.incident_id == "inc-1"


@pytest.mark.parametrize(
    ("rungs", "refused"),
    [
        ((), 0),
        ((Rung.EVIDENCE, Rung.QUARANTINE), 0),
        ((Rung.LIGHTHOUSE_KILL,), 1),
        ((Rung.WORKER_EVICT,), 1),
        ((Rung.SCHEDULER,), 1),
    ],
    ids=["refused", "before the first rung that asks", "killed", "asked", "by its scheduler"],
)
def test_one_that_failed_is_refused_once_somebody_was_asked(rungs, refused: int) -> None:
    begun = tuple(RungOutcome(rung, NOW, NOW, "") for rung in rungs)
    assert len(deny_list([evicted(rungs=begun, failed="not gone")], (), (), NOW)) == refused


def test_ten_minutes_after_it_was_gone_and_had_left_it_is_let_go() -> None:
    eviction = evicted(asked=-900, gone_s=NOW - LINGER_S - 50, left_quorum_s=NOW - LINGER_S + 1)
    assert len(deny_list([eviction], (), (), NOW)) == 1
    assert deny_list([eviction], (), (), NOW + 1) == ()


@pytest.mark.parametrize("seen_of_it", [{"gone_s": NOW - 5000}, {"left_quorum_s": NOW - 5000}, {}])
def test_what_was_never_shown_in_full_is_refused_for_a_day(seen_of_it) -> None:
    eviction = evicted(asked=-6000, **seen_of_it)
    assert len(deny_list([eviction], (), (), NOW + LASTS_S - 6001)) == 1
    assert deny_list([eviction], (), (), NOW + LASTS_S - 5999) == ()


def test_a_group_that_never_joined_has_no_id_to_refuse() -> None:
    assert deny_list([evicted(None)], (), (), NOW) == ()


# -- quarantined ----------------------------------------------------------------------------------


def test_a_quarantined_host_is_refused() -> None:
    (denial,) = deny_list((), [barred()], (), NOW)
    assert (denial.scope, denial.name) == (DenialScope.HOST, "node1")
    assert denial.reason == "host quarantined: hung: no step"


@pytest.mark.parametrize(
    ("first", "second", "admitted"),
    [(["node1"], ["node2"], True), (["node1"], ["node1"], False),
     (["node1", "node2"], ["node3", "node1"], False)],
    ids=["elsewhere", "on the quarantined host", "with one of its ranks"],
)  # fmt: skip
def test_the_evicted_group_is_denied_by_name_its_next_life_elsewhere_admitted(
    first: list[str], second: list[str], admitted: bool
) -> None:
    def life(name: str, hosts: list[str]):
        return [seen(f"rg_1.{n}", name, host, world=len(hosts)) for n, host in enumerate(hosts)]

    healthy = seen("rg_0.0", "rg_0:x", "node0")
    lives = where((-60, *life("rg_1:a", first), healthy), (0, *life("rg_1:b", second))).all()
    denials = deny_list([evicted()], [barred()], lives, NOW)
    assert names(denials) == ["group rg_1", "host node1", "replica rg_1:a"]
    (group, *_) = denials
    assert group.admitted == ({"rg_1:b"} if admitted else frozenset())
    assert group.refused == ({"rg_1:a"} if admitted else {"rg_1:a", "rg_1:b"})


@pytest.mark.parametrize(("after_s", "admitted"), [(1.0, False), (3.5, True)])
def test_a_group_with_an_unknown_rank_is_admitted_a_little_later(after_s, admitted) -> None:
    hosts = where(
        (-60, seen("rg_1.0", "rg_1:a", "node1", world=2)),
        (0, seen("rg_1.0", "rg_1:b", "node2", world=2)),
    ).all()
    denials = deny_list([evicted()], [barred()], hosts, NOW + after_s)
    group = next(denial for denial in denials if denial.scope == "group")
    assert ("rg_1:b" in group.admitted) is admitted


def test_a_healthy_group_that_ran_there_before_goes_on_and_nobody_else_starts_there() -> None:
    """Two groups share the host of the one that hung: quarantine ends none that runs."""
    hosts = where(
        (-60, seen("rg_1.0", "rg_1:a", "node1"), seen("rg_2.0", "rg_2:y", "node1")),
        (0, seen("rg_1.0", "rg_1:b", "node1"), seen("rg_2.0", "rg_2:y", "node1")),
    ).all()
    denials = deny_list([evicted()], [barred()], hosts, NOW)
    assert names(denials) == ["group rg_1", "replica rg_1:a"]
    # and should it restart there, it is one that came back
    later = where(
        (-60, seen("rg_2.0", "rg_2:y", "node1")), (0, seen("rg_2.0", "rg_2:z", "node1"))
    ).all()
    denials = deny_list((), [barred()], later, NOW + 61)
    assert names(denials) == ["group rg_2", "host node1"]
    assert "rg_2:z" in denials[0].refused


def test_a_restarted_monitor_takes_who_runs_for_one_who_ran_before() -> None:
    hosts = where((0, seen("rg_2.0", "rg_2:y", "node1"))).all()
    assert deny_list((), [barred(since=-500)], hosts, NOW) == ()
    hosts = where((0, seen("rg_2.0", "rg_2:y", "node1")), born=-100.0).all()
    assert names(deny_list((), [barred(since=-500)], hosts, NOW)) == ["group rg_2", "host node1"]


def test_a_quarantined_group_goes_on_and_does_not_come_back() -> None:
    entry = replace(barred("rg_2"), scope=QuarantineScope.GROUP)
    hosts = where((-60, seen("rg_2.0", "rg_2:y", "node1"))).all()
    (denial,) = deny_list((), (), hosts, NOW - 30, [entry])
    assert (denial.scope, denial.name, denial.reason) == (
        DenialScope.GROUP, "rg_2", "rg_2 is quarantined: hung: no step",
    )  # fmt: skip
    assert (denial.admitted, denial.refused) == ({"rg_2:y"}, frozenset())
    hosts = where(
        (-66, seen("rg_2.0", "rg_2:y", "node1")), (0, seen("rg_2.0", "rg_2:z", "node5"))
    ).all()
    (denial,) = deny_list((), (), hosts, NOW + 5, [entry])
    assert denial.refused == {"rg_2:y", "rg_2:z"}  # the first is gone, the second came back


def test_a_quarantined_group_that_had_a_quarantined_host_comes_back_nowhere() -> None:
    entry = replace(barred("rg_1"), scope=QuarantineScope.GROUP)
    hosts = where(
        (-60, seen("rg_1.0", "rg_1:a", "node1")), (0, seen("rg_1.0", "rg_1:b", "node2"))
    ).all()
    denials = deny_list([evicted()], [barred()], hosts, NOW, [entry])
    assert names(denials) == ["group rg_1", "host node1", "replica rg_1:a"]
    assert (denials[0].admitted, denials[0].refused) == (frozenset(), {"rg_1:a", "rg_1:b"})


# -- replica hosts --------------------------------------------------------------------------------


def test_a_dead_silent_or_nameless_rank_has_no_host() -> None:
    silent = replace(
        seen("rg_3.0", "rg_3:a", "h"), outcome=Unreachable(Failure.TIMEOUT, "no answer")
    )
    hosts = where(
        (0, silent, seen("rg_1.0", None, "h"), seen("rg_2.0", "rg_2:a", "h", alive=False))
    )
    assert hosts.all() == ()


def test_who_was_not_seen_for_a_day_is_forgotten() -> None:
    hosts = where((0, seen("rg_1.0", "rg_1:a", "h")), (LASTS_S - 1,))
    assert len(hosts.all()) == 1
    hosts.saw((), NOW + LASTS_S + 1)
    assert hosts.all() == ()


# -- the list as a whole --------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["n1", "n2"])), max_size=6),
    st.lists(st.sampled_from("abc"), max_size=3),
    st.lists(st.sampled_from(["n1", "n2", "n\n3"]), max_size=3, unique=True),
)
def test_every_list_is_one_that_a_gate_takes_and_stays_the_same(lives, gone, hosts) -> None:
    replica_hosts = ReplicaHosts()
    for number, (name, host) in enumerate(lives):
        replica_hosts.saw([seen("rg_1.0", f"rg_1:{name}", host)], NOW - 60 + 10 * number)
    evictions = [
        replace(evicted(f"rg_1:{name}"), incident_id=IncidentId(f"i{number}"))
        for number, name in enumerate(gone)
    ]
    entries = [barred(host, since=-30.0) for host in hosts]
    denials = deny_list(evictions, entries, replica_hosts.all(), NOW)
    assert parse_denials(denials_json(denials)) == denials
    assert deny_list(evictions[::-1], entries[::-1], replica_hosts.all(), NOW) == denials
    for denial in denials:
        assert not denial.admitted & denial.refused
        assert denial.until_s is not None
    refused = {of_replica.name for of_replica in denials if of_replica.scope is DenialScope.REPLICA}
    assert refused == {f"rg_1:{name}" for name in gone}
