"""What the rank says beside its step and phase: notes, times, tags and counters.

None of it is on the hot path of a step. Any thread may call, also from within a signal handler:
that is why the lock is one that its holder may take again.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Sequence
from threading import get_ident
from time import monotonic_ns

from worker_server.page import layout


class AsideWriter:
    """The part of the page's writer that keeps what belongs to no step."""

    def __init__(self, buffer: mmap.mmap | bytearray) -> None:
        self._attach_buffer(buffer)
        self._lock = threading.RLock()
        self._tag_ids: dict[bytes, int] = {}
        self._counter_ids: dict[bytes, int] = {}
        self._tag_bits = 0
        self._tag_depths = [0] * layout.MAX_TAGS
        self._totals = [0.0] * layout.MAX_COUNTERS
        self._note_stamps = [0] * len(layout.NOTE_SLOT_BYTES)
        self._time_stamps = [0] * layout.MAX_TIMES
        self._times = [[0] * (layout.TIME_LAST_WORD - 1) for _ in range(layout.MAX_TIMES)]
        self._spoilt_stamp = 0
        self._prints_stamp = 0
        self._trains = threading.main_thread().ident
        self._waits_stamp = 0
        self._waits: list[int] = []
        self._asks = True
        """What the training thread waits in, innermost last."""
        self._waits_since = 0
        self._waited = 0

    def _attach_buffer(self, buffer: mmap.mmap | bytearray) -> None:
        self._buffer = buffer
        self._bytes = memoryview(buffer)
        self._words = self._bytes.cast("q")
        end = layout.COUNTER_WORD + layout.MAX_COUNTERS
        self._counters = self._words[layout.COUNTER_WORD : end].cast("B").cast("d")

    def detach(self) -> None:
        """From now on write into private memory: what a forked child does is not the rank's."""
        self._attach_buffer(bytearray(layout.TOTAL_BYTES))
        self._lock = threading.RLock()  # another thread may have held it at the fork

    # -- notes ------------------------------------------------------------------------------

    def write_note(self, kind: int, text: str) -> None:
        """Leave a text for whoever reads the page later; it replaces the former of its kind.

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

    def add_time(self, kind: int, seconds: float, nbytes: int = 0, *, again: bool = False) -> None:
        """Count one more checkpoint staged, loaded or applied, quorum found or group reconfigured.

        Args:
            kind: which of these.
            seconds: that it took.
            nbytes: of the state; 0 where there is none, or it cannot be told.
            again: it belongs to the one before, which takes longer and moves more by this.
        """
        spent_ns = max(0, int(seconds * 1e9))
        with self._lock:
            self._time_stamps[kind] = stamp = self._time_stamps[kind] + 1
            row = self._times[kind]
            count, sum_ns, last_ns, sum_bytes, last_bytes = row
            row[:] = (
                count if again else count + 1,
                sum_ns + spent_ns,
                spent_ns + (last_ns if again else 0),
                sum_bytes + nbytes,
                nbytes + (last_bytes if again else 0),
            )
            word = layout.TIME_WORD + (2 * kind + (stamp & 1)) * layout.TIME_SLOT_WORDS
            self._words[word] = stamp
            for n, value in enumerate((*row, stamp), 1):
                self._words[word + n] = value

    @property
    def heals(self) -> int:
        """Checkpoints loaded from other groups so far, each part by itself."""
        return self._time_stamps[layout.TIME_LOAD]

    # -- soundness of the state ---------------------------------------------------------------

    def write_spoilt(self, step: int, place: int, since_ns: int, run: int, attempts: int) -> None:
        """Say at which step, and where, this rank was first not finite, and how often it was."""
        with self._lock:
            self._spoilt_stamp = stamp = self._spoilt_stamp + 1
            word = layout.SPOILT_WORD + (stamp & 1) * layout.SPOILT_SLOT_WORDS
            self._words[word] = stamp
            for n, value in enumerate((step, place, since_ns, run, attempts, stamp), 1):
                self._words[word + n] = value

    def watch_gradients(self, *, on: bool) -> None:
        """Say whether a gradient that is not finite would be seen."""
        self._words[layout.W_GRADIENTS] = on

    def write_prints(self, lane: int, lineage: int, rows: Sequence[tuple[int, int, int]]) -> None:
        """Publish the last fingerprints (step, value, part), newest last; at most `PRINTS_KEPT`."""
        absent = [(layout.NONE, 0, 0)] * (layout.PRINTS_KEPT - len(rows))
        flat = [number for row in (*absent, *rows) for number in row]
        with self._lock:
            self._prints_stamp = stamp = self._prints_stamp + 1
            word = layout.PRINTS_WORD + (stamp & 1) * layout.PRINTS_SLOT_WORDS
            self._words[word] = stamp
            for n, value in enumerate((lane, lineage, *flat, stamp), 1):
                self._words[word + n] = value

    # -- what the training thread waits in ------------------------------------------------------

    def trains_here(self) -> None:
        """From now on this thread is the one that trains; before, the main thread is."""
        with self._lock:
            if self._trains != get_ident():
                self._trains = get_ident()
                self._waits.clear()

    def tell_waits(self) -> None:
        """Let "waited for 0 s" be told from now on: quorums are seen here."""
        with self._lock:
            self._write_waits(monotonic_ns())

    def begin_wait(self, kind: int) -> None:
        """Say that the training thread waits for others now; of nested waits the union counts."""
        if self._trains != get_ident() and not _serves_training():
            return
        with self._lock:
            now = monotonic_ns()
            if self._waits:
                self._waited += now - self._waits_since
            self._waits.append(kind)
            if kind or len(self._waits) > 1:
                self._write_waits(now)
            else:  # shows nowhere before it is over
                self._waits_since = now

    def end_wait(self, kind: int) -> None:
        """End the waits of this kind and what began within: an interrupt may have left one."""
        if not self._waits or (self._trains != get_ident() and not _serves_training()):
            return
        with self._lock:
            if kind not in self._waits:
                return
            now = monotonic_ns()
            self._waited += now - self._waits_since
            del self._waits[self._waits.index(kind) :]
            self._write_waits(now)

    def ask_quorum(self, asks: bool) -> None:
        """Say whether TorchFT's own thread asks for a quorum, or is past its answer."""
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
        words, word = self._words, layout.WAITS_WORD + (stamp & 1) * layout.WAITS_SLOT_WORDS
        words[word] = stamp
        kind = self._waits[-1] if self._waits else 0
        asks = self._asks or kind != layout.WAIT_QUORUM
        words[word + 1] = kind if asks else layout.WAIT_HEAL
        words[word + 2] = now
        words[word + 3] = self._waited
        words[word + 4] = stamp

    # -- tags and counters ------------------------------------------------------------------

    def tag_id(self, name: str) -> int | None:
        """Number of a tag, kept for the life of the page; None past 16 names."""
        return self._name(
            name, self._tag_ids, layout.MAX_TAGS, layout.TAG_NAME_OFFSET, layout.W_TAGS
        )

    def begin_tag(self, tag: int) -> None:
        """Turn a tag on; it stays on until it was ended as often as it was begun."""
        with self._lock:
            self._tag_depths[tag] += 1
            self._tag_bits = bits = self._tag_bits | 1 << tag
            self._words[layout.W_TAG_BITS] = bits

    def end_tag(self, tag: int) -> None:
        """Turn a tag off where it was turned on last."""
        with self._lock:
            self._tag_depths[tag] -= 1
            if self._tag_depths[tag] <= 0:
                self._tag_depths[tag] = 0
                self._tag_bits = bits = self._tag_bits & ~(1 << tag)
                self._words[layout.W_TAG_BITS] = bits

    def counter_id(self, name: str) -> int | None:
        """Number of a counter, kept for the life of the page; None past 16 names."""
        return self._name(
            name, self._counter_ids, layout.MAX_COUNTERS, layout.COUNTER_NAME_OFFSET,
            layout.W_COUNTERS,
        )  # fmt: skip

    def add_count(self, counter: int, amount: float) -> None:
        """Count up."""
        with self._lock:
            self._totals[counter] = total = self._totals[counter] + amount
            self._counters[counter] = total

    def _name(
        self, name: str, known: dict[bytes, int], limit: int, offset: int, count_word: int
    ) -> int | None:
        blob = layout.encode_name(name, layout.NAME_BYTES)
        with self._lock:
            number = known.get(blob, len(known))
            if number >= limit:
                return None
            if number == len(known):
                at = offset + number * layout.NAME_BYTES
                self._bytes[at : at + len(blob)] = blob
                self._words[count_word] = number + 1
                known[blob] = number
        return number


def _serves_training() -> bool:
    """Whether this thread is none of Python's: autograd runs hooks in threads of its own, while
    the training thread waits for them in `backward`.
    """
    return isinstance(threading.current_thread(), threading._DummyThread)
