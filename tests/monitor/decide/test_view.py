"""Groups, tempo, JSON and metrics: what is shown of one snapshot."""

from __future__ import annotations

import re

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from monitor.decide.pipeline import TickResult
from monitor.decide.rank_seconds import Spent, Tempo, TempoBook
from monitor.decide.view import View, groups_of
from monitor.decide.view_json import report_to_json, snapshot_to_json
from monitor.metrics import Instruments, ViewCollector
from monitor.model.eviction import DecisionRow
from monitor.model.incident import Milestones, State, Strength
from monitor.model.names import GroupName, IncidentId, RankName, ReplicaId
from monitor.model.observation import (
    Failure,
    LighthouseAway,
    LighthouseView,
    Member,
    Observation,
    Snapshot,
    Unreachable,
)
from monitor.model.verdict import RankHealth
from tests.changed import replace
from tests.monitor.fakes import FakeRank, identity
from tests.monitor.store.test_store import ENTRY, EVICTION, incident
from worker_server import wire

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


def test_a_group_is_as_sick_as_its_worst_rank() -> None:
    health = {
        RankName("rg_0.0"): RankHealth.WAITING,
        RankName("rg_0.1"): RankHealth.STALLED,
    }
    (group,) = [
        one
        for one in groups_of(view(seen("rg_0"), seen("rg_0", 1), health=health))
        if one.group == "rg_0"
    ]
    assert group.health == "stalled"


def test_a_group_that_only_the_lighthouse_knows_is_shown() -> None:
    groups = {group.group: group for group in groups_of(view(seen("rg_0", replica_id="rg_0:a")))}
    assert sorted(groups) == ["rg_0", "rg_9"]
    assert (groups["rg_9"].ranks, groups["rg_9"].in_quorum, groups["rg_9"].health) == (
        (), True, "unknown",
    )  # fmt: skip
    assert groups["rg_0"].heartbeat_age_s == 0.5


def test_a_restarted_group_that_did_not_join_yet_is_not_in_the_quorum() -> None:
    groups = groups_of(view(seen("rg_0", replica_id="rg_0:new")))
    assert [group.in_quorum for group in groups if group.group == "rg_0"] == [False]


@pytest.mark.parametrize(("beats_s", "names"), [(0.2, ["rg_0", "rg_0~bcdefghi"]), (9.0, ["rg_0"])])
def test_a_second_life_of_a_group_that_beats_is_a_group_of_its_own(beats_s, names) -> None:
    twice = LighthouseView(
        4, (Member(ReplicaId("rg_0:a"), 7), Member(ReplicaId("rg_0:bcdefghijk"), 7)),
        {ReplicaId("rg_0:a"): 0.1, ReplicaId("rg_0:bcdefghijk"): beats_s}, "fine",
    )  # fmt: skip
    groups = groups_of(view(seen("rg_0", replica_id="rg_0:a"), lighthouse=twice))
    assert [one.group for one in groups] == names
    assert [one.replica_id for one in groups[1:]] == ["rg_0:bcdefghijk"][: len(names) - 1]


def test_without_a_lighthouse_membership_is_unknown_and_not_no() -> None:
    groups = groups_of(view(seen("rg_0"), lighthouse=LighthouseAway("refused")))
    assert [group.in_quorum for group in groups] == [None]


def test_an_incident_carries_its_decisions_and_its_eviction() -> None:
    row = DecisionRow(
        IncidentId("inc-1"), 102.0, "hold", "cool_down", "too soon", body={"release": "later"}
    )
    shown = view(
        incidents=(incident(),),
        decisions={IncidentId("inc-1"): (row,)},
        evictions={IncidentId("inc-1"): EVICTION},
        quarantine=(ENTRY,),
        evicting=frozenset({GroupName("rg_9")}),
    )
    body = report_to_json(shown.report(incident()))
    assert body["decisions"] == [
        {
            "at_s": 102.0,
            "action": "hold",
            "guard": "cool_down",
            "reason": "too soon",
            "release": "later",
            "state": "held",
            "author": "lightkeeper",
            "epoch": 0,
            "attempt": 1,
            "ended_s": None,
            "outcome": "",
        }
    ]
    assert body["eviction"]["rungs"][0]["rung"] == "lighthouse_kill"
    assert body["milestones"]["firing_s"] == 102.0
    whole = snapshot_to_json(shown)
    assert [one["id"] for one in whole["incidents"]] == ["inc-1"]
    assert [one["host"] for one in whole["quarantine"]] == ["node1"]
    assert {one.group: one.eviction for one in whole["groups"]} == {
        "rg_0": None, "rg_9": "evicting",
    }  # fmt: skip


