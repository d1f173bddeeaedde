"""A pickle is opened when it holds plain values and refused before it runs when it does not."""

import contextlib
import os
import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightkeeper.monitor.records import safe_pickle
from lightkeeper.monitor.records.safe_pickle import FlightRecordError
from tests.deep import only_explored
from tests.monitor.records.dumps import as_pickle, entry, nccl
from tests.timing import cpu_s

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.text() | st.binary()
    | st.floats(allow_nan=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)  # fmt: skip


@given(plain, st.sampled_from([3, 4, 5]))
def test_plain_values_come_back_as_they_were(value, protocol) -> None:
    assert safe_pickle.loads(pickle.dumps(value, protocol=protocol)) == value


def test_pairs_of_names_come_back_as_they_were_also_by_memo() -> None:
    pair = ("0", "default_pg")
    value = {"entries": [{"process_group": pair}, {"process_group": pair}], "empty": ()}
    assert safe_pickle.loads(pickle.dumps(value, protocol=4)) == value


class _Runs:
    def __reduce__(self):
        return os.system, ("touch ran",)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_pickle_that_would_run_a_command_does_not_run_it(protocol, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FlightRecordError):
        safe_pickle.loads(pickle.dumps({"version": "2.10", "x": _Runs()}, protocol=protocol))
    assert not (tmp_path / "ran").exists()


