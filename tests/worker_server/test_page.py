"""The page: what is written is read, whole, whatever the writer is doing meanwhile."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.rank.page import layout
from lightkeeper.worker_server.rank.page.reader import PageReader
from lightkeeper.worker_server.rank.page.writer import StepFacts
from tests.worker_server.pages import NOW, enter, identity, write_step


def test_readers_are_told_how_many_calls_a_record_holds():
    assert layout.RING_SLOTS == wire.RING_CALLS


def test_identity_and_start_time_survive_the_round_trip(reader):
    assert reader.identity == identity()
    assert reader.start_ticks == 42
    assert not reader.closed


def test_a_fresh_page_says_nothing_and_was_always_finite(reader):
    assert reader.step_state(NOW) is None
    assert reader.heads(NOW) == ()
    assert reader.ring(NOW) == ((), 0)
    assert reader.steps(0, NOW) == ((), 0)
    assert (reader.spoilt(NOW), reader.prints()) == (None, None)


def test_a_step_is_read_as_it_was_written(page, reader):
    write_step(page, 5)
    state = reader.step_state(NOW)
    assert (state.step, state.attempt, state.commits, state.tokens) == (5, 5, 5, 5)
    assert (state.quorum_id, state.participants, state.replica_id) == (5, 5, "rg:x")
    assert (state.healing, state.errored, state.loss) == (False, True, 5.0)
    assert state.last_commit_age_s == pytest.approx(1e-9)


@pytest.mark.parametrize(
    ("kind", "loss", "finite"),
    [
        pytest.param(layout.LOSS_ABSENT, None, True, id="none reported"),
        pytest.param(layout.LOSS_NOT_FINITE, None, False, id="not finite"),
    ],
)
def test_a_loss_that_is_not_there_and_one_that_is_not_finite_differ(
    page, reader, kind, loss, finite
):
    write_step(page, 5, kind)
    state = reader.step_state(NOW)
    assert (state.loss, state.loss_finite) == (loss, finite)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_loss_that_diverges_is_told_as_the_greatest_that_the_wire_takes(page, reader, sign):
    page.write_step(StepFacts(step=1, attempt=1, loss_kind=layout.LOSS_FINITE, loss=sign * 1e300))
    assert reader.step_state(NOW).loss == sign * wire.NUMBER_MAX


def test_absent_numbers_are_none_and_not_zero(page, reader):
    page.write_step(StepFacts(step=1, attempt=1))
    state = reader.step_state(NOW)
    assert state.last_commit_age_s is None
    assert state.quorum_id is None
    assert state.participants is None
    assert state.replica_id is None
    assert state.committed_step is None


def test_phases_count_as_progress_and_add_up_their_seconds(page, reader):
    data = page.phase_id("data")
    page.change_phase(data)
    page.change_phase(layout.PHASE_OTHER)
    page.change_phase(data)
    state = reader.step_state(time.monotonic_ns())
    assert (state.progress, state.phase) == (3, "data")
    assert set(state.seconds) == {"init", "data", "other"}
    assert state.phase_age_s < 10


def test_a_phase_too_many_counts_as_other(page, reader):
    for n in range(30):
        page.change_phase(page.phase_id(f"phase {n}"))
    assert reader.step_state(NOW).phase == "other"


def test_a_torn_ring_slot_is_left_out(page, reader):
    row = page.group_row("default", 2, (0, 1))
    for _ in range(3):
        enter(page, row)
    page._words[(layout.RING_OFFSET + layout.RING_SLOT_BYTES) // 8] = 77
    assert [entry.seq for entry in reader.ring(NOW)[0]] == [1, 3]


def test_a_collective_is_inside_until_it_is_left_and_carries_its_error(page, reader):
    row = page.group_row("default", 2, (0, 1))
    first, _second = enter(page, row), enter(page, row, "barrier", shapes=b"")
    page.leave(row, *first, page.intern("RuntimeError: no", is_error=True))
    oldest, two = reader.ring(NOW)[0]
    assert (oldest.op, oldest.error, oldest.exit_age_s is None) == (
        "all_reduce",
        "RuntimeError: no",
        False,
    )
    assert (two.op, two.error, two.exit_age_s) == ("barrier", None, None)
    assert (oldest.sizes_in, two.sizes_in) == (((4,),), ())
    (head,) = reader.heads(NOW)
    assert (head.enqueued, head.completed, head.op, head.size) == (2, 1, "barrier", 2)
    assert reader.members() == {"default": (0, 1)}
    assert reader.entered == 2


def test_a_launched_collective_holds_the_rank_only_while_it_waits(page, reader):
    row = page.group_row("default", 2)
    launched = enter(page, row, is_async=True)
    after_launch = reader.heads(NOW)[0]
    within = enter(page, row)
    meanwhile = reader.heads(NOW)[0]
    page.leave(row, *within)
    between = reader.heads(NOW)[0]
    page.hold(row, launched[1])
    waiting = reader.heads(NOW)[0]
    page.leave(row, *launched)
    done = reader.heads(NOW)[0]
    assert [h.inside for h in (after_launch, meanwhile, between, waiting, done)] == [0, 2, 0, 1, 0]
    assert [h.enqueued for h in (after_launch, waiting)] == [1, 2]


def test_nth_restarts_with_every_attempt_and_seq_does_not(page, reader):
    row = page.group_row("default", 2)
    for attempt in (1, 1, 2):
        enter(page, row, attempt=attempt)
    rows = [(entry.seq, entry.attempt, entry.nth) for entry in reader.ring(NOW)[0]]
    assert rows == [(1, 1, 0), (2, 1, 1), (3, 2, 0)]


def test_the_ring_wraps_and_counts_what_it_lost(page, reader):
    row = page.group_row("default", 2)
    early = enter(page, row)
    for _ in range(layout.RING_SLOTS + 9):
        page.leave(row, *enter(page, row))
    page.leave(row, *early)  # long overwritten: must not mark the slot's new owner
    entries, dropped = reader.ring(NOW)
    assert dropped == 10
    assert [entry.seq for entry in entries] == list(range(11, layout.RING_SLOTS + 11))
    assert all(entry.exit_age_s is not None for entry in entries)


# -- sends and receives ---------------------------------------------------------------------------


def send(page, group, peer, *, tag=0, sends=True, is_async=False):
    """Enters one; what `leave` takes."""
    row = page.transfer_row(group, peer, tag, sends=sends)
    op = "send" if sends else "recv"
    return row, *enter(page, row, op, root=peer, tag=tag, is_async=is_async)


def rows(reader):
    """(peer, tag, sends) -> posted, unfinished, held."""
    return {
        (row.peer, row.tag, row.sends): (row.posted, row.unfinished, row.held)
        for row in reader.transfers(NOW)
    }


def test_sends_and_receives_are_counted_by_peer_tag_and_direction_and_not_with_collectives(
    page, reader
):
    group = page.group_row("default", 3, (0, 1, 2))
    page.leave(group, *enter(page, group))
    for peer, tag, sends in ((1, 0, True), (1, 0, True), (2, 0, True), (1, 7, True), (1, 0, False)):
        page.leave(*send(page, group, peer, tag=tag, sends=sends))
    enter(page, group)
    open_send = send(page, group, 1)
    assert rows(reader) == {
        (1, 0, 1): (3, 1, 3), (2, 0, 1): (1, 0, 0), (1, 7, 1): (1, 0, 0), (1, 0, 0): (1, 0, 0),
    }  # fmt: skip
    (head,) = reader.heads(NOW)
    assert (head.enqueued, head.completed, head.inside) == (2, 1, 2)
    page.leave(*open_send)
    assert (reader.heads(NOW)[0].completed, rows(reader)[1, 0, 1]) == (1, (3, 0, 0))
    seen = [(e.op, e.seq, e.root, e.tag) for e in reader.ring(NOW)[0]]
    assert seen == [
        ("all_reduce", 1, None, None), ("send", 1, 1, 0), ("send", 2, 1, 0), ("send", 1, 2, 0),
        ("send", 1, 1, 7), ("recv", 1, 1, 0), ("all_reduce", 2, None, None), ("send", 3, 1, 0),
    ]  # fmt: skip
    assert {row.group for row in reader.transfers(NOW)} == {"default"}
    assert reader.entered == 8


def test_a_launched_transfer_holds_the_rank_only_while_it_waits(page, reader):
    group = page.group_row("default", 2)
    first, second = (send(page, group, 1, is_async=True) for _ in range(2))
    launched = rows(reader)
    page.hold(first[0], first[2])
    waiting = rows(reader)
    page.leave(*first)
    page.leave(*second)
    seen = [state[1, 0, 1] for state in (launched, waiting, rows(reader))]
    assert seen == [(2, 2, 0), (2, 2, 1), (2, 0, 0)]


def test_time_inside_of_transfers_counts_as_held(page, reader):
    group = page.group_row("default", 2)
    entered = send(page, group, 1)
    entered[0].held_since -= 3 * 10**9
    page.leave(*entered)
    assert 3.0 <= reader.held_s() < 4.0


MANY = layout.MAX_TRANSFERS


def test_of_more_peers_than_there_are_rows_the_one_unused_for_longest_has_no_head(page, reader):
    group = page.group_row("default", 2)
    still_open = send(page, group, 0)
    for tag in range(1, MANY + 2):
        page.leave(*send(page, group, 1, tag=tag))
    assert rows(reader) == {
        (0, 0, 1): (1, 1, 1), **{(1, tag, 1): (1, 0, 0) for tag in range(3, MANY + 2)},
    }  # fmt: skip
    page.leave(*send(page, group, 1, tag=1))  # counts on
    assert rows(reader)[1, 1, 1] == (2, 0, 0)
    assert (1, 3, 1) not in rows(reader)
    assert reader.ring(NOW)[0][-1].seq == 2
    page.leave(*still_open)
    assert rows(reader)[0, 0, 1] == (1, 0, 0)


def test_an_open_transfer_that_lost_its_row_no_longer_moves_it(page, reader):
    group = page.group_row("default", 2)
    opened = [send(page, group, peer) for peer in range(MANY + 1)]
    newest = MANY, 0, 1
    assert (0, 0, 1) not in rows(reader)
    page.leave(*opened[0])
    assert rows(reader)[newest] == (1, 1, 1)
    assert reader.ring(NOW)[0][0].exit_age_s is not None
    page.leave(*opened[-1])
    assert rows(reader)[newest] == (1, 0, 0)


def test_a_group_that_is_formed_anew_counts_its_transfers_from_one(page, reader):
    group, other = page.group_row("torchft", 2), page.group_row("tp", 2)
    old = send(page, group, 1)
    page.leave(*send(page, other, 1))
    fresh = page.restart_group(group, 2)
    assert [row.group for row in reader.transfers(NOW)] == ["tp"]
    page.leave(*old)
    now = send(page, fresh, 1)
    page.leave(*now)
    assert now[2] == 1
    assert [(r.group, r.posted, r.unfinished) for r in reader.transfers(NOW)] == [
        ("torchft", 1, 0), ("tp", 1, 0)]  # fmt: skip


def test_an_entry_has_its_thread(page, reader):
    group = page.group_row("default", 2)
    for thread in (4321, 4322):
        enter(page, group, thread=thread)
    assert [entry.thread for entry in reader.ring(NOW)[0]] == [4321, 4322]


# -- groups that are made, timeouts, the Lighthouse ---------------------------------------------


def forming(**changes):
    usual = {
        "call": "new_group",
        "nth": 3,
        "ranks": [0, 1],
        "store": "h:1",
        "site": 0,
        "earlier": [],
    }
    return json.dumps({**usual, **changes})


def test_a_group_is_forming_until_its_note_is_cleared(page, reader):
    assert reader.forming(NOW) is None
    page.write_note(layout.NOTE_FORMING, forming(site=page.intern("train.py:7")))
    seen = reader.forming(NOW)
    assert (seen.call, seen.nth, seen.ranks, seen.store, seen.site) == (
        "new_group", 3, (0, 1), "h:1", "train.py:7")  # fmt: skip
    assert seen.age_s > 0
    page.write_note(layout.NOTE_FORMING, "")
    assert reader.forming(NOW) is None


@pytest.mark.parametrize(
    "note",
    ["{", "[]", "7", '{"site": 0}', forming(ranks=[-1]), forming(nth="x"), forming(site="x"),
     "[" * 4000],
)  # fmt: skip
def test_a_note_that_was_written_over_is_no_group(page, reader, note):
    page.write_note(layout.NOTE_FORMING, note)
    assert reader.forming(NOW) is None


def test_timeouts_and_the_lighthouse_are_told_once_they_are_known(page, reader):
    assert (reader.timeouts, reader.lighthouse) == ({}, None)
    page.write_timeout(layout.W_TIMEOUT_QUORUM, 60)
    page.write_timeout(layout.W_TIMEOUT_COLLECTIVE, 1e300)
    page.write_text(layout.W_LIGHTHOUSE, "10.0.0.1:29510")
    assert reader.timeouts == {"quorum": 60.0, "collective": 1e9}
    assert reader.lighthouse == "10.0.0.1:29510"
    report = reader.report(wire.Process(True), NOW)
    assert wire.parse_state(json.loads(json.dumps(wire.to_json(report)))) == report


def test_groups_of_one_name_with_other_members_are_told_apart(page, reader):
    first = page.group_row("tp", 2, (0, 1))
    assert page.group_row("tp", 2, (0, 1)) is first
    assert page.group_row("tp", 2, (2, 3)).name == "tp#2"
    assert reader.members() == {"tp": (0, 1), "tp#2": (2, 3)}


def test_too_many_groups_and_names_are_refused_and_not_written_elsewhere(page, reader):
    rows = [page.group_row(f"g{n}", 1) for n in range(layout.MAX_GROUPS + 1)]
    assert rows[-1] is None
    assert page.intern("all_reduce") > layout.TABLE_FULL
    for n in range(2 * layout.MAX_STRINGS):
        page.intern(f"error {n}", is_error=True)
    assert page.intern("one more error", is_error=True) == layout.TABLE_FULL
    assert page.intern("a new op") > layout.TABLE_FULL
    for n in range(2 * layout.MAX_STRINGS):
        page.intern(f"site {n}")
    assert page.intern("one too many") == layout.TABLE_FULL
    enter(page, rows[0], "one too many")
    assert reader.ring(NOW)[0][0].op == "(name table full)"


def test_what_is_written_after_detach_does_not_reach_the_page(page, reader):
    write_step(page, 1)
    page.detach()
    write_step(page, 2)
    page.close()
    assert reader.step_state(NOW).step == 1
    assert not reader.closed


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda blob: blob[:-1], id="cut short"),
        pytest.param(lambda blob: b"", id="empty"),
        pytest.param(lambda blob: b"\0" * len(blob), id="zeros"),
        pytest.param(lambda blob: b"NOTAPAGE" + blob[8:], id="foreign"),
        pytest.param(lambda blob: blob[:8] + b"\x63" + blob[9:], id="other version"),
        pytest.param(lambda blob: blob[:256] + b"{" + b"[" * 1000 + blob[1257:], id="bad identity"),
        pytest.param(lambda blob: blob[:24] + b"\xff" * 8 + blob[32:], id="negative length"),
    ],
)
def test_a_foreign_file_raises_one_narrow_error(page, tmp_path, spoil):
    other = tmp_path / "b.page"
    other.write_bytes(spoil((tmp_path / "a.page").read_bytes()))
    with pytest.raises(layout.SharedPageError):
        PageReader(other)


def test_a_missing_file_raises_the_same_error(tmp_path):
    with pytest.raises(layout.SharedPageError):
        PageReader(tmp_path / "none.page")


@given(st.lists(st.integers(0, 5000), unique=True, max_size=40).map(sorted))
def test_members_survive_as_text(ranks):
    assert layout.decode_members(layout.encode_members(ranks)) == tuple(ranks)


SHAPES = st.lists(st.tuples() | st.tuples(st.integers(0, 9)) | st.just((7, 8)), max_size=6)


@given(SHAPES, SHAPES)
def test_shapes_survive_as_text(sizes_in, sizes_out):
    text = layout.encode_shapes(sizes_in, sizes_out)
    assert layout.decode_shapes(text.decode()) == (tuple(sizes_in), tuple(sizes_out))


@given(st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**40)), max_size=30))
def test_shapes_that_do_not_fit_are_cut_at_a_whole_shape(sizes):
    text = layout.encode_shapes(sizes, sizes)
    assert len(text) <= layout.RING_SHAPES_BYTES
    sizes_in, sizes_out = layout.decode_shapes(text.decode())
    assert sizes_in == tuple(sizes[: len(sizes_in)])
    assert sizes_out == tuple(sizes[: len(sizes_out)])


def test_a_page_bears_the_managers_name_once_there_is_one(page, reader):
    assert (reader.identity.group, reader.identity.launched_as) == ("rg_1", None)
    page.write_text(layout.W_REPLICA, "my_0:6c1d3f0e-7f3c-4f6e-8a5e-0a4b8a3a0001")
    who = reader.identity
    assert (who.rank, who.launched_as, who.incarnation) == ("my_0.0", "rg_1", "abc")
    page.write_text(layout.W_REPLICA, "my_2:6c1d3f0e-7f3c-4f6e-8a5e-0a4b8a3a0002")
    assert reader.identity.rank == "my_2.0"
    reader.refused = "my_2"
    assert reader.identity == identity()


def test_a_page_bears_the_former_name_until_there_is_a_manager(page, reader):
    reader.known_as = "my_0"
    assert reader.identity.rank == "my_0.0"
    page.write_text(layout.W_REPLICA, "my_1:6c1d3f0e-7f3c-4f6e-8a5e-0a4b8a3a0001")
    assert reader.identity.rank == "my_1.0"
    page.write_text(layout.W_REPLICA, "6c1d3f0e-7f3c-4f6e-8a5e-0a4b8a3a0001")
    assert reader.identity == identity()
