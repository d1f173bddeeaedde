"""Which series a panel shows (PromQL of Prometheus 2.42), and how each state looks.

One job is shown, and all its monitors say the same of it: one acts, another may stand by. So
panels take the `max` over monitors, never a sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PLACE: Final = 'cluster="$cluster", namespace="$namespace"'
"""Both are empty where Prometheus adds no such labels."""
MONITOR: Final = f'{PLACE}, instance=~"$instance"'
"""For metrics that a monitor exports; `$instance` holds the monitors of `$job`."""
MONITOR_URL: Final = "http://127.0.0.1:8470"
"""A monitor on this machine; `export --monitor-url` puts yours into the alerts."""
RUNBOOKS: Final = "${monitor_url}/runbooks"
"""The monitor's own page of them."""
NO_DATA: Final = "no data"
"""Shown by an empty panel that should never be empty."""
GROUP: Final = MONITOR + ', replica_group=~"$group"'
"""For those it exports for each group or rank."""
RANK: Final = (
    f'{PLACE}, job_id="$job", run=~"$run", replica_group=~"$group", rank=~"$rank"'
)
"""For metrics that a rank exports itself; the monitor's list of targets adds the run."""
_RANKS_INFO: Final = f'lightkeeper_rank_info{{{RANK}, host=~"$host"}}'

# -- what happened, and what is not known ---------------------------------------------------------

ZERO: Final = f"0 * max(lightkeeper_self_health_scale{{{MONITOR}}})"
"""No event so far, while a monitor is there to see one: `vector(0)` would stay a green 0 after the
monitor died.
"""
NOT_SEEN: Final = "monitor not seen"
ALONE: Final = f"({ZERO} unless on () lightkeeper_lighthouse_up{{{MONITOR}}})"
"""0 where no monitor has a Lighthouse: there is no quorum, and nobody is evicted."""
NO_LIGHTHOUSE: Final = "no Lighthouse"
"""What panels say of that, neither a number nor a colour that alarms."""


def called(expr: str, label: str, text: str) -> str:
    """`expr` with a label that says `text`."""
    return f'label_replace({expr}, "{label}", "{text}", "", "")'


def or_unseen(expr: str, label: str) -> str:
    """`expr`, a time in milliseconds; without a monitor one row that says so: nobody looks."""
    now = f"absent(lightkeeper_self_health_scale{{{MONITOR}}}) * time() * 1000"
    return f"{expr} or {called(now, label, NOT_SEEN)}"


def or_none(expr: str, label: str, *, acts: bool = False) -> str:
    """`expr`, or if it is empty a zero labelled `none`: nothing has happened.

    Without a monitor to see anything there is no zero, see `ZERO`. `acts`: it is about evictions,
    so without a Lighthouse there is a -1 that says that.
    """
    zero = called(ZERO, label, "none")
    if acts:
        alone = called(f"{ALONE} - 1", label, NO_LIGHTHOUSE)
        zero = f"({alone} or ({zero} and on () lightkeeper_lighthouse_up{{{MONITOR}}}))"
    return f"({expr}) or ({zero} unless on () ({expr}))"


def grown(counter: str, by: str, within: str = "$__range") -> str:
    """By how much counters grew, including those that appeared within the time.

    A counter with labels appears at its first event, with 1: `increase` alone never sees that
    event, which for evictions is most of them. A counter is new if it had no sample in the five
    minutes before the time: after a missed scrape its whole total must not count again.
    """
    before = f"last_over_time({counter}[5m] offset {within})"
    total = f"(increase({counter}[{within}]) and {before}) or ({counter} unless {before})"
    return f"sum by ({by}) ({total})"


def events(counter: str, by: str) -> str:
    """How many there were since the point before: whole numbers, each event in one bar.

    A counter that fell was reset, and one that was not there is new: all of it is since then.
    """
    before = f"last_over_time({counter}[5m] offset $__interval)"
    return f"sum by ({by}) (({counter} - {before}) >= 0 or {counter})"


