"""The same yes or no as torch.distributed.flight_recorder, wherever torch is right.

First sweeps over what backends write, rightly and wrongly, where both must say the same. Then the
cases where they differ, each with both answers; docs/decisions.md has a line on each.
"""

from itertools import combinations, product
from pathlib import Path

import pytest
from torch.distributed.flight_recorder.components import utils as torch_utils
from torch.distributed.flight_recorder.components.types import COLLECTIVES, MatchState, Op

from lightkeeper.monitor.records.signature import odd_whole, payload_of
from tests.monitor.records.pairs import agree, possible

pytestmark = pytest.mark.integration  # many seconds

SIZE = 4
MEMBERS = {"0": set(range(SIZE))}
YES, STATE = {MatchState.FULLY_MATCHED}, MatchState.COLLECTIVE_STATE_MISMATCH


def event(name, given, got, dtypes="Float", dtypes_out=None, *, state="scheduled"):
    """An entry as torch dumps it. One dtype is that of all tensors of its side."""
    dtypes_out = dtypes if dtypes_out is None else dtypes_out
    return {
        "profiling_name": name, "process_group": ("0", "default_pg"), "state": state,
        "input_sizes": given, "output_sizes": got,
        "input_dtypes": [dtypes] * len(given) if isinstance(dtypes, str) else dtypes,
        "output_dtypes": [dtypes_out] * len(got) if isinstance(dtypes_out, str) else dtypes_out,
        "collective_seq_id": 1, "p2p_seq_id": 0, "time_created_ns": 0,
    }  # fmt: skip


def torch_says(this, other):
    return Op(this, MEMBERS, "0").match(Op(other, MEMBERS, "0")).state


def payload(entry):
    sizes = [tuple(map(tuple, entry[key])) for key in ("input_sizes", "output_sizes")]
    return payload_of(
        entry["profiling_name"], *sizes,
        dtypes_in=entry["input_dtypes"], dtypes_out=entry["output_dtypes"],
    )  # fmt: skip


def ours_says(this, other):
    return agree(payload(this), payload(other), SIZE)


def as_ours(state):
    return None if state is MatchState.UNDECIDED else state in YES


# -- where both must say the same ------------------------------------------------------------

ONE = ([[5]], [[6]], [[20]], [[24]])
MANY = ([[5], [6]], [[6], [6]], [[20], [24]], [[24], [24]])
LISTS = ([], [[5]] * SIZE, [[6]] * SIZE)
SIZELESS = {
    "barrier": [([], [])], "all_reduce_barrier": [([[1]], [[1]])],
    "split": [([], [])], "new_window": [([], [])],
    "ALLGATHER_coalesced": [([], [])], "REDUCE_SCATTER_coalesced": [([], [])],
    "coalesced": [([], [])],
}  # fmt: skip
FREE = {"all_to_all_single", "all_to_all_v_single", "all_gather_v", "reduce_scatter_v"}
"""Whose sizes differ between healthy members, though torch compares them."""
CHECKED = {"all_gather", "all_gather_into_tensor_coalesced", "reduce_scatter",
           "_reduce_scatter_base", "reduce_scatter_tensor_coalesced"}  # fmt: skip
"""Of which torch checks that what comes out follows from what goes in."""
DTYPES = [("Float", "Float"), ("Int", "Int"), ("BFloat16", "BFloat16"), ("Float", "Int")]


def sizes_of(kind):
    if kind in SIZELESS:
        return SIZELESS[kind]
    if kind.endswith("_coalesced"):
        return [*product(ONE, ONE), *product(MANY, MANY)]
    return {"gather": list(product(ONE, LISTS)), "scatter": list(product(LISTS, ONE))}.get(
        kind, list(product(ONE, ONE))
    )


@pytest.mark.parametrize("kind", sorted((COLLECTIVES | {"coalesced"}) - FREE))
def test_same_answer_for_every_size_and_dtype(kind) -> None:
    one_way = ("gather", "scatter", "broadcast", "_broadcast_oop")  # torch looks at one side only
    dtypes = DTYPES[:1] if kind in SIZELESS else DTYPES[:3] if kind in one_way else DTYPES
    entries = [
        event(f"nccl:{kind}", given, got, *pair)
        for (given, got), pair in product(sizes_of(kind), dtypes)
    ]
    read = [(entry, Op(entry, MEMBERS, "0"), payload(entry)) for entry in entries]
    answers = set()
    for (this, this_op, own), (other, other_op, others) in product(read, read):
        theirs, ours = as_ours(this_op.match(other_op).state), agree(own, others, SIZE)
        if theirs is True and ours is False and kind not in CHECKED:
            assert not possible(own, SIZE)  # torch does not check this op
            continue
        assert ours is theirs, f"{this}\n{other}"
        answers.add(ours)
    assert answers, "nothing was compared"


def test_same_answer_for_every_two_ops_of_different_families() -> None:
    kinds = sorted(COLLECTIVES | {"coalesced"})
    compared = 0
    for left, right in combinations(kinds, 2):
        this, other = (event(f"nccl:{kind}", [[5]], [[5]]) for kind in (left, right))
        if payload(this).op == payload(other).op:
            continue
        assert torch_says(this, other) not in YES
        assert ours_says(this, other) is False
        compared += 1
    assert compared > 300


@pytest.mark.parametrize("totals", [
    ((5, 9), (9, 5), (4, 4), (4, 4)), ((5, 9), (9, 6), (4, 4), (4, 4)), ((8, 8),) * 4,
    ((8, 8), (8, 8), (8, 8), (8, 7)), ((0, 3), (3, 0), (1, 1), (1, 1)),
])  # fmt: skip
def test_same_answer_for_all_to_all_as_a_whole(totals) -> None:
    entries = [event("nccl:all_to_all", [[given]], [[got]]) for given, got in totals]
    fails, _, _ = torch_utils.check_size_alltoall(entries)
    assert bool(odd_whole(dict(enumerate(map(payload, entries))), SIZE)) is fails


