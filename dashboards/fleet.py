"""Fleet: one screen for a wall. Four rows, four questions, nothing to scroll at 1920 x 1080."""

from __future__ import annotations

from typing import Any

from dashboards.colours import GREEN, HEALTH, ORANGE, RED
from dashboards.deeds import TALL, done, trusted
from dashboards.frame import Board
from dashboards.panels import Query, lines, tile
from dashboards.recurring import PACE, SKEW, goodput_tile, lost_lines, more, suspects_table
from dashboards.selectors import MONITOR, ZERO


def fleet() -> Board:
    """The dashboard."""
    return Board(
        uid="lightkeeper-fleet",
        title="Lightkeeper: fleet",
        about="Is the job making progress, who holds it back, what did the keeper do, can I "
        "trust it? One screen; each panel leads on.",
        rows=(
            ("Is the job making progress?", _progress()),
            ("Who holds it back?", _holding_back()),
            ("What did the keeper do?", done()),
            ("Can I trust it?", trusted()),
        ),
    )


def _progress() -> list[Any]:
    fresh = 'time() - max(lightkeeper_rank_last_commit_timestamp_seconds{job_id=~"$job"})'
    return [
        goodput_tile(),
        tile(
            "Steps a second",
            Query(PACE),
            unit="suffix: steps/s",
            decimals=2,
            base=RED,
            levels={0.000001: GREEN},
            height=TALL,
            says="Committed steps a second of the fastest group; groups of one quorum commit "
            "together. At 0: look at 'Open incidents' below; without one, at the Lighthouse.",
        ),
        tile(
            "Since the last commit",
            Query(fresh),
            unit="s",
            decimals=0,
            levels={30.0: ORANGE, 120.0: RED},
            height=TALL,
            says="Seconds since any rank committed a step. Grows while the fleet stands still: "
            "see who holds it back, in the next row. Needs the ranks scraped.",
        ),
        tile(
            "Groups in the quorum",
            Query(
                f"sum(lightkeeper_quorum_participants{{{MONITOR}}}) / "
                f"sum(lightkeeper_groups{{{MONITOR}}})"
            ),
            unit="percentunit",
            decimals=0,
            base=RED,
            levels={0.5: ORANGE, 1.0: GREEN},
            height=TALL,
            links=more("Replica groups", "lightkeeper-groups"),
            says="Share of the known replica groups in the Lighthouse's quorum. Below 100 % "
            "somebody restarts, heals or was evicted: 'Replica groups' names them.",
        ),
        lines(
            "Pace",
            Query(PACE, "steps a second"),
            unit="suffix: steps/s",
            width=5,
            height=TALL,
            colours={"steps a second": GREEN},
            says="Steps a second. A dip is an incident or a change of the quorum: the red and "
            "orange marks say which; hover over one.",
        ),
        lost_lines(width=7, height=TALL),
    ]


def _holding_back() -> list[Any]:
    sick = f'sum(lightkeeper_ranks{{{MONITOR}, health=~"stalled|dead|unreachable"}})'
    return [
        tile(
            "Sick ranks",
            Query(f"{sick} or {ZERO}"),
            levels={1.0: RED},
            height=TALL,
            links=more("Replica groups", "lightkeeper-groups"),
            says="Ranks that are stalled, dead or unreachable. Ranks that wait for others are "
            "not counted: they are victims. Click for their groups.",
        ),
        tile(
            "Slowest rank",
            Query(SKEW),
            unit="suffix:x the median",
            decimals=2,
            levels={1.2: ORANGE, 1.5: RED},
            height=TALL,
            empty="nobody commits",
            links=more("Stragglers", "lightkeeper-stragglers"),
            says="Own work of the slowest rank in a step, against the median. The whole fleet "
            "runs at its pace; from 1.5 on look at Stragglers for its name.",
        ),
        suspects_table(width=9, height=TALL),
        lines(
            "Ranks by health",
            Query(f"sum by (health) (lightkeeper_ranks{{{MONITOR}}})", "{{health}}"),
            stacked=True,
            unit="suffix: ranks",
            width=9,
            height=TALL,
            colours=HEALTH,
            links=more("Replica groups", "lightkeeper-groups"),
            says="Yellow ranks wait for others. One red rank among yellow ones is the one to "
            "look at: it stands in 'Suspects', or in Replica groups.",
        ),
    ]
