"""Sends and receives, and threads, as rings record them: who waits for whom."""

from __future__ import annotations

import itertools

import pytest

from lightkeeper.monitor.records.analyse import analyse
from lightkeeper.monitor.records.findings import Fault
from lightkeeper.monitor.records.ring import from_answers, read_answer
from lightkeeper.worker_server.wire import parse_flight_record
from tests.monitor.records.answers import answer, call

STEPS = 5
MAIN = 7
"""Native id of the main thread: the process's."""


class Rank:
    """Writes the ring of one rank; the last call may be open."""

    def __init__(self, number: int) -> None:
        self.number, self.calls, self.counts = number, [], {}

    def transfer(
        self, op: str, peer: int, *, done: bool = True, tag: int = 0, at: str = ""
    ) -> Rank:
        way = op.removeprefix("i")
        key = way, peer, tag
        self.counts[key] = self.counts.get(key, 0) + 1
        return self._add(
            self.counts[key], op, done, root=peer, tag=tag, is_async=op != way,
            site=at or f"pipe.py:{10 * (self.number + 1) + (way == 'send')}",
        )  # fmt: skip

    def collective(
        self, op: str = "all_reduce", *, done: bool = True, at: str = "train.py:7",
        thread: int = MAIN, group: str = "default", **facts,
    ) -> Rank:  # fmt: skip
        self.counts[group] = self.counts.get(group, 0) + 1
        return self._add(self.counts[group], op, done, site=at, thread=thread, group=group, **facts)

    def _add(self, seq: int, op: str, done: bool, **facts) -> Rank:
        number = len(self.calls) + 1
        exit_age_s = 100.0 - number if done else None
        self.calls.append(
            call(
                number,
                seq,
                op=op,
                enter_age_s=100.5 - number,
                exit_age_s=exit_age_s,
                **{"thread": MAIN, **facts},
            )
        )
        return self


def findings(*ranks: Rank):
    answers = [answer(*rank.calls, rank=rank.number, size=len(ranks), torch=None) for rank in ranks]
    records = [read_answer(parse_flight_record(each), taken_ns=10**18) for each in answers]
    return analyse(from_answers(records)).findings


def stages(count: int, steps: int = STEPS) -> list[Rank]:
    """A pipeline that has trained: activations go up, gradients down, then all reduce."""
    ranks = [Rank(number) for number in range(count)]
    for _ in range(steps):
        for low, high in itertools.pairwise(ranks):
            low.transfer("send", high.number)
            high.transfer("recv", low.number)
        for low, high in reversed(list(itertools.pairwise(ranks))):
            high.transfer("send", low.number)
            low.transfer("recv", high.number)
        for rank in ranks:
            rank.collective()
    return ranks


def test_a_pipeline_that_trains_is_silent() -> None:
    assert findings(*stages(4)) == ()


@pytest.mark.parametrize("count", [3, 5])
def test_a_stage_that_comes_to_no_transfer_is_named_and_its_neighbours_are_not(count) -> None:
    ranks = stages(count)
    for low, high in itertools.pairwise(ranks):
        if low.number != 1:
            high.transfer("recv", low.number, done=high.number == 1)
    ranks[0].transfer("send", 1)
    ranks[0].transfer("recv", 1, done=False)
    ranks[2].transfer("recv", 1, done=False)
    judged = findings(*ranks)
    assert [finding.culprits for finding in judged] == [(1,)]
    assert set(judged[0].victims) == set(range(count)) - {1}


def test_a_first_or_last_stage_may_be_the_one_that_does_not_come() -> None:
    for absent, inside in ((0, 1), (2, 1)):
        ranks = stages(3)
        ranks[inside].transfer("recv", absent, done=False)
        ranks[2 - absent].transfer("recv", 1, done=False)
        assert [finding.culprits for finding in findings(*ranks)] == [(absent,)]


def test_both_sending_first_is_a_circle_and_nobody_is_accused() -> None:
    ranks = stages(3)
    ranks[0].transfer("send", 1, done=False)
    ranks[1].transfer("send", 0, done=False)
    ranks[2].collective("barrier", done=False)
    (finding,) = findings(*ranks)
    assert (finding.kind, finding.culprits) == (Fault.POINT_TO_POINT, ())
    assert "pipe.py:11" in finding.reason
    assert "pipe.py:21" in finding.reason
    assert {rank for side in finding.between for rank in side} == {0, 1}


def test_tags_that_differ_are_said_and_are_no_circle() -> None:
    ranks = stages(2)
    ranks[0].transfer("send", 1, done=False, tag=2)
    ranks[1].transfer("recv", 0, done=False, tag=3)
    (finding,) = findings(*ranks)
    assert (finding.kind, finding.culprits) == (Fault.POINT_TO_POINT, ())
    assert "(send with tag 2 at pipe.py:11)" in finding.reason
    assert "(recv with tag 3 at pipe.py:20): their tags differ" in finding.reason


def test_a_skip_connection_in_the_wrong_order_is_a_circle_with_every_line() -> None:
    ranks = stages(3)
    ranks[0].transfer("send", 2, done=False)
    ranks[1].transfer("recv", 0, done=False)
    ranks[2].transfer("recv", 1, done=False)
    (finding,) = findings(*ranks)
    assert (finding.kind, finding.culprits) == (Fault.POINT_TO_POINT, ())
    assert all(line in finding.reason for line in ("pipe.py:11", "pipe.py:20", "pipe.py:30"))


def test_sends_that_nobody_waited_for_hold_nobody_up() -> None:
    ranks = stages(3)
    for step in range(3):
        ranks[0].transfer("isend", 1, done=False, at="pipe.py:5")
        ranks[1].transfer("recv", 0)
        ranks[0].collective(done=step < 2)
        for rank in ranks[1:]:
            if step < 2 or rank.number == 1:
                rank.collective(done=step < 2)
    (finding,) = findings(*ranks)  # rank 2 does not come to the last all_reduce
    assert finding.culprits == (2,)


