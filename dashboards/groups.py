"""Replica groups: which one is behind, out of the quorum, or healing again and again."""

from __future__ import annotations

from typing import Any

from dashboards.colours import GREEN, GREY, GROUP_STATE, HEALTH, MEMBER, ORANGE, RED
from dashboards.frame import Board, group_links
from dashboards.grids import Column, rows
from dashboards.panels import Query, lines, ranking, states, tile
from dashboards.selectors import BY_GROUP, GROUP, MONITOR, ZERO, worst

_STATE = f"lightkeeper_group_state{{{GROUP}}}"
_SERIES = group_links(series=True)
_LEGEND = "{{replica_group}}"


def _of_worst(expr: str) -> str:
    """One series for each of the `$topn` groups that were in the worst state."""
    return worst(expr, BY_GROUP, _STATE)


def groups() -> Board:
    """The dashboard."""
    return Board(
        uid="lightkeeper-groups",
        title="Lightkeeper: replica groups",
        about="Which replica group is out, behind, slow or healing. With many groups the worst "
        "come first: 'Show at most' says how many, 'Group' picks them by name.",
        rows=(
            ("How are they?", _now()),
            ("Do they keep up?", _pace()),
            ("What do recoveries take?", _recovery()),
        ),
    )


def _now() -> list[Any]:
    fine = f'sum(lightkeeper_groups{{{MONITOR}, health=~"healthy|waiting"}}) or {ZERO}'
    known = f"sum(lightkeeper_groups{{{MONITOR}}})"
    return [
        tile(
            "Groups",
            Query(known),
            base=GREY,
            height=4,
            width=4,
            says="Replica groups that the monitor knows. Fewer than you started: one never "
            "attached; look at its launcher's log.",
        ),
        tile(
            "Groups that can train",
            Query(f"({fine}) / {known}"),
            unit="percentunit",
            decimals=0,
            base=RED,
            levels={0.5: ORANGE, 1.0: GREEN},
            height=4,
            width=4,
            says="Share of groups that train or wait for others. Below 100 %: the bands below "
            "show which one is neither green nor yellow.",
        ),
        tile(
            "Members of the quorum",
            Query(f"sum(lightkeeper_quorum_participants{{{MONITOR}}})"),
            base=GREY,
            height=4,
            width=4,
            says="Members of the Lighthouse's quorum. Fewer than groups: the band 'In the "
            "quorum' names those that are out.",
        ),
        tile(
            "Age of the quorum",
            Query(f"time() - max(lightkeeper_quorum_formed_timestamp_seconds{{{MONITOR}}})"),
            unit="s",
            decimals=0,
            base=GREY,
            height=4,
            width=4,
            says="Seconds since the quorum was formed, as seen by the monitor. Young again and "
            "again: groups come and go; look at evictions and at the launchers.",
        ),
        tile(
            "Furthest behind",
            Query(
                f"max(lightkeeper_group_step{{{MONITOR}}}) "
                f"- min(lightkeeper_group_step{{{MONITOR}}})"
            ),
            unit="suffix: steps",
            levels={5.0: ORANGE, 50.0: RED},
            height=4,
            width=4,
            says="Steps between the group in front and the last one. It heals on its way into "
            "the quorum; one that stays behind is stuck: click it below.",
        ),
        tile(
            "Heals",
            Query(f"sum(lightkeeper_group_heals_total{{{MONITOR}}})"),
            base=GREY,
            height=4,
            width=4,
            empty="not told",
            says="States of other groups taken over by the present processes. Growing without "
            "evictions: a group loses its state by itself; look at its log.",
        ),
        states(
            "State of each group",
            Query(_of_worst(_STATE), _LEGEND),
            values=GROUP_STATE,
            height=11,
            links=_SERIES,
            says="The worst state of a group's ranks over time, worst groups first. One red "
            "group among yellow ones holds the others up: click it.",
        ),
        states(
            "In the quorum",
            Query(_of_worst(f"lightkeeper_group_in_quorum{{{GROUP}}}"), _LEGEND),
            values=MEMBER,
            height=11,
            links=_SERIES,
            says="Membership in the Lighthouse's quorum. A group that is out and stays out "
            "was evicted, quarantined, or does not start: its page says which.",
        ),
        _table(),
    ]


