"""A ring in the normal form that detectors read; what cannot be read raises one error."""

import pytest

from monitor.flight_recorder import FlightRecordError, from_ring
from monitor.flight_recorder.ops import dtype_name, op_name
from monitor.flight_recorder.signature import signature
from monitor.names import GroupName, Host
from worker_server.wire import FlightRecord, Identity, RingEntry

IDENTITY = Identity("job", GroupName("rg_0"), 1, 2, Host("h"), 7, "one")


def ring(*entries: RingEntry) -> FlightRecord:
    return FlightRecord(IDENTITY, True, {"intra": (0, 1)}, entries, 3, None)


def test_a_ring_keeps_site_and_place_and_knows_who_is_inside() -> None:
    done = RingEntry("intra", 1, "all_reduce", ((4, 5),), dtype="torch.float32", nth=0, attempt=3,
                     site="t.py:1", enter_age_s=3.0, exit_age_s=2.0)  # fmt: skip
    inside = RingEntry("intra", 2, "broadcast", ((8,),), root=0, nth=1, attempt=3, enter_age_s=0.0)
    record = from_ring(ring(done, inside))
    assert str(record.entries[0].signature) == "all_reduce of 20 float32"
    assert not record.entries[0].unfinished
    assert record.entries[1].unfinished
    assert record.at("intra", 2) is record.entries[1]
    assert record.at("intra", 3) is None
    assert record.entries[1].signature.root == 0


def test_a_completed_entry_with_an_error_counts_as_unfinished() -> None:
    failed = RingEntry(
        "intra", 1, "barrier", enter_age_s=0.0, exit_age_s=0.0, error="Connection reset"
    )
    assert from_ring(ring(failed)).entries[0].unfinished


def test_point_to_point_operations_are_left_out() -> None:
    assert not from_ring(ring(RingEntry("intra", 1, "send", root=1, enter_age_s=0.0))).entries


def test_sequence_ids_that_start_again_drop_the_process_group_of_before() -> None:
    record = from_ring(
        ring(*(RingEntry("intra", seq, "barrier", enter_age_s=0.0) for seq in (7, 1)))
    )
    assert [entry.seq for entry in record.entries] == [1]


def test_a_sequence_id_below_one_is_an_error() -> None:
    with pytest.raises(FlightRecordError, match=r"rg_0\.1: sequence 0 of 'intra'"):
        from_ring(ring(RingEntry("intra", 0, "barrier", enter_age_s=0.0)))


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