def test_a_rank_whose_sends_have_arrived_does_not_wait_in_them() -> None:
    ranks = stages(3)
    ranks[0].transfer("isend", 1, done=False, at="pipe.py:5")  # it stands in a file now
    ranks[1].transfer("recv", 0)
    for rank in ranks[1:]:
        rank.collective(done=False)
    (finding,) = findings(*ranks)
    assert (finding.kind, finding.culprits) == (Fault.NOT_ENTERED, (0,))


def test_tags_are_streams_of_their_own() -> None:
    ranks = stages(2)
    ranks[0].transfer("send", 1, done=False, tag=7)
    ranks[1].transfer("recv", 0, done=False, tag=8)
    (finding,) = findings(*ranks)
    assert finding.culprits == ()


def test_a_batch_of_transfers_waits_for_all_of_its_peers() -> None:
    ring = [Rank(number).collective() for number in range(4)]
    for rank in ring:  # rank 2 does not come
        if rank.number != 2:
            rank.transfer("isend", (rank.number + 1) % 4, done=rank.number == 3, at="ring.py:3")
            rank.transfer(
                "irecv", (rank.number - 1) % 4, done=rank.number in (0, 1), at="ring.py:3"
            )
    (finding,) = findings(*ring)
    assert finding.culprits == (2,)


def test_a_batch_in_a_circle_is_named_by_its_first_transfer() -> None:
    ring = [Rank(number).collective() for number in range(3)]
    for rank, to in zip(ring, (1, 0, 0), strict=True):  # rank 1 sends to its left
        rank.transfer("isend", to, done=rank.number != 1)
        rank.transfer("irecv", (rank.number - 1) % 3, done=rank.number == 0)
    ring[0].collective(done=False)
    assert "in the transfer from rank rg_0.1 to rank rg_0.0" in findings(*ring)[0].reason


def test_who_receives_from_anybody_waits_too_and_is_not_missing() -> None:
    ring = [Rank(number).collective() for number in range(3)]
    ring[0].transfer("recv", -1, done=False)
    ring[1].transfer("recv", 0, done=False)  # the third does not send
    assert not any(0 in finding.culprits for finding in findings(*ring))


def test_two_threads_in_one_group_are_the_program_whoever_is_in_the_minority() -> None:
    ranks = [Rank(number) for number in range(3)]
    for rank in ranks:
        for step in range(STEPS):
            rank.collective()
            if step == 2:
                rank.collective("all_gather", thread=2, at="ckpt.py:58")
        first, second = ("barrier", MAIN, "train.py:9"), ("all_gather", 2, "ckpt.py:58")
        if rank.number == 2:
            first, second = second, first
        for op, thread, line in (first, second):
            rank.collective(op, thread=thread, at=line, done=False)
    (finding,) = findings(*ranks)
    assert (finding.kind, finding.culprits) == (Fault.TWO_THREADS, ())
    assert "train.py:9" in finding.reason
    assert "ckpt.py:58" in finding.reason
    assert finding.victims == (0, 1, 2)


def test_two_threads_with_groups_of_their_own_are_silent() -> None:
    ranks = [Rank(number) for number in range(2)]
    for rank in ranks:
        for _ in range(STEPS):
            rank.collective()
            rank.collective("all_gather", thread=2, at="ckpt.py:58", group="saving")
    assert findings(*ranks) == ()


def test_a_group_that_one_thread_hands_to_another_has_an_order() -> None:
    ranks = [Rank(number) for number in range(3)]
    for rank in ranks:
        for step in range(2 * STEPS):
            rank.collective(thread=2 if step >= STEPS else MAIN)
        rank.collective("all_gather" if rank.number == 1 else "barrier", thread=2, done=False)
    (finding,) = findings(*ranks)
    assert (finding.kind, finding.culprits) == (Fault.MISMATCH, (1,))


def test_a_thread_that_waits_for_its_next_task_explains_no_wait_of_another() -> None:
    ranks = [Rank(number) for number in range(2)]
    for rank in ranks:
        for _ in range(STEPS):
            rank.collective()
            rank.collective("all_gather", thread=2, at="ckpt.py:58", group="saving")
    ranks[0].collective("all_gather", thread=2, at="ckpt.py:58", group="saving", done=False)
    ranks[1].collective(done=False)  # rank 0's main thread stands in a file
    (finding,) = findings(*ranks)
    assert (finding.kind, finding.culprits) == (Fault.NOT_ENTERED, (0,))


def test_a_call_left_out_among_equal_ones_shows_by_the_lines_though_nothing_hangs() -> None:
    lines = ["train.py:5", "train.py:9", "train.py:9", "train.py:14"]
    ranks = [Rank(number) for number in range(3)]
    for rank in ranks:
        for step in range(12):
            for place, line in enumerate(lines):
                if (rank.number, step, place) != (1, 7, 1):
                    rank.collective(at=line)
    ranks[1].collective(at=lines[0])  # it is that much further, and nothing hangs
    (finding,) = findings(*ranks)
    assert (finding.kind, finding.culprits) == (Fault.SKIPPED, (1,))
    assert "numbers of different places mix" in finding.reason


def test_lines_of_roles_are_no_slip() -> None:
    ranks = [Rank(number) for number in range(3)]
    for rank in ranks:
        for _ in range(12):
            rank.collective(at="train.py:5")
            rank.collective(at="train.py:20" if rank.number == 0 else "train.py:30")
            rank.collective(at="train.py:9")
    assert findings(*ranks) == ()
