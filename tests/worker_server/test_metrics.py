"""The rank's metrics: valid in both formats, bounded, and true to the page."""

from __future__ import annotations

import pytest

from lightkeeper.worker_server.http_server import metrics_page
from lightkeeper.worker_server.rank.page import layout
from lightkeeper.worker_server.sidecar.metrics import BUCKETS_S
from tests.worker_server.pages import enter, write_step
from tests.worker_server.scraped import Rank, step


@pytest.fixture
def rank(tmp_path):
    return Rank(tmp_path / "a.page")


FORMATS = pytest.mark.parametrize("how", ["prometheus", "openmetrics"])


@FORMATS
def test_a_rank_that_said_nothing_is_valid_and_leaves_out_what_is_unknown(rank, how):
    families = rank.families(how)
    assert families["lightkeeper_rank_alive"].samples[0].value == 1
    assert "lightkeeper_rank_step" not in families
    assert not families["lightkeeper_rank_quorum_seconds"].samples


@FORMATS
def test_everything_at_once_is_valid(rank, how):
    nasty = ['quote "', "new\nline", "back\\slash", "\udc80", "x" * 100, "y" * 100]
    for n, name in enumerate(nasty):
        rank.reporter.count(name, n)
        with rank.reporter.phase(name):
            pass
        rank.page.leave(row := rank.page.group_row(name, 2), *enter(rank.page, row))
    for kind in range(len(layout.TIME_NAMES)):
        rank.page.add_time(kind, 0.5)
    for n in range(5):
        step(rank, n)
    families = rank.families(how)
    kinds = {name.removeprefix("lightkeeper_rank_"): f.type for name, f in families.items()}
    counters = {
        "attempts", "commits", "commit_failures", "local_steps", "tokens", "phase_seconds",
        "user", "communication_seconds", "steps_missed", "nonfinite_attempts", "heals",
        "checkpoint_staged_bytes", "checkpoint_loaded_bytes",
    }  # fmt: skip
    assert {name for name, kind in kinds.items() if kind == "counter"} == counters
    assert kinds["step_seconds"] == kinds["step_phase_seconds"] == "histogram"
    assert kinds["checkpoint_staging_seconds"] == kinds["reconfigure_seconds"] == "summary"
    series = [
        (s.name, tuple(sorted(s.labels.items()))) for f in families.values() for s in f.samples
    ]
    assert len(series) == len(set(series))


def test_labels_are_bounded_whatever_the_user_names(rank):
    for n in range(200):
        rank.page.group_row(f"group {n}", 1)
        with rank.reporter.phase(f"phase {n}"):
            pass
    for n in range(16):
        rank.reporter.count(f"counter {n}")
    step(rank, 0)
    for name, label, limit in (
        ("lightkeeper_rank_collective_lag", "process_group", 64),
        ("lightkeeper_rank_phase_seconds", "phase", 16),
        ("lightkeeper_rank_step_phase_seconds", "phase", 16),
        ("lightkeeper_rank_user", "counter", 16),
    ):
        values = {sample.labels[label] for sample in rank.families()[name].samples}
        assert len(values) == limit


def test_steps_commits_and_failures_are_told(rank):
    for n, committed in ((4, True), (5, False), (5, False)):
        step(rank, n, committed=committed)
    said = {
        name: rank.value(f"lightkeeper_rank_{name}")
        for name in ("step", "committed_step", "attempts_total", "commits_total",
                     "commit_failures_total", "tokens_total", "loss", "steps_missed_total")
    }  # fmt: skip
    assert said == {
        "step": 5, "committed_step": 4, "attempts_total": 3, "commits_total": 1,
        "commit_failures_total": 2, "tokens_total": 8, "loss": 2.5, "steps_missed_total": 0,
    }  # fmt: skip


def test_who_it_is_and_where_it_stands_in_quorums_and_groups_is_told(rank):
    write_step(rank.page, 5)
    rank.page.leave(row := rank.page.group_row("tp", 2), *enter(rank.page, row))
    said = [
        rank.value(f"lightkeeper_rank_{name}") for name in ("alive", "quorum_id", "participants")
    ]
    assert said == [1.0, 5.0, 5.0]
    for name in ("enqueued", "completed"):
        assert rank.value(f"lightkeeper_rank_collective_{name}", process_group="tp") == 1.0
    assert rank.value("lightkeeper_rank_last_commit_timestamp_seconds") is not None
    (info,) = rank.families()["lightkeeper_rank_info"].samples
    labels = info.labels
    assert (labels["host"], labels["replica_id"], labels["url"]) == ("h", "rg:x", "http://h:1")


def test_every_attempt_is_in_the_histograms_once_however_often_they_are_scraped(rank):
    for n in range(30):
        step(rank, n)
        if n % 7 == 0:
            rank.follower.follow()
            rank.families()
    assert rank.value("lightkeeper_rank_step_seconds_count") == 30
    for phase in ("forward", "communication"):
        assert rank.value("lightkeeper_rank_step_phase_seconds_count", phase=phase) == 30
        total_s = rank.value("lightkeeper_rank_phase_seconds_total", phase=phase)
        in_steps_s = rank.value("lightkeeper_rank_step_phase_seconds_sum", phase=phase)
        assert in_steps_s == pytest.approx(total_s, abs=1e-9)


