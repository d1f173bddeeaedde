"""Is it moving?"""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard

from dashboards.panels import BLUE, GREEN, GREY, ORANGE, RED, Query, lines, tile
from dashboards.selectors import MONITOR, RANK

_HEALTH_COLOURS = {
    "healthy": GREEN,
    "waiting": BLUE,
    "starting": GREY,
    "stalled": ORANGE,
    "unreachable": "purple",
    "dead": RED,
}


def add(board: dashboard.Dashboard) -> dashboard.Dashboard:
    """The row of tiles, and what they did over time."""
    commits = f"max(rate(lightkeeper_group_commits_total{{{MONITOR}}}[$__rate_interval]))"
    last = 'lightkeeper_rank_last_commit_timestamp_seconds{job_id=~"$job_id"}'
    bad = f'lightkeeper_ranks{{{MONITOR}, health=~"stalled|dead|unreachable"}}'
    evictions = f"sum(increase(lightkeeper_evictions_total{{{MONITOR}}}[$__range]))"
    tokens = f"lightkeeper_rank_tokens_total{{{RANK}}}"
    up = {"0": ("down", RED), "1": ("up", GREEN)}
    return (
        board.with_row(dashboard.Row("Is it moving?"))
        .with_panel(
            tile(
                "Since the last commit",
                Query(f"time() - max({last})"),
                unit="s",
                decimals=0,
                levels={10.0: ORANGE, 60.0: RED},
                says="Seconds since any rank committed a step. Grows while the fleet stands "
                "still: look at the groups that are not in the quorum, and at open incidents.",
            )
        )
        .with_panel(
            tile(
                "Steps a second",
                Query(commits),
                base=RED,
                levels={0.000001: GREEN},
                says="Committed steps a second of the fastest group. Groups of one quorum commit "
                "together, so this is the job's pace.",
            )
        )
        .with_panel(
            tile(
                "Step",
                Query(f"max(lightkeeper_group_step{{{MONITOR}}})"),
                base=GREY,
                says="The step of the group in front.",
            )
        )
        .with_panel(
            tile(
                "Groups in the quorum",
                Query(f"avg(lightkeeper_group_in_quorum{{{MONITOR}}})"),
                unit="percentunit",
                decimals=0,
                base=RED,
                levels={0.5: ORANGE, 1.0: GREEN},
                says="Share of the known replica groups that are members of the Lighthouse's "
                "quorum. Below 100 % somebody restarts, heals, or was evicted.",
            )
        )
        .with_panel(
            tile(
                "Sick ranks",
                Query(f"sum({bad}) or vector(0)"),
                levels={1.0: RED},
                says="Ranks that are stalled, dead or unreachable. Ranks that wait for others "
                "are not counted: they are victims.",
            )
        )
        .with_panel(
            tile(
                "Firing incidents",
                Query(f'sum(lightkeeper_incidents{{{MONITOR}, state="firing"}}) or vector(0)'),
                levels={1.0: RED},
                says="Incidents that are certain enough to act on. Open the monitor's page for "
                "culprit, reason and evidence.",
            )
        )
        .with_panel(
            tile(
                "Evictions in this range",
                Query(f"{evictions} or vector(0)"),
                decimals=0,
                levels={1.0: ORANGE, 5.0: RED},
                says="Replica groups that the keeper took out in the shown time range.",
            )
        )
        .with_panel(
            tile(
                "Lighthouse",
                Query(f"min(lightkeeper_lighthouse_up{{{MONITOR}}})"),
                values=up,
                base=GREY,
                says="Does the Lighthouse answer the monitor? While it is down no quorum forms "
                "and nothing is evicted.",
            )
        )
        .with_panel(
            lines(
                "Pace of the job",
                Query(commits, "steps a second"),
                says="Steps a second. A dip is an incident or a quorum change: compare with the "
                "annotations.",
            )
        )
        .with_panel(
            lines(
                "Ranks by health",
                Query(f"sum by (health) (lightkeeper_ranks{{{MONITOR}}})", "{{health}}"),
                stacked=True,
                colours=_HEALTH_COLOURS,
                says="Blue ranks wait for others. One orange rank among blue ones is the one "
                "to look at.",
            )
        )
        .with_panel(
            lines(
                "Loss",
                Query(f"max(lightkeeper_rank_loss{{{RANK}}})", "largest"),
                Query(f"quantile(0.5, lightkeeper_rank_loss{{{RANK}}})", "median"),
                Query(f"min(lightkeeper_rank_loss{{{RANK}}})", "smallest"),
                says="Loss over the ranks. One rank far from the rest reads bad data or computes "
                "wrongly; a gap is a loss that is not finite.",
            )
        )
        .with_panel(
            lines(
                "Tokens a second",
                Query(f"sum(rate({tokens}[$__rate_interval]))", "job"),
                says="Tokens of committed steps a second, over all ranks.",
            )
        )
    )
