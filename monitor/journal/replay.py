"""The pipeline over a journal: the same deciding again, tick by tick. Pure.

Files of one run that follow each other are one journey. A file that does not follow the one
before (another run, or files or ticks between are missing) begins with the memory in its head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from monitor.config import KeeperConfig
from monitor.journal.entries import Head, JournalError, Tick, Told, told, told_to_json
from monitor.journal.recall import as_mapping, read
from monitor.pipeline import Pipeline, TickResult


@dataclass(frozen=True, slots=True)
class Replayed:
    """One tick decided again."""

    tick: Tick
    result: TickResult
    again: Told
    """What this replay made of it; `tick.told` is what the live monitor made of it."""

    @property
    def now_s(self) -> float:
        """Unix time of the tick."""
        return self.tick.snapshot.now_s

    def difference(self) -> str | None:
        """Where the two part, in one line; None where they agree."""
        found = first_difference(told_to_json(self.tick.told), told_to_json(self.again))
        if found is None:
            return None
        where, live, again = found
        return f"tick {self.tick.snapshot.tick}: {where} was {live} live and is {again} now"


class Replay:
    """Replays heads and ticks as they come.

    Args:
        changes: options of the configuration that differ from the live one; none: the same.
    """

    def __init__(self, changes: Mapping[str, Any] | None = None) -> None:
        self._changes = dict(changes or {})
        self.pipeline: Pipeline | None = None
        """The one at work; None before the first file."""
        self._run: str | None = None
        self._number = 0
        self._last: int | None = None
        self._result: TickResult | None = None

    @property
    def run(self) -> str | None:
        """The run that is replayed; None before the first file."""
        return self._run

    def begin(self, head: Head) -> bool:
        """A file begins; whether it goes on from the one before.

        Raises:
            JournalError: it does not, and its own memory cannot be used here.
            ConfigError: the changes do not go with its configuration.
        """
        follows = (
            self.pipeline is not None
            and head.run == self._run
            and head.number == self._number + 1
            and head.after_tick == self._last
        )
        self._run, self._number = head.run, head.number
        self._last = head.after_tick
        if follows and self.pipeline is not None:
            self.pipeline.reconfigure(self.config(head), head.policy)  # a policy may begin a file
        else:
            self.pipeline = pipeline_of(head, self.config(head))
            self._result = None
        return follows

    def config(self, head: Head) -> KeeperConfig:
        """The live configuration with the changes.

        Raises:
            ConfigError: that is none.
        """
        live = {one.name: getattr(head.config, one.name) for one in fields(KeeperConfig)}
        return KeeperConfig.from_options({**live, **self._changes})

    def tick(self, tick: Tick) -> Replayed:
        """Decide one tick again, as `monitor.keeper` does: a crash decides nothing."""
        if self.pipeline is None:
            raise JournalError("a tick before any head")
        self._last = tick.snapshot.tick
        incidents = () if self._result is None else self._result.incidents
        result, crash = TickResult(tick.snapshot.now_s, incidents=incidents), None
        try:
            result = self.pipeline.tick(tick.snapshot)
        except Exception as exc:  # noqa: BLE001 - it crashed live as well, or this is the difference
            crash = f"{type(exc).__name__}: {exc}"
        self._result = result
        return Replayed(tick, result, told(result, crash))


def pipeline_of(head: Head, config: KeeperConfig) -> Pipeline:
    """The pipeline as it was when a file began.

    Raises:
        JournalError: the file begins in the middle of a run, without a memory that fits here.
    """
    if head.after_tick is None:
        return Pipeline(
            config, head.incidents, head.evictions, policy=head.policy, would=head.would
        )
    if head.memory is None:
        why = head.no_memory or "it has none"
        raise JournalError(f"file {head.number} of its run needs those before: {why}")
    pipeline = Pipeline(config, policy=head.policy)
    try:
        pipeline.remember(as_mapping(read(head.memory, config)))
    except ValueError as exc:  # also MemoryFormatError
        raise JournalError(
            f"file {head.number} of its run begins in the middle, and its memory was written by "
            f"lightkeeper {head.version}: {exc}; give the files of the run from its first on, or "
            "replay with that version"
        ) from exc
    return pipeline


def first_difference(  # noqa: PLR0911
    live: Any, again: Any, where: str = ""
) -> tuple[str, str, str] | None:
    """Path and both values of the first thing in which two JSON values differ."""
    if isinstance(live, Mapping) and isinstance(again, Mapping):
        for key in sorted({*live, *again}):
            inner = f"{where}.{key}" if where else str(key)
            if key not in live or key not in again:
                return inner, _short(live.get(key)), _short(again.get(key))
            if found := first_difference(live[key], again[key], inner):
                return found
        return None
    if isinstance(live, list | tuple) and isinstance(again, list | tuple):
        for place, (one, other) in enumerate(zip(live, again, strict=False)):
            if found := first_difference(one, other, f"{where}[{place}]"):
                return found
        if len(live) != len(again):
            place = min(len(live), len(again))
            return f"{where}[{place}]", _short(_at(live, place)), _short(_at(again, place))
        return None
    return None if live == again else (where, _short(live), _short(again))


def _at(values: Any, place: int) -> Any:
    return values[place] if place < len(values) else None


def _short(value: Any) -> str:
    if isinstance(value, Mapping) and "id" in value:
        value = value["id"]
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 200 else text[:199] + "…"
