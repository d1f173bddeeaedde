"""Which series a panel shows (PromQL of Prometheus 2.42), and how each state looks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

MONITOR: Final = 'instance=~"$instance"'
"""For metrics that a monitor exports; `$instance` holds the monitors of `$job`."""
MONITOR_URL: Final = "http://127.0.0.1:8470"
"""Default of the variable `monitor_url`; `push --monitor-url` sets yours."""
RUNBOOKS: Final = "${monitor_url}/runbooks"
"""The monitor's own page of them."""
NO_DATA: Final = "no data"
"""Shown by an empty panel that should never be empty."""
GROUP: Final = MONITOR + ', replica_group=~"$group"'
"""For those it exports for each group or rank."""
RANK: Final = 'job_id=~"$job", run=~"$run", replica_group=~"$group", rank=~"$rank"'
"""For metrics that a rank exports itself; the monitor's list of targets adds the run."""
_BY_OWN: Final = "on (job_id, replica_group, rank)"

ZERO: Final = f"0 * count(lightkeeper_self_health_scale{{{MONITOR}}})"
"""No event so far, while a monitor is there to see one: `vector(0)` would stay a green 0 after the
monitor died.
"""
KEEPER: Final = (
    f"4 * (lightkeeper_lighthouse_up{{{MONITOR}}} == bool 0) > 0 "
    f"or 3 * (lightkeeper_self_health_scale{{{MONITOR}}} > bool 1) > 0 "
    f"or 2 * lightkeeper_paused{{{MONITOR}}} > 0 "
    f"or lightkeeper_observe_mode{{{MONITOR}}} "
    f"or 0 * lightkeeper_self_health_scale{{{MONITOR}}} - 1"
)
"""For each monitor the worst reason that it does not act, as numbers of `KEEPER_STATE`. One without
a Lighthouse has neither `lighthouse_up` nor `observe_mode`."""
_ACTS: Final = f"count(lightkeeper_lighthouse_up{{{MONITOR}}})"
ALONE: Final = f"({ZERO} unless on () {_ACTS})"
"""0 where no monitor has a Lighthouse: there is no quorum, and nobody is evicted."""
NO_LIGHTHOUSE: Final = "no Lighthouse"
"""What panels say of that, neither a number nor a colour that alarms."""


def worst_only(expr: str, on: str, by: str) -> str:
    """`expr` of the `$topn` for which `by`, a plain selector, was largest within the shown time.

    Chosen once for the whole range (`@ end()`): a bare `topk` chooses again at each step and draws
    every series that was ever chosen.
    """
    return f"({expr}) and on ({on}) topk($topn, max_over_time({by}[$__range] @ end()))"


def on_host(expr: str) -> str:
    """`expr` for ranks on the chosen hosts; it must keep the labels of a rank's own metrics."""
    return f'({expr}) and {_BY_OWN} lightkeeper_rank_info{{{RANK}, host=~"$host"}}'


def chosen_ranks(expr: str, keep: str = "") -> str:
    """One series for each chosen rank, at most `$topn` ranks, including those that are gone.

    It joins all successive processes of a rank: each has its own port, and thus other labels.
    `keep`: labels to keep as well.
    """
    info = f'lightkeeper_rank_info{{{RANK}, host=~"$host"}}'
    some = f"max by (job_id, replica_group, rank) (max_over_time({info}[$__range] @ end()))"
    labels = ", ".join(("job_id, replica_group, rank", *([keep] if keep else [])))
    return f"max by ({labels}) ({expr}) and {_BY_OWN} topk($topn, {some})"


def grown(counter: str, by: str = "", within: str = "$__rate_interval") -> str:
    """By how much counters grew, including those that appeared within the time.

    A counter with labels appears at its first event, with 1: `increase` alone never sees that
    event, which for evictions is most of them. A counter is new if it had no sample in the five
    minutes before the time: after a missed scrape its whole total must not count again.
    """
    before = f"last_over_time({counter}[5m] offset {within})"
    total = f"(increase({counter}[{within}]) and {before}) or ({counter} unless {before})"
    return f"sum by ({by}) ({total})" if by else f"sum({total})"


def or_none(expr: str, label: str, *, acts: bool = False) -> str:
    """`expr`, or if it is empty a zero labelled `none`: nothing has happened.

    Without a monitor to see anything there is no zero, see `ZERO`. `acts`: it is about evictions,
    so without a Lighthouse the label says that.
    """
    said = f'label_replace({ZERO}, "{label}", "none", "", "")'
    if acts:
        said = f"({told_alone(label)} or ({said} and on () {_ACTS}))"
    return f"({expr}) or ({said} unless on () ({expr}))"


def told_alone(label: str) -> str:
    """A zero whose label says that no monitor has a Lighthouse."""
    return f'label_replace({ALONE}, "{label}", "{NO_LIGHTHOUSE}", "", "")'


# -- One colour and one sign for each state, the same as on the monitor's page --------------------
# The signs differ in shape, for readers who cannot distinguish the colours.

GREEN, YELLOW, ORANGE, RED = "green", "yellow", "orange", "red"
DARK_RED, BLUE, PURPLE, GREY = "dark-red", "blue", "purple", "text"

Values = Mapping[str, tuple[str, str]]
"""What a value stands for: text and colour."""

HEALTH: Final[Mapping[str, str]] = {
    "healthy": GREEN,
    "waiting": YELLOW,
    "starting": BLUE,
    "stalled": RED,
    "unreachable": PURPLE,
    "dead": DARK_RED,
    "evicting": ORANGE,
    "late": "light-yellow",
    "slow": "dark-orange",
    "corrupt": "semi-dark-red",
    "traced": "dark-purple",
    "finished": GREY,
    "ended": "light-purple",
}
"""In the order of `lightkeeper_group_state`: 0 healthy ... 12 ended."""
_SIGNS: Final = ("●", "◐", "○", "▲", "◇", "✕", "▼", "◔", "◆", "✖", "◉", "✓", "■")
GROUP_STATE: Final[Values] = {
    str(code): (f"{sign} {state}", colour)
    for code, (sign, (state, colour)) in enumerate(zip(_SIGNS, HEALTH.items(), strict=True))
}
SELF_HEALTH: Final[Mapping[str, tuple[str, str]]] = {
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
    "-1": (f"○ {NO_LIGHTHOUSE}", GREY),
    "0": ("● acts", GREEN),
    "1": ("◐ observes", BLUE),
    "2": ("■ paused", ORANGE),
    "3": ("◇ doubts itself", ORANGE),
    "4": ("▲ Lighthouse away", RED),
    "5": ("✕ not seen", RED),
}
SEVERITY: Final[Mapping[str, str]] = {"critical": RED, "warning": ORANGE, "info": BLUE}
UP: Final[Values] = {"0": ("✕ down", RED), "1": ("● up", GREEN)}
WITHOUT: Final[Values] = {"-1": (f"○ {NO_LIGHTHOUSE}", GREY)}
MEMBER: Final[Values] = {"0": ("✕ out", RED), "1": ("● in", GREEN), **WITHOUT}
