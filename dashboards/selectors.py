"""Which series a panel means (PromQL, kept to Prometheus 2.42), and how each state looks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

MONITOR: Final = 'instance=~"$instance"'
"""Of the metrics that a monitor exports; `$instance` holds the monitors of `$job`."""
NO_DATA: Final = "no data"
"""What a panel shows that should never be empty."""
GROUP: Final = MONITOR + ', replica_group=~"$group"'
"""Of those that it exports for each group or rank."""
RANK: Final = 'job_id=~"$job", replica_group=~"$group", rank=~"$rank"'
"""Of the metrics that a rank exports itself."""
_BY_OWN: Final = "on (job_id, replica_group, rank)"

ZERO: Final = f"0 * count(lightkeeper_self_health_scale{{{MONITOR}}})"
"""No event so far, while a monitor is there to see one: `vector(0)` would be a green 0 for ever
after it died.
"""
KEEPER: Final = (
    f"4 * (lightkeeper_lighthouse_up{{{MONITOR}}} == bool 0) > 0 "
    f"or 3 * (lightkeeper_self_health_scale{{{MONITOR}}} > bool 1) > 0 "
    f"or 2 * lightkeeper_paused{{{MONITOR}}} > 0 or lightkeeper_observe_mode{{{MONITOR}}}"
)
"""Of each monitor the worst that keeps it from acting, in the numbers of `colours.KEEPER_STATE`."""


def worst(expr: str, on: str, by: str) -> str:
    """`expr` of the `$topn` for which `by`, a plain selector, was largest within the shown time.

    Chosen once for the whole range (`@ end()`): a bare `topk` chooses anew at each step and draws
    everyone that was ever among them.
    """
    return f"({expr}) and on ({on}) topk($topn, max_over_time({by}[$__range] @ end()))"


def on_host(expr: str) -> str:
    """Of the ranks on the chosen hosts; `expr` keeps the labels of a rank's own metrics."""
    return f'({expr}) and {_BY_OWN} lightkeeper_rank_info{{{RANK}, host=~"$host"}}'


def shown(expr: str, keep: str = "") -> str:
    """A series for each chosen rank, of at most `$topn` ranks, those that are gone too.

    One for all processes that a rank had, one after the other: each has a port of its own, and
    thus other labels. `keep`: labels that are to stay besides.
    """
    info = f'lightkeeper_rank_info{{{RANK}, host=~"$host"}}'
    some = f"max by (job_id, replica_group, rank) (max_over_time({info}[$__range] @ end()))"
    labels = ", ".join(("job_id, replica_group, rank", *([keep] if keep else [])))
    return f"max by ({labels}) ({expr}) and {_BY_OWN} topk($topn, {some})"


def grown(counter: str, by: str = "", within: str = "$__rate_interval") -> str:
    """By how much counters grew, those included that came to be within the time.

    A counter with labels is born at its first event, with 1: `increase` alone never sees that
    one, which for evictions is most of them. Born is who had no sample in the five minutes
    before the time: a missed scrape is no birth, and must not count all that ever was once more.
    """
    before = f"last_over_time({counter}[5m] offset {within})"
    total = f"(increase({counter}[{within}]) and {before}) or ({counter} unless {before})"
    return f"sum by ({by}) ({total})" if by else f"sum({total})"


def or_none(expr: str, label: str) -> str:
    """`expr`, and where nothing of it is there a zero that is called none: nothing has happened.

    While no monitor is there to see anything it is no zero, see `ZERO`.
    """
    none = f'label_replace({ZERO}, "{label}", "none", "", "")'
    return f"({expr}) or ({none} unless on () ({expr}))"


# -- One colour and one sign for each state, the same as on the monitor's page --------------------
# The signs differ in shape: whoever cannot tell the colours apart reads the same.

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
}
"""In the order of `lightkeeper_group_state`: 0 healthy ... 11 finished."""
_SIGNS: Final = ("●", "◐", "○", "▲", "◇", "✕", "▼", "◔", "◆", "✖", "◉", "✓")
GROUP_STATE: Final[Values] = {
    str(code): (f"{sign} {state}", colour)
    for code, (sign, (state, colour)) in enumerate(zip(_SIGNS, HEALTH.items(), strict=True))
}
INCIDENT_STATE: Final[Values] = {
    "1": ("◐ pending", YELLOW),
    "2": ("▲ firing", RED),
    "3": ("▼ evicting", ORANGE),
    "4": ("● resolved", GREEN),
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
"""Of the monitor itself, by the label of `lightkeeper_self_health`; worst last."""
KEEPER_STATE: Final[Values] = {
    "0": ("● acts", GREEN),
    "1": ("◐ observes", BLUE),
    "2": ("■ paused", ORANGE),
    "3": ("◇ doubts itself", ORANGE),
    "4": ("▲ no Lighthouse", RED),
    "5": ("✕ not seen", RED),
}
SEVERITY: Final[Mapping[str, str]] = {"critical": RED, "warning": ORANGE, "info": BLUE}
UP: Final[Values] = {"0": ("✕ down", RED), "1": ("● up", GREEN)}
MEMBER: Final[Values] = {"0": ("✕ out", RED), "1": ("● in", GREEN)}
