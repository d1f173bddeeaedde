"""How an eviction goes on: each rung by itself, and what ends it. Virtual time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lightkeeper.monitor.decide.escalation import RECOVERED
from lightkeeper.monitor.model.escalation import (
    Answered,
    Begin,
    Cleared,
    Climb,
    EvictionDeps,
    HandedOver,
    Interrupted,
    LighthouseSeen,
    Liveness,
    Probe,
    Probed,
    Revoked,
    Timeouts,
)
from lightkeeper.monitor.model.eviction import EndManner, Eviction, EvictionState, Rung, RungResult
from lightkeeper.monitor.model.names import Host, ReplicaId
from lightkeeper.monitor.model.observation import LighthouseAway, LighthouseView, Member
from lightkeeper.monitor.model.plain import from_plain, to_plain
from tests.monitor.decide.escalations import ALL, ID, RANKS, VIEW, Play, accused, fresh, look_at

TIMES = Timeouts()
KINDS = ("does it", "refuses", "never answers", "crashes")
RUNGS = (Rung.GATE, Rung.LIGHTHOUSE_KILL, Rung.WORKER_EVICT, Rung.SCHEDULER)
DEADLINES = {
    Rung.GATE: TIMES.gate_s,
    Rung.LIGHTHOUSE_KILL: TIMES.kill_s,
    Rung.WORKER_EVICT: TIMES.worker_s,
    Rung.SCHEDULER: TIMES.scheduler_s,
}
AGAIN_S = {Rung.GATE: 3.0, Rung.LIGHTHOUSE_KILL: 1e9, Rung.WORKER_EVICT: 3.0, Rung.SCHEDULER: 10.0}


@pytest.fixture(params=RUNGS, ids=str)
def rung(request: pytest.FixtureRequest) -> Rung:
    return request.param


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def outcome(eviction: Eviction, rung: Rung):
    return next(
        (rung_outcome for rung_outcome in eviction.rungs if rung_outcome.rung is rung), None
    )


# -- every rung ----------------------------------------------------------------------------------


def test_nobody_is_asked_again_within_some_seconds(rung: Rung, kind: str) -> None:
    play = Play(kind, rung).begin().play(60.0)
    asked: dict[str, float] = {}
    for at_s, whom in play.asks(rung):
        assert at_s - asked.get(whom, -1e12) >= AGAIN_S[rung]
        asked[whom] = at_s
    assert set(asked) <= {*RANKS, "slurm", ""}


def test_whoever_never_answers_is_asked_once(rung: Rung) -> None:
    play = Play("never answers", rung).begin().play(60.0)
    whom = [whom for _, whom in play.asks(rung)]
    assert len(whom) == len(set(whom)) or rung is Rung.GATE  # its keeper is only reminded


def test_every_rung_has_its_deadline_and_records_how_it_ended(rung: Rung, kind: str) -> None:
    play = Play(kind, rung).begin().play(60.0)
    assert not play.eviction.open
    ended = outcome(play.eviction, rung)
    assert ended is not None
    assert ended.deadline_s == DEADLINES[rung]
    assert ended.started_s <= (ended.finished_s or 0.0) <= play.now_s
    assert (ended.result is RungResult.WORKED) is (kind == "does it")


def test_it_ends_with_what_was_seen(rung: Rung, kind: str) -> None:
    eviction = Play(kind, rung).begin().play(60.0).eviction
    does_it = kind == "does it" and rung is not Rung.GATE
    assert eviction.state == ("confirmed" if does_it else "failed")
    assert (outcome(eviction, Rung.PAGE) is None) is does_it


def test_a_group_that_has_restarted_is_never_hit() -> None:
    play = Play("does it").begin()
    play.lives = dict.fromkeys(RANKS, Liveness.GONE)
    play.lighthouse = replace(VIEW, members=(Member(ReplicaId("rg_1:b"), 5),))
    play.more |= {"superseded": frozenset(RANKS), "current": frozenset()}
    play.play(60.0)
    assert [rung for _, rung, _ in play.asked if rung is not Rung.GATE] == []
    assert play.eviction.state is EvictionState.CONFIRMED


def test_half_a_group_that_has_restarted_is_never_hit_by_a_scheduler() -> None:
    play = Play().begin()
    play.lives[RANKS[0]] = Liveness.GONE
    play.more |= {"superseded": frozenset(RANKS[:1])}
    play.play(60.0)
    assert play.asks(Rung.SCHEDULER) == []
    assert outcome(play.eviction, Rung.SCHEDULER).result is RungResult.SKIPPED
    assert {whom for _, whom in play.asks(Rung.WORKER_EVICT)} == {RANKS[1]}


# -- single rungs --------------------------------------------------------------------------------


def test_a_scheduler_that_refuses_is_asked_again_within_its_time() -> None:
    play = Play().begin().play(60.0)
    assert len(play.asks(Rung.SCHEDULER)) == 3  # every 10 s for 30 s
    assert outcome(play.eviction, Rung.SCHEDULER).detail == "slurm: answered"


def test_a_gate_that_was_away_is_still_asked_after_its_deadline_and_may_work_late() -> None:
    play = Play().begin().play(10.0)
    ended = outcome(play.eviction, Rung.GATE)
    assert (ended.result, ended.detail) == (RungResult.FAILED, "the gate is away")
    play.more |= {"refused_for_s": 0.1}
    play.play(1.0)
    assert outcome(play.eviction, Rung.GATE).result is RungResult.WORKED


def test_a_gate_is_taught_after_its_rung_is_on_record() -> None:
    play = Play().begin()
    play.look()
    assert outcome(play.eviction, Rung.GATE).detail == "asked"
    assert play.asks(Rung.GATE) == []
    play.look()
    assert len(play.asks(Rung.GATE)) == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lighthouse": LighthouseAway("refused")}, "no Lighthouse answers"),
        ({"lighthouse": replace(VIEW, members=())}, "its last quorum only"),
        ({"lives": dict.fromkeys(RANKS, Liveness.STUCK)}, "rg_1.0, which hosts the manager: stuck"),
    ],
    ids=["away", "not a member", "stuck"],
)
def test_a_kill_that_cannot_work_is_skipped_and_the_workers_are_asked(change, words: str) -> None:
    play = Play().begin()
    vars(play).update(change)
    play.look()
    ended = outcome(play.eviction, Rung.LIGHTHOUSE_KILL)
    assert (ended.result, words in ended.detail) == (RungResult.SKIPPED, True)
    assert play.asks(Rung.LIGHTHOUSE_KILL) == []
    assert len(play.asks(Rung.WORKER_EVICT)) == 2


def test_stuck_ranks_are_asked_before_it_is_everyones_turn() -> None:
    play = Play("never answers").begin()
    play.lives[RANKS[1]] = Liveness.STUCK
    play.look()
    assert [whom for _, whom in play.asks(Rung.WORKER_EVICT)] == [RANKS[1]]
    play.play(TIMES.kill_s + 0.5)
    assert [whom for _, whom in play.asks(Rung.WORKER_EVICT)] == [RANKS[1], RANKS[0]]


def test_a_rank_out_of_sight_is_asked_unless_another_bears_its_name() -> None:
    play = Play("never answers").begin()
    play.lives = dict.fromkeys(RANKS, Liveness.UNSEEN)
    play.more |= {"current": frozenset(RANKS[:1])}
    play.play(60.0)
    assert [whom for _, whom in play.asks(Rung.WORKER_EVICT)] == [RANKS[0]]
    assert outcome(play.eviction, Rung.WORKER_EVICT).result is RungResult.UNKNOWN


def test_who_may_not_act_asks_nobody_and_time_goes_on() -> None:
    play = Play().begin()
    assert play.post(Probed(look_at(play.lives), may=False)) == (Probe(TIMES.pause_s),)
    play.now_s += ALL.given_s(play.eviction)
    assert play.post(Probed(look_at(play.lives), may=False)) == ()
    assert play.eviction.failed == "not gone after 55 s: rg_1.0 alive; rg_1.1 alive"
    assert outcome(play.eviction, Rung.PAGE) is None  # nobody was asked anything


def test_who_outlives_the_kill_is_asked_before_its_time_is_over() -> None:
    play = Play("never answers").begin()
    play.look()
    play.lives[RANKS[0]] = Liveness.GONE
    play.look()
    assert [whom for _, whom in play.asks(Rung.WORKER_EVICT)] == [RANKS[1]]


def test_a_failure_pages_and_says_whom() -> None:
    pages = [outcome(Play(deps=deps).begin().play(60.0).eviction, Rung.PAGE)
            for deps in (ALL, EvictionDeps())]  # fmt: skip
    assert [(page.detail, page.result) for page in pages] == [
        ("handed to pager", RungResult.WORKED),
        ("nobody is told: no --notify sink", RungResult.SKIPPED),
    ]


# -- the way -------------------------------------------------------------------------------------


def test_it_begins_when_it_is_on_disk_and_its_evidence_is_saved() -> None:
    play = Play()
    play.eviction = fresh()
    assert play.post(HandedOver(play.now_s, accused())) == (Begin(),)
    assert play.post(Cleared(may=False)) == (Begin(TIMES.pause_s),)
    assert play.post(Cleared(may=True)) == (Climb(Rung.EVIDENCE),)
    assert play.post(Answered(Rung.EVIDENCE, "", "")) == (Climb(Rung.QUARANTINE), Probe())
    assert Climb(Rung.LIGHTHOUSE_KILL) in play.look()


def test_what_does_not_come_to_disk_in_time_asks_nobody() -> None:
    play = Play()
    play.post(HandedOver(play.now_s, accused()))
    play.now_s += TIMES.confirm_s
    assert play.post(Cleared(may=False)) == ()
    assert play.eviction.failed == "it could not be written down in time, so nobody was asked"


@pytest.mark.parametrize(
    ("stood", "progress", "life", "let_go"),
    [
        ({RANKS[0]: 7}, {RANKS[0]: 8}, "alive", True),
        ({RANKS[0]: 7}, {RANKS[0]: 7}, "alive", False),
        ({RANKS[0]: 7}, {RANKS[0]: 6}, "alive", False),
        ({RANKS[0]: 7}, {}, "alive", False),
        ({RANKS[0]: 7}, {RANKS[0]: 8}, "stuck", False),
        (dict.fromkeys(RANKS, 7), {RANKS[0]: 8}, "alive", False),
    ],
    ids=["moves", "stands", "went back", "not known", "moved and is stuck", "another stands"],
)
def test_who_moves_while_evidence_is_saved_is_let_go(stood, progress, life, let_go: bool) -> None:
    play = Play().begin(stood=stood)
    assert play.eviction.state is EvictionState.PREPARING
    play.post(Probed(look_at(dict.fromkeys(RANKS, life), progress=progress)))
    assert (play.eviction.failed == RECOVERED) is let_go
    assert (play.eviction.state is EvictionState.ASKING) is not let_go


def test_a_refused_one_asks_nobody_and_pages_nobody() -> None:
    play = Play().begin(refused="rg_1.0 has restarted since it was accused")
    assert (play.eviction.failed, play.eviction.rungs) == (
        "rg_1.0 has restarted since it was accused", (),
    )  # fmt: skip


def test_a_pause_ends_it_and_what_was_asked_is_unknown() -> None:
    play = Play("never answers").begin()
    play.look()
    assert play.post(Revoked("paused by a person")) == ()
    assert play.eviction.failed == "paused by a person"
    assert {rung_outcome.result for rung_outcome in play.eviction.rungs} == {
        RungResult.UNKNOWN,
        RungResult.WORKED,
    }
    assert play.look() == ()


def test_an_id_that_beats_on_long_after_its_processes_are_gone_is_a_failure() -> None:
    play = Play("does it").begin().play(2.0)
    assert play.eviction.state is EvictionState.CONFIRMED
    ended_s = play.eviction.ended_s
    play.now_s += TIMES.leave_s
    play.post(LighthouseSeen(VIEW))
    assert (play.eviction.state, play.eviction.ended_s) == (EvictionState.FAILED, ended_s)
    assert "still beats" in (play.eviction.failed or "")


def test_a_lost_host_is_let_go_once_its_heartbeat_is_dead() -> None:
    play = Play().begin()
    play.lives = dict.fromkeys(RANKS, Liveness.UNSEEN)
    play.lighthouse = replace(VIEW, heartbeat_ages_s={ID: 30.0})
    play.play(3.0)
    assert (play.eviction.state, play.eviction.gone_s) == (EvictionState.CONFIRMED, None)
    assert not play.eviction.out
    play.post(LighthouseSeen(LighthouseView(4, VIEW.members[1:], {}, "")))
    assert play.eviction.out


def test_a_group_of_which_no_worker_server_is_known_goes_with_its_heartbeat() -> None:
    play = Play().begin(accused=())
    play.lives = {}
    play.look()
    assert len(play.asks(Rung.LIGHTHOUSE_KILL)) == 1
    play.lighthouse = replace(VIEW, heartbeat_ages_s={ID: 30.0})
    play.play(1.0)
    assert (play.eviction.state, play.eviction.gone_s) == (EvictionState.CONFIRMED, None)
    assert play.eviction.shown == ("its heartbeat ended; no WorkerServer of it is known",)


def out_of_sight(kind: str = "does it", only: Rung | None = Rung.SCHEDULER, **more) -> Play:
    """All its ranks are silent, and so is its heartbeat."""
    play = Play(kind, only)
    play.eviction = replace(play.eviction, lost={Host("node1"): True}, **more)
    play.lives = dict.fromkeys(RANKS, Liveness.UNSEEN)
    play.lighthouse = replace(VIEW, heartbeat_ages_s={ID: 30.0}, expired=frozenset({ID}))
    return play


def test_a_lost_groups_scheduler_is_asked_at_once_and_its_word_ends_it() -> None:
    play = out_of_sight("never answers").begin()
    play.look()
    assert [whom for _, whom in play.asks(Rung.SCHEDULER)] == ["slurm"]
    assert outcome(play.eviction, Rung.GATE) is not None
    play.play(20.0)
    assert play.eviction.under_way, "out of sight and not removed is not out"
    play.post(Answered(Rung.SCHEDULER, "slurm", "deleted pod a/b by force", done=True))
    play.play(1.0)
    assert (play.eviction.state, play.eviction.gone_s) == (EvictionState.CONFIRMED, None)
    assert play.eviction.shown == ("nothing of it is heard; slurm: deleted pod a/b by force",)


def test_a_lost_group_of_which_no_replica_id_is_known_is_ended_too() -> None:
    play = out_of_sight("never answers", replica_id=None).begin()
    play.look()
    play.post(Answered(Rung.SCHEDULER, "slurm", "cancelled job 12", done=True))
    play.play(1.0)
    assert play.eviction.state is EvictionState.CONFIRMED


def test_a_lost_group_that_its_scheduler_cannot_end_is_a_persons_case() -> None:
    play = out_of_sight("refuses").begin().play(TIMES.lost_s + 1.0)
    assert play.eviction.state is EvictionState.ASKING, "Kubernetes needs its time"
    play.play(TIMES.confirm_s)
    assert play.eviction.state is EvictionState.FAILED
    assert play.eviction.failed == "rg_1 is gone, and not removed: slurm: answered"
    assert outcome(play.eviction, Rung.PAGE).detail == "handed to pager"


def test_a_lost_group_that_is_in_sight_again_is_let_go_before_anybody_is_asked() -> None:
    play = out_of_sight().begin()
    play.lives[RANKS[1]] = Liveness.ALIVE
    play.look()
    assert (play.eviction.state, play.eviction.failed) == (EvictionState.FAILED, RECOVERED)
    assert play.asked == []
    assert outcome(play.eviction, Rung.PAGE) is None


def test_what_lives_beside_a_lost_host_is_ended_before_its_scheduler_is_asked() -> None:
    play = out_of_sight("never answers").begin()
    play.eviction = replace(play.eviction, lost={Host("node2"): True})  # it is not seen to be back
    play.lives[RANKS[1]] = Liveness.ALIVE
    play.look()
    assert play.asks(Rung.SCHEDULER) == []
    assert (RANKS[1] in {whom for _, whom in play.asks(Rung.WORKER_EVICT)}) is True
    play.lives[RANKS[1]] = Liveness.GONE
    play.look()
    assert len(play.asks(Rung.SCHEDULER)) == 1


@pytest.mark.parametrize("away", [LighthouseAway("refused"), VIEW], ids=["away", "there"])
def test_the_gate_shows_who_is_out_while_the_lighthouse_is_away(away) -> None:
    play = Play().begin()
    play.lives, play.lighthouse = dict.fromkeys(RANKS, Liveness.UNSEEN), away
    play.more |= {"refused_for_s": 60.0}
    play.play(3.0)
    assert play.eviction.state is EvictionState.CONFIRMED
    assert play.eviction.out is (away is not VIEW), "the Lighthouse's word counts first"


def test_who_left_the_quorum_and_lives_on_is_not_out() -> None:
    play = Play().begin()
    play.lighthouse = replace(VIEW, members=VIEW.members[1:])
    play.play(60.0)
    assert play.eviction.left_quorum_s is not None
    assert (play.eviction.state, play.eviction.out) == (EvictionState.FAILED, False)


def test_the_next_attempt_asks_again_and_keeps_what_the_first_did() -> None:
    play = Play("never answers").begin().play(3.0)
    first = play.eviction
    play.post(Interrupted())
    assert (play.eviction.state, play.look()) == (EvictionState.INTERRUPTED, ())
    play.eviction = replace(play.eviction, state=EvictionState.DECIDED, attempt=2, asks=())
    play.begin()
    assert play.eviction.rungs == first.rungs
    play.look()
    assert len(play.asks(Rung.LIGHTHOUSE_KILL)) == 2
    assert play.eviction.key == first.key


def test_what_is_stored_is_what_goes_on() -> None:
    play = Play().begin().play(15.0)
    assert from_plain(Eviction, to_plain(play.eviction)) == play.eviction


def test_without_gate_and_scheduler_only_the_lighthouse_and_the_workers_are_asked() -> None:
    play = Play(deps=EvictionDeps()).begin().play(60.0)
    assert {rung for _, rung, _ in play.asked} == {Rung.LIGHTHOUSE_KILL, Rung.WORKER_EVICT}


@pytest.mark.parametrize(
    ("view", "refused_for_s", "silent"),
    [
        (LighthouseAway("refused"), None, False),
        (LighthouseAway("refused"), 4.0, False),
        (LighthouseAway("refused"), 6.0, True),
        (VIEW, None, False),
        (replace(VIEW, heartbeat_ages_s={ID: 6.0}), None, True),
    ],
)
def test_it_is_silent_by_the_lighthouses_word_or_by_the_gates(view, refused_for_s, silent) -> None:
    assert LighthouseSeen(view, refused_for_s).silent(ID, 5.0) is silent


# -- a gentle end --------------------------------------------------------------------------------

PARK = EndManner("park", gently_s=5.0, grace_s=5.0)


def test_a_rank_that_trains_is_asked_by_its_worker_server_before_the_kill_button() -> None:
    play = Play("never answers", Rung.WORKER_EVICT)
    play.eviction = replace(play.eviction, manner=PARK)
    play.begin().play(30.0)
    workers, kills = play.asks(Rung.WORKER_EVICT), play.asks(Rung.LIGHTHOUSE_KILL)
    assert [whom for _, whom in workers] == list(RANKS)
    (kill,) = kills
    assert kill[0] - workers[0][0] == pytest.approx(13.0, abs=0.3), "gentle part, grace, slack"


def test_one_that_ends_gently_never_meets_the_kill_button() -> None:
    play = Play("does it", Rung.WORKER_EVICT)
    play.eviction = replace(play.eviction, manner=PARK)
    play.begin().play(30.0)
    assert play.eviction.state is EvictionState.CONFIRMED
    assert play.asks(Rung.LIGHTHOUSE_KILL) == []


def test_the_gentler_the_longer_it_may_take() -> None:
    assert ALL.given_s(replace(fresh(), manner=PARK)) - ALL.given_s(fresh()) == 9.0
    play = Play("refuses")
    play.eviction = replace(play.eviction, manner=PARK)
    play.begin().play(90.0)
    ended = outcome(play.eviction, Rung.WORKER_EVICT)
    assert ended is not None
    assert ended.deadline_s == TIMES.worker_s + 9.0
    (first, *_) = play.asks(Rung.SCHEDULER)
    assert first[0] - play.asks(Rung.WORKER_EVICT)[0][0] == pytest.approx(18.0, abs=0.3)