def attempt(page, number, duration_ns):
    page.end_attempt(number, number, 10**9, 10**9 + duration_ns, True)


@pytest.mark.parametrize(
    ("duration_ns", "bound"),
    [(1, "0.001"), (10**6, "0.001"), (10**6 + 1, "0.003"), (300 * 10**9, "300.0"),
     (301 * 10**9, "+Inf")],
)  # fmt: skip
def test_a_bound_belongs_to_its_bucket(rank, duration_ns, bound):
    rank.reporter.begin_step(1)
    attempt(rank.page, 1, duration_ns)
    bounds = [*(str(b) for b in BUCKETS_S), "+Inf"]
    counts = [rank.value("lightkeeper_rank_step_seconds_bucket", le=le) for le in bounds]
    assert counts == [float(n >= bounds.index(bound)) for n in range(len(bounds))]


def test_an_attempt_whose_beginning_nobody_knows_has_no_duration(rank):
    for n in range(3):
        rank.reporter.step(n)
    assert rank.value("lightkeeper_rank_step_seconds_count") == 2
    assert rank.value("lightkeeper_rank_step_phase_seconds_count", phase="other") == 2
    assert rank.value("lightkeeper_rank_step_phase_seconds_count", phase="init") == 1


def test_what_the_follower_missed_is_counted(rank):
    rank.reporter.begin_step(0)
    for n in range(1, layout.STEPS_SLOTS + 101):
        attempt(rank.page, n, 10**6)
    rank.follower.follow()
    missed = rank.value("lightkeeper_rank_steps_missed_total")
    seen = rank.value("lightkeeper_rank_step_seconds_count")
    assert (missed, seen) == (101, layout.STEPS_SLOTS - 1)


def test_waiting_grows_while_it_lasts_and_stands_still_from_death_on(rank):
    def waited():
        return rank.value("lightkeeper_rank_communication_seconds_total")

    rank.reporter.begin_step(0)
    with rank.reporter.phase("communication"):
        first, second = waited(), waited()
        assert 0 < first < second
        rank.die()
        frozen = [waited() for _ in range(20)]
        assert frozen == sorted(frozen)
        assert second <= frozen[0] == pytest.approx(frozen[-1], abs=1e-6)


def test_waiting_in_collectives_outside_of_the_phase_is_waiting(rank):
    rank.reporter.begin_step(0)
    rank.page.leave(row := rank.page.group_row("dp", 2), *enter(rank.page, row))
    assert 0 < rank.value("lightkeeper_rank_communication_seconds_total") < 1


def test_the_lag_of_a_process_group_is_what_was_entered_and_not_left(rank):
    row = rank.page.group_row("dp", 2)
    for _ in range(3):
        last = enter(rank.page, row, is_async=True)
    assert rank.value("lightkeeper_rank_collective_lag", process_group="dp") == 3
    rank.page.leave(row, *last)
    assert rank.value("lightkeeper_rank_collective_lag", process_group="dp") == 0


def test_times_of_torchft_are_sums_and_counts(rank):
    rank.page.add_time(layout.TIME_LOAD, 2.0)
    rank.page.add_time(layout.TIME_LOAD, 0.5)
    assert rank.value("lightkeeper_rank_checkpoint_load_seconds_sum") == 2.5
    assert rank.value("lightkeeper_rank_checkpoint_load_seconds_count") == 2
    assert rank.value("lightkeeper_rank_checkpoint_staging_seconds_count") is None


def test_heals_and_the_bytes_that_they_moved_are_counted(rank):
    assert rank.value("lightkeeper_rank_heals_total") is None
    rank.page.add_time(layout.TIME_RECONFIGURE, 1.0)
    assert rank.value("lightkeeper_rank_heals_total") == 0
    rank.page.add_time(layout.TIME_LOAD, 2.0, 1500)
    rank.page.add_time(layout.TIME_APPLY, 0.1, 1500)
    assert rank.value("lightkeeper_rank_heals_total") == 1
    assert rank.value("lightkeeper_rank_checkpoint_loaded_bytes_total") == 1500
    assert rank.value("lightkeeper_rank_checkpoint_staged_bytes_total") is None
    assert rank.value("lightkeeper_rank_checkpoint_load_seconds_count") == 1
    assert rank.value("lightkeeper_rank_checkpoint_apply_seconds_sum") == 0.1


@FORMATS
def test_a_dead_rank_still_answers_and_says_so(rank, how):
    for n in range(3):
        step(rank, n)
    rank.die()
    families = rank.families(how)
    assert families["lightkeeper_rank_alive"].samples[0].value == 0
    counts = {s.name: s.value for s in families["lightkeeper_rank_step_seconds"].samples}
    assert counts["lightkeeper_rank_step_seconds_count"] == 3


@FORMATS
def test_a_rank_of_plain_ddp_exports_nothing_about_quorums(rank, how):
    step(rank, 1)
    accept = "application/openmetrics-text" if how == "openmetrics" else "text/plain"
    body, _ = metrics_page(rank.registry, accept)
    assert b"lightkeeper_rank_commits_total{" in body
    words = (b"quorum", b"participants", b"heal", b"checkpoint", b"reconfigure")
    assert [word for word in words if word in body] == []
