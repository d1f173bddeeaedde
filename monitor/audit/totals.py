"""Accounts added up over a span of time. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from monitor.audit.account import Account, account
from monitor.audit.amounts import Amount, amount_to_json, nothing
from monitor.audit.case import Case


@dataclass(frozen=True, slots=True)
class Sum:
    """Amounts added up, and of how many nothing could be told."""

    total: Amount
    of: int
    unknown: int


def summed(amounts: Sequence[Amount]) -> Sum:
    """The sum of those of which anything is known; the others are counted, not taken for zero."""
    known = [amount for amount in amounts if amount.known]
    total = nothing("")
    for amount in known:
        total = total.plus(amount)
    missing = len(amounts) - len(known)
    words = f"of {len(known)} incidents" + (f"; of {missing} it cannot be told" if missing else "")
    return Sum(Amount(total.low, total.high, words), len(known), missing)


def totals_to_json(cases: Sequence[Case], since_s: float | None, now_s: float) -> dict[str, Any]:
    """The body of `GET /v1/audit`."""
    accounts = [account(case) for case in cases]
    kinds: dict[str, list[Account]] = {}
    for case, one in zip(cases, accounts, strict=True):
        kinds.setdefault(str(case.incident.kind), []).append(one)
    return {
        "since_s": since_s,
        "until_s": now_s,
        **_sums(accounts),
        "outcomes": dict(sorted(Counter(one.outcome for one in accounts).items())),
        "kinds": {kind: _sums(found) for kind, found in sorted(kinds.items())},
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
