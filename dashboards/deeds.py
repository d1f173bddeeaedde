"""The lower half of Fleet: what the keeper did, and whether it is to be trusted."""

from __future__ import annotations

from typing import Any, Final

from grafana_foundation_sdk.builders import timeseries

from dashboards.colours import BLUE, GREEN, GREY, ORANGE, RED, UP
from dashboards.panels import Query, lines, tile
from dashboards.recurring import more, open_incidents, tick_lines
from dashboards.selectors import MONITOR, ZERO, grown

TALL: Final = 5
"""Height of each row's panels: four of them and their titles are 24 units of 38 pixels, 912."""


def done() -> list[Any]:
    """What did the keeper do?"""
    evicted = grown(f"lightkeeper_evictions_total{{{MONITOR}}}", within="$__range")
    return [
        tile(
            "Firing incidents",
            Query(f'sum(lightkeeper_incidents{{{MONITOR}, state=~"firing|evicting"}}) or {ZERO}'),
            levels={1.0: RED},
            height=TALL,
            links=more("Incidents", "lightkeeper-incidents"),
            says="Incidents certain enough to act on and not over. The table beside names them; "
            "click an incident for its story and evidence.",
        ),
        tile(
            "Evictions in this time",
            Query(f"{evicted} or {ZERO}"),
            decimals=0,
            levels={1.0: ORANGE, 5.0: RED},
            height=TALL,
            links=more("Incidents", "lightkeeper-incidents"),
            says="Replica groups that the keeper took out in the shown time. Many: look for one "
            "cause behind them, the same host or the same signature.",
        ),
        tile(
            "Held back now",
            Query(f"sum(lightkeeper_holding{{{MONITOR}}}) or {ZERO}"),
            levels={1.0: ORANGE},
            height=TALL,
            links=more("Incidents", "lightkeeper-incidents"),
            says="Firing incidents about which a guard lets nothing be done. It is your turn: "
            "Incidents says which guard holds, the incident's page says why.",
        ),
        open_incidents(width=8, height=TALL),
        _deeds(),
    ]


def _deeds() -> timeseries.Panel:
    evictions = grown(f"lightkeeper_evictions_total{{{MONITOR}}}", by="outcome")
    holds = grown(f"lightkeeper_holds_total{{{MONITOR}}}", by="guard")
    return lines(
        "Evictions and holds",
        Query(evictions, "evicted: {{outcome}}"),
        Query(holds, "held: {{guard}}"),
        bars=True,
        width=7,
        height=TALL,
        empty="neither evicted nor held",
        says="What the keeper did, and what its guards held back. A guard that holds for long "
        "stands in 'Held back now': then decide yourself.",
    )


def trusted() -> list[Any]:
    """Can I trust it?"""
    modes = {
        "0": ("● acts", GREEN),
        "1": ("◐ observes", BLUE),
        "2": ("■ paused", ORANGE),
        "3": ("✕ not seen", RED),
    }
    paused, observes = (f"lightkeeper_{one}{{{MONITOR}}}" for one in ("paused", "observe_mode"))
    mode = f"max(2 * {paused} > 0 or {observes}) or vector(3)"
    silent = f'sum(lightkeeper_ranks{{{MONITOR}, health="unreachable"}})'
    saved, spent = (
        grown(f"lightkeeper_{what}_rank_seconds_total{{{MONITOR}}}", within="$__range")
        for what in ("saved", "spent")
    )
    keeper = more("Keeper", "lightkeeper-keeper")
    return [
        tile(
            "The keeper",
            Query(mode),
            values=modes,
            base=GREY,
            height=TALL,
            links=keeper,
            says="Does it act? 'observes': it only says whom it would evict. 'paused': somebody "
            "pressed the switch; `lightkeeper resume` lets it act again. 'not seen': it is down or "
            "not scraped; then nothing else here is to be believed.",
        ),
        tile(
            "Doubts itself",
            Query(f"max(lightkeeper_self_health_scale{{{MONITOR}}})"),
            unit="suffix:x",
            decimals=0,
            levels={1.5: ORANGE, 4.0: RED},
            height=TALL,
            links=keeper,
            says="What its thresholds are multiplied by because it was late, cut off or starved; "
            "1 when it is well. Above 1 nobody is evicted: give the monitor CPU and a network.",
        ),
        tile(
            "Lighthouse",
            Query(f"min(lightkeeper_lighthouse_up{{{MONITOR}}})"),
            values=UP,
            base=GREY,
            height=TALL,
            links=more("Keeper", "lightkeeper-keeper"),
            says="Does the Lighthouse answer the monitor? While it is down no quorum forms and "
            "nobody is evicted: start it again.",
        ),
        tile(
            "Ranks that answer",
            Query(f"1 - {silent} / sum(lightkeeper_ranks{{{MONITOR}}})"),
            unit="percentunit",
            decimals=1,
            base=RED,
            levels={0.9: ORANGE, 0.999: GREEN},
            height=TALL,
            links=keeper,
            says="Share of the registered ranks whose WorkerServer answers. Many silent ones at "
            "once: look at the network between them and the monitor first.",
        ),
        tile(
            "Detectors that work",
            Query(f"avg(lightkeeper_detector_up{{{MONITOR}}})"),
            unit="percentunit",
            decimals=0,
            base=RED,
            levels={1.0: GREEN},
            height=TALL,
            links=keeper,
            says="A detector that crashed knows nothing of its kind of fault. Below 100 %: the "
            "monitor's log has the traceback; please report it.",
        ),
        tile(
            "Saved by evictions",
            Query(f"({saved} or {ZERO}) - ({spent} or {ZERO})"),
            unit="s",
            decimals=0,
            base=RED,
            levels={0.0: GREEN},
            height=TALL,
            links=more("Incidents", "lightkeeper-incidents"),
            says="Rank-seconds that evictions saved less what they cost, at least, in the shown "
            "time, by the keeper's own account. Below 0: read `lightkeeper incidents`.",
        ),
        tick_lines(width=6, height=TALL),
    ]
