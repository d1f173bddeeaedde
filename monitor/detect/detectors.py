"""All detectors, and the ranks whose flight records they ask for. Pure; add new ones here."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from lightkeeper.monitor.detect.absent import absent
from lightkeeper.monitor.detect.corrupt import corrupt
from lightkeeper.monitor.detect.dead import dead
from lightkeeper.monitor.detect.deadlock import (
    STANDSTILL,
    across_records,
    all_wait,
    deadlock,
    standstill,
)
from lightkeeper.monitor.detect.forming import forming
from lightkeeper.monitor.detect.graph import WaitGraph
from lightkeeper.monitor.detect.hang import (
    left_out,
    not_entered,
    standing_records,
    unphased,
    unseen,
)
from lightkeeper.monitor.detect.history import History
from lightkeeper.monitor.detect.lag import replica_lag
from lightkeeper.monitor.detect.late_comer import late_comer, late_records
from lightkeeper.monitor.detect.lighthouse import APART, apart, lighthouse_silent, quorum_lost
from lightkeeper.monitor.detect.mismatch import (
    differing_across,
    mismatch,
    sampled_records,
    silent_mismatch,
    suspicious_records,
    torn_records,
)
from lightkeeper.monitor.detect.network import parted, slow_link
from lightkeeper.monitor.detect.progress import progress_lost
from lightkeeper.monitor.detect.straggler import slow_pause, slow_transfer, straggler
from lightkeeper.monitor.model.names import GroupName, RankName
from lightkeeper.monitor.model.verdict import BY_ELIMINATION, Kind, Verdict
from lightkeeper.monitor.model.wording import listed

# -- roster ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Detector:
    """A detector by name, and the kind that is unknown when it crashes."""

    name: str
    kind: Kind
    look: Callable[[History, WaitGraph], Iterable[Verdict]]

    def verdicts(self, history: History, graph: WaitGraph) -> tuple[Verdict, ...]:
        """What it finds in this tick."""
        return tuple(self.look(history, graph))


DETECTORS: Final = (
    Detector("mismatch", Kind.MISMATCH, mismatch),
    Detector("left_out", Kind.MISMATCH, left_out),
    Detector("forming", Kind.MISMATCH, lambda history, _: forming(history)),
    Detector("differing_across", Kind.MISMATCH, lambda history, _: differing_across(history)),
    Detector("dead", Kind.DEAD, dead),
    Detector("parted", Kind.DEADLOCK, lambda history, _: parted(history)),
    Detector("not_entered", Kind.NOT_ENTERED, not_entered),
    Detector("unphased", Kind.NOT_ENTERED, unphased),
    Detector("deadlock", Kind.DEADLOCK, deadlock),
    Detector("all_wait", Kind.DEADLOCK, all_wait),
    Detector("silent_mismatch", Kind.MISMATCH, lambda history, _: silent_mismatch(history)),
    Detector("corrupt", Kind.STATE_CORRUPT, lambda history, _: corrupt(history)),
    Detector("straggler", Kind.STRAGGLER, lambda history, _: straggler(history)),
    Detector("slow_pause", Kind.STRAGGLER, lambda history, _: slow_pause(history)),
    Detector("slow_link", Kind.STRAGGLER, lambda history, _: slow_link(history)),
    Detector("slow_transfer", Kind.STRAGGLER, lambda history, _: slow_transfer(history)),
    Detector("late_comer", Kind.STRAGGLER, lambda history, _: late_comer(history)),
    Detector("replica_lag", Kind.REPLICA_LAG, replica_lag),
    Detector("apart", Kind.REPLICA_LAG, lambda history, _: apart(history)),
    Detector("unseen", Kind.UNSEEN, unseen),
    Detector("absent", Kind.ABSENT, lambda history, _: absent(history)),
    Detector("progress_lost", Kind.PROGRESS_LOST, lambda history, _: progress_lost(history)),
    Detector("quorum_lost", Kind.QUORUM_LOST, lambda history, _: quorum_lost(history)),
    Detector("standstill", Kind.DEADLOCK, standstill),
    Detector("lighthouse_away", Kind.LIGHTHOUSE_AWAY, lighthouse_silent),
)


def wanted_records(history: History, graph: WaitGraph) -> tuple[RankName, ...]:
    """Ranks whose records a detector asks for; sorted, each once."""
    suspected = {
        *suspicious_records(history, graph),
        *standing_records(history, graph),
        *torn_records(history),
        *late_records(history),
        *across_records(history, graph),
    }
    return tuple(sorted(suspected)) or sampled_records(history, graph)


# -- inhibit -----------------------------------------------------------------------------------
# Which verdicts another fault explains, by named rules. The first rule that objects decides.

Reasons = Mapping[tuple[Kind, GroupName], str]


@dataclass(frozen=True, slots=True)
class VictimWait:
    """What a victim of an open incident waits for, or waited for until it died."""

    ranks: tuple[RankName, ...]
    """The suspects; empty: nobody is suspected."""
    groups: tuple[GroupName, ...]
    whom: str
    """In words: the group, or what is no group."""
    kind: Kind
    """The incident's kind."""
    fired: bool
    """True if the incident is more than pending."""


