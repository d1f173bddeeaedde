"""The rank's side of the page: no lock, no syscall and no kept allocation on the hot path.

`time.monotonic_ns` is a vDSO call. Stores go through a memoryview of 8-byte words, which is
Python's cheapest store and never tears a word. See `layout` for the protocol.

What the rank reports beside its step and phase (notes, times, tags, counters, waits) takes a lock:
any thread may report it, even from within a signal handler, so the lock is reentrant.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import mmap
import os
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import get_ident, get_native_id
from time import monotonic_ns
from typing import TYPE_CHECKING

from lightkeeper.worker_server.rank.page import layout
from lightkeeper.worker_server.wire import WAITING_PHASE, Claim

if TYPE_CHECKING:
    from lightkeeper.worker_server.wire import Identity

_pack_step = layout.STEP_BODY.pack_into
_pack_attempt = layout.STEPS_HEAD.pack_into
_pack_call = layout.RING_BODY.pack_into
_WORD = layout.WORD
_RING_WORD = layout.RING_OFFSET // layout.WORD
_RING_SLOTS = layout.RING_SLOTS
_RING_STRIDE = layout.RING_SLOT_BYTES // layout.WORD
_PHASE_WORD, _PHASE_STRIDE, _ = layout.PHASE
_BEGUN_WORD, _BEGUN_STRIDE, _ = layout.BEGUN
_WAITS_WORD, _WAITS_STRIDE, _ = layout.WAITS


@dataclass(slots=True)
class StepFacts:
    """The numbers of a step that are published together. `layout.NONE`: absent."""

    step: int = layout.NONE
    attempt: int = 0
    commits: int = 0
    last_commit_ns: int = layout.NONE
    quorum_id: int = layout.NONE
    participants: int = layout.NONE
    healing: bool = False
    errored: bool = False
    replica_id: int = layout.NO_STRING
    tokens: int = 0
    loss_kind: int = layout.LOSS_ABSENT
    loss: float = 0.0
    committed_step: int = layout.NONE
    failures: int = 0


@dataclass(slots=True, eq=False, kw_only=True)
class CallRow:
    """What this rank counts as one: the collectives of a group, or its transfers with one peer."""

    index: int
    """The process group's."""
    word: int
    """Where its head begins."""
    enqueued: int = 0
    completed: int = 0
    attempt: int = -1
    nth: int = 0
    held: int = 0
    held_since: int = 0


@dataclass(slots=True, eq=False, kw_only=True)
class GroupRow(CallRow):
    """The collectives of one process group."""

    name: str
    members: tuple[int, ...]


_TIMEOUT_MOST_S = 1e9
"""Some programs say "never" with the largest number there is."""
_Transfers = tuple[int, int, int, bool]
"""Group's index, peer, tag, and whether they are sends."""
_POSTED_MOST = 16_384
"""Peers and tags without a row of which the count is kept."""


