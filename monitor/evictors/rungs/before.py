"""What comes before anybody is asked to end anything: evidence, and the deny list of launchers."""

from __future__ import annotations

from monitor.clock import Clock
from monitor.evictors.order import Order
from monitor.quarantine import Quarantine
from monitor.snapshot import Rung, RungOutcome, RungResult
from monitor.store import QuarantineEntry


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
    """Deny the hosts of the order to launchers; None when it names none."""
    evict, now_s = order.evict, clock.now_s()
    for host in evict.quarantine:
        quarantine.add(
            QuarantineEntry(
                name=host,
                reason=evict.reason,
                author=order.author,
                since_s=now_s,
                until_s=None if last_s is None else now_s + last_s,
                incident_id=evict.incident_id,
            )
        )
    if not evict.quarantine:
        return None
    detail = f"launchers are refused on {', '.join(evict.quarantine)}"
    return RungOutcome(Rung.QUARANTINE, now_s, clock.now_s(), detail, RungResult.WORKED)
