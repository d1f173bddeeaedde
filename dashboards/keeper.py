"""Keeper: is the monitor itself well, and does anybody hear what it says?"""

from __future__ import annotations

from typing import Any

from dashboards.colours import BLUE, GREEN, GREY, ORANGE, RED, SELF_HEALTH, UP
from dashboards.frame import Board
from dashboards.grids import heat
from dashboards.panels import Query, lines, states, tile
from dashboards.recurring import tick_lines
from dashboards.selectors import MONITOR, grown

_MODES = (
    f"max by (instance) "
    f"(2 * lightkeeper_paused{{{MONITOR}}} > 0 or lightkeeper_observe_mode{{{MONITOR}}})"
)


def keeper() -> Board:
    """The dashboard."""
    return Board(
        uid="lightkeeper-keeper",
        title="Lightkeeper: keeper",
        about="Is the monitor well: in time, seeing, deciding, remembering, heard? A sick one "
        "doubts itself and evicts nobody.",
        rows=(
            ("Is it there, and does it act?", _there()),
            ("Is it in time?", _in_time()),
            ("Does it see?", _sees()),
            ("Does it remember, and is it heard?", _remembers()),
        ),
    )


def _there() -> list[Any]:
    return [
        tile(
            "Monitors that answer",
            Query(f"sum(up{{{MONITOR}}}) / count(up{{{MONITOR}}})"),
            unit="percentunit",
            decimals=0,
            base=RED,
            levels={1.0: GREEN},
            width=4,
            says="Share of the monitors that Prometheus can scrape. While one is down training "
            "goes on unwatched: start it again, it knows everything from its store.",
        ),
        tile(
            "Runs since",
            Query(f"time() - max(process_start_time_seconds{{{MONITOR}}})"),
            unit="s",
            decimals=0,
            base=GREY,
            width=4,
            says="Seconds since the monitor started. Young again and again: it crashes; its log "
            "or its service manager says why.",
        ),
        tile(
            "Doubts itself",
            Query(f"max(lightkeeper_self_health_scale{{{MONITOR}}})"),
            unit="suffix:x",
            decimals=0,
            levels={1.5: ORANGE, 4.0: RED},
            width=4,
            says="What thresholds are multiplied by because it was late, cut off or starved. "
            "Above 1 nobody is evicted: the bands below say why.",
        ),
        tile(
            "Lighthouse",
            Query(f"min(lightkeeper_lighthouse_up{{{MONITOR}}})"),
            values=UP,
            base=GREY,
            width=4,
            says="Does the Lighthouse answer it? While it is down no quorum forms and nobody is "
            "evicted: start it again.",
        ),
        states(
            "Does it act?",
            Query(_MODES, "{{instance}}"),
            values={
                "0": ("● acts", GREEN),
                "1": ("◐ observes", BLUE),
                "2": ("■ paused", ORANGE),
            },
            width=8,
            height=5,
            says="Over time. A gap: it was down. Paused for long: `lightkeeper resume`. "
            "Observing: start it without --observe when you trust it.",
        ),
        states(
            "Its own health",
            Query(_health(), "{{instance}}"),
            values={str(code): said for code, said in enumerate(SELF_HEALTH.values())},
            width=24,
            height=5,
            says="How far it trusts itself, over time. 'cut off': look at its network. 'late', "
            "'starved': at its CPU. 'cannot write': at its disk. It evicts nobody meanwhile.",
        ),
    ]


def _health() -> str:
    """A number for each monitor: its state's place in `SELF_HEALTH`."""
    each = [
        f'{code} * (lightkeeper_self_health{{{MONITOR}, state="{state}"}} == 1)'
        for code, state in enumerate(SELF_HEALTH)
    ]
    return f"max by (instance) ({' or '.join(each)})"


