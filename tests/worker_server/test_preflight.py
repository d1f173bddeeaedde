"""Which host stands out: the comparison alone, on figures that are made."""

from __future__ import annotations

import json
import random

import pytest
from msgspec import convert

from lightkeeper.worker_server.check_host import (
    ALONE,
    BAD,
    FINE,
    LINK,
    MATMUL,
    MEMORY,
    UNSURE,
    Figure,
    HostFigures,
    compare,
    rounds,
)


def hosts(values, name=MATMUL):
    return [HostFigures(f"n{i}", (Figure(name, "GFLOP/s", v),)) for i, v in enumerate(values)]


def verdicts(reports):
    return [(row.host, row.verdict) for row in compare(reports) if row.verdict != FINE]


@pytest.mark.parametrize("count", [4, 5, 8, 64])
def test_equal_hosts_with_noise_are_all_fine(count):
    for seed in range(300):
        chance = random.Random(seed)
        assert verdicts(hosts([chance.uniform(60, 100) for _ in range(count)])) == [], seed


@pytest.mark.parametrize("count", [3, 4, 5, 8, 64])
def test_a_host_at_a_third_is_named_and_nobody_else(count):
    for seed in range(300):
        chance = random.Random(seed)
        values = [chance.uniform(85, 100) for _ in range(count)]
        values[slow := chance.randrange(count)] /= 3
        assert verdicts(hosts(values)) == [(f"n{slow}", BAD)], seed


def test_two_slow_hosts_of_eight_do_not_hide_each_other():
    assert verdicts(hosts([100, 99, 101, 98, 30, 100, 31, 102])) == [("n4", BAD), ("n6", BAD)]


def test_where_all_differ_nobody_stands_out():
    assert verdicts(hosts([100, 50, 25, 12])) == []


def test_of_two_hosts_either_may_be_the_odd_one():
    assert verdicts(hosts([100, 30])) == [("n0", UNSURE), ("n1", UNSURE)]
    assert verdicts(hosts([100, 70])) == []


def test_a_host_alone_is_not_compared():
    assert verdicts(hosts([100])) == [("n0", ALONE)]


def test_a_busy_neighbour_shifts_memory_more_than_that():
    assert verdicts(hosts([100, 100, 100, 40], MEMORY)) == []
    assert verdicts(hosts([100, 100, 100, 30], MEMORY)) == [("n3", BAD)]


def test_a_device_is_compared_with_its_own_host_s():
    cores = tuple(Figure(MATMUL, "GFLOP/s", v, f"GPU {i}") for i, v in enumerate((90, 91, 40, 92)))
    (row,) = [row for row in compare([HostFigures("n0", cores)]) if row.verdict == BAD]
    assert str(row) == "n0: matrix multiplication of GPU 2 40 GFLOP/s, its others: 91"


def test_a_figure_that_a_host_lacks_is_compared_among_the_rest():
    assert verdicts([*hosts([100, 99, 30]), HostFigures("n3")]) == [("n2", BAD)]


def links(rates, names="abcd"):
    """All pairs at 1000, but those of `rates`."""
    return [
        HostFigures(me, (), {other: rates.get(frozenset((me, other)), 1000.0)
                        for other in names if other != me})
        for me in names
    ]  # fmt: skip


def pair(*names):
    return frozenset(names)


def test_a_host_whose_links_are_all_slow_is_named_once():
    slow = {pair("c", other): 12.0 for other in "abd"}
    assert verdicts(links(slow)) == [("c", BAD)]


def test_one_slow_link_is_a_link_and_neither_of_its_hosts():
    (row,) = [row for row in compare(links({pair("a", "c"): 12.0})) if row.verdict == BAD]
    assert (row.host, row.figure) == ("a - c", LINK)


def test_a_link_that_carries_nothing_is_named_where_it_is_the_only_one():
    assert verdicts(links({pair("a", "b"): 0.0}, "ab")) == [("a - b", BAD)]


def test_every_host_says_the_same_in_whatever_order_reports_came():
    reports = hosts([100, 99, 30, 101])
    said = {
        tuple(sorted(map(str, compare(random.Random(seed).sample(reports, 4)))))
        for seed in range(20)
    }
    assert len(said) == 1


@pytest.mark.parametrize("count", range(2, 12))
def test_in_a_tournament_everybody_meets_everybody_once(count):
    meetings = [
        pair(left, right)
        for met in rounds(count, 99)
        for left, right in met.items()
        if left < right
    ]
    assert len(meetings) == len(set(meetings)) == count * (count - 1) // 2
    for met in rounds(count, 99):
        assert all(met[right] == left for left, right in met.items())


def test_a_large_tournament_ends_early():
    assert len(rounds(1000, 8)) == 8


def test_a_report_travels_as_json():
    report = HostFigures("n0", (Figure(MATMUL, "GFLOP/s", 40.0, "core 1"),), {"n1": 3.0})
    assert convert(json.loads(json.dumps(report)), HostFigures) == report
