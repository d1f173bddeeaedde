"""What members of a collective must agree on, one rule a test."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightkeeper.monitor.records.signature import (
    closes_coalesced,
    differs_silently,
    dtype_name,
    dtype_nbytes,
    odd_whole,
    op_name,
    payload_of,
    peers_of,
    signature_of,
)
from tests.monitor.records.pairs import agree
from tests.timing import cpu_s


def call(recorded, given=(), got=None, *, dtype="Float", **more):
    """A payload by element counts; what comes out is what goes in, unless told."""
    given = (given,) if isinstance(given, int) else given
    got = given if got is None else (got,) if isinstance(got, int) else got
    return payload_of(
        recorded, tuple((n,) for n in given), tuple((n,) for n in got),
        dtypes_in=[dtype] * len(given), dtypes_out=[dtype] * len(got), **more,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("recorded", "family"),
    [
        ("nccl:_all_gather_base", "all_gather"),
        ("nccl:all_gather_into_tensor_coalesced", "all_gather"),
        ("nccl:ALLGATHER_coalesced", "all_gather"),
        ("nccl:_reduce_scatter_base", "reduce_scatter"),
        ("nccl:REDUCE_SCATTER_coalesced", "reduce_scatter"),
        ("nccl:allreduce_coalesced", "all_reduce"),
        ("nccl:_broadcast_oop", "broadcast"),
        ("nccl:_reduce_oop", "reduce"),
        ("nccl:all_reduce_barrier", "barrier"),
        ("nccl:coalesced", "coalesced"),
        ("nccl:send 0->1", "send"),
        ("nccl:recv 1<-0", "recv"),
        ("ncclx:all_to_all_v_single", "all_to_all"),
        ("gloo:all_to_all", "all_to_all"),
        ("isend", "send"),
        ("reduce_scatter_tensor", "reduce_scatter"),
        ("gloo:novelty", "novelty"),
    ],
)
def test_every_writers_names_become_one_family(recorded, family) -> None:
    assert op_name(recorded) == family


def test_a_name_of_endings_without_end_is_read_in_no_time() -> None:
    assert cpu_s(lambda: op_name("_v" * 200_000 + "x")) < 2


def test_only_the_closing_entries_of_coalesced_operations_close_them() -> None:
    ends = ["nccl:coalesced", "nccl:ALLGATHER_coalesced", "nccl:REDUCE_SCATTER_coalesced"]
    calls = ["nccl:allreduce_coalesced", "nccl:all_gather_into_tensor_coalesced", "nccl:send 0->1"]
    assert all(map(closes_coalesced, ends))
    assert not any(map(closes_coalesced, calls))


@pytest.mark.parametrize(
    ("recorded", "peers"),
    [("nccl:send 0->12", (0, 12)), ("nccl:recv 1<-0", (0, 1)), ("send", None),
     ("nccl:all_reduce", None)],
)  # fmt: skip
def test_peers_stand_in_nccls_names(recorded, peers) -> None:
    assert peers_of(recorded) == peers


@pytest.mark.parametrize(
    ("recorded", "name", "nbytes"),
    [
        ("Float", "float32", 4), ("torch.float32", "float32", 4), ("BFloat16", "bfloat16", 2),
        ("Long", "int64", 8), ("Bool", "bool", 1), ("Byte", "uint8", 1),
        ("Float8_e4m3fn", "float8_e4m3fn", 1), ("Float4_e2m1fn_x2", "float4_e2m1fn_x2", 1),
        ("ComplexFloat", "complex64", 8), ("UInt16", "uint16", 2), ("novelty", "novelty", None),
    ],
)  # fmt: skip
def test_dtypes_have_torchs_names_and_widths(recorded, name, nbytes) -> None:
    assert dtype_name(recorded) == name
    assert dtype_nbytes(name) == nbytes


def test_an_undefined_tensor_has_no_dtype() -> None:
    assert dtype_name("Undefined") is None


AG, RS = "nccl:_all_gather_base", "nccl:_reduce_scatter_base"


@pytest.mark.parametrize(
    ("this", "other", "verdict"),
    [
        pytest.param(call("nccl:all_reduce", 6), call("nccl:all_reduce", 6), True, id="same"),
        pytest.param(call("nccl:all_reduce", 6), call("nccl:all_reduce", 7), False, id="size"),
        pytest.param(call("nccl:all_reduce", 6), call("nccl:broadcast", 6), False, id="op"),
        pytest.param(call("nccl:all_reduce", 6), call("nccl:all_reduce", 6, dtype="Int"), False,
                     id="dtype"),
        pytest.param(call("all_reduce", 6, reduce_op="ReduceOp.SUM"),
                     call("all_reduce", 6, reduce_op="RedOpType.MAX"), False, id="reduce op"),
        pytest.param(call("broadcast", 6, root=0), call("broadcast", 6, root=1), False, id="root"),
        pytest.param(call("broadcast", 6, root=0), call("broadcast", 6), True,
                     id="a root that is not recorded is not compared"),
        pytest.param(call("nccl:all_reduce", 6, 7), call("nccl:all_reduce", 6, 7), False,
                     id="all_reduce gets what it gives"),
        pytest.param(call(AG, 5, 20), call(AG, 5, 20), True, id="all_gather"),
        pytest.param(call(AG, 5, 15), call(AG, 5, 15), False, id="all_gather of a smaller group"),
        pytest.param(call(AG, 5, 20), call("gloo:all_gather", 5, (5,) * 4), True,
                     id="all_gather into a list"),
        pytest.param(call(AG, 5, 20), call("nccl:all_gather_into_tensor_coalesced", (5,), (20,)),
                     True, id="all_gather coalesced, one"),
        pytest.param(call("all_gather", 1, (1, 2, 3, 4)), call("all_gather", 4, (1, 2, 3, 4)),
                     True, id="uneven all_gather"),
        pytest.param(call("all_gather", 1, (1, 2, 3, 4)), call("all_gather", 4, (1, 2, 3, 5)),
                     False, id="uneven all_gather, another list"),
        pytest.param(call(RS, 20, 5), call(RS, 20, 5), True, id="reduce_scatter"),
        pytest.param(call(RS, 20, 5), call(RS, 16, 4), False, id="reduce_scatter, size"),
        pytest.param(call(RS, 20, 6), call(RS, 20, 6), False, id="reduce_scatter that gets more"),
        pytest.param(call("reduce_scatter", (5,) * 4, 5), call("reduce_scatter_tensor", 20, 5),
                     True, id="reduce_scatter of a list"),
        pytest.param(call("reduce_scatter", (1, 2, 3, 4), 1),
                     call("reduce_scatter", (1, 2, 3, 4), 4), True, id="uneven reduce_scatter"),
        pytest.param(call("gather", 5, ()), call("gather", 5, (5,) * 4), True, id="gather"),
        pytest.param(call("gather", 5, ()), call("gather", 6, (6,) * 4), False, id="gather, size"),
        pytest.param(call("gloo:scatter", (), 5), call("gloo:scatter", (5,) * 4, 5), True,
                     id="scatter as gloo writes it"),
        pytest.param(call("nccl:scatter", 5, (0,)), call("nccl:scatter", 5, (5,) * 4), True,
                     id="scatter as NCCL writes it, in and out swapped"),
        pytest.param(call("nccl:scatter", 5, (0,)), call("nccl:scatter", 6, (6,) * 4), False,
                     id="scatter as NCCL writes it, size"),
        pytest.param(call("nccl:all_to_all", 5, 9), call("nccl:all_to_all", 9, 5), None,
                     id="all_to_all may be split"),
        pytest.param(call("nccl:all_to_all", 5), call("nccl:all_to_all", 5, dtype="Int"), False,
                     id="all_to_all of another dtype"),
        pytest.param(call("gloo:barrier"), call("gloo:barrier"), True, id="barrier"),
        pytest.param(call("gloo:barrier"), call("gloo:all_reduce", 1), False, id="barrier, op"),
        pytest.param(call("gloo:all_reduce"), call("gloo:all_reduce", 6), None,
                     id="a record without sizes"),
        pytest.param(call("gloo:novelty", 1), call("gloo:novelty", 2), None, id="unknown op"),
        pytest.param(call("gloo:novelty", 1), call("gloo:all_reduce", 1), False,
                     id="unknown op and another"),
    ],
)  # fmt: skip
def test_two_members_agree_when_the_semantics_let_them(this, other, verdict) -> None:
    assert agree(this, other, 4) is verdict
    assert agree(other, this, 4) is verdict


def test_without_the_groups_size_nothing_follows_from_it() -> None:
    assert agree(call(AG, 5, 15), call(AG, 5, 15)) is True
    assert agree(call(AG, 5, 15), call(AG, 5, 20)) is False
    assert agree(call(RS, 20, 6), call(RS, 20, 6)) is True


def test_a_list_that_the_ring_cut_off_is_not_compared() -> None:
    cut, whole = call("all_gather", 100, (1, 2)), call("all_gather", 1, (1, 2, 3))
    assert agree(cut, whole, 4) is not False


def test_all_to_all_is_balanced_over_all_members() -> None:
    assert odd_whole({0: call("all_to_all", 5, 9), 1: call("all_to_all", 9, 5)}, 2) == {}
    sides = odd_whole({0: call("all_to_all", 5, 9), 1: call("all_to_all", 9, 6)}, 2)
    assert list(map(str, sides.values())) == [
        "all_to_all of 5 into 9 float32", "all_to_all of 9 into 6 float32",
    ]  # fmt: skip


def test_all_to_all_is_not_added_up_before_all_members_are_seen() -> None:
    assert odd_whole({0: call("all_to_all", 5, 9), 1: call("all_to_all", 9, 6)}, 3) == {}


def test_two_roots_of_a_gather_cannot_be_told_apart() -> None:
    root, other = call("gloo:gather", 5, (5,) * 3), call("gloo:gather", 5, ())
    assert odd_whole({0: other, 1: root, 2: other}, 3) == {}
    sides = odd_whole({0: root, 1: root, 2: other}, 3)
    assert {rank: signature.root for rank, signature in sides.items()} == {0: 0, 1: 1}


def test_a_gather_without_a_root_is_a_disagreement_of_all() -> None:
    sides = odd_whole(dict.fromkeys(range(3), call("nccl:gather", 5, (0,))), 3)
    assert list(sides) == [0, 1, 2]


def test_same_bytes_of_another_dtype_are_silent() -> None:
    floats = signature_of(call("all_reduce", 6))
    assert differs_silently(floats, signature_of(call("all_reduce", 6, dtype="Int")))
    assert differs_silently(floats, signature_of(call("all_reduce", 3, dtype="Double")))
    assert not differs_silently(floats, signature_of(call("all_reduce", 6, dtype="Double")))
    assert not differs_silently(floats, signature_of(call("broadcast", 6)))
    assert not differs_silently(floats, floats)


def test_another_reduce_op_is_silent() -> None:
    by_sum, other = (signature_of(call("all_reduce", 6, reduce_op=op)) for op in ("SUM", "MAX"))
    assert differs_silently(by_sum, other)


COUNTS = st.lists(st.integers(0, 3), max_size=3)
PAYLOADS = st.builds(
    call,
    st.sampled_from(["nccl:all_reduce", AG, RS, "gather", "nccl:scatter", "all_to_all", "barrier",
                     "broadcast", "nccl:coalesced", "novelty", "nccl:send 0->1", "nccl:recv 1<-0"]),
    COUNTS, COUNTS, dtype=st.sampled_from(["Float", "Int", "Undefined"]),
    root=st.none() | st.integers(0, 1),
)  # fmt: skip


@given(PAYLOADS, PAYLOADS, st.integers(0, 3))
def test_agreement_has_no_direction(this, other, size) -> None:
    assert agree(this, other, size) is agree(other, this, size)


@given(PAYLOADS, st.integers(1, 4))
def test_what_all_do_alike_is_odd_only_where_the_whole_does_not_add_up(payload, size) -> None:
    sides = odd_whole(dict.fromkeys(range(size), payload), size)
    assert not sides or payload.op in ("all_to_all", "gather", "scatter")
