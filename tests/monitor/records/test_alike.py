"""Entries written alike are read at once, and what comes out is what reading each of them gives."""

import pickle
import random
import struct
import time
from copy import deepcopy
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.records import dump
from monitor.records.safe_pickle import FlightRecordError
from tests.corpus.cases import Case
from tests.corpus.fleet import MIXES, write_fleet
from tests.corpus.gloo_captures import Captures
from tests.fuzz.games import ODD
from tests.monitor.records.dumps import as_pickle, entry, nccl, pending, send

pytestmark = pytest.mark.integration  # many seconds

REAL = Path(__file__).parents[4] / "shared/data/flight_recorder_nccl"
FRAMES = [{"name": "step", "filename": "/home/u/train.py", "line": 12}]


def as_torch(value) -> bytes:
    """Bytes as torch's C++ pickler writes them: only texts are numbered, all lists are filled."""
    out, texts = bytearray(b"\x80\x02"), {}

    def text(string) -> None:
        if string in texts:
            number = texts[string]
            out.extend(b"h" + bytes([number]) if number < 256 else b"j" + struct.pack("<I", number))
            return
        coded = string.encode("utf-8", "surrogatepass")
        out.extend(b"X" + struct.pack("<I", len(coded)) + coded)
        number = texts[string] = len(texts)
        out.extend(b"q" + bytes([number]) if number < 256 else b"r" + struct.pack("<I", number))

    def put(item) -> None:
        if isinstance(item, str):
            text(item)
        elif isinstance(item, dict):
            out.extend(b"}(")
            for key, inner in item.items():
                put(key)
                put(inner)
            out.extend(b"u")
        elif isinstance(item, list):
            out.extend(b"](")
            for inner in item:
                put(inner)
            out.extend(b"e")
        elif isinstance(item, tuple) and len(item) == 2:
            put(item[0])
            put(item[1])
            out.extend(b"\x86")
        else:
            out.extend(pickle.dumps(item, protocol=2)[2:-1])

    put(value)
    return bytes(out + b".")


def many(count=60):
    """A dump in which all that is read occurs, mostly alike."""
    shared = [[64, 2], [3]]
    rows = []
    for number in range(count):
        kind = number % 7
        common = {"frames": FRAMES if kind else deepcopy(FRAMES)}
        if kind == 5:
            row = send(number, number, ["nccl:send 0->1", "nccl:recv 0<-1"][number % 2], **common)
        elif kind == 6 or number > count - 4:
            row = pending(number, number * 9, pg_id=1, process_group=("7", "TP"), **common)
        else:
            name = "nccl:" + ["all_reduce", "_all_gather_base"][number % 2]
            row = entry(number, number * 9, profiling_name=name, input_sizes=shared, **common)
        rows.append(row)
    return nccl(*rows)


def alike(data: bytes, fewest=1):
    """What reading at once gives, which is what the other way gives, or None."""
    record = dump.read_alike(data, fewest)
    if record is not None:
        assert_same(record, dump.read(dump.decode(data)))
    return record


def assert_same(record, other) -> None:
    for name in record.__dataclass_fields__:
        if name != "columns":
            assert getattr(record, name) == getattr(other, name), name
    assert list(record.columns) == list(other.columns)
    for name, column in record.columns.items():
        assert column.dtype == other.columns[name].dtype, name
        assert column.tolist() == other.columns[name].tolist(), name


@pytest.mark.parametrize("write", [as_torch, as_pickle], ids=["by_torch", "by_python"])
@pytest.mark.parametrize("count", [40, 300, 1000, 1700])
def test_entries_written_alike_are_read_at_once(write, count) -> None:
    assert alike(write(many(count)), 40) is not None


@pytest.mark.parametrize("mix", MIXES, ids=["one_group", "TP8xDP", "thirds"])
def test_the_benchmarks_dumps_are_read_at_once(tmp_path, mix) -> None:
    write_fleet(tmp_path / "dumps", 8, 2000, culprit=3, mix=mix)
    for path in sorted((tmp_path / "dumps").iterdir()):
        assert alike(path.read_bytes(), 40) is not None


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_gives_the_same(protocol) -> None:
    record = alike(as_pickle(many(1001), protocol))
    assert (record is None) == (protocol > 3)


@pytest.mark.parametrize("layout", ["DP", "TPxPPxDP", "FSDP", "EP"])
@pytest.mark.parametrize("kind", ["healthy", "not_entered", "wrong_size", "gpu_error"])
def test_generated_dumps_give_the_same(kind, layout) -> None:
    labelled = Case(kind, layout, "full", blocking=False).build()
    documents = labelled.documents if labelled else []
    for _, document, _ in documents[:4]:
        assert alike(as_torch(document)) is not None
        alike(as_pickle(document))


@pytest.mark.skipif(not REAL.exists(), reason="needs ../shared/data/flight_recorder_nccl")
def test_real_files_are_read_at_once() -> None:
    for path in sorted(REAL.glob("*/_dump_*")):
        data = path.read_bytes()
        assert (alike(data) is not None) == bool(pickle.loads(data)["entries"])


