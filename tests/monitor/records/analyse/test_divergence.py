"""Members that do not do the same."""

from __future__ import annotations

import pytest

from monitor.model.verdict import Confidence
from monitor.records.analyse import analyse
from monitor.records.findings import Fault
from tests.monitor.records.analyse.jobs import Call, job, many, recv, send


@pytest.mark.parametrize(
    "odd",
    [Call(size=9), Call(op="broadcast"), Call(dtype="float64"), Call(op="all_gather")],
    ids=["size", "op", "dtype", "all_gather"],
)
def test_the_minority_is_named_with_what_it_called(odd: Call) -> None:
    calls = {r: [Call(), Call().open()] for r in range(4)} | {2: [Call(), odd.open()]}
    (one,) = analyse(job(calls)).findings
    assert (one.kind, one.culprits, one.victims) == (Fault.MISMATCH, (2,), (0, 1, 3))
    assert one.sequence == 2


def test_another_root_is_a_mismatch_where_roots_are_recorded() -> None:
    calls = {r: [Call(op="broadcast", root=0).open()] for r in range(3)}
    calls[1] = [Call(op="broadcast", root=1).open()]
    (one,) = analyse(job(calls)).findings
    assert (one.kind, one.culprits) == (Fault.MISMATCH, (1,))


@pytest.mark.parametrize("members", [2, 4, 6])
def test_a_tie_accuses_nobody(members: int) -> None:
    calls = {r: [Call(), Call(size=8 + r % 2).open()] for r in range(members)}
    (one,) = analyse(job(calls)).findings
    assert (one.kind, one.confidence, one.culprits) == (Fault.MISMATCH, Confidence.UNSURE, ())
    evens, odds = tuple(range(0, members, 2)), tuple(range(1, members, 2))
    assert one.between == (evens, odds)


def test_the_past_settles_a_tie() -> None:
    step = [Call(site="a.py:1 step"), Call(size=4, site="a.py:2 step")]
    calls = {r: [*step * 3, Call(site="a.py:1 step").open()] for r in range(2)}
    calls[1] = [*step * 3, Call(size=9, site="a.py:1 step").open()]
    (one,) = analyse(job(calls)).findings
    assert (one.kind, one.culprits) == (Fault.MISMATCH, (1,))


def test_same_bytes_of_another_dtype_are_found_although_nothing_hangs() -> None:
    calls = {r: many(3) for r in range(4)} | {3: [Call(), Call(dtype="int32"), Call()]}
    (one,) = analyse(job(calls)).findings
    assert (one.kind, one.culprits, one.sequence) == (Fault.SILENT_MISMATCH, (3,), 2)


def _mixed(*sizes: int) -> list[Call]:
    return [Call(size=size) for size in sizes]


def test_a_skipped_collective_is_told_from_a_wrong_size() -> None:
    calls = {r: [*_mixed(1, 2), *(c.open() for c in _mixed(3, 4, 5))] for r in range(4)}
    calls[1] = [*_mixed(1, 2), *(c.open() for c in _mixed(4, 5))]
    (one,) = analyse(job(calls)).findings
    assert (one.kind, one.culprits, one.sequence) == (Fault.SKIPPED, (1,), 3)


def test_an_extra_collective_is_told_from_a_wrong_size() -> None:
    calls = {r: [*_mixed(1, 2), *(c.open() for c in _mixed(3, 4, 5))] for r in range(4)}
    calls[1] = [*_mixed(1, 2), *(c.open() for c in _mixed(9, 3, 4))]
    (one,) = analyse(job(calls)).findings
    assert (one.kind, one.culprits, one.sequence) == (Fault.EXTRA, (1,), 3)


def test_a_rank_that_did_not_come_is_named_beside_one_that_differs() -> None:
    calls = {r: [Call(), Call().open()] for r in range(6)}
    calls |= {2: [Call(), Call(size=9).open()], 4: [Call()]}
    found = analyse(job(calls))
    assert {one.kind: one.culprits for one in found.findings} == {
        Fault.MISMATCH: (2,),
        Fault.NOT_ENTERED: (4,),
    }


def test_half_before_and_half_after_tie_on_their_order() -> None:
    groups = {"a": (0, 1, 2, 3), "b": (0, 1, 2, 3)}
    calls = {0: [Call("a").open()], 1: [Call("a").open()],
             2: [Call("b").open()], 3: [Call("b").open()]}  # fmt: skip
    (one,) = analyse(job(calls, groups)).findings
    assert (one.kind, one.culprits) == (Fault.ORDER_INVERSION, ())
    assert one.between == ((0, 1), (2, 3))


def test_one_rank_that_takes_another_order_is_named() -> None:
    groups = {"a": (0, 1, 2, 3), "b": (0, 1, 2, 3)}
    order = [Call("a").open(), Call("b").open()]
    calls = {0: order, 1: order, 2: order[::-1], 3: order}
    (one,) = analyse(job(calls, groups)).findings
    assert (one.kind, one.culprits, one.victims) == (Fault.ORDER_INVERSION, (2,), (0, 1, 3))


def test_a_cycle_is_found_although_another_fault_holds_up_the_same_ranks() -> None:
    groups = {"a": (0, 1, 2, 3), "b": (0, 1, 2, 3), "c": (4, 5, 6)}
    order = [Call("a").open(), Call("b").open()]
    calls = {0: order, 1: order, 2: order[::-1], 3: order}
    calls |= {4: [Call("c").open()], 5: [Call("c").open()], 6: []}
    assert analyse(job(calls, groups)).culprits == (2, 6)


def test_transfers_and_collectives_of_one_rank_may_finish_in_any_order() -> None:
    calls = {0: [send(1), Call()], 1: [Call(), recv(0)], 2: [Call()]}
    assert analyse(job(calls)).findings == ()


def test_who_leaves_out_a_call_is_told_by_its_way_to_a_usual_one() -> None:
    step = [Call("tp", size=16), Call("tp", size=8), Call(size=4), Call(size=1)]
    left_out = [Call("tp", size=16), Call(size=4), Call(size=1).open()]
    called = {1: [*step * 3, *left_out], 2: [*step * 3, step[0], step[1].open(), step[2]]}
    called |= {r: [*step[2:] * 3, Call(size=4), Call(size=1).open()] for r in (3, 4)}
    found = analyse(job(called, {"tp": (0, 1, 2)}, silent=[0]))
    assert found.culprits == (1,)
