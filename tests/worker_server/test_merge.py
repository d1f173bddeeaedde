"""Two records of one rank, merged: what belongs together is found, and nothing else is."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightkeeper.worker_server.sidecar.merge import (
    ClockPairs,
    Merged,
    last_age_s,
    merge,
    unfinished,
)
from lightkeeper.worker_server.wire import RingEntry
from tests.changed import replace

S = 10**9
WALL = 1_700_000_000 * S
NOW = 5_000 * S
TRUE_CLOCK = ClockPairs(WALL)


def entry(number, enter_s, exit_s=None, **kwargs):
    """An entry of the ring that was entered and left so many seconds ago."""
    usual = {"group": "default", "op": "all_reduce", "dtype": "float32",
             "sizes_in": ((4,),), "sizes_out": ((4,),)}  # fmt: skip
    return RingEntry(
        **{**usual, **kwargs}, seq=number, id=number, enter_age_s=enter_s, exit_age_s=exit_s
    )


def row(number, age_s, **kwargs):
    usual = {"record_id": number, "process_group": ["0", "default_pg"], "pg_id": 0,
             "profiling_name": "gloo:all_reduce", "input_sizes": [[4]], "output_sizes": [[4]],
             "input_dtypes": ["Float"], "output_dtypes": ["Float"], "state": "scheduled",
             "retired": True, "time_created_ns": WALL + NOW - round(age_s * S)}  # fmt: skip
    return {**usual, **kwargs}


def merged(ring, rows, clock=TRUE_CLOCK):
    return merge(tuple(ring), {"version": "2.10", "entries": rows}, NOW, clock)


def kin(record):
    return {e.id: e.torch_ids for e in record.ring if e.torch_ids}


def test_an_entry_of_torchs_belongs_to_the_call_in_which_it_was_created():
    record = merged([entry(1, 3, 2.9), entry(2, 2, 1.9)], [row(0, 2.95), row(1, 1.95)])
    assert (kin(record), record.torch_only) == ({1: (0,), 2: (1,)}, ())


def test_one_call_may_hold_several_of_torchs():
    call = entry(1, 3, 2, op="reduce_scatter", sizes_in=((4,), (4,)))
    assert kin(merged([call], [row(0, 2.9), row(1, 2.8)])) == {1: (0, 1)}


def test_a_second_one_of_torchs_is_somebody_elses():
    record = merged([entry(1, 3, is_async=True)], [row(0, 2.9), row(1, 1.9)])
    assert (kin(record), record.torch_only) == ({1: (0,)}, (1,))


def nccl(number, age_s, name, p2p_seq, sizes=((4,),)):
    """As NCCL records a send or receive: its number counts all of them in the process group."""
    return row(number, age_s, profiling_name=f"nccl:{name}", is_p2p=True, p2p_seq_id=p2p_seq,
               collective_seq_id=9, input_sizes=sizes, output_sizes=sizes)  # fmt: skip


def test_sends_and_receives_are_matched_by_time_and_direction_and_not_by_their_numbers():
    both = {"sizes_out": (), "tag": 0}
    calls = [
        entry(1, 5.0, 4.9, op="send", root=1, **both),
        entry(1, 4.0, 3.9, op="recv", root=1, tag=0, sizes_in=()),
        entry(2, 3.0, 2.0, op="isend", root=1, is_async=True, **both),
        entry(1, 2.95, 2.0, op="isend", root=2, is_async=True, **both),
        entry(2, 2.90, None, op="irecv", root=2, is_async=True, tag=0, sizes_in=()),
    ]
    calls = [replace(call, id=number) for number, call in enumerate(calls, 1)]
    rows = [
        nccl(0, 4.95, "send 0->1", 1), nccl(1, 3.95, "recv 0<-1", 2),
        nccl(2, 2.99, "send 0->1", 3), nccl(3, 2.94, "send 0->2", 3),
        nccl(4, 2.89, "recv 0<-2", 3), nccl(5, 2.88, "coalesced", 3, ()),
        nccl(6, 1.0, "send 0->1", 4),
    ]  # fmt: skip
    record = merged(calls, rows)
    assert kin(record) == {1: (0,), 2: (1,), 3: (2,), 4: (3,), 5: (4,)}
    assert record.torch_only == (5, 6)


def test_what_cpp_does_by_itself_is_torchs_alone():
    record = merged([entry(1, 3, 2.9)], [row(0, 2.95), row(1, 2.5), row(2, 9.0)])
    assert (kin(record), record.torch_only) == ({1: (0,)}, (1, 2))


def test_what_is_older_than_the_ring_reaches_is_nobodys():
    assert merged([entry(700, 3, 2.9)], [row(0, 9.0)]).torch_only == ()


@pytest.mark.parametrize(
    "odd",
    [{"profiling_name": "gloo:broadcast"}, {"input_sizes": [[5]], "output_sizes": [[5]]},
     {"input_dtypes": ["Double"]}, {"process_group": ["1", "tp"]}],
    ids=lambda odd: next(iter(odd)),
)  # fmt: skip
def test_another_kind_size_dtype_or_group_is_not_matched(odd):
    record = merged([entry(1, 3, 2)], [row(0, 2.5, **odd)])
    assert (kin(record), record.torch_only) == ({}, (0,))


def test_of_calls_that_are_open_at_once_the_last_one_entered_is_meant():
    calls = [entry(n, 4 - n, 0.1, is_async=True) for n in (1, 2, 3)]
    rows = [row(n, 4 - n - 0.001) for n in (1, 2, 3)]
    assert kin(merged(calls, rows)) == {1: (1,), 2: (2,), 3: (3,)}


def test_a_nameless_group_keeps_to_the_group_it_was_first_matched_with():
    calls = [entry(1, 5, 4, group="torchft"), entry(2, 3, 2, group="tp")]
    rows = [row(n, age, process_group=["", ""], pg_id=3) for n, age in ((0, 4.5), (1, 2.5))]
    record = merged(calls, rows)
    assert (kin(record), record.torch_only) == ({1: (0,)}, (1,))


def test_after_the_clock_was_set_older_stamps_are_matched_with_nothing_and_blamed_on_nobody():
    clock = ClockPairs()
    clock = clock.add(NOW - 10 * S, WALL + NOW - 10 * S - 60 * S)
    clock = clock.add(NOW - 1 * S, WALL + NOW - 1 * S)
    calls = [entry(1, 3, 2.9), entry(2, 0.5, 0.4)]
    record = merged(calls, [row(0, 2.95), row(1, 0.45)], clock)
    assert (kin(record), record.torch_only) == ({2: (1,)}, ())


def test_a_clock_that_was_never_read_matches_nothing():
    assert kin(merged([entry(1, 3, 2)], [row(0, 2.5)], ClockPairs())) == {}


class Job:
    """A rank that calls collectives, and the truth about which of torch's entries are whose."""

    def __init__(self, seed, jumps):
        self.random = random.Random(seed)
        self.now = 1_000 * S
        self.offset = WALL
        self.jumps, self.jumped = jumps, None
        self.clock = ClockPairs()
        self.next_look = self.now
        self.calls, self.rows, self.owner = [], [], {}

    def pass_time(self, ns):
        for _ in range(ns // S + 1):
            self.now += min(ns, S)
            ns -= min(ns, S)
            while self.next_look <= self.now:
                self.clock = self.clock.add(self.next_look, self.next_look + self.offset)
                self.next_look += S
        if self.jumps and self.jumped != self.next_look and self.random.random() < 0.1:
            self.jumped = self.next_look  # there and back between two looks is seen by nobody
            self.offset += self.random.choice((-1, 1)) * self.random.choice((S, 5 * 10**6, 90 * S))

    def call(self, group, number):
        kind = self.random.choice(("sync", "sync", "async", "unseen"))
        size = self.random.choice((4, 8))
        begun = self.now
        self.now += self.random.randrange(3_000, 50_000)
        op, parts = self.random.choice((("all_reduce", 1), ("reduce_scatter", 2)))
        for _ in range(parts):
            record = len(self.rows)
            self.rows.append(
                row(record, 0, process_group=["1", group], input_sizes=[[size]],
                    output_sizes=[[size]], time_created_ns=self.now + self.offset)
            )  # fmt: skip
            if kind != "unseen":
                self.owner[record] = number
            self.now += self.random.randrange(3_000, 50_000)
        if kind != "unseen":
            ended = None if kind == "async" else self.now
            self.calls.append((number, begun, ended, group, op, ((size,),) * parts))
        self.now += 3_000

    def ring(self):
        return tuple(
            RingEntry(
                group, number, op, sizes, (), "float32", id=number,
                enter_age_s=(self.now - begun) / S, is_async=ended is None,
                exit_age_s=None if ended is None else (self.now - ended) / S,
            )
            for number, begun, ended, group, op, sizes in self.calls
        )  # fmt: skip


def run_job(seed, jumps, calls=60):
    job = Job(seed, jumps)
    for number in range(1, calls + 1):
        if job.random.random() < 0.5:
            job.pass_time(job.random.randrange(10_000, 2 * S))
        job.call(job.random.choice(("tp", "dp")), number)
    while job.next_look <= job.now:
        job.clock = job.clock.add(job.next_look, job.next_look + job.offset)
        job.next_look += S
    job.clock = job.clock.add(job.now, job.now + job.offset)
    return job


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32), st.booleans())
def test_nothing_is_matched_with_a_call_that_it_does_not_belong_to(seed, jumps):
    job = run_job(seed, jumps)
    merged_record = merge(job.ring(), {"entries": job.rows}, job.now, job.clock)
    right = 0
    for number, numbers in kin(merged_record).items():
        for record in numbers:
            assert job.owner.get(record) == number
            right += 1
    if not jumps:
        assert right == len(job.owner)
    assert set(merged_record.torch_only).isdisjoint(
        n for ns in kin(merged_record).values() for n in ns
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner,
                                                              max_size=3),
    max_leaves=8,
)  # fmt: skip
ODD_ROW = st.fixed_dictionaries({}, optional=dict.fromkeys(row(0, 0), JSON))


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(st.just("entries"), st.lists(ODD_ROW | JSON, max_size=5) | JSON))
def test_an_odd_record_of_torchs_never_breaks_the_answer(torch):
    record = merge((entry(1, 3),), torch, NOW, TRUE_CLOCK)
    for part in (record, unfinished(record)):
        assert len(part.ring) == 1


