"""Fleet: one screen for a wall. Nine panels, three questions, no scrolling at 1920 x 1080."""

from __future__ import annotations

from typing import Any, Final

from lightkeeper.dashboards.drill_downs import incident_table
from lightkeeper.dashboards.panels import (
    Board,
    ColumnStyle,
    Query,
    curves,
    more,
    rank_links,
    rows,
    tile,
)
from lightkeeper.dashboards.selectors import (
    ALONE,
    BLUE,
    GREEN,
    GREY,
    GROUP,
    HEALTH,
    KEEPER,
    KEEPER_STATE,
    MONITOR,
    ORANGE,
    PURPLE,
    RED,
    WITHOUT,
    YELLOW,
    ZERO,
    or_none,
)

_GROUPS: Final = more("Replica groups", "lightkeeper-groups")
_INCIDENTS: Final = more("Incidents", "lightkeeper-incidents")

_GOOD: Final = f"sum(rate(lightkeeper_effective_rank_seconds_total{{{MONITOR}}}[$__rate_interval]))"
_BAD: Final = f"rate(lightkeeper_ineffective_rank_seconds_total{{{MONITOR}}}[$__rate_interval])"
_LOST: Final = f"(sum({_BAD}) or {ZERO})"
_RANKS: Final = f"sum(lightkeeper_ranks{{{MONITOR}}})"
_GOODPUT: Final = f"{_GOOD} / (({_RANKS} > {_GOOD} + {_LOST}) or ({_GOOD} + {_LOST}))"
"""Over all existing ranks: a lost second appears with its cause, up to a minute later."""


def fleet_board() -> Board:
    return Board(
        uid="lightkeeper-fleet",
        title="Lightkeeper: fleet",
        about="Is it training, can I trust the keeper, who is bad now? One screen; each panel "
        "leads on.",
        rows=(
            ("Is it training, and can I trust the keeper?", _training()),
            ("Who is bad now?", _bad()),
            ("Where does the time go?", _time()),
        ),
        height=7,  # three times, plus the row titles: 24 units of 38 pixels, 912
    )


def _training() -> list[Any]:
    pace = f"max(rate(lightkeeper_group_commits_total{{{MONITOR}}}[$__rate_interval]))"
    fresh = 'time() - max(lightkeeper_rank_last_commit_timestamp_seconds{job_id=~"$job"})'
    return [
        tile(
            "Goodput now",
            _GOODPUT,
            unit="percentunit",
            decimals=1,
            base=RED,
            levels={0.8: ORANGE, 0.95: GREEN},
            width=5,
            links=more("Lost seconds by cause", "lightkeeper-incidents"),
            says="Share of the ranks' time that trains. When it is low, 'Where ranks' time goes' "
            "says what takes the rest.",
        ),
        tile(
            "Steps a second",
            pace,
            unit="suffix: steps/s",
            decimals=2,
            base=RED,
            levels={0.000001: GREEN},
            width=5,
            links=_GROUPS,
            says="Committed steps a second of the fastest group; groups of one quorum commit "
            "together. At 0: look at 'Open incidents' below; without one, at the Lighthouse.",
        ),
        tile(
            "Since the last commit",
            fresh,
            unit="s",
            decimals=0,
            levels={30.0: ORANGE, 120.0: RED},
            width=5,
            says="Seconds since any rank committed a step. Grows while the fleet stands still: "
            "see who is bad, in the next row. Needs the ranks scraped.",
        ),
        tile(
            "Held back now",
            f"sum(lightkeeper_holding{{{MONITOR}}}) or {ALONE} - 1",
            levels={1.0: ORANGE},
            values=WITHOUT,
            width=4,
            links=_INCIDENTS,
            says="Firing incidents about which a guard lets nothing be done. It is your turn: "
            "Incidents says which guard holds, the incident's page says why.",
        ),
        tile(
            "The keeper",
            f"max({KEEPER}) or vector(5)",
            values=KEEPER_STATE,
            base=GREY,
            width=5,
            links=more("Keeper", "lightkeeper-keeper"),
            says="Does it act? 'no Lighthouse': it has none, and watches only. 'observes': it only "
            "says whom it would evict. 'paused': somebody pressed the switch; `lightkeeper resume` "
            "ends it. 'doubts itself': Keeper says why. 'Lighthouse away': start it again. 'not "
            "seen': the monitor is down or not scraped; nothing else here is to be believed.",
        ),
    ]


def _bad() -> list[Any]:
    return [
        incident_table(
            "Open incidents",
            f'{MONITOR}, state!="resolved"',
            ColumnStyle("Value", "began", unit="dateTimeFromNow", width=120),
            width=14,
            empty="no open incident",
            says="What is wrong now, newest first. Click the incident: its page tells who did it, "
            "how it is known, and what was done.",
        ),
        rows(
            "Suspects",
            [f"lightkeeper_rank_suspect{{{GROUP}}} == 1"],
            [
                ColumnStyle("replica_group", "group", width=110),
                ColumnStyle("rank", links=rank_links(series=False), width=70),
                ColumnStyle("host"),
                ColumnStyle("kind"),
                ColumnStyle("role"),
            ],
            hidden=("Value",),
            width=10,
            empty="nobody is suspected",
            says="Culprits of open incidents, and candidates where no culprit can be named; "
            "victims are not among them. Click the rank for its page, stacks and flight record, "
            "through the monitor.",
        ),
    ]


def _time() -> list[Any]:
    return [
        curves(
            "Where ranks' time goes",
            Query(_GOOD, "training"),
            Query(or_none(f"sum by (cause) ({_BAD})", "cause"), "{{cause}}"),
            Query(f"clamp_min({_RANKS} - {_GOOD} - {_LOST}, 0)", "cause not known yet"),
            stacked=True,
            width=16,
            coarse="1m",  # seconds whose cause takes a minute to find are counted all at once
            unit="suffix: ranks",
            colours={
                "training": GREEN,
                "starting": BLUE,
                "recovering": YELLOW,
                "unexplained": PURPLE,
                "cause not known yet": GREY,
            },
            says="How many ranks train, and what keeps the others from it; a cause is known within "
            "a minute. A band that stays is worth a repair: open Incidents for that kind.",
        ),
        curves(
            "Ranks by health",
            Query(f"sum by (health) (lightkeeper_ranks{{{MONITOR}}})", "{{health}}"),
            stacked=True,
            unit="suffix: ranks",
            width=8,
            colours=HEALTH,
            links=_GROUPS,
            says="Yellow ranks wait for others. One red rank among yellow ones is the one to look "
            "at. Many unreachable at once: first the network between them and the monitor.",
        ),
    ]
