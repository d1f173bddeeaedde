"""What a scrape of the monitor tells of one snapshot."""

from __future__ import annotations

import re
from functools import cache
from types import SimpleNamespace

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from lightkeeper.monitor.decide.headline import JobState
from lightkeeper.monitor.decide.rank_seconds import Spent
from lightkeeper.monitor.decide.tempo import Tempo
from lightkeeper.monitor.decide.view import View
from lightkeeper.monitor.loop.evictions import ENDED, HOLDS, count_incidents
from lightkeeper.monitor.loop.loop import DETECTOR_FAILURES, LATENESS, POLL_FAILURES, TICKS
from lightkeeper.monitor.metric import Filled, new_page
from lightkeeper.monitor.model.eviction import Eviction, Guard, Hold, Release
from lightkeeper.monitor.model.incident import Milestones, State
from lightkeeper.monitor.model.names import GroupName, IncidentId, RankName, RunId
from lightkeeper.monitor.model.observation import NO_LIGHTHOUSE, LighthouseAway, Observation
from lightkeeper.monitor.model.run import Run
from lightkeeper.monitor.model.verdict import RankHealth
from lightkeeper.monitor.show import metrics as page_metrics
from lightkeeper.monitor.show.metrics import JOB_STATES, STATES, Bounds, ViewCollector
from lightkeeper.worker_server import wire
from tests.changed import replace
from tests.monitor.samples import ENTRY, EVICTION, away, incident, seen, view

RECOVERED = {
    "load": wire.Took(2, 5.0, 3.0, 500, 400),
    "apply": wire.Took(2, 0.5, 0.25, 500, 400),
    "reconfigure": wire.Took(4, 0.4, 0.1),
}


def with_times(observation: Observation, times, failures: int = 0) -> Observation:
    report = observation.outcome
    assert isinstance(report, wire.StateReport)
    assert report.step is not None
    step = replace(report.step, times=times, commit_failures=failures)
    return replace(observation, outcome=replace(report, step=step))


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
    spent=Spent(900.0, {"dead": 12.5}, usual_s=0.5),
    decisions={
        IncidentId("inc-1"): (
            Hold(IncidentId("inc-1"), Guard.BUDGET, "too many", at_s=103.0),
            Hold(IncidentId("inc-1"), Guard.COOL_DOWN, "too soon", at_s=102.0),
        )
    },
    evicting=frozenset({GroupName("rg_3")}),
)


FIRST_SEEN = (
    'lightkeeper_incident_first_seen_timestamp_seconds{did="budget",host="",incident="inc-1",'
    'kind="not_entered",rank="0",replica_group="rg_1",severity="critical",state="firing"} 100.0'
)


def scrape(shown: View | None) -> str:
    metrics = new_page()
    store = SimpleNamespace(errors=3, place=SimpleNamespace(path=None))
    metrics.register(Filled((page_metrics.BUILD,), lambda: "1.2.3"))
    metrics.register(Filled(page_metrics.STORE, lambda: store))
    metrics.register(ViewCollector(lambda: shown, url=lambda: "http://keeper"))
    count_incidents(metrics, [incident()], {})
    HOLDS.on(metrics).labels("budget").inc()
    ENDED.on(metrics).labels("dead", "gone").inc()
    POLL_FAILURES.on(metrics).labels("timeout").inc()
    DETECTOR_FAILURES.on(metrics).labels("dead").inc()
    TICKS.on(metrics).observe(0.1)
    LATENESS.on(metrics)
    return generate_latest(metrics).decode()


@cache
def whole() -> str:
    return scrape(FULL)


