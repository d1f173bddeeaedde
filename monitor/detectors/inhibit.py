"""Which verdicts another fact explains: one fault, one accusation."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from monitor.detectors.standstill import SIGNATURE as STANDSTILL
from monitor.detectors.verdict import Kind, Verdict
from monitor.names import GroupName, RankName

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
    group; a fault explains the deaths of those who waited for it (TorchFT's timeouts end
    them), and that they stand still while they end; a fleet that stands still has no pace to
    compare.

    Args:
        verdicts: what the detectors found in this tick.
        shielded: groups under an eviction of ours; a kind is left out where its own incident is
            the one that asked for it.
        blamed: victim -> group of the culprit, of open incidents.
        ending: of these, who gave up waiting and may be about to end.
        stalled: whether anything but slowness is wrong anywhere.
        named: whether an open incident says who holds the job up.
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
            named=named or any(v.stops and v.culprits for v in verdicts)
            or (tie and verdict.signature == STANDSTILL),
        )  # fmt: skip
        lags = verdict.kind is Kind.REPLICA_LAG
        if lags and (faulty & set(verdict.groups) or (not verdict.groups and (stalled or spoilt))):
            why = why or ""  # a loop has pauses between its turns: what is in them is another's
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
    """Why a verdict does not stand; empty when it is only not to be had now; None: it stands."""
    groups = set(verdict.groups)
    if any((verdict.kind, group) in shielded for group in groups):
        return "it is under an eviction"
    if groups & mismatched and verdict.kind in (Kind.DEAD, Kind.NOT_ENTERED, Kind.DEADLOCK):
        return "explained by a mismatch in the same group"
    if groups & mismatched and verdict.kind is Kind.MISMATCH and not verdict.stops:
        return ""  # the one that hangs is told first
    if groups & dead and verdict.kind is Kind.NOT_ENTERED:
        return "explained by a dead process in the same group"
    over = {Kind.DEAD: blamed, Kind.NOT_ENTERED: ending}.get(verdict.kind, ())
    if verdict.kind is Kind.DEAD and verdict.signature:
        over = ()  # it raised something of its own, whatever it waited for
    if verdict.culprits and all(rank in over for rank in verdict.culprits):
        causes = sorted({blamed[rank] for rank in verdict.culprits} - groups)
        if causes:
            ends = "ended" if verdict.kind is Kind.DEAD else "gave up"
            return f"{ends} while waiting for {', '.join(causes)}"
    if verdict.kind is Kind.DEADLOCK and not verdict.culprits and named:
        return ""
    if verdict.kind is Kind.STRAGGLER and stalled:
        return ""
    return None