def _in_time() -> list[Any]:
    bucket = f"lightkeeper_tick_duration_seconds_bucket{{{MONITOR}}}"
    return [
        tick_lines(width=12, height=8),
        heat(
            "How long ticks take",
            Query(f"sum by (le) (increase({bucket}[$__rate_interval]))", "{{le}}"),
            unit="s",
            buckets=True,
            scheme="Blues",
            width=12,
            height=8,
            value="ticks",
            says="Ticks by their seconds. The band has to stay under the monitor's --tick; when "
            "it climbs: fewer ranks a monitor, more CPU, or a longer tick.",
        ),
        lines(
            "CPU",
            Query(
                "sum by (instance) "
                f"(rate(process_cpu_seconds_total{{{MONITOR}}}[$__rate_interval]))",
                "{{instance}}",
            ),
            unit="suffix: cores",
            width=8,
            says="Cores that the monitor uses. Near 1 it cannot keep its pace: it has one "
            "interpreter. Poll through /v1/host, or make ticks longer.",
        ),
        lines(
            "Memory",
            Query(
                f"sum by (instance) (process_resident_memory_bytes{{{MONITOR}}})", "{{instance}}"
            ),
            unit="bytes",
            width=8,
            says="Resident memory of the monitor. It levels off with the number of ranks; one "
            "that climbs for days is a leak: please report it.",
        ),
        lines(
            "Queues",
            Query(f"sum by (queue) (lightkeeper_queue_length{{{MONITOR}}})", "{{queue}}"),
            width=8,
            empty="none",
            says="What waits to be done, by queue. One that grows and does not shrink: what it "
            "waits for (disk, scheduler, receiver of messages) is stuck.",
        ),
    ]


def _sees() -> list[Any]:
    polls = f"lightkeeper_poll_failures_total{{{MONITOR}}}"
    return [
        lines(
            "Polls that failed",
            Query(grown(polls, by="reason"), "{{reason}}"),
            bars=True,
            width=8,
            empty="none failed",
            says="Polls of ranks without a usable answer, by reason. All at once: the network. "
            "A few that stay: those ranks' WorkerServers; see Ranks that answer.",
        ),
        lines(
            "Ranks it cannot reach",
            Query(f'sum(lightkeeper_ranks{{{MONITOR}, health="unreachable"}})', "unreachable"),
            Query(f"sum(lightkeeper_ranks{{{MONITOR}}})", "registered"),
            width=8,
            unit="suffix: ranks",
            colours={"unreachable": "purple", "registered": GREY},
            says="Registered ranks, and those that do not answer. Of a single host: that host. "
            "Of many: the monitor's own network; then it accuses nobody.",
        ),
        lines(
            "Detectors at work",
            Query(f"min by (detector) (lightkeeper_detector_up{{{MONITOR}}})", "{{detector}}"),
            width=8,
            says="1 while a detector works, 0 while it crashes: then its kind of fault is "
            "unknown. The monitor's log has the traceback; please report it.",
        ),
    ]


def _remembers() -> list[Any]:
    wrong = [
        Query(grown(f"lightkeeper_{name}_total{{{MONITOR}}}"), text)
        for name, text in (
            ("store_errors", "store"),
            ("detector_failures", "detectors"),
            ("part_failures", "parts of the loop"),
        )
    ]
    return [
        lines(
            "Failures of its own",
            *wrong,
            bars=True,
            width=6,
            empty="none failed",
            says="Writes that the store did not take, crashes of detectors and of other parts. "
            "Any bar: read the monitor's log; for the store, look at its disk.",
        ),
        lines(
            "Size of the store",
            Query(f"sum by (instance) (lightkeeper_store_bytes{{{MONITOR}}})", "{{instance}}"),
            unit="bytes",
            width=6,
            says="The monitor's database. Grows with incidents and decisions; see that its disk "
            "has room: what cannot be written is not carried out.",
        ),
        lines(
            "Messages to people",
            Query(
                grown(f"lightkeeper_notifications_total{{{MONITOR}}}", by="sink, outcome"),
                "{{sink}} {{outcome}}",
            ),
            bars=True,
            width=6,
            empty="no message",
            says="Sent, failed and dropped messages by sink. Failing: `lightkeeper notify test` "
            "says why.",
        ),
        lines(
            "Pages open in browsers",
            Query(f"sum(lightkeeper_event_streams{{{MONITOR}}})", "live streams"),
            width=6,
            says="Open live streams of the monitor's page; they are bounded, later pages poll "
            "instead. Many for no reason: somebody's script does not hang up.",
        ),
    ]