CONTRACT = [
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
    'lightkeeper_job_info{job_id="job",run="",url="http://keeper"} 1.0',
    f"lightkeeper_job_state {JOB_STATES[JobState.DISTURBED]}.0",
    "lightkeeper_job_usual_commit_seconds 0.5",
    'lightkeeper_group_state{replica_group="rg_0"} 0.0',
    f'lightkeeper_group_state{{replica_group="rg_1"}} {STATES["unreachable"]}.0',
    f'lightkeeper_group_state{{replica_group="rg_3"}} {STATES["evicting"]}.0',
    f'lightkeeper_rank_state{{rank="1",replica_group="rg_1"}} {STATES["unreachable"]}.0',
    'lightkeeper_group_tokens_total{replica_group="rg_0"} 4096.0',
    'lightkeeper_rank_wait_seconds{rank="0",replica_group="rg_0"} 0.4',
    'lightkeeper_fleet_busy_seconds{stat="min"} 0.1',
    'lightkeeper_fleet_busy_seconds{stat="median"} 0.2',
    'lightkeeper_fleet_busy_seconds{stat="p99"} 0.3',
    'lightkeeper_fleet_busy_seconds{stat="max"} 0.3',
    'lightkeeper_group_busy_seconds{replica_group="rg_0"} 0.3',
    'lightkeeper_group_wait_seconds{replica_group="rg_0"} 0.30000000000000004',
    (
        'lightkeeper_rank_suspect{host="",kind="not_entered",rank="0",replica_group="rg_1",'
        'role="culprit"} 1.0'
    ),
    FIRST_SEEN,
    'lightkeeper_holding{guard="budget"} 1.0',
    'lightkeeper_holding{guard="cool_down"} 0.0',
    "lightkeeper_effective_rank_seconds_total 900.0",
    'lightkeeper_ineffective_rank_seconds_total{cause="dead"} 12.5',
]


def test_of_equal_ranks_the_healthy_have_no_state_of_their_own() -> None:
    assert 'lightkeeper_rank_state{rank="0",replica_group="rg_0"}' not in whole()
    ranks = {RankName(f"rg_0.{number}"): RankHealth.WAITING for number in range(9)}
    ranks[RankName("rg_0.7")] = RankHealth.STALLED
    metrics = new_page()
    metrics.register(ViewCollector(lambda: view(health=ranks), Bounds(ranks=2)))
    text = generate_latest(metrics).decode()
    assert re.findall(r'^lightkeeper_rank_state{rank="(\d)".*} (\d+)', text, re.MULTILINE) == [
        ("7", str(STATES["stalled"])), ("0", str(STATES["waiting"])),
    ]  # fmt: skip


def test_the_last_commit_and_the_loss_are_known_without_a_rank_being_scraped() -> None:
    def report(number: int, age_s: float, loss: float | None, *, alive: bool = True) -> Observation:
        observation = seen("rg_0", number, world_size=4)
        outcome = observation.outcome
        assert isinstance(outcome, wire.StateReport)
        assert outcome.step is not None
        step = replace(outcome.step, last_commit_age_s=age_s, loss=loss)
        process = replace(outcome.process, alive=alive)
        return replace(observation, outcome=replace(outcome, step=step, process=process))

    text = scrape(view(report(0, 3.0, 2.5), report(1, 1.5, 2.7), report(2, 4.0, None),
                       report(3, 99.0, 9.0, alive=False)))  # fmt: skip
    assert "\nlightkeeper_job_last_commit_timestamp_seconds 998.5\n" in text
    assert "\nlightkeeper_job_loss 2.6\n" in text
    silent = scrape(view(away("rg_1")))
    assert "\nlightkeeper_job_l" not in silent.replace("# ", "")


def test_a_job_whose_ranks_are_gone_keeps_its_name() -> None:
    run = Run(RunId("20261127-164512"), "job", 100.0)
    line = 'lightkeeper_job_info{job_id="job",run="20261127-164512",url="http://keeper"} 1.0'
    assert line in scrape(view(runs=(run,))).splitlines()


@pytest.mark.parametrize(
    ("state", "row", "did"),
    [
        pytest.param(State.FIRING, Hold(IncidentId("inc-1"), Guard.PAUSED, "a person"), "paused",
                     id="held"),
        pytest.param(State.RESOLVED, Hold(IncidentId("inc-1"), Guard.PAUSED, "a person"), "",
                     id="held-no-more"),
        pytest.param(State.RESOLVED, EVICTION, "confirmed", id="evicted"),
        pytest.param(State.FIRING, None, "", id="not-decided-yet"),
    ],
)  # fmt: skip
def test_an_incident_says_what_is_done_about_it(state, row, did) -> None:
    rows = {} if row is None else {IncidentId("inc-1"): (row,)}
    text = scrape(view(incidents=(incident(state=state),), decisions=rows))
    assert f'first_seen_timestamp_seconds{{did="{did}",host=' in text


