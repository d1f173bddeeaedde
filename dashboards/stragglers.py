"""Stragglers: who works longest while the others wait."""

from __future__ import annotations

from typing import Any

from dashboards.colours import BLUE, GREEN, GREY, ORANGE, RED, YELLOW
from dashboards.frame import Board, group_links, rank_links
from dashboards.grids import Column, heat, rows
from dashboards.panels import Query, lines, ranking, tile
from dashboards.recurring import BUSY, SKEW, suspects_table
from dashboards.selectors import BY_RANK, GROUP, MONITOR, worst

_RANK_BUSY = f"lightkeeper_rank_busy_seconds{{{GROUP}}}"
_RANK_WAIT = f"lightkeeper_rank_wait_seconds{{{GROUP}}}"
_MEDIAN = f'{BUSY}{{{MONITOR}, stat="median"}}'
_RATIO = f"{_RANK_BUSY} / on (instance) group_left () {_MEDIAN}"


def stragglers() -> Board:
    """The dashboard."""
    return Board(
        uid="lightkeeper-stragglers",
        title="Lightkeeper: stragglers",
        about="Which rank makes the others wait, since when, and how much it costs. A fleet runs "
        "at the pace of its slowest rank.",
        rows=(
            ("How slow is the slowest?", _now()),
            ("Which ranks, and since when?", _ranks()),
            ("Where does the time of a step go?", _split()),
        ),
    )


def _now() -> list[Any]:
    slowest, median = (f'max({BUSY}{{{MONITOR}, stat="{stat}"}})' for stat in ("max", "median"))
    return [
        tile(
            "Slowest rank",
            Query(SKEW),
            unit="suffix:x the median",
            decimals=2,
            levels={1.2: ORANGE, 1.5: RED},
            width=4,
            empty="nobody commits",
            says="Own work of the slowest rank in a step, against the median. From 1.5 on "
            "somebody is a straggler: the heat map names it.",
        ),
        tile(
            "Median rank works",
            Query(median),
            unit="s",
            decimals=3,
            base=GREY,
            width=4,
            empty="nobody commits",
            says="Seconds of a step in which the median rank works: what a step could take if "
            "nobody were slow. Compare with the slowest.",
        ),
        tile(
            "A step could be shorter by",
            Query(f"1 - {median} / {slowest}"),
            unit="percentunit",
            decimals=0,
            levels={0.15: ORANGE, 0.33: RED},
            width=4,
            empty="nobody commits",
            says="What the fleet would gain if its slowest rank worked like the median. Small: "
            "leave it. Large: evict its group, or repair its host.",
        ),
        suspects_table(width=12, height=5),
    ]


def _ranks() -> list[Any]:
    return [
        heat(
            "Own work of the slowest ranks, against the median",
            Query(worst(_RATIO, BY_RANK, _RANK_BUSY), "{{replica_group}}.{{rank}}"),
            unit="suffix:x the median",
            value="times the median",
            bounds={"min": 0.8, "max": 2.0},
            links=rank_links(series=True),
            says="A row for each of the ranks that worked longest within the shown time. A red "
            "row is a slow rank, red rows of one group a slow host, a red column a slow moment "
            "of all. Click a cell for the rank's page and stacks.",
        ),
        rows(
            "Slowest ranks now",
            [
                Query(f"topk($topn, {_RANK_BUSY})"),
                Query(f"topk($topn, {_RATIO})"),
                Query(f"{_RANK_WAIT} and {BY_RANK} topk($topn, {_RANK_BUSY})"),
            ],
            [
                Column("replica_group", "group", width=130),
                Column("rank", links=rank_links(series=False), width=70),
                Column("Value #A", "works a step", unit="s", decimals=3),
                Column(
                    "Value #B",
                    "times the median",
                    levels={1.2: ORANGE, 1.5: RED},
                    base=GREEN,
                    decimals=2,
                ),
                Column("Value #C", "waits a step", unit="s", decimals=3),
            ],
            sort="works a step",
            height=10,
            empty="nobody commits",
            says="Ranks by their own work a step. Works long and waits little: the straggler. "
            "Click its number for stacks and profile; its host is on its page.",
        ),
        ranking(
            "Skew by group",
            Query(
                "topk($topn, max by (replica_group) "
                f"(lightkeeper_group_busy_skew_ratio{{{GROUP}}}))",
                "{{replica_group}}",
            ),
            unit="suffix:x the median",
            base=GREEN,
            levels={1.2: ORANGE, 1.5: RED},
            height=10,
            empty="nobody commits",
            links=group_links(series=True),
            says="The slowest rank of each group against the median of the fleet. One long bar: "
            "one sick rank or host. Many: the data, or the network, is uneven.",
        ),
    ]


def _split() -> list[Any]:
    stats = {"slowest rank": "max", "99 % of ranks": "p99", "median": "median", "fastest": "min"}
    group_wait = f"lightkeeper_group_wait_seconds{{{GROUP}}}"
    group_busy = f"lightkeeper_group_busy_seconds{{{GROUP}}}"
    return [
        lines(
            "Own work in a step",
            *[
                Query(f'max({BUSY}{{{MONITOR}, stat="{stat}"}})', name)
                for name, stat in stats.items()
            ],
            unit="s",
            colours={
                "slowest rank": RED,
                "99 % of ranks": ORANGE,
                "median": GREEN,
                "fastest": BLUE,
            },
            says="Seconds of a step in which ranks work and do not wait. Red far above green: a "
            "straggler. All rise together: the model or the data changed.",
        ),
        lines(
            "Work and wait of the median group",
            Query(f"quantile(0.5, {group_busy})", "works"),
            Query(f"quantile(0.5, {group_wait})", "waits for others"),
            stacked=True,
            unit="s",
            colours={"works": GREEN, "waits for others": YELLOW},
            says="A step of the median group: its own work, and its wait for others. Yellow "
            "growing over a green that stays: somebody else became slow.",
        ),
        lines(
            "Wait of the groups that wait longest",
            Query(
                f"{group_wait} and on (instance, replica_group) "
                f"topk($topn, max_over_time({group_wait}[$__range] @ end()))",
                "{{replica_group}}",
            ),
            unit="s",
            width=24,
            links=group_links(series=True),
            says="Groups that wait much are victims. The one that waits least while the others "
            "wait long is the straggler: look for it in the heat map.",
        ),
    ]