def fired(waits: Mapping[RankName, VictimWait]) -> frozenset[RankName]:
    """The victims of incidents that are more than pending."""
    return frozenset(rank for rank, wait in waits.items() if wait.fired)


@dataclass(frozen=True, slots=True)
class Tick:
    """What the rules may look at."""

    verdicts: Sequence[Verdict]
    """What the detectors found in this tick."""
    shielded: Collection[tuple[Kind, GroupName]] = ()
    """Groups under an eviction of ours; a kind is left out where its own incident requested the
    eviction."""
    waits: Mapping[RankName, VictimWait] = field(default_factory=dict)
    """By victim."""
    ending: Collection[RankName] = ()
    """Victims that gave up waiting and may be about to end."""
    stalled: bool = False
    """True if anything but slowness is wrong anywhere."""
    named: bool = False
    """True if an open incident names what holds the job up."""
    hangs_s: Mapping[RankName, float] = field(default_factory=dict)
    """Suspect of an open hang -> when that was first seen."""

    def groups(self, kind: Kind) -> set[GroupName]:
        """Groups in which somebody stands because of a fault of this kind."""
        return {group for v in self.verdicts if v.kind is kind and v.stops for group in v.groups}


Rule = Callable[[Verdict, Tick], str | None]
"""Why a verdict does not stand; empty: only not now; None: this rule lets it stand."""


def own_eviction(verdict: Verdict, tick: Tick) -> str | None:
    """We put the group out ourselves."""
    shielded = any((verdict.kind, group) in tick.shielded for group in verdict.groups)
    return "it is under an eviction" if shielded else None


def mismatch_explains(verdict: Verdict, tick: Tick) -> str | None:
    """A mismatch explains the hangs, deaths and deadlocks of its group."""
    follows = verdict.kind in (Kind.DEAD, Kind.NOT_ENTERED, Kind.DEADLOCK)
    explained = follows and not tick.groups(Kind.MISMATCH).isdisjoint(verdict.groups)
    return "explained by a mismatch in the same group" if explained else None


def hanging_mismatch_first(verdict: Verdict, tick: Tick) -> str | None:
    """If a group has two mismatches, the one that hangs is reported first."""
    spared = verdict.kind is Kind.MISMATCH and not verdict.stops
    later = spared and not tick.groups(Kind.MISMATCH).isdisjoint(verdict.groups)
    return "" if later else None


def death_explains(verdict: Verdict, tick: Tick) -> str | None:
    """A death explains a hang of its group, unless the hang was seen before it, or all who died are
    victims of that hang.
    """
    if verdict.kind is not Kind.NOT_ENTERED:
        return None
    explained = any(
        death.kind is Kind.DEAD
        and {*death.groups} & {*verdict.groups}
        and not (
            verdict.suspects
            and all(tick.hangs_s.get(r, math.inf) <= death.since_s for r in verdict.suspects)
        )
        and not _waited_for(verdict, death, tick)
        for death in tick.verdicts
    )
    return "explained by a dead process in the same group" if explained else None


def _waited_for(hang: Verdict, death: Verdict, tick: Tick) -> bool:
    """True if all who died waited for the ranks that hang."""
    return bool(death.suspects) and all(
        rank in hang.victims
        or (rank in tick.waits and not {*hang.suspects}.isdisjoint(tick.waits[rank].ranks))
        for rank in death.suspects
    )


def victim_of_another(verdict: Verdict, tick: Tick) -> str | None:
    """A fault of another group explains the deaths of its victims (TorchFT's timeouts end them),
    and their standing still while they end. An error of its own explains itself.
    """
    over = {Kind.DEAD: tick.waits, Kind.NOT_ENTERED: tick.ending}.get(verdict.kind, ())
    own = verdict.kind is Kind.DEAD and verdict.signature
    if own or not verdict.suspects or not all(rank in over for rank in verdict.suspects):
        return None
    waits = [tick.waits[rank] for rank in verdict.suspects]
    elsewhere = {w.whom for w in waits if w.fired and not {*w.groups} & {*verdict.groups}}
    if not elsewhere:
        return None
    ends = "ended" if verdict.kind is Kind.DEAD else "gave up"
    return f"{ends} while waiting for {listed(sorted(elsewhere))}"


