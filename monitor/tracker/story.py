"""How an incident changes, each change a line of its story. Pure."""

from __future__ import annotations

from dataclasses import replace

from monitor.incident import Incident, State, Transition


def moved(incident: Incident, at_s: float, state: State, reason: str) -> Incident:
    """The incident in another state."""
    return replace(
        incident, state=state, story=(*incident.story, Transition(at_s, state.value, reason))
    )


def resolved(incident: Incident, at_s: float, why: str) -> Incident:
    """The incident, over."""
    return replace(moved(incident, at_s, State.RESOLVED, why), resolution=why)


def noted(incident: Incident, at_s: float, milestone: str, reason: str) -> Incident:
    """The incident with a line that changes no state, such as a milestone."""
    return replace(incident, story=(*incident.story, Transition(at_s, milestone, reason)))


def differs(before: Incident | None, after: Incident) -> bool:
    """Whether an incident changed in what its story tells, not only in when it was last seen."""
    return before is None or (
        before.state,
        before.culprits,
        before.milestones,
        before.story,
        before.verdict.confidence,
        before.severity,
        before.lost_steps,
    ) != (
        after.state,
        after.culprits,
        after.milestones,
        after.story,
        after.verdict.confidence,
        after.severity,
        after.lost_steps,
    )
