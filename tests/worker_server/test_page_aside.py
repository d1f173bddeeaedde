"""Notes, times, tags, counters: what the rank says beside its step and phase."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.rank.page import layout
from lightkeeper.worker_server.rank.page.writer import PageWriter
from tests.worker_server.pages import NOW, enter

KINDS = [
    pytest.param(layout.NOTE_STACKS, id="stacks"),
    pytest.param(layout.NOTE_EXCEPTION, id="exception"),
]


def room_of(kind):
    return layout.NOTE_SLOT_BYTES[kind] - layout.NOTE_HEADER_BYTES


@pytest.mark.parametrize("kind", KINDS)
def test_a_fresh_page_has_no_note_and_then_the_last_one(page, reader, kind):
    assert reader.note(kind, NOW) is None
    for text in ("first", "", "a longer one\0with ünïcode", "short"):
        page.write_note(kind, text)
        note, age_s = reader.note(kind, NOW)
        assert note == text
        assert age_s > 0


def test_notes_of_two_kinds_do_not_touch_each_other(page, reader):
    page.write_note(layout.NOTE_STACKS, "s" * room_of(layout.NOTE_STACKS))
    page.write_note(layout.NOTE_EXCEPTION, "e" * room_of(layout.NOTE_EXCEPTION))
    page.write_note(layout.NOTE_STACKS, "t" * room_of(layout.NOTE_STACKS))
    assert reader.note(layout.NOTE_STACKS, NOW)[0] == "t" * room_of(layout.NOTE_STACKS)
    assert reader.note(layout.NOTE_EXCEPTION, NOW)[0] == "e" * room_of(layout.NOTE_EXCEPTION)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("letter", ["x", "ü", "\U0001f4a5"], ids=["1 byte", "2 bytes", "4 bytes"])
def test_a_note_that_is_too_long_is_cut_at_the_end_and_says_so(page, reader, kind, letter):
    page.write_note(kind, letter * 40000)
    text, _ = reader.note(kind, NOW)
    assert text.splitlines()[-1] == "... cut"
    assert text.splitlines()[0] == letter * len(text.splitlines()[0])
    assert room_of(kind) - 8 < len(text.encode()) <= room_of(kind)


def test_a_note_with_what_utf8_cannot_say_is_kept_all_the_same(page, reader):
    page.write_note(layout.NOTE_EXCEPTION, "bad \udc80 path")
    assert reader.note(layout.NOTE_EXCEPTION, NOW)[0] == "bad ? path"


def test_times_are_counted_and_added_up_by_kind(page, reader):
    assert reader.times() == {}
    page.add_time(layout.TIME_LOAD, 2.0)
    page.add_time(layout.TIME_LOAD, 0.5)
    page.add_time(layout.TIME_RECONFIGURE, 0.25)
    page.add_time(layout.TIME_STAGING, -1.0, 300)
    assert reader.times() == {
        "staging": wire.Took(1, 0.0, 0.0, 300, 300),
        "load": wire.Took(2, 2.5, 0.5),
        "reconfigure": wire.Took(1, 0.25, 0.25),
    }


def test_a_state_tells_the_times_of_a_recovery_and_not_those_of_every_step(page, reader):
    page.add_time(layout.TIME_QUORUM, 0.01)
    page.add_time(layout.TIME_APPLY, 0.25, 8)
    assert state(page, reader).times == {"apply": wire.Took(1, 0.25, 0.25, 8, 8)}


def test_a_stray_write_over_a_time_is_no_time(page, reader):
    page.add_time(layout.TIME_LOAD, 2.0)
    load = layout.TIMES[layout.TIME_LOAD]
    page._words[load.word + load.stride + 2] = -5
    assert reader.times() == {}


def state(page, reader):
    page.change_phase(layout.PHASE_OTHER)
    return reader.step_state(NOW)


def test_tags_are_those_that_are_on(page, reader):
    names = ("warmup", "evaluation", "warmup")
    numbers = [page.number_of(name, layout.TAG_NAMES) for name in names]
    assert numbers == [0, 1, 0]
    assert state(page, reader).tags == ()
    page.turn_tag(1, on=True)
    assert state(page, reader).tags == ("evaluation",)
    page.turn_tag(0, on=True)
    page.turn_tag(1, on=True)
    assert state(page, reader).tags == ("warmup", "evaluation")
    page.turn_tag(1, on=False)
    page.turn_tag(0, on=False)
    assert state(page, reader).tags == ("evaluation",)
    page.turn_tag(1, on=False)
    assert state(page, reader).tags == ()


def test_counters_are_read_as_they_were_written(page, reader):
    names = ("skipped", "nan", "skipped", "more than the wire takes")
    assert [page.number_of(name, layout.COUNTER_NAMES) for name in names] == [0, 1, 0, 2]
    page.add_count(2, 1e300)
    page.add_count(0, 2)
    page.add_count(0, 0.5)
    page.add_count(1, float("nan"))
    assert state(page, reader).counters == {"skipped": 2.5}


def test_the_seventeenth_name_is_refused_and_touches_nothing(page, reader):
    for table in (layout.TAG_NAMES, layout.COUNTER_NAMES):
        assert [page.number_of(f"name {n}", table) for n in range(18)] == [*range(16), None, None]
    for tag in range(16):
        page.turn_tag(tag, on=True)
    page.add_count(15, 3.0)
    names = [f"name {n}" for n in range(16)]
    assert list(state(page, reader).tags) == names
    assert state(page, reader).counters == {**dict.fromkeys(names, 0.0), "name 15": 3.0}


@given(st.text(), st.text())
def test_names_are_one_exactly_when_they_are_stored_alike(first, second):
    page = PageWriter(bytearray(layout.TOTAL_BYTES))
    stored = [layout.encode_name(name, layout.NAME_BYTES) for name in (first, second)]
    assert all(0 < len(blob) < layout.NAME_BYTES and b"\0" not in blob for blob in stored)
    assert [blob.decode() for blob in stored]  # cut at whole characters
    numbers = {page.number_of(name, layout.COUNTER_NAMES) for name in (first, second)}
    assert (len(numbers) == 1) == (stored[0] == stored[1])


def test_process_groups_whose_long_names_differ_at_the_end_are_told_apart(page, reader):
    for end in ("a", "b"):
        page.group_row("g" * 80 + end, 2, (0, 1))
    page.group_row("\udc80", 1)
    names = [head.name for head in reader.heads(NOW)]
    assert names == ["g" * 60, "g" * 60 + "#2", "?"]


@pytest.mark.parametrize(
    ("steps", "phases", "waits", "ended", "source"),
    [
        pytest.param("", "", False, 0, wire.SOURCE_REPORTER, id="nobody yet"),
        pytest.param("reporter", "reporter", True, 9, wire.SOURCE_REPORTER, id="all"),
        pytest.param("reporter", "reporter", False, 0, wire.SOURCE_REPORTER, id="first attempt"),
        pytest.param("reporter", "reporter", False, 1, "partial", id="waits undeclared"),
        pytest.param("reporter", "", False, 1, "partial", id="steps only"),
        pytest.param("optimizer", "reporter", False, 1, "partial", id="phases only"),
        pytest.param("optimizer", "reporter", True, 1, wire.SOURCE_REPORTER, id="phases, waits"),
        pytest.param("reporter", "torchft", False, 1, "torchft", id="phases by another"),
        pytest.param("lightning", "", False, 1, "lightning", id="steps by another"),
        pytest.param("lightning", "torchft", False, 0, "torchft", id="two others"),
    ],
)
def test_the_source_is_who_gives_the_phases(page, reader, steps, phases, waits, ended, source):
    page.write_sources(steps, phases, waits_declared=waits)
    for attempt in range(1, ended + 1):
        page.end_attempt(attempt, attempt, 1, 2, True)
    assert state(page, reader).source == source


def test_seconds_held_in_collectives_count_where_no_phase_says_that_it_waits(page, reader):
    row = page.group_row("default", 2)
    page.change_phase(page.phase_id("communication"))
    page.leave(row, *enter(page, row))
    launched = enter(page, row, is_async=True)
    assert reader.held_s() == 0.0
    page.change_phase(page.phase_id("forward"))
    page.hold(row, launched[1])
    page.leave(row, *launched)
    waited_s = reader.held_s()
    page.leave(row, *enter(page, row))
    assert 0 < waited_s < reader.held_s() < 1
    assert reader.step_state(NOW).held_s == reader.held_s()


def test_the_latest_spell_and_the_latest_fingerprints_are_read(page, reader):
    for n in range(1, 4):
        page.write_pair(layout.SPOILT, (n, 1, NOW - 10**9, n, n + 1))
        page.write_prints(7, n, [(10 * n, 2**48 - 1, 0)] * n)
        assert reader.spoilt(NOW) == wire.Spoilt(n, "group", 1.0, n, n + 1)
        assert reader.prints() == wire.Prints(7, n, ((10 * n, 2**48 - 1, 0),) * n)


def test_the_parts_of_the_page_do_not_overlap():
    ends = [
        (layout.COUNTER_WORD, layout.MAX_COUNTERS),
        (layout.SPOILT.word, 2 * layout.SPOILT.stride),
        (layout.PRINTS.word, 2 * layout.PRINTS.stride),
        (layout.GROUP_OFFSET // layout.WORD, 0),
    ]
    for (word, size), (after, _) in itertools.pairwise(ends):
        assert word + size <= after
    assert (layout.PRINTS.values + 1) < layout.PRINTS.stride