# -- where ours differs ----------------------------------------------------------------------

GLOO_LIST = [[5]] * SIZE
DIFFERENCES = [
    pytest.param("states", event("nccl:all_reduce", [[5]], [[5]], state="started"),
                 event("nccl:all_reduce", [[5]], [[5]]), STATE, True, id="states"),
    pytest.param("shapes", event("nccl:all_reduce", [[2, 3]], [[2, 3]]),
                 event("nccl:all_reduce", [[6]], [[6]]),
                 MatchState.SIZE_OR_SYNTAX_MISMATCH, True, id="shapes"),
    pytest.param("names of one transfer", event("nccl:_all_gather_base", [[5]], [[20]]),
                 event("nccl:all_gather", [[5]], [[20]]),
                 MatchState.COLLECTIVE_TYPE_MISMATCH, True, id="names of one transfer"),
    pytest.param("lists of outputs", event("gloo:all_gather", [[5]], GLOO_LIST),
                 event("gloo:all_gather", [[5]], GLOO_LIST),
                 MatchState.SIZE_OR_SYNTAX_MISMATCH, True, id="a healthy gloo all_gather"),
    pytest.param("lists of outputs",
                 event("nccl:all_gather_into_tensor_coalesced", [[5], [6]], [[20], [25]]),
                 event("nccl:all_gather_into_tensor_coalesced", [[5], [6]], [[20], [25]]),
                 MatchState.FULLY_MATCHED, False, id="torch looks at the first tensor only"),
    pytest.param("lists of outputs",
                 event("ncclx:all_gather_v", [[1]], [[1], [2], [3], [4]]),
                 event("ncclx:all_gather_v", [[2]], [[1], [2], [3], [4]]),
                 MatchState.SIZE_OR_SYNTAX_MISMATCH, True, id="a healthy uneven all_gather"),
    pytest.param("lists of outputs", event("ncclx:all_to_all_v_single", [[5]], [[9]]),
                 event("ncclx:all_to_all_v_single", [[9]], [[5]]),
                 MatchState.SIZE_OR_SYNTAX_MISMATCH, None, id="a healthy uneven all_to_all"),
    pytest.param("scatter of NCCL", event("nccl:scatter", [[5]], [[5]] * SIZE),
                 event("nccl:scatter", [[5]], [[0]], "Float", "Undefined"),
                 MatchState.SIZE_OR_SYNTAX_MISMATCH, True, id="a healthy scatter of NCCL"),
    pytest.param("ops that torch does not check", event("nccl:_all_gather_base", [[5]], [[6]]),
                 event("nccl:_all_gather_base", [[5]], [[6]]),
                 MatchState.FULLY_MATCHED, False, id="an all_gather that cannot be"),
    pytest.param("scalars", event("nccl:all_reduce", [[]], [[]]),
                 event("nccl:all_reduce", [[]], [[]], "Double"),
                 MatchState.FULLY_MATCHED, False, id="scalars of two dtypes"),
    pytest.param("order of dtypes",
                 event("nccl:allreduce_coalesced", [[5], [5]], [[5], [5]], ["Float", "Half"],
                       ["Float", "Half"]),
                 event("nccl:allreduce_coalesced", [[5], [5]], [[5], [5]], ["Half", "Float"],
                       ["Half", "Float"]),
                 MatchState.FULLY_MATCHED, False, id="dtypes in another order"),
    pytest.param("sizes that are not recorded", event("nccl:all_reduce", [], []),
                 event("nccl:all_reduce", [[5]], [[5]]),
                 MatchState.SIZE_OR_SYNTAX_MISMATCH, None, id="a record without sizes"),
    pytest.param("names that torch does not know", event("gloo:all_reduce_sparse", [[5]], [[5]]),
                 event("gloo:all_reduce_sparse", [[5]], [[5]]), AssertionError, None,
                 id="an op that torch does not know"),
    pytest.param("names that torch does not know", event("ucc:all_reduce", [[5]], [[5]]),
                 event("ucc:all_reduce", [[5]], [[5]]), AssertionError, True,
                 id="a backend that torch does not know"),
    pytest.param("names that torch does not know",
                 event("gloo:all_gather", [], []), event("gloo:all_gather", [], []), IndexError,
                 True, id="torch falls over an all_gather without sizes"),
]  # fmt: skip
DIFFERENCES_TOLD = Path(__file__).parents[3] / "evidence" / "measurements.md"


@pytest.mark.parametrize(("name", "this", "other", "theirs", "ours"), DIFFERENCES)
def test_a_difference_is_known_and_its_reason_written(name, this, other, theirs, ours) -> None:
    if isinstance(theirs, type):
        with pytest.raises(theirs):
            torch_says(this, other)
    else:
        assert torch_says(this, other) is theirs
    assert ours_says(this, other) is ours
    assert f"**{name}**" in DIFFERENCES_TOLD.read_text()


def test_states_are_all_that_keeps_equal_payloads_apart() -> None:
    for kind in sorted(COLLECTIVES - set(SIZELESS)):
        for given, got in sizes_of(kind):
            this, other = (event(f"nccl:{kind}", given, got, state=state)
                          for state in ("completed", "scheduled"))  # fmt: skip
            if as_ours(torch_says(this, this)) is not False:
                assert torch_says(this, other) is STATE
                assert ours_says(this, other) is ours_says(this, this)
