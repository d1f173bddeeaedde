"""What the monitor itself had in hand: the states and records that the verdict rests on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from monitor.dumps.manifest import RECORD
from monitor.evidence.parts import KINDS, Part, Status
from monitor.evidence.whom import NAMED, Whom
from monitor.names import RankName
from monitor.snapshot import Observation, Snapshot, Unreachable
from monitor.view import lighthouse_to_json
from worker_server.wire import FlightRecord, StateReport, to_json

FLEET_MAX_BYTES: Final = 4 * 1024 * 1024
"""About 6,000 ranks; those concerned come first, how many were left out is told."""
_RECORDS_KEPT: Final = 256
"""Of ranks whose flight records the detectors asked for; 32 at most come with a tick."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What was known when a moment began; immutable, so that a thread may read it."""

    snapshot: Snapshot
    lost: Mapping[RankName, tuple[float, StateReport]] = field(default_factory=dict)
    """Of each rank that is silent now: its last report, and when it came."""
    records: Mapping[RankName, tuple[float, FlightRecord]] = field(default_factory=dict)


class Memory:
    """The last that was seen of everybody. Used by the tick's thread only."""

    def __init__(self) -> None:
        self._before: Snapshot | None = None
        self._lost: dict[RankName, tuple[float, StateReport]] = {}
        self._unknown: set[RankName] = set()
        """Silent since we know them."""
        self._records: dict[RankName, tuple[float, FlightRecord]] = {}

    def push(self, snapshot: Snapshot) -> Seen:
        """Take in one tick; costs little while nobody falls silent."""
        silent = {one.rank for one in snapshot.observations if one.report is None}
        lost = {rank: self._lost[rank] for rank in silent & self._lost.keys()}
        if self._before is not None and silent - lost.keys() - self._unknown:
            for one in self._before.observations:
                if one.report is not None and one.rank in silent:
                    lost[one.rank] = (self._before.now_s, one.report)
        self._before, self._lost, self._unknown = snapshot, lost, silent - lost.keys()
        fresh = {
            rank: (snapshot.now_s, record)
            for rank, record in snapshot.records.items()
            if isinstance(record, FlightRecord)
        }
        if fresh:
            kept = {rank: held for rank, held in self._records.items() if rank not in fresh}
            self._records = dict([*kept.items(), *fresh.items()][-_RECORDS_KEPT:])
        return Seen(snapshot, lost, self._records)


def records_in_hand(seen: Seen, whom: Whom) -> list[Part]:
    """The flight records that the detectors had of those concerned, all of one tick.

    Of that in which the first of them was read, a culprit: others were read since for what they do.
    """
    held = {one.rank: seen.records[one.rank] for one in whom.asked if one.rank in seen.records}
    of_now = {
        one.rank: held[one.rank]
        for one in whom.asked
        if one.rank in held and held[one.rank][1].identity.incarnation == one.identity.incarnation
    }
    first_s = next((at_s for at_s, _ in of_now.values()), None)
    kind = next(kind for kind in KINDS if kind.name == RECORD)
    return [
        Part(rank, kind, Status.OK, _dump(to_json(record)), taken_s=at_s)
        for rank, (at_s, record) in of_now.items()
        if at_s == first_s
    ]


def fleet_json(seen: Seen, whom: Whom) -> tuple[bytes, dict[str, Any]]:
    """`fleet.json`, the states of all ranks as last seen, and what the manifest says of it."""
    snapshot = seen.snapshot
    first = {one.rank for one in whom.asked}
    order = [*whom.asked, *(one for one in snapshot.observations if one.rank not in first)]
    rows: list[bytes] = []
    left = FLEET_MAX_BYTES
    for one in order:
        row = _dump(_rank(seen, one))
        if len(row) > left:
            break
        rows.append(row)
        left -= len(row)
    out = order[len(rows) :]
    head = {
        "schema": 1,
        "now_s": snapshot.now_s,
        "tick": snapshot.tick,
        "lateness_s": snapshot.lateness_s,
        "lighthouse": lighthouse_to_json(snapshot.lighthouse),
    }
    body = _dump(head)[:-1] + b',"ranks":[\n' + b",\n".join(rows) + b"\n]}\n"
    told = {
        "ranks": len(rows),
        "left_out": len(out),
        "left_out_ranks": [one.rank for one in out[:NAMED]],
    }
    return body, {"seen_s": snapshot.now_s, "tick": snapshot.tick, **told}


def _rank(seen: Seen, one: Observation) -> dict[str, Any]:
    at_s, report = seen.lost.get(one.rank, (None, None))
    if one.report is not None:
        at_s, report = seen.snapshot.now_s, one.report
    away = one.outcome if isinstance(one.outcome, Unreachable) else None
    return {
        "rank": one.rank,
        "url": one.url,
        "seen_s": at_s,
        "state": None if report is None else to_json(report),
        "unreachable": None
        if away is None
        else {"reason": str(away.reason), "detail": away.detail},
    }


def _dump(body: Any) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()
