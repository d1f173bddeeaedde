"""Another order of calls, seen in the queues behind another fault."""

from __future__ import annotations

import pytest

from monitor.records.analyse import analyse
from monitor.records.findings import Fault
from tests.monitor.records.analyse.jobs import Call, job, recv

LOSS = Call("metrics", size=1, site="train.py:52 log_loss")
GRADS = Call(size=64, site="ddp.py:140 reduce_bucket")
FORWARD = Call("tp", size=16)
GROUPS = {"metrics": (0, 1, 2, 3), "tp": (0, 1, 2, 3)}


def called(odd: list[Call], before: tuple[Call, ...] = ()) -> dict[int, list[Call]]:
    """Ranks 1 to 4; rank 3 is stuck in a wrong size before, rank 0 goes on as `odd`."""
    usual = [*before, FORWARD.open(), GRADS.open(), LOSS.open()]
    wrong = [*before, Call("tp", size=17).open(), *usual[-2:]]
    return {0: [*before, FORWARD.open(), *odd], 1: usual, 2: usual, 3: wrong}


def test_another_order_is_named_although_nobody_has_come_to_it() -> None:
    found = analyse(job(called([LOSS.open(), GRADS.open()]), GROUPS, waited_s=60))
    kinds = {one.kind: one.culprits for one in found.findings}
    assert kinds == {Fault.MISMATCH: (3,), Fault.ORDER_INVERSION: (0,)}
    reasons = {one.kind: one.reason for one in found.findings}
    assert reasons[Fault.ORDER_INVERSION] == (
        "rank 0 called all_reduce 1 of metrics at train.py:52 (log_loss) before all_reduce 1 of "
        "world at ddp.py:140 (reduce_bucket), and ranks 1, 2 and 3 called them the other way "
        "round: it takes another order."
    )


def test_an_order_that_a_rank_always_takes_is_its_own() -> None:
    ranks = called([LOSS.open(), GRADS.open()])
    own, usual = [FORWARD, LOSS, GRADS], [FORWARD, GRADS, LOSS]
    past = {r: (own if r == 0 else usual) * 3 for r in ranks}
    found = analyse(job({r: [*past[r], *ranks[r]] for r in ranks}, GROUPS, waited_s=60))
    assert found.culprits == (3,)


@pytest.mark.parametrize("waited_s", [None, 2.0])
def test_a_running_job_may_queue_in_any_order(waited_s: float | None) -> None:
    ranks = called([LOSS.open(), GRADS.open()]) | {3: called([])[1]}
    assert not analyse(job(ranks, GROUPS, waited_s=waited_s)).culprits


def test_two_in_common_have_no_majority() -> None:
    groups = {"metrics": (0, 1), "tp": (0, 1, 2, 3)}
    ranks = called([LOSS.open(), GRADS.open()])
    ranks |= {2: [FORWARD.open(), GRADS.open()], 3: [Call("tp", size=17).open(), GRADS.open()]}
    assert analyse(job(ranks, groups, waited_s=60)).culprits == (3,)


def test_who_queues_behind_settles_a_tie_of_those_who_are_stuck() -> None:
    dp, held = Call("dp", size=4).open(), Call("tp", size=2).open()
    world = Call().open()
    ranks = {0: [world, dp], 1: [dp, world], 2: [held, dp, world], 3: [held.begun(), world]}
    ranks |= {4: [Call("tp", size=3).open(), world], 5: [held, world]}
    found = analyse(job(ranks, {"dp": (0, 1, 2), "tp": (2, 3, 4, 5)}, waited_s=60))
    kinds = {one.kind: one.culprits for one in found.findings}
    assert kinds == {Fault.MISMATCH: (4,), Fault.ORDER_INVERSION: (0,)}


STEP = [Call(size=64, site="ddp.py:140 reduce"), Call("metrics", size=1, site="train.py:52 log")]
PAIR = {"metrics": (0, 1)}


def test_who_receives_where_it_always_reduced_is_named_of_two_that_wait_for_each_other() -> None:
    ranks = {0: [*STEP * 4, recv(1).open()], 1: [*STEP * 4, STEP[0].open()]}
    (found,) = analyse(job(ranks, PAIR, waited_s=60)).findings
    assert (found.kind, found.culprits, found.victims) == (Fault.POINT_TO_POINT, (0,), (1,))
    assert found.reason.endswith("rank 0 never called that at this place before.")


def test_two_that_always_transfer_and_reduce_tie() -> None:
    ranks = {0: [STEP[0], recv(1).open()], 1: [STEP[0], STEP[0].open()]}
    (found,) = analyse(job(ranks, PAIR, waited_s=60)).findings
    assert (found.culprits, found.between) == ((), ((0,), (1,)))