# -- what is unfinished ------------------------------------------------------------------------


def test_what_the_ring_knows_to_be_left_is_left_although_gloo_says_scheduled():
    record = unfinished(
        merged([entry(1, 3, 2.9), entry(2, 2)],
               [row(0, 2.95, retired=False), row(1, 1.9, retired=False), row(2, 1, retired=False,
                profiling_name="gloo:barrier")])
    )  # fmt: skip
    assert [e.id for e in record.ring] == [2]
    assert [r["record_id"] for r in record.torch["entries"]] == [1, 2]
    assert record.torch_only == (2,)


def test_a_launched_call_that_nobody_waits_for_is_over_when_torch_retired_it():
    calls = [entry(1, 3, is_async=True), entry(2, 2, is_async=True), entry(3, 1)]
    rows = [row(0, 2.9), row(1, 1.9, retired=False), row(2, 0.9)]
    assert [e.id for e in unfinished(merged(calls, rows)).ring] == [2, 3]


@pytest.mark.parametrize(
    ("rows", "clock", "age_s"),
    [
        ([row(0, 60), row(1, 50)], TRUE_CLOCK, 50.0),
        ([row(1, 50), row(0, 60), {"record_id": 2, "time_created_ns": "x"}], TRUE_CLOCK, 50.0),
        ([row(0, 60)], ClockPairs(WALL, valid_from=WALL + NOW), None),
        ([], TRUE_CLOCK, None),
    ],
    ids=["youngest", "odd ones take no part", "the clock was set since", "none"],
)
def test_the_youngest_of_torchs_dates_the_others(rows, clock, age_s):
    assert last_age_s(merged([], rows), NOW, clock) == age_s


def test_nothing_to_merge_is_nothing_found():
    assert merge((), None, NOW, TRUE_CLOCK) == Merged((), None, ())
    calls = (entry(1, 2, 1),)
    assert merge(calls, {"version": "2.10"}, NOW, TRUE_CLOCK).ring == calls