def test_exports_what_the_contract_names() -> None:
    exported = set(whole().splitlines())
    assert [sample for sample in CONTRACT if sample not in exported] == []


def test_a_hold_that_ended_in_an_eviction_holds_no_more() -> None:
    rows = (
        Hold(IncidentId("inc-1"), Guard.COOL_DOWN, "too soon", at_s=102.0),
        Eviction(IncidentId("inc-1"), GroupName("rg_1"), None, 103.0),
    )
    text = scrape(view(incidents=(incident(),), decisions={IncidentId("inc-1"): rows}))
    assert 'lightkeeper_holding{guard="cool_down"} 0.0' in text


def test_a_hold_stands_also_after_others_were_released() -> None:
    rows = (
        Hold(IncidentId("inc-1"), Guard.COOL_DOWN, "too soon", at_s=102.0),
        Release(IncidentId("inc-1"), GroupName("rg_1"), 3, (), (), "others go on", at_s=103.0),
    )
    text = scrape(view(incidents=(incident(),), decisions={IncidentId("inc-1"): rows}))
    assert 'lightkeeper_holding{guard="cool_down"} 1.0' in text


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
    assert 'lightkeeper_group_heals_total{replica_group="rg_4"}' not in whole()
    assert 'load_seconds{replica_group="rg_3"}' not in whole()
    assert "lightkeeper_quorum_id" not in text.replace("# HELP", "").replace("# TYPE", "")
    assert "lightkeeper_lighthouse_up 0.0" in text


KEEPERS = re.compile("lighthouse|quorum|evict|paused|observe|holding|policy", re.IGNORECASE)


def test_a_monitor_without_a_lighthouse_exports_nothing_about_one() -> None:
    """`lightkeeper_lighthouse_up 0` would page for ever in plain DDP."""
    alone = view(lighthouse=LighthouseAway(NO_LIGHTHOUSE))
    names = [line for line in scrape(alone).splitlines() if not line.startswith("#")]
    happened = ("lightkeeper_holds_total", "lightkeeper_evictions_total", "lightkeeper_incident_")
    assert [n for n in names if KEEPERS.search(n) and not n.startswith(happened)] == []


def test_what_guards_and_alerts_need_is_there_as_soon_as_one_is_known() -> None:
    text = scrape(view(lighthouse=LighthouseAway("refused")))
    for name in ("lighthouse_up", "paused", "observe_mode", 'holding{guard="observe"}'):
        assert f"\nlightkeeper_{name} 0.0\n" in text


def test_a_scrape_before_the_first_tick_answers() -> None:
    assert 'lightkeeper_build_info{version="1.2.3"} 1.0' in scrape(None)


def test_names_follow_the_conventions_that_promtool_checks() -> None:
    families = list(text_string_to_metric_families(whole()))
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


def test_what_machines_say_is_a_series_each_without_mere_context() -> None:
    gpu = wire.Testimony("kernel log", wire.Weight.BROKEN, "xid-79", "GPU 3 is lost", for_s=30.0)
    calm = wire.Testimony("kernel log", wire.Weight.CONTEXT, "link-up", "eth0 is up")
    observation = seen("rg_0")
    assert isinstance(observation.outcome, wire.StateReport)
    outcome = replace(observation.outcome, machine=(gpu, calm))
    shown = view(replace(observation, outcome=outcome))
    (line,) = re.findall("^lightkeeper_host_testimony.*$", scrape(shown), re.MULTILINE)
    host, now_s = observation.identity.host, shown.snapshot.now_s
    labels = f'code="xid-79",host="{host}",weight="broken",witness="kernel log"'
    name = "lightkeeper_host_testimony_since_timestamp_seconds"
    assert line == f"{name}{{{labels}}} {now_s - 30.0}"
