"""Fleet: one screen for a wall. Twelve panels, three questions, no scrolling at 1920 x 1080."""

from __future__ import annotations

from typing import Any, Final

from lightkeeper.dashboards.drill_downs import incident_table
from lightkeeper.dashboards.panels import (
    Board,
    ColumnStyle,
    Query,
    lines,
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
    grown,
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


def fleet() -> Board:
    return Board(
        uid="lightkeeper-fleet",
        title="Lightkeeper: fleet",
        about="Is it training, who is bad now, what was done, can I trust the keeper? One screen; "
        "each panel leads on.",
        rows=(
            ("Is it training?", _training()),
            ("Who is bad now?", _bad()),
            ("What was done, and can I trust the keeper?", _done()),
        ),
        height=7,  # three times, plus the row titles: 24 units of 38 pixels, 912
    )


def _training() -> list[Any]:
    pace = f"max(rate(lightkeeper_group_commits_total{{{MONITOR}}}[$__rate_interval]))"
    fresh = 'time() - max(lightkeeper_rank_last_commit_timestamp_seconds{job_id=~"$job"})'
    members = f"sum(lightkeeper_quorum_participants{{{MONITOR}}})"
    return [
        tile(
            "Goodput now",
            _GOODPUT,
            unit="percentunit",
            decimals=1,
            base=RED,
            levels={0.8: ORANGE, 0.95: GREEN},
            width=3,
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
            width=3,
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
            width=3,
            says="Seconds since any rank committed a step. Grows while the fleet stands still: "
            "see who is bad, in the next row. Needs the ranks scraped.",
        ),
        tile(
            "Groups in the quorum",
            f"{members} / sum(lightkeeper_groups{{{MONITOR}}}) or {ALONE} - 1",
            unit="percentunit",
            decimals=0,
            base=RED,
            values=WITHOUT,
            levels={0.5: ORANGE, 1.0: GREEN},
            width=3,
            links=_GROUPS,
            says="Share of the known replica groups in the Lighthouse's quorum. Below 100 % "
            "somebody restarts, heals or was evicted: 'Replica groups' names them.",
        ),
        lines(
            "Where ranks' time goes",
            Query(_GOOD, "training"),
            Query(or_none(f"sum by (cause) ({_BAD})", "cause"), "{{cause}}"),
            Query(f"clamp_min({_RANKS} - {_GOOD} - {_LOST}, 0)", "cause not known yet"),
            stacked=True,
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
    ]


def _bad() -> list[Any]:
    busy = "lightkeeper_fleet_busy_seconds"
    slowest = (
        f'max({busy}{{{MONITOR}, stat="max"}} / ignoring (stat) {busy}{{{MONITOR}, stat="median"}})'
    )
    return [
        incident_table(
            "Open incidents",
            f'{MONITOR}, state!="resolved"',
            ColumnStyle("Value", "began", unit="dateTimeFromNow", width=120),
            width=9,
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
            width=6,
            empty="nobody is suspected",
            says="Culprits of open incidents, and candidates where no culprit can be named; "
            "victims are not among them. Click the rank for its page, stacks and flight record, "
            "through the monitor.",
        ),
        tile(
            "Slowest rank",
            slowest,
            unit="suffix:x the median",
            decimals=2,
            levels={1.2: ORANGE, 1.5: RED},
            width=3,
            empty="nobody commits",
            links=more("Stragglers", "lightkeeper-stragglers"),
            says="Own work of the slowest rank in a step, against the median. The whole fleet "
            "runs at its pace; from 1.5 on look at Stragglers for its name.",
        ),
        lines(
            "Ranks by health",
            Query(f"sum by (health) (lightkeeper_ranks{{{MONITOR}}})", "{{health}}"),
            stacked=True,
            unit="suffix: ranks",
            width=6,
            colours=HEALTH,
            links=_GROUPS,
            says="Yellow ranks wait for others. One red rank among yellow ones is the one to look "
            "at. Many unreachable at once: first the network between them and the monitor.",
        ),
    ]


def _done() -> list[Any]:
    evictions = grown(f"lightkeeper_evictions_total{{{MONITOR}}}", by="outcome")
    holds = grown(f"lightkeeper_holds_total{{{MONITOR}}}", by="guard")
    return [
        lines(
            "Evictions and holds",
            Query(or_none(evictions, "outcome", acts=True), "evicted: {{outcome}}"),
            Query(or_none(holds, "guard", acts=True), "held: {{guard}}"),
            bars=True,
            width=16,
            links=_INCIDENTS,
            says="What the keeper did, and what its guards held back. Many evictions: look for one "
            "cause behind them on Incidents, the same host or the same kind.",
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
            width=4,
            links=more("Keeper", "lightkeeper-keeper"),
            says="Does it act? 'no Lighthouse': it has none, and watches only. 'observes': it only "
            "says whom it would evict. 'paused': somebody pressed the switch; `lightkeeper resume` "
            "ends it. 'doubts itself': Keeper says why. 'Lighthouse away': start it again. 'not "
            "seen': the monitor is down or not scraped; nothing else here is to be believed.",
        ),
    ]
