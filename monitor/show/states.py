"""The state of every rank, with a shape of its own beside its colour. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from monitor.model.names import RankName
from monitor.model.observation import Observation
from monitor.model.verdict import RankHealth

if TYPE_CHECKING:  # whole deciders would come with it, and `status` asks for no more than a word
    from monitor.decide.view import View

EVICTING: Final = "evicting"
UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True)
class StateLook:
    """How a state is shown."""

    glyph: str
    """Told from the others by shape alone."""
    meaning: str


LOOKS: Final = {
    "dead": StateLook("✕", "its process has ended"),
    "unreachable": StateLook("◇", "its WorkerServer gives no answer"),
    "stalled": StateLook("▲", "it stands still, and others wait for it"),
    "corrupt": StateLook("✖", "its numbers are wrong"),
    "traced": StateLook("◉", "a debugger or a profiler holds it: no fault of its own"),
    "slow": StateLook("◆", "it holds the others up by its pace"),
    EVICTING: StateLook("▼", "its replica group is being put out"),
    "starting": StateLook("○", "not through its first commits yet; its usual pace is being learnt"),
    "late": StateLook(
        "◔", "no commit for much longer than usual; it is not known yet who holds it up"
    ),
    "waiting": StateLook("◐", "it waits for others"),
    "healthy": StateLook("●", "it makes progress"),
    UNKNOWN: StateLook("□", "the Lighthouse knows it, and no rank of it has registered"),
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


_STILL_S: Final = 15.0
_HELD_S: Final = 3.0
_STILL_STEPS: Final = 5.0


def still_after_s(step_s: float | None, *, held: bool) -> float:
    """Seconds without a commit after which nobody says that the job trains.

    Args:
        step_s: what a step takes; None: that is not known.
        held: whether an open incident says that somebody stands still.
    """
    return max(_HELD_S if held else _STILL_S, _STILL_STEPS * (step_s or 0.0))