HOSTILE = {
    "global": b"\x80\x02cos\nsystem\n.",
    "stack_global": b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
    "inst": b"(S'true'\nios\nsystem\n.",
    "reduce": b"\x80\x02]]R.",
    "build": b"\x80\x02]}b.",
    "newobj": b"\x80\x02])\x81.",
    "extension": b"\x80\x02\x82\x01.",
    "persistent": b"\x80\x02Nq\x00Q.",
    "duplicate": b"\x80\x022.",
    "memo_of_64_GiB": b"\x80\x02Nr\xff\xff\xff\xff.",
    "text_memo": b"\x80\x02Np99999999999\n.",
    "text_of_4_GiB": b"\x80\x02X\xff\xff\xff\xffabc.",
    "text_of_all_memory": b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fabc.",
    "bytes_of_all_memory": b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7fabc.",
    "frame_of_all_memory": b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7fN.",
    "bytearray": b"\x80\x05\x96\x04\x00\x00\x00\x00\x00\x00\x00abcd.",
    "huge_integer": b"\x80\x02\x8a\xff" + b"\x01" * 255 + b".",
    "long_integer": b"\x80\x02\x8b\x04\x00\x00\x00aaaa.",
    "set": b"\x80\x04\x8f.",
    "list_as_key": b"\x80\x02}]Ns.",
    "nothing_on_the_stack": b"\x80\x02.",
    "unknown_memo": b"\x80\x02h\x07.",
    "append_to_nothing": b"\x80\x02Na.",
    "protocol_9": b"\x80\x09N.",
    "two_pickles": b"\x80\x02N.\x80\x02N.",
    "no_end": b"\x80\x02N",
    "empty": b"",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_refuses_what_is_no_plain_value(data) -> None:
    with pytest.raises(FlightRecordError):
        safe_pickle.loads(data)


def test_a_key_whose_hash_would_never_end_is_refused() -> None:
    nested = b"".join(b"h" + bytes([n]) + b"h" + bytes([n]) + b"\x86q" + bytes([n + 1])
                      for n in range(80))  # fmt: skip
    with pytest.raises(FlightRecordError, match="tuple that holds a container"):
        safe_pickle.loads(b"\x80\x02})q\x00" + nested + b"Ns.")


def test_a_key_whose_hash_would_overflow_the_stack_is_refused() -> None:
    with pytest.raises(FlightRecordError, match="tuple that holds a container"):
        safe_pickle.loads(b"\x80\x02})" + b"\x85" * 1_000_000 + b"Ns.")


def test_a_tuple_hidden_behind_a_number_used_twice_is_refused() -> None:
    # "q 0" twice, then the reader numbers by itself: it calls the tuple 1, a count of puts says 2.
    data = b"\x80\x04Nq\x00Nq\x00)\x94K\x01q\x02" + b"h\x01\x85."
    with pytest.raises(FlightRecordError, match="two ways of numbering"):
        safe_pickle.loads(data)


def test_a_number_used_again_for_a_container_is_not_taken_for_the_text_it_was() -> None:
    with pytest.raises(FlightRecordError, match="tuple that holds a container"):
        safe_pickle.loads(b"\x80\x02X\x01\x00\x00\x00aq\x00)q\x00h\x00\x85.")


@pytest.mark.parametrize("size", [1 << 15, (1 << 15) + 1, 3 << 15, 200_001])
def test_texts_and_instructions_may_lie_across_any_border(size) -> None:
    for text in ("a" * (size - 9), "q" * (size - 8), "." * size):
        value = [text, list(range(size // 3)), text]
        assert safe_pickle.loads(pickle.dumps(value, protocol=2)) == value
        assert safe_pickle.loads(pickle.dumps(value, protocol=4)) == value


def test_a_list_in_a_list_in_a_list_a_million_times_is_no_crash() -> None:
    value = safe_pickle.loads(b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b".")
    assert type(value) is list


def test_memo_indices_may_be_as_many_as_there_are_values() -> None:
    values = [f"text {n}" for n in range(400)]
    assert safe_pickle.loads(pickle.dumps([values, values], protocol=2)) == [values, values]


def test_more_instructions_than_any_record_has_are_refused(monkeypatch) -> None:
    monkeypatch.setattr(safe_pickle, "MAX_INSTRUCTIONS", 64)
    with pytest.raises(FlightRecordError, match="instructions"):
        safe_pickle.loads(b"\x80\x02" + b"]" * 200 + b".")


@given(st.data())
def test_a_changed_byte_is_read_or_refused(data) -> None:
    whole = bytearray(as_pickle(nccl(entry(0, 1)), data.draw(st.sampled_from([2, 4]))))
    whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))

    def work() -> None:
        with contextlib.suppress(FlightRecordError):
            safe_pickle.loads(bytes(whole))

    assert cpu_s(work, 1) < 5


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(noise) -> None:
    with contextlib.suppress(FlightRecordError):
        safe_pickle.loads(b"\x80\x02" + noise)


@pytest.mark.parametrize(
    ("item", "instructions"),
    [
        pytest.param(b"}", 1, id="dicts"),
        pytest.param(b"\x8c\x06\xf0\x9f\x98\x80aa", 1, id="texts"),
        pytest.param(b"]", 1, id="lists", marks=only_explored),
        pytest.param(b"}K\x01Ns", 4, id="full dicts", marks=only_explored),
        pytest.param(b"J\xff\xff\xff\x01", 1, id="numbers", marks=only_explored),
    ],
)
def test_what_would_take_much_more_memory_than_its_bytes_is_refused_unread(
    item, instructions, monkeypatch
) -> None:
    for bound in ("MAX_INSTRUCTIONS", "MAX_MEMORY"):  # the work of both, too
        monkeypatch.setattr(safe_pickle, bound, getattr(safe_pickle, bound) // 16)
    times = (safe_pickle.MAX_INSTRUCTIONS - 9) // instructions
    whole = b"\x80\x04](" + item * times + b"e."
    with pytest.raises(FlightRecordError, match="MiB in memory"):
        safe_pickle._inspect(whole)


def test_the_largest_record_that_is_expected_fits() -> None:
    """20,000 entries, each with a stack of 30 calls."""
    stack = [{"name": f"f{n}", "filename": f"/job/file{n}.py", "line": n} for n in range(30)]
    some = [{"id": n, "sizes": [[n]], "frames": [dict(f) for f in stack]} for n in range(1000)]
    whole = pickle.dumps({"entries": some}, protocol=2)
    raw = np.frombuffer(whole, np.uint8)
    ops = raw[safe_pickle._instruction_starts(whole, raw, 1 << 24)]
    costs = np.bincount(ops, minlength=256) @ safe_pickle._COSTS + 4 * len(raw)
    assert 20 * costs < safe_pickle.MAX_MEMORY


def test_a_frame_that_asks_for_more_than_there_is_is_refused_before_it_is_allocated() -> None:
    for size in (1 << 20, 1 << 40, 2**64 - 1):
        with pytest.raises(FlightRecordError, match="a frame longer than all of it"):
            safe_pickle.loads(b"\x80\x04\x95" + size.to_bytes(8, "little") + b"N.")


def test_inspecting_takes_no_large_multiple_of_the_file() -> None:
    whole = b"\x80\x04](" + b"\x8c\x02ab" * 2_000_000 + b"e."
    tracemalloc.start()
    safe_pickle._inspect(whole)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 6 * len(whole)
