"""The lines of a journal as types: a head, then ticks; and their JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from monitor.config import ConfigError, KeeperConfig
from monitor.incident import Incident, incident_from_json, incident_to_json
from monitor.journal.lines import dumped
from monitor.journal.sightings import SnapshotReader
from monitor.names import GroupName, IncidentId
from monitor.pipeline import TickResult
from monitor.policy import DEFAULT, Decision, Evict, PastEviction, Policy
from monitor.policy.reading import policy_from, policy_to_json
from monitor.snapshot import EvictionProgress, Snapshot
from monitor.store import eviction_from_json, eviction_to_json

SCHEMA: Final = 1
_WOULD: Final = ("group", "replica_id", "quarantine")
_UNUSABLE: Final = (
    LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError,
)  # fmt: skip
"""What well-formed JSON that is no journal may lead to."""


class JournalError(Exception):
    """A journal that cannot be used; one line for a person."""


@dataclass(frozen=True, slots=True)
class Head:
    """The first line of a file: all that its ticks are judged with."""

    config: KeeperConfig
    version: str
    """Of the lightkeeper that wrote it."""
    run: str = ""
    """Differs between any two starts of a monitor."""
    number: int = 1
    """Of the file in its run, from 1."""
    began_s: float = 0.0
    """Unix time at which the file was begun."""
    incidents: tuple[Incident, ...] = ()
    """Restored when the run started; told in its first file."""
    evictions: tuple[EvictionProgress, ...] = ()
    policy: Policy = DEFAULT
    would: tuple[PastEviction, ...] = ()
    """Evictions that observe mode had held back before."""
    after_tick: int | None = None
    """The tick after which `memory` was taken; None in the first file of a run."""
    memory: Any = None
    """What the pipeline remembered then, as `memory` writes it."""
    no_memory: str | None = None
    """Why there is none in a later file."""
    lost: int = 0
    """Ticks of this run that were not written, all before this file."""


@dataclass(frozen=True, slots=True)
class Told:
    """What the live monitor made of a tick, in plain JSON types."""

    changed: Sequence[Mapping[str, Any]] = ()
    decisions: Sequence[Mapping[str, Any]] = ()
    wanted: Sequence[str] = ()
    """Ranks whose flight records were asked for."""
    failures: Mapping[str, str] | None = None
    """Detectors that crashed."""
    crash: str | None = None
    """Of the pipeline as a whole: nothing was decided."""


@dataclass(frozen=True, slots=True)
class Tick:
    """One tick: what was seen, and what the live monitor made of it."""

    snapshot: Snapshot
    told: Told


def told(result: TickResult, crash: str | None = None) -> Told:
    """A result as it is compared."""
    return Told(
        changed=[incident_to_json(one) for one in result.changed],
        decisions=[decision_to_json(one) for one in result.decisions],
        wanted=[str(rank) for rank in result.wants_records],
        failures=dict(result.detector_failures) or None,
        crash=crash,
    )


def decision_to_json(decision: Decision) -> dict[str, Any]:
    """A decision in plain JSON types."""
    if isinstance(decision, Evict):
        return {
            "action": "evict",
            "incident_id": decision.incident_id,
            "group": decision.group,
            "replica_id": decision.replica_id,
            "quarantine": list(decision.quarantine),
            "reason": decision.reason,
        }
    held = {
        "action": "hold",
        "incident_id": decision.incident_id,
        "guard": decision.guard.value,
        "reason": decision.reason,
        "release": decision.release,
    }
    if decision.would is None:
        return held
    would = decision_to_json(decision.would)
    return {**held, "action": "would_evict", "would": {k: would[k] for k in _WOULD}}


def told_to_json(value: Told) -> dict[str, Any]:
    """What there is to tell; mostly nothing."""
    return {name: held for one in fields(value) if (held := getattr(value, (name := one.name)))}


def told_from_json(plain: Mapping[str, Any]) -> Told:
    """Inverse of `told_to_json`."""
    return Told(**{one.name: plain[one.name] for one in fields(Told) if one.name in plain})


def tick_text(sighting: Mapping[str, Any], value: Told) -> str:
    """The line of a tick; `sighting` comes from `SnapshotWriter`."""
    plain = {"kind": "tick", **sighting}
    if result := told_to_json(value):
        plain["told"] = result
    return dumped(plain)


def head_text(head: Head, remembered: str | None) -> str:
    """The line of a head; `remembered` is the JSON text of its memory."""
    plain = dumped(
        {
            "kind": "head",
            "schema": SCHEMA,
            "lightkeeper": head.version,
            "run": head.run,
            "file": head.number,
            "began_s": head.began_s,
            "config": asdict(head.config),
            "incidents": [incident_to_json(one) for one in head.incidents],
            "evictions": [eviction_to_json(one) for one in head.evictions],
            "policy": policy_to_json(head.policy),
            "would": [asdict(one) for one in head.would],
            "after_tick": head.after_tick,
            "no_memory": head.no_memory,
            "lost": head.lost,
        }
    )
    return plain if remembered is None else f'{plain[:-1]},"memory":{remembered}}}'


def head_from_json(plain: Any) -> Head:
    """The head of a file.

    Raises:
        JournalError: it is none, or of a newer schema.
    """
    if not isinstance(plain, dict) or plain.get("kind") != "head":
        raise JournalError("no journal of lightkeeper: it does not begin with a head")
    schema = plain.get("schema")
    if schema != SCHEMA:
        raise JournalError(
            f"journal schema {schema}, this lightkeeper reads {SCHEMA}: "
            f"replay it with lightkeeper {plain.get('lightkeeper')} or newer"
        )
    try:
        return _head(plain)
    except _UNUSABLE as exc:
        raise JournalError(f"its head cannot be used: {type(exc).__name__}: {exc}") from exc


def _head(plain: Mapping[str, Any]) -> Head:
    config, known = plain["config"], {one.name for one in fields(KeeperConfig)}
    try:
        options = KeeperConfig.from_options({k: v for k, v in config.items() if k in known})
    except ConfigError as exc:
        raise JournalError(f"its configuration cannot be used here: {exc}") from exc
    after = plain["after_tick"]
    return Head(
        run=str(plain["run"]),
        number=int(plain["file"]),
        config=options,
        version=str(plain["lightkeeper"]),
        began_s=float(plain["began_s"]),
        incidents=tuple(incident_from_json(one) for one in plain["incidents"]),
        evictions=tuple(eviction_from_json(one) for one in plain["evictions"]),
        policy=policy_from(plain.get("policy", {})).policy,  # none before 0.3
        would=tuple(_past(one) for one in plain.get("would", ())),
        after_tick=None if after is None else int(after),
        memory=plain.get("memory"),
        no_memory=plain["no_memory"],
        lost=int(plain["lost"]),
    )


def _past(plain: Mapping[str, Any]) -> PastEviction:
    return PastEviction(
        IncidentId(str(plain["incident_id"])), GroupName(str(plain["group"])),
        float(plain["asked_s"]),
    )  # fmt: skip


def tick_from_json(plain: Any, reader: SnapshotReader, config: KeeperConfig) -> Tick:
    """A tick.

    Raises:
        JournalError: it is none.
    """
    try:
        if plain["kind"] != "tick":
            raise JournalError(f"a line of kind {plain['kind']!r}, expected 'tick'")
        snapshot = reader.read(plain, config)
        return Tick(snapshot, told_from_json(plain.get("told", {})))
    except _UNUSABLE as exc:
        raise JournalError(f"no tick: {type(exc).__name__}: {exc}") from exc


__all__ = [
    "SCHEMA",
    "Head",
    "JournalError",
    "Tick",
    "Told",
    "decision_to_json",
    "head_from_json",
    "head_text",
    "tick_from_json",
    "tick_text",
    "told",
    "told_from_json",
    "told_to_json",
]
