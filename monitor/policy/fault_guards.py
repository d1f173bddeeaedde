"""Guards that look at the fault: is the verdict good for an eviction, and would one mend it?

Each says why not and what would lift that, or None.
"""

from __future__ import annotations

from monitor.detectors.verdict import Confidence, Kind
from monitor.detectors.wording import listed, seconds
from monitor.policy.case import Case, Objection
from monitor.policy.lessons import Lesson, cost, same_fault
from monitor.policy.rules import Action


def unsure(case: Case) -> Objection | None:
    """The verdict cannot tell the culprit."""
    culprits = case.incident.culprits
    if case.incident.verdict.confidence is not Confidence.UNSURE:
        return None
    return Objection(
        case.incident.verdict.spare
        or (
            f"cannot tell which of {listed(culprits)} is to blame"
            if len(culprits) > 1
            else f"it is not certain that {listed(culprits)} is to blame"
        ),
        f"It is evicted once the evidence names one. {case.by_hand}",
    )


def spared(case: Case) -> Objection | None:
    """The verdict itself says why an eviction would not mend it."""
    why = case.incident.verdict.spare
    return Objection(why, f"An eviction would not mend it. {case.by_hand}") if why else None


def already_gone(case: Case) -> Objection | None:
    """The group left by itself."""
    view, incident = case.view, case.incident
    nothing = "Nothing is to be done: nobody is left to evict."
    if view is None:
        return Objection(f"{case.group} is registered no more", nothing)
    if (
        incident.replica_ids
        and view.replica_id is not None
        and view.replica_id not in incident.replica_ids
    ):
        return Objection(f"{case.group} is another process by now", nothing)
    dies = incident.kind in (Kind.DEAD, Kind.MISMATCH)  # gloo ends who meets a mismatch
    if not dies or view.alive or case.fleet.lighthouse_away is not None:
        return None
    if again(case):
        return None  # it is gone, and must not come back
    age_s, dead_s = view.heartbeat_age_s, view.dead_for_s
    beats = (
        age_s is not None and dead_s is not None and age_s + case.config.heartbeat_grace_s < dead_s
    )
    if beats and view.in_quorum:
        return None
    return Objection(
        f"every process of {case.group} is gone and its heartbeat has ended with them",
        "Nothing is to be done: it is evicted if its heartbeat goes on after all.",
    )


def not_worth_it(case: Case) -> Objection | None:
    """A straggler has cost less so far than an eviction would (ski rental)."""
    incident = case.incident
    price = cost(case.fleet.lessons, len(case.fleet.groups), case.config)
    lost_s = incident.verdict.lost_s
    if incident.kind is not Kind.STRAGGLER or lost_s > price.seconds:
        return None
    told = f", measured on {price.evictions}" if price.evictions else ""
    return Objection(
        f"it has cost less than an eviction would ({seconds(price.seconds)}{told})",
        f"It is evicted once it has cost more than {seconds(price.seconds)} (eviction_cost_s). "
        f"{case.by_hand}",
    )


def wants_person(case: Case) -> Objection | None:
    """The operator wants a person for this kind of fault, and no eviction."""
    if case.action is not Action.PAGE:
        return None
    kind, severity = case.incident.kind, case.incident.severity
    return Objection(
        f"the policy pages for {kind} of severity {severity} and never evicts",
        f"A person decides. {case.by_hand}. To let lightkeeper do it: change actions.{kind} in the "
        "policy file",
    )


def traced(case: Case) -> Objection | None:
    """Somebody looks at one of its ranks: what holds it up may be the look."""
    why = "" if case.view is None else case.view.traced
    return Objection(why, f"It goes on when they let go. {case.by_hand}") if why else None


def crash_loop(case: Case) -> Objection | None:
    """A fault that stops nobody has come again after an eviction: another would not mend it."""
    why = _came_again(case)
    if case.incident.verdict.stops or not why:
        return None
    return Objection(
        why,
        f"A person mends the program, or it is evicted after "
        f"{seconds(case.config.crash_loop_memory_s)} without it (crash_loop_memory_s). "
        f"{case.by_hand}",
    )


def again(case: Case) -> str:
    """Why a group is put out and kept out: others wait, and the program failed there before.

    Held back, it would take the others along at TorchFT's timeout. Empty: nothing says so.
    """
    return _came_again(case) if case.incident.verdict.stops else ""


def _came_again(case: Case) -> str:
    """Whether the program has failed at the same place before, in words.

    On another host that is the program's; on the same it may be either, and coming back there has
    not helped. Empty: it has not, or nobody knows the place.
    """
    config, incident = case.config, case.incident
    since_s = case.fleet.now_s - config.crash_loop_memory_s
    known = (one for one in case.fleet.lessons if case.only_observed or not one.observed)
    before = same_fault(known, incident, since_s)
    elsewhere = [one for one in before if _elsewhere(case, one)]
    if len(elsewhere) >= config.program_bug_after:
        hosts = listed(sorted({host for one in elsewhere for host in one.hosts}))
        return f"the same as {_times(elsewhere)} before on {hosts}: a fault of the program"
    if len(before) >= config.crash_loop_after:
        return f"the same as {_times(before)} before: starting it again does not mend it"
    return ""


def _elsewhere(case: Case, lesson: Lesson) -> bool:
    """Whether the fault was on other hosts then; where either is not known it proves nothing."""
    here = set(case.incident.hosts)
    return bool(here and lesson.hosts) and here.isdisjoint(lesson.hosts)


def _times(lessons: list[Lesson]) -> str:
    return "once" if len(lessons) == 1 else f"{len(lessons)} times"
