"""A file that is cut is read up to the cut; a damaged one says so, and nothing else is raised."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightkeeper.monitor.decide.pipeline import Pipeline
from lightkeeper.monitor.journal.entries import JOURNAL_SCHEMA as SCHEMA
from lightkeeper.monitor.journal.entries import (
    JournalEnd,
    JournalError,
    JournalTick,
    LineError,
    Packer,
    Unpacker,
    head_from_json,
)
from lightkeeper.monitor.journal.replay import Closed, Opened, Replay, find_journals, journal_events
from lightkeeper.monitor.model.config import KeeperConfig
from tests.monitor.fleet import Drive, SimFleet, at, hang
from tests.monitor.journal.tape import Tape


def taped(ticks: int = 40) -> Tape:
    tape = Tape(Pipeline(KeeperConfig()), KeeperConfig(), turn_every=10_000)
    Drive(SimFleet(2, 1, [at(20, hang("rg_1.0"))]), pipeline=tape).run(ticks)
    return tape


TAPE = taped()
WHOLE = TAPE.packed()
LINES = TAPE.files[0]


def read(path: Path) -> tuple[int, Closed]:
    """Ticks that were replayed as live, and how the file ended."""
    opened, _ = find_journals([path])
    replay, ticks, closed = Replay(), 0, None
    for event in journal_events(opened):
        match event:
            case Opened():
                replay.begin(event.head)
            case JournalTick():
                assert replay.tick(event).difference() is None
                assert event.snapshot == TAPE.snapshots[ticks]
                ticks += 1
            case Closed():
                closed = event
    assert closed is not None
    return ticks, closed


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("journal") / "journal-x.gz"


def test_a_whole_file_is_read_whole(file: Path) -> None:
    file.write_bytes(WHOLE)
    assert read(file) == (40, Closed(file, JournalEnd.WHOLE))


def test_any_zcat_reads_it() -> None:
    text = zlib.decompress(WHOLE, 31)
    assert [line[9:] for line in text.splitlines()] == LINES


def test_a_file_that_nobody_ended_gives_every_tick_that_was_written(file: Path) -> None:
    packer = Packer()
    file.write_bytes(b"".join(packer.line(text) for text in LINES))
    assert read(file) == (40, Closed(file, JournalEnd.CUT))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, len(WHOLE) - 1))
def test_any_cut_is_read_up_to_the_cut(file: Path, length: int) -> None:
    file.write_bytes(WHOLE[:length])
    packer, whole = Packer(), 0
    sizes = [len(packer.line(text)) for text in LINES]
    while whole < len(sizes) and sum(sizes[: whole + 1]) <= length:
        whole += 1
    try:
        ticks, closed = read(file)
    except JournalError:
        assert whole == 0  # not even the head
    else:
        assert ticks >= whole - 1  # the head is a line as well
        assert closed == Closed(file, JournalEnd.CUT)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
def test_any_damaged_byte_raises_only_the_one_error_and_nothing_wrong_is_read(
    file: Path, place: int, bits: int
) -> None:
    damaged = bytearray(WHOLE)
    damaged[place] ^= bits
    file.write_bytes(bytes(damaged))
    try:
        ticks, closed = read(file)  # which compares every tick with what was seen
    except JournalError:
        return
    if ticks < 40:
        assert closed.damage is not None or closed.how is JournalEnd.CUT


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_raise_only_the_one_error(file: Path, data: bytes, pressed: bool) -> None:
    stream = zlib.compressobj(1, zlib.DEFLATED, 31)
    file.write_bytes(stream.compress(data) + stream.flush() if pressed else data)
    with pytest.raises(JournalError):
        find_journals([file])


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.data())
def test_any_json_in_a_sound_line_raises_only_the_one_error(
    file: Path, data: st.DataObject
) -> None:
    """What a bug or a hand may write: parts of real lines replaced."""
    odd = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["kind", "tick", "seen", "step", "away", "r"]), inner)
        ),
        max_leaves=5,
    )
    lines = [json.loads(text) for text in LINES[:4]]
    number = data.draw(st.integers(0, 3))
    where, value = lines[number], data.draw(odd)
    for _ in range(data.draw(st.integers(0, 5))):
        inner = where.values() if isinstance(where, dict) else where
        nested = [part for part in inner if isinstance(part, dict | list) and part]
        if not nested:
            break
        where = data.draw(st.sampled_from(nested))
    keys = sorted(where) if isinstance(where, dict) else range(len(where))
    where[data.draw(st.sampled_from(list(keys)))] = value
    packer = Packer()
    file.write_bytes(
        b"".join(packer.line(json.dumps(line).encode()) for line in lines) + packer.end()
    )
    replay = Replay()
    try:
        for event in journal_events(find_journals([file])[0]):
            if isinstance(event, Opened):
                replay.begin(event.head)
            elif isinstance(event, JournalTick):
                replay.tick(event)
    except JournalError:
        pass


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda lines: [*lines[:12], b"{", *lines[13:]], "damaged: a line is no JSON"),
        (lambda lines: [*lines[:12], b"[]", *lines[13:]], "no tick"),
        (lambda lines: lines[:12] + lines[:1] + lines[13:], "a line of kind 'head'"),
    ],
    ids=["no JSON", "no tick", "a second head"],
)
def test_damage_in_the_middle_is_told_with_the_tick_before_it(
    file: Path, damage, words: str
) -> None:
    packer = Packer()
    lines = damage(LINES)
    file.write_bytes(b"".join(packer.line(text) for text in lines) + packer.end())
    ticks, closed = read(file)
    assert ticks == 11
    assert closed.damage is not None
    assert closed.damage.startswith(words)
    assert closed.damage.endswith("(after tick 11)")


def test_a_line_without_its_checksum_is_damaged() -> None:
    stream = zlib.compressobj(6, zlib.DEFLATED, 31)
    data = stream.compress(b"00000000 {}\n") + stream.flush()
    with pytest.raises(LineError, match="checksum"):
        list(Unpacker().feed(data))


def test_what_follows_the_end_is_damage(file: Path) -> None:
    file.write_bytes(WHOLE + b"more")
    ticks, closed = read(file)
    assert (ticks, closed.damage) == (
        40, "something follows the end of the journal (after tick 40)"
    )  # fmt: skip


def test_a_small_file_that_would_fill_any_memory_is_refused(monkeypatch) -> None:
    monkeypatch.setattr("lightkeeper.monitor.journal.entries.LINE_MAX_BYTES", 1 << 22)
    stream = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = stream.compress(bytes(1 << 25)) + stream.flush()
    with pytest.raises(LineError, match="a line of more than"):
        list(Unpacker().feed(bomb))


def test_a_newer_schema_is_refused_with_what_can_read_it() -> None:
    head = {**json.loads(LINES[0]), "schema": SCHEMA + 1, "lightkeeper": "9.0"}
    with pytest.raises(JournalError, match=r"replay it with lightkeeper 9\.0 or newer"):
        head_from_json(head)


def test_damage_costs_no_tick_before_it(file: Path) -> None:
    """Nothing is lost to the size of the pieces in which a file is inflated."""
    packer = Packer()
    sizes = [len(packer.line(text)) for text in LINES]
    damaged = bytearray(WHOLE)
    damaged[sum(sizes[:31])] = 0xFF  # the beginning of tick 31's block: an invalid type
    file.write_bytes(bytes(damaged))
    ticks, closed = read(file)
    assert ticks == 30
    assert closed.damage is not None
    assert closed.damage.endswith("(after tick 30)")
