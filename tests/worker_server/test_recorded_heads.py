"""Heads by torch's recorders: which are told, how old they are, and when no more."""

import json

import pytest

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.sidecar.recorders import RecordedHeads
from tests.monitor.records.dumps import config, entry, nccl, pending, status

ASKED = "dump_nccl_trace_json"
WORLD = config(**{"0": ("default_pg", range(4))})


def dump(*entries, heads=(2, 2, 1), groups=WORLD, **more):
    """As it comes over HTTP."""
    said = nccl(*entries, pg_config=groups, pg_status=status(p0=heads, **more))
    return json.loads(json.dumps(said))


def header(heads, groups=WORLD):
    said = dump(heads=heads, groups=groups)
    del said["entries"]
    return said


def told(record, now_s=10.0, moved_s=10.0):
    heads = RecordedHeads()
    heads.take(ASKED, record, now_s, moved_s)
    return heads.by_now(now_s, moved_s)


def test_a_group_with_its_name_its_size_and_what_the_device_has_done():
    (head,) = told(dump(entry(0, 1), pending(1, 2)))
    assert head == wire.GroupHead(
        "nccl:default_pg", 4, 2, 1, "all_reduce", 0.0, started=2, read_age_s=0.0
    )


def test_counts_in_quotes_are_counts_and_minus_one_is_none():
    said = dump(entry(0, 1), heads=("1", "-1", "1"))
    assert [(h.enqueued, h.started, h.completed, h.inside) for h in told(said)] == [(1, 0, 1, 0)]


def test_a_header_without_entries_is_understood_by_the_last_dump_and_ages():
    heads = RecordedHeads()
    heads.take(ASKED, header((1, 1, 1)), 9.0, 9.0)
    assert heads.by_now(9.0, 9.0) == ()  # nobody knows whose number 0 is
    heads.take(ASKED, dump(entry(0, 1), heads=(1, 1, 1)), 10.0, 10.0)
    heads.take(ASKED, header((2, 1, 1)), 20.0, 12.0)
    heads.take(ASKED, header((2, 1, 1)), 21.0, 12.0)
    (head,) = heads.by_now(23.0, 12.0)
    assert (head.enqueued, head.inside, head.op) == (2, 2, "")  # its entry was never read
    assert (head.age_s, head.read_age_s) == (3.0, 2.0)


def test_one_that_is_seen_first_while_its_rank_stands_stands_as_long():
    assert told(dump(entry(0, 1)), now_s=50.0, moved_s=44.0)[0].age_s == 6.0


def test_an_old_reading_tells_nothing():
    heads = RecordedHeads()
    heads.take(ASKED, dump(entry(0, 1)), 10.0, 10.0)
    assert heads.by_now(40.0, 10.0)
    assert not heads.by_now(40.1, 10.0)
    (head,) = heads.by_now(500.0, 10.0, ended_s=40.0)  # of a dead rank: as it was at its end
    assert (head.age_s, head.read_age_s) == (490.0, 490.0)
    assert not heads.by_now(500.0, 10.0, ended_s=40.1)


def test_what_was_aborted_is_left_out_once_its_rank_has_gone_on_for_long():
    heads = RecordedHeads()
    for now_s in (10.0, 40.0, 69.0):
        heads.take(ASKED, dump(entry(0, 1), pending(1, 2)), now_s, now_s)
        assert heads.by_now(now_s, now_s)[0].inside == 2
    heads.take(ASKED, dump(entry(0, 1), pending(1, 2)), 71.0, 71.0)
    assert heads.by_now(71.0, 71.0) == ()
    # a rank that stands all the while is in it
    assert heads.by_now(71.0, 10.0)[0].inside == 2


@pytest.mark.parametrize(
    ("names", "name"),
    [
        (["3", "mesh_tp"], "nccl:mesh_tp/3"),
        (["3", "undefined"], "nccl:3"),
        (["", ""], None),  # TorchFT's, in some versions
        (["torchft_quorum_7", "undefined"], None),
        (["3", "torchft"], None),
        (["3"], None),
        ("30", None),
        ([3, "mesh_tp"], None),
    ],
)
def test_names_are_the_same_on_all_ranks_and_no_other_groups(names, name):
    groups = config(**{"3": ("mesh_tp", (0, 2)), "": ("", (0, 1))})
    said = dump(entry(0, 1, process_group=names), groups=groups)
    assert [head.name for head in told(said)] == ([] if name is None else [name])


def test_two_groups_of_one_name_stay_two():
    groups = config(**{"3": ("mesh_tp", (0, 2)), "4": ("mesh_tp", (0, 1, 2))})
    said = dump(
        entry(0, 1, process_group=["3", "mesh_tp"]),
        entry(1, 5, process_group=["4", "mesh_tp"], pg_id=1),
        groups=groups, p1=(5, 5, 5),
    )  # fmt: skip
    assert [(h.name, h.size) for h in told(said)] == [
        ("nccl:mesh_tp/3", 2), ("nccl:mesh_tp/4", 3)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "said",
    [
        dump(entry(0, 1), pending(1, 0, is_p2p=True)),  # sends count in the same place
        dump({**entry(0, 1), "is_p2p": None}),  # nobody knows
        dump(entry(0, 1), groups=config(**{"0": ("default_pg", (0,))})),
        dump(entry(0, 1), groups={}),
        dump(entry(0, 1), groups={"0": {"ranks": [0, 1]}}),
        dump(entry(0, 1, pg_id="0")),
        dump(entry(0, 1, collective_seq_id=None)),
        dump(entry(0, 1, profiling_name=7)),
        dump(entry(0, 1), heads=(0, 0, 0)),
        dump(entry(0, 1), heads=(1, 1, 2)),  # completed before it was enqueued
        dump(entry(0, 1), heads=(10**18, 0, 0)),  # no 64 bits
        dump(entry(0, 1), heads=(True, None, "x")),
        {"entries": "many", "pg_status": status(p0=(1, 1, 1))},
        {"entries": [None, 3, {}], "pg_status": {"0": 3}},
        {"pg_status": [1]},
        {},
    ],
)
def test_what_cannot_be_understood_says_nothing(said):
    assert told(said) == ()


def test_of_several_recorders_each_has_its_own():
    heads = RecordedHeads()
    heads.take(ASKED, dump(entry(0, 1)), 1.0, 1.0)
    gloo = dump(entry(0, 1, profiling_name="gloo:all_reduce"), heads=(3, 3, 3))
    heads.take("fr_trace_json?backend=gloo", gloo, 1.0, 1.0)
    heads.take(ASKED, header((2, 2, 2)), 2.0, 2.0)
    assert {h.name: h.enqueued for h in heads.by_now(2.0, 2.0)} == {
        "nccl:default_pg": 2, "gloo:default_pg": 3,
    }  # fmt: skip


def test_on_the_wire_they_are_rows_and_come_back_as_they_were():
    heads = told(dump(entry(0, 1), pending(1, 2)))
    identity = wire.Identity("job", wire.GroupName("rg_0"), 0, 4, wire.Host("a"), 1, "x")
    report = wire.StateReport(identity, wire.Process(alive=True, state="S"), None, heads)
    plain = json.loads(json.dumps(wire.to_json(report)))
    assert plain["heads"] == [["nccl:default_pg", 4, 2, 1, "all_reduce", 0.0, 2, 2, 0.0]]
    assert wire.parse_state(plain).heads == heads
