"""Panels that stand on more than one dashboard."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import stat, table, timeseries

from dashboards.colours import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SEVERITY, YELLOW
from dashboards.frame import rank_links
from dashboards.grids import Column, rows
from dashboards.panels import Query, lines, tile
from dashboards.selectors import GROUP, MONITOR, ZERO

GOOD: Final = f"sum(rate(lightkeeper_effective_rank_seconds_total{{{MONITOR}}}[$__rate_interval]))"
BAD: Final = f"lightkeeper_ineffective_rank_seconds_total{{{MONITOR}}}"
LOST: Final = f"(sum(rate({BAD}[$__rate_interval])) or {ZERO})"
RANKS: Final = f"sum(lightkeeper_ranks{{{MONITOR}}})"
GOODPUT: Final = f"{GOOD} / (({RANKS} > {GOOD} + {LOST}) or ({GOOD} + {LOST}))"
"""Of the ranks that there are: a lost second waits for a minute until its cause is known."""
PACE: Final = f"max(rate(lightkeeper_group_commits_total{{{MONITOR}}}[$__rate_interval]))"
BUSY: Final = "lightkeeper_fleet_busy_seconds"
SKEW: Final = (
    f'max({BUSY}{{{MONITOR}, stat="max"}} / ignoring (stat) {BUSY}{{{MONITOR}, stat="median"}})'
)
DETAIL: Final = "${__url_time_range}&${job:queryparam}&${instance:queryparam}"


def more(title: str, uid: str) -> dict[str, str]:
    """A link to another dashboard, with its time, job and monitor."""
    return {title: f"/d/{uid}?{DETAIL}&var-monitor_url=${{monitor_url}}"}


def goodput_tile(*, width: int = 3, height: int = 5) -> stat.Panel:
    """The share of the time that trains."""
    return tile(
        "Goodput now",
        Query(GOODPUT),
        unit="percentunit",
        decimals=1,
        base=RED,
        levels={0.8: ORANGE, 0.95: GREEN},
        width=width,
        height=height,
        links=more("Lost seconds by cause", "lightkeeper-incidents"),
        says="Share of the ranks' time that trains. When it is low, 'Where ranks' time goes' "
        "says what takes the rest.",
    )


def lost_lines(*, width: int, height: int) -> timeseries.Panel:
    """Ranks that train, and those that do not, by cause."""
    return lines(
        "Where ranks' time goes",
        Query(GOOD, "training"),
        Query(f"sum by (cause) (rate({BAD}[$__rate_interval]))", "{{cause}}"),
        Query(f"clamp_min({RANKS} - {GOOD} - {LOST}, 0)", "cause not known yet"),
        stacked=True,
        coarse="1m",  # a second whose cause takes a minute to be known is booked at once then
        unit="suffix: ranks",
        width=width,
        height=height,
        colours={
            "training": GREEN,
            "starting": BLUE,
            "recovering": YELLOW,
            "unexplained": PURPLE,
            "cause not known yet": GREY,
        },
        says="How many ranks train, and what keeps the others from it; a cause is known within a "
        "minute. A band that stays is worth a repair: open Incidents for that kind.",
    )


def suspects_table(*, width: int, height: int) -> table.Panel:
    """Culprits of open incidents, with their debug pages."""
    return rows(
        "Suspects",
        [Query(f"lightkeeper_rank_suspect{{{GROUP}}} == 1")],
        [
            Column("replica_group", "group", width=110),
            Column("rank", links=rank_links(series=False), width=70),
            Column("host"),
            Column("kind"),
        ],
        hidden=("Value",),
        width=width,
        height=height,
        empty="nobody is accused",
        says="Culprits of open incidents; victims are not among them. Click the rank for its "
        "page, stacks and flight record, through the monitor.",
    )


def open_incidents(*, width: int, height: int) -> table.Panel:
    """Those that are not over, with links to their stories."""
    since = f'lightkeeper_incident_first_seen_timestamp_seconds{{{MONITOR}, state!="resolved"}}'
    return rows(
        "Open incidents",
        [Query(f"max by (incident, kind, severity, state, replica_group) ({since}) * 1000")],
        [
            Column("Value", "began", unit="dateTimeFromNow", width=120),
            Column(
                "incident",
                links={"Story and evidence": "${monitor_url}/incidents/${__value.text}"},
            ),
            Column("kind"),
            Column("severity", values={one: (one, colour) for one, colour in SEVERITY.items()}),
            Column("state"),
            Column("replica_group", "group"),
        ],
        sort="began",
        width=width,
        height=height,
        empty="no open incident",
        says="What is wrong now, newest first. Click the incident: its page tells who did it, "
        "how it is known, and what was done.",
    )


def tick_lines(*, width: int, height: int) -> timeseries.Panel:
    """How long the monitor's ticks take, and how late they begin."""
    tick = f"lightkeeper_tick_duration_seconds_bucket{{{MONITOR}}}"
    slow = f"histogram_quantile(0.95, sum by (le) (rate({tick}[$__rate_interval])))"
    return lines(
        "Ticks of the monitor",
        Query(slow, "95 % take"),
        Query(f"max(lightkeeper_tick_lateness_seconds{{{MONITOR}}})", "begin late by"),
        unit="s",
        width=width,
        height=height,
        colours={"95 % take": GREEN, "begin late by": ORANGE},
        says="How long a tick takes and how late it begins. A late monitor doubts itself and "
        "evicts nobody: give it CPU, or a longer --tick.",
    )
