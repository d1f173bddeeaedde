"""The lines of a journal (a head, then ticks) as types and as JSON. Pure."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, fields
from enum import StrEnum
from operator import attrgetter
from typing import Any, Final

from msgspec import NODEFAULT, structs, to_builtins
from msgspec.json import encode

from monitor.decide.pipeline import TickResult
from monitor.decide.rules import DEFAULT, Policy, policy_from, policy_to_json
from monitor.journal import memory
from monitor.model.config import ConfigError, KeeperConfig
from monitor.model.eviction import Decision, Evict, Eviction, eviction_from_json
from monitor.model.incident import Incident, incident_from_json, incident_to_json
from monitor.model.names import RankName, ReplicaId
from monitor.model.observation import (
    Failure,
    LighthouseAway,
    LighthouseView,
    Member,
    Observation,
    Snapshot,
    Unreachable,
)
from monitor.model.plain import from_plain, to_plain
from worker_server.wire import (
    SCHEMA,
    FlightRecord,
    Identity,
    Process,
    StateReport,
    StepState,
    parse_flight_record,
    parse_identity,
    parse_state,
)

# -- lines -------------------------------------------------------------------------------------
# Lines of JSON with a checksum each, in one gzip stream. Pure: bytes in, bytes out.
#
# The standard library's zlib is enough. The stream is flushed after every tick, so that after a
# SIGKILL it can be read up to the last tick. Any `zcat` reads it. zstandard would save a tenth of
# what is mostly digits, which is not worth a dependency of the monitor. gzip's own checksum comes
# only at the end, so each line has one.

LEVEL: Final = 6
"""Compression level, 1 to 9. At 1,000 ranks, 3 takes 3 ms less a tick, outside the GIL, and 25 %
more bytes; 9 saves 4 to 10 % and takes twice the time."""
_GZIP: Final = 31
LINE_MAX_BYTES: Final = 1 << 30
"""A longer line is not ours: a few compressed bytes can expand to fill any memory."""
_PIECE: Final = 1024
_AT_ONCE: Final = 1 << 20
_MARK: Final = 9


class LineError(ValueError):
    """A journal cannot be read any further; the message is one line."""


def dumped(value: Any, *, odd: bool = False) -> str:
    """Compact JSON text; wire types are allowed in `value`. `odd`: it may hold infinite numbers."""
    if not odd:
        with suppress(UnicodeEncodeError):  # a lone surrogate in a sentence on a record from torch
            return encode(value).decode()
    return json.dumps(to_builtins(value), separators=(",", ":"))


class Packer:
    """Turns JSON texts into the bytes of a file."""

    def __init__(self, level: int = LEVEL) -> None:
        self._stream = zlib.compressobj(level, zlib.DEFLATED, _GZIP)

    def line(self, text: str) -> bytes:
        """One line, readable as soon as it is written."""
        body = text.encode()
        marked = b"%08x %s\n" % (zlib.crc32(body), body)
        return self._stream.compress(marked) + self._stream.flush(zlib.Z_SYNC_FLUSH)

    def end(self) -> bytes:
        return self._stream.flush(zlib.Z_FINISH)


class End(StrEnum):
    WHOLE = "whole"
    CUT = "cut"
    """It ends in the middle, as after a SIGKILL or a power cut."""


class Unpacker:
    """Turns the bytes of a file into parsed JSON; feed it pieces, then ask how it ended."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(_GZIP)
        self._rest = bytearray()
        self._searched = 0
        self._follows = False

    def feed(self, data: bytes) -> Iterator[Any]:
        """The lines that are complete so far.

        Raises:
            LineError: the bytes are damaged; lines before the damage were yielded.
        """
        for start in range(0, len(data), _PIECE):
            piece = data[start : start + _PIECE]
            before = self._stream.copy()
            try:
                yield from self._lines(self._inflated(piece))
            except zlib.error:  # keep what precedes the damage in this piece
                self._stream = before
                yield from self._bytewise(piece)

    def end(self) -> End:
        """How the file ended; call this after the last piece."""
        return End.WHOLE if self._stream.eof and not self._rest else End.CUT

    def _inflated(self, piece: bytes) -> bytes:
        """The decompressed bytes.

        Raises:
            zlib.error: they are damaged.
        """
        out = bytearray()
        while not self._stream.eof:
            inflated = self._stream.decompress(piece, _AT_ONCE)
            out += inflated
            piece = self._stream.unconsumed_tail
            if not piece and len(inflated) < _AT_ONCE:
                break
        self._follows = self._follows or bool(self._stream.unused_data) or bool(piece)
        return bytes(out)

    def _bytewise(self, piece: bytes) -> Iterator[Any]:
        for place in range(len(piece)):
            try:
                inflated = self._inflated(piece[place : place + 1])
            except zlib.error as exc:
                raise LineError(f"damaged: {exc}") from exc
            yield from self._lines(inflated)

    def _lines(self, more: bytes) -> Iterator[Any]:
        self._rest += more
        while (stop := self._rest.find(b"\n", self._searched)) >= 0:
            line = bytes(self._rest[:stop])
            del self._rest[: stop + 1]
            self._searched = 0
            yield _parsed(line)
        if self._follows:
            raise LineError("something follows the end of the journal")
        self._searched = len(self._rest)
        if len(self._rest) > LINE_MAX_BYTES:
            raise LineError(f"a line of more than {LINE_MAX_BYTES >> 20} MiB")


