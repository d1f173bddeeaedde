"""Whether the job is well beyond the question whether it trains: has it ended, is it slow, does it
spoil its numbers? Each a sentence, for page, terminal and programs. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Final

from monitor.departures import Departure, departure_of
from monitor.detectors.wording import listed
from monitor.view.ranks import ended
from monitor.view.view import View

SLOW: Final = 2.0
"""A pace so many times the usual one is worth a word, whoever causes it."""
_NAMED: Final = 4


@dataclass(frozen=True, slots=True)
class Ended:
    """A job of which nothing runs any more."""

    at_s: float
    clean: bool
    """Whether all ended as a program that is through does."""
    says: str
    """How, without when."""


def ended_of(view: View) -> Ended | None:
    """None: something runs, or nothing was ever seen."""
    snapshot = view.snapshot
    if any(seen.report is None or seen.report.process.alive for seen in snapshot.observations):
        return None
    gone = [*view.departures, *(departure_of(s, snapshot.now_s) for s in snapshot.observations)]
    if not gone:
        return None
    left = f"0 of {len(gone)} ranks left"
    at_s = max(one.at_s for one in gone)
    if all(one.clean for one in gone):
        return Ended(at_s, True, f"every rank ended with exit code 0, {left}")
    gone.sort(key=lambda one: (one.clean, one.ending is None or not one.ending.exception, one.at_s))
    told = [f"{one.rank} {_how(one)}" for one in gone[:_NAMED]]
    more = f" and {len(gone) - _NAMED:,} more" if len(gone) > _NAMED else ""
    return Ended(at_s, False, f"{'; '.join(told)}{more}; {left}")


def _how(one: Departure) -> str:
    return "not heard of any more" if one.process is None else ended(one.process, one.ending)


def warnings_of(view: View) -> tuple[str, ...]:
    """What keeps a job that trains from being well, one sentence each."""
    made = []
    usual_s = view.spent.usual_s
    # without declared pauses: a checkpoint makes no step slow
    paces = [tempo.busy_s + tempo.wait_s for tempo in view.tempos.values()]
    if usual_s and paces and (pace_s := median(paces)) > SLOW * usual_s:
        made.append(f"a step takes {pace_s:.3g} s, and {usual_s:.3g} s is usual")
    spoilt, traced = [], []
    for seen in view.snapshot.observations:
        report = seen.report
        if report is None or not report.process.alive:
            continue
        if report.step is not None and not report.step.loss_finite:
            spoilt.append(seen.rank)
        if (tracer := report.process.tracer) is not None:
            traced.append(f"{seen.rank} by {tracer.name} (pid {tracer.pid})")
    if spoilt:
        made.append(f"the loss of {listed(spoilt)} is not finite, and steps are committed with it")
    if traced:
        made.append(f"somebody traces {listed(traced)}")
    running = {seen.identity.group for seen in view.snapshot.observations}
    gone = {one.group for one in view.departures if not one.clean} - running
    if gone and running:
        made.append(f"gone and not back: {listed(sorted(gone))}")
    return tuple(made)
