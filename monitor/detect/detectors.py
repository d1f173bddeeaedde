"""All detectors, and the ranks whose flight records they ask for. Pure; add new ones here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from monitor.detect.corrupt import corrupt
from monitor.detect.dead import dead
from monitor.detect.deadlock import (
    STANDSTILL,
    across_records,
    all_wait,
    circle_records,
    deadlock,
    standstill,
)
from monitor.detect.forming import forming
from monitor.detect.graph import WaitGraph
from monitor.detect.hang import left_out, not_entered, unphased, unphased_records, unseen
from monitor.detect.history import History
from monitor.detect.lag import replica_lag
from monitor.detect.late_comer import late_comer, late_records
from monitor.detect.lighthouse import apart, lighthouse_away
from monitor.detect.mismatch import (
    differing_across,
    mismatch,
    sampled_records,
    silent_mismatch,
    suspicious_records,
    torn_records,
)
from monitor.detect.straggler import slow_pause, slow_transfer, straggler
from monitor.model.names import GroupName, RankName
from monitor.model.verdict import Kind, Verdict

# -- roster ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Detector:
    """A detector by name, and the kind that is unknown when it crashes."""

    name: str
    kind: Kind
    look: Callable[[History, WaitGraph], tuple[Verdict, ...]]


DETECTORS: Final = (
    Detector("mismatch", Kind.MISMATCH, mismatch),
    Detector("left_out", Kind.MISMATCH, left_out),
    Detector("forming", Kind.MISMATCH, lambda history, _: forming(history)),
    Detector("differing_across", Kind.MISMATCH, lambda history, _: differing_across(history)),
    Detector("dead", Kind.DEAD, dead),
    Detector("not_entered", Kind.NOT_ENTERED, not_entered),
    Detector("unphased", Kind.NOT_ENTERED, unphased),
    Detector("deadlock", Kind.DEADLOCK, deadlock),
    Detector("all_wait", Kind.DEADLOCK, all_wait),
    Detector("silent_mismatch", Kind.MISMATCH, lambda history, _: silent_mismatch(history)),
    Detector("corrupt", Kind.STATE_CORRUPT, lambda history, _: corrupt(history)),
    Detector("straggler", Kind.STRAGGLER, lambda history, _: straggler(history)),
    Detector("slow_pause", Kind.STRAGGLER, lambda history, _: slow_pause(history)),
    Detector("slow_transfer", Kind.STRAGGLER, lambda history, _: slow_transfer(history)),
    Detector("late_comer", Kind.STRAGGLER, lambda history, _: late_comer(history)),
    Detector("replica_lag", Kind.REPLICA_LAG, replica_lag),
    Detector("apart", Kind.REPLICA_LAG, lambda history, _: apart(history)),
    Detector("unseen", Kind.UNSEEN, unseen),
    Detector("standstill", Kind.DEADLOCK, standstill),
    Detector("lighthouse_away", Kind.LIGHTHOUSE_AWAY, lighthouse_away),
)


def wanted_records(history: History, graph: WaitGraph) -> tuple[RankName, ...]:
    """Ranks whose records a detector asks for; sorted, each once."""
    suspected = {
        *suspicious_records(history, graph),
        *unphased_records(history, graph),
        *torn_records(history),
        *late_records(history),
        *across_records(history, graph),
        *circle_records(history, graph),
    }
    return tuple(sorted(suspected)) or sampled_records(history, graph)


# -- inhibit -----------------------------------------------------------------------------------

Reasons = Mapping[tuple[Kind, GroupName], str]


def inhibit(
    verdicts: Sequence[Verdict],
    *,
    shielded: Collection[tuple[Kind, GroupName]],
    blamed: Mapping[RankName, GroupName],
    ending: Collection[RankName] = (),
    stalled: bool,
    named: bool = False,
) -> tuple[tuple[Verdict, ...], Reasons]:
    """The verdicts that stand, and why the others do not.

    A mismatch explains the hangs, deaths and deadlocks of its group; a death explains a hang of its
    group; a fault explains the deaths of its victims (TorchFT's timeouts end them), and their
    standing still while they end; a fleet that stands still has no pace to compare.

    Args:
        verdicts: what the detectors found in this tick.
        shielded: groups under an eviction of ours; a kind is left out where its own incident
            requested the eviction.
        blamed: victim -> group of the culprit, of open incidents.
        ending: victims that gave up waiting and may be about to end.
        stalled: whether anything but slowness is wrong anywhere.
        named: whether an open incident names what holds the job up.
    """
    mismatched = {g for v in verdicts if v.kind is Kind.MISMATCH and v.stops for g in v.groups}
    dead = {g for v in verdicts if v.kind is Kind.DEAD for g in v.groups}
    others = [v for v in verdicts if v.kind not in (Kind.STRAGGLER, Kind.REPLICA_LAG)]
    faulty = {g for v in others for g in v.groups}
    spoilt = any(v.kind is Kind.STATE_CORRUPT for v in others)
    tie = any(v.kind is Kind.DEADLOCK and v.signature != STANDSTILL for v in verdicts)
    kept: list[Verdict] = []
    reasons: dict[tuple[Kind, GroupName], str] = {}
    for verdict in verdicts:
        why = _why(
            verdict, shielded, mismatched, dead, blamed=blamed, ending=ending, stalled=stalled,
            named=named or any(v.stops and v.suspects for v in verdicts)
            or (tie and verdict.signature == STANDSTILL),
        )  # fmt: skip
        lags = verdict.kind is Kind.REPLICA_LAG
        if lags and (faulty & set(verdict.groups) or (not verdict.groups and (stalled or spoilt))):
            why = why or ""  # a loop pauses between its turns: the pauses belong to another fault
        if why is None:
            kept.append(verdict)
        elif why:
            reasons.update({(verdict.kind, group): why for group in verdict.groups})
    return tuple(kept), reasons


def _why(  # noqa: PLR0911 - one reason a line
    verdict: Verdict,
    shielded: Collection[tuple[Kind, GroupName]],
    mismatched: set[GroupName],
    dead: set[GroupName],
    *,
    blamed: Mapping[RankName, GroupName],
    ending: Collection[RankName],
    stalled: bool,
    named: bool,
) -> str | None:
    """Why a verdict does not stand; empty: only not now; None: it stands."""
    groups = set(verdict.groups)
    if any((verdict.kind, group) in shielded for group in groups):
        return "it is under an eviction"
    if groups & mismatched and verdict.kind in (Kind.DEAD, Kind.NOT_ENTERED, Kind.DEADLOCK):
        return "explained by a mismatch in the same group"
    if groups & mismatched and verdict.kind is Kind.MISMATCH and not verdict.stops:
        return ""  # the one that hangs is reported first
    if groups & dead and verdict.kind is Kind.NOT_ENTERED:
        return "explained by a dead process in the same group"
    over = {Kind.DEAD: blamed, Kind.NOT_ENTERED: ending}.get(verdict.kind, ())
    if verdict.kind is Kind.DEAD and verdict.signature:
        over = ()  # it raised an error of its own, whatever it waited for
    if verdict.suspects and all(rank in over for rank in verdict.suspects):
        causes = sorted({blamed[rank] for rank in verdict.suspects} - groups)
        if causes:
            ends = "ended" if verdict.kind is Kind.DEAD else "gave up"
            return f"{ends} while waiting for {', '.join(causes)}"
    if verdict.kind is Kind.DEADLOCK and not verdict.suspects and named:
        return ""
    if verdict.kind is Kind.STRAGGLER and stalled:
        return ""
    return None
