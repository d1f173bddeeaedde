"""Dumps of several ranks become one job, whatever each calls its groups."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightkeeper.monitor.records import dump
from lightkeeper.monitor.records.dump import Record, assemble
from lightkeeper.monitor.records.files import load_job
from lightkeeper.monitor.records.job import COLUMNS, CollectiveState, GroupStatus, Sites
from tests.monitor.records.dumps import config, entry, gloo, nccl, pending, send

REAL = Path(__file__).parents[4] / "shared/data/flight_recorder_nccl"


def job(values, **options):
    """Of rank -> dump."""
    return assemble(
        (Record(rank, dump.read_dump(value)) for rank, value in values.items()), **options
    )


def groups(records):
    return {group.name: group.members for group in records.groups}


WORLD = {"0": ("default_pg", range(4))}


def test_rows_are_sorted_by_rank_and_have_every_column() -> None:
    records = job({2: nccl(entry(0, 1)), 0: nccl(entry(0, 1), entry(1, 2))})
    assert records.columns["rank"].tolist() == [0, 0, 2]
    assert {name: column.dtype for name, column in records.columns.items()} == {
        name: np.dtype(dtype) for name, dtype in COLUMNS.items()
    }
    assert records.expected == (0, 1, 2, 3)
    assert records.silent == (1, 3)


def test_one_group_has_one_index_although_its_pg_ids_differ() -> None:
    tp = config(**WORLD, **{"5": ("TP", (0, 1))})
    records = job(
        {
            0: nccl(entry(0, 1, pg_id=3, process_group=("5", "TP")), pg_config=tp),
            1: nccl(entry(0, 1, pg_id=8, process_group=("5", "TP")), pg_config=tp),
        }
    )
    assert groups(records) == {"0": (0, 1, 2, 3), "5": (0, 1)}
    assert records.columns["group"].tolist() == [1, 1]


def test_groups_of_one_name_and_other_members_are_two() -> None:
    left, right = (config(**WORLD, **{"5": ("TP", ranks)}) for ranks in ((0, 1), (2, 3)))
    rows = entry(0, 1, pg_id=1, process_group=("5", "TP"))
    records = job({0: nccl(rows, pg_config=left), 2: nccl(rows, pg_config=right)})
    assert groups(records) == {"0": (0, 1, 2, 3), "5": (0, 1), "5#2": (2, 3)}
    assert records.columns["group"].tolist() == [1, 2]


def test_a_rank_that_knows_no_members_joins_the_one_group_that_has_it() -> None:
    tp = config(**WORLD, **{"5": ("TP", (0, 1))})
    row = entry(0, 1, pg_id=3, process_group=("5", "TP"))
    records = job({0: nccl(row, pg_config=tp), 1: nccl(row, pg_config={})})
    assert records.columns["group"].tolist() == [1, 1]
    assert not records.groups[1].inferred


def test_members_that_nobody_knows_are_inferred_from_the_entries() -> None:
    row = entry(0, 1, process_group=("5", "TP"))
    records = job({0: nccl(row, pg_config={}), 3: nccl(row, pg_config={})})
    assert groups(records) == {"5": (0, 3)}
    assert records.groups[0].inferred


def test_members_that_are_supplied_by_name_or_description_are_known() -> None:
    row = entry(0, 1, process_group=("5", "TP"))
    for key in ("5", "TP"):
        records = job({0: nccl(row, pg_config={})}, members={key: [0, 1]})
        assert groups(records) == {"5": (0, 1)}
        assert not records.groups[0].inferred
        assert records.silent == ()


def test_everybody_is_in_the_world_of_gloo_which_names_no_members() -> None:
    values = {0: gloo(entry(0, 1)), 2: gloo(entry(0, 1))}
    assert job(values).groups[0].members == (0, 2)
    assert job(values).groups[0].inferred
    assert job(values, world_size=4).groups[0].members == (0, 1, 2, 3)
    assert not job(values, world_size=4).groups[0].inferred


def test_nameless_groups_of_unknown_members_are_not_held_against_each_other() -> None:
    row = entry(0, 1, process_group=["", ""], pg_id=2)
    value = {"version": "2.10", "entries": [row]}
    records = job({0: value, 1: value})
    assert groups(records) == {"unnamed of rank 0": (0,), "unnamed of rank 1": (1,)}


def test_a_group_made_anew_under_its_name_is_another() -> None:
    rows = [entry(0, 7, pg_id=0), pending(1, 1, pg_id=4)]
    records = job({0: nccl(*rows), 1: nccl(rows[1])})
    first, second = records.columns["group"].tolist()[:2]
    assert first != second
    assert records.columns["group"].tolist()[2] == second


def test_peers_are_global_ranks() -> None:
    pp = config(**WORLD, **{"5": ("PP", (1, 3))})
    rows = send(0, 1, pg_id=2, process_group=("5", "PP"))
    assert job({1: nccl(rows, pg_config=pp)}).columns["peer"].tolist() == [3]
    assert job({1: nccl(rows, pg_config={})}).columns["peer"].tolist() == [-1]


def test_a_peer_that_the_group_does_not_have_is_unknown() -> None:
    records = job({0: nccl(send(0, 1, "nccl:send 0->7"))})
    assert records.columns["peer"].tolist() == [-1]


def test_the_worlds_of_torchft_are_counted_on_from_replica_group_to_replica_group() -> None:
    own = config(**{
        "0": ("default_pg", range(2)), "2": ("TP", (1,)), "torchft_quorum_5_rank_1": ("", (1, 3)),
    })  # fmt: skip
    across = ("torchft_quorum_5_rank_1", "")
    rows = [entry(0, 1), entry(1, 1, pg_id=4, process_group=across)]
    records = job({1: nccl(*rows, pg_config=own), 3: nccl(*rows, pg_config=own)})
    assert groups(records) == {
        "0": (0, 1), "0#2": (2, 3), "2": (1,), "2#2": (3,), "torchft_quorum_5_rank_1": (1, 3),
    }  # fmt: skip
    assert records.groups[-1].generation == 5
    assert records.expected == (0, 1, 2, 3)


def test_payloads_and_sites_are_shared_by_ranks() -> None:
    frames = [{"name": "f", "filename": "/j/train.py", "line": 3}]
    records = job({rank: nccl(entry(0, 1, frames=frames)) for rank in range(4)})
    assert len(records.payloads) == len(records.sites) == 1
    assert records.columns["site"].tolist() == [0] * 4


@given(st.permutations(range(4)))
def test_the_order_in_which_records_come_changes_nothing(order) -> None:
    values = {
        rank: nccl(
            entry(rank, 1),
            pending(rank + 1, 1, pg_id=rank, process_group=(str(5 + rank // 2), "TP")),
            pg_config=config(**WORLD, **{str(5 + rank // 2): ("TP", (rank & 2, rank | 1))}),
        )
        for rank in range(4)
    }
    in_order, other = job(values), job({rank: values[rank] for rank in order})
    assert (in_order.groups, in_order.payloads, in_order.ranks) == (
        other.groups,
        other.payloads,
        other.ranks,
    )
    for name in COLUMNS:
        assert (in_order.columns[name] == other.columns[name]).all()


real = pytest.mark.skipif(not REAL.exists(), reason="needs ../shared/data/flight_recorder_nccl")


@real
@pytest.mark.parametrize("fault", ["gpu_error_2nd", "lock_gil_1st"])
def test_the_real_records_of_a_16_rank_job_load_without_a_doubt(fault) -> None:
    records = load_job([REAL / fault])
    assert (records.expected, records.silent, records.problems) == (tuple(range(16)), (), ())
    assert all(info.only_active and len(info.status) == 13 for info in records.ranks.values())
    assert not any(group.inferred for group in records.groups)
    assert set(records.columns["state"].tolist()) == {CollectiveState.SCHEDULED}
    for rank, info in records.ranks.items():
        assert all(rank in records.groups[group].members for group in info.status)


@real
def test_real_pipeline_sends_and_receives_point_at_each_other() -> None:
    records = load_job([REAL / "gpu_error_2nd"])
    columns = {name: column.tolist() for name, column in records.columns.items()}
    ends = {
        (columns["rank"][row], columns["peer"][row])
        for row in range(len(records))
        if columns["p2p"][row]
    }
    assert ends == {(a, b) for rank in range(8) for a, b in ((rank, rank + 8), (rank + 8, rank))}


@real
def test_a_real_rank_without_entries_keeps_what_its_status_says() -> None:
    records = load_job([REAL / "lock_gil_1st"])
    names = {group.name: index for index, group in enumerate(records.groups)}
    assert not (records.columns["rank"] == 9).any()
    assert records.ranks[9].status[names["72"]] == GroupStatus(45264, -1, 45264)
    assert records.ranks[8].status[names["72"]] == GroupStatus(45267, -1, 45264)


# -- call sites ------------------------------------------------------------------------------------


def test_the_wrapper_of_an_attached_rank_is_not_the_call_site() -> None:
    frames = [
        {"name": "all_reduce", "filename": "/venv/site-packages/torch/distributed/c.py", "line": 1},
        {"name": "recorded", "filename": "/src/worker_server/collectives.py", "line": 185},
        {"name": "step", "filename": "/job/train.py", "line": 7},
    ]
    sites = Sites()
    number = sites.of(frames)
    assert sites.texts[number] == "train.py:7 step"
