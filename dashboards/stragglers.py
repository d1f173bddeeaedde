"""Stragglers: who works longest while the others wait."""

from __future__ import annotations

from typing import Any, Final

from dashboards.colours import BLUE, GREEN, ORANGE, RED
from dashboards.frame import Board, rank_links
from dashboards.panels import Column, Query, heat, lines, rows
from dashboards.selectors import GROUP, MONITOR, worst

_BY_RANK: Final = "instance, replica_group, rank"
_FLEET: Final = "lightkeeper_fleet_busy_seconds"
_BUSY: Final = f"lightkeeper_rank_busy_seconds{{{GROUP}}}"
_WAIT: Final = f"lightkeeper_rank_wait_seconds{{{GROUP}}}"
_RATIO: Final = f'{_BUSY} / on (instance) group_left () {_FLEET}{{{MONITOR}, stat="median"}}'


def stragglers() -> Board:
    """The dashboard."""
    return Board(
        uid="lightkeeper-stragglers",
        title="Lightkeeper: stragglers",
        about="Which rank makes the others wait, since when, and how much it costs. A fleet runs "
        "at the pace of its slowest rank.",
        rows=(("Which ranks, since when, and by how much?", _ranks()),),
    )


def _ranks() -> list[Any]:
    stats = {"slowest rank": ("max", RED), "99 % of ranks": ("p99", ORANGE),
             "median": ("median", GREEN), "fastest": ("min", BLUE)}  # fmt: skip
    return [
        heat(
            "Own work of the slowest ranks, against the median",
            Query(worst(_RATIO, _BY_RANK, _BUSY), "{{replica_group}}.{{rank}}"),
            unit="suffix:x the median",
            value="times the median",
            bounds=(0.8, 2.0),
            width=24,
            height=12,
            links=rank_links(series=True),
            says="A row for each of the ranks that worked longest within the shown time. A red "
            "row is a slow rank, red rows of one group a slow host, a red column a slow moment "
            "of all. Click a cell for the rank's page and stacks.",
        ),
        rows(
            "Slowest ranks now",
            [
                f"topk($topn, {_BUSY})",
                f"topk($topn, {_RATIO})",
                f"{_WAIT} and on ({_BY_RANK}) topk($topn, {_BUSY})",
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
        lines(
            "Own work in a step",
            *[
                Query(f'max({_FLEET}{{{MONITOR}, stat="{stat}"}})', name)
                for name, (stat, _) in stats.items()
            ],
            unit="s",
            height=10,
            colours={name: colour for name, (_, colour) in stats.items()},
            says="Seconds of a step in which ranks work and do not wait. Red above green is what "
            "every step loses: evict that rank's group, or repair its host. All rise together: "
            "the model or the data changed.",
        ),
    ]
