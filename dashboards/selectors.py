"""Which series a panel shows (PromQL of Prometheus 2.42), and how each state looks.

One job is shown, and all its monitors say the same of it: one acts, another may stand by. So
panels take the `max` over monitors, never a sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PLACE: Final = 'cluster="$cluster", namespace="$namespace"'
"""Both are empty where Prometheus adds no such labels."""
MONITOR_URL: Final = "http://127.0.0.1:8470"
"""A monitor on this machine; `export --monitor-url` puts yours into the alerts."""
RUNBOOKS: Final = "${monitor_url}/runbooks"
"""The monitor's own page of them."""
NO_DATA: Final = "no data"
"""Shown by an empty panel that should never be empty."""
_MONITOR: Final = f'{PLACE}, instance=~"$instance"'
OF_MONITOR: Final = f"{{{_MONITOR}}}"
OF_JOB: Final = f'{PLACE}, job_id="$job"'


def mon(name: str, *more: str) -> str:
    """A metric that a monitor exports; `$instance` holds the monitors of `$job`."""
    return f"lightkeeper_{name}{{{', '.join((_MONITOR, *more))}}}"


def grp(name: str) -> str:
    """One that it exports for each group or rank."""
    return mon(name, 'replica_group=~"$group"')


def own(name: str, *more: str) -> str:
    """One that a rank exports itself; the monitor's list of targets adds the run."""
    chosen = (OF_JOB, 'run=~"$run"', 'replica_group=~"$group"', 'rank=~"$rank"', *more)
    return f"lightkeeper_rank_{name}{{{', '.join(chosen)}}}"


# -- what happened, and what is not known ---------------------------------------------------------

ZERO: Final = f"0 * max({mon('self_health_scale')})"
"""No event so far, while a monitor is there to see one: `vector(0)` would stay a green 0 after the
monitor died.
"""
UNSEEN: Final = f"absent({mon('self_health_scale')})"
NOT_SEEN: Final = "monitor not seen"
_ACTS: Final = mon("lighthouse_up")
ALONE: Final = f"({ZERO} unless on () {_ACTS})"
"""0 where no monitor has a Lighthouse: there is no quorum, and nobody is evicted."""
NO_LIGHTHOUSE: Final = "no Lighthouse"
"""What panels say of that, neither a number nor a colour that alarms."""


def called(expr: str, label: str, text: str) -> str:
    """`expr` with a label that says `text`."""
    return f'label_replace({expr}, "{label}", "{text}", "", "")'


def or_none(expr: str, label: str, *, acts: bool = False) -> str:
    """`expr`, or if it is empty a zero labelled `none`: nothing has happened.

    Without a monitor to see anything there is no zero, see `ZERO`. `acts`: it is about evictions,
    so without a Lighthouse there is a -1 that says that.
    """
    zero = called(ZERO, label, "none")
    if acts:
        alone = called(f"{ALONE} - 1", label, NO_LIGHTHOUSE)
        zero = f"({alone} or ({zero} and on () {_ACTS}))"
    return f"({expr}) or ({zero} unless on () ({expr}))"


def grown(counter: str, by: str) -> str:
    """By how much counters grew in the shown time, including those that appeared within it.

    A counter with labels appears at its first event, with 1: `increase` alone never sees that
    event, which for evictions is most of them. A counter is new if it had no sample in the five
    minutes before the time: after a missed scrape its whole total must not count again.
    """
    before = f"last_over_time({counter}[5m] offset $__range)"
    total = f"(increase({counter}[$__range]) and {before}) or ({counter} unless {before})"
    return f"sum by ({by}) ({total})"


def events(counter: str, by: str) -> str:
    """How many there were since the point before: whole numbers, each event in one bar.

    A counter that fell was reset, and one that was not there is new: all of it is since then.
    """
    before = f"last_over_time({counter}[5m] offset $__interval)"
    return f"sum by ({by}) (({counter} - {before}) >= 0 or {counter})"


def age_of(timestamp: str) -> str:
    """How old it was at the last scrape: `time()` would add the time since."""
    return f"(timestamp({timestamp}) - {timestamp})"


# -- the job's goodput and its keeper -------------------------------------------------------------