def test_captures_of_gloo_give_the_same(tmp_path) -> None:
    for path in sorted(Captures.unpack(tmp_path).folder.glob("*/pickle/*")):
        alike(path.read_bytes())


def agrees(data: bytes) -> None:
    """Both ways end alike: in the same record, or the one way leaves it to the other."""
    record = dump.read_alike(data, 1)
    try:
        read = dump.read(dump.decode(data))
    except FlightRecordError:
        assert record is None
    else:
        if record is not None:
            assert_same(record, read)


CANONICAL = [as_torch(many(30)), as_pickle(many(30)), as_pickle(many(3))]


@settings(deadline=None)
@given(
    st.sampled_from(CANONICAL),
    st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_changed_bytes_are_never_read_as_something_else(data, changes) -> None:
    changed = bytearray(data)
    for at, value in changes:
        changed[at % len(changed)] = value
    agrees(bytes(changed))


@settings(deadline=None)
@given(st.sampled_from(CANONICAL), st.randoms(use_true_random=False))
def test_bytes_that_were_moved_are_never_read_as_something_else(data, rng: random.Random) -> None:
    begin, end, to = sorted(rng.randrange(len(data)) for _ in range(3))
    agrees(data[:begin] + data[end:] if rng.random() < 0.3 else data[:to] + data[begin:])


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 29), st.sampled_from(sorted(many(1)["entries"][0])), st.sampled_from(ODD)
        ),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from([as_torch, as_pickle]),
    st.booleans(),
)
def test_odd_values_and_keys_are_never_read_as_something_else(changes, write, every) -> None:
    document = many(30)
    for at, key, value in changes:
        for row in document["entries"] if every else [document["entries"][at]]:
            if value == "":
                row.pop(key, None)
            else:
                row[key] = value
    try:
        data = write(document)
    except UnicodeEncodeError:
        return
    agrees(data)


HOSTILE = {
    "a_list_that_every_entry_adds_to": (b"K\x09u", b"K\x09X\x01\0\0\0xh\x50(K\x01eu"),
    "a_second_end": (b"eu.", b"eueu."),
    "a_list_in_the_key": (b"X\x07\0\0\0entries", b"](eX\x07\0\0\0entries"),
    "two_lists": (b"X\x07\0\0\0entries", b"X\x07\0\0\0entries](eX\x07\0\0\0entries"),
    "another_key_last": (b"eu.", b"eX\x07\0\0\0entriesNu."),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_not_written_so_by_any_writer_is_left_to_the_other_way(name) -> None:
    old, new = HOSTILE[name]
    for data in CANONICAL:
        agrees(data.replace(old, new))


def test_an_entry_that_holds_the_list_of_entries_is_left_to_the_other_way() -> None:
    document = many(50)
    for row in document["entries"]:
        row |= {"filename": "/job/train.py", "line": 1, "name": "loop"}
        row["frames"] = document["entries"]
    assert dump.read_alike(as_pickle(document)) is None
    agrees(as_pickle(document))


def test_entries_that_share_what_another_made_give_the_same() -> None:
    document = many(60)
    for at in (9, 17, 33):
        document["entries"][at]["input_sizes"] = document["entries"][at]["output_sizes"] = [[at, 2]]
        document["entries"][at + 7]["input_sizes"] = document["entries"][at]["input_sizes"]
    assert alike(as_pickle(document)) is not None


def test_a_number_given_twice_is_left_to_the_other_way() -> None:
    data = as_torch(many(60))
    key = data[data.index(b"op_idq") + 6]
    late = data.index(b"recv 0<-1q") + 10
    changed = data[:late] + bytes([key]) + data[late + 1 :]
    assert alike(data) is not None
    assert dump.read_alike(changed) is None


@pytest.mark.parametrize("rows", [
    b"}(h\x05Nu" * 200_000,
    b"}(h\x05](" + b"Nq\x06" * 10_000 + b"eu" + b"}(h\x05Nu" * 200_000,
    (b"}(h\x05](" + b"Nq\x06" * 10_000 + b"eu") * 2 + b"}(h\x05Nu" * 200_000,
    b"".join(b"}(h\x05](" + b"N" * n + b"]" * (400 - n) + b"eu" for n in range(400)) * 20,
    b"}(h\x05" * 200_000,
    b"}(h\x05" + b"}(h\x05Nu" * 100_000,
], ids=["tiny", "one_large", "two_large", "many_shapes", "never_closed", "nested"])  # fmt: skip
def test_odd_entries_cost_no_more_than_their_bytes(rows) -> None:
    data = b"\x80\x02}(X\x07\0\0\0entries](}(X\x01\0\0\0aq\x05Nu" + rows + b"eu."
    begin = time.process_time()
    assert dump.read_alike(data) is None
    assert time.process_time() - begin < 5
