"""Snapshots as what changed since the tick before, and back. Pure.

The first snapshot of a file is told whole. Both sides keep an image of the latest tick; a rank's
image is dropped once it is registered no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, fields
from typing import Any, Final

from monitor.config import KeeperConfig
from monitor.journal import memory, recall
from monitor.journal.wire_rows import (
    ReportDelta,
    ReportImage,
    by_name,
    map_changes,
    record_from_json,
    record_to_json,
)
from monitor.names import RankName, ReplicaId
from monitor.snapshot import (
    Failure,
    LighthouseAway,
    LighthouseView,
    Member,
    Observation,
    Snapshot,
    Unreachable,
)
from monitor.store import eviction_from_json, eviction_to_json
from worker_server.wire import FlightRecord, Identity, parse_identity

_TOLD: Final = frozenset(
    {"now_s", "tick", "lateness_s", "observations", "lighthouse", "records", "evictions"}
)
_NO_CONFIG: Final = KeeperConfig()
_MORE: Final = tuple(one.name for one in fields(Snapshot) if one.name not in _TOLD)
"""What a snapshot has since this was written: told whole, as `memory` tells it."""


class _Told:
    """What is known of one rank."""

    __slots__ = ("identity", "report", "url")

    def __init__(self) -> None:
        self.identity: Identity | None = None
        self.url: str | None = None
        self.report = ReportDelta()


class SnapshotWriter:
    """The writer's side: one for each file."""

    def __init__(self) -> None:
        self._ranks: dict[RankName, _Told] = {}
        self._order: list[RankName] | None = None
        self._lighthouse: LighthouseView | LighthouseAway | None = None
        self._evictions: list[Any] | None = None
        self._more: dict[str, str] = {}

    def write(self, snapshot: Snapshot) -> dict[str, Any]:
        """The snapshot in plain JSON types."""
        plain: dict[str, Any] = {
            "tick": snapshot.tick,
            "now_s": snapshot.now_s,
            "lateness_s": snapshot.lateness_s,
        }
        order = [one.rank for one in snapshot.observations]
        if order != self._order:
            plain["ranks"] = self._order = order
            here = set(order)
            self._ranks = {rank: told for rank, told in self._ranks.items() if rank in here}
        seen = zip(order, snapshot.observations, strict=True)
        plain["seen"] = [self._observation(rank, one) for rank, one in seen]
        if snapshot.lighthouse != self._lighthouse:
            plain["lighthouse"] = _lighthouse(self._lighthouse, snapshot.lighthouse)
            self._lighthouse = snapshot.lighthouse
        if snapshot.records:
            plain["records"] = {rank: _answer(one) for rank, one in snapshot.records.items()}
        evictions = [eviction_to_json(one) for one in snapshot.evictions]
        if evictions != (self._evictions or []):
            plain["evictions"] = evictions
        self._evictions = evictions
        self._add_more(snapshot, plain)
        return plain

    def _observation(self, rank: RankName, seen: Observation) -> dict[str, Any]:
        told = self._ranks.get(rank)
        if told is None:
            told = self._ranks[rank] = _Told()
        report = seen.report
        plain = _away(seen.outcome) if isinstance(seen.outcome, Unreachable) else {}
        if report is not None:
            plain = told.report.write(report)
            if report.identity != seen.identity:
                plain["as"] = by_name(report.identity)
        if seen.identity is not told.identity and seen.identity != told.identity:
            plain["identity"], told.identity = by_name(seen.identity), seen.identity
        if seen.url != told.url:
            plain["url"] = told.url = seen.url
        plain["took_s"] = seen.round_trip_s
        return plain

    def _add_more(self, snapshot: Snapshot, plain: dict[str, Any]) -> None:
        for name in _MORE:
            text = memory.write(memory.freeze(getattr(snapshot, name)), _NO_CONFIG)
            if self._more.get(name) != text:
                self._more[name] = text
                plain.setdefault("more", {})[name] = text


def _away(outcome: Unreachable) -> dict[str, Any]:
    return {"away": [outcome.reason.value, outcome.detail]}


def _answer(answer: FlightRecord | Unreachable) -> dict[str, Any]:
    return _away(answer) if isinstance(answer, Unreachable) else record_to_json(answer)