def age(timestamp: str) -> str:
    """How old it was at the last scrape: `time()` would add the time since."""
    return f"(timestamp({timestamp}) - {timestamp})"


# -- the job, its goodput and its keeper ----------------------------------------------------------


def goodput(of: str, window: str) -> str:
    """For each monitor the share of its ranks' watched time that trained; `of`: its selector."""
    good, bad = (
        f"sum by (cluster, namespace, instance) "
        f"(rate(lightkeeper_{kind}_rank_seconds_total{{{of}}}[{window}]))"
        for kind in ("effective", "ineffective")
    )
    return f"{good} / ({good} + ({bad} or 0 * {good}))"


def keeper(of: str) -> str:
    """For each monitor what keeps it from acting, as numbers of `KEEPER_STATE`.

    One without a Lighthouse has neither `lighthouse_up` nor `observe_mode` nor `paused`.
    """
    chain = " or ".join(
        (
            f"6 * (lightkeeper_lighthouse_up{{{of}}} == bool 0) > 0",
            f"5 * lightkeeper_paused{{{of}}} > 0",
            f"4 * (lightkeeper_self_health_scale{{{of}}} > bool 1) > 0",
            f"3 * lightkeeper_observe_mode{{{of}}} > 0",
            f"2 * lightkeeper_lighthouse_up{{{of}}}",
            f"1 + 0 * lightkeeper_self_health_scale{{{of}}}",
        )
    )
    return f"({chain}) * lightkeeper_monitor_active{{{of}}}"


# -- a few of many --------------------------------------------------------------------------------


def worst_first(expr: str, on: str, by: str, scale: int = 1) -> str:
    """`expr` of the `$topn` for which `by` was largest within the shown time, the largest first.

    Chosen once for the whole range (`@ end()`): a bare `topk` chooses again at each step and draws
    every series that was ever chosen. Prometheus sorts a range's series by their labels, so they
    get one that counts down, of four digits: from 9999 in units of 1/`scale`.
    """
    most = f"max by ({on}) (max_over_time({by}[$__range] @ end()))"
    order = f"9999 - clamp_max(round({scale} * {most}), 8999)"
    return (
        f"max by ({on}) ({expr}) * on ({on}) group_left (_order) "
        f'(count_values by ({on}) ("_order", {order}) and on ({on}) topk($topn, {most}))'
    )


def on_host(expr: str) -> str:
    """`expr` for ranks on the chosen hosts; it must keep the labels of a rank's own metrics."""
    return f"({expr}) and on (replica_group, rank) {_RANKS_INFO}"


def chosen_ranks(expr: str, keep: str = "") -> str:
    """One series for each chosen rank, at most `$topn` ranks, including those that are gone; the
    worst first, by what the monitor says of them.

    It joins all successive processes of a rank: each has its own port, and thus other labels.
    `keep`: labels to keep as well.
    """
    by = "replica_group, rank"
    unwell = f"max by ({by}) (max_over_time(lightkeeper_rank_state{{{GROUP}}}[$__range] @ end()))"
    some = f"max by ({by}) (max_over_time({_RANKS_INFO}[$__range] @ end()))"
    kept = f"{by}, {keep}" if keep else by
    return f"max by ({kept}) ({expr}) and on ({by}) topk($topn, {unwell} and {some} or 0 * {some})"


# -- One colour and one sign for each state, the same as on the monitor's page --------------------
# The signs differ in shape, for readers who cannot distinguish the colours.

GREEN, YELLOW, ORANGE, RED = "green", "yellow", "orange", "red"
DARK_RED, BLUE, PURPLE, GREY = "dark-red", "blue", "purple", "text"

Values = Mapping[str, tuple[str, str]]
"""What a value stands for: text and colour."""

