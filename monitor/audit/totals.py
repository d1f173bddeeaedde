"""Accounts added up over a span of time. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from monitor.audit.account import Account, account
from monitor.audit.amounts import Amount, amount_to_json, nothing
from monitor.audit.case import RANK_SECONDS, Case
from monitor.audit.review import Judgement


@dataclass(frozen=True, slots=True)
class Reviews:
    """What people said of evictions."""

    evictions: int
    right: int
    wrong: int
    unclear: int

    @property
    def precision(self) -> float | None:
        """Share of those judged right or wrong that were right; None while none was judged."""
        judged = self.right + self.wrong
        return self.right / judged if judged else None

    def sentence(self) -> str:
        """For people."""
        if not self.evictions:
            return "no evictions"
        reviewed = f"{self.right} reviewed right, {self.wrong} wrong"
        unclear = f", {self.unclear} unclear" if self.unclear else ""
        noun = "eviction" if self.evictions == 1 else "evictions"
        return f"{self.evictions} {noun}, {reviewed}{unclear}"


@dataclass(frozen=True, slots=True)
class Sum:
    """Amounts added up, and of how many nothing could be told."""

    total: Amount
    of: int
    unknown: int


def reviews(cases: Iterable[Case]) -> Reviews:
    """What people said of these cases' evictions."""
    evicted = [case for case in cases if case.evicted]
    said = Counter(case.review.judgement for case in evicted if case.review is not None)
    return Reviews(
        len(evicted), said[Judgement.RIGHT], said[Judgement.WRONG], said[Judgement.UNCLEAR]
    )


def summed(amounts: Sequence[Amount]) -> Sum:
    """The sum of those of which anything is known; the others are counted, not taken for zero."""
    known = [amount for amount in amounts if amount.known]
    total = nothing("")
    for amount in known:
        total = total.plus(amount)
    missing = len(amounts) - len(known)
    words = f"of {len(known)} incidents" + (f"; of {missing} it cannot be told" if missing else "")
    return Sum(Amount(total.low, total.high, words), len(known), missing)


def alike(cases: Sequence[Case]) -> tuple[str, Sequence[Case]]:
    """The same cases in one unit: GPU-seconds where all that counted ranks know of their GPUs."""
    units = {case.unit for case in cases if case.facts is not None or case.gpus_per_rank}
    if len(units) == 1:
        return units.pop(), cases
    told = [
        case if case.facts is None else replace(case, facts=replace(case.facts, gpus_per_rank=None))
        for case in cases
    ]
    return RANK_SECONDS, told


def totals_to_json(cases: Sequence[Case], since_s: float | None, now_s: float) -> dict[str, Any]:
    """The body of `GET /v1/audit`."""
    unit, cases = alike(cases)
    accounts = [account(case) for case in cases]
    judged = reviews(cases)
    kinds: dict[str, list[Account]] = {}
    for case, one in zip(cases, accounts, strict=True):
        kinds.setdefault(str(case.incident.kind), []).append(one)
    return {
        "since_s": since_s,
        "until_s": now_s,
        "unit": unit,
        **_sums(accounts),
        "outcomes": dict(sorted(Counter(one.outcome for one in accounts).items())),
        "kinds": {kind: _sums(found) for kind, found in sorted(kinds.items())},
        "reviews": {
            "evictions": judged.evictions,
            "right": judged.right,
            "wrong": judged.wrong,
            "unclear": judged.unclear,
            "precision": judged.precision,
            "says": judged.sentence(),
        },
    }


def _sums(accounts: Sequence[Account]) -> dict[str, Any]:
    lost = summed([one.lost for one in accounts])
    saved = summed([one.saved for one in accounts if one.evicted])
    return {
        "incidents": len(accounts),
        "evictions": sum(one.evicted for one in accounts),
        "lost": {**amount_to_json(lost.total), "unknown": lost.unknown},
        "saved": {**amount_to_json(saved.total), "unknown": saved.unknown},
    }
