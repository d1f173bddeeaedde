"""What a host's history says about it: repeat offenders, and how long they stay out. Pure.

A few hosts cause many of a cluster's failures while every health check passes: Meta calls them
lemon nodes and finds them by what happened on them over 28 days (A. Kokolis et al., "Revisiting
Reliability in Large-Scale Machine Learning Research Clusters", HPCA 2025, section IV). Its signals,
and what a monitor of one job sees of them:

    excl_jobid_count               `exclusions`: times that a person quarantined it; shown only, for
                                   it says what people believe
    out_count                      `quarantines`: times that it was taken out, by anybody
    multi_node_node_fails          `wide`: incidents on it that held up other replica groups
    single_node_node_fails         `narrow`: incidents on it that affected its own group alone
    single_node_node_failure_rate  `failed_readmissions` of `readmissions`: how often letting it in
                                   again went wrong
    xid_cnt                        `testified`: what the machine itself said at its faults
    tickets                        not visible here

Also counted: incidents by kind, and evictions. A host is a lemon when lightkeeper has quarantined
it often enough, when it failed often enough right after readmission, or when it had enough separate
faults; the thresholds and their reasons are in `monitor.model.config`. The mark quarantines nobody
by itself: it makes the next quarantine last until a person releases the host.

Not blamed on a host: kinds that blame the program (a mismatch, a deadlock, lag, a Lighthouse that
is away); a first death, which may be the program's; an incident whose signature, which holds the
rank, was also seen with that rank on another host: the fault moves with the program.

A release by a person means "repaired": nothing from before counts. But when the host fails again
within `readmission_hours`, it was not, and all of it counts again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import KEEPER, Change, QuarantineEvent, Scope
from lightkeeper.monitor.model.names import Host, IncidentId
from lightkeeper.monitor.model.units import grouped, span
from lightkeeper.monitor.model.verdict import Kind

_DAY_S: Final = 86_400.0
_HOUR_S: Final = 3600.0
_BLAMES_HOST: Final = frozenset({Kind.NOT_ENTERED, Kind.STRAGGLER, Kind.DEAD, Kind.STATE_CORRUPT})
"""Kinds for which policy may quarantine a host."""


@dataclass(frozen=True, slots=True)
class HostRecord:
    """One host over the window."""

    host: Host
    incidents: Mapping[str, int] = field(default_factory=dict)
    """Kind of incident -> times that its culprit ran here."""
    wide: int = 0
    narrow: int = 0
    evictions: int = 0
    quarantines: int = 0
    exclusions: int = 0
    readmissions: int = 0
    """Times that it was let in again, by a person or by expiry."""
    failed_readmissions: int = 0
    offences: int = 0
    """Separate faults of the host itself that count today."""
    counted_quarantines: int = 0
    """By lightkeeper, as far as they count today."""
    reset_s: float | None = None
    """When a person released it, so that nothing from before counts; None: the whole window
    counts."""
    readmitted_s: float | None = None
    """When it was last let in again."""
    readmitted_by: str = ""
    testified: tuple[str, ...] = ()
    """What its machine said when a fault was blamed on it, newest first, each once."""
    lemon: str | None = None
    """Why it is a lemon; None when it is not."""

    @property
    def clean(self) -> bool:
        """Whether nobody accused or excluded it within the window."""
        return not (self.incidents or self.quarantines or self.evictions)


def records(
    events: Iterable[QuarantineEvent], now_s: float, config: KeeperConfig
) -> dict[Host, HostRecord]:
    """The record of every host that these events name; events outside the window do not count."""
    since_s = now_s - config.lemon_window_days * _DAY_S
    by_host = grouped(
        (Host(event.name), event)
        for event in events
        if event.scope is Scope.HOST and since_s < event.at_s <= now_s
    )
    seen = _incidents_by_signature(by_host)
    return {
        host: _record(host, sorted(events, key=lambda event: event.at_s), seen, config)
        for host, events in sorted(by_host.items())
    }


def length_s(record: HostRecord, first_s: float | None, config: KeeperConfig) -> float | None:
    """How long a quarantine by lightkeeper that begins now lasts; None: until a person releases it.

    `record` includes this quarantine. `first_s`: length of a host's first.
    """
    if record.lemon is not None or first_s is None:
        return None
    return first_s * (config.quarantine_again_factor if record.counted_quarantines > 1 else 1.0)


def note_on(record: HostRecord, now_s: float, config: KeeperConfig) -> str:
    """What a person should know of the host's past when it is quarantined; may be empty."""
    said = []
    if record.readmitted_s is not None:
        ago_s = now_s - record.readmitted_s
        if ago_s <= config.readmission_hours * _HOUR_S:
            said.append(f"again {span(ago_s)} after {record.readmitted_by} let it in")
    if record.lemon is not None:
        said.append(f"a lemon: {record.lemon}; out until a person releases it")
    elif record.counted_quarantines > 1:
        days = config.lemon_window_days
        said.append(f"{record.counted_quarantines} quarantines in {days:g} days")
    if record.testified:
        said.append(f"its machine testified: {record.testified[0]}")
    return "; ".join(said)


