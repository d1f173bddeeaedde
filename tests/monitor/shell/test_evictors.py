"""Conformance of the evictors: every way in which a WorkerServer or a Lighthouse can answer.

Each case is a group of one or two fake ranks behind real HTTP, and what must be true at the end.
"""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from monitor.act.http import Fetcher
from monitor.act.lighthouse import Lighthouse
from monitor.model.escalation import Timeouts
from monitor.model.eviction import Rung
from tests.monitor.shell.evictions import (
    FAST,
    REPLICA,
    Bench,
    answer,
    detail,
    never_answers,
    rungs,
)
from tests.monitor.shell.fakes import (
    FakeFleet,
    FakeLighthouse,
    FakeRank,
    Hang,
    Page,
    page,
)

pytestmark = pytest.mark.integration  # it waits for deadlines, in real seconds


# -- the Lighthouse's rung ------------------------------------------------------------------------


def test_a_kill_that_works_answers_500_and_no_worker_is_asked(bench: Bench) -> None:
    bench.group()
    progress = bench.evict()
    assert progress.failed is None
    assert progress.gone_s is not None
    assert rungs(progress) == ["quarantine", "lighthouse_kill"]
    said = "answered 500: transport error; the group's manager has ended"
    assert detail(progress, Rung.LIGHTHOUSE_KILL) == said
    assert bench.lighthouse.kills == [REPLICA]
    assert bench.ranks[0].evictions == []


def test_a_kill_that_hangs_is_followed_by_the_workers(bench: Bench) -> None:
    bench.group()
    bench.lighthouse.on_kill = bench.kill_hangs
    progress = bench.evict()
    assert progress.gone_s is not None
    assert rungs(progress) == ["quarantine", "lighthouse_kill", "worker_evict"]
    assert len(bench.ranks[0].evictions) == 1


def test_a_kill_that_says_ok_and_does_nothing_is_not_believed(bench: Bench) -> None:
    bench.group()
    bench.lighthouse.on_kill = lambda _: (200, "text/plain", b"ok, killed")
    progress = bench.evict()
    assert progress.gone_s is not None
    assert "worker_evict" in rungs(progress)


def test_the_rank_that_outlives_the_kill_of_a_two_rank_group_is_evicted_too(bench: Bench) -> None:
    bench.group(2)
    progress = bench.evict()
    assert progress.gone_s is not None
    assert [rank.alive for rank in bench.ranks] == [False, False]
    assert bench.ranks[0].evictions == []
    assert [body["incarnation"] for body in bench.ranks[1].evictions] == ["one"]


def test_the_survivor_of_a_two_rank_group_is_asked_before_the_kill_is_over(
    fleet: FakeFleet, lighthouse: FakeLighthouse, fetcher: Fetcher
) -> None:
    bench = Bench(fleet, lighthouse, fetcher, Timeouts(kill_s=60.0, pause_s=0.05, confirm_s=90.0))
    bench.group(2)
    assert bench.evict().gone_s is not None
    bench.evictors.close()


@pytest.mark.parametrize(
    "condition",
    [
        {"process_state": "T"},
        {"process_state": "t", "interpreter_age_s": 30.0},
        {"interpreter_age_s": 30.0},
    ],
    ids=["stopped", "traced", "interpreter stuck"],
)
def test_a_rank_that_cannot_carry_out_a_kill_is_evicted_at_once_and_not_killed(
    condition: dict, fleet: FakeFleet, lighthouse: FakeLighthouse, fetcher: Fetcher
) -> None:
    bench = Bench(fleet, lighthouse, fetcher, Timeouts(kill_s=60.0, pause_s=0.05, confirm_s=90.0))
    bench.group()
    for name, value in condition.items():
        setattr(bench.ranks[0], name, value)
    progress = bench.evict()
    assert progress.gone_s is not None
    assert lighthouse.kills == []
    assert detail(progress, Rung.LIGHTHOUSE_KILL).startswith("skipped: rg_1.0, which hosts")
    bench.evictors.close()


def test_a_stuck_rank_beside_a_healthy_manager_is_asked_at_once_and_the_kill_is_pressed(
    fleet: FakeFleet, lighthouse: FakeLighthouse, fetcher: Fetcher
) -> None:
    bench = Bench(fleet, lighthouse, fetcher, Timeouts(kill_s=60.0, pause_s=0.05, confirm_s=90.0))
    bench.group(2)
    bench.ranks[1].process_state = "T"
    assert bench.evict().gone_s is not None
    assert lighthouse.kills == [REPLICA]
    assert len(bench.ranks[1].evictions) == 1
    bench.evictors.close()


def test_without_a_lighthouse_the_workers_are_asked_at_once(bench: Bench) -> None:
    bench.group(2)
    bench.lighthouse.down = True
    progress = bench.evict()
    assert progress.gone_s is not None
    assert detail(progress, Rung.LIGHTHOUSE_KILL) == "skipped: no Lighthouse answers"


def test_a_group_that_is_not_in_the_quorum_is_not_killed_by_the_lighthouse(bench: Bench) -> None:
    bench.group()
    bench.lighthouse.form("rg_0:uuid0")
    progress = bench.evict()
    assert progress.gone_s is not None
    assert progress.left_quorum_s is not None
    assert bench.lighthouse.kills == []