HEALTH: Final[Values] = {
    "healthy": ("●", GREEN),
    "finished": ("✓", GREY),
    "starting": ("○", BLUE),
    "waiting": ("◐", YELLOW),
    "late": ("◔", "light-yellow"),
    "slow": ("◆", "dark-orange"),
    "ended": ("■", "light-purple"),
    "traced": ("◉", "dark-purple"),
    "evicting": ("▼", ORANGE),
    "unreachable": ("◇", PURPLE),
    "corrupt": ("✖", "semi-dark-red"),
    "stalled": ("▲", RED),
    "dead": ("✕", DARK_RED),
}
"""Sign and colour, in the order of `lightkeeper_group_state`: 0 healthy ... 12 dead."""
GROUP_STATE: Final[Values] = {
    str(code): (f"{sign} {state}", colour)
    for code, (state, (sign, colour)) in enumerate(HEALTH.items())
}
JOB_STATE: Final[Values] = {
    "-1": (f"✕ {NOT_SEEN}", GREY),
    "0": ("● training", GREEN),
    "1": ("✓ finished", GREY),
    "2": ("○ watching", BLUE),
    "3": ("○ waiting for ranks", GREY),
    "4": ("○ starting", BLUE),
    "5": ("◐ pausing", BLUE),
    "6": ("■ interrupted", GREY),
    "7": ("◆ training, but", YELLOW),
    "8": ("◔ late", ORANGE),
    "9": ("✕ ended", DARK_RED),
    "10": ("▲ stalling", RED),
    "11": ("▲ not training", RED),
}
"""Of `lightkeeper_job_state`, in the words of the page's headline."""
SELF_HEALTH: Final[Values] = {
    "well": ("● well", GREEN),
    "recovering": ("◐ recovering", YELLOW),
    "starved": ("○ starved", ORANGE),
    "late": ("▷ late", ORANGE),
    "clock_jumped": ("◇ clock jumped", ORANGE),
    "cannot_write": ("■ cannot write", RED),
    "cut_off": ("✕ cut off", DARK_RED),
}
"""The monitor's own health, by label of `lightkeeper_self_health`; worst last."""
KEEPER_STATE: Final[Values] = {
    "0": ("○ stands by", GREY),
    "1": (f"○ {NO_LIGHTHOUSE}", GREY),
    "2": ("● acts", GREEN),
    "3": ("◐ observes", BLUE),
    "4": ("◇ doubts itself", ORANGE),
    "5": ("■ paused", ORANGE),
    "6": ("▲ Lighthouse away", RED),
    "7": ("✕ not seen", RED),
}
SEVERITY: Final[Values] = {
    "critical": ("critical", RED), "warning": ("warning", ORANGE), "info": ("info", BLUE),
}  # fmt: skip
PROCESS: Final[Values] = {
    "0": ("✕ ended", DARK_RED),
    "1": ("● lives", GREEN),
    "2": ("◆ waits for a device", ORANGE),
    "3": ("◉ held by a tracer", PURPLE),
    "4": ("■ stopped by a signal", RED),
}
MEMBER: Final[Values] = {
    "-1": (f"○ {NO_LIGHTHOUSE}", GREY), "0": ("✕ out", RED), "1": ("● in", GREEN),
}  # fmt: skip
CAUSES: Final[Mapping[str, str]] = {
    "training": GREEN,
    "starting": BLUE,
    "recovering": YELLOW,
    "checkpoint": "light-blue",
    "evaluation": "dark-blue",
    "compile": "super-light-blue",
    "failed_commit": "light-yellow",
    "unexplained": PURPLE,
    "cause not known yet": GREY,
    "dead": DARK_RED,
    "not_entered": RED,
    "mismatch": "semi-dark-red",
    "deadlock": "light-red",
    "state_corrupt": "super-light-red",
    "straggler": "dark-orange",
    "replica_lag": "semi-dark-orange",
    "progress_lost": ORANGE,
    "absent": "light-orange",
    "by_hand": "super-light-orange",
    "lighthouse_away": "dark-purple",
    "quorum_lost": "semi-dark-purple",
    "unseen": "light-purple",
}
"""What ranks' time goes to; reds and oranges are faults."""
