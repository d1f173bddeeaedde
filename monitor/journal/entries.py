"""The lines of a journal (a head, then ticks) as types and as JSON. Pure."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from typing import Any, Final, TypeVar

from lightkeeper.monitor.decide.pipeline import TickResult
from lightkeeper.monitor.decide.rules import DEFAULT, Policy
from lightkeeper.monitor.journal import memory
from lightkeeper.monitor.model.config import ConfigError, KeeperConfig
from lightkeeper.monitor.model.eviction import Eviction
from lightkeeper.monitor.model.incident import Incident, incident_from_json, incident_to_json
from lightkeeper.monitor.model.observation import Snapshot
from lightkeeper.monitor.model.plain import from_plain, readable, to_plain

# -- lines -------------------------------------------------------------------------------------
# Lines of JSON with a checksum each, in one gzip stream. Pure: bytes in, bytes out.
#
# The standard library's zlib is enough. The stream is flushed after every tick, so that after a
# SIGKILL it can be read up to the last tick. Any `zcat` reads it. zstandard is no substitute for
# references between ticks: at 512 ranks a tick takes 4.0 kB and 1.8 ms with them; without them
# 8.6 kB and 3.4 ms, and 4.6 kB by zstandard with a window of 128 MB (2026-11-28). gzip's own
# checksum comes only at the end, so each line has one.

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


class Packer:
    """Turns JSON texts into the bytes of a file."""

    def __init__(self, level: int = LEVEL) -> None:
        self._stream = zlib.compressobj(level, zlib.DEFLATED, _GZIP)

    def line(self, *pieces: bytes) -> bytes:
        """One line of these pieces, readable as soon as it is written."""
        check = 0
        for piece in pieces:
            check = zlib.crc32(piece, check)
        packed = [self._stream.compress(piece) for piece in (b"%08x " % check, *pieces, b"\n")]
        return b"".join((*packed, self._stream.flush(zlib.Z_SYNC_FLUSH)))

    def end(self) -> bytes:
        return self._stream.flush(zlib.Z_FINISH)


class JournalEnd(StrEnum):
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
                for place in range(len(piece)):
                    try:
                        inflated = self._inflated(piece[place : place + 1])
                    except zlib.error as exc:
                        raise LineError(f"damaged: {exc}") from exc
                    yield from self._lines(inflated)

    def end(self) -> JournalEnd:
        """How the file ended; call this after the last piece."""
        return JournalEnd.WHOLE if self._stream.eof and not self._rest else JournalEnd.CUT

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


# -- entries -----------------------------------------------------------------------------------

JOURNAL_SCHEMA: Final = 5
_PLAIN: Final = {"float": float, "int": int, "str": str, "Policy": Policy}


L = TypeVar("L", "Head", Snapshot)


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
    after_tick: int | None = None
    """The tick after which `memory` was taken; None in the first file of a run."""
    memory: Any = None
    """The pipeline's memory after that tick, as `monitor.journal.memory` writes it."""
    no_memory: str | None = None
    """Why a later file has no memory."""
    lost: int = 0
    """Ticks of this run that were not written, all before this file."""


@readable
@dataclass(frozen=True, slots=True)
class TickOutcome:
    """What the live monitor decided in a tick; decisions in plain JSON types."""

    changed: Sequence[Incident] = ()
    decisions: Sequence[Mapping[str, Any]] = ()
    wanted: Sequence[str] = ()
    """Ranks whose flight records were requested."""
    failures: Mapping[str, str] | None = None
    """Detectors that crashed."""
    crash: str | None = None
    """Why the whole pipeline crashed; nothing was decided then."""


@dataclass(frozen=True, slots=True)
class JournalTick:
    """One tick: what was seen, and what the live monitor decided."""

    snapshot: Snapshot
    outcome: TickOutcome


def outcome_of(result: TickResult, crash: str | None = None) -> TickOutcome:
    return TickOutcome(
        changed=result.changed,
        decisions=[{"action": each.action, **to_plain(each)} for each in result.decisions],
        wanted=[str(rank) for rank in result.wants_records],
        failures=dict(result.detector_failures) or None,
        crash=crash,
    )


def outcome_to_json(outcome: TickOutcome) -> dict[str, Any]:
    """Only the fields that are not empty: in most ticks, none."""
    names = (part.name for part in fields(outcome))
    plain = {name: value for name in names if (value := getattr(outcome, name))}
    if outcome.changed:
        plain["changed"] = [incident_to_json(incident) for incident in outcome.changed]
    return plain


def tick_text(snapshot: Snapshot, outcome: TickOutcome, writer: memory.Writer) -> tuple[bytes, ...]:
    """The line of a tick in pieces; `writer` is that of the file.

    Raises:
        MemoryFormatError: the snapshot holds something that cannot be written.
    """
    pieces: list[bytes] = []
    plain = {"kind": "tick", "seen": writer.plain(snapshot, pieces)}
    if result := outcome_to_json(outcome):
        plain["told"] = result
    before, _, after = memory.dumped(plain).partition(f'"{memory.APART}"'.encode())
    return before, *pieces, after


def head_text(head: Head, remembered: Mapping[str, Any] | None) -> bytes:
    """The line of a head; `remembered` is what a `memory.Writer` made of its memory."""
    plain = {
        "kind": "head",
        "schema": JOURNAL_SCHEMA,
        "lightkeeper": head.version,
        "config": asdict(head.config),
        "head": memory.Writer(head.config).plain(replace(head, memory=None)),
        "memory": remembered,
    }
    return memory.dumped(plain, odd=True)


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
        config, names = plain["config"], memory.names_of(KeeperConfig)
        options = KeeperConfig.from_options({n: v for n, v in config.items() if n in names})
        head = _checked(Head, memory.Reader(options).read(plain["head"]))
        return replace(head, memory=plain.get("memory"))
    except ConfigError as exc:
        raise JournalError(f"its configuration cannot be used here: {exc}") from exc
    except memory.UNUSABLE as exc:
        raise JournalError(f"its head cannot be used: {exc}") from exc


def tick_from_json(plain: Any, reader: memory.Reader) -> JournalTick:
    """The tick of one parsed line; `reader` is that of the file.

    Raises:
        JournalError: it is not a tick.
    """
    try:
        if plain["kind"] != "tick":
            raise JournalError(f"a line of kind {plain['kind']!r}, expected 'tick'")
        snapshot = _checked(Snapshot, reader.read(plain["seen"]))
        decided = plain.get("told", {})
        changed = tuple(map(incident_from_json, decided.get("changed", ())))
        outcome = from_plain(TickOutcome, {**decided, "changed": ()})
        return JournalTick(snapshot, replace(outcome, changed=changed))
    except memory.UNUSABLE as exc:
        raise JournalError(f"no tick: {type(exc).__name__}: {exc}") from exc


def _checked(kind: type[L], value: Any) -> L:
    """The value if it and its numbers are of the expected types: lines are also edited by hand."""
    if not isinstance(value, kind):
        raise TypeError(f"{type(value).__name__} where a {kind.__name__} belongs")
    for part in fields(value):
        held, usual = getattr(value, part.name), _PLAIN.get(str(part.type))
        if usual is not None and not isinstance(held, usual):
            raise TypeError(f"{part.name} is {type(held).__name__}, expected {part.type}")
    return value
