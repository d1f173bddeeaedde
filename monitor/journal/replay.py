"""The replay of a journal: the pipeline decides it again, tick by tick. Pure.

Consecutive files of one run are replayed as one. A file that does not follow the one before
(another run, or missing files or ticks) begins with the memory in its head.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import zip_longest
from math import inf
from pathlib import Path
from typing import Any, Final

from lightkeeper.monitor.decide.pipeline import Pipeline, TickResult
from lightkeeper.monitor.decide.rules import Policy
from lightkeeper.monitor.journal.entries import (
    Head,
    JournalEnd,
    JournalError,
    JournalTick,
    LineError,
    TickOutcome,
    Unpacker,
    head_from_json,
    outcome_of,
    outcome_to_json,
    tick_from_json,
)
from lightkeeper.monitor.journal.memory import UNUSABLE, Reader
from lightkeeper.monitor.journal.writer import files
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.incident import Incident, oldest_first
from lightkeeper.monitor.model.names import IncidentId
from lightkeeper.worker_server.home import open_file

# -- replay ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Replayed:
    tick: JournalTick
    result: TickResult
    again: TickOutcome
    """The outcome of this replay; `tick.outcome` is the live monitor's."""

    @property
    def now_s(self) -> float:
        return self.tick.snapshot.now_s

    def difference(self) -> str | None:
        """Where the two differ, in one line; None if they agree."""
        parted = first_difference(outcome_to_json(self.tick.outcome), outcome_to_json(self.again))
        if parted is None:
            return None
        where, live, now = parted
        return f"tick {self.tick.snapshot.tick}: {where} was {live} live and is {now} now"


class Replay:
    """Replays heads and ticks as they come.

    Args:
        changes: options that replace those of the live configuration.
        policy: rules that replace the live ones; None: keep them.
    """

    def __init__(
        self, changes: Mapping[str, Any] | None = None, policy: Policy | None = None
    ) -> None:
        self._changes = dict(changes or {})
        self._policy = policy
        self.pipeline: Pipeline | None = None
        """The current pipeline; None before the first file."""
        self.run: str | None = None
        """The run being replayed; None before the first file."""
        self._number = 0
        self._last: int | None = None
        self._result: TickResult | None = None

    def begin(self, head: Head) -> bool:
        """Begin a file; returns whether it continues the previous one.

        Raises:
            JournalError: it does not, and its own memory cannot be used here.
            ConfigError: the changes do not fit its configuration.
        """
        follows = (
            self.pipeline is not None
            and head.run == self.run
            and head.number == self._number + 1
            and head.after_tick == self._last
        )
        head = head if self._policy is None else replace(head, policy=self._policy)
        self.run, self._number = head.run, head.number
        self._last = head.after_tick
        if follows and self.pipeline is not None:
            self.pipeline.reconfigure(self.config(head), head.policy)  # a new policy begins a file
        else:
            self.pipeline = pipeline_of(head, self.config(head))
            self._result = None
        return follows

    def config(self, head: Head) -> KeeperConfig:
        """The live configuration with the changes.

        Raises:
            ConfigError: it is not valid.
        """
        live = {option.name: getattr(head.config, option.name) for option in fields(KeeperConfig)}
        return KeeperConfig.from_options({**live, **self._changes})

    def tick(self, tick: JournalTick) -> Replayed:
        """Decide one tick again, as `monitor.loop` does: after a crash nothing is decided."""
        if self.pipeline is None:
            raise JournalError("a tick before any head")
        self._last = tick.snapshot.tick
        incidents = () if self._result is None else self._result.incidents
        result, crash = TickResult(tick.snapshot.now_s, incidents=incidents), None
        try:
            result = self.pipeline.tick(tick.snapshot)
        except Exception as exc:  # noqa: BLE001 - it crashed live too, or this is the difference
            crash = f"{type(exc).__name__}: {exc}"
        self._result = result
        return Replayed(tick, result, outcome_of(result, crash))


def pipeline_of(head: Head, config: KeeperConfig) -> Pipeline:
    """The pipeline as of the start of a file.

    Raises:
        JournalError: the file begins in the middle of a run, without a usable memory.
    """
    if head.after_tick is None:
        try:
            return Pipeline(config, head.incidents, head.evictions, policy=head.policy)
        except UNUSABLE as exc:
            raise JournalError(f"file {head.number} of its run cannot be used: {exc}") from exc
    if head.memory is None:
        why = head.no_memory or "it has none"
        raise JournalError(f"file {head.number} of its run needs those before: {why}")
    pipeline = Pipeline(config, policy=head.policy)
    try:
        pipeline.remember(Reader(config).read(head.memory))
    except ValueError as exc:  # also MemoryFormatError
        raise JournalError(
            f"file {head.number} of its run begins in the middle, and its memory was written by "
            f"lightkeeper {head.version}: {exc}; give the files of the run from its first on, or "
            "replay with that version"
        ) from exc
    return pipeline


def first_difference(live: Any, again: Any, where: str = "") -> tuple[str, str, str] | None:
    """Path and both values of the first difference between two JSON values."""
    if isinstance(live, Mapping) and isinstance(again, Mapping):
        for key in sorted({*live, *again}):
            inner = f"{where}.{key}" if where else str(key)
            if key not in live or key not in again:
                return inner, _short(live.get(key)), _short(again.get(key))
            if difference := first_difference(live[key], again[key], inner):
                return difference
        return None
    if isinstance(live, list | tuple) and isinstance(again, list | tuple):
        for place, (was, now) in enumerate(zip_longest(live, again)):
            if difference := first_difference(was, now, f"{where}[{place}]"):
                return difference
        return None
    return None if live == again else (where, _short(live), _short(again))


