"""Several faults at once: one must not hide another, nor make its victims look guilty."""

from __future__ import annotations

from monitor.analysis.analyse import analyse
from monitor.analysis.finding import Fault
from tests.monitor.analysis.jobs import Call, job


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