def test_an_incident_tells_what_the_job_lost_and_how_many_trained_before() -> None:
    one = replace(incident(), before=Strength((4,), 3), lost_steps=2)
    body = report_to_json(view(incidents=(one,)).report(one))
    assert (body["lost_steps"], body["before"]) == (2, {"quorums": (4,), "participants": 3})
    bare = report_to_json(view().report(incident()))
    assert (bare["lost_steps"], bare["before"]) == (None, None)


# -- tempo -----------------------------------------------------------------------------------------


def test_the_tempo_is_the_mean_over_the_window() -> None:
    book = TempoBook()
    for second in range(6):
        tempos = book.push(snapshot(seen("rg_0", step=2 * second), now_s=1000.0 + second))
    assert tempos == {RankName("rg_0.0"): Tempo(0.5, pytest.approx(0.1), pytest.approx(0.05))}


def test_a_rank_that_stands_has_no_tempo_after_the_window() -> None:
    book = TempoBook()
    for second in range(3):
        book.push(snapshot(seen("rg_0", step=second), now_s=1000.0 + second))
    assert book.push(snapshot(seen("rg_0", step=2), now_s=1010.0)) != {}
    assert book.push(snapshot(seen("rg_0", step=2), now_s=1018.0)) == {}


def test_a_restarted_rank_starts_a_new_tempo() -> None:
    book = TempoBook()
    book.push(snapshot(seen("rg_0", step=500), now_s=1000.0))
    assert book.push(snapshot(seen("rg_0", step=1, incarnation="two"), now_s=1001.0)) == {}


RECOVERED = {
    "load": wire.Took(2, 5.0, 3.0, 500, 400),
    "apply": wire.Took(2, 0.5, 0.25, 500, 400),
    "reconfigure": wire.Took(4, 0.4, 0.1),
}


def with_times(one: Observation, times, failures: int = 0) -> Observation:
    report = one.outcome
    assert isinstance(report, wire.StateReport)
    assert report.step is not None
    step = replace(report.step, times=times, commit_failures=failures)
    return replace(one, outcome=replace(report, step=step))


# -- metrics --------------------------------------------------------------------------------------

FULL = view(
    with_times(seen("rg_0", replica_id="rg_0:a"), RECOVERED, 1),
    with_times(seen("rg_0", 1), {**RECOVERED, "load": wire.Took(1, 7.0, 7.0, 50, 50)}, 2),
    with_times(seen("rg_3"), {"staging": wire.Took(1, 0.5, 0.5, 8, 8)}),
    with_times(seen("rg_4"), {}),
    away("rg_1"),
    health={RankName("rg_0.0"): RankHealth.HEALTHY, RankName("rg_1.1"): RankHealth.UNREACHABLE},
    incidents=(incident(),),
    quarantine=(ENTRY,),
    tempos={RankName("rg_0.0"): Tempo(0.5, 0.1, 0.4), RankName("rg_0.1"): Tempo(0.5, 0.3, 0.2)},
    tokens={GroupName("rg_0"): 4096},
    spent=Spent(900.0, {"dead": 12.5}),
    decisions={
        IncidentId("inc-1"): (
            DecisionRow(IncidentId("inc-1"), 103.0, "hold", "budget", "too many"),
            DecisionRow(IncidentId("inc-1"), 102.0, "hold", "cool_down", "too soon"),
        )
    },
    evicting=frozenset({GroupName("rg_3")}),
)


FIRST_SEEN = (
    'lightkeeper_incident_first_seen_timestamp_seconds{incident="inc-1",kind="not_entered",'
    'replica_group="rg_1",severity="critical",state="firing"} 100.0'
)