def _lighthouse(
    old: LighthouseView | LighthouseAway | None, new: LighthouseView | LighthouseAway
) -> dict[str, Any]:
    if isinstance(new, LighthouseAway):
        return {"away": new.reason}
    plain: dict[str, Any] = {"quorum_id": new.quorum_id}
    members = [list(astuple(member)) for member in new.members]
    if not isinstance(old, LighthouseView):
        ages = dict(new.heartbeat_ages_s)
        return {**plain, "members": members, "status": new.status, "ages_s": ages}
    if new.members != old.members:
        plain["members"] = members
    if new.status != old.status:
        plain["status"] = new.status
    part = map_changes(old.heartbeat_ages_s, new.heartbeat_ages_s)
    if part is None:
        plain["ages_s"] = dict(new.heartbeat_ages_s)
    elif part:
        plain["ages_in_s"] = part
    return plain


class SnapshotReader:
    """The reader's side: one for each file."""

    def __init__(self) -> None:
        self._images: dict[str, ReportImage] = {}
        self._identities: dict[str, Any] = {}
        self._known: dict[str, Identity] = {}
        self._urls: dict[str, str] = {}
        self._order: list[str] = []
        self._lighthouse: dict[str, Any] = {}
        self._evictions: list[Any] = []
        self._more: dict[str, Any] = {}

    def read(self, plain: Mapping[str, Any], config: KeeperConfig) -> Snapshot:
        """The snapshot that `SnapshotWriter.write` was given.

        Raises:
            LookupError, TypeError, ValueError, AttributeError: not written by it.
        """
        if "ranks" in plain:
            self._order = [str(rank) for rank in plain["ranks"]]
            here = set(self._order)
            self._images = {rank: one for rank, one in self._images.items() if rank in here}
        if "lighthouse" in plain:
            self._read_lighthouse(plain["lighthouse"])
        if "evictions" in plain:
            self._evictions = plain["evictions"]
        for name, text in plain.get("more", {}).items():
            self._more[str(name)] = recall.read(recall.parsed(text), config)
        seen = zip(self._order, plain["seen"], strict=True)
        return Snapshot(
            now_s=float(plain["now_s"]),
            tick=int(plain["tick"]),
            lateness_s=float(plain["lateness_s"]),
            observations=tuple(self._observation(rank, one) for rank, one in seen),
            lighthouse=_lighthouse_of(self._lighthouse),
            records={
                RankName(str(rank)): _answer_of(one)
                for rank, one in plain.get("records", {}).items()
            },
            evictions=tuple(eviction_from_json(one) for one in self._evictions),
            **{name: value for name, value in self._more.items() if name in _MORE},
        )

    def _observation(self, rank: str, plain: Mapping[str, Any]) -> Observation:
        if "identity" in plain:
            self._identities[rank] = plain["identity"]
            self._known[rank] = parse_identity(plain["identity"])
        if "url" in plain:
            self._urls[rank] = str(plain["url"])
        identity = self._identities[rank]
        outcome: Any
        if "away" in plain:
            outcome = _away_of(plain)
        else:
            image = self._images.get(rank)
            if image is None:
                image = self._images[rank] = ReportImage()
            outcome = image.read(plain, plain.get("as", identity))
        took_s = float(plain["took_s"])
        return Observation(self._known[rank], self._urls[rank], outcome, took_s)

    def _read_lighthouse(self, told: Mapping[str, Any]) -> None:
        if "away" in told:
            self._lighthouse = {"away": str(told["away"])}
            return
        if "away" in self._lighthouse:
            self._lighthouse = {}
        self._lighthouse.update((k, v) for k, v in told.items() if k != "ages_in_s")
        if "ages_in_s" in told:
            self._lighthouse["ages_s"] = {**self._lighthouse["ages_s"], **told["ages_in_s"]}


def _away_of(plain: Mapping[str, Any]) -> Unreachable:
    reason, detail = plain["away"]
    return Unreachable(Failure(reason), str(detail))


def _answer_of(plain: Mapping[str, Any]) -> FlightRecord | Unreachable:
    return _away_of(plain) if "away" in plain else record_from_json(plain)


def _lighthouse_of(held: Mapping[str, Any]) -> LighthouseView | LighthouseAway:
    if "away" in held:
        return LighthouseAway(held["away"])
    return LighthouseView(
        quorum_id=int(held["quorum_id"]),
        members=tuple(
            Member(ReplicaId(str(name)), int(step), *more) for name, step, *more in held["members"]
        ),
        heartbeat_ages_s={ReplicaId(str(k)): float(v) for k, v in held["ages_s"].items()},
        status=str(held["status"]),
    )