def _parsed(line: bytes) -> Any:
    body = line[_MARK:]
    if line[:_MARK] != b"%08x " % zlib.crc32(body):
        raise LineError("damaged: a line does not have its checksum")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as exc:
        raise LineError(f"damaged: a line is no JSON: {exc}") from exc


# -- wire rows ---------------------------------------------------------------------------------
# Reports of ranks as rows of numbers.
#
# Rows have the names of the wire (`worker_server.wire`) and are read by the wire's own parser, so
# that a journal is checked as strictly as a WorkerServer's answer. They are not written by the
# wire's writer: that one rounds, and a replay needs the exact numbers.


COLUMNS: Final[Mapping[str, Sequence[str]]] = {
    "process": Process.__struct_fields__,
    "step": StepState.__struct_fields__,
}
"""Names of the numbers in a row."""
_MORE: Final = tuple(
    (part.name, part.default if part.default_factory is NODEFAULT else part.default_factory())
    for part in structs.fields(StateReport)
    if part.name not in ("identity", "process", "step", "heads")
)
"""Parts of a report that are usually empty."""
_REST: Final = attrgetter(*(name for name, _ in _MORE))
_USUAL: Final = tuple(usual for _, usual in _MORE)


def report_row(report: StateReport) -> list[Any]:
    """Process, step and heads, each a row (a head is one already), then the other parts."""
    row: list[Any] = [
        structs.astuple(report.process),
        None if report.step is None else structs.astuple(report.step),
        report.heads,
    ]
    if _REST(report) != _USUAL:
        row.append({n: value for n, usual in _MORE if (value := getattr(report, n)) != usual})
    return row


def report_from_row(
    row: Any, identity: Mapping[str, Any], columns: Mapping[str, Sequence[str]]
) -> StateReport:
    """Inverse of `report_row`; `columns`: `COLUMNS` when the row was written.

    Raises:
        WireError: the result is not a report.
        LookupError, TypeError, ValueError: `report_row` did not write it.
    """
    process, step, heads, *more = row
    plain: dict[str, Any] = {
        "schema": SCHEMA,
        "identity": identity,
        "process": dict(zip(columns["process"], process, strict=True)),
        "step": None if step is None else dict(zip(columns["step"], step, strict=True)),
        "heads": heads,
    }
    return parse_state({**plain, **(more[0] if more else {})})


# -- sightings ---------------------------------------------------------------------------------
# Snapshots as rows, and back.
#
# The first snapshot of a file is written whole. Later ones repeat a rank's identity and URL, the
# Lighthouse's page and evictions only if they changed. Reports are written whole each time: most of
# their numbers change in every tick, and the rest compresses to nothing.

_TOLD: Final = frozenset(
    {"now_s", "tick", "lateness_s", "observations", "lighthouse", "records", "evictions"}
)
_NO_CONFIG: Final = KeeperConfig()
_MORE_SEEN: Final = tuple(part.name for part in fields(Snapshot) if part.name not in _TOLD)
"""Snapshot fields added later: written whole if changed, in the format of `memory`."""


class _Written:
    __slots__ = ("answered_as", "identity", "url")

    def __init__(self) -> None:
        self.identity: Identity | None = None
        self.answered_as: Identity | None = None
        """Compared with `is`: comparing ten fields a rank in each tick would cost time."""
        self.url: str | None = None