def scrape(shown: View | None) -> str:
    instruments = Instruments()
    instruments.registry.register(ViewCollector(lambda: shown, lambda: 3, "1.2.3"))
    instruments.count_incidents([incident()], [])
    instruments.holds.labels("budget").inc()
    instruments.evictions.labels("dead", "gone").inc()
    instruments.poll_failures.labels("timeout").inc()
    instruments.detector_failures.labels("dead").inc()
    instruments.ticks.observe(0.1)
    return generate_latest(instruments.registry).decode()


@pytest.mark.parametrize(
    "sample",
    [
        'lightkeeper_build_info{version="1.2.3"} 1.0',
        'lightkeeper_ranks{health="healthy"} 1.0',
        'lightkeeper_ranks{health="dead"} 0.0',
        'lightkeeper_groups{health="unreachable"} 1.0',
        'lightkeeper_group_step{replica_group="rg_0"} 10.0',
        'lightkeeper_group_commits_total{replica_group="rg_0"} 10.0',
        'lightkeeper_group_in_quorum{replica_group="rg_0"} 1.0',
        'lightkeeper_group_in_quorum{replica_group="rg_1"} 0.0',
        'lightkeeper_group_last_heartbeat_timestamp_seconds{replica_group="rg_0"} 999.5',
        "lightkeeper_lighthouse_up 1.0",
        "lightkeeper_quorum_id 7.0",
        "lightkeeper_quorum_participants 2.0",
        'lightkeeper_member_heartbeat_age_seconds{replica_group="rg_0"} 0.5',
        "lightkeeper_quorum_changes_total 0.0",
        "lightkeeper_lighthouse_restarts_total 0.0",
        'lightkeeper_incidents{kind="not_entered",severity="critical",state="firing"} 1.0',
        'lightkeeper_incident_transitions_total{kind="not_entered",to="firing"} 1.0',
        'lightkeeper_incident_stage_seconds_count{stage="detect"} 1.0',
        'lightkeeper_evictions_total{kind="dead",outcome="gone"} 1.0',
        'lightkeeper_holds_total{guard="budget"} 1.0',
        "lightkeeper_quarantined_hosts 1.0",
        "lightkeeper_tick_duration_seconds_count 1.0",
        "lightkeeper_tick_lateness_seconds 0.0",
        'lightkeeper_poll_failures_total{reason="timeout"} 1.0',
        'lightkeeper_detector_failures_total{detector="dead"} 1.0',
        "lightkeeper_store_errors_total 3.0",
        'lightkeeper_rank_busy_seconds{rank="0",replica_group="rg_0"} 0.1',
        'lightkeeper_group_commit_failures_total{replica_group="rg_0"} 2.0',
        'lightkeeper_group_heals_total{replica_group="rg_0"} 2.0',
        'lightkeeper_group_heals_total{replica_group="rg_3"} 0.0',
        'lightkeeper_group_last_checkpoint_load_seconds{replica_group="rg_0"} 7.0',
        'lightkeeper_group_last_checkpoint_load_bytes{replica_group="rg_0"} 450.0',
        'lightkeeper_group_last_checkpoint_apply_seconds{replica_group="rg_0"} 0.25',
        'lightkeeper_group_last_checkpoint_staging_seconds{replica_group="rg_3"} 0.5',
        'lightkeeper_group_last_reconfigure_seconds{replica_group="rg_0"} 0.1',
        'lightkeeper_lost_steps_total{kind="not_entered"} 0.0',
        'lightkeeper_job_info{job_id="job"} 1.0',
        'lightkeeper_group_state{replica_group="rg_0"} 0.0',
        'lightkeeper_group_state{replica_group="rg_1"} 4.0',
        'lightkeeper_group_state{replica_group="rg_3"} 6.0',
        'lightkeeper_group_tokens_total{replica_group="rg_0"} 4096.0',
        'lightkeeper_rank_wait_seconds{rank="0",replica_group="rg_0"} 0.4',
        'lightkeeper_fleet_busy_seconds{stat="min"} 0.1',
        'lightkeeper_fleet_busy_seconds{stat="median"} 0.2',
        'lightkeeper_fleet_busy_seconds{stat="p99"} 0.3',
        'lightkeeper_fleet_busy_seconds{stat="max"} 0.3',
        'lightkeeper_group_busy_seconds{replica_group="rg_0"} 0.3',
        'lightkeeper_group_wait_seconds{replica_group="rg_0"} 0.30000000000000004',
        'lightkeeper_group_busy_skew_ratio{replica_group="rg_0"} 1.4999999999999998',
        'lightkeeper_rank_suspect{host="",kind="not_entered",rank="0",replica_group="rg_1"} 1.0',
        FIRST_SEEN,
        'lightkeeper_holding{guard="budget"} 1.0',
        'lightkeeper_holding{guard="cool_down"} 0.0',
        "lightkeeper_effective_rank_seconds_total 900.0",
        'lightkeeper_ineffective_rank_seconds_total{cause="dead"} 12.5',
        "lightkeeper_event_streams 0.0",
    ],
)
def test_exports_what_the_contract_names(sample: str) -> None:
    assert sample in scrape(FULL).splitlines()


