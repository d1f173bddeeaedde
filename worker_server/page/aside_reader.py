"""The sidecar's side of what the rank says beside its step and phase."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from worker_server import wire
from worker_server.page import layout
from worker_server.page.mapped import NS, MappedPage

_WAITS = {
    layout.WAIT_QUORUM: wire.WAIT_QUORUM,
    layout.WAIT_HEAL: wire.WAIT_HEAL,
    layout.WAIT_COMMIT: wire.WAIT_COMMIT,
}


class AsideReader(MappedPage):
    """Notes, times, tags, counters, and who reports."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        end = layout.COUNTER_WORD + layout.MAX_COUNTERS
        self._totals = self._words[layout.COUNTER_WORD : end].cast("B").cast("d")

    def note(self, kind: int, now_ns: int) -> tuple[str, float] | None:
        """The last text of this kind and its age in seconds; None when there is none."""
        size = layout.NOTE_SLOT_BYTES[kind]

        def load(slot: int) -> tuple[int, tuple[int, bytes], int]:
            offset = layout.NOTE_OFFSETS[kind] + slot * size
            word = offset // layout.WORD
            last, since = self._words[word + 3], self._words[word + 1]
            length = min(max(0, self._words[word + 2]), size - layout.NOTE_HEADER_BYTES)
            start = offset + layout.NOTE_HEADER_BYTES
            blob = self._map[start : start + length]
            return last, (since, blob), self._words[word]

        newest = self._newest(load)
        if newest is None or not newest[0]:
            return None
        since, blob = newest[1]
        return blob.decode(errors="replace"), max(0, now_ns - since) * NS

    def times(self) -> Mapping[str, wire.Took]:
        """What TorchFT's parts took, by name; only those that were done."""
        rows = {name: self._time(kind) for kind, name in enumerate(layout.TIME_NAMES)}
        return {name: row for name, row in rows.items() if row.done}

    def _time(self, kind: int) -> wire.Took:
        def load(slot: int) -> tuple[int, tuple[int, ...], int]:
            word = layout.TIME_WORD + (2 * kind + slot) * layout.TIME_SLOT_WORDS
            last = self._words[word + layout.TIME_LAST_WORD]
            body = tuple(self._words[word + 1 : word + layout.TIME_LAST_WORD])
            return last, body, self._words[word]

        stamp, body = self._newest(load) or (0, ())
        if not stamp or min(body) < 0:  # a stray write of the rank's
            return wire.Took(0)
        count, sum_ns, last_ns, nbytes, last_bytes = body
        return wire.Took(count, sum_ns * NS, last_ns * NS, nbytes, last_bytes)

    def spoilt(self, now_ns: int) -> wire.Spoilt | None:
        """Since when, and where, the rank's numbers are or were not finite; None: never."""

        def load(slot: int) -> tuple[int, tuple[int, ...], int]:
            word = layout.SPOILT_WORD + slot * layout.SPOILT_SLOT_WORDS
            last = self._words[word + 6]
            return last, tuple(self._words[word + 1 : word + 6]), self._words[word]

        stamp, body = self._newest(load) or (0, ())
        if not stamp:
            return None
        step, place, since, run, attempts = body
        known = 0 <= place < len(layout.PLACES)
        return wire.Spoilt(
            first_step=step,
            where=layout.PLACES[place] if known else layout.PLACES[-1],
            age_s=max(0, now_ns - since) * NS,
            run=max(0, run),
            attempts=max(0, attempts),
        )

    def prints(self) -> wire.Prints | None:
        """The last fingerprints; None when none was taken (since the last heal)."""

        def load(slot: int) -> tuple[int, tuple[int, ...], int]:
            word = layout.PRINTS_WORD + slot * layout.PRINTS_SLOT_WORDS
            last = self._words[word + layout.PRINTS_LAST_WORD]
            body = tuple(self._words[word + 1 : word + layout.PRINTS_LAST_WORD])
            return last, body, self._words[word]

        stamp, body = self._newest(load) or (0, ())
        found = zip(body[2::3], body[3::3], body[4::3], strict=True)
        rows = [(step, value, max(0, part)) for step, value, part in found if step != layout.NONE]
        return wire.Prints(body[0], max(0, body[1]), tuple(rows)) if stamp and rows else None

    def waits(self, now_ns: int) -> tuple[str | None, float | None, float | None]:
        """`waits_in`, `waits_s` and `waited_s` of `wire.StepState`."""

        def load(slot: int) -> tuple[int, tuple[int, ...], int]:
            word = layout.WAITS_WORD + slot * layout.WAITS_SLOT_WORDS
            last = self._words[word + layout.WAITS_LAST_WORD]
            body = tuple(self._words[word + 1 : word + layout.WAITS_LAST_WORD])
            return last, body, self._words[word]

        stamp, body = self._newest(load) or (0, ())
        if not stamp:
            return None, None, None
        kind, since, waited = body
        name = _WAITS.get(kind)
        age_s = None if name is None else max(0, now_ns - since) * NS
        return name, age_s, max(0, waited) * NS

    def tags(self) -> tuple[str, ...]:
        """What the rank does over and above its phase."""
        bits = self._words[layout.W_TAG_BITS]
        names = self._names(layout.TAG_NAME_OFFSET, layout.W_TAGS, layout.MAX_TAGS)
        return tuple(name for n, name in enumerate(names) if bits >> n & 1)

    def counters(self) -> dict[str, float]:
        """Counters of the user's own."""
        names = self._names(layout.COUNTER_NAME_OFFSET, layout.W_COUNTERS, layout.MAX_COUNTERS)
        pairs = ((name, self._totals[n]) for n, name in enumerate(names))
        return {name: total for name, total in pairs if abs(total) <= wire.NUMBER_MAX}

    def source(self) -> str:
        """Who reports, as `wire.StepState.source` has it."""
        steps = self._string(self._words[layout.W_STEP_SOURCE])
        phases = self._string(self._words[layout.W_PHASE_SOURCE])
        speaker = phases or steps or wire.SOURCE_REPORTER
        if speaker != wire.SOURCE_REPORTER:
            return speaker
        first = not self._words[layout.W_ENDED]
        return speaker if first or self._words[layout.W_WAITS_DECLARED] else layout.SOURCE_PARTIAL

    def held_s(self) -> float:
        """Seconds in which the rank was held inside of collectives and no phase said so."""
        first = (layout.GROUP_OFFSET + layout.GROUP_HEAD_OFFSET) // layout.WORD
        count = min(self._words[layout.W_GROUPS], layout.MAX_GROUPS)
        stride = layout.GROUP_BYTES // layout.WORD
        held = layout.GROUP_HEAD_WORDS - 1
        times = (self._words[first + n * stride + held] for n in range(count))
        return sum(max(0, ns) for ns in times) * NS  # the rank may have written over it
