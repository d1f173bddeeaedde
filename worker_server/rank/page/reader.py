"""The sidecar's side of the page: turns words into wire types, whatever the writer is doing."""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar, cast

from msgspec import convert

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.rank.identity import name_in_replica_id, under_managers_name
from lightkeeper.worker_server.rank.page import layout

T = TypeVar("T")

NS = 1e-9
_TRIES = 1000
_PHASES = struct.Struct(f"@{2 * layout.PHASE.stride + layout.MAX_PHASES}q")
_NO_STEP = (0, 0, 0, layout.NONE, layout.NONE, layout.NONE, 0, 0, layout.NO_STRING, 0,
            layout.LOSS_ABSENT, layout.NONE, 0, 0)  # fmt: skip
_ATTEMPT_SLOT = struct.Struct(f"@{layout.STEPS_LAST_WORD + 1}q")
_NO_ATTEMPT = (0,) * (layout.STEPS_LAST_WORD + 1)
"""Precedes the first attempt: no time was spent yet."""
_RING_SLOT = struct.Struct("@q" + layout.RING_BODY.format[1:])
_RING_TAIL_WORD = _RING_SLOT.size // layout.WORD - 1
_GROUP = struct.Struct(f"@{layout.GROUP_HEAD_WORDS}q")
_TRANSFER = struct.Struct(f"@{layout.TRANSFER_HEAD_WORDS}q")
_TIMEOUTS = {
    "collective": layout.W_TIMEOUT_COLLECTIVE,
    "quorum": layout.W_TIMEOUT_QUORUM,
    "commit": layout.W_TIMEOUT_COMMIT,
}
_WAITS = {
    layout.WAIT_QUORUM: wire.WAIT_QUORUM,
    layout.WAIT_HEAL: wire.WAIT_HEAL,
    layout.WAIT_COMMIT: wire.WAIT_COMMIT,
}


