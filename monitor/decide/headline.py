"""The whole job in one sentence: does it train, what holds it up, what happens next. Pure.

The page, the terminal and the API show this one. An open incident is worded by its `Face`, here as
everywhere, so that headline, table and incident never differ.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import median
from typing import Final

from lightkeeper.monitor.decide.tempo import median_step_s
from lightkeeper.monitor.decide.view import View
from lightkeeper.monitor.model.incident import Incident, State
from lightkeeper.monitor.model.names import IncidentId, group_of
from lightkeeper.monitor.model.verdict import Kind, RankHealth
from lightkeeper.monitor.model.wording import Face, after, does, listed, seconds, trains_without
from lightkeeper.worker_server.wire import LONG_PHASES, StepState

_LATE_S: Final = 2.0
_LATE_STEPS: Final = 3.0
"""A commit that is missing for longer than both, in seconds and in usual steps, is late; it may be
an undeclared checkpoint."""
_STILL_S: Final = 15.0
_HELD_S: Final = 3.0
"""Instead of `_STILL_S` while an open incident reports a standstill."""
_STILL_STEPS: Final = 5.0
"""Without a commit for longer than both, in seconds and in usual steps, the job does not train."""
SICK: Final = (RankHealth.DEAD, RankHealth.UNREACHABLE, RankHealth.STALLED, RankHealth.CORRUPT,
               RankHealth.TRACED, RankHealth.SLOW)  # fmt: skip
"""Ranks that need attention one by one."""


class JobState(StrEnum):
    """What the job does, how a sentence about it begins, and whether it trains in a word."""

    label: str
    answer: str
    """Scripts rely on it."""

    def __new__(cls, name: str, label: str, answer: str) -> JobState:
        state = str.__new__(cls, name)
        state._value_, state.label, state.answer = name, label, answer
        return state

    WAITING = "waiting", "Waiting for ranks:", "no"  # no rank was ever seen
    STARTING = "starting", "Starting:", "starting"  # no step is committed yet
    WATCHING = "watching", "Watching:", "starting"  # ranks answer, but none reports its steps
    TRAINING = "training", "Training:", "yes"
    DISTURBED = "disturbed", "Training, but", "disturbed"  # something is wrong
    LATE = "late", "Late:", "disturbed"  # the next commit is; too soon to say that training stopped
    PAUSING = "pausing", "Pausing:", "pausing"  # no commits, and a rank says why: a checkpoint ...
    STALLING = "stalling", "Stalling:", "stalling"  # no commits, the culprit is not known yet
    STOPPED = "stopped", "Not training:", "no"  # no commits, and an incident says why
    FINISHED = "finished", "The job has finished:", "finished"
    ENDED = "ended", "The job has ended:", "ended"
    INTERRUPTED = "interrupted", "The job was stopped:", "stopped"  # somebody asked it to end


_BEFORE: Final[Mapping[JobState, str]] = {
    JobState.WAITING: "none has registered yet",
    JobState.STARTING: "no step is committed yet",
    JobState.WATCHING: "no rank reports its steps",
}
"""Shown for a job of which no commit is known."""


@dataclass(frozen=True, slots=True)
class Headline:
    """The sentence, in parts, and its figures."""

    state: JobState
    says: str
    """Who, what and why, after the label."""
    next: str = ""
    """What happens next; empty: nothing is due."""
    incident: IncidentId | None = None
    """The one that it is about."""
    step: int | None = None
    """The highest of any rank."""
    step_s: float | None = None
    """Median seconds a step, over the ranks that moved lately."""
    commit_age_s: float | None = None
    """Seconds since the latest commit of any rank."""
    at_s: float | None = None
    """When the job ended."""
    short: bool = False
    """True if all that is wrong is that an evicted group has not come back."""

    @property
    def label(self) -> str:
        """The state in a few words, as the sentence begins."""
        return "Training" if self.short else self.state.label

    @property
    def trains(self) -> bool:
        """True if steps are committed."""
        return self.state in (JobState.TRAINING, JobState.DISTURBED, JobState.LATE)

    def __str__(self) -> str:
        return f"{self.label} {self.says.rstrip('.')}{'. ' if self.next else ''}{self.next}"


@dataclass(frozen=True, slots=True)
class _Figures:
    """Over all ranks, in one pass: there may be 10,000."""

    step: int | None
    age_s: float | None
    """Seconds since the latest commit."""
    still_s: float | None
    """Since the last progress: a commit, or a local step; None: before the first."""
    usual_s: float
    """How long that usually takes; 0: not known."""
    healths: Counter[RankHealth]


def headline_of(view: View) -> Headline:
    steps = [rank.step for rank in view.snapshot.observations if rank.step is not None]
    ages_s = [step.last_commit_age_s for step in steps if step.last_commit_age_s is not None]
    age_s, step_s = min(ages_s, default=None), median_step_s(view.tempos)
    still_s, usual_s = _progress(steps, age_s, step_s, view.spent.usual_s)
    seen = _Figures(
        step=max((step.step for step in steps), default=None),
        age_s=age_s,
        still_s=still_s,
        usual_s=usual_s,
        healths=Counter(view.result.rank_health.values()),
    )
    at_s = None if view.ended is None else view.ended.at_s
    words = _words(view, seen)
    return replace(words, step=seen.step, step_s=step_s, commit_age_s=age_s, at_s=at_s)


def _progress(
    steps: Sequence[StepState], age_s: float | None, step_s: float | None, commit_s: float | None
) -> tuple[float | None, float]:
    """Seconds since the last progress, and how long that usually takes. `age_s`: of the last
    commit; `step_s`, `commit_s`: usual seconds a step, and a commit.
    """
    if not any(step.local_steps for step in steps):
        return age_s, max(step_s or 0.0, commit_s or 0.0)  # some attempts are not committed
    made_s = min(s for step in steps if (s := step.made_age_s) is not None)
    commit_s = commit_s or median([step.trained_s / max(1, step.attempt) for step in steps])
    if age_s is not None:  # a vote may take longer than a local step
        made_s = min(made_s, max(0.0, age_s - commit_s))
    return made_s, step_s or 0.0


def _words(view: View, seen: _Figures) -> Headline:
    if (ended := view.ended) is not None:
        state = JobState.INTERRUPTED if ended.stopped else JobState.ENDED
        state = JobState.FINISHED if ended.clean else state
        return Headline(state, ended.says, incident=ended.incident)
    state = _by_commits(view, seen)
    late = state in (JobState.LATE, JobState.STALLING)
    lead = lead_of(view, stops=late)  # a fault that only slows the job does not prevent commits
    if lead is not None and state is not JobState.WAITING:
        face = view.face(lead)
        next_step, due_s = face.next, _look_again_in_s(view)
        if lead.state is State.PENDING and due_s is not None:
            next_step = after(lead.remedy, f"{_decision(view, lead)} in {seconds(due_s)}")
        if state is JobState.TRAINING:
            state = JobState.DISTURBED
        elif _stops(lead):
            state = JobState.STOPPED
        over = trains_without(lead, view.snapshot.now_s)
        return Headline(state, _briefly(lead, face, over), next_step, lead.id)
    if state in _BEFORE:
        silent = state is JobState.WATCHING and not view.snapshot.reports
        return Headline(state, "no rank answers" if silent else _BEFORE[state])
    return _undecided(view, seen, state) if late else _training(view, seen)


def _decision(view: View, lead: Incident) -> str:
    """What is due about a pending incident: about an eviction only where there can be one."""
    if view.snapshot.alone or view.observe or not lead.groups or lead.candidates:
        return "Verdict"
    return f"Decision on evicting {listed(lead.groups)}"


def _briefly(lead: Incident, face: Face, over: bool) -> str:
    """`rank rg_1.1 hangs in log_step (train.py:66), GIL held: 3 ranks wait`."""
    brief, waiting = lead.verdict.brief, 0 if over else len(lead.verdict.victims)
    if not brief:
        return face.says
    wait = f": {waiting:,} {'rank waits' if waiting == 1 else 'ranks wait'}" if waiting else ""
    return f"{brief}{wait}"


def _by_commits(view: View, seen: _Figures) -> JobState:
    """The state by commits alone."""
    if not view.snapshot.observations:
        return JobState.WAITING
    if seen.step is None:
        return JobState.WATCHING
    late_s = max(_LATE_S, _LATE_STEPS * seen.usual_s) if seen.usual_s else _STILL_S
    if seen.still_s is None or (seen.age_s is None and seen.still_s > late_s):
        return JobState.STARTING  # the first vote may take long, even after local steps
    if seen.healths[RankHealth.LATE] and not seen.healths[RankHealth.HEALTHY]:
        return JobState.STALLING
    standstill = any(incident.verdict.stops for incident in view.opened)
    if seen.still_s > max(_HELD_S if standstill else _STILL_S, _STILL_STEPS * seen.usual_s):
        return JobState.STALLING
    return JobState.LATE if seen.still_s > late_s else JobState.TRAINING


def _stops(incident: Incident) -> bool:
    """True if it explains missing commits: a straggler and corrupt numbers never do."""
    verdict = incident.verdict
    waits = verdict.kind in (Kind.REPLICA_LAG, Kind.UNSEEN) and bool(verdict.victims)
    return verdict.stops or waits


def lead_of(view: View, *, stops: bool = False) -> Incident | None:
    """The most important open incident: one that stops the job before one that does not.

    `stops`: only those that stop it.
    """
    candidates = [incident for incident in view.opened if _stops(incident) or not stops]
    order = [(i.state is State.PENDING, not _stops(i)) for i in candidates]
    return candidates[order.index(min(order))] if candidates else None


def _training(view: View, seen: _Figures) -> Headline:
    if wrong := _wrong(view, seen):
        return Headline(JobState.DISTURBED, wrong)
    if view.out:  # the first warning says so
        return Headline(JobState.DISTURBED, view.warnings[0], _waits_for(view), short=True)
    if wrong := _warning(view):
        return Headline(JobState.DISTURBED, wrong)
    gone = seen.healths[RankHealth.FINISHED] + seen.healths[RankHealth.ENDED]
    ranks = len(view.snapshot.observations) - gone
    starting = seen.healths[RankHealth.STARTING]
    says = "1 rank is healthy" if ranks == 1 else f"all {ranks:,} ranks are healthy"
    if starting:
        says = f"{ranks - starting:,} of {ranks:,} ranks are healthy, {starting:,} starting"
    elif not seen.healths:
        says = f"{ranks:,} {'rank reports' if ranks == 1 else 'ranks report'} steps"
    return Headline(JobState.TRAINING, says)


def _undecided(view: View, seen: _Figures, state: JobState) -> Headline:
    """There are no commits, and no incident says why."""
    usual_s = view.spent.usual_s
    usual = "" if usual_s is None else f" ({usual_s:.3g} s is usual)"
    quiet = f"no commit for {seconds(seen.age_s or 0.0)}{usual}"
    paused = [
        (seen_rank.rank, seen_rank.step.phase)
        for seen_rank in view.snapshot.observations
        if seen_rank.step is not None and seen_rank.step.phase in LONG_PHASES
    ]
    if paused and not seen.healths[RankHealth.LATE]:
        phase = Counter(phase for _, phase in paused).most_common(1)[0][0]
        who = listed([rank for rank, does in paused if does == phase])
        return Headline(JobState.PAUSING, f"{who} in {phase!r}, {quiet}")
    return Headline(state, quiet, _due(view, state))


def _due(view: View, state: JobState) -> str:
    """When a verdict is due, as far as that is known, and where to look meanwhile."""
    if (due_s := _look_again_in_s(view)) is not None:
        return f"Verdict in {seconds(due_s)}"
    if state is JobState.LATE:
        return ""
    return "No rank can be named yet. What each one does: lightkeeper get ranks"


def _look_again_in_s(view: View) -> float | None:
    """Seconds until the next tick that may decide something; None: not known."""
    due_s = view.result.look_again_s - view.snapshot.now_s
    return due_s if math.isfinite(due_s) and due_s > 0 else None


def _waits_for(view: View) -> str:
    """Who starts the evicted groups again."""
    if held := [entry.name for entry in view.quarantine_groups if entry.name in view.out]:
        return f"{does(held, 'is')} quarantined: its launcher waits for the release"
    hosts = {str(g.host) for g in view.groups if g.group in view.out and g.host}
    refused = sorted(hosts & {entry.name for entry in view.quarantine})
    whom = "its launcher" if len(view.out) == 1 else "their launchers"
    if refused:
        return f"Waiting for {whom}: {does(refused, 'is')} quarantined"
    return f"Waiting for {whom}{f' on {listed(sorted(hosts))}' if hosts else ''}"


def _wrong(view: View, seen: _Figures) -> str:
    """What is wrong with ranks of a job that trains, without an open incident."""
    if view.evicting:
        return f"{listed(sorted(view.evicting))} is being evicted"
    sick = sum(seen.healths[health] for health in SICK)
    if view.out:
        healths = view.result.rank_health.items()
        sick -= sum(health in SICK and group_of(rank) in view.out for rank, health in healths)
    if sick:
        return f"{sick:,} {'rank is' if sick == 1 else 'ranks are'} unhealthy"
    if late := seen.healths[RankHealth.LATE]:
        return f"the next commit of {late:,} {'rank' if late == 1 else 'ranks'} is late"
    return ""


def _warning(view: View) -> str:
    """The most important other problem of a job that trains."""
    if warnings := view.warnings:
        return warnings[0] + (f", and {len(warnings) - 1} more" if len(warnings) > 1 else "")
    kinds = [kind.replace("_", " ") for kind in sorted(view.result.unknown)]
    return f"nobody looks for {listed(kinds)}" if kinds else ""
