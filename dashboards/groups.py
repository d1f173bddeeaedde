"""Replica groups: which one is behind, out of the quorum, or healing again and again."""

from __future__ import annotations

from typing import Any, Final

from dashboards.colours import GROUP_STATE, MEMBER, ORANGE, RED
from dashboards.frame import Board, group_links
from dashboards.panels import Column, Query, lines, rows, states
from dashboards.selectors import GROUP, MONITOR, worst

_STATE: Final = f"lightkeeper_group_state{{{GROUP}}}"
_LINKS: Final = group_links(series=True)
_LEGEND: Final = "{{replica_group}}"


def _of_worst(expr: str) -> str:
    """One series for each of the `$topn` groups that were in the worst state."""
    return worst(expr, "instance, replica_group", _STATE)


def groups() -> Board:
    """The dashboard."""
    return Board(
        uid="lightkeeper-groups",
        title="Lightkeeper: replica groups",
        about="Which replica group is out, behind, slow or healing. With many groups the worst "
        "come first: 'Show at most' says how many, 'Group' picks them by name.",
        rows=(
            ("How are they?", _now()),
            ("Do they keep up, and what do recoveries take?", _pace()),
        ),
    )


def _now() -> list[Any]:
    front = f"scalar(max(lightkeeper_group_step{{{MONITOR}}}))"
    return [
        states(
            "State of each group",
            Query(_of_worst(_STATE), _LEGEND),
            values=GROUP_STATE,
            height=11,
            links=_LINKS,
            says="The worst state of a group's ranks over time, worst groups first. One red "
            "group among yellow ones holds the others up: click it.",
        ),
        states(
            "In the quorum",
            Query(_of_worst(f"lightkeeper_group_in_quorum{{{GROUP}}}"), _LEGEND),
            values=MEMBER,
            height=11,
            links=_LINKS,
            says="Membership in the Lighthouse's quorum. A group that is out and stays out "
            "was evicted, quarantined, or does not start: its page says which.",
        ),
        rows(
            "Groups, worst first",
            [
                _of_worst(f"max by (instance, replica_group) ({expr})")
                for expr in (
                    _STATE,
                    f"lightkeeper_group_step{{{GROUP}}}",
                    f"{front} - lightkeeper_group_step{{{GROUP}}}",
                    f"lightkeeper_group_busy_seconds{{{GROUP}}}",
                    f"lightkeeper_group_wait_seconds{{{GROUP}}}",
                    f"time() - lightkeeper_group_last_heartbeat_timestamp_seconds{{{GROUP}}}",
                )
            ],
            [
                Column("replica_group", "group", links=group_links(series=False)),
                Column("Value #A", "state", values=GROUP_STATE),
                Column("Value #B", "step"),
                Column("Value #C", "behind", levels={5.0: ORANGE, 50.0: RED}),
                Column("Value #D", "works a step", unit="s", decimals=3),
                Column("Value #E", "waits a step", unit="s", decimals=3),
                Column(
                    "Value #F", "heartbeat", unit="s", levels={5.0: ORANGE, 30.0: RED}, decimals=1
                ),
            ],
            sort="state",
            width=24,
            height=10,
            says="Each group now. Click a group for its page, or for the dashboard of its ranks. "
            "One that is behind and does not catch up is stuck. An old heartbeat: its manager is "
            "gone or cut off; a young one proves nothing: a hung group still sends them.",
        ),
    ]


def _pace() -> list[Any]:
    commits, failed = (
        f"rate(lightkeeper_group_{name}_total{{{GROUP}}}[$__rate_interval])"
        for name in ("commits", "commit_failures")
    )
    parts = {"load": "checkpoint_load", "apply": "checkpoint_apply",
             "staging": "checkpoint_staging", "reconfigure": "reconfigure"}  # fmt: skip
    return [
        lines(
            "Steps a second, by group",
            Query(_of_worst(commits), _LEGEND),
            unit="suffix: steps/s",
            width=8,
            links=_LINKS,
            says="Committed steps a second. Groups of one quorum go together; a line that parts "
            "from the others is a group that left or heals. All fall: see Stragglers.",
        ),
        lines(
            "Attempts that did not commit",
            Query(_of_worst(failed), _LEGEND),
            unit="suffix: steps/s",
            width=8,
            empty="none",
            links=_LINKS,
            says="Attempts a second that ended without a commit. A single group: it is sick. "
            "All at once: a quorum changed while they stepped.",
        ),
        lines(
            "Longest part of a recovery",
            *[
                Query(f"max(lightkeeper_group_last_{name}_seconds{{{GROUP}}})", part)
                for part, name in parts.items()
            ],
            unit="s",
            width=8,
            says="Seconds of the slowest group's last recovery, by part. 'load' large: the "
            "network between groups, or a large model; 'reconfigure': building process groups.",
        ),
    ]
