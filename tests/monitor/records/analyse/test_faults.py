"""Each row a small job, and all that is said of it: who is accused, of what, and who only waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from lightkeeper.monitor.records.analyse import analyse
from lightkeeper.monitor.records.findings import Fault
from lightkeeper.monitor.records.job import Backend, GroupStatus, Job
from tests.monitor.records.analyse.jobs import WORLD, Call, job, many, recv, send, whole

Calls = Mapping[int, Sequence[Call]]
Groups = Mapping[str, Sequence[int]]


def says(kind: Fault, *culprits: int, **more: Any) -> dict[str, Any]:
    """A finding, as far as a row tells it."""
    return {"kind": kind, "culprits": culprits, **more}


def row(name: str, calls: Calls, *expected: Any, groups: Groups | None = None, **how: Any) -> Any:
    return pytest.param(job(calls, groups, **how), expected, id=name)


def each(ranks: Sequence[int], *calls: Call) -> dict[int, list[Call]]:
    return {rank: list(calls) for rank in ranks}


DONE, OPEN, BEGUN = Call(), Call().open(), Call().begun()
TP, DP, SENT = Call("tp"), Call("dp"), Call(op="broadcast")
A, B = Call("a").open(), Call("b").open()


def sizes(*sizes: int) -> list[Call]:
    return [Call(size=size) for size in sizes]


# -- a rank that does not come ---------------------------------------------------------------------

TP_PAIRS = {"tp0": (0, 1), "tp1": (2, 3)}
STEP = [Call(site="a.py:1 step"), Call(size=4, site="a.py:2 step")]
LAUNCHED = {rank: {WORLD: GroupStatus(2, -1, 1)} for rank in (0, 1, 2)}

ABSENT = [
    row(
        "even when it is rank zero",
        {0: many(3), **each((1, 2, 3), *many(3), OPEN)},
        says(Fault.NOT_ENTERED, 0, victims=(1, 2, 3), group=0, sequence=4, op="all_reduce", reason=(
            "rank 0 has not entered all_reduce 4 of world, nor anything else: ranks 1, 2 and 3 "
            "wait there. Its last call was all_reduce 3 of world."
        )),
    ),
    row(
        "who waits for a waiting rank is a victim",
        {0: [Call("tp0"), DP], 1: [Call("tp0"), DP, Call("tp0").open()],
         **each((2, 3), Call("tp1"), DP, Call("tp1"), DP.open())},
        says(Fault.NOT_ENTERED, 0, victims=(1, 2, 3)),
        groups={**TP_PAIRS, "dp": (1, 2, 3)},
    ),
    row(
        "a CPU that launched less in several groups does not enqueue",
        {**each((0, 1), DONE, OPEN, Call("more").open(), OPEN), 2: [DONE]},
        says(Fault.NOT_ENQUEUING, 2), groups={"more": (0, 1, 2)},
    ),
    row(
        "counters speak for a rank without entries",
        {**each((0, 1, 2), DONE, OPEN), 3: [DONE]}, says(Fault.NOT_ENQUEUING, 3),
        only_active=True, status=LAUNCHED | {3: {WORLD: GroupStatus(1, -1, 1)}},
    ),
    row(
        "counters of a group with transfers are not believed",
        {**each((0, 1), DONE, OPEN), 2: [DONE, OPEN, send(3)], 3: [DONE]},
        says(Fault.NOT_ENQUEUING, 3),
        only_active=True, status=LAUNCHED | {3: {WORLD: GroupStatus(9, -1, 9)}},
    ),
    row(
        "two that the same collective misses are one finding",
        {**each(range(6), DONE, OPEN), **each((6, 7), DONE)}, says(Fault.NOT_ENTERED, 6, 7),
    ),
    row(
        "two that stopped in different places are both named",
        {**each((0, 1), A), **each((3, 4), B), 2: [], 5: []},
        says(Fault.NOT_ENTERED, 2), says(Fault.NOT_ENTERED, 5),
        groups={"a": (0, 1, 2), "b": (3, 4, 5)},
    ),
    row(
        "a recv that nobody answers names the peer",
        {0: [DONE, recv(1)], **each((1, 2), DONE)}, says(Fault.POINT_TO_POINT, 1, victims=(0,)),
    ),
    row(
        "a chain of transfers leads to its end",
        {0: [recv(1)], 1: [recv(2)], 2: [recv(3)], 3: []},
        says(Fault.POINT_TO_POINT, 3, victims=(0, 1, 2)),
    ),
    row(
        "sends that wait for each other accuse nobody",
        {0: [send(1)], 1: [send(0)], 2: []}, says(Fault.POINT_TO_POINT, between=((0,), (1,))),
    ),
    *(
        row(
            f"a call that one of {size} makes at the end accuses nobody without a past",
            {**each(range(size), *many(3)), 1: [*many(3), OPEN]},
            says(Fault.NOT_ENTERED, between=((0, *range(2, size)), (1,))),
        )
        for size in (4, 5, 8)
    ),
    row(
        "a call too many at the end is found by the past",
        {**each((0, 1, 3), *STEP * 4), 2: [*STEP * 4, STEP[1].open()]}, says(Fault.EXTRA, 2),
    ),
    row(
        "most may be missing from a call that is usual",
        {**each((0, 1, 3), *STEP * 4), 2: [*STEP * 4, STEP[0].open()]},
        says(Fault.NOT_ENTERED, 0, 1, 3),
    ),
]  # fmt: skip

# -- everybody came, and it does not end -----------------------------------------------------------

AHEAD = [*many(4), OPEN]
BEHIND = [
    row(
        "who does not finish what its peers finished",
        {**each((0, 1, 3), *AHEAD), 2: [*many(2), *many(2, OPEN)]},
        says(Fault.GPU_BEHIND, 2, victims=(0, 1, 3), sequence=3),
    ),
    row(
        "two behind do not hide each other",
        {**each((0, 1, 3), *AHEAD), 2: many(4, OPEN), 4: [*many(2), *many(2, OPEN)]},
        says(Fault.GPU_BEHIND, 2, 4), only_active=True,
    ),
    row(
        "a kernel that has not begun where the others have",
        {**each((0, 2, 3), DONE, BEGUN), 1: [DONE, OPEN]}, says(Fault.GPU_BEHIND, 1), waited_s=60,
    ),
    row("the next moment it may begin", {**each((0, 2, 3), DONE, BEGUN), 1: [DONE, OPEN]}),
    row(
        "where all are equal it is the group and no rank",
        each(range(4), DONE, OPEN), says(Fault.STUCK_INSIDE, between=((0,), (1,), (2,), (3,))),
        waited_s=60,
    ),
    row("nobody knows for how long it lasts", each(range(4), DONE, OPEN)),
    row("what ended everywhere by an error", each(range(3), DONE, Call().failed()),
        says(Fault.TIMED_OUT)),
    row("an error that a rank got over is past", each(range(3), Call().failed(), DONE)),
    row(
        "an error of those who waited does not clear who did not come",
        {**each((0, 1), DONE, Call().failed()), 2: [DONE]}, says(Fault.NOT_ENTERED, 2),
    ),
    row(
        "the last one inside a broadcast, of those who have what was sent",
        {**each((0, 1, 3), DONE, SENT, OPEN), 2: [DONE, SENT.open(), OPEN]},
        says(Fault.GPU_BEHIND, 2, victims=(0, 1, 3)), waited_s=60,
    ),
]  # fmt: skip

# -- members that do not do the same ---------------------------------------------------------------

AB = {"a": (0, 1, 2, 3), "b": (0, 1, 2, 3)}
DIFFERENT = [
    *(
        row(
            f"the minority with another {what}",
            {**each((0, 1, 3), DONE, OPEN), 2: [DONE, odd.open()]},
            says(Fault.MISMATCH, 2, victims=(0, 1, 3), sequence=2),
        )
        for what, odd in {
            "size": Call(size=9), "op": SENT, "dtype": Call(dtype="float64"),
            "family": Call(op="all_gather"),
        }.items()
    ),
    row(
        "another root where roots are recorded",
        {**each((0, 2), replace(SENT, root=0).open()), 1: [replace(SENT, root=1).open()]},
        says(Fault.MISMATCH, 1),
    ),
    *(
        row(
            f"a tie of {members} accuses nobody",
            {r: [DONE, Call(size=8 + r % 2).open()] for r in range(members)},
            says(Fault.MISMATCH, between=(
                tuple(range(0, members, 2)), tuple(range(1, members, 2)),
            )),
        )
        for members in (2, 4, 6)
    ),
    row(
        "the past settles a tie",
        {0: [*STEP * 3, STEP[0].open()], 1: [*STEP * 3, replace(STEP[0], size=9).open()]},
        says(Fault.MISMATCH, 1),
    ),
    row(
        "same bytes of another dtype although nothing hangs",
        {**each(range(3), *many(3)), 3: [DONE, Call(dtype="int32"), DONE]},
        says(Fault.SILENT_MISMATCH, 3, sequence=2),
    ),
    row(
        "a call left out is no wrong size",
        {**each((0, 2, 3), *sizes(1, 2), *(c.open() for c in sizes(3, 4, 5))),
         1: [*sizes(1, 2), *(c.open() for c in sizes(4, 5))]},
        says(Fault.SKIPPED, 1, sequence=3),
    ),
    row(
        "a call too many is no wrong size",
        {**each((0, 2, 3), *sizes(1, 2), *(c.open() for c in sizes(3, 4, 5))),
         1: [*sizes(1, 2), *(c.open() for c in sizes(9, 3, 4))]},
        says(Fault.EXTRA, 1, sequence=3),
    ),
    row(
        "one that did not come beside one that differs",
        {**each((0, 1, 3, 5), DONE, OPEN), 2: [DONE, Call(size=9).open()], 4: [DONE]},
        says(Fault.MISMATCH, 2), says(Fault.NOT_ENTERED, 4),
    ),
    row(
        "half before and half after tie on their order",
        {**each((0, 1), A), **each((2, 3), B)},
        says(Fault.ORDER_INVERSION, between=((0, 1), (2, 3))), groups=AB,
    ),
    row(
        "one that takes another order",
        {**each((0, 1, 3), A, B), 2: [B, A]}, says(Fault.ORDER_INVERSION, 2, victims=(0, 1, 3)),
        groups=AB,
    ),
    row(
        "transfers and collectives of one rank may finish in any order",
        {0: [send(1), DONE], 1: [DONE, recv(0)], 2: [DONE]},
    ),
]  # fmt: skip

# -- another order, seen in the queues behind another fault ----------------------------------------

LOSS = Call("metrics", size=1, site="train.py:52 log_loss").open()
GRADS = Call(size=64, site="ddp.py:140 reduce_bucket").open()
FORWARD = Call("tp", size=16).open()
QUEUES = {"metrics": (0, 1, 2, 3), "tp": (0, 1, 2, 3)}
WRONG = Call("tp", size=17).open()
SENDS, RECEIVES, TAKES, GIVES = (
    replace(call, state=DONE.state) for call in (send(1), recv(1), recv(0), send(0))
)
PAIR = [Call(size=64, site="ddp.py:140 reduce"), Call("metrics", size=1, site="train.py:52 log")]
HELD = Call("tp", size=2).open()
STAGE_0 = [PAIR[0], SENDS, SENDS, RECEIVES, SENDS, RECEIVES, RECEIVES]
STAGE_1 = [PAIR[0], TAKES, GIVES, TAKES, GIVES, TAKES, GIVES]

QUEUED = [
    row(
        "it is named although nobody has come to it",
        {0: [FORWARD, LOSS, GRADS], **each((1, 2), FORWARD, GRADS, LOSS), 3: [WRONG, GRADS, LOSS]},
        says(Fault.ORDER_INVERSION, 0, reason=(
            "rank 0 called all_reduce 1 of metrics at train.py:52 (log_loss) before all_reduce 1 "
            "of world at ddp.py:140 (reduce_bucket), and ranks 1, 2 and 3 called them the other "
            "way round: it takes another order."
        )),
        says(Fault.MISMATCH, 3), groups=QUEUES, waited_s=60,
    ),
    row(
        "who queues behind settles a tie of those who are stuck",
        {0: [OPEN, DP.open()], 1: [DP.open(), OPEN], 2: [HELD, DP.open(), OPEN],
         3: [HELD.begun(), OPEN], 4: [Call("tp", size=3).open(), OPEN], 5: [HELD, OPEN]},
        says(Fault.ORDER_INVERSION, 0), says(Fault.MISMATCH, 4),
        groups={"dp": (0, 1, 2), "tp": (2, 3, 4, 5)}, waited_s=60,
    ),
    row(
        "who receives where it always reduced, of two that wait for each other",
        {0: [*PAIR * 4, recv(1).open()], 1: [*PAIR * 4, PAIR[0].open()]},
        says(Fault.POINT_TO_POINT, 0, victims=(1,), reason=(
            "rank 0 is in the transfer from rank 1 to rank 0 in world and rank 1 is in "
            "all_reduce 5 of world at ddp.py:140 (reduce), and each waits for the other: rank 0 "
            "has never called in this order before: it left out a call, or made another."
        )),
        groups={"metrics": (0, 1)}, waited_s=60,
    ),
    row(
        "who leaves out a micro-batch, though it then calls what it always called at its end",
        {0: [*STAGE_0 * 4, *STAGE_0[:4], STAGE_0[3], PAIR[0].open()],
         1: [*STAGE_1 * 4, *STAGE_1[:5], recv(0)]},
        says(Fault.POINT_TO_POINT, 0, victims=(1,)), waited_s=60,
    ),
    row(
        "two that always transfer and reduce tie",
        {0: [PAIR[0], recv(1).open()], 1: [PAIR[0], PAIR[0].open()]},
        says(Fault.ORDER_INVERSION, between=((0,), (1,))),
        groups={"metrics": (0, 1)}, waited_s=60,
    ),
]  # fmt: skip

# -- several faults at once: one must not hide another, nor make its victims look guilty -----------

LAYER = [Call("tp", size=16), Call(size=8), Call(size=1)]
QUEUE = [call.open() for call in LAYER]
FIVE = {"tp": (0, 1, 2, 3, 4)}
EIGHT = [Call(size=8), Call(size=16)] * 3 + [Call(size=8)]
AFTER = Call(size=16).open()
GATHER = Call("tp", "all_gather")

SEVERAL = [
    row(
        "another order does not follow from another rank's wrong size",
        {0: [GATHER, DONE, OPEN], **each((1, 2, 3), GATHER, DONE, GATHER.open()),
         5: [DONE, Call(size=9).open()], **each((4, 6, 7, 8), DONE, OPEN)},
        says(Fault.MISMATCH, 5), says(Fault.ORDER_INVERSION, 0), groups={"tp": (0, 1, 2, 3)},
    ),
    row(
        "a GPU that does not begin beside a wrong size at the same place",
        {**each(range(5), DONE, BEGUN), 5: [DONE, OPEN], 6: [DONE, Call(size=9).begun()]},
        says(Fault.GPU_BEHIND, 5), says(Fault.MISMATCH, 6), only_active=True,
    ),
    row(
        "after a tie who differs where its sides agree",
        {**each((0, 1, 2), SENT.open(), AFTER), 3: [OPEN, AFTER],
         **each((4, 5, 6), SENT, AFTER), 7: [SENT, Call(size=17).open()]},
        says(Fault.MISMATCH, 7), says(Fault.MISMATCH, between=((0, 1, 2), (3,))),
        only_active=True,
    ),
    row(
        "one that brings a wrong size does not hide that most did not come",
        {**each(range(5), *EIGHT), **each((5, 6), *EIGHT, AFTER),
         7: [*EIGHT, Call(size=17).open()]},
        says(Fault.MISMATCH, 7), says(Fault.NOT_ENTERED, 0, 1, 2, 3, 4),
    ),
]  # fmt: skip

SMALL_RINGS = [
    row("nobody is stuck in what only stands behind it", each(range(4), *many(3), OPEN),
        says(Fault.STUCK_INSIDE, between=()), only_active=True,
        status={rank: {WORLD: GroupStatus(4, -1, 1)} for rank in range(4)}),
    row("who has nothing left to do is named", {**each(range(3), *many(9), OPEN), 3: [DONE]},
        says(Fault.NOT_ENQUEUING, 3), only_active=True,
        status={r: {WORLD: GroupStatus(1 if r == 3 else 10, -1, 1)} for r in range(4)}),
]  # fmt: skip

# -- ranks without a record ------------------------------------------------------------------------

SILENT = [
    row(
        "it is named when nothing else explains the wait",
        each((0, 1, 2), DONE, OPEN), says(Fault.SILENT, 3, victims=(0, 1, 2)), silent=[3],
    ),
    row("nobody waits for it", each(range(3), DONE), silent=[3]),
    row(
        "each of two is named when something waits for it alone",
        {**each((0, 1), A, OPEN), **each((2, 3), B, OPEN), **each((4, 5), OPEN)},
        says(Fault.SILENT, 6, 7), groups={"a": (0, 1, 6), "b": (2, 3, 7)}, silent=[6, 7],
    ),
    row(
        "what is only queued for later shows nothing: two lost records, or one and a dead rank",
        {**each((0, 1), OPEN, A), **each((2, 3), OPEN, B), **each((4, 5), OPEN)},
        says(Fault.SILENT, between=((6,), (7,))),
        groups={"a": (0, 1, 6), "b": (2, 3, 7)}, silent=[6, 7],
    ),
    row(
        "nor is the only one, if some stand in what it is no member of",
        {**each((0, 1), A, OPEN), 2: [OPEN]}, says(Fault.SILENT, between=((3,),)),
        groups={"a": (0, 1)}, silent=[3],
    ),
    row(
        "of many nobody is named",
        each(range(4), OPEN), says(Fault.SILENT, between=((4,), (5,), (6,), (7,))),
        silent=[4, 5, 6, 7],
    ),
]  # fmt: skip

# -- records that do not show one moment -----------------------------------------------------------

SKEWED = [
    row("who is late beside one that went on",
        {0: many(3), 1: [*many(5), OPEN], 2: many(5), 3: [*many(5), OPEN]}),
    *(
        row(f"ranks that run {ahead} ahead at different moments are healthy",
            {r: [*many(4 + r), *many(ahead, OPEN)] for r in range(5)})
        for ahead in (1, 3)
    ),
    row("who waits for less than a second is not stuck",
        {0: many(3), **each((1, 2, 3), *many(3), OPEN)}, waited_s=0.3),
    row("who waits for half a minute is",
        {0: many(3), **each((1, 2, 3), *many(3), OPEN)}, says(Fault.NOT_ENTERED, 0), waited_s=30),
    row("gloo's last completed call may have ended by an error",
        {0: [DONE, OPEN], 1: [DONE, DONE], 2: [DONE], 3: [DONE, DONE]},
        says(Fault.NOT_ENTERED, 2), backend=Backend.GLOO),
]  # fmt: skip


@pytest.mark.parametrize(
    ("records", "findings"),
    [*ABSENT, *BEHIND, *DIFFERENT, *QUEUED, *SEVERAL, *SILENT, *SKEWED, *SMALL_RINGS],
)
def test_all_that_is_said_of_a_job(records: Job, findings: tuple[dict[str, Any], ...]) -> None:
    reported = analyse(records).findings
    assert [(result.kind, result.culprits) for result in reported] == [
        (finding["kind"], finding["culprits"]) for finding in findings
    ]
    for actual, finding in zip(reported, findings, strict=True):
        assert {name: getattr(actual, name) for name in finding} == finding


OLD, NEW = Call("quorum1"), Call("quorum2")
QUORUMS = {"groups": {"quorum1": (0, 1, 2), "quorum2": (0, 1, 2)},
           "generations": {"quorum1": 1, "quorum2": 2}}  # fmt: skip
FOUR = [Call("tp", size=16), Call("tp", size=8), Call(size=4), Call(size=1)]
OWN, USUAL = [Call("tp", size=16), LOSS, GRADS], [Call("tp", size=16), GRADS, LOSS]


def past(*calls: Call) -> list[Call]:
    return [replace(call, state=DONE.state) for call in calls] * 3


@pytest.mark.parametrize(
    ("records", "culprits"),
    [
        row("a send that is merely early does not hide the culprit",
            {0: [send(2), Call("tp0").open()], 1: [], 2: [recv(0, "pp")], 3: []}, 1,
            groups={"tp0": (0, 1), "pp": (0, 2)}),
        row("a cycle is found although another fault holds up the same ranks",
            {**each((0, 1, 3), A, B), 2: [B, A], **each((4, 5), Call("c").open()), 6: []}, 2, 6,
            groups={**AB, "c": (4, 5, 6)}),
        row("who leaves out a call is told by its way to a usual one",
            {1: [*FOUR * 3, FOUR[0], FOUR[2], FOUR[3].open()],
             2: [*FOUR * 3, FOUR[0], FOUR[1].open(), FOUR[2]],
             **each((3, 4), *FOUR[2:] * 3, FOUR[2], FOUR[3].open())},
            1, groups={"tp": (0, 1, 2)}, silent=[0]),
        row("an order that a rank always takes is its own",
            {0: [*past(*OWN), FORWARD, LOSS, GRADS],
             **each((1, 2), *past(*USUAL), FORWARD, GRADS, LOSS),
             3: [*past(*USUAL), WRONG, GRADS, LOSS]}, 3, groups=QUEUES, waited_s=60),
        *(
            row(f"a running job may queue in any order ({waited_s})",
                {0: [FORWARD, LOSS, GRADS], **each((1, 2, 3), FORWARD, GRADS, LOSS)},
                groups=QUEUES, waited_s=waited_s)
            for waited_s in (None, 2.0)
        ),
        row("two in common have no majority on an order",
            {0: [FORWARD, LOSS, GRADS], 1: [FORWARD, GRADS, LOSS], 2: [FORWARD, GRADS],
             3: [WRONG, GRADS]}, 3,
            groups={"metrics": (0, 1), "tp": (0, 1, 2, 3)}, waited_s=60),
        row("one that got out alone unseen does not accuse those who did not",
            # it may have sent a broadcast where they reduce; such a record no longer shows it
            {0: [DONE, TP, TP.open()], **each((1, 2), DONE, TP.open()),
             **each((3, 4, 5, 6), DONE, OPEN)},
            groups={"tp": (0, 1, 2)}, only_active=True, waited_s=60),
        row("two inside a broadcast may wait for each other",
            {**each((0, 3, 4), DONE, SENT, OPEN), **each((1, 2), DONE, SENT.open(), OPEN)},
            waited_s=60),
        row("who is held up elsewhere is no witness that a call is one too many",
            {0: [DP], 1: [DP, DP.open()], 2: [DP, TP, TP.open()], 3: [TP, TP.open()], 4: [TP]},
            0, 4, groups={"dp": (0, 1, 2), "tp": (2, 3, 4)}),
        row("a silent rank may be the victim of a fault that nobody is blamed for",
            # a link fails in the second stage; the first waits for it, one of its records is lost
            {**each((0, 1), Call("a"), A), **each((3, 4), B)},
            groups={"a": (0, 1, 2), "b": (3, 4), "pipe": (2, 3)}, silent=[2], waited_s=60),
        row("a silent rank does not hold up what others got out of",
            {**each((0, 1, 2), DONE, OPEN), **each((3, 4), DONE, DONE, TP.open(), OPEN)},
            groups={"tp": (0, 3, 4)}, silent=[5], only_active=True),
        row("what is left of an older quorum says nothing",
            each(range(3), OLD, OLD.open(), NEW, NEW), **QUORUMS),
        row("who does not come to the newer quorum",
            {0: [OLD, OLD.open(), NEW, NEW.open()], 1: [OLD, NEW], 2: [OLD, NEW, NEW.open()]},
            1, **QUORUMS),
        row("a rank left in an older quorum accuses nobody who moved on",
            {**each((0, 1), OLD, NEW), 2: [OLD, OLD.open()]},
            groups={"quorum1": (0, 1, 2), "quorum2": (0, 1)}, generations=QUORUMS["generations"]),
    ],
)  # fmt: skip
def test_who_is_accused(records: Job, culprits: tuple[int, ...]) -> None:
    assert analyse(records).culprits == culprits


def test_each_rank_that_waits_says_for_whom() -> None:
    calls = {0: [Call("tp0"), DP], 1: [Call("tp0"), DP, Call("tp0").open()],
             **each((2, 3), Call("tp1"), DP, Call("tp1"), DP.open())}  # fmt: skip
    analysis = analyse(job(calls, {**TP_PAIRS, "dp": (1, 2, 3)}))
    assert {wait.rank: wait.waits_for for wait in analysis.waits} == {1: (0,), 2: (1,), 3: (1,)}


def test_parts_of_batches_that_are_over_hold_up_nobody() -> None:
    # NCCL leaves a part "scheduled" for ever; the whole of a batch that is over was left out
    called = {0: [send(2, "pp0"), send(2, "pp0"), OPEN], 1: [send(3, "pp1")],
              2: [recv(0, "pp0"), recv(0, "pp0"), OPEN],
              3: [recv(1, "pp1"), OPEN, send(1, "pp1"), whole("pp1")]}  # fmt: skip
    records = job(called, {"pp0": (0, 2), "pp1": (1, 3)}, only_active=True)
    described = tuple(
        replace(g, desc="" if g.name == WORLD else "PIPELINE") for g in records.groups
    )
    assert analyse(replace(records, groups=described)).culprits == (1,)


def test_the_last_one_inside_a_broadcast_may_wait_for_one_that_nobody_hears_of() -> None:
    called = {**each((0, 3, 4), DONE, SENT, OPEN), 2: [DONE, SENT.open(), OPEN]}
    assert 2 not in analyse(job(called, silent=[1], waited_s=60)).culprits


def test_a_silent_rank_is_a_note_where_another_explains_the_wait() -> None:
    analysis = analyse(job({**each((0, 1), DONE, OPEN), 2: [DONE]}, silent=[3]))
    assert (analysis.culprits, analysis.notes[1:]) == ((2,), ("No record of rank 3.",))


def test_whose_peers_completed_what_it_had_not_enqueued_went_on() -> None:
    analysis = analyse(job({0: many(3), **each((1, 2), *many(5), OPEN)}))
    assert analysis.findings == ()
    assert [note.partition(". ")[0] for note in analysis.notes] == [
        "The records do not show one moment: rank 0 moved on after it"
    ]
