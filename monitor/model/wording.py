"""The text of verdicts and incidents: short, whole sentences, the same words everywhere."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Sized
from dataclasses import dataclass
from datetime import UTC, datetime
from shlex import quote
from typing import Final

from lightkeeper.monitor.model.eviction import Decision, Eviction, EvictionState, Guard, rulings
from lightkeeper.monitor.model.incident import Incident, State, Training
from lightkeeper.monitor.model.names import GroupName, RankName, group_of
from lightkeeper.monitor.model.units import clean, plain
from lightkeeper.monitor.model.verdict import MEANINGS, Severity, Verdict


def rfc3339(at_s: float) -> str:
    """UTC to the millisecond."""
    at = datetime.fromtimestamp(at_s, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def listed(ranks: Sequence[str], at_most: int = 4, last: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`, or `a, b, c, d and 12 more`."""
    if len(ranks) > at_most:
        return f"{', '.join(ranks[:at_most])} {last} {len(ranks) - at_most:,} more"
    if len(ranks) < 2:
        return "".join(ranks)
    return f"{', '.join(ranks[:-1])} {last} {ranks[-1]}"


def suspects(culprits: Sequence[str], candidates: Sequence[str], at_most: int = 4) -> str:
    """The culprits: `a and b`. Without any the candidates: `cannot tell: a or b`, and a single one:
    `perhaps a`. Empty: no rank is suspected.
    """
    if not candidates:
        return listed(culprits, at_most)
    names = listed(candidates, at_most, "or")
    return f"perhaps {names}" if len(candidates) == 1 else f"cannot tell: {names}"


def who(fault: Incident | Verdict, at_most: int = 4) -> str:
    """Whose fault it is, or may be."""
    return suspects(fault.culprits, fault.candidates, at_most)


def plural(ranks: Sized, single: str, many: str) -> str:
    """The verb form that fits the number of ranks."""
    return single if len(ranks) == 1 else many


def does(names: Sequence[str], verb: str) -> str:
    """`a waits`, `a and b wait`; `verb` in the form for one."""
    odd = {"is": "are", "has": "have", "was": "were", "does": "do"}
    many = odd.get(verb, verb.removesuffix("s"))
    return f"{listed(names)} {plural(names, verb, many)}"


def by_force(namespace: str, pod: str, node: str) -> str:
    """What a person does about a pod that no kubelet will end."""
    where, failed = f"kubectl -n {quote(namespace)}", quote('{"status":{"phase":"Failed"}}')
    return (
        f"Once {node or 'its node'} is known to be off: "
        f"{where} patch pod {quote(pod)} --subresource=status -p {failed} && "
        f"{where} delete pod {quote(pod)} --force"
    )


def bring_back(group: GroupName, places: Collection[Mapping[str, str]]) -> str:
    """What a person can do for a group that is gone, by where its launcher had put its ranks."""
    pods = {place.get("pod", ""): place for place in places if place.get("namespace")}
    jobs = sorted({job for place in places if (job := place.get("slurm_job_id"))})
    if pod := min(filter(None, pods), default=""):
        namespace, node = pods[pod]["namespace"], pods[pod].get("node", "")
        names = " ".join(quote(name) for name in sorted(filter(None, pods)))
        delete = f"kubectl -n {quote(namespace)} delete pod {names}"
        return f"To let {group} start elsewhere: {delete}. {by_force(namespace, pod, node)}"
    if jobs:
        job = quote(jobs[0])
        return f"To let {group} start again: scontrol requeue {job}, or scancel {job} and sbatch"
    return f"To let {group} start elsewhere, start its launcher (torchrun, systemd) on another host"


def seconds(span_s: float) -> str:
    """`0.04 s`, `3.1 s`, `12 s`."""
    digits = ".0f" if span_s >= 10 else ".1f" if span_s >= 1 else ".2g"
    return f"{span_s:{digits}} s"


def groups_of(ranks: Sequence[RankName]) -> tuple[GroupName, ...]:
    """Replica groups of ranks, sorted, each once."""
    return tuple(sorted({group_of(rank) for rank in ranks}))


