"""Rows of ranks, groups and hosts: which, in which order, and how a script reads them."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightkeeper.monitor.commands import status
from lightkeeper.monitor.model.units import age
from lightkeeper.monitor.show.terminal.tables import (
    GROUP_ORDERS,
    RANK_ORDERS,
    Column,
    RowsAsked,
    columns_of,
    cut,
    table,
    width_of,
)
from tests.monitor.bodies import group, rank

RANKS = [
    rank("rg_10", 0, busy_s=0.2, step=7, phase_age_s=3.0, wait_s=0.3),
    rank("rg_9", 0, busy_s=0.5, step=9, phase_age_s=None, health="dead", wait_s=0.0),
    rank("rg_9", 1, busy_s=None, wait_s=None, step=None, phase_age_s=1.0, health="waiting"),
]  # fmt: skip


STILL = [
    rank("rg_0", 0, busy_s=None, health="waiting"), rank("rg_0", 1, busy_s=None, health="stalled"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("ranks", "order", "names"),
    [
        (RANKS, "rank", ["rg_9.0", "rg_9.1", "rg_10.0"]),
        (RANKS, "busy", ["rg_9.0", "rg_10.0", "rg_9.1"]),
        (RANKS, "step", ["rg_10.0", "rg_9.0", "rg_9.1"]),
        (RANKS, "phase-age", ["rg_10.0", "rg_9.1", "rg_9.0"]),
        (RANKS, "health", ["rg_9.0", "rg_9.1", "rg_10.0"]),
        (STILL, "busy", ["rg_0.1", "rg_0.0"]),
    ],
    ids=["rank", "busy", "step", "phase-age", "health", "nothing known: health"],
)
def test_what_is_not_known_comes_last(ranks, order: str, names: list[str]) -> None:
    assert [row["rank"] for row in RowsAsked(sort=order).among(ranks)] == names


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (RowsAsked(), ["rg_10.0", "rg_9.0", "rg_9.1"]),
        (RowsAsked(groups=frozenset({"rg_9"})), ["rg_9.0", "rg_9.1"]),
        (RowsAsked(hosts=frozenset({"node10"})), ["rg_10.0"]),
        (RowsAsked(unhealthy=True), ["rg_9.0"]),
    ],
    ids=["all", "group", "host", "unhealthy"],
)
def test_filters(wanted: RowsAsked, names: list[str]) -> None:
    assert [row["rank"] for row in wanted.among(RANKS)] == names


def test_groups_by_heartbeat() -> None:
    groups = [group("rg_0", heartbeat_age_s=None), group("rg_1", heartbeat_age_s=1.0),
              group("rg_2", heartbeat_age_s=9.0)]  # fmt: skip
    assert [row["group"] for row in RowsAsked(sort="heartbeat").among(groups)] == [
        "rg_2",
        "rg_1",
        "rg_0",
    ]


def test_a_table_whole() -> None:
    assert (
        "\n".join(table(columns_of("ranks"), RANKS))
        == """\
rank     health       host    phase            for    step   s/step     busy     wait  trouble
rg_10.0  healthy      node10  forward         3.0s       7      0.5      0.2      0.3  -
rg_9.0   dead         node9   forward            -       9      0.5      0.5        0  -
rg_9.1   waiting      node9   forward         1.0s       -      0.5        -        -  -"""
    )


def test_where_it_is_narrow_the_least_needed_columns_go_first() -> None:
    names = {
        width: table(columns_of("ranks"), RANKS, width)[0].split() for width in (100, 84, 70, 46)
    }
    assert names[100] == [column.name for column in columns_of("ranks")]
    assert "host" not in names[84]
    assert "s/step" not in names[70]
    assert names[46] == ["rank", "health", "for", "busy", "trouble"]


TEXTS = st.text(max_size=30)


@given(st.lists(st.tuples(TEXTS, TEXTS, TEXTS, TEXTS), min_size=1, max_size=5))
def test_two_spaces_part_the_fields_whatever_ranks_are_called(
    texts: list[tuple[str, str, str, str]],
) -> None:
    ranks = [
        rank("rg_0", 0, rank=name, host=host, phase=phase, trouble=detail)
        for name, host, phase, detail in texts
    ]
    columns = columns_of("ranks", wide=True)
    for said in table(columns, ranks):
        assert len(re.split("  +", said)) == len(columns)
        assert not {unicodedata.category(letter) for letter in said} & {"Cc", "Cf", "Cs", "Zl"}


@given(st.lists(st.text(alphabet="0127²٣ab_.", max_size=8), min_size=2, max_size=6))
def test_names_of_any_kind_can_be_sorted(texts: list[str]) -> None:
    ranks = [rank("rg_0", 0, rank=text, host=text) for text in texts]
    for order in ("rank", "host"):
        assert len(RowsAsked(sort=order).among(ranks)) == len(texts)


@given(st.integers(1, 120), st.lists(TEXTS, min_size=3, max_size=3))
def test_no_line_is_wider_than_the_terminal(width: int, texts: list[str]) -> None:
    columns = (Column("a"), Column("b", spare=1), Column("c"))
    for line in table(columns, [dict(zip("abc", texts, strict=True))], width):
        assert width_of(line) <= width


def test_wide_characters_take_two_cells() -> None:
    assert cut("節点の名前", 5) == "節点…"
    assert width_of("節点") == 4


def test_a_group_is_one_line() -> None:
    line = table(columns_of("groups"), [group("rg_0", in_quorum=None)])[1]
    assert line == "rg_0   healthy      node0      2   120      118  -            0.1s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (-1.0, "0.0s"), (0.04, "0.0s"), (9.94, "9.9s"), (9.96, "10s"), (119.0, "119s"),
     (121.0, "2m"), (7300.0, "2h"), (200_000.0, "2d")],
)  # fmt: skip
def test_ages_are_one_word(seconds: float | None, text: str) -> None:
    assert age(seconds) == text


def test_every_order_sorts_every_rank() -> None:
    for order in RANK_ORDERS:
        assert len(RowsAsked(sort=order).among(RANKS)) == len(RANKS)


def test_the_command_line_offers_these_orders() -> None:
    assert (status.RANK_ORDERS, status.GROUP_ORDERS) == (RANK_ORDERS, GROUP_ORDERS)