def goodput(window: str, of: str = OF_MONITOR) -> str:
    """For each monitor the share of its ranks' watched time that trained; `of`: its selector."""
    good, bad = (
        f"sum by (cluster, namespace, instance) "
        f"(rate(lightkeeper_{kind}_rank_seconds_total{of}[{window}]))"
        for kind in ("effective", "ineffective")
    )
    return f"{good} / ({good} + ({bad} or 0 * {good}))"


def keeper_state(of: str = OF_MONITOR) -> str:
    """For each monitor what keeps it from acting, as numbers of `KEEPER_STATE`.

    One without a Lighthouse has neither `lighthouse_up` nor `observe_mode` nor `paused`.
    """
    chain = (
        f"6 * (lightkeeper_lighthouse_up{of} == bool 0) > 0",
        f"5 * lightkeeper_paused{of} > 0",
        f"4 * (lightkeeper_self_health_scale{of} > bool 1) > 0",
        f"3 * lightkeeper_observe_mode{of} > 0",
        f"2 * lightkeeper_lighthouse_up{of}",
        f"1 + 0 * lightkeeper_self_health_scale{of}",
    )
    return f"({' or '.join(chain)}) * lightkeeper_monitor_active{of}"


# -- a few of many --------------------------------------------------------------------------------


def worst_first(expr: str, on: str, most: str, scale: str = "1") -> str:
    """`expr` of the `$topn` of which `most` is the largest, the largest first.

    `most` is one number for the whole range (`@ end()`): a bare `topk` chooses again at each step
    and draws every series that was ever chosen. Prometheus sorts a range's series by their labels,
    so they get one that counts down, of four digits: 9999 less `scale` times the number.
    """
    most = f"max by ({on}) ({most})"
    order = f"9999 - clamp_max(round({scale} * {most}), 8999)"
    return (
        f"max by ({on}) ({expr}) * on ({on}) group_left (_order) "
        f'(count_values by ({on}) ("_order", {order}) and on ({on}) topk($topn, {most}))'
    )


_INFO: Final = own("info", 'host=~"$host"')


def on_host(expr: str) -> str:
    """`expr` for ranks on the chosen hosts; it must keep the labels of a rank's own metrics."""
    return f"({expr}) and on (replica_group, rank) {_INFO}"


def chosen_ranks(expr: str = _INFO, keep: str = "") -> str:
    """One series for each chosen rank, at most `$topn` ranks, including those that are gone; first
    those that the monitor found the sickest, and those alone where no rank is scraped.

    It joins all successive processes of a rank: each has its own port, and thus other labels.
    `keep`: labels to keep as well.
    """
    by = "replica_group, rank"
    unwell = f"max by ({by}) (max_over_time({grp('rank_state')}[$__range] @ end()))"
    some = f"max by ({by}) (max_over_time({_INFO}[$__range] @ end()))"
    worst = f"{unwell} and {some} or 0 * {some} or ({unwell} unless on () {some})"
    return f"max by ({by}{keep and ', '}{keep}) ({expr}) and on ({by}) topk($topn, {worst})"


# -- One colour and one sign for each state, the same as on the monitor's page --------------------
# The signs differ in shape, for readers who cannot distinguish the colours.

GREY: Final = "#808590"
"""Neither good nor bad, in either theme; all others are Grafana's own names."""

Values = Mapping[str, tuple[str, str]]
"""What a value stands for: text and colour."""

