"""The state of every rank, with a shape of its own beside its colour. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from monitor.names import RankName
from monitor.pages.tree import Node, el
from monitor.pipeline import RankHealth
from monitor.snapshot import Observation
from monitor.view import View

EVICTING: Final = "evicting"
UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True)
class Look:
    """How a state is shown."""

    glyph: str
    """Told from the others by shape alone."""
    meaning: str


LOOKS: Final = {
    "dead": Look("✕", "its process has ended"),
    "unreachable": Look("◇", "its WorkerServer gives no answer"),
    "stalled": Look("▲", "it stands still, and others wait for it"),
    "corrupt": Look("✖", "its numbers are wrong"),
    "traced": Look("◉", "a debugger or a profiler holds it: no fault of its own"),
    "slow": Look("◆", "it holds the others up by its pace"),
    EVICTING: Look("▼", "its replica group is being put out"),
    "starting": Look("○", "not through its first commits yet; its usual pace is being learnt"),
    "late": Look("◔", "no commit for much longer than usual; it is not known yet who holds it up"),
    "waiting": Look("◐", "it waits for others"),
    "healthy": Look("●", "it makes progress"),
    UNKNOWN: Look("□", "the Lighthouse knows it, and no rank of it has registered"),
}
"""Worst first."""
ORDER: Final = {state: rank for rank, state in enumerate(LOOKS)}
SICK: Final = ("dead", "unreachable", "stalled", "corrupt", "traced", "slow")
"""They need attention one by one."""


def state_of(view: View, seen: Observation) -> str:
    """Of one rank: its health, but that of a rank whose group is being evicted."""
    health = view.result.rank_health.get(seen.rank)
    if health is None:
        return UNKNOWN
    if seen.identity.group in view.evicting and health is not RankHealth.DEAD:
        return EVICTING
    return str(health)


def states_of(view: View) -> dict[RankName, str]:
    """Of every rank."""
    return {seen.rank: state_of(view, seen) for seen in view.snapshot.observations}


def worst(states: Iterable[str]) -> str:
    """The one that a group of ranks is shown by."""
    return min(states, key=lambda one: ORDER[one], default=UNKNOWN)


def chip(state: str, word: str | None = None) -> Node:
    """The state as a word with its shape."""
    look = LOOKS.get(state, LOOKS[UNKNOWN])
    return el("span", el("span", look.glyph, aria_hidden="true", class_="glyph"), " ",
              word or state, class_=f"chip s-{state}")  # fmt: skip
