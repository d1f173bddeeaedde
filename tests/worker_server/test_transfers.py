"""Three real ranks on gloo: how their sends and receives are counted, and what shows who waits for
whom while a group is created.
"""

from __future__ import annotations

import json

import pytest

from lightkeeper.worker_server.rank.page.reader import PageReader
from tests.ports import free_port
from tests.worker_server.pages import NOW

pytest.importorskip("torch")
pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def job(torch_python, tmp_path_factory):
    """The ranks' folder, and the port at which they met."""
    folder, port = tmp_path_factory.mktemp("job"), free_port()
    done = torch_python("transfers_parent", folder, port)
    assert done.code == 0, done.stderr[-2000:]
    return folder, port


@pytest.fixture(scope="module")
def pages(job):
    return [PageReader(job[0] / f"{rank}.page") for rank in range(3)]


def counts(page):
    """(group, peer, tag, sends) -> posted."""
    rows = page.transfers(NOW)
    assert all(row.unfinished == row.held == 0 for row in rows)
    return {(row.group, row.peer, row.tag, row.sends): row.posted for row in rows}


def test_both_sides_of_a_pair_count_alike_whatever_was_called(pages):
    assert [counts(page) for page in pages] == [
        {("default", 1, 0, 1): 3, ("default", 1, 7, 1): 1, ("default", 2, 0, 1): 2,
         ("default", 2, 0, 0): 1},
        {("default", 0, 0, 0): 3, ("default", 0, 7, 0): 1, ("default", 2, 0, 1): 2,
         ("pair", 2, 0, 1): 1},
        {("default", 0, 0, 0): 2, ("default", -1, 0, 0): 1, ("pair", 1, 0, 0): 1,
         ("default", 0, 0, 1): 1, ("default", 1, 0, 0): 1},
    ]  # fmt: skip


def test_the_heads_of_groups_count_collectives_alone(pages):
    heads = [[(head.name, head.enqueued) for head in page.heads(NOW)] for page in pages]
    assert heads == [[("default", 3)], [("default", 3), ("pair", 0)], [("default", 3), ("pair", 0)]]


def test_an_entry_bears_the_number_of_its_pair(pages):
    first, second, third = (page.ring(NOW)[0] for page in pages)
    assert [(e.op, e.seq, e.root, e.tag) for e in first] == [
        ("all_reduce", 1, None, None), ("send", 1, 1, 0), ("send", 2, 1, 0), ("send", 1, 1, 7),
        ("send", 1, 2, 0), ("send", 2, 2, 0), ("isend", 3, 1, 0), ("irecv", 1, 2, 0),
        ("all_reduce", 2, None, None), ("barrier", 3, None, None),
    ]  # fmt: skip
    received = [(e.op, e.seq, e.tag) for e in second if e.root == 0]
    assert received == [("recv", 1, 0), ("recv", 2, 0), ("irecv", 1, 7), ("irecv", 3, 0)]
    assert [(e.group, e.seq, e.root) for e in second if e.group == "pair"] == [("pair", 1, 2)]
    assert [(e.op, e.root, e.tag) for e in third if e.tag == 0 and e.root is None] == [
        ("recv", None, 0)]  # fmt: skip


def test_a_batched_one_is_over_once_its_work_was_waited_for(pages):
    batched = [e for page in pages for e in page.ring(NOW)[0] if e.op in ("isend", "irecv")]
    assert len(batched) == 7
    assert all(e.is_async and e.exit_age_s is not None for e in batched)


def test_a_rank_that_waits_for_another_in_the_creation_of_a_group_says_which_and_where(job):
    folder, port = job
    seen = [json.loads((folder / f"{rank}.forming").read_text()) for rank in range(3)]
    ages = [forming.pop("age_s") for row in seen for forming in row]
    assert all(0 <= age_s < 60 for age_s in ages)
    lines = [forming.pop("site") for row in seen for forming in row]
    assert all(line.startswith("worker_server/transfers_parent.py:") for line in lines)
    assert len(set(lines)) == 2
    store = f"127.0.0.1:{port}"
    first = {"call": "init_process_group", "nth": 0, "store": store}
    [earlier] = [forming.pop("earlier") for forming in seen[2]]
    assert [(ranks, line.rpartition(":")[0]) for ranks, line in earlier] == [
        ([0, 2], "worker_server/transfers_parent.py")
    ]
    pair = {"call": "new_group", "nth": 2, "ranks": [1, 2], "store": store}
    assert seen == [[first, first], [], [pair]]


def test_afterwards_no_group_is_being_created(pages):
    assert [page.forming(NOW) for page in pages] == [None] * 3


def test_the_shortest_timeout_of_a_ranks_groups_is_told(pages):
    assert [page.timeouts for page in pages] == [
        {"collective": 99.0}, {"collective": 77.0}, {"collective": 77.0}]  # fmt: skip