def victim_of_its_group(verdict: Verdict, tick: Tick) -> str | None:
    """Ranks that waited for another of their group gave up by their own timeout: that is no fault
    beside the hang. A signal or an error of its own explains itself.
    """
    if verdict.kind is not Kind.DEAD or verdict.signature or verdict.settled:
        return None
    seen = (tick.waits.get(rank) for rank in verdict.suspects)
    waits = [wait for wait in seen if wait is not None and wait.kind is not Kind.DEAD]
    ranks = {rank for wait in waits for rank in wait.ranks} - {*verdict.suspects}
    if not ranks or len(waits) < len(verdict.suspects):
        return None
    return f"gave up while waiting for {listed(sorted(ranks))}"


def said_already(verdict: Verdict, tick: Tick) -> str | None:
    """Two detectors that see one fault of one rank make one incident, in the words of the first."""
    same = (v for v in tick.verdicts if v.kind is verdict.kind and v.suspects == verdict.suspects)
    return "" if verdict.suspects and next(same) is not verdict else None


def somebody_is_named(verdict: Verdict, tick: Tick) -> str | None:
    """A standstill of unknown cause is no news beside a fault that says more."""
    if verdict.kind is not Kind.DEADLOCK or verdict.suspects:
        return None
    named = tick.named or any(v.stops and v.suspects for v in tick.verdicts)
    more = any(v.stops and v.signature != STANDSTILL for v in tick.verdicts)
    return "" if named or (verdict.signature == STANDSTILL and more) else None


def lost_requests_say_more(verdict: Verdict, tick: Tick) -> str | None:
    """Requests that the Lighthouse lacks explain why ranks wait for it, and for each other, until
    their timeouts have ended them.
    """
    waits = not verdict.suspects and verdict.kind in (Kind.DEADLOCK, Kind.LIGHTHOUSE_AWAY)
    if not waits and verdict.signature != APART:
        return None
    kinds = {v.kind for v in tick.verdicts} | {wait.kind for wait in tick.waits.values()}
    return "" if Kind.QUORUM_LOST in kinds else None


def elimination_comes_last(verdict: Verdict, tick: Tick) -> str | None:
    """A group that nobody can see hangs only if nothing else can explain the wait: no other fault
    of this tick, and no open incident whose victims these are.
    """
    if verdict.evidence.get("source") != BY_ELIMINATION:
        return None
    waits = (tick.waits[rank] for rank in verdict.victims if rank in tick.waits)
    elsewhere = any({*wait.groups}.isdisjoint(verdict.groups) for wait in waits)
    others = any(v.stops and v.suspects for v in tick.verdicts if v is not verdict)
    return "" if elsewhere or others else None


def no_pace_in_a_standstill(verdict: Verdict, tick: Tick) -> str | None:
    """A fleet that stands still has no pace to compare."""
    return "" if verdict.kind is Kind.STRAGGLER and tick.stalled else None


def pauses_of_another_fault(verdict: Verdict, tick: Tick) -> str | None:
    """A loop pauses between its turns: the pauses belong to another fault."""
    if verdict.kind is not Kind.REPLICA_LAG:
        return None
    others = [v for v in tick.verdicts if v.kind not in (Kind.STRAGGLER, Kind.REPLICA_LAG)]
    if not verdict.groups:
        return "" if tick.stalled or any(v.kind is Kind.STATE_CORRUPT for v in others) else None
    return "" if any({*v.groups} & {*verdict.groups} for v in others) else None


INHIBITIONS: Final[tuple[Rule, ...]] = (
    own_eviction,
    mismatch_explains,
    hanging_mismatch_first,
    death_explains,
    victim_of_another,
    victim_of_its_group,
    said_already,
    somebody_is_named,
    lost_requests_say_more,
    elimination_comes_last,
    no_pace_in_a_standstill,
    pauses_of_another_fault,
)


def inhibit(tick: Tick) -> tuple[tuple[Verdict, ...], Reasons]:
    """The verdicts that stand, and why the others do not."""
    kept: list[Verdict] = []
    reasons: dict[tuple[Kind, GroupName], str] = {}
    for verdict in tick.verdicts:
        objections = (rule(verdict, tick) for rule in INHIBITIONS)
        why = next((reason for reason in objections if reason is not None), None)
        if why is None:
            kept.append(verdict)
        elif why:
            reasons.update({(verdict.kind, group): why for group in verdict.groups})
    return tuple(kept), reasons
