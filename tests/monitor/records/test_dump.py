"""One rank's dump, from each writer and schema, in columns."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightkeeper.monitor.records import dump
from lightkeeper.monitor.records.job import Backend, CollectiveState, GroupStatus
from lightkeeper.monitor.records.safe_pickle import FlightRecordError
from tests.fuzz import records
from tests.monitor.records.dumps import (
    CREATED,
    as_json,
    as_pickle,
    config,
    entry,
    gloo,
    nccl,
    pending,
    send,
    status,
)
from tests.timing import cpu_s


def read(value, write=as_pickle):
    return dump.read_dump(dump.decode(write(value)))


def states(record):
    return [CollectiveState(state).name.lower() for state in record.columns["state"]]


def column(record, name):
    return record.columns[name].tolist()


@pytest.mark.parametrize("write", [as_pickle, as_json], ids=["pickle", "json"])
def test_an_nccl_entry_has_all_its_columns(write) -> None:
    record = read(nccl(entry(7, 12, pg_id=0)), write)
    assert (record.backend, record.dropped) == (Backend.NCCL, 7)
    assert {name: values.tolist() for name, values in record.columns.items()} == {
        "group": [0],
        "seq": [12],
        "op_id": [12],
        "record": [7],
        "payload": [0],
        "site": [-1],
        "state": [CollectiveState.COMPLETED],
        "p2p": [False],
        "peer": [-1],
        "thread": [0],
        "blocking": [False],
        "created_ns": [CREATED + 7],
        "started_ns": [CREATED + 8],
        "completed_ns": [CREATED + 9],
    }
    payload = record.payloads[0]
    assert (payload.op, payload.recorded) == ("all_reduce", "nccl:all_reduce")
    assert (payload.sizes_in, payload.dtypes_out) == (((8, 4),), ("float32",))
    assert record.groups[0].members == (0, 1, 2, 3)
    assert record.status == {0: GroupStatus(1, 1, 1)}


def test_the_states_of_nccl_are_real_and_a_retired_unfinished_one_has_timed_out() -> None:
    record = read(
        nccl(
            entry(0, 1),
            entry(1, 2, state="started", retired=False),
            pending(2, 3),
            pending(3, 4, retired=True),
            pending(4, 5, state="dreaming"),
        )
    )
    assert states(record) == ["completed", "started", "scheduled", "failed", "unknown"]


def test_gloo_says_only_what_is_over_and_counts_sends_too() -> None:
    record = read(gloo(entry(0, 1), pending(1, 2)), as_json)
    assert record.backend is Backend.GLOO
    assert states(record) == ["completed", "unknown"]
    assert column(record, "started_ns") == [-1, -1]
    assert record.status == {}


def test_sends_have_their_own_sequence_and_a_peer_in_the_group() -> None:
    record = read(nccl(send(0, 5), send(1, 6, "nccl:recv 3<-0"), entry(2, 9)))
    assert column(record, "seq") == [5, 6, 9]
    assert column(record, "peer") == [1, 0, -1]
    assert column(record, "p2p") == [True, True, False]


def test_the_parts_of_a_coalesced_operation_get_the_state_of_the_whole() -> None:
    record = read(
        nccl(
            send(0, 1, op_id=1),
            send(1, 1, "nccl:recv 0<-1", op_id=2),
            entry(2, 0, profiling_name="nccl:coalesced", p2p_seq_id=1, is_p2p=True, op_id=2,
                  input_sizes=[], output_sizes=[]),
            send(3, 2, op_id=3),
            send(4, 2, "nccl:coalesced", op_id=3, input_sizes=[], output_sizes=[]),
        )
    )  # fmt: skip
    assert states(record) == ["completed"] * 3 + ["scheduled"] * 2
    assert column(record, "op_id") == [2, 2, 2, 3, 3]


def test_parts_of_finished_batches_are_over_although_the_whole_was_left_out() -> None:
    whole = {"input_sizes": [], "output_sizes": []}
    record = read(
        nccl(
            send(10, 3), send(11, 4), send(13, 5), send(14, 5, "nccl:coalesced", **whole),
            pg_status=status(p0=(5, -1, 4)),
        )
    )  # fmt: skip
    assert record.only_active
    assert states(record) == ["completed", "completed", "scheduled", "scheduled"]


@pytest.mark.parametrize(
    ("rows", "heads"),
    [([pending(13, 1)], (1, -1, 5)), ([pending(14, 0, pg_id=1)], (2, -1, 2))],
    ids=["a part is listed, and is the last that completed", "a later collective completed"],
)
def test_parts_are_over_if_no_whole_is_left_in_the_record(rows, heads) -> None:
    record = read(nccl(send(10, 3), send(12, 5), *rows, pg_status=status(p0=heads)))
    assert states(record) == ["completed", "completed", "scheduled"]


def test_sends_that_are_not_batched_stay_unfinished_whatever_came_after() -> None:
    for heads in ((5, -1, 4), (2, -1, 2)):  # torch 2.4 does not count sends in them
        record = read(nccl(send(10, 3), send(12, 5), pg_status=status(p0=heads)))
        assert states(record) == ["scheduled", "scheduled"]


@pytest.mark.parametrize(
    ("entries", "active"),
    [
        ([], True),
        ([pending(40, 5), pending(42, 6)], True),
        ([pending(0, 1)], False),
        ([entry(40, 5), pending(41, 6)], False),
    ],
    ids=["status but no entries", "gaps", "all there is", "completed ones too"],
)
def test_tells_a_dump_of_unfinished_entries_only(entries, active) -> None:
    record = read(nccl(*entries))
    assert record.only_active is active


def test_a_wrapped_buffer_says_how_many_are_gone() -> None:
    assert read(nccl(entry(100, 5), pending(101, 6))).dropped == 100


def test_entries_are_put_into_the_order_of_their_calls() -> None:
    record = read(nccl(entry(5, 3), entry(3, 1), entry(4, 2)))
    assert column(record, "seq") == [1, 2, 3]


def test_the_nearest_frame_of_the_program_is_the_site() -> None:
    frames = [
        {"name": "all_reduce", "filename": "/v/site-packages/torch/distributed/c.py", "line": 3},
        {"name": "sync", "filename": "/home/u/job/train.py", "line": 88},
        {"name": "<module>", "filename": "/home/u/job/train.py", "line": 9},
    ]
    record = read(nccl(entry(0, 1, frames=frames), entry(1, 2, frames=frames[:1]), entry(2, 3)))
    assert record.sites == ("train.py:88 sync", "c.py:3 all_reduce")
    assert column(record, "site") == [0, 1, -1]


THREE = config(**{"0": ("default_pg", range(4)), "5": ("TP", (0, 1)), "11": ("DP", (0, 2))})


NOT_NUMBERS = config(**{"0": ("default_pg", range(4)), "b3f": ("", (0, 1)), "a9c": ("", (0, 2))})
HEADS = status(p0=(9, 9, 9), p3=(7, 7, 7), p8=(6, 6, 6))
OF_5 = entry(1, 1, pg_id=3, process_group=("5", "TP"))


@pytest.mark.parametrize(
    ("entries", "groups", "heads", "expected"),
    [
        pytest.param([], THREE, HEADS, {"0": 9, "5": 7, "11": 6},
                     id="by the order in which groups were made"),
        pytest.param([], THREE, status(p0=(9, 9, 9), p3=(7, 7, 7)), {"0": 9},
                     id="of either group, so of neither"),
        pytest.param([OF_5], THREE, HEADS, {"0": 9, "5": 7, "11": 6},
                     id="narrowed down by entries"),
        pytest.param([], NOT_NUMBERS, HEADS, {"0": 9}, id="names that are no numbers"),
    ],
)  # fmt: skip
def test_a_status_finds_its_group(entries, groups, heads, expected) -> None:
    dumped = read(nccl(entry(0, 1), *entries, pg_config=groups, pg_status=heads))
    placed = {dumped.groups[index].name: head.enqueued for index, head in dumped.status.items()}
    assert placed == expected


def old(row, *gone, **more):
    return {key: value for key, value in row.items() if key not in gone} | more


OLD = {
    "2.4": old(entry(0, 4), "thread_id", "thread_name"),
    "2.77": entry(0, 4, input_split_sizes=[[1, 2]], unheard_of={"a": 1}),
    "3.0": entry(0, 4),
}  # fmt: skip


@pytest.mark.parametrize("version", OLD)
def test_reads_what_other_schemas_have_in_common(version) -> None:
    record = read(nccl(OLD[version], version=version))
    assert column(record, "seq") == [4]
    assert record.groups[0].name == "0"


def test_nothing_recorded_is_no_error() -> None:
    value = nccl()
    del value["entries"], value["pg_status"]
    record = read(value)
    assert not len(record.columns["seq"])
    assert not record.only_active


BROKEN = {
    "no version": {"entries": []},
    "version is a number": nccl(version=2),
    "of another schema": {"version": "1.0", "rows": []},
    "entries are no list": nccl(entries="x"),
    "an entry is no object": nccl(entries=[7]),
    "no name": nccl(old(entry(), "profiling_name")),
    "name is a number": nccl(entry(profiling_name=7)),
    "sequence is a text": nccl(entry(collective_seq_id="7")),
    "sequence is a bool": nccl(entry(collective_seq_id=True)),
    "sequence is beyond 64 bits": nccl(entry(collective_seq_id=1 << 63)),
    "sequence is missing once": nccl(entry(), old(entry(1, 2), "collective_seq_id")),
    "sizes are flat": nccl(entry(input_sizes=[1, 2])),
    "sizes are texts": nccl(entry(input_sizes=[["a"]])),
    "dtypes are numbers": nccl(entry(input_dtypes=[1])),
    "frames are texts": nccl(entry(frames=["train.py"])),
    "group is a number": nccl(entry(process_group=7)),
    "config is a list": nccl(pg_config=[]),
    "config of texts": nccl(pg_config={"0": "x"}),
    "status is a list": nccl(pg_status=[]),
    "status of words": nccl(pg_status={"x": {}}),
}


@pytest.mark.parametrize("value", BROKEN.values(), ids=BROKEN)
def test_what_is_no_record_raises_the_one_error(value) -> None:
    with pytest.raises(FlightRecordError):
        read(value)


@pytest.mark.parametrize("data", [b"", b"hello", b"[]", b"{", b"null", b'{"a":' * 5000, b"\x80"])
def test_bytes_that_are_no_object_raise_the_one_error(data) -> None:
    with pytest.raises(FlightRecordError):
        dump.decode(data)


@given(st.data())
def test_any_prefix_of_any_template_raises_the_one_error(data) -> None:
    whole = data.draw(st.sampled_from(list(records.seeds())))
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(FlightRecordError):
        dump.decode(whole[:cut])


@given(st.binary(min_size=1, max_size=12))
def test_odd_values_anywhere_end_in_a_job_or_in_the_one_error(data) -> None:
    records.read_mutated(data)


@pytest.mark.parametrize(
    ("key", "value"),
    [("input_sizes", [1]), ("frames", {"name": "a", "filename": "a.cc", "line": 1})],
)
def test_a_long_list_named_by_every_entry_is_not_read_by_every_entry(key, value) -> None:
    longs = [[value] * (100_000 + number) for number in range(10)]
    many = [entry(n, n + 1) | {key: longs[n % 10]} for n in range(4000)]
    value = nccl(*many)

    def work() -> None:
        with contextlib.suppress(FlightRecordError):
            dump.read_dump(value)

    assert cpu_s(work, 1) < 5


def test_sizes_without_end_are_refused(monkeypatch) -> None:
    monkeypatch.setattr(dump, "MOST_WORK", 1000)
    many = [entry(number, number + 1) | {"input_sizes": [[number, n] for n in range(100)]}
            for number in range(9)]  # fmt: skip
    with pytest.raises(FlightRecordError, match="1000 sizes"):
        dump.read_dump(nccl(*many))


def test_keys_that_only_later_entries_have_are_seen() -> None:
    first, second = entry(0, 1), entry(1, 2)
    first["something"] = "of its own"
    second["frames"] = [{"name": "step", "filename": "train.py", "line": 7}]
    assert dump.read_dump(nccl(first, second)).sites == ("train.py:7 step",)


def test_payloads_that_come_in_turns_keep_their_numbers() -> None:
    many = [entry(n, n + 1) | {"input_sizes": [[n % 20]]} for n in range(100)]
    record = dump.read_dump(nccl(*many))
    assert [record.payloads[number].sizes_in for number in record.columns["payload"]] == [
        ((n % 20,),) for n in range(100)
    ]
    assert len(record.payloads) == 20


@pytest.mark.parametrize("part", ["{}", "[]", '{"a":[]}'])
def test_json_of_nothing_but_containers_is_refused_unread(part, monkeypatch) -> None:
    monkeypatch.setattr(dump, "MAX_CONTAINERS", 100)
    text = json.dumps({"entries": []}).replace("[]", "[" + ",".join([part] * 120) + "]")
    with pytest.raises(FlightRecordError, match="more than 100 objects and lists"):
        dump.decode(text.encode())
