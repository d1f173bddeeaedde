"""What comes before anybody is asked to end anything: evidence, and the deny list of launchers."""

from __future__ import annotations

from monitor.clock import Clock
from monitor.evictors.order import Order
from monitor.quarantine import Quarantine
from monitor.snapshot import Rung, RungOutcome, RungResult
from monitor.store import QuarantineEntry, Scope


def wait_for_evidence(order: Order, clock: Clock) -> RungOutcome | None:
    """What the group says is saved before it is gone; a crash of that stops no eviction."""
    if order.evidence is None:
        return None
    began_s, result = clock.now_s(), RungResult.WORKED
    try:
        said = order.evidence()
    except Exception as exc:  # noqa: BLE001 - evidence is worth less than the eviction
        said, result = f"failed: {type(exc).__name__}: {exc}", RungResult.FAILED
    return RungOutcome(Rung.EVIDENCE, began_s, clock.now_s(), said, result)


def quarantine_hosts(
    order: Order, quarantine: Quarantine, clock: Clock, last_s: float | None
) -> RungOutcome | None:
    """Deny launchers the hosts of the order, and the group where it is kept out; None: neither."""
    evict, now_s = order.evict, clock.now_s()
    denied: list[tuple[Scope, str]] = [(Scope.HOST, host) for host in evict.quarantine]
    denied += [(Scope.GROUP, group) for group in evict.keep_out]
    for scope, name in denied:
        quarantine.add(
            QuarantineEntry(
                name=name,
                reason=evict.reason,
                author=order.author,
                since_s=now_s,
                until_s=None if last_s is None else now_s + last_s,
                incident_id=evict.incident_id,
                scope=scope,
            )
        )
    if not denied:
        return None
    said = f"launchers are refused on {', '.join(evict.quarantine)}" if evict.quarantine else ""
    kept = f"launchers may not start {', '.join(evict.keep_out)}" if evict.keep_out else ""
    detail = "; ".join(filter(None, (said, kept)))
    return RungOutcome(Rung.QUARANTINE, now_s, clock.now_s(), detail, RungResult.WORKED)
