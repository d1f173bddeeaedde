"""Keeper: is the monitor itself well, and does anybody hear what it says?"""

from __future__ import annotations

from typing import Any

from dashboards.colours import GREEN, KEEPER_STATE, ORANGE, SELF_HEALTH
from dashboards.frame import Board
from dashboards.panels import Query, lines, states
from dashboards.selectors import KEEPER, MONITOR, grown


def keeper() -> Board:
    """The dashboard."""
    return Board(
        uid="lightkeeper-keeper",
        title="Lightkeeper: keeper",
        about="Is the monitor well: in time, seeing, deciding, remembering, heard? A sick one "
        "doubts itself and evicts nobody.",
        rows=(
            ("Does it act, and is it well?", _acts()),
            ("Does it see and decide in time, and is it heard?", _works()),
        ),
    )


def _acts() -> list[Any]:
    health = " or ".join(
        f'{code} * (lightkeeper_self_health{{{MONITOR}, state="{state}"}} == 1)'
        for code, state in enumerate(SELF_HEALTH)
    )
    return [
        states(
            "Does it act?",
            Query(f"max by (instance) ({KEEPER})", "{{instance}}"),
            values=KEEPER_STATE,
            height=6,
            says="Each monitor over time. A gap: it was down, and training unwatched. Paused for "
            "long: `lightkeeper resume`. Observing: start it without --observe when you trust it. "
            "No Lighthouse: no quorum forms and nobody is evicted until you start it again.",
        ),
        states(
            "Its own health",
            Query(f"max by (instance) ({health})", "{{instance}}"),
            values={str(code): said for code, said in enumerate(SELF_HEALTH.values())},
            height=6,
            says="How far it trusts itself, over time. 'cut off': look at its network. 'late', "
            "'starved': at its CPU. 'cannot write': at its disk. It evicts nobody meanwhile.",
        ),
    ]


def _works() -> list[Any]:
    tick = f"lightkeeper_tick_duration_seconds_bucket{{{MONITOR}}}"
    slow = f"histogram_quantile(0.95, sum by (le) (rate({tick}[$__rate_interval])))"
    polls, store, detectors, parts, messages = (
        grown(f"lightkeeper_{name}_total{{{MONITOR}}}", by=by)
        for name, by in (
            ("poll_failures", "reason"),
            ("store_errors", ""),
            ("detector_failures", "detector"),
            ("part_failures", "part"),
            ("notifications", "sink, outcome"),
        )
    )
    return [
        lines(
            "Ticks of the monitor",
            Query(slow, "95 % take"),
            Query(f"max(lightkeeper_tick_lateness_seconds{{{MONITOR}}})", "begin late by"),
            unit="s",
            colours={"95 % take": GREEN, "begin late by": ORANGE},
            says="How long a tick takes and how late it begins. A late monitor doubts itself and "
            "evicts nobody: give it CPU, poll through /v1/host, or take a longer --tick.",
        ),
        lines(
            "Queues",
            Query(f"sum by (queue) (lightkeeper_queue_length{{{MONITOR}}})", "{{queue}}"),
            empty="none",
            says="What waits to be done, by queue. One that grows and does not shrink: what it "
            "waits for (disk, scheduler, receiver of messages) is stuck.",
        ),
        lines(
            "Polls that failed",
            Query(polls, "{{reason}}"),
            bars=True,
            width=8,
            empty="none failed",
            says="Polls of ranks without a usable answer, by reason. All at once: the network. "
            "A few that stay: those ranks' WorkerServers; see 'Ranks by health' on Fleet.",
        ),
        lines(
            "Failures of its own",
            Query(store, "store"),
            Query(detectors, "detector {{detector}}"),
            Query(parts, "part {{part}}"),
            bars=True,
            width=8,
            empty="none failed",
            says="Writes that the store did not take, crashes of detectors (their kind of fault is "
            "unknown meanwhile) and of other parts. Any bar: read the monitor's log and report the "
            "traceback; for the store, look at its disk.",
        ),
        lines(
            "Messages to people",
            Query(messages, "{{sink}} {{outcome}}"),
            bars=True,
            width=8,
            empty="no message",
            says="Sent, failed and dropped messages by sink. Failing: `lightkeeper notify test` "
            "says why.",
        ),
    ]