def test_a_group_without_worker_servers_is_killed_and_known_by_its_heartbeat(bench: Bench) -> None:
    def kill(_: str) -> Page:
        bench.lighthouse.ages_s[REPLICA] = 7.0
        return 500, "text/plain", b"transport error"

    bench.lighthouse.on_kill = kill
    progress = bench.evict()
    assert progress.failed is None
    assert progress.gone_s is None
    assert bench.lighthouse.kills == [REPLICA]


# -- the workers' rung ----------------------------------------------------------------------------

WORKER_ANSWERS = {
    "works": None,
    "answers 500 though it worked": answer(b'{"error": "boom"}', 500, dies=True),
    "answers garbage though it worked": answer(b"\xff\x00", dies=True),
    "answers a list though it worked": answer(b"[]", dies=True),
    "times out though it worked": never_answers,
}


@pytest.mark.parametrize("name", WORKER_ANSWERS)
def test_a_worker_that_did_it_is_believed_by_looking(name: str, bench: Bench) -> None:
    bench.group(2)
    bench.lighthouse.on_kill = bench.kill_nothing
    for rank in bench.ranks:
        rank.evict = WORKER_ANSWERS[name]
    progress = bench.evict()
    assert progress.failed is None
    assert progress.gone_s is not None
    assert [len(rank.evictions) for rank in bench.ranks] == [1, 1]


WORKER_FAILURES = {
    "says gone and lies": answer(b'{"schema": 1, "gone": true}', dies=False),
    "answers 500": answer(b'{"error": "boom"}', 500, dies=False),
    "answers garbage": answer(b"<html>", dies=False),
    "deep JSON": answer(b"[" * 10_000, dies=False),
}


@pytest.mark.parametrize("name", WORKER_FAILURES)
def test_a_worker_that_did_not_do_it_is_not_believed(
    name: str, fleet: FakeFleet, lighthouse: FakeLighthouse, fetcher: Fetcher
) -> None:
    bench = Bench(fleet, lighthouse, fetcher, replace(FAST, confirm_s=2.0, look_s=1.0))
    bench.group()
    bench.lighthouse.on_kill = bench.kill_nothing
    bench.ranks[0].evict = WORKER_FAILURES[name]
    progress = bench.evict()
    assert progress.gone_s is None
    assert progress.failed is not None
    assert progress.failed.startswith("not gone after 2 s: rg_1.0 alive (state S)")
    assert len(bench.ranks[0].evictions) > 1  # asked again
    bench.evictors.close()


def test_a_worker_that_hangs_does_not_hold_the_eviction_for_ever(bench: Bench) -> None:
    def hang(_: FakeRank) -> Page:
        raise Hang

    bench.group()
    bench.lighthouse.on_kill = bench.kill_nothing
    bench.ranks[0].evict = hang
    began = time.monotonic()
    assert bench.evict().failed is not None
    assert time.monotonic() - began < FAST.confirm_s + 2


def test_a_process_that_never_dies_is_given_up_with_its_state(bench: Bench) -> None:
    bench.group()
    bench.ranks[0].mortal, bench.ranks[0].process_state = False, "D"
    progress = bench.evict()
    assert progress.gone_s is None
    assert "rg_1.0 alive (state D)" in (progress.failed or "")


@pytest.mark.parametrize(
    ("theirs", "words"),
    [(None, "refused (403)"), ("other", "refused (401)")],
    ids=["worker without a token", "another token"],
)
def test_a_worker_that_refuses_is_quoted(theirs: str | None, words: str, bench: Bench) -> None:
    bench.group()
    bench.lighthouse.on_kill = bench.kill_nothing
    bench.ranks[0].token = theirs
    progress = bench.evict()
    assert words in (progress.failed or "")


def test_a_worker_server_that_said_gone_and_ended_is_believed(bench: Bench) -> None:
    bench.group()
    bench.lighthouse.on_kill = bench.kill_nothing

    def leave(rank: FakeRank) -> Page:
        rank.answer = lambda _: page({}, 503)
        return page({"schema": 1, "signalled": ["SIGKILL"], "gone": True})

    bench.ranks[0].evict = leave
    assert bench.evict().gone_s is not None


def test_a_lost_host_is_let_go_once_the_lighthouse_has_lost_it_too_and_out_when_it_left(
    bench: Bench,
) -> None:
    bench.group()
    bench.ranks[0].answer = lambda _: page({}, 503)
    bench.ranks[0].evict = lambda _: page({}, 503)
    bench.lighthouse.on_kill = bench.kill_nothing
    bench.lighthouse.ages_s[REPLICA] = 30.0
    progress = bench.evict()
    assert (progress.gone_s, progress.failed) == (None, None)
    assert progress.unseen_s is not None
    assert not progress.out
    bench.lighthouse.form("rg_0:uuid0")
    bench.evictors.note(Lighthouse(bench.lighthouse.url, bench.fetcher).look(2.0))
    (progress,) = bench.evictors.progress()
    assert progress.out
    assert progress.confirmed == (
        "host out of sight, its heartbeat is dead (rg_1.0 not seen); it left the quorum"
    )


def test_a_lost_host_that_still_beats_is_a_failure(bench: Bench) -> None:
    bench.group()
    bench.ranks[0].answer = lambda _: page({}, 503)
    bench.ranks[0].evict = lambda _: page({}, 503)
    bench.lighthouse.on_kill = bench.kill_nothing
    assert "rg_1.0 its WorkerServer answers 503" in (bench.evict().failed or "")