def _short(value: Any) -> str:
    if isinstance(value, Mapping) and "id" in value:
        value = value["id"]
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 200 else text[:199] + "…"


# -- reader ------------------------------------------------------------------------------------

_PIECE: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Opened:
    path: Path
    head: Head
    """`find_journals` leaves out its memory: that of 1,000 ranks takes 100 MB."""


@dataclass(frozen=True, slots=True)
class Closed:
    path: Path
    how: JournalEnd
    damage: str | None = None
    """What is wrong, and after which tick; the rest of the file was not read."""


Event = Opened | JournalTick | Closed


def find_journals(paths: Sequence[Path]) -> tuple[tuple[Opened, ...], tuple[str, ...]]:
    """The journal files at these paths, or in these folders, in the order they were written, and a
    note on each file that ends within its head.

    Raises:
        JournalError: a path holds no journal, or an unusable one.
    """
    opened: list[Opened] = []
    notes: list[str] = []
    for path in dict.fromkeys(_named(paths)):
        head = read_head(path)
        if head is None:
            notes.append(f"{path}: ends within its head: nothing to replay")
        else:
            opened.append(Opened(path, replace(head, memory=None)))
    if not opened:
        raise JournalError(notes[0] if notes else "no journal given")
    starts: dict[str, float] = {}
    for file in opened:
        run = file.head.run
        starts[run] = min(starts.get(run, file.head.began_s), file.head.began_s)
    opened.sort(key=lambda file: (starts[file.head.run], file.head.run, file.head.number))
    return tuple(opened), tuple(notes)


def _named(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.is_dir():
            yield path
        elif inside := files(path):
            yield from inside
        else:
            raise JournalError(f"{path}: no journal in this folder (journal-*.gz)")


def read_head(path: Path) -> Head | None:
    """The head of a file; None if the file ends within it.

    Raises:
        JournalError: it cannot be read, or is not a journal.
    """
    try:
        line = next(_lines(path, Unpacker()), None)
        return None if line is None else head_from_json(line)
    except OSError as exc:
        raise JournalError(f"{path}: {exc.strerror}") from exc
    except (LineError, JournalError) as exc:
        raise JournalError(f"{path}: {exc}") from exc


def _lines(path: Path, unpacker: Unpacker) -> Iterator[Any]:
    """The parsed lines of a file.

    Raises:
        OSError: it cannot be read.
        LineError: it is damaged from here on.
    """
    with open_file(path) as file:
        while data := file.read(_PIECE):
            yield from unpacker.feed(data)


def journal_events(opened: Sequence[Opened]) -> Iterator[Event]:
    """Everything in the files: for each, `Opened`, its ticks, `Closed`.

    Raises:
        JournalError: a file can no longer be read.
    """
    for file in opened:
        path, last = file.path, file.head.after_tick
        unpacker, reader = Unpacker(), Reader(file.head.config)
        lines = _lines(path, unpacker)
        try:
            yield Opened(path, head_from_json(next(lines, None)))
            for line in lines:
                tick = tick_from_json(line, reader)
                last = tick.snapshot.tick
                yield tick
        except OSError as exc:
            raise JournalError(f"{path}: {exc.strerror}") from exc
        except (LineError, JournalError) as exc:
            where = "at its first tick" if last is None else f"after tick {last}"
            yield Closed(path, JournalEnd.CUT, f"{exc} ({where})")
        else:
            yield Closed(path, unpacker.end())


# -- account -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Account:
    """Latest state of incidents; decisions in order, in plain JSON types."""

    incidents: dict[IncidentId, Incident] = field(default_factory=dict)
    decisions: list[Mapping[str, Any]] = field(default_factory=list)

    def take(self, outcome: TickOutcome, tick: int, now_s: float) -> None:
        self.incidents |= {incident.id: incident for incident in outcome.changed}
        at = {"at_s": now_s, "tick": tick}
        self.decisions += [{**decision, **at} for decision in outcome.decisions]

    def seed(self, incidents: Iterable[Incident]) -> None:
        self.incidents = {incident.id: incident for incident in incidents} | self.incidents

    def since(self, from_s: float) -> Account:
        """The part from that time on: incidents not over by then, and decisions since."""
        return Account(
            {key: seen for key, seen in self.incidents.items() if (seen.ended_s or inf) >= from_s},
            [decision for decision in self.decisions if decision["at_s"] >= from_s],
        )

    def lasting(self) -> list[Incident]:
        """Incidents that fired or are open, oldest first."""
        return [i for i in self.all() if i.milestones.firing_s is not None or i.open]

    def all(self) -> list[Incident]:
        """Every incident, oldest first."""
        return sorted(self.incidents.values(), key=oldest_first)

    def of(self, incident_id: str) -> list[Mapping[str, Any]]:
        return [decision for decision in self.decisions if decision["incident_id"] == incident_id]

    def evictions(self) -> list[Mapping[str, Any]]:
        return [decision for decision in self.decisions if decision["action"] == "evict"]


def parted_s(live: Account, now: Account) -> float | None:
    """When the evictions first differ; later snapshots show the effects of the live ones."""
    now_evicts = [(decision["at_s"], decision["group"]) for decision in now.evictions()]
    live_evicts = [(decision["at_s"], decision["group"]) for decision in live.evictions()]
    return min((at_s for at_s, _ in set(now_evicts) ^ set(live_evicts)), default=None)
