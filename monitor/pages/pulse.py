"""Is it training: the answer in a few words, and the figures behind it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from monitor.detectors.verdict import Severity
from monitor.pages.context import Context
from monitor.pages.states import LOOKS, SICK, chip
from monitor.pages.tree import Node, el
from monitor.pages.wording import NONE, ago, path_of, span, whole
from monitor.reports.wording import counted, sentence
from monitor.snapshot import LighthouseView
from monitor.view import Ended, ended_of, warnings_of

_STILL_S: Final = 15.0
_HELD_S: Final = 3.0
_STILL_STEPS: Final = 5.0
"""No commit for so many seconds, and for so many usual steps: it is not said to train. The second
where an open incident says that somebody holds it up."""
_LATE_S: Final = 2.0
_LATE_STEPS: Final = 3.0
"""The same for a commit that is late, which is not said to be well."""
_FACES: Final = 5
"""Open incidents that are spelt out at once."""


@dataclass(frozen=True, slots=True)
class Pulse:
    """The figures."""

    states: Counter[str]
    """Of ranks."""
    groups: int
    step: int | None
    commit_age_s: float | None
    """Of the youngest commit of any rank."""
    step_s: float | None
    """Median of all ranks that moved lately."""
    open_incidents: int
    held: bool
    """Whether one of them says that somebody stands still."""
    evicting: tuple[str, ...]
    usual_s: float | None = None
    """Seconds that a commit usually takes."""
    ended: Ended | None = None
    warnings: tuple[str, ...] = ()

    @property
    def still(self) -> bool:
        """Whether nobody has committed for longer than is usual."""
        if self.commit_age_s is None:
            return False
        if self.states["late"] and not self.states["healthy"]:
            return True
        least_s = _HELD_S if self.held else _STILL_S
        return self.commit_age_s > max(least_s, _STILL_STEPS * (self.step_s or 0.0))

    @property
    def late(self) -> bool:
        """Whether the next commit is later than is usual; it may only be a checkpoint."""
        if self.commit_age_s is None or self.step_s is None:
            return False
        return self.commit_age_s > max(_LATE_S, _LATE_STEPS * self.step_s)


def pulse(context: Context) -> Pulse:
    """Of the whole fleet."""
    view = context.view
    groups, steps, ages = set(), [], []
    for seen in view.snapshot.observations:
        groups.add(seen.identity.group)
        step = None if seen.report is None else seen.report.step
        if step is not None:
            steps.append(step.step)
            if step.last_commit_age_s is not None:
                ages.append(step.last_commit_age_s)
    paces = [tempo.step_s for tempo in view.tempos.values()]
    return Pulse(
        states=Counter(context.states.values()),
        groups=len(groups),
        step=max(steps, default=None),
        commit_age_s=min(ages, default=None),
        step_s=median(paces) if paces else None,
        open_incidents=sum(one.open for one in view.incidents),
        held=any(one.open and one.verdict.stops for one in view.incidents),
        evicting=tuple(sorted(view.evicting)),
        usual_s=view.spent.usual_s,
        ended=ended_of(view),
        warnings=warnings_of(view),
    )


def headline(context: Context, seen: Pulse) -> Node:
    """One short sentence; it changes when the state does, not with every step."""
    tone, text = _said(context, seen)
    return el("p", text, id="headline", class_=f"headline {tone}", aria_live="polite")


def _said(context: Context, seen: Pulse) -> tuple[str, str]:
    if seen.ended is not None:
        return (
            ("idle", "The job has finished") if seen.ended.clean else ("bad", "The job has ended")
        )
    if not context.states:
        return "start", "Waiting for ranks"
    doing = "Not training" if seen.still else "Training"
    if seen.still and not seen.open_incidents:
        return "bad", "Stalling, verdict pending"
    if seen.commit_age_s is None:
        doing = "No steps are reported" if seen.step is None else "No commit seen yet"
    tone, text = next(_troubles(context, seen), ("", ""))
    if text:
        return tone, f"{doing}, {text}"
    if seen.still or seen.commit_age_s is None:
        return "bad" if seen.still else "start", doing
    return "good", f"{doing}, all {counted(len(context.states), 'rank')} well"


def _troubles(context: Context, seen: Pulse) -> Iterator[tuple[str, str]]:
    """The most telling first."""
    if seen.evicting:
        one = len(seen.evicting) == 1
        yield "wait", f"evicting {seen.evicting[0] if one else f'{len(seen.evicting)} groups'}"
    if seen.open_incidents:
        yield "bad", counted(seen.open_incidents, "open incident")
    if sick := sum(seen.states[state] for state in SICK):
        yield "bad" if seen.still else "wait", f"{counted(sick, 'rank')} not well"
    if unknown := len(context.view.result.unknown):
        yield "away", f"{counted(unknown, 'kind')} of fault unknown"
    if seen.late and not seen.still:
        yield "wait", "the next commit is late"
    if seen.warnings:
        yield "wait", counted(len(seen.warnings), "warning")


def condition(context: Context, seen: Pulse) -> Node:
    """What the headline rests on: each open incident and each warning in a sentence."""
    told: list[tuple[str, str, Node | str]] = []
    if seen.ended is not None:
        told.append(("ended", "bad", f"{ago(context.now_s - seen.ended.at_s)}: {seen.ended.says}"))
    elif seen.late or seen.still:
        usual = "" if seen.usual_s is None else f" ({seen.usual_s:.3g} s is usual)"
        pending = "" if seen.open_incidents else ", verdict pending"
        told.append(("late", "wait", f"No commit for {span(seen.commit_age_s)}{usual}{pending}"))
    for one, face in context.faces[:_FACES]:
        tone = "wait" if one.severity is not Severity.CRITICAL else "bad"
        linked = el("a", sentence(face.says), href=path_of("incidents", one.id))
        told.append((one.id, tone, el("span", linked, f". {face.next}" if face.next else "")))
    if len(context.faces) > _FACES:
        told.append(("more", "wait", f"And {len(context.faces) - _FACES:,} more, below"))
    told += [(text, "wait", sentence(text)) for text in seen.warnings]
    inside = (el("li", text, class_=tone, data_key=key) for key, tone, text in told)
    return el("ul", *inside, id="condition", class_="condition")


def figures(context: Context, seen: Pulse) -> Node:
    """Step, pace, last commit, quorum, groups, ranks."""
    quorum, members = _quorum(context)
    pace = NONE if not seen.step_s or seen.still or seen.ended else f"{1 / seen.step_s:.2f}"
    pairs = [
        ("step", whole(seen.step)),
        ("steps a second", pace),
        ("last commit", NONE if seen.commit_age_s is None else f"{span(seen.commit_age_s)} ago"),
        ("quorum", "not seen" if quorum is None else whole(quorum)),
        (
            "in the quorum",
            NONE
            if members is None or not seen.groups
            else f"{members:,} of {seen.groups:,} groups",
        ),
        ("ranks", whole(len(context.states))),
    ]
    inside = (el("div", el("dt", name), el("dd", told), data_key=name) for name, told in pairs)
    return el("dl", *inside, id="figures", class_="figures")


def _quorum(context: Context) -> tuple[int | None, int | None]:
    """Its id and how many groups are in; None while the Lighthouse cannot be seen."""
    lighthouse = context.view.snapshot.lighthouse
    if not isinstance(lighthouse, LighthouseView):
        return None, None
    return lighthouse.quorum_id, len(lighthouse.members)


def legend(seen: Pulse) -> Node:
    """Every state that there is: its shape, its name, how many ranks."""
    shown = [state for state in LOOKS if seen.states[state] or state == "healthy"]
    inside = (
        el("li", chip(state), " ", el("b", whole(seen.states[state])), title=LOOKS[state].meaning,
           data_key=state, data_filter=state)
        for state in reversed(shown)
    )  # fmt: skip
    return el("ul", *inside, id="legend", class_="legend", aria_label="Ranks by state")


def facts_of(context: Context, seen: Pulse) -> dict[str, Any]:
    """The same for programs."""
    quorum, members = _quorum(context)
    tone, text = _said(context, seen)
    return {
        "now_s": context.now_s,
        "headline": text,
        "tone": tone,
        "step": seen.step,
        "step_s": None if seen.step_s is None else round(seen.step_s, 4),
        "commit_age_s": None if seen.commit_age_s is None else round(seen.commit_age_s, 3),
        "quorum_id": quorum,
        "members": members,
        "groups": seen.groups,
        "ranks": {state: seen.states[state] for state in LOOKS if seen.states[state]},
        "evicting": list(seen.evicting),
        "open_incidents": seen.open_incidents,
        "warnings": list(seen.warnings),
    }
