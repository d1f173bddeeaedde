"""One colour and one sign for each state, the same as on the monitor's page.

The signs differ in shape: whoever cannot tell the colours apart reads the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

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
}
"""In the order of `lightkeeper_group_state`: 0 healthy ... 10 traced."""
_SIGNS: Final = ("●", "◐", "○", "▲", "◇", "✕", "▼", "◔", "◆", "✖", "◉")
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