class SnapshotWriter:
    """Writes snapshots; one for each file."""

    def __init__(self) -> None:
        self._ranks: dict[RankName, _Written] = {}
        self._order: list[RankName] | None = None
        self._lighthouse: LighthouseView | LighthouseAway | None = None
        self._evictions: list[Any] | None = None
        self._more: dict[str, str] = {}

    def write(self, snapshot: Snapshot) -> dict[str, Any]:
        plain: dict[str, Any] = {
            "tick": snapshot.tick,
            "now_s": snapshot.now_s,
            "lateness_s": snapshot.lateness_s,
        }
        order = list(snapshot.by_rank)
        if self._order is None:
            plain["columns"] = COLUMNS
        if order != self._order:
            plain["ranks"] = self._order = order
            present = set(order)
            self._ranks = {rank: before for rank, before in self._ranks.items() if rank in present}
        seen = zip(order, snapshot.observations, strict=True)
        plain["seen"] = [self._observation(rank, observation) for rank, observation in seen]
        if snapshot.lighthouse != self._lighthouse:
            plain["lighthouse"] = _lighthouse(self._lighthouse, snapshot.lighthouse)
            self._lighthouse = snapshot.lighthouse
        if snapshot.records:
            plain["records"] = {rank: _answer(record) for rank, record in snapshot.records.items()}
        evictions = [to_plain(eviction) for eviction in snapshot.evictions]
        if evictions != (self._evictions or []):
            plain["evictions"] = evictions
        self._evictions = evictions
        self._add_more(snapshot, plain)
        return plain

    def _observation(self, rank: RankName, seen: Observation) -> dict[str, Any]:
        before = self._ranks.get(rank)
        if before is None:
            before = self._ranks[rank] = _Written()
        report = seen.report
        plain = _away(seen.outcome) if isinstance(seen.outcome, Unreachable) else {}
        if report is not None:
            plain = {"report": report_row(report)}
            same = report.identity is before.answered_as and seen.identity is before.identity
            if same or report.identity == seen.identity:
                before.answered_as = report.identity
            else:
                plain["as"], before.answered_as = report.identity, None
        if seen.identity is not before.identity and seen.identity != before.identity:
            plain["identity"] = seen.identity
        before.identity = seen.identity
        if seen.url != before.url:
            plain["url"] = before.url = seen.url
        plain["took_s"] = seen.round_trip_s
        return plain

    def _add_more(self, snapshot: Snapshot, plain: dict[str, Any]) -> None:
        for name in _MORE_SEEN:
            text = memory.write(memory.freeze(getattr(snapshot, name)), _NO_CONFIG)
            if self._more.get(name) != text:
                self._more[name] = text
                plain.setdefault("more", {})[name] = text


def _away(outcome: Unreachable) -> dict[str, Any]:
    return {"away": [outcome.reason.value, outcome.detail]}


def _answer(answer: FlightRecord | Unreachable) -> dict[str, Any]:
    if isinstance(answer, Unreachable):
        return _away(answer)
    return {"schema": SCHEMA, **to_builtins(answer)}  # nothing rounded or left out


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
    now, before = new.heartbeat_ages_s, old.heartbeat_ages_s
    if list(before) != list(now)[: len(before)]:  # the order counts: sums depend on it
        plain["ages_s"] = now
    elif changed := {key: age_s for key, age_s in now.items() if before.get(key) != age_s}:
        plain["ages_in_s"] = changed
    return plain