class PageReader:
    """Reads one page file.

    Raises:
        layout.SharedPageError: the file is foreign, cut short, or of another version.
    """

    def __init__(self, path: Path) -> None:
        self._map = _open(path)
        self._words = memoryview(self._map).cast("q")
        if self._words[layout.W_MAGIC] != layout.MAGIC:
            raise layout.SharedPageError(f"{path} is not a lightkeeper page")
        version, total = self._words[layout.W_VERSION], self._words[layout.W_TOTAL_BYTES]
        if version != layout.VERSION or total != layout.TOTAL_BYTES:
            raise layout.SharedPageError(f"{path} has layout {version}, not {layout.VERSION}")
        size = self._words[layout.W_IDENTITY_BYTES]
        blob = self._map[layout.IDENTITY_OFFSET : layout.IDENTITY_OFFSET + max(0, size)]
        try:
            content = json.loads(blob)
            self._launched = wire.parse_identity(content)
            self.claim = wire.parse_claim(content.get("claim", {}))
        except (ValueError, RecursionError) as exc:
            raise layout.SharedPageError(f"{path} carries no identity: {exc}") from exc
        self.start_ticks = self._words[layout.W_START_TICKS]
        end = layout.COUNTER_WORD + layout.MAX_COUNTERS
        self._totals = self._words[layout.COUNTER_WORD : end].cast("B").cast("d")
        self._strings: list[str] = []
        self._members: dict[int, tuple[str, tuple[int, ...]]] = {}
        self.refused: str | None = None
        """A name that another group has."""
        self.known_as: str | None = None
        """The Manager's replica id before this process, until there is a new one."""
        self._named: wire.GroupName | None = None
        self._identity = self._launched

    # -- words that may be written right now ----------------------------------------------------

    def _retry(self, read: Callable[[], T | None]) -> T | None:
        """First whole answer. The writer takes microseconds; it cannot starve us."""
        for _ in range(_TRIES):
            answer = read()
            if answer is not None:
                return answer
        return None

    def _newest(self, load: Callable[[int], tuple[int, T, int]]) -> tuple[int, T] | None:
        """Stamp and body of the last whole write; stamp 0 on a fresh page.

        `load` gives last stamp, body and first stamp of slot 0 or 1, loaded in this order. If one
        slot is torn, the other counts only while the torn one is the very next write: a slow reader
        may have loaded it when it was new, and later reads must never return an older write.
        """

        def read() -> tuple[int, T] | None:
            slots = load(0), load(1)
            whole = [(last, body) for last, body, first in slots if first == last]
            if len(whole) == 1 and max(first for _, _, first in slots) > whole[0][0] + 1:
                return None
            return max(whole, key=itemgetter(0)) if whole else None

        return self._retry(read)

    def _pair(self, pair: layout.SlotPair) -> tuple[int, tuple[int, ...]]:
        """Stamp and values of the last whole write; zeros on a fresh page."""

        def load(slot: int) -> tuple[int, tuple[int, ...], int]:
            word = pair.word + slot * pair.stride
            end = word + 1 + pair.values
            last = self._words[end]
            return last, tuple(self._words[word + 1 : end]), self._words[word]

        return self._newest(load) or (0, (0,) * pair.values)

    def _copy(self, word: int, size: int) -> bytes:
        """Copied in one go: the shorter a read, the fewer are torn and repeated."""
        return self._map[word * layout.WORD : word * layout.WORD + size]

    def _text(self, offset: int, size: int) -> str:
        return self._map[offset : offset + size].split(b"\0", 1)[0].decode(errors="replace")

    def _names(self, table: layout.NameTable) -> list[str]:
        return [
            self._text(table.offset + n * layout.NAME_BYTES, layout.NAME_BYTES)
            for n in range(min(self._words[table.count_word], table.most))
        ]

    def _string(self, index: int) -> str:
        count = min(self._words[layout.W_STRINGS], layout.MAX_STRINGS)
        while len(self._strings) < count:
            offset = layout.STRING_OFFSET + len(self._strings) * layout.STRING_BYTES
            blob = self._map[offset + 1 : offset + 1 + self._map[offset]]
            self._strings.append(blob.decode(errors="replace"))
        return self._strings[index] if 0 <= index < len(self._strings) else ""

    # -- who and how --------------------------------------------------------------------------

    @property
    def identity(self) -> wire.Identity:
        """Who it is; its group's name is the Manager's, once that has a usable one."""
        replica = self._words[layout.W_REPLICA]
        name = name_in_replica_id(self._string(replica) if replica else self.known_as)
        if name == self.refused:
            name = None
        if name != self._named:
            self._named, self._identity = name, under_managers_name(self._launched, name)
        return self._identity

    @property
    def closed(self) -> bool:
        """True if the rank reported that its work is over."""
        return bool(self._words[layout.W_CLOSED] & 1)

    @property
    def leaving(self) -> bool:
        """True if its interpreter is ending."""
        return bool(self._words[layout.W_CLOSED] & 2)

    @property
    def ends_by_sigterm(self) -> bool:
        return bool(self._words[layout.W_CLOSED] & 4)

    @property
    def backends(self) -> tuple[str, ...]:
        """Backends of all process groups that the rank has had."""
        return self._listed(layout.W_BACKENDS)

    @property
    def unhooked(self) -> tuple[str, ...]:
        """What the hooks did not find in this version of a library."""
        return self._listed(layout.W_UNHOOKED)

    @property
    def timeouts(self) -> dict[str, float]:
        """As `wire.StateReport.timeouts`."""
        words = ((name, self._words[word]) for name, word in _TIMEOUTS.items())
        return {name: ns / 1e9 for name, ns in words if ns > 0}

    @property
    def lighthouse(self) -> str | None:
        """Address of the Lighthouse that the rank's Manager asks."""
        return self._string(self._words[layout.W_LIGHTHOUSE]) or None

    def _listed(self, word: int) -> tuple[str, ...]:
        return tuple(filter(None, self._string(self._words[word]).split(",")))

    def beat_age_s(self, now_ns: int) -> float:
        """Seconds since a Python thread of the rank last ran, as far as the page shows."""
        _, (_, since) = self._pair(layout.PHASE)
        return max(0, now_ns - max(self._words[layout.W_BEAT], since)) * NS

    def report(self, process: wire.Process, now_ns: int) -> wire.StateReport:
        return wire.StateReport(
            identity=self.identity,
            process=process,
            step=self.step_state(now_ns),
            heads=self.heads(now_ns),
            unhooked=self.unhooked,
            transfers=self.transfers(now_ns),
            forming=self.forming(now_ns),
            timeouts=self.timeouts,
            lighthouse=self.lighthouse,
            kernels=not wire.ON_CPU.issuperset(self.backends),
            trackers=_trackers((self.note(layout.NOTE_TRACKERS, now_ns) or ("{}", 0.0))[0]),
        )

    # -- step -----------------------------------------------------------------------------

    def step_state(self, now_ns: int) -> wire.StepState | None:
        """What the rank reports; None if it never reported anything."""
        begun, (begun_step,) = self._pair(layout.BEGUN)
        written, body = self._pair(layout.STEP)
        local_steps = max(0, self._words[layout.LOCAL_STEPS_WORD])
        if not (begun or written or local_steps or any(self._phases_begun())):
            return None
        (progress, phase_id, since), seconds = self._phase_and_seconds()
        names = self._names(layout.PHASE_NAMES)
        name = names[phase_id] if 0 <= phase_id < len(names) else layout.FIRST_PHASES[0]
        started = since or self._words[layout.W_STARTED]
        row = body if written else _NO_STEP
        (step, attempt, commits, last_commit, quorum, participants, healing, errored, replica,
         tokens, loss_kind, committed_step, failures, loss) = row  # fmt: skip
        if begun > attempt:
            step, attempt = begun_step, begun
        waits_in, waits_s, waited_s = self.waits(now_ns)
        return wire.StepState(
            step=step,
            attempt=max(0, attempt),
            progress=max(0, progress),
            phase=name,
            phase_age_s=max(0, now_ns - started) * NS,
            commits=max(0, commits),
            last_commit_age_s=(
                None if last_commit == layout.NONE else max(0, now_ns - last_commit) * NS
            ),
            replica_id=wire.ReplicaId(self._string(replica)) if replica else None,
            quorum_id=_or_none(quorum),
            participants=None if participants < 0 else participants,
            healing=bool(healing),
            errored=bool(errored),
            loss=_loss(loss) if loss_kind == layout.LOSS_FINITE else None,
            loss_finite=loss_kind != layout.LOSS_NOT_FINITE,
            tokens=tokens,
            seconds=seconds,
            committed_step=_or_none(committed_step),
            commit_failures=max(0, failures),
            held_s=self.held_s(),
            tags=self.tags(),
            counters=self.counters(),
            source=self.source(),
            spoilt=self.spoilt(now_ns),
            prints=self.prints(),
            times={name: took for name, took in self.times().items() if name in wire.TIMES},
            local_steps=local_steps,
            waits_in=waits_in,
            waits_s=waits_s,
            waited_s=waited_s,
            gradients_watched=self._words[layout.W_GRADIENTS] == 1,
        )

    def _phases_begun(self) -> tuple[int, int]:
        first = layout.PHASE.word
        return self._words[first], self._words[first + layout.PHASE.stride]

    def _phase_and_seconds(self) -> tuple[tuple[int, int, int], dict[str, float]]:
        """The running phase, and the seconds of the finished ones when it began."""

        def copy() -> tuple[int, ...] | None:
            begun = self._phases_begun()
            blob = self._copy(layout.PHASE.word, _PHASES.size)
            return _PHASES.unpack(blob) if self._phases_begun() == begun else None

        numbers = self._retry(copy) or _PHASES.unpack(self._copy(layout.PHASE.word, _PHASES.size))
        slots = numbers[: layout.PHASE.stride], numbers[layout.PHASE.stride :]
        whole = [(last, phase, since) for first, phase, since, last, *_ in slots if first == last]
        _, running, since = phase = max(whole, default=(0, layout.PHASE_INIT, 0))
        spent = list(numbers[2 * layout.PHASE.stride :])
        started = self._words[layout.W_STARTED]
        ahead = sum(spent) - (since or started) + started
        if 0 <= running < len(spent):
            spent[running] -= max(0, min(ahead, spent[running]))
        pairs = zip(self._names(layout.PHASE_NAMES), spent, strict=False)
        return phase, {name: ns * NS for name, ns in pairs if ns > 0}

    # -- the steps ring -------------------------------------------------------------------------

    def steps(self, since_attempt: int, now_ns: int) -> tuple[tuple[wire.StepRow, ...], int]:
        """Finished attempts after this one, oldest first, and how many of them are lost.

        An attempt's cost is its difference from its predecessor: if that is overwritten, both are
        lost.
        """
        ended = max(0, self._words[layout.W_ENDED])
        since_attempt = max(0, since_attempt)
        first = max(since_attempt, ended - layout.STEPS_SLOTS)
        before, names, rows = self._attempt(first), self._names(layout.PHASE_NAMES), []
        for number in range(first + 1, ended + 1):
            slot = self._attempt(number)
            if slot is not None and before is not None:
                rows.append(_step_row(before, slot, names, now_ns))
            before = slot
        return tuple(rows), max(0, ended - since_attempt - len(rows))

    def _attempt(self, attempt: int) -> tuple[int, ...] | None:
        """The attempt's slot; None if a later attempt has overwritten it."""
        if not attempt:
            return _NO_ATTEMPT
        at = layout.STEPS_WORD + attempt % layout.STEPS_SLOTS * layout.STEPS_SLOT_WORDS
        last = self._words[at + layout.STEPS_LAST_WORD]
        slot = _ATTEMPT_SLOT.unpack(self._copy(at, _ATTEMPT_SLOT.size))
        return slot if self._words[at] == last == attempt else None

    # -- annotations: what the rank reports beside its step and phase ---------------------------

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
        """What TorchFT's parts took, by name; only those that ran."""
        times = {}
        for name, pair in zip(layout.TIME_NAMES, layout.TIMES, strict=False):
            _, body = self._pair(pair)
            count, sum_ns, last_ns, nbytes, last_bytes = body
            if count and min(body) >= 0:  # else never written, or a stray write of the rank's
                times[name] = wire.Took(count, sum_ns * NS, last_ns * NS, nbytes, last_bytes)
        return times

    def spoilt(self, now_ns: int) -> wire.Spoilt | None:
        """Since when, and where, the rank's numbers are or were not finite; None: never."""
        stamp, body = self._pair(layout.SPOILT)
        if not stamp:
            return None
        step, place, since, run, attempts = body
        is_place = 0 <= place < len(layout.PLACES)
        return wire.Spoilt(
            first_step=step,
            where=layout.PLACES[place] if is_place else layout.PLACES[-1],
            age_s=max(0, now_ns - since) * NS,
            run=max(0, run),
            attempts=max(0, attempts),
        )

    def prints(self) -> wire.Prints | None:
        """The last fingerprints; None when none was taken (since the last heal)."""
        stamp, body = self._pair(layout.PRINTS)
        words = zip(body[2::3], body[3::3], body[4::3], strict=True)
        rows = [(step, value, max(0, part)) for step, value, part in words if step != layout.NONE]
        return wire.Prints(body[0], max(0, body[1]), tuple(rows)) if stamp and rows else None

    def waits(self, now_ns: int) -> tuple[str | None, float | None, float | None]:
        """`waits_in`, `waits_s` and `waited_s` of `wire.StepState`."""
        stamp, body = self._pair(layout.WAITS)
        if not stamp:
            return None, None, None
        kind, since, waited = body
        name = _WAITS.get(kind)
        age_s = None if name is None else max(0, now_ns - since) * NS
        return name, age_s, max(0, waited) * NS

    def tags(self) -> tuple[str, ...]:
        """What the rank does in addition to its phase."""
        bits = self._words[layout.W_TAG_BITS]
        names = self._names(layout.TAG_NAMES)
        return tuple(name for n, name in enumerate(names) if bits >> n & 1)

    def counters(self) -> dict[str, float]:
        names = self._names(layout.COUNTER_NAMES)
        pairs = ((name, self._totals[n]) for n, name in enumerate(names))
        return {name: total for name, total in pairs if abs(total) <= wire.NUMBER_MAX}

    def source(self) -> str:
        """Who reports, as `wire.StepState.source` defines it."""
        steps = self._string(self._words[layout.W_STEP_SOURCE])
        phases = self._string(self._words[layout.W_PHASE_SOURCE])
        speaker = phases or steps or wire.SOURCE_REPORTER
        if speaker != wire.SOURCE_REPORTER:
            return speaker
        first = not self._words[layout.W_ENDED]
        return speaker if first or self._words[layout.W_WAITS_DECLARED] else layout.SOURCE_PARTIAL

    def held_s(self) -> float:
        """Seconds spent inside collectives while no phase said that the rank waits."""
        times = (self._words[head + 7] for head in self._counted())
        return sum(max(0, ns) for ns in times) * NS  # the rank may have written over it

    # -- process groups -------------------------------------------------------------------

    def heads(self, now_ns: int) -> tuple[wire.GroupHead, ...]:
        heads = []
        for index in range(self._group_count()):
            row = self._row(layout.group_head(index), _GROUP)
            enqueued, unfinished, age_s, held = _calls_in(row, now_ns)
            name, size, op = self._group(index)[0], max(0, row[0]), self._string(row[3])
            heads.append(wire.GroupHead(name, size, enqueued, unfinished, op, age_s, held))
        return tuple(heads)

    def transfers(self, now_ns: int) -> tuple[wire.TransferHead, ...]:
        heads = []
        for index in range(self._transfer_count()):
            row = self._row(layout.transfer_head(index), _TRANSFER)
            group, posted, *_, peer, tag, sends = row
            if 0 < group <= self._group_count() and posted > 0:
                who = self._group(group - 1)[0], peer, tag, int(sends == 1)
                heads.append(wire.TransferHead(*who, *_calls_in(row, now_ns)))
        return tuple(heads)

    def _row(self, word: int, shape: struct.Struct) -> tuple[int, ...]:
        """The head of a group or of transfers; the writer may be in it, so it is read twice."""

        def read() -> bytes | None:
            row = self._copy(word, shape.size)
            return row if row == self._copy(word, shape.size) else None

        return shape.unpack(self._retry(read) or self._copy(word, shape.size))

    def _transfer_count(self) -> int:
        return min(max(0, self._words[layout.TRANSFER_COUNT_WORD]), layout.MAX_TRANSFERS)

    def _counted(self) -> Iterator[int]:
        """Where the heads of groups and transfers begin."""
        yield from map(layout.group_head, range(self._group_count()))
        yield from map(layout.transfer_head, range(self._transfer_count()))

    def forming(self, now_ns: int) -> wire.Forming | None:
        note = self.note(layout.NOTE_FORMING, now_ns)
        if note is None or not note[0]:
            return None
        try:
            content = json.loads(note[0])
            site = self._string(content.pop("site")) or None
            earlier = [[ranks, self._string(at) or None] for ranks, at in content.pop("earlier")]
            whole = {**content, "age_s": note[1], "site": site, "earlier": earlier}
            return convert(whole, wire.Forming)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return None  # a stray write of the rank's went over it

    def members(self) -> dict[str, tuple[int, ...]]:
        """Members of every process group whose members are known, as group ranks."""
        groups = (self._group(index) for index in range(self._group_count()))
        return {name: members for name, members in groups if members}

    def _group_count(self) -> int:
        return min(self._words[layout.W_GROUPS], layout.MAX_GROUPS)

    def _group(self, index: int) -> tuple[str, tuple[int, ...]]:
        group = self._members.get(index)
        if group is None:
            offset = layout.GROUP_OFFSET + index * layout.GROUP_BYTES
            name = self._text(offset, layout.GROUP_NAME_BYTES)
            text = self._text(offset + layout.GROUP_NAME_BYTES, layout.GROUP_MEMBERS_BYTES)
            group = self._members[index] = name, layout.decode_members(text)
        return group

    # -- the ring ---------------------------------------------------------------------------

    @property
    def entered(self) -> int:
        """Collectives, sends and receives entered so far; fewer once a group was formed again."""
        return sum(self._words[head + 1] for head in self._counted())

    def ring(self, now_ns: int) -> tuple[tuple[wire.RingEntry, ...], int]:
        """The calls, oldest first, and how many the ring has overwritten.

        A slot that is being written right now is left out.
        """
        rows = []
        for index in range(layout.RING_SLOTS):
            offset = layout.RING_OFFSET + index * layout.RING_SLOT_BYTES
            last = self._words[offset // layout.WORD + _RING_TAIL_WORD]
            row = _RING_SLOT.unpack(self._copy(offset // layout.WORD, _RING_SLOT.size))
            if last > 0 and self._words[offset // layout.WORD] == last:
                rows.append((last, row[1:-1]))
        rows.sort()
        dropped = max(0, rows[-1][0] - layout.RING_SLOTS) if rows else 0
        return tuple(self._entry(number, row, now_ns) for number, row in rows), dropped

    def _entry(self, number: int, row: tuple[Any, ...], now_ns: int) -> wire.RingEntry:
        (group, seq, op, dtype, reduce_op, root, step, attempt, nth, site, entered, left, error,
         flags, thread, tag, shapes) = row  # fmt: skip
        quorum = flags >> layout.RING_QUORUM_SHIFT
        text = bytes(shapes).split(b"\0", 1)[0].decode(errors="replace")
        sizes_in, sizes_out = layout.decode_shapes(text)
        return wire.RingEntry(
            group=self._group(group)[0],
            seq=max(0, seq),
            op=self._string(op),
            sizes_in=sizes_in,
            sizes_out=sizes_out,
            dtype=self._string(dtype) or None,
            reduce_op=self._string(reduce_op) or None,
            root=_or_none(root),
            step=_or_none(step),
            attempt=_or_none(attempt),
            nth=max(0, nth),
            site=self._string(site) or None,
            enter_age_s=max(0, now_ns - entered) * NS,
            exit_age_s=max(0, now_ns - left) * NS if left else None,
            error=self._string(error) or None,
            is_async=bool(flags & 1),
            id=number,
            quorum=quorum - 1 if quorum > 0 else None,
            thread=thread or None,
            tag=_or_none(tag),
        )


def _open(path: Path) -> mmap.mmap:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as exc:
        raise layout.SharedPageError(f"cannot open {path}: {exc.strerror}") from exc
    try:
        size = os.fstat(fd).st_size
        if size != layout.TOTAL_BYTES:
            raise layout.SharedPageError(
                f"{path} has {size} bytes, a page has {layout.TOTAL_BYTES}"
            )
        return mmap.mmap(fd, size, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as exc:
        raise layout.SharedPageError(f"cannot map {path}: {exc}") from exc
    finally:
        os.close(fd)


@lru_cache(maxsize=64)  # it seldom changes
def _trackers(text: str) -> wire.Trackers:
    try:
        return cast(wire.Trackers, convert(json.loads(text), wire.Trackers))
    except (ValueError, RecursionError):
        return {}  # cut, or a stray write of the rank's went over it


def _step_row(
    before: tuple[int, ...], slot: tuple[int, ...], names: list[str], now_ns: int
) -> wire.StepRow:
    attempt, step, begin_ns, end_ns, committed = slot[:5]
    spent = range(layout.STEPS_SPENT_WORD, layout.STEPS_LAST_WORD)
    return wire.StepRow(
        attempt=attempt,
        step=step,
        committed=int(committed != 0),
        end_age_s=max(0, now_ns - end_ns) * NS,
        duration_s=max(0, end_ns - begin_ns) * NS,
        seconds={
            name: (slot[n] - before[n]) * NS
            for name, n in zip(names, spent, strict=False)
            if slot[n] > before[n]
        },
    )


def _calls_in(row: tuple[int, ...], now_ns: int) -> tuple[int, int, float, int]:
    """Of the head of a group or of transfers: the last call's number, how many are unfinished, the
    seconds since it was entered or left, and which call holds the thread.
    """
    _, last, completed, _, entered, left, inside = row[:7]
    completed = max(0, completed)
    last = max(last, completed)
    since = entered if last > completed else max(entered, left)
    age_s = max(0, now_ns - since) * NS if since else 0.0
    return last, last - completed, age_s, min(max(0, inside), last)


def _or_none(value: int) -> int | None:
    return None if value == layout.NONE else value


def _loss(word: int) -> float | None:
    """The loss in this word; a diverging one is clipped to the range of the wire."""
    (loss,) = struct.unpack("d", struct.pack("q", word))
    return max(-wire.NUMBER_MAX, min(loss, wire.NUMBER_MAX)) if math.isfinite(loss) else None