def title_of(incident: Incident) -> str:
    """Who and what, as short as possible: `rg_1.1: hang`, `Hang, cannot tell: rg_0.0 or rg_1.0`."""
    kind = MEANINGS[incident.kind].title or plain(incident.kind)
    groups = [clean(name, 80) for name in incident.groups]
    whose = clean(who(incident, 3), 240) or listed(groups, 3)
    if whose and not incident.candidates:
        return f"{whose}: {kind}"
    return kind[:1].upper() + kind[1:] + (f", {whose}" if whose else "")


# -- What a person reads about an incident: page, terminal, message and log say the same -----------
# The verdict's own sentence first, then what happens next. Pure.


@dataclass(frozen=True, slots=True)
class Face:
    """One incident, in two sentences."""

    says: str
    """The verdict's sentence; if it is older than this tick, how long the fault has lasted by
    now; that it is over."""
    next: str
    """What is done, why nothing is, or how it ended; what a person can do. Empty: not known yet."""

    def __str__(self) -> str:
        return f"{self.says.rstrip('.')}. {self.next}" if self.next else self.says


def face_of(incident: Incident, rows: Sequence[Decision], now_s: float) -> Face:
    """As it is now; `rows`: what was decided about it, oldest first."""
    verdict = incident.verdict
    stands_s = now_s - verdict.since_s
    old = incident.open and now_s > incident.last_seen_s
    by_now = f" ({stands_s:.0f} s by now)" if old and stands_s > 0 else ""
    ruled = rulings(rows)
    last = ruled[-1] if ruled else None
    then = [_next(incident, last)]
    if last is not None and last.action == "hold" and trains_without(incident, now_s):
        by_hand = f"lightkeeper evict {listed(incident.groups, last='or')}"
        then = [f"Nobody is evicted: the others train without it. To evict it yourself: {by_hand}"]
    freed = [row for row in rows if row.action == "release"]
    if incident.open and freed:  # afterwards it is history
        failed = freed[-1].state == "failed"
        then.append(f"Others still wait: {freed[-1].outcome}" if failed else freed[-1].reason)
    says = f"{'' if incident.open else 'Over: '}{verdict.reason}{by_now}"
    return Face(says, ". ".join(filter(None, then)))


def trains_without(incident: Incident, now_s: float) -> bool:
    """True if the others train without it by now, though its ranks stand where they stood."""
    trains = incident.state is State.FIRING and incident.training is Training.TRAINS
    return trains and incident.verdict.stops and now_s - incident.last_seen_s > 5.0


_IN_VAIN: Final = (EvictionState.FAILED, EvictionState.ABANDONED)


def _next(incident: Incident, last: Decision | None) -> str:
    match incident.state:
        case State.RESOLVED:
            return f"How it ended: {incident.resolution or 'nobody knows'}"
        case State.PENDING:
            return after(incident.remedy, "It is not certain yet, and nothing is done")
        case State.EVICTING:
            return f"{_evicted(incident, last)} is being evicted"
        case State.FIRING:
            going = last is not None and last.guard is None and last.state not in _IN_VAIN
            remedy = "" if going and incident.groups else incident.remedy
            return after(remedy, _decided(incident, last))


def after(remedy: str, then: str) -> str:
    """What a person can do at once comes first."""
    return f"{remedy}. {then}" if remedy and then else remedy or then


def _decided(incident: Incident, last: Decision | None) -> str:
    if not incident.groups:
        look = ": a person has to look" if incident.severity is Severity.CRITICAL else ""
        return f"Nobody is accused{look}"
    if last is None:
        return ""
    if last.guard == Guard.WATCH_ONLY:
        return last.release
    if last.guard is not None:
        why = f"nobody is evicted: {last.reason}" if last.action == "hold" else last.reason
        return f"{why[:1].upper()}{why[1:]}. {last.release}".rstrip()
    if last.state in _IN_VAIN:
        return f"The eviction of {_evicted(incident, last)} failed: {last.outcome}"
    return f"{_evicted(incident, last)} is being evicted"


def _evicted(incident: Incident, last: Decision | None) -> str:
    """The group that is evicted: of a tie only one."""
    return last.group if isinstance(last, Eviction) else listed(incident.groups)
