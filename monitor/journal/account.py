"""What a journey over ticks came to: incidents, decisions, and two such accounts compared. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import inf
from typing import Any

from monitor.journal.entries import Told


@dataclass(slots=True)
class Account:
    """Incidents in their latest form and decisions in order, in plain JSON types."""

    incidents: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    decisions: list[Mapping[str, Any]] = field(default_factory=list)

    def take(self, told: Told, tick: int, now_s: float) -> None:
        """One tick."""
        for incident in told.changed:
            self.incidents[str(incident["id"])] = incident
        self.decisions += [{"at_s": now_s, "tick": tick, **one} for one in told.decisions]

    def seed(self, incidents: Iterable[Mapping[str, Any]]) -> None:
        """Incidents from before the first tick."""
        for incident in incidents:
            self.incidents.setdefault(str(incident["id"]), incident)

    def since(self, from_s: float) -> Account:
        """What concerns the time from then on: incidents that were not over, decisions since."""
        return Account(
            {key: one for key, one in self.incidents.items() if _ended_s(one) >= from_s},
            [one for one in self.decisions if one["at_s"] >= from_s],
        )

    def lasting(self) -> list[Mapping[str, Any]]:
        """Incidents that fired or are open, oldest first."""
        found = (
            one
            for one in self.incidents.values()
            if one["milestones"]["firing_s"] is not None or one["state"] != "resolved"
        )
        return sorted(found, key=_first_seen)

    def all(self) -> list[Mapping[str, Any]]:
        """Every incident, oldest first."""
        return sorted(self.incidents.values(), key=_first_seen)

    def of(self, incident_id: str) -> list[Mapping[str, Any]]:
        """Decisions about one incident."""
        return [one for one in self.decisions if one["incident_id"] == incident_id]

    def evictions(self) -> list[Mapping[str, Any]]:
        """Evictions that were decided."""
        return [one for one in self.decisions if one["action"] == "evict"]


def _first_seen(incident: Mapping[str, Any]) -> tuple[float, str]:
    return incident["milestones"]["first_seen_s"], str(incident["id"])


@dataclass(frozen=True, slots=True)
class Side:
    """One incident in one account."""

    id: str
    fired_s: float | None
    evicted_s: float | None
    """When its eviction was first decided."""
    asked: int
    """How many times it was decided."""
    held: str | None
    """The last guard that held an eviction back, while none was decided."""
    resolved_s: float | None
    resolution: str | None


@dataclass(frozen=True, slots=True)
class Pair:
    """The same fault in both accounts, or in one of them."""

    kind: str
    culprits: tuple[str, ...]
    live: Side | None
    now: Side | None
    conjecture: bool = False
    """Whether it was accused by the second account only, after the evictions had parted: what was
    seen then is what the live eviction did, or what one that nobody carried out left undone."""

    @property
    def same(self) -> bool:
        """Whether it was accused and evicted at the same times."""
        live, now = self.live, self.now
        return (
            live is not None
            and now is not None
            and (live.fired_s, live.evicted_s) == (now.fired_s, now.evicted_s)
        )


def compared(live: Account, now: Account) -> list[Pair]:
    """Faults of both accounts side by side, in order of time.

    The same fault is one of the same kind that shares a culprit and overlaps in time; of several
    the one whose beginning is nearest.
    """
    rest = {str(one["id"]): one for one in now.lasting()}
    apart_s = parted_s(live, now)
    pairs: list[tuple[float, Pair]] = []
    for incident in live.lasting():
        other = _nearest(incident, list(rest.values()))
        if other is not None:
            del rest[str(other["id"])]
        pairs.append((_began_s(incident), _pair(incident, other, live, now)))
    for one in rest.values():
        pair = _pair(None, one, live, now)
        after = apart_s is not None and one["milestones"]["first_seen_s"] >= apart_s
        pairs.append((_began_s(one), replace(pair, conjecture=after)))
    return [pair for _, pair in sorted(pairs, key=lambda item: item[0])]


def parted_s(live: Account, now: Account) -> float | None:
    """When the evictions of two accounts first differ: what was seen later is the live one's."""
    mine = [(one["at_s"], one["group"]) for one in now.evictions()]
    theirs = [(one["at_s"], one["group"]) for one in live.evictions()]
    return min((at_s for at_s, _ in set(mine) ^ set(theirs)), default=None)


def _nearest(
    incident: Mapping[str, Any], others: Sequence[Mapping[str, Any]]
) -> Mapping[str, Any] | None:
    near = [
        (abs(_began_s(one) - _began_s(incident)), one)
        for one in others
        if one["kind"] == incident["kind"]
        and _share(one["culprits"], incident["culprits"])
        and _began_s(one) <= _ended_s(incident)
        and _began_s(incident) <= _ended_s(one)
    ]
    return min(near, key=lambda item: item[0])[1] if near else None


def _share(some: Sequence[str], others: Sequence[str]) -> bool:
    """Whether both blame the same: a rank in common, or nobody."""
    return bool(set(some) & set(others)) or not (some or others)


def _began_s(incident: Mapping[str, Any]) -> float:
    return float(min(incident["since_s"], incident["milestones"]["first_seen_s"]))


def _ended_s(incident: Mapping[str, Any]) -> float:
    return inf if (resolved_s := _resolved_s(incident)) is None else resolved_s


def _resolved_s(incident: Mapping[str, Any]) -> float | None:
    times = [float(line["at_s"]) for line in incident["story"] if line["to"] == "resolved"]
    return times[-1] if times else None


def _pair(
    live: Mapping[str, Any] | None, now: Mapping[str, Any] | None, mine: Account, other: Account
) -> Pair:
    one = live or now or {}
    return Pair(
        kind=str(one["kind"]),
        culprits=tuple(one["culprits"]),
        live=None if live is None else _side(live, mine),
        now=None if now is None else _side(now, other),
    )


def _side(incident: Mapping[str, Any], account: Account) -> Side:
    decisions = account.of(str(incident["id"]))
    asked = [one["at_s"] for one in decisions if one["action"] == "evict"]
    guards = [one["guard"] for one in decisions if one["action"] != "evict"]
    return Side(
        id=str(incident["id"]),
        fired_s=incident["milestones"]["firing_s"],
        evicted_s=asked[0] if asked else None,
        asked=len(asked),
        held=None if asked or not guards else str(guards[-1]),
        resolved_s=_resolved_s(incident),
        resolution=incident["resolution"],
    )


def pairs_to_json(pairs: Sequence[Pair]) -> Iterator[dict[str, Any]]:
    """Plain JSON types."""
    for pair in pairs:
        yield {
            "kind": pair.kind,
            "culprits": list(pair.culprits),
            "same": pair.same,
            "conjecture": pair.conjecture,
            "live": None if pair.live is None else asdict(pair.live),
            "what_if": None if pair.now is None else asdict(pair.now),
        }
