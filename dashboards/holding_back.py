"""Who holds it back?"""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard

from dashboards.panels import GREEN, ORANGE, RED, Query, lines, ranking, states, suspects
from dashboards.selectors import BUSY, GROUP, MONITOR, RANK


def add(board: dashboard.Dashboard) -> dashboard.Dashboard:
    """Slow ranks, absent groups, and where the time goes."""
    phases = f"lightkeeper_rank_phase_seconds_total{{{RANK}}}"
    front = f"scalar(max(lightkeeper_group_step{{{MONITOR}}}))"
    rank_url = '${monitor_url}/v1/ranks/${__data.fields["rank"]}'
    return (
        board.with_row(dashboard.Row("Who holds it back?"))
        .with_panel(
            lines(
                "Own work in a step",
                Query(f"max({BUSY})", "slowest rank"),
                Query(f"quantile(0.5, {BUSY})", "median"),
                Query(f"min({BUSY})", "fastest rank"),
                unit="s",
                colours={"slowest rank": RED, "median": GREEN},
                says="Seconds of a step in which a rank works and does not wait for others. The "
                "fleet runs at the pace of the slowest; the median is what it could be.",
            )
        )
        .with_panel(
            suspects(
                "Slowest ranks",
                Query(f"topk(10, {BUSY} / scalar(quantile(0.5, {BUSY})))"),
                unit="short",
                links={
                    "State": f"{rank_url}/state",
                    "Stacks": f"{rank_url}/stacks",
                    "Flight record": f"{rank_url}/flight_recorder",
                },
                says="Own work of a rank against the median of all. Click a rank for its state, "
                "stacks and flight record, through the monitor.",
            )
        )
        .with_panel(
            lines(
                "Where the time goes",
                Query(f"sum by (phase) (rate({phases}[$__rate_interval]))", "{{phase}}"),
                stacked=True,
                says="Ranks in each phase, on average. 'communication' is waiting for others; "
                "when it grows, somebody else's phase grew first.",
            )
        )
        .with_panel(
            ranking(
                "Steps behind the front",
                Query(
                    f"topk(10, {front} - lightkeeper_group_step{{{GROUP}}} > 0)",
                    "{{replica_group}}",
                ),
                unit="short",
                base=ORANGE,
                levels={10.0: RED},
                says="Groups that are not at the step of the group in front: restarting, "
                "healing, or stuck.",
            )
        )
        .with_panel(
            states(
                "In the quorum",
                Query(f"lightkeeper_group_in_quorum{{{GROUP}}}", "{{replica_group}}"),
                values={"0": ("out", RED), "1": ("in", GREEN)},
                says="Membership of each selected group in the Lighthouse's quorum. Select "
                "groups above when there are many.",
            )
        )
        .with_panel(
            ranking(
                "Oldest heartbeats",
                Query(
                    "topk(10, time() - "
                    f"lightkeeper_group_last_heartbeat_timestamp_seconds{{{GROUP}}})",
                    "{{replica_group}}",
                ),
                unit="s",
                base=GREEN,
                levels={5.0: ORANGE, 30.0: RED},
                says="Seconds since the Lighthouse heard of a group. A hung group still sends "
                "heartbeats: a young one here proves nothing.",
            )
        )
    )
