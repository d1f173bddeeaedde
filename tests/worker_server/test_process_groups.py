"""The creation of process groups in a rank alone in its world: what the note says, what stays."""

from __future__ import annotations

import inspect
import json
import sys
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch.distributed import distributed_c10d as c10d  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

from lightkeeper.worker_server.rank import collectives, process_groups  # noqa: E402
from lightkeeper.worker_server.rank.page import layout  # noqa: E402
from tests.worker_server.pages import NOW  # noqa: E402

pytestmark = pytest.mark.integration  # torch


@pytest.fixture
def notes(recording, monkeypatch):
    """What was noted, one after the other; None: cleared."""
    written = []
    write = recording.page.write_note

    def spy(kind, text):
        if kind == layout.NOTE_FORMING:
            written.append(json.loads(text) if text else None)
        write(kind, text)

    monkeypatch.setattr(recording.page, "write_note", spy)
    return written


@pytest.fixture
def store():
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture
def world(recording, store):
    dist.init_process_group("gloo", rank=0, world_size=1, store=store)
    yield
    dist.destroy_process_group()


def named(notes):
    return [(note["call"], note["nth"], note["ranks"]) for note in notes if note is not None]


def test_every_way_to_create_groups_is_counted_in_its_order(notes, world):
    dist.new_group()
    dist.new_group(range(1), group_desc="tp")
    dist.new_subgroups(1)
    dist.new_subgroups_by_enumeration([[0]])
    dist.new_group([0])
    seen = named(notes)
    assert [note[0] for note in seen[1:]] == ["new_group"] * (len(seen) - 1)
    assert [note[1] for note in seen] == list(range(len(seen)))
    assert len(seen) >= 6
    assert seen[:3] == [("init_process_group", 0, []), ("new_group", 1, []), ("new_group", 2, [0])]
    assert notes[1::2] == [None] * len(seen)
    assert len(notes) == 2 * len(seen)


def test_a_group_that_only_its_members_create_has_no_number(notes, world):
    dist.new_group([0], use_local_synchronization=True)
    dist.new_group([0])
    assert named(notes)[1:] == [("new_group", 0, [0]), ("new_group", 1, [0])]


def test_the_groups_of_a_mesh_are_seen_at_the_line_that_makes_it(notes, reader):
    dist.init_process_group("fake", rank=1, world_size=4, store=FakeStore())
    try:
        line = inspect.currentframe().f_lineno + 1
        init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    finally:
        dist.destroy_process_group()
    made = [note for note in notes if note][1:]
    assert [(note["nth"], note["ranks"]) for note in made] == [
        (1, [0, 2]), (2, [1, 3]), (3, [0, 1]), (4, [2, 3])]  # fmt: skip
    assert {reader._string(note["site"]) for note in made} == {
        f"worker_server/test_process_groups.py:{line}"
    }


def test_members_meet_at_the_store_of_the_job(notes, world, store):
    dist.new_group([0])
    assert [note["store"] for note in notes if note] == [f"127.0.0.1:{store.port}"] * 2


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ({}, "node-1:29500"),
        ({"init_method": "env://"}, "node-1:29500"),
        ({"init_method": "tcp://10.0.0.7:4000"}, "10.0.0.7:4000"),
        ({"init_method": "tcp://[::1]:4000?rank=0&world_size=1"}, "[::1]:4000"),
        ({"init_method": "file:///tmp/x"}, None),
    ],
    ids=str,
)
def test_the_first_address_is_what_torch_is_told(monkeypatch, given, address):
    monkeypatch.setenv("MASTER_ADDR", "node-1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert process_groups._store_address("init_process_group", given) == address


def test_a_store_in_memory_has_no_address(notes, recording):
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    dist.destroy_process_group()
    assert notes[0]["store"] is None


def test_what_torch_returns_and_raises_is_untouched(notes, world):
    assert isinstance(dist.new_group([0]), dist.ProcessGroup)
    with pytest.raises(ValueError, match="out of range"):
        dist.new_group([5])
    with pytest.raises(TypeError, match="nonsense"):
        dist.new_group(nonsense=1)
    with pytest.raises(ValueError, match="initialize the default process group twice"):
        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    assert notes[-1] is None
    assert named(notes)[-1][:2] == ("init_process_group", 0)


def test_an_iterator_of_ranks_is_left_to_torch(notes, world):
    assert dist.new_group(iter([0])).size() == 1
    assert named(notes)[-1] == ("new_group", 1, [])


def test_of_a_large_group_no_members_are_listed(notes, world):
    with pytest.raises(ValueError, match="world size"):
        dist.new_group(list(range(1000)))
    assert named(notes)[-1] == ("new_group", 1, [])


def test_a_failure_in_the_note_never_reaches_the_caller(recording, world, monkeypatch):
    monkeypatch.setattr(recording.page, "write_note", lambda *_: 1 / 0)
    with pytest.warns(RuntimeWarning, match="new process groups"):
        assert isinstance(dist.new_group([0]), dist.ProcessGroup)


def test_without_a_recorder_nothing_is_noted(notes, world):
    collectives._stop()
    before = len(notes)
    dist.new_group([0])
    assert len(notes) == before


def test_signatures_and_names_stay_and_are_wrapped_once(recording):
    before = dist.new_group
    process_groups.install()
    mesh = sys.modules["torch.distributed.device_mesh"]
    assert dist.new_group is before is c10d.new_group is mesh.new_group
    for name, original in process_groups._originals.items():
        wrapped = getattr(c10d, name)
        assert inspect.signature(wrapped) == inspect.signature(original)
        assert wrapped.__name__ == name


# -- timeouts -------------------------------------------------------------------------------------


def collective_s(reader):
    return reader.timeouts.get("collective")


def test_torchs_own_default_is_read_where_the_program_says_nothing(reader, world):
    assert collective_s(reader) == 1800.0


def test_the_shortest_timeout_of_all_groups_counts(reader, world):
    dist.new_group([0], timeout=timedelta(seconds=40))
    dist.new_group([0], timeout=timedelta(seconds=60))
    assert collective_s(reader) == 40.0


def test_groups_from_before_the_attach_count_too(recording, reader, world):
    dist.new_group([0], timeout=timedelta(seconds=40))
    recording.page.write_timeout(layout.W_TIMEOUT_COLLECTIVE, 0)
    process_groups.install()
    assert collective_s(reader) == 40.0


def test_a_timeout_that_is_changed_later_is_read_again(reader, world):
    c10d._set_pg_timeout(timedelta(seconds=25))
    assert collective_s(reader) == 25.0
    c10d._set_pg_timeout(timedelta(seconds=250))
    assert collective_s(reader) == 250.0


def test_a_new_world_has_its_own_timeout(reader, recording):
    for seconds in (30, 90):
        dist.init_process_group(
            "gloo", rank=0, world_size=1, store=dist.HashStore(),
            timeout=timedelta(seconds=seconds),
        )  # fmt: skip
        dist.destroy_process_group()
        assert collective_s(reader) == float(seconds)


def test_no_group_is_told_of_before_there_is_one(reader, recording):
    assert (reader.timeouts, reader.forming(NOW)) == ({}, None)