class SnapshotReader:
    """Reads snapshots; one for each file."""

    def __init__(self) -> None:
        self._columns: Mapping[str, Sequence[str]] = COLUMNS
        self._identities: dict[str, Any] = {}
        self._known: dict[str, Identity] = {}
        self._urls: dict[str, str] = {}
        self._order: list[str] = []
        self._lighthouse: dict[str, Any] = {}
        self._evictions: list[Any] = []
        self._more: dict[str, Any] = {}

    def read(self, plain: Mapping[str, Any], config: KeeperConfig) -> Snapshot:
        """The snapshot that `SnapshotWriter.write` got.

        Raises:
            LookupError, TypeError, ValueError, AttributeError: it did not write this.
        """
        if "columns" in plain:
            self._columns = plain["columns"]
        if "ranks" in plain:
            self._order = [str(rank) for rank in plain["ranks"]]
        if "lighthouse" in plain:
            self._read_lighthouse(plain["lighthouse"])
        if "evictions" in plain:
            self._evictions = plain["evictions"]
        for name, text in plain.get("more", {}).items():
            self._more[str(name)] = memory.read(json.loads(text), config)
        seen = zip(self._order, plain["seen"], strict=True)
        return Snapshot(
            now_s=float(plain["now_s"]),
            tick=int(plain["tick"]),
            lateness_s=float(plain["lateness_s"]),
            observations=tuple(self._observation(rank, seen) for rank, seen in seen),
            lighthouse=_lighthouse_of(self._lighthouse),
            records={
                RankName(str(rank)): _away_of(record)
                if "away" in record
                else parse_flight_record(record)
                for rank, record in plain.get("records", {}).items()
            },
            evictions=tuple(eviction_from_json(eviction) for eviction in self._evictions),
            **{name: value for name, value in self._more.items() if name in _MORE_SEEN},
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
            outcome = report_from_row(plain["report"], plain.get("as", identity), self._columns)
        took_s = float(plain["took_s"])
        return Observation(self._known[rank], self._urls[rank], outcome, took_s)

    def _read_lighthouse(self, lighthouse: Mapping[str, Any]) -> None:
        if "away" in lighthouse:
            self._lighthouse = {"away": str(lighthouse["away"])}
            return
        if "away" in self._lighthouse:
            self._lighthouse = {}
        self._lighthouse.update((k, v) for k, v in lighthouse.items() if k != "ages_in_s")
        if "ages_in_s" in lighthouse:
            self._lighthouse["ages_s"] = {**self._lighthouse["ages_s"], **lighthouse["ages_in_s"]}


def _away_of(plain: Mapping[str, Any]) -> Unreachable:
    reason, detail = plain["away"]
    return Unreachable(Failure(reason), str(detail))


def _lighthouse_of(plain: Mapping[str, Any]) -> LighthouseView | LighthouseAway:
    if "away" in plain:
        return LighthouseAway(plain["away"])
    return LighthouseView(
        quorum_id=int(plain["quorum_id"]),
        members=tuple(
            Member(ReplicaId(str(name)), int(step), *more) for name, step, *more in plain["members"]
        ),
        heartbeat_ages_s={ReplicaId(str(k)): float(v) for k, v in plain["ages_s"].items()},
        status=str(plain["status"]),
    )


# -- entries -----------------------------------------------------------------------------------

JOURNAL_SCHEMA: Final = 2
_WOULD: Final = ("group", "replica_id", "quarantine")
_UNUSABLE: Final = (
    LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError,
)  # fmt: skip
"""Errors from well-formed JSON that is not a journal."""


class JournalError(Exception):
    """A journal cannot be used; the message is one line for a person."""


@dataclass(frozen=True, slots=True)
class Head:
    """The first line of a file: everything its ticks are judged with."""

    config: KeeperConfig
    version: str
    """Version of the lightkeeper that wrote the file."""
    run: str = ""
    """Unique to each start of a monitor."""
    number: int = 1
    """Number of the file in its run, from 1."""
    began_s: float = 0.0
    """Unix time at which the file began."""
    incidents: tuple[Incident, ...] = ()
    """Incidents restored when the run started; only in its first file."""
    evictions: tuple[Eviction, ...] = ()
    policy: Policy = DEFAULT
    would: tuple[Eviction, ...] = ()
    """Evictions that observe mode held back earlier."""
    after_tick: int | None = None
    """The tick after which `memory` was taken; None in the first file of a run."""
    memory: Any = None
    """The pipeline's memory after that tick, as `monitor.journal.memory` writes it."""
    no_memory: str | None = None
    """Why a later file has no memory."""
    lost: int = 0
    """Ticks of this run that were not written, all before this file."""


@dataclass(frozen=True, slots=True)
class TickOutcome:
    """What the live monitor decided in a tick, in plain JSON types."""

    changed: Sequence[Mapping[str, Any]] = ()
    decisions: Sequence[Mapping[str, Any]] = ()
    wanted: Sequence[str] = ()
    """Ranks whose flight records were requested."""
    failures: Mapping[str, str] | None = None
    """Detectors that crashed."""
    crash: str | None = None
    """Why the whole pipeline crashed; nothing was decided then."""


@dataclass(frozen=True, slots=True)
class Tick:
    """One tick: what was seen, and what the live monitor decided."""

    snapshot: Snapshot
    outcome: TickOutcome


def outcome_of(result: TickResult, crash: str | None = None) -> TickOutcome:
    return TickOutcome(
        changed=[incident_to_json(incident) for incident in result.changed],
        decisions=[decision_to_json(decision) for decision in result.decisions],
        wanted=[str(rank) for rank in result.wants_records],
        failures=dict(result.detector_failures) or None,
        crash=crash,
    )


def decision_to_json(decision: Decision) -> dict[str, Any]:
    if isinstance(decision, Evict):
        return {
            "action": "evict",
            "incident_id": decision.incident_id,
            "group": decision.group,
            "replica_id": decision.replica_id,
            "quarantine": list(decision.quarantine),
            "reason": decision.reason,
        }
    hold = {
        "action": "hold",
        "incident_id": decision.incident_id,
        "guard": decision.guard.value,
        "reason": decision.reason,
        "release": decision.release,
    }
    if decision.would is None:
        return hold
    would = decision_to_json(decision.would)
    return {**hold, "action": "would_evict", "would": {k: would[k] for k in _WOULD}}


def outcome_to_json(outcome: TickOutcome) -> dict[str, Any]:
    """Only the fields that are not empty: in most ticks, none."""
    names = (part.name for part in fields(outcome))
    return {name: value for name in names if (value := getattr(outcome, name))}


def outcome_from_json(plain: Mapping[str, Any]) -> TickOutcome:
    names = {part.name for part in fields(TickOutcome)}
    return TickOutcome(**{name: value for name, value in plain.items() if name in names})


def tick_text(sighting: Mapping[str, Any], outcome: TickOutcome) -> str:
    """The line of a tick; `sighting` comes from `SnapshotWriter`."""
    plain = {"kind": "tick", **sighting}
    if result := outcome_to_json(outcome):
        plain["told"] = result
    return dumped(plain, odd="records" in plain)  # torch's own records: whatever JSON can spell


def head_text(head: Head, remembered: str | None) -> str:
    """The line of a head; `remembered` is the JSON text of its memory."""
    plain = dumped(
        {
            "kind": "head",
            "schema": JOURNAL_SCHEMA,
            "lightkeeper": head.version,
            "run": head.run,
            "file": head.number,
            "began_s": head.began_s,
            "config": asdict(head.config),
            "incidents": [incident_to_json(incident) for incident in head.incidents],
            "evictions": [to_plain(eviction) for eviction in head.evictions],
            "policy": policy_to_json(head.policy),
            "would": [asdict(eviction) for eviction in head.would],
            "after_tick": head.after_tick,
            "no_memory": head.no_memory,
            "lost": head.lost,
        }
    )
    return plain if remembered is None else f'{plain[:-1]},"memory":{remembered}}}'


def head_from_json(plain: Any) -> Head:
    """The head of a file.

    Raises:
        JournalError: it is not a head, or of another schema.
    """
    if not isinstance(plain, dict) or plain.get("kind") != "head":
        raise JournalError("no journal of lightkeeper: it does not begin with a head")
    schema = plain.get("schema")
    if schema != JOURNAL_SCHEMA:
        raise JournalError(
            f"journal schema {schema}, this lightkeeper reads {JOURNAL_SCHEMA}: "
            f"replay it with lightkeeper {plain.get('lightkeeper')} or newer"
        )
    try:
        return _head(plain)
    except _UNUSABLE as exc:
        raise JournalError(f"its head cannot be used: {type(exc).__name__}: {exc}") from exc


def _head(plain: Mapping[str, Any]) -> Head:
    config, names = plain["config"], {option.name for option in fields(KeeperConfig)}
    try:
        options = KeeperConfig.from_options({k: v for k, v in config.items() if k in names})
    except ConfigError as exc:
        raise JournalError(f"its configuration cannot be used here: {exc}") from exc
    after = plain["after_tick"]
    return Head(
        run=str(plain["run"]),
        number=int(plain["file"]),
        config=options,
        version=str(plain["lightkeeper"]),
        began_s=float(plain["began_s"]),
        incidents=tuple(incident_from_json(incident) for incident in plain["incidents"]),
        evictions=tuple(eviction_from_json(eviction) for eviction in plain["evictions"]),
        policy=policy_from(plain["policy"]).policy,
        would=tuple(from_plain(Eviction, past) for past in plain["would"]),
        after_tick=None if after is None else int(after),
        memory=plain.get("memory"),
        no_memory=plain["no_memory"],
        lost=int(plain["lost"]),
    )


def tick_from_json(plain: Any, reader: SnapshotReader, config: KeeperConfig) -> Tick:
    """The tick of one parsed line.

    Raises:
        JournalError: it is not a tick.
    """
    try:
        if plain["kind"] != "tick":
            raise JournalError(f"a line of kind {plain['kind']!r}, expected 'tick'")
        snapshot = reader.read(plain, config)
        return Tick(snapshot, outcome_from_json(plain.get("told", {})))
    except _UNUSABLE as exc:
        raise JournalError(f"no tick: {type(exc).__name__}: {exc}") from exc
