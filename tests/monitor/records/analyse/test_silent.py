"""Ranks without a record."""

from __future__ import annotations

from monitor.model.verdict import Confidence
from monitor.records.analyse import analyse
from monitor.records.findings import Fault
from tests.monitor.records.analyse.jobs import Call, job


def test_the_silent_rank_is_named_when_nothing_else_explains_the_wait() -> None:
    (one,) = analyse(job({r: [Call(), Call().open()] for r in (0, 1, 2)}, silent=[3])).findings
    assert (one.kind, one.culprits, one.victims) == (Fault.SILENT, (3,), (0, 1, 2))


def test_a_silent_rank_is_not_named_where_another_explains_the_wait() -> None:
    calls = {0: [Call(), Call().open()], 1: [Call(), Call().open()], 2: [Call()]}
    found = analyse(job(calls, silent=[3]))
    assert found.culprits == (2,)
    assert found.notes[1:] == ("No record of rank 3.",)


def test_a_silent_rank_that_nobody_waits_for_is_a_note() -> None:
    found = analyse(job({r: [Call()] for r in range(3)}, silent=[3]))
    assert found.findings == ()


def test_each_of_two_silent_ranks_is_named_when_something_waits_for_it_alone() -> None:
    groups = {"a": (0, 1, 6), "b": (2, 3, 7)}
    calls = {r: [Call().open(), Call("a").open()] for r in (0, 1)}
    calls |= {r: [Call().open(), Call("b").open()] for r in (2, 3)}
    calls |= {r: [Call().open()] for r in (4, 5)}
    (one,) = analyse(job(calls, groups, silent=[6, 7])).findings
    assert one.culprits == (6, 7)


def test_of_many_silent_ranks_nobody_is_named() -> None:
    calls = {r: [Call().open()] for r in range(4)}
    (one,) = analyse(job(calls, silent=[4, 5, 6, 7])).findings
    assert (one.confidence, one.culprits) == (Confidence.UNSURE, ())
    assert one.between == ((4,), (5,), (6,), (7,))


def test_a_silent_rank_may_be_the_victim_of_a_fault_that_nobody_is_blamed_for() -> None:
    # a link fails in the second stage; the first one waits for it, and one of its records is lost
    groups = {"stage1": (0, 1, 2), "stage2": (3, 4), "pipe": (2, 3)}
    called = {r: [Call("stage1"), Call("stage1").open()] for r in (0, 1)}
    called |= {3: [Call("stage2").open()], 4: [Call("stage2").open()]}
    found = analyse(job(called, groups, silent=[2], waited_s=60))
    assert not found.culprits


def test_a_silent_rank_does_not_hold_up_what_others_got_out_of() -> None:
    called = {r: [Call(), Call().open()] for r in (0, 1, 2)}
    called |= {r: [Call(), Call(), Call("tp").open(), Call().open()] for r in (3, 4)}
    assert not analyse(job(called, {"tp": (0, 3, 4)}, silent=[5], only_active=True)).culprits