_Seen = Mapping[str, Mapping[Host, frozenset[IncidentId]]]


def _incidents_by_signature(by_host: Mapping[Host, Sequence[QuarantineEvent]]) -> _Seen:
    seen: dict[str, dict[Host, frozenset[IncidentId]]] = {}
    for host, events in by_host.items():
        for event in events:
            if event.change is Change.ACCUSED and event.signature and event.incident_id is not None:
                hosts = seen.setdefault(event.signature, {})
                hosts[host] = hosts.get(host, frozenset()) | {event.incident_id}
    return seen


def _moves(event: QuarantineEvent, seen: _Seen) -> bool:
    """Whether another incident of the same signature was seen on another host, and this machine
    testified nothing.
    """
    if event.testified:
        return False
    hosts = seen.get(event.signature, {})
    own = hosts.get(Host(event.name), frozenset())
    return any(ids - own for host, ids in hosts.items() if host != event.name)


def _record(
    host: Host, events: Sequence[QuarantineEvent], seen: _Seen, config: KeeperConfig
) -> HostRecord:
    accused = [event for event in events if event.change is Change.ACCUSED]
    added = [event for event in events if event.change is Change.ADDED]
    back = [event for event in events if event.change in (Change.RELEASED, Change.EXPIRED)]
    faults = [event for event in accused if event.kind in _BLAMES_HOST and not _moves(event, seen)]
    within_s = config.readmission_hours * _HOUR_S
    failed = [event for event in back if _failed(event, back, faults, within_s)]
    reset_s = max(
        (event.at_s for event in back if event.change is Change.RELEASED and event not in failed),
        default=None,
    )
    since_s = float("-inf") if reset_s is None else reset_s
    counted = sum(event.author == KEEPER and event.at_s > since_s for event in added)
    offences = _separate([event for event in faults if event.at_s > since_s], config.lemon_apart_s)
    failures = sum(event.at_s > since_s for event in failed)
    return HostRecord(
        host=host,
        incidents=dict(sorted(Counter(str(event.kind) for event in accused).items())),
        wide=sum(event.wide for event in accused),
        narrow=sum(not event.wide for event in accused),
        evictions=sum(event.change is Change.EVICTED for event in events),
        quarantines=len(added),
        exclusions=sum(event.author != KEEPER for event in added),
        readmissions=len(back),
        failed_readmissions=len(failed),
        offences=offences,
        counted_quarantines=counted,
        reset_s=reset_s,
        readmitted_s=back[-1].at_s if back else None,
        readmitted_by=_who(back[-1]) if back else "",
        testified=_testified(accused),
        lemon=_lemon(counted, failures, offences, config),
    )


def _testified(accused: Sequence[QuarantineEvent]) -> tuple[str, ...]:
    said = (event.testified for event in reversed(accused))
    return tuple(dict.fromkeys(filter(None, said)))


def _failed(
    back: QuarantineEvent,
    others: Sequence[QuarantineEvent],
    faults: Sequence[QuarantineEvent],
    within_s: float,
) -> bool:
    """Whether the host failed again soon after this readmission, and before the next one."""
    later = min((other.at_s for other in others if other.at_s > back.at_s), default=float("inf"))
    end_s = min(later, back.at_s + within_s)
    return any(back.at_s < fault.at_s <= end_s for fault in faults)


def _separate(faults: Sequence[QuarantineEvent], apart_s: float) -> int:
    """Number of faults, those close together counted once; a first death does not count."""
    count, last_s, deaths = 0, float("-inf"), 0
    for fault in faults:
        deaths += fault.kind == Kind.DEAD
        if fault.kind == Kind.DEAD and deaths == 1:
            continue
        if fault.at_s - last_s >= apart_s:
            count, last_s = count + 1, fault.at_s
    return count


def _lemon(quarantines: int, failures: int, offences: int, config: KeeperConfig) -> str | None:
    reasons = []
    if quarantines >= config.lemon_quarantines:
        reasons.append(f"{quarantines} quarantines")
    if failures >= config.lemon_readmissions:
        reasons.append(f"failed {failures} times soon after it was let in")
    if offences >= config.lemon_faults:
        reasons.append(f"{offences} separate faults")
    return f"{', '.join(reasons)} in {config.lemon_window_days:g} days" if reasons else None


def _who(back: QuarantineEvent) -> str:
    return "the end of its quarantine" if back.change is Change.EXPIRED else back.author
