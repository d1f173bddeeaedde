"""Several faults at once: one must not hide another, nor make its victims look guilty."""

from __future__ import annotations

from monitor.records.analyse import analyse
from monitor.records.findings import Fault
from tests.monitor.records.analyse.jobs import Call, job


def test_another_order_does_not_follow_from_another_rank_s_wrong_size() -> None:
    world, tp = Call(), Call("tp", "all_gather")
    done = [tp, world]
    called = {r: [*done, tp.open()] for r in (1, 2, 3)}
    called |= {0: [*done, world.open()], 4: [world, world.open()]}
    called |= {5: [world, Call(size=9).open()], 6: [world, world.open()]}
    called |= {r: [world, world.open()] for r in (7, 8)}
    found = analyse(job(called, {"tp": (0, 1, 2, 3)}))
    kinds = {one.kind: one.culprits for one in found.findings}
    assert kinds == {Fault.ORDER_INVERSION: (0,), Fault.MISMATCH: (5,)}


def test_a_gpu_that_does_not_begin_is_named_beside_a_wrong_size_at_the_same_place() -> None:
    called = {r: [Call(), Call().begun()] for r in range(5)}
    called |= {5: [Call(), Call().open()], 6: [Call(), Call(size=9).begun()]}
    found = analyse(job(called, only_active=True))
    kinds = {one.kind: one.culprits for one in found.findings}
    assert kinds == {Fault.MISMATCH: (6,), Fault.GPU_BEHIND: (5,)}


def test_after_a_tie_who_differs_where_its_sides_agree_is_named() -> None:
    both = Call(size=16).open()
    called = {r: [Call(op="broadcast").open(), both] for r in (0, 1, 2)}
    called |= {3: [Call().open(), both]}
    called |= {r: [Call(op="broadcast"), both] for r in (4, 5, 6)}
    called |= {7: [Call(op="broadcast"), Call(size=17).open()]}
    found = analyse(job(called, only_active=True))
    tie, wrong = sorted(found.findings, key=lambda one: one.sequence or 0)
    assert (tie.kind, tie.between) == (Fault.MISMATCH, ((0, 1, 2), (3,)))
    assert (wrong.kind, wrong.culprits) == (Fault.MISMATCH, (7,))


def test_one_that_brings_a_wrong_size_does_not_hide_that_most_did_not_come() -> None:
    step = [Call(size=8), Call(size=16)]
    called = {r: [*step * 3, Call(size=8)] for r in range(5)}
    called |= {r: [*step * 3, Call(size=8), Call(size=16).open()] for r in (5, 6)}
    called |= {7: [*step * 3, Call(size=8), Call(size=17).open()]}
    found = analyse(job(called))
    kinds = {one.kind: one.culprits for one in found.findings}
    assert kinds == {Fault.NOT_ENTERED: (0, 1, 2, 3, 4), Fault.MISMATCH: (7,)}


def test_who_is_held_up_elsewhere_is_no_witness_that_a_call_is_one_too_many() -> None:
    tp, dp = Call("tp"), Call("dp")
    called = {0: [dp], 1: [dp, dp.open()], 2: [dp, tp, tp.open()], 3: [tp, tp.open()], 4: [tp]}
    assert analyse(job(called, {"dp": (0, 1, 2), "tp": (2, 3, 4)})).culprits == (0, 4)


def test_a_call_made_once_more_is_found_in_the_queues_behind_another_fault() -> None:
    step = [Call("tp", size=16), Call(size=8), Call(size=1)]
    queued = [one.open() for one in step]
    wrong = [Call("tp", size=17).open(), *queued[1:]]
    called = {r: [*step * 3, *queued] for r in (0, 1, 2)}
    called |= {3: [*step * 3, *wrong], 4: [*step * 3, *queued, Call(size=1).open()]}
    found = analyse(job(called, {"tp": (0, 1, 2, 3, 4)}, waited_s=60))
    kinds = {one.kind: one.culprits for one in found.findings}
    assert kinds == {Fault.MISMATCH: (3,), Fault.EXTRA: (4,)}


def test_a_rank_that_queued_what_comes_next_only_got_further() -> None:
    step = [Call("tp", size=16), Call(size=8), Call(size=1)]
    queued = [one.open() for one in step]
    called = {r: [*step * 3, *queued] for r in (0, 1, 2)}
    called |= {3: [*step * 3, Call("tp", size=17).open(), *queued[1:]]}
    called |= {4: [*step * 3, *queued, Call(size=2).open()]}
    found = analyse(job(called, {"tp": (0, 1, 2, 3, 4)}, waited_s=60))
    assert found.culprits == (3,)
