"""Both writers end in one normal form; what cannot be read raises one error."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.flight_recorder import (
    EntryState,
    FlightRecordError,
    Source,
    from_ring,
    from_torch_json,
)
from monitor.flight_recorder.record import dtype_name, op_name, signature
from monitor.names import GroupName, Host, RankName
from worker_server.wire import FlightRecord, Identity, RingEntry

RANK = RankName("rg_0.1")
IDENTITY = Identity("job", GroupName("rg_0"), 1, 2, Host("h"), 7, "one")


def ring(*entries: RingEntry) -> FlightRecord:
    return FlightRecord(IDENTITY, True, {"intra": (0, 1)}, entries, 3, None)


def torch_entry(**changes):
    entry = {
        "record_id": 4,
        "pg_id": 2,
        "process_group": ["", ""],
        "collective_seq_id": 9,
        "profiling_name": "gloo:all_reduce",
        "input_sizes": [[10, 2]],
        "output_sizes": [[10, 2]],
        "input_dtypes": ["Float"],
        "state": "scheduled",
        "retired": False,
        "is_p2p": False,
    }
    return entry | changes


def dump(*entries):
    return {"version": "2.10", "pg_config": {"": {"ranks": "[]"}}, "entries": list(entries)}


def test_a_ring_keeps_site_and_place_and_knows_who_is_inside() -> None:
    done = RingEntry("intra", 1, "all_reduce", ((4, 5),), dtype="torch.float32", nth=0, attempt=3,
                     site="t.py:1", enter_age_s=3.0, exit_age_s=2.0)  # fmt: skip
    inside = RingEntry("intra", 2, "broadcast", ((8,),), root=0, nth=1, attempt=3)
    record = from_ring(ring(done, inside))
    assert (record.source, record.dropped) == (Source.RING, 3)
    assert str(record.entries[0].signature) == "all_reduce of 20 float32"
    assert not record.entries[0].unfinished
    assert record.entries[1].unfinished
    assert record.at("intra", 2) is record.entries[1]
    assert record.at("intra", 3) is None
    assert record.entries[1].signature.root == 0


def test_a_completed_entry_with_an_error_counts_as_unfinished() -> None:
    failed = RingEntry("intra", 1, "barrier", exit_age_s=0.0, error="Connection reset")
    assert from_ring(ring(failed)).entries[0].unfinished


def test_point_to_point_operations_are_left_out() -> None:
    assert not from_ring(ring(RingEntry("intra", 1, "send", root=1))).entries


def test_sequence_ids_that_start_again_drop_the_process_group_of_before() -> None:
    record = from_ring(ring(RingEntry("intra", 7, "barrier"), RingEntry("intra", 1, "barrier")))
    assert [entry.seq for entry in record.entries] == [1]


def test_a_sequence_id_below_one_is_an_error() -> None:
    with pytest.raises(FlightRecordError, match=r"rg_0\.1: sequence 0 of 'intra'"):
        from_ring(ring(RingEntry("intra", 0, "barrier")))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        pytest.param(("all_reduce", ((2, 3),)), ("allreduce", ((6,),)), True, id="shape"),
        pytest.param(("all_reduce", ((6,),)), ("all_reduce", ((7,),)), False, id="count"),
        pytest.param(("all_to_all", ((6,),)), ("all_to_all_single", ((7,),)), True, id="splits"),
        pytest.param(("scatter", ()), ("scatter", ((4,),)), True, id="only the root has an input"),
        pytest.param(("barrier", ()), ("all_reduce", ()), False, id="op"),
    ],
)  # fmt: skip
def test_sizes_are_compared_by_what_the_collective_makes_equal(one, other, same) -> None:
    left = signature(one[0], one[1], ((2,),))
    right = signature(other[0], other[1], ((2,),))
    assert (left == right) is same


def test_names_of_ops_and_dtypes_are_the_same_from_every_writer() -> None:
    assert op_name("nccl:_all_gather_base") == op_name("all_gather_into_tensor") == "all_gather"
    assert dtype_name("Float") == dtype_name("torch.float32") == "float32"
    assert dtype_name("BFloat16") == dtype_name("torch.bfloat16")


def test_gloo_says_only_whether_an_entry_is_retired() -> None:
    record = from_torch_json(dump(torch_entry(), torch_entry(retired=True)), RANK)
    assert [entry.state for entry in record.entries] == [
        EntryState.SCHEDULED, EntryState.COMPLETED,
    ]  # fmt: skip
    assert record.entries[0].process_group == "unnamed 2"
    assert record.members == {}


def test_nccl_says_states_names_and_members() -> None:
    data = dump(torch_entry(process_group=["0", "default_pg"], state="started",
                            profiling_name="nccl:all_reduce"))  # fmt: skip
    data["pg_config"] = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    record = from_torch_json(data, RANK)
    assert record.entries[0].state is EntryState.STARTED
    assert record.members == {record.entries[0].process_group: (0, 1)}


def test_a_record_without_entries_is_empty_and_well() -> None:
    assert from_torch_json({"version": "2.10"}, RANK).entries == ()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "a record is an object, got list"),
        ({"version": "1.0"}, "schema '1.0' is not 2.x"),
        (dump(torch_entry(collective_seq_id="9")), "collective_seq_id is '9', expected int"),
        (dump(torch_entry(state="lost")), "unknown state 'lost'"),
        (dump(torch_entry(input_sizes=[["a"]])), "input_sizes holds something else than numbers"),
        (dump(3), "an entry is an object, got int"),
    ],
)
def test_an_unreadable_record_says_what_is_wrong(data, message) -> None:
    with pytest.raises(FlightRecordError) as caught:
        from_torch_json(data, RANK)
    assert str(caught.value) == f"rg_0.1: {message}"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
KEYS = sorted(torch_entry())


@given(JSON, st.sampled_from(KEYS))
def test_any_value_in_any_place_raises_only_the_one_error(value, key) -> None:
    for data in (value, dump(value), dump(torch_entry(**{key: value})),
                 dump() | {"pg_config": value}, dump() | {"pg_config": {"a": value}},
                 dump() | {"pg_config": {"a": {"ranks": value}}}):  # fmt: skip
        with contextlib.suppress(FlightRecordError):
            from_torch_json(data, RANK)