def _table() -> Any:
    def of(expr: str) -> Query:
        return Query(_of_worst(f"max by (instance, replica_group) ({expr})"))

    front = f"scalar(max(lightkeeper_group_step{{{MONITOR}}}))"
    return rows(
        "Groups, worst first",
        [
            of(_STATE),
            of(f"lightkeeper_group_step{{{GROUP}}}"),
            of(f"{front} - lightkeeper_group_step{{{GROUP}}}"),
            of(f"lightkeeper_group_busy_seconds{{{GROUP}}}"),
            of(f"lightkeeper_group_wait_seconds{{{GROUP}}}"),
            of(f"time() - lightkeeper_group_last_heartbeat_timestamp_seconds{{{GROUP}}}"),
        ],
        [
            Column("replica_group", "group", links=group_links(series=False)),
            Column("Value #A", "state", values=GROUP_STATE),
            Column("Value #B", "step"),
            Column("Value #C", "behind", levels={5.0: ORANGE, 50.0: RED}),
            Column("Value #D", "works a step", unit="s", decimals=3),
            Column("Value #E", "waits a step", unit="s", decimals=3),
            Column("Value #F", "heartbeat", unit="s", levels={5.0: ORANGE, 30.0: RED}, decimals=1),
        ],
        sort="state",
        width=24,
        height=9,
        says="Each group now. Click a group for its page, or for the dashboard of its ranks. "
        "A young heartbeat proves nothing: a hung group still sends them.",
    )


def _pace() -> list[Any]:
    commits = f"rate(lightkeeper_group_commits_total{{{GROUP}}}[$__rate_interval])"
    tokens = f"rate(lightkeeper_group_tokens_total{{{GROUP}}}[$__rate_interval])"
    front = f"scalar(max(lightkeeper_group_step{{{MONITOR}}}))"
    return [
        lines(
            "Steps a second, by group",
            Query(_of_worst(commits), _LEGEND),
            unit="suffix: steps/s",
            links=_SERIES,
            says="Committed steps a second. Groups of one quorum go together; a line that parts "
            "from the others is a group that left or heals.",
        ),
        lines(
            "Tokens a second",
            Query(f"sum({tokens})", "job"),
            unit="suffix: tokens/s",
            says="Tokens that the chosen groups train on, together. Fewer at the same number "
            "of steps: groups are missing.",
        ),
        ranking(
            "Steps behind the front",
            Query(
                f"topk($topn, {front} - max by (replica_group) "
                f"(lightkeeper_group_step{{{GROUP}}}) > 0)",
                _LEGEND,
            ),
            unit="suffix: steps",
            base=ORANGE,
            levels={50.0: RED},
            width=8,
            empty="none is behind",
            links=_SERIES,
            says="Groups that are not at the step of the group in front: restarting, healing "
            "or stuck. One that does not catch up is stuck: click it.",
        ),
        ranking(
            "Oldest heartbeats",
            Query(
                "topk($topn, time() - max by (replica_group) "
                f"(lightkeeper_group_last_heartbeat_timestamp_seconds{{{GROUP}}}))",
                _LEGEND,
            ),
            unit="s",
            base=GREEN,
            levels={5.0: ORANGE, 30.0: RED},
            width=8,
            links=_SERIES,
            says="Seconds since the Lighthouse heard of a group. Old: its manager is gone or cut "
            "off. A hung group still beats: a young one here proves nothing.",
        ),
        lines(
            "Groups by health",
            Query(f"sum by (health) (lightkeeper_groups{{{MONITOR}}})", "{{health}}"),
            stacked=True,
            unit="suffix: groups",
            width=8,
            colours=HEALTH,
            says="All groups by the state of their worst rank. Yellow groups wait: look for the "
            "one that is neither yellow nor green.",
        ),
    ]


def _recovery() -> list[Any]:
    failed = f"rate(lightkeeper_group_commit_failures_total{{{GROUP}}}[$__rate_interval])"
    parts = ("load", "apply", "staging", "reconfigure")
    names = ("checkpoint_load", "checkpoint_apply", "checkpoint_staging", "reconfigure")
    last = [
        Query(f"max(lightkeeper_group_last_{name}_seconds{{{GROUP}}})", part)
        for part, name in zip(parts, names, strict=True)
    ]
    return [
        lines(
            "Longest part of a recovery",
            *last,
            unit="s",
            says="Seconds of the slowest group's last recovery, by part. 'load' large: the "
            "network between groups, or a large model; 'reconfigure': building process groups.",
        ),
        lines(
            "Attempts that did not commit",
            Query(_of_worst(failed), _LEGEND),
            unit="suffix: steps/s",
            empty="none",
            links=_SERIES,
            says="Attempts a second that ended without a commit. A single group: it is sick. "
            "All at once: a quorum changed while they stepped.",
        ),
    ]