class PageWriter:
    """Writes the page of this process. Create with `PageWriter.create`."""

    def __init__(self, buffer: mmap.mmap | bytearray) -> None:
        self._attach_buffer(buffer)
        self.group_rank = 0
        """The number of the rank whose page it is."""
        self._lock = threading.RLock()
        self._strings: dict[str, int] = {}
        self._error_count = 0
        self._numbers: dict[layout.NameTable, dict[bytes, int]] = {}
        self._rows: dict[tuple[str, tuple[int, ...]], GroupRow] = {}
        self._transfers: dict[_Transfers, CallRow] = {}
        self._posted: dict[_Transfers, int] = {}
        """How many there were of those that lost their row."""
        self._tickets = itertools.count()
        self._spent = [0] * layout.MAX_PHASES
        self._progress = 0
        self.phase = layout.PHASE_INIT
        """The phase that runs now; change it with `change_phase`."""
        self._waiting = layout.NONE
        self._since = monotonic_ns()
        self._step_writes = 0
        self._tag_bits = 0
        self._tag_depths = [0] * layout.MAX_TAGS
        self._totals = [0.0] * layout.MAX_COUNTERS
        self._note_stamps = [0] * len(layout.NOTE_SLOT_BYTES)
        self._pair_stamps: dict[layout.SlotPair, int] = {}
        self._times = [[0] * layout.TIMES[0].values for _ in layout.TIMES]
        self.heals = 0
        """Checkpoints loaded from other groups so far, each part counted."""
        self.trains = threading.main_thread().ident
        """Ident of the thread that trains."""
        self.training_thread = os.getpid()  # the main thread's; stale in `threading` after a fork
        """Native id of the thread that trains."""
        self._waits_stamp = 0
        self._waits: list[int] = []
        """What the training thread waits in, innermost last."""
        self._asks = True
        self._waits_since = 0
        self._waited = 0

    def _attach_buffer(self, buffer: mmap.mmap | bytearray) -> None:
        self._buffer = buffer
        self._bytes = memoryview(buffer)
        self._words = self._bytes.cast("q")
        end = layout.COUNTER_WORD + layout.MAX_COUNTERS
        self._counters = self._words[layout.COUNTER_WORD : end].cast("B").cast("d")
        self._spent_words = self._words[layout.SPENT_WORD : layout.SPENT_WORD + layout.MAX_PHASES]

    def detach(self) -> None:
        """From now on write to private memory: a forked child is not the rank."""
        self._attach_buffer(bytearray(layout.TOTAL_BYTES))
        self._lock = threading.RLock()  # another thread may have held it at the fork

    def keep(self) -> None:
        """Never unmap it: that closes a descriptor, which may be the program's own by then."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._buffer))

    @classmethod
    def create(
        cls, path: Path, identity: Identity, start_ticks: int, claim: Claim | None = None
    ) -> PageWriter:
        """A new page file, complete before it gets its name.

        Raises:
            OSError: no space, no permission, or the file exists.
        """
        content = asdict(identity) | {"claim": asdict(claim or Claim())}
        blob = json.dumps(content, separators=(",", ":")).encode()
        if len(blob) > layout.IDENTITY_BYTES:
            raise OSError(f"identity takes {len(blob)} bytes, more than {layout.IDENTITY_BYTES}")
        draft = path.with_suffix(".draft")
        fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # On a full tmpfs a store into a hole is SIGBUS: allocate now, or fail.
            os.posix_fallocate(fd, 0, layout.TOTAL_BYTES)
            # and fill the page tables: a fault costs more than a step's report
            page = cls(mmap.mmap(fd, layout.TOTAL_BYTES, mmap.MAP_SHARED | mmap.MAP_POPULATE))
            page._start(blob, start_ticks)
            page.group_rank = identity.group_rank
            draft.rename(path)
        finally:
            os.close(fd)
            with contextlib.suppress(OSError):
                draft.unlink()
        return page

    def _start(self, identity: bytes, start_ticks: int) -> None:
        end = layout.IDENTITY_OFFSET + len(identity)
        self._bytes[layout.IDENTITY_OFFSET : end] = identity
        words = self._words
        words[layout.W_VERSION] = layout.VERSION
        words[layout.W_TOTAL_BYTES] = layout.TOTAL_BYTES
        words[layout.W_IDENTITY_BYTES] = len(identity)
        words[layout.W_START_TICKS] = start_ticks
        words[layout.W_BEAT] = words[layout.W_STARTED] = self._since
        for name in layout.FIRST_STRINGS:
            self.intern(name)
        for name in layout.FIRST_PHASES:
            self.phase_id(name)
        words[layout.W_MAGIC] = layout.MAGIC

    # -- liveness ---------------------------------------------------------------------------

    def beat(self) -> None:
        """Report that the interpreter runs."""
        self._words[layout.W_BEAT] = monotonic_ns()

    def progress(self) -> tuple[int, ...]:
        """It changes with each phase, step and collective."""
        calls = [row.enqueued + row.completed for row in list(self._rows.values())]
        return self._progress, self._step_writes, self._words[layout.W_ENDED], *calls

    def close(self) -> None:
        """Report that the rank's work is over, so its death is no failure."""
        self._words[layout.W_CLOSED] |= 1

    def end(self, *, by_sigterm: bool = False) -> None:
        """Report that the interpreter is ending: beats stop."""
        self._words[layout.W_CLOSED] |= 6 if by_sigterm else 2

    def write_text(self, word: int, text: str) -> None:
        """Store a text: put its string number into this word of the header."""
        self._words[word] = self.intern(text)

    def write_timeout(self, word: int, seconds: float) -> None:
        """Publish after how long a wait ends by itself; `word` says which."""
        self._words[word] = int(min(seconds, _TIMEOUT_MOST_S) * 1e9)

    # -- phases -----------------------------------------------------------------------------

    def phase_id(self, name: str) -> int:
        """Number of a phase; after 16 names, all others count as `other`."""
        number = self.number_of(name, layout.PHASE_NAMES)
        if name == WAITING_PHASE and number is not None:
            self._waiting = number
        return layout.PHASE_OTHER if number is None else number

    def change_phase(self, phase: int) -> int:
        """End the running phase and begin `phase`, which counts as progress; returns the time."""
        words = self._words
        now = monotonic_ns()
        old = self.phase
        self._progress = stamp = self._progress + 1
        slot = _PHASE_WORD + (stamp & 1) * _PHASE_STRIDE
        words[slot] = stamp
        spent = self._spent
        spent[old] = total = spent[old] + now - self._since
        words[layout.SPENT_WORD + old] = total
        words[slot + 1] = phase
        words[slot + 2] = now
        words[slot + 3] = stamp
        self.phase = phase
        self._since = now
        return now

    # -- step -------------------------------------------------------------------------------

    def begin_attempt(self, attempt: int, step: int) -> None:
        """Publish that an attempt begins; attempts count up one by one."""
        words = self._words
        slot = _BEGUN_WORD + (attempt & 1) * _BEGUN_STRIDE
        words[slot] = attempt
        words[slot + 1] = step
        words[slot + 2] = attempt

    def write_step(self, facts: StepFacts) -> None:
        self._step_writes = stamp = self._step_writes + 1
        slot = layout.STEP.word + (stamp & 1) * layout.STEP.stride
        self._words[slot] = stamp  # separately: pack_into writes zeros first
        _pack_step(
            self._buffer, (slot + 1) * layout.WORD,
            facts.step, facts.attempt, facts.commits, facts.last_commit_ns, facts.quorum_id,
            facts.participants, facts.healing, facts.errored, facts.replica_id, facts.tokens,
            facts.loss_kind, facts.committed_step, facts.failures, facts.loss, stamp,
        )  # fmt: skip

    def count_local_step(self) -> None:
        """Count a step that is no attempt of its own."""
        self._words[layout.LOCAL_STEPS_WORD] += 1

    def end_attempt(
        self, attempt: int, step: int, begin_ns: int, end_ns: int, committed: int
    ) -> None:
        """Put a finished attempt into the steps ring; attempts count up one by one."""
        words = self._words
        at = layout.STEPS_WORD + attempt % layout.STEPS_SLOTS * layout.STEPS_SLOT_WORDS
        words[at] = attempt
        _pack_attempt(self._buffer, (at + 1) * layout.WORD, step, begin_ns, end_ns, committed)
        spent = at + layout.STEPS_SPENT_WORD
        words[spent : spent + layout.MAX_PHASES] = self._spent_words
        phase = self.phase
        words[spent + phase] = self._spent[phase] + end_ns - self._since
        words[at + layout.STEPS_LAST_WORD] = attempt
        words[layout.W_ENDED] = attempt

    def write_sources(self, steps: str, phases: str, *, waits_declared: bool) -> None:
        """Publish who reports the steps and who the phases; "" for none."""
        self.write_text(layout.W_STEP_SOURCE, steps)
        self.write_text(layout.W_PHASE_SOURCE, phases)
        self._words[layout.W_WAITS_DECLARED] = waits_declared

    # -- names ------------------------------------------------------------------------------

    def intern(self, text: str, *, is_error: bool = False) -> int:
        """Number of a string, kept for the life of the page; `TABLE_FULL` when there is no room."""
        number = self._strings.get(text)
        if number is not None:
            return number
        with self._lock:
            number = self._strings.get(text, len(self._strings))
            crowded = is_error and self._error_count >= layout.MAX_ERRORS
            if number >= layout.MAX_STRINGS or crowded:
                return layout.TABLE_FULL
            self._error_count += is_error
            blob = text.encode(errors="replace")[: layout.STRING_BYTES - 1]
            offset = layout.STRING_OFFSET + number * layout.STRING_BYTES
            self._bytes[offset + 1 : offset + 1 + len(blob)] = blob
            self._bytes[offset] = len(blob)
            self._words[layout.W_STRINGS] = number + 1
            self._strings[text] = number
        return number

    def number_of(self, name: str, table: layout.NameTable) -> int | None:
        """Number of a name, kept for the life of the page; None when the table is full."""
        blob = layout.encode_name(name, layout.NAME_BYTES)
        with self._lock:
            numbers = self._numbers.setdefault(table, {})
            number = numbers.get(blob, len(numbers))
            if number >= table.most:
                return None
            if number == len(numbers):
                at = table.offset + number * layout.NAME_BYTES
                self._bytes[at : at + len(blob)] = blob
                self._words[table.count_word] = number + 1
                numbers[blob] = number
        return number

    # -- process groups -----------------------------------------------------------------------

    def group_row(self, name: str, size: int, members: tuple[int, ...] = ()) -> GroupRow | None:
        """The row of a process group, by name and members; None when the table is full.

        A second group of the same name with other members becomes `name#2`.
        """
        with self._lock:
            row = self._rows.get((name, members))
            if row is not None:
                return row
            index = len(self._rows)
            if index >= layout.MAX_GROUPS:
                return None
            row = GroupRow(
                index=index,
                word=layout.group_head(index),
                name=self._unique_group_name(name),
                members=members,
            )
            self._write_row(row, size)
            self._rows[name, members] = row
            self._words[layout.W_GROUPS] = index + 1
        return row

    def restart_group(self, row: GroupRow, size: int) -> GroupRow:
        """The group is recreated under the same name: its sequence ids restart at 1.

        Works of the old group may still complete; they no longer move the head. Nor do its sends
        and receives, which begin at 1 too.
        """
        fresh = replace(row, enqueued=0, completed=0, attempt=-1, nth=0)
        with self._lock:
            self._retire(row)
            self._words[row.word] = size
            key = next(key for key, other in self._rows.items() if other.index == row.index)
            self._rows[key] = fresh
            for at, transfers in self._transfers.items():
                if at[0] == row.index:
                    self._transfers[at] = replace(transfers, enqueued=0, completed=0, nth=0)
                    self._retire(transfers)
            self._posted = {at: n for at, n in self._posted.items() if at[0] != row.index}
        return fresh

    def _retire(self, row: CallRow) -> None:
        row.completed = layout.RETIRED
        for word in (6, 1, 2):
            self._words[row.word + word] = 0

    def transfer_row(self, group: GroupRow, peer: int, tag: int, *, sends: bool) -> CallRow:
        """The row of the sends to this peer with this tag, or of the receives from it."""
        key = group.index, peer, tag, sends
        row = self._transfers.get(key)
        return self._new_transfer_row(key) if row is None else row

    def _new_transfer_row(self, key: _Transfers) -> CallRow:
        words = self._words
        with self._lock:
            row = self._transfers.get(key)
            if row is not None:
                return row
            index, held = len(self._transfers), 0
            word = layout.transfer_head(index)
            if index == layout.MAX_TRANSFERS:
                word, held = self._take_row()
            posted = self._posted.pop(key, 0)
            row = CallRow(index=key[0], word=word, enqueued=posted, completed=posted, held=held)
            words[word] = 0
            for n, value in ((1, posted), (2, posted), (4, 0), (5, 0), (6, 0), (8, key[1]),
                             (9, key[2]), (10, key[3]), (0, key[0] + 1)):  # fmt: skip
                words[word + n] = value
            self._transfers[key] = row
            words[layout.TRANSFER_COUNT_WORD] = len(self._transfers)
        return row

    def _take_row(self) -> tuple[int, int]:
        """Where the row unused for longest lies, and its `held`; a finished one if there is one.

        What is still open of it no longer moves a head.
        """
        words = self._words
        key, row = min(
            self._transfers.items(),
            key=lambda item: (item[1].completed < item[1].enqueued, words[item[1].word + 4]),
        )
        del self._transfers[key]
        if len(self._posted) >= _POSTED_MOST:
            del self._posted[next(iter(self._posted))]
        self._posted[key] = row.enqueued
        word, row.word = row.word, layout.transfer_head(layout.MAX_TRANSFERS)
        return word, row.held

    def _unique_group_name(self, name: str) -> str:
        """As it will be read: long names that differ only at the end must stay two."""
        short = layout.encode_name(name, layout.GROUP_NAME_BYTES - len("#63")).decode()
        taken = {row.name for row in self._rows.values()}
        copies = (f"{short}#{n}" for n in range(2, layout.MAX_GROUPS + 2))
        return next(text for text in (short, *copies) if text not in taken)

    def _write_row(self, row: GroupRow, size: int) -> None:
        offset = layout.GROUP_OFFSET + row.index * layout.GROUP_BYTES
        name = row.name.encode()
        self._bytes[offset : offset + len(name)] = name
        members = layout.encode_members(row.members).encode()
        if len(members) < layout.GROUP_MEMBERS_BYTES:  # else unknown, rather than half a list
            at = offset + layout.GROUP_NAME_BYTES
            self._bytes[at : at + len(members)] = members
        self._words[row.word] = size

    # -- the ring -----------------------------------------------------------------------------

    def enter(  # noqa: PLR0917
        self,
        row: CallRow,
        op: int,
        dtype: int,
        reduce_op: int,
        root: int,
        step: int,
        attempt: int,
        site: int,
        is_async: int,
        thread: int,
        tag: int,
        shapes: bytes,
    ) -> tuple[int, int]:
        """Record that a collective or transfer is entered; pass the result to `leave`.

        `is_async`: bit 0, and the quorum id + 1 of TorchFT's groups above it. `thread`: a native
        id; 0: the training thread.
        """
        words = self._words
        now = monotonic_ns()
        row.enqueued = seq = row.enqueued + 1
        if row.attempt != attempt:
            row.attempt = attempt
            row.nth = 0
        nth = row.nth
        row.nth = nth + 1
        ticket = next(self._tickets)
        at = _RING_WORD + ticket % _RING_SLOTS * _RING_STRIDE
        words[at] = ticket + 1
        _pack_call(
            self._buffer, (at + 1) * _WORD,
            row.index, seq, op, dtype, reduce_op, root, step, attempt, nth, site, now, 0, 0,
            is_async, thread or self.training_thread, tag, shapes, ticket + 1,
        )  # fmt: skip
        word = row.word
        words[word + 3] = op
        words[word + 4] = now
        if not is_async:
            words[word + 6] = seq
            row.held_since = now
        words[word + 1] = seq
        return ticket, seq

    def hold(self, row: CallRow, seq: int) -> None:
        """Record that the thread waits for a collective that was launched earlier."""
        self._words[row.word + 6] = seq
        row.held_since = monotonic_ns()

    def leave(self, row: CallRow, ticket: int, seq: int, error: int = layout.NO_STRING) -> None:
        """Record that the collective was left, by return or by exception."""
        words = self._words
        now = monotonic_ns()
        at = _RING_WORD + ticket % _RING_SLOTS * _RING_STRIDE
        if words[at] == ticket + 1:  # else a later call has the slot
            if error:
                words[at + layout.RING_ERROR_WORD] = error
            words[at + layout.RING_EXIT_WORD] = now
        if seq > row.completed:
            row.completed = seq
            words[row.word + 2] = seq
        words[row.word + 5] = now
        if words[row.word + 6] == seq:
            words[row.word + 6] = 0
            if self.phase != self._waiting:
                row.held = held = row.held + now - row.held_since
                words[row.word + 7] = held

    # -- notes ------------------------------------------------------------------------------

    def write_note(self, kind: int, text: str) -> None:
        """Leave a text for later readers of the page; it replaces the last of its kind.

        What does not fit is cut at the end.
        """
        size = layout.NOTE_SLOT_BYTES[kind]
        room = size - layout.NOTE_HEADER_BYTES
        blob = text[:room].encode(errors="replace")
        if len(text) > room or len(blob) > room:
            end = layout.NOTE_CUT.encode()
            blob = blob[: room - len(end)].decode(errors="ignore").encode() + end
        with self._lock:
            self._note_stamps[kind] = stamp = self._note_stamps[kind] + 1
            offset = layout.NOTE_OFFSETS[kind] + (stamp & 1) * size
            word = offset // layout.WORD
            self._words[word] = stamp
            self._words[word + 1] = monotonic_ns()
            self._words[word + 2] = len(blob)
            start = offset + layout.NOTE_HEADER_BYTES
            self._bytes[start : start + len(blob)] = blob
            self._words[word + 3] = stamp

    # -- times --------------------------------------------------------------------------------

    def add_time(self, kind: int, seconds: float, nbytes: int = 0) -> None:
        """Count one more checkpoint staged, loaded or applied, quorum found or group reconfigured.

        Args:
            kind: which of these.
            seconds: its duration.
            nbytes: of the state; 0 if there is none, or its size is unknown.
        """
        spent_ns = max(0, int(seconds * 1e9))
        with self._lock:
            self.heals += kind == layout.TIME_LOAD
            row = self._times[kind]
            count, sum_ns, _, sum_bytes, _ = row
            row[:] = count + 1, sum_ns + spent_ns, spent_ns, sum_bytes + nbytes, nbytes
            self.write_pair(layout.TIMES[kind], row)

    # -- soundness of the state ---------------------------------------------------------------

    def watch_gradients(self, *, on: bool) -> None:
        """Report whether a non-finite gradient would be seen."""
        self._words[layout.W_GRADIENTS] = on

    def write_prints(self, lane: int, lineage: int, rows: Sequence[tuple[int, int, int]]) -> None:
        """Publish the last fingerprints (step, value, part), newest last; at most `PRINTS_KEPT`."""
        absent = [(layout.NONE, 0, 0)] * (layout.PRINTS_KEPT - len(rows))
        flat = [number for row in (*absent, *rows) for number in row]
        self.write_pair(layout.PRINTS, (lane, lineage, *flat))

    def write_pair(self, pair: layout.SlotPair, values: Sequence[int]) -> None:
        """Publish these numbers together."""
        with self._lock:
            self._pair_stamps[pair] = stamp = self._pair_stamps.get(pair, 0) + 1
            word = pair.word + (stamp & 1) * pair.stride
            self._words[word] = stamp
            for n, value in enumerate((*values, stamp), 1):
                self._words[word + n] = value

    # -- what the training thread waits in ------------------------------------------------------

    def trains_here(self) -> None:
        """From now on this is the training thread; until then the main thread is."""
        with self._lock:
            if self.trains != get_ident():
                self.trains = get_ident()
                self.training_thread = get_native_id()
                self._waits.clear()

    def tell_waits(self) -> None:
        """Report waits from now on, even of 0 s: quorums are seen here."""
        with self._lock:
            self._write_waits(monotonic_ns())

    def begin_wait(self, kind: int) -> None:
        """Report that the training thread waits for others; nested waits count once."""
        if self.trains != get_ident() and not serves_training():
            return
        with self._lock:
            now = monotonic_ns()
            if self._waits:
                self._waited += now - self._waits_since
            self._waits.append(kind)
            if kind or len(self._waits) > 1:
                self._write_waits(now)
            else:  # not shown until it is over
                self._waits_since = now

    def end_wait(self, kind: int) -> None:
        """End the waits of this kind and those within: an interrupt may have left one."""
        if not self._waits or (self.trains != get_ident() and not serves_training()):
            return
        with self._lock:
            if kind not in self._waits:
                return
            now = monotonic_ns()
            self._waited += now - self._waits_since
            del self._waits[self._waits.index(kind) :]
            self._write_waits(now)

    def ask_quorum(self, asks: bool) -> None:
        """Report whether TorchFT's own thread asks for a quorum, or has its answer."""
        if asks is self._asks:
            return
        with self._lock:
            self._asks = asks
            if self._waits and self._waits[-1] == layout.WAIT_QUORUM:
                now = monotonic_ns()
                self._waited += now - self._waits_since
                self._write_waits(now)

    def _write_waits(self, now: int) -> None:
        self._waits_stamp = stamp = self._waits_stamp + 1
        self._waits_since = now
        words, word = self._words, _WAITS_WORD + (stamp & 1) * _WAITS_STRIDE
        words[word] = stamp
        kind = self._waits[-1] if self._waits else 0
        asks = self._asks or kind != layout.WAIT_QUORUM
        words[word + 1] = kind if asks else layout.WAIT_HEAL
        words[word + 2] = now
        words[word + 3] = self._waited
        words[word + 4] = stamp

    # -- tags and counters ------------------------------------------------------------------

    def turn_tag(self, tag: int, *, on: bool) -> None:
        """Turn a tag on or off; it stays on until it was turned off as often as on."""
        with self._lock:
            self._tag_depths[tag] = depth = max(0, self._tag_depths[tag] + (1 if on else -1))
            bit = 1 << tag
            self._tag_bits = bits = self._tag_bits | bit if depth else self._tag_bits & ~bit
            self._words[layout.W_TAG_BITS] = bits

    def add_count(self, counter: int, amount: float) -> None:
        with self._lock:
            self._totals[counter] = total = self._totals[counter] + amount
            self._counters[counter] = total


def serves_training() -> bool:
    """True in a thread that Python did not start: autograd runs hooks there, and training waits.
    `current_thread` would make it known to `threading`, and who joins all threads fail.
    """
    thread = threading._active.get(get_ident())  # type: ignore[attr-defined]
    return thread is None or isinstance(thread, threading._DummyThread)