def test_a_hold_that_ended_in_an_eviction_holds_no_more() -> None:
    rows = (
        DecisionRow(IncidentId("inc-1"), 102.0, "hold", "cool_down", "too soon"),
        DecisionRow(IncidentId("inc-1"), 103.0, "evict", None, "hung"),
    )
    text = scrape(view(incidents=(incident(),), decisions={IncidentId("inc-1"): rows}))
    assert 'lightkeeper_holding{guard="cool_down"} 0.0' in text


def test_a_suspect_has_the_host_on_which_it_runs_now() -> None:
    accused = replace(incident(), culprits=(RankName("rg_0.0"),))
    text = scrape(view(seen("rg_0", host="node7"), incidents=(accused,)))
    assert 'lightkeeper_rank_suspect{host="node7",kind="not_entered",rank="0"' in text


def test_incidents_and_suspects_that_are_told_are_bounded_and_over_ones_are_not_suspect() -> None:
    many = tuple(
        replace(incident(f"inc-{n}", 900.0), culprits=(RankName(f"rg_1.{n}"),)) for n in range(300)
    )
    lines = scrape(view(incidents=many)).splitlines()
    assert sum(line.startswith("lightkeeper_rank_suspect{") for line in lines) == 100
    named = "lightkeeper_incident_first_seen_timestamp_seconds{"
    assert sum(line.startswith(named) for line in lines) == 50
    over = replace(incident(), state=State.RESOLVED, milestones=Milestones(first_seen_s=-5000.0))
    assert "inc-1" not in scrape(view(incidents=(over,)))


def test_what_is_not_known_is_left_out_and_never_zero() -> None:
    text = scrape(view(away("rg_1"), lighthouse=LighthouseAway("refused")))
    assert 'lightkeeper_group_step{replica_group="rg_1"}' not in text
    assert "lightkeeper_group_in_quorum{" not in text
    assert "lightkeeper_group_heals_total{" not in text
    assert 'lightkeeper_group_heals_total{replica_group="rg_4"}' not in scrape(FULL)
    assert 'load_seconds{replica_group="rg_3"}' not in scrape(FULL)
    assert "lightkeeper_quorum_id" not in text.replace("# HELP", "").replace("# TYPE", "")
    assert "lightkeeper_lighthouse_up 0.0" in text


def test_a_scrape_before_the_first_tick_answers() -> None:
    assert 'lightkeeper_build_info{version="1.2.3"} 1.0' in scrape(None)


def test_names_follow_the_conventions_that_promtool_checks() -> None:
    families = list(text_string_to_metric_families(scrape(FULL)))
    own = [family for family in families if family.name.startswith("lightkeeper_")]
    assert len(own) > 20
    for family in own:
        assert family.documentation.endswith(".")
        assert re.fullmatch(r"[a-z_]+", family.name)
        assert not family.name.endswith(("_count", "_sum", "_bucket", "_gauge", "_counter"))
        names = {sample.name for sample in family.samples}
        if family.type == "counter":
            assert all(name.endswith("_total") for name in names)
        else:
            assert not any(name.endswith("_total") for name in names)
        assert "_created" not in " ".join(names)
