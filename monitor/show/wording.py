"""States of ranks in words and shapes, and what pages and terminal say in the same words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lightkeeper.monitor.model.units import span, utc

if TYPE_CHECKING:  # commands need only the words
    from lightkeeper.monitor.decide.view import View
    from lightkeeper.monitor.model.names import RankName
    from lightkeeper.monitor.model.observation import Observation
    from lightkeeper.worker_server.wire import StepState


def pause_line(pause: Mapping[str, Any]) -> str:
    """The pause switch, in one line."""
    if pause.get("ended_s") is not None:
        who = f"the pause by {pause['author']} ({pause['reason']})"
        return f"{pause['ended_by']} ended {who} at {utc(pause['ended_s'])}"
    until = "`lightkeeper resume`" if pause["until_s"] is None else utc(pause["until_s"])
    why = f"{pause['reason']} (nobody is evicted but by hand)"
    return f"PAUSED by {pause['author']} until {until}: {why}"


def doing(step: StepState | None) -> str:
    """`forward for 12 s`."""
    return "" if step is None else f"{step.phase} for {span(step.phase_age_s)}"


# -- The state of every rank, with its own shape beside its colour. Pure ---------------------------

EVICTING: Final = "evicting"
UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True)
class StateLook:
    glyph: str
    """Unique by shape alone."""
    meaning: str


LOOKS: Final = {
    "dead": StateLook("✕", "its process has ended"),
    "unreachable": StateLook("◇", "its WorkerServer gives no answer"),
    "stalled": StateLook("▲", "it hangs, and others wait for it"),
    "corrupt": StateLook("✖", "its numbers are wrong"),
    "traced": StateLook("◉", "a debugger or a profiler holds it: no fault of its own"),
    "slow": StateLook("◆", "its pace holds the others up"),
    EVICTING: StateLook("▼", "its replica group is being evicted"),
    "starting": StateLook("○", "before its first commits; its usual pace is being learnt"),
    "late": StateLook("◔", "no commit for longer than usual; who holds it up is not known yet"),
    "waiting": StateLook("◐", "it waits for others"),
    "healthy": StateLook("●", "it makes progress"),
    "ended": StateLook("■", "it was asked to end: with the job, or because a peer had failed"),
    "finished": StateLook("✓", "its work is done"),
    UNKNOWN: StateLook("□", "the Lighthouse knows it, and no rank of it has registered"),
}
"""Worst first."""
ORDER: Final = {state: rank for rank, state in enumerate(LOOKS)}


def state_of(view: View, seen: Observation) -> str:
    """A rank's health, or that its group is being evicted."""
    health = view.result.rank_health.get(seen.rank)
    if health is None:
        return UNKNOWN
    over = health in ("dead", "ended", "finished")
    if seen.identity.group in view.evicting and not over:
        return EVICTING
    return str(health)


def states_of(view: View, *, late: bool) -> dict[RankName, str]:
    """State of every rank; none is healthy while the job's next commit is late."""
    states = {seen.rank: state_of(view, seen) for seen in view.snapshot.observations}
    if not late:
        return states
    return {rank: "late" if state == "healthy" else state for rank, state in states.items()}


def worst(states: Iterable[str]) -> str:
    """The state shown for several ranks."""
    return min(states, key=lambda state: ORDER[state], default=UNKNOWN)