HEALTH: Final[Values] = {
    "healthy": ("●", "green"), "finished": ("✓", GREY), "starting": ("○", "blue"),
    "waiting": ("◐", "dark-yellow"), "late": ("◔", "light-orange"), "slow": ("◆", "dark-orange"),
    "ended": ("■", "light-purple"), "traced": ("◉", "dark-purple"), "evicting": ("▼", "orange"),
    "unreachable": ("◇", "purple"), "corrupt": ("✖", "semi-dark-red"), "stalled": ("▲", "red"),
    "dead": ("✕", "dark-red"),
}  # fmt: skip
"""Sign and colour, in the order of `lightkeeper_group_state`: 0 healthy ... 12 dead."""
GROUP_STATE: Final[Values] = {
    str(code): (f"{sign} {state}", colour)
    for code, (state, (sign, colour)) in enumerate(HEALTH.items())
}
JOB_STATE: Final[Values] = {
    "0": ("● training", "green"), "1": ("✓ finished", GREY), "2": ("○ watching", "blue"),
    "3": ("○ waiting for ranks", GREY), "4": ("○ starting", "blue"), "5": ("◐ pausing", "blue"),
    "6": ("■ interrupted", GREY), "7": ("◆ training, but", "dark-yellow"),
    "8": ("◔ late", "orange"), "9": ("✕ ended", "dark-red"), "10": ("▲ stalling", "red"),
    "11": ("▲ not training", "red"),
    "12": (f"✕ {NOT_SEEN}", GREY),
}  # fmt: skip
"""Of `lightkeeper_job_state`, in the words of the page's headline."""
SELF_HEALTH: Final[Values] = {
    "well": ("● well", "green"), "recovering": ("◐ recovering", "yellow"),
    "starved": ("○ starved", "orange"), "late": ("▷ late", "orange"),
    "clock_jumped": ("◇ clock jumped", "orange"), "cannot_write": ("■ cannot write", "red"),
    "cut_off": ("✕ cut off", "dark-red"),
}  # fmt: skip
"""The monitor's own health, by label of `lightkeeper_self_health`; worst last."""
KEEPER_STATE: Final[Values] = {
    "0": ("○ stands by", GREY), "1": (f"○ {NO_LIGHTHOUSE}", GREY), "2": ("● acts", "green"),
    "3": ("◐ observes", "blue"), "4": ("◇ doubts itself", "orange"), "5": ("■ paused", "orange"),
    "6": ("▲ Lighthouse away", "red"), "7": ("✕ not seen", "red"),
}  # fmt: skip
PROCESS: Final[Values] = {
    "0": ("✕ ended", "dark-red"), "1": ("● lives", "green"),
    "2": ("◆ waits for a device", "orange"), "3": ("◉ held by a tracer", "purple"),
    "4": ("■ stopped by a signal", "red"),
}  # fmt: skip
"""Of `lightkeeper_rank_process_state`."""
MEMBER: Final[Values] = {
    "-1": (f"○ {NO_LIGHTHOUSE}", GREY), "0": ("✕ out", "red"), "1": ("● in", "green"),
}  # fmt: skip
SEVERITY: Final[Values] = {
    "critical": ("critical", "red"), "warning": ("warning", "orange"), "info": ("info", "blue"),
}  # fmt: skip
INCIDENT: Final[Values] = {
    "firing": ("▲ firing", "red"), "evicting": ("▼ evicting", "orange"),
    "pending": ("○ pending", GREY), "resolved": ("✓ resolved", "green"),
    NOT_SEEN: (f"✕ {NOT_SEEN}", "red"),
}  # fmt: skip
EVICTION: Final[Values] = {
    "watch_only": ("○ nothing: it watches only", GREY),
    "already_gone": ("○ nothing: it left by itself", GREY),
    "decided": ("decided", "blue"), "preparing": ("preparing", "blue"),
    "asking": ("under way", "blue"), "interrupted": ("interrupted", "orange"),
    "confirmed": ("● evicted", "green"),
    "failed": ("✕ failed", "red"), "abandoned": ("no longer needed", GREY),
}  # fmt: skip
"""Of an incident's label `did`; others are guards that hold."""
OUTCOME: Final[Values] = {
    "gone": ("● evicted", "green"), "left": ("◐ out of the quorum only", "orange"),
    "failed": ("✕ failed", "red"), NO_LIGHTHOUSE: (f"○ {NO_LIGHTHOUSE}", GREY),
}  # fmt: skip
CAUSES: Final[Mapping[str, str]] = {
    "training": "green", "starting": "blue", "recovering": "yellow", "checkpoint": "light-blue",
    "evaluation": "dark-blue", "compile": "super-light-blue", "failed_commit": "light-yellow",
    "unexplained": "purple", "cause not known yet": GREY, "dead": "dark-red", "not_entered": "red",
    "mismatch": "semi-dark-red", "deadlock": "light-red", "state_corrupt": "super-light-red",
    "straggler": "dark-orange", "replica_lag": "semi-dark-orange", "progress_lost": "orange",
    "absent": "light-orange", "by_hand": "super-light-orange", "lighthouse_away": "dark-purple",
    "quorum_lost": "semi-dark-purple", "unseen": "light-purple",
}  # fmt: skip
"""What ranks' time goes to; reds and oranges are faults."""
PHASES: Final[Mapping[str, str]] = {
    "communication": "yellow", "forward": "green", "backward": "blue", "data": "light-blue",
    "optimizer": "purple", "init": "dark-blue", "other": GREY,
}  # fmt: skip
