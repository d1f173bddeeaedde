"""What the black box keeps and when it asks, with fakes for torch and the process."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client import generate_latest

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.rank.page import layout
from lightkeeper.worker_server.run_dir import RankFiles, read_json, write_json
from lightkeeper.worker_server.sidecar import SilentError
from lightkeeper.worker_server.sidecar.metrics import make_registry
from lightkeeper.worker_server.sidecar.recorders import MAIN
from tests.changed import replace
from tests.worker_server.boxes import CONNECTIONS
from tests.worker_server.doubles import Bench
from tests.worker_server.pages import enter, write_step
from tests.worker_server.ranks import eventually
from tests.worker_server.wire_values import parse_last_words


@pytest.fixture
def bench(page, tmp_path):
    return Bench(tmp_path / "a.page")


def test_an_interpreter_that_ends_is_not_taken_for_one_whose_gil_is_held(page, bench):
    page.beat()
    assert bench.box.process().interpreter_age_s is not None
    page.end()
    assert bench.box.process().interpreter_age_s is None


def test_a_record_has_the_ring_and_torchs_part_side_by_side(page, bench):
    enter(page, page.group_row("default", 2, (0, 1)))
    record = bench.box.flight_record()
    assert record.torch == {"entries": [1]}
    assert [entry.op for entry in record.ring] == ["all_reduce"]
    assert record.members == {"default": (0, 1)}


def test_a_state_has_all_that_the_page_says(page, bench):
    group = page.group_row("default", 2, (0, 1))
    enter(page, page.transfer_row(group, 1, 7, sends=True), "send", root=1, tag=7)
    page.write_note(
        layout.NOTE_FORMING,
        json.dumps(
            {"call": "new_group", "nth": 2, "ranks": [0], "store": None, "site": 0, "earlier": []}
        ),
    )
    page.write_timeout(layout.W_TIMEOUT_COMMIT, 30.0)
    page.write_text(layout.W_LIGHTHOUSE, "head:29510")
    state = bench.box.state()
    assert [(row.peer, row.tag, row.held) for row in state.transfers] == [(1, 7, 1)]
    assert (state.forming.call, state.forming.nth, state.forming.ranks) == ("new_group", 2, (0,))
    assert (state.timeouts, state.lighthouse) == ({"commit": 30.0}, "head:29510")
    (entry,) = bench.box.flight_record().ring
    assert (entry.op, entry.seq, entry.root, entry.tag, entry.thread) == ("send", 1, 1, 7, 1)


def test_only_active_leaves_out_what_was_left(page, bench):
    row = page.group_row("default", 2)
    page.leave(row, *enter(page, row))
    enter(page, row)
    assert [entry.seq for entry in bench.box.flight_record(only_active=True).ring] == [2]


def test_only_active_leaves_out_what_torch_retired(bench):
    bench.torch.record = {"version": "2.10", "entries": [{"retired": True}, {"retired": False}]}
    record = bench.box.flight_record(only_active=True)
    assert record.torch == {"version": "2.10", "entries": [{"retired": False}]}
    assert len(bench.box.flight_record().torch["entries"]) == 2


def test_two_readers_within_a_second_cost_the_rank_one_record(bench):
    bench.box.flight_record()
    bench.box.flight_record()
    assert bench.torch.asked == 1


def test_after_death_the_last_record_of_torch_is_kept_and_nobody_is_asked(bench):
    bench.box.flight_record()
    bench.process.dead = True
    record = bench.box.flight_record()
    assert (record.alive, record.torch, bench.torch.asked) == (False, {"entries": [1]}, 1)
    assert record.torch_age_s is not None


def test_a_silent_control_plane_is_an_error_in_the_record_and_not_of_it(page, bench):
    bench.torch.error = "fr_trace_json: no answer within 2 s"
    enter(page, page.group_row("default", 2))
    record = bench.box.flight_record()
    assert (record.torch, record.torch_error) == (None, "fr_trace_json: no answer within 2 s")
    assert len(record.ring) == 1


def test_a_rank_without_collectives_is_never_asked_by_itself(bench):
    bench.box.tick()
    assert bench.torch.asked == 0


def test_a_first_collective_makes_the_black_box_keep_a_record_and_then_wait(page, bench):
    enter(page, page.group_row("default", 2))
    bench.box.tick()
    enter(page, page.group_row("default", 2))
    bench.box.tick()
    assert bench.torch.asked == 1


def test_stacks_of_a_stopped_rank_are_taken_without_waiting_for_it(bench):
    bench.process.state = "T"
    bench.box.stacks(native=True)
    bench.process.state = "S"
    bench.box.stacks()
    assert bench.stacks.calls == [(False, True), (True, False)]


def test_the_last_stacks_outlive_the_rank(bench):
    bench.box.stacks()
    bench.process.dead = True
    assert "before the rank died\nmain (train.py:1)" in bench.box.stacks().text


def test_a_tick_follows_the_steps_so_that_a_late_scrape_misses_none(page, bench):
    for ended in range(1, 6001):
        page.end_attempt(ended, ended, 1, 2, 1)
        if ended % 1000 == 0:
            bench.box.tick()
    metrics = {
        sample.name: sample.value
        for family in bench.box.follower.collect(("job", "rg_1", "0"))
        for sample in family.samples
    }
    assert metrics["lightkeeper_rank_steps_missed_total"] == 0
    assert metrics["lightkeeper_rank_step_seconds_count"] == 6000


def test_a_stopped_rank_is_not_asked_for_torchs_record_and_the_answer_says_so(bench):
    bench.box.flight_record()
    bench.process.state = "T"
    kept = bench.box.recorders.kept
    kept[MAIN] = replace(kept[MAIN], taken_s=1.0)  # older than a second
    record = bench.box.flight_record()
    assert (bench.torch.asked, record.torch) == (1, {"entries": [1]})
    assert record.torch_error == "the rank is stopped (state T): it was not asked"
    bench.process.state = "S"
    assert bench.box.flight_record().torch_error is None
    assert bench.torch.asked == 2


def test_a_control_plane_that_says_no_is_asked_again_at_once(bench):
    bench.torch.error = "HTTP 500"
    bench.box.flight_record()
    bench.box.flight_record()
    assert bench.torch.asked == 2


STRAY = {
    "text": b"1*99999;",
    "letters": b"xxxxxxxx",
    "ones": b"\xff" * 8,
    "most": b"\xff" * 7 + b"\x7f",
    "least": b"\0" * 7 + b"\x80",
    "spans": b"0-999999",
    "below": b"-9:-1,-5",
    "digits": b"99999999",
}
PLACES = {
    "header": (layout.W_CLOSED * 8, layout.IDENTITY_OFFSET),
    "step": (layout.PHASE.word * 8, layout.GROUP_OFFSET),
    "groups": (layout.GROUP_OFFSET, layout.GROUP_OFFSET + layout.GROUP_BYTES),
    "members": (
        layout.GROUP_OFFSET + layout.GROUP_NAME_BYTES, layout.GROUP_OFFSET + layout.GROUP_NAME_BYTES
        + layout.GROUP_MEMBERS_BYTES,
    ),
    "ring": (layout.RING_OFFSET, layout.RING_OFFSET + layout.RING_SLOT_BYTES),
    "shapes": (
        layout.RING_OFFSET + layout.RING_SLOT_BYTES - 8 - layout.RING_SHAPES_BYTES,
        layout.RING_OFFSET + layout.RING_SLOT_BYTES - 8,
    ),
}  # fmt: skip


@pytest.mark.parametrize("stray", STRAY)
@pytest.mark.parametrize("place", PLACES)
def test_a_page_that_the_rank_wrote_over_by_mistake_still_gets_answers(page, bench, stray, place):
    for _ in range(3):
        enter(page, page.group_row("default", 2, (0, 1)))
    write_step(page, 5)
    begin, end = PLACES[place]
    page._bytes[begin:end] = STRAY[stray] * ((end - begin) // 8)
    box = bench.box
    answers = [box.state(), box.steps(), box.flight_record(), box.last_words()]
    parsers = [wire.parse_state, wire.parse_steps, wire.parse_flight_record, parse_last_words]
    for answer, parse in zip(answers, parsers, strict=True):
        parse(json.loads(json.dumps(wire.to_json(answer), allow_nan=False)))
    generate_latest(make_registry(box.state, lambda: "", box.follower))
    box.tick()


def test_a_rank_whose_page_moves_after_its_death_is_alive(page, bench):
    page.beat()
    for dead_age_s, alive in ((9.0, True), (0.5, False)):
        dead = wire.Process(alive=False, state=None, dead_age_s=dead_age_s)
        bench.process.look = lambda _, dead=dead: dead
        assert bench.box.process().alive is alive


# -- connections ----------------------------------------------------------------------------------


def test_odd_connections_are_in_the_state_and_shared_until_there_are_none(
    bench, tmp_path, monkeypatch
):
    at = bench.box.network
    monkeypatch.setattr(at, "look", lambda *_, **__: None)
    at._odd = CONNECTIONS[:1]
    bench.box.tick()
    assert [row.peer for row in bench.box.state().connections] == [CONNECTIONS[0].peer]
    seen = RankFiles(tmp_path / "a.page").seen
    assert CONNECTIONS[0].peer in seen.read_text()
    at._odd = ()
    bench.box.tick()
    assert not seen.exists()


def test_connections_that_healed_are_shared_no_longer_while_the_rank_stands(
    bench, tmp_path, monkeypatch
):
    """A witness alone is shared as seldom as stacks are taken."""
    witness = wire.Witness(wire.Frame("f", "train.py", 1), wire.Doing.LOCK, 3, 9.0, 1.0)
    monkeypatch.setattr(bench.box._standstill, "witness", lambda *_: witness)
    monkeypatch.setattr(bench.box.network, "look", lambda *_, **__: None)
    bench.box.network._odd = CONNECTIONS[:1]
    bench.box.tick()
    seen = RankFiles(tmp_path / "a.page").seen
    assert CONNECTIONS[0].peer in seen.read_text()
    bench.box.network._odd = ()
    bench.box.tick()
    assert "train.py" in seen.read_text()
    assert CONNECTIONS[0].peer not in seen.read_text()


def test_the_network_of_a_dead_rank_is_that_of_its_last_look(bench):
    bench.box.network._odd = CONNECTIONS[:1]
    bench.process.dead = True
    report = bench.box.network_report()
    assert (report.alive, [row.peer for row in report.connections]) == (
        False, [CONNECTIONS[0].peer],
    )  # fmt: skip
    assert report.age_s > 0


def test_servers_are_known_by_their_ports_and_sockets_by_what_the_rank_noted(
    page, bench, tmp_path, monkeypatch
):
    monkeypatch.setenv("MASTER_PORT", "29500")
    page.write_text(layout.W_LIGHTHOUSE, "head:29510")
    write_json(RankFiles(tmp_path / "a.page").sockets, {"77": "across"})
    assert bench.box._opened() == {"77": "across", ":29500": "store", ":29510": "lighthouse"}


def test_an_order_reaches_the_rank_and_its_answer_the_caller(bench, tmp_path):
    files = RankFiles(tmp_path / "a.page")

    def rank():
        order = eventually(lambda: read_json(files.order), "an order")
        answer = {"id": order["id"], "ended": len(order["addresses"]), "said": "done"}
        write_json(files.answer, answer)

    write_json(files.answer, {"id": "of an earlier order", "ended": 9, "said": "old"})
    with ThreadPoolExecutor(1) as pool:
        obeyed = pool.submit(rank)
        assert bench.box.release(7, ["10.0.0.1", "10.0.0.2"], 30.0) == (2, "done")
        obeyed.result()
    with pytest.raises(SilentError, match="has not answered within 0 s"):
        bench.box.release(7, ["10.0.0.1"], 0.0)
