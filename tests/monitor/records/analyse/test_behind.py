"""Everybody came, and it does not end."""

from __future__ import annotations

from monitor.model.verdict import Confidence
from monitor.records.analyse import analyse
from monitor.records.findings import Fault
from tests.monitor.records.analyse.jobs import Call, job, many


def test_a_rank_that_does_not_finish_what_its_peers_finished_is_behind() -> None:
    peers = [*many(4), Call().open()]
    mine = [*many(2), *many(2, Call().open())]
    (one,) = analyse(job({0: peers, 1: peers, 2: mine, 3: peers})).findings
    assert (one.kind, one.culprits, one.victims) == (Fault.GPU_BEHIND, (2,), (0, 1, 3))
    assert one.sequence == 3


def test_two_ranks_behind_do_not_hide_each_other() -> None:
    peers = [*many(4), Call().open()]
    first, second = [*many(4, Call().open())], [*many(2), *many(2, Call().open())]
    found = analyse(job({0: peers, 1: peers, 2: first, 3: peers, 4: second}, only_active=True))
    assert found.culprits == (2, 4)
    assert found.findings[0].kind is Fault.GPU_BEHIND


def test_a_kernel_that_has_not_begun_where_the_others_have_is_behind() -> None:
    calls = {r: [Call(), Call().begun()] for r in range(4)} | {1: [Call(), Call().open()]}
    (one,) = analyse(job(calls, waited_s=60)).findings
    assert (one.kind, one.culprits) == (Fault.GPU_BEHIND, (1,))
    assert analyse(job(calls)).findings == ()  # the next moment it may begin


def test_where_all_are_equal_it_is_the_group_and_no_rank() -> None:
    calls = {r: [Call(), Call().open()] for r in range(4)}
    (one,) = analyse(job(calls, waited_s=60)).findings
    assert (one.kind, one.confidence) == (Fault.STUCK_INSIDE, Confidence.UNSURE)
    assert one.between == ((0,), (1,), (2,), (3,))


def test_a_collective_in_progress_is_no_finding_when_nobody_knows_for_how_long() -> None:
    found = analyse(job({r: [Call(), Call().open()] for r in range(4)}))
    assert found.findings == ()


def test_what_ended_everywhere_by_an_error_timed_out() -> None:
    (one,) = analyse(job({r: [Call(), Call().failed()] for r in range(3)})).findings
    assert (one.kind, one.culprits) == (Fault.TIMED_OUT, ())


def test_an_error_that_a_rank_got_over_is_past() -> None:
    assert analyse(job({r: [Call().failed(), Call()] for r in range(3)})).findings == ()


def test_an_error_of_those_who_waited_does_not_clear_who_did_not_come() -> None:
    calls = {0: [Call(), Call().failed()], 1: [Call(), Call().failed()], 2: [Call()]}
    assert analyse(job(calls)).culprits == (2,)


def test_one_that_got_out_alone_unseen_does_not_accuse_those_who_did_not() -> None:
    # it may have sent a broadcast where they reduce; such a record no longer shows it
    called = {0: [Call(), Call("tp"), Call("tp").open()]}
    called |= {r: [Call(), Call("tp").open()] for r in (1, 2)}
    called |= {r: [Call(), Call().open()] for r in (3, 4, 5, 6)}
    found = analyse(job(called, {"tp": (0, 1, 2)}, only_active=True, waited_s=60))
    assert not found.culprits


def test_the_last_one_inside_a_broadcast_is_behind_those_who_have_what_was_sent() -> None:
    sent = Call(op="broadcast")
    called = {r: [Call(), sent, Call().open()] for r in (0, 1, 3)}
    called |= {2: [Call(), sent.open(), Call().open()]}
    (one,) = analyse(job(called, waited_s=60)).findings
    assert (one.kind, one.culprits, one.victims) == (Fault.GPU_BEHIND, (2,), (0, 1, 3))


def test_two_inside_a_broadcast_may_wait_for_each_other() -> None:
    sent = Call(op="broadcast")
    called = {r: [Call(), sent, Call().open()] for r in (0, 3, 4)}
    called |= {r: [Call(), sent.open(), Call().open()] for r in (1, 2)}
    assert not analyse(job(called, waited_s=60)).culprits


def test_the_last_one_inside_a_broadcast_may_wait_for_one_that_nobody_hears_of() -> None:
    sent = Call(op="broadcast")
    called = {r: [Call(), sent, Call().open()] for r in (0, 3, 4)}
    called |= {2: [Call(), sent.open(), Call().open()]}
    assert 2 not in analyse(job(called, silent=[1], waited_s=60)).culprits
