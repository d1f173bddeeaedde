"""The journal of a running monitor: written in its own thread, so that it never delays a tick.

Theory of operation. `take` puts a tick into a bounded queue and returns; the thread turns ticks
into lines and lines into files. When a file is full or old, the thread asks for a new one; before
the next tick, `before_tick` adds the pipeline's memory, with which that file begins. When the disk
refuses or hangs, ticks are lost: the queue is bounded, and what is on disk stays readable up to
there. Since a lost tick changed the memory, the journal continues with a new file and the memory of
that moment. A tick that cannot be written for another reason is lost in the same way, and with it
those that already wait behind it: usually none. A memory that cannot be written costs no tick: the
file begins without it, and can be replayed only after those before it. The loop notices only
`troubles`.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import shutil
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Final

from lightkeeper.monitor.background import BackgroundWorker
from lightkeeper.monitor.decide.pipeline import TickResult
from lightkeeper.monitor.decide.rules import Policy
from lightkeeper.monitor.journal import memory
from lightkeeper.monitor.journal.entries import Head, Packer, head_text, outcome_of, tick_text
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.observation import Snapshot

# -- files -------------------------------------------------------------------------------------

PATTERN: Final = "journal-*.gz"
SPARE_BYTES: Final = 64 << 20
"""Free space left to others on the same disk: the store comes first."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of the past is kept."""

    total_bytes: int = 256_000_000
    file_bytes: int = 32_000_000
    """Size at which a new file begins. Each begins with the pipeline's whole memory: that takes up
    more of a smaller file; with larger ones, removing the oldest loses more of the past."""
    file_s: float = 3600.0
    """A new file begins at least this often."""


class JournalDir:
    """The files of one folder. Any method may raise OSError."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self.folder = folder
        self.limits = limits

    def new(self, began_s: float, number: int, coming: int) -> tuple[Path, BinaryIO]:
        """Create a file; the oldest ones are removed to make room for its `coming` bytes."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.prune(coming)
        self.check_room()
        at = datetime.datetime.fromtimestamp(began_s, tz=datetime.UTC)
        path = self.folder / f"journal-{at:%Y%m%dT%H%M%S.%f}Z-{number:04d}.gz"
        return path, path.open("xb", buffering=0)

    def check_room(self) -> None:
        """Check the free space.

        Raises:
            OSError: there is less than others on the same disk need.
        """
        free = shutil.disk_usage(self.folder).free
        if free < SPARE_BYTES:
            raise OSError(f"{free >> 20} MiB are free, {SPARE_BYTES >> 20} MiB are left to others")

    def prune(self, coming: int, keep: Path | None = None) -> None:
        """Remove the oldest files until `coming` more bytes fit below the total; never `keep`."""
        sizes = {path: size for path in files(self.folder) if (size := _size(path)) is not None}
        total = sum(sizes.values())
        for path, size in sizes.items():
            if total + coming <= self.limits.total_bytes:
                return
            if path != keep:
                path.unlink(missing_ok=True)
                total -= size


def files(folder: Path) -> list[Path]:
    """Journal files of a folder, oldest first."""
    return sorted(folder.glob(PATTERN))


def _size(path: Path) -> int | None:
    with contextlib.suppress(FileNotFoundError):
        return os.stat(path).st_size
    return None


# -- writer ------------------------------------------------------------------------------------

log = logging.getLogger(__name__)

RETRY_S: Final = 10.0
"""Pause between two new files after lost ticks. A shorter one copies the memory (10 ms at 1,000
ranks) more often for nothing; a longer one loses more ticks."""
_QUEUED_RANKS: Final = 20_000
"""Observations that may wait for the disk; 5 KB of memory each."""
_QUEUED_TICKS: Final = 60
_ROOM_EVERY: Final = 30
"""Ticks between two checks of the free space."""
_CLOSE_S: Final = 2.0


@dataclass(slots=True)
class Stats:
    """Counters since the start."""

    ticks: int = 0
    """Ticks written."""
    lost: int = 0
    waiting: int = 0
    bytes: int = 0
    """Compressed bytes written."""
    files: int = 0
    problem: str | None = None
    """Why the journal cannot be written now; None: it can."""
    incomplete: str | None = None
    """Why a file after the first cannot be replayed without those before it."""


@dataclass(frozen=True, slots=True)
class _Turn:
    head: Head
    frozen: Any = None


@dataclass(frozen=True, slots=True)
class _Seen:
    snapshot: Snapshot
    result: TickResult
    crash: str | None


class Journal:
    """Records ticks; close it when done.

    Args:
        head: what the run starts with; the run's id is filled in.
        remember: the pipeline's memory; called only between two ticks.
        after_tick: the last tick if the pipeline has seen any: then the first file begins with
            its memory.
    """

    def __init__(
        self,
        journal_dir: JournalDir,
        head: Head,
        remember: Callable[[], Mapping[str, object]],
        after_tick: int | None = None,
    ) -> None:
        self._dir = journal_dir
        self._head = replace(head, run=uuid.uuid4().hex, began_s=head.began_s or time.time())
        self._remember = remember
        self._lock = threading.Lock()
        self._queue: deque[_Turn | _Seen] = deque()
        self._stats = Stats()
        self._last_tick = after_tick or 0
        """The last tick that the pipeline has judged."""
        self._turn_asked = False
        self._broken = False
        """True if a tick was lost, so that only a new file can follow."""
        self._retry_s = 0.0
        """When the next file may begin after a lost tick, on the monotonic clock."""
        self._resumed_s = -RETRY_S
        """When a file last began for this reason."""
        self._room = _QUEUED_TICKS
        self._file: BinaryIO | None = None
        self._path: Path | None = None
        self._packer = Packer()
        self._values = memory.Writer(head.config)
        self._size = 0
        self._head_size = 0
        """A large fleet's memory may exceed any limit: the ticks then get as much room again."""
        self._opened_s = 0.0
        again = after_tick is not None
        self._queue.append(self._turn(self._head.began_s) if again else _Turn(self._head))
        self._worker = BackgroundWorker(
            "journal", self._write_waiting, after_crash_s=RETRY_S, to_the_end=True
        )
        self._worker.start()

    @property
    def stats(self) -> Stats:
        with self._lock:
            return replace(self._stats, waiting=len(self._queue))

    def troubles(self) -> Iterator[str]:
        """What is wrong with the journal, in sentences."""
        stats = self.stats
        if stats.problem is not None:
            yield f"the journal is not written ({stats.problem}): {stats.lost} ticks lost so far"
        if stats.incomplete is not None:
            yield f"files of the journal need those before them: {stats.incomplete}"

    # -- the loop's side ----------------------------------------------------------------------

    def take(self, snapshot: Snapshot, result: TickResult, crash: str | None = None) -> None:
        """Record a tick that the pipeline has just judged; returns at once."""
        with self._lock:
            self._last_tick = snapshot.tick
            self._room = _room(snapshot)
            full = len(self._queue) >= self._room
            if full or self._broken:
                self._stats.lost += 1
                self._broken = True
                if full and self._stats.problem is None:
                    waiting = f"the disk does not answer, {len(self._queue)} ticks wait for it"
                    self._stats.problem = waiting
            else:
                self._queue.append(_Seen(snapshot, result, crash))
                self._worker.wake()

    def before_tick(self, now_s: float) -> None:
        """Begin a new file if it is time to; call it before the pipeline judges a tick."""
        with self._lock:
            again = self._broken and time.monotonic() >= self._retry_s
            if not (again or self._turn_asked) or len(self._queue) >= self._room:
                return
            if again:
                self._resumed_s = time.monotonic()
        self._put_turn(now_s)

    def reconfigure(self, config: KeeperConfig, policy: Policy, *, now_s: float) -> None:
        """Begin a new file, whose head has the policy of the ticks that follow.

        Call it once the pipeline has taken the policy, between two ticks.
        """
        with self._lock:
            self._head = replace(self._head, config=config, policy=policy)
            if self._broken:
                return  # nothing is written until a new file begins anyway
        self._put_turn(now_s)

    def _put_turn(self, now_s: float) -> None:
        turn = self._turn(now_s)
        with self._lock:
            self._turn_asked = self._broken = False
            self._queue.append(turn)
        self._worker.wake()

    def _turn(self, now_s: float) -> _Turn:
        """The start of the next file: the pipeline's memory now."""
        frozen, problem = None, None
        try:
            frozen = memory.freeze(dict(self._remember()))
        except memory.MemoryFormatError as exc:
            problem = str(exc)
        head = replace(
            self._head, began_s=now_s, incidents=(), evictions=(),
            after_tick=self._last_tick, no_memory=problem, lost=self._stats.lost,
        )  # fmt: skip
        return _Turn(head, frozen)

    def close(self) -> None:
        """Write what waits and end the file; give up on a disk that hangs."""
        self._worker.close(_CLOSE_S)

    # -- the thread's side --------------------------------------------------------------------

    def _write_waiting(self) -> None:
        while self._queue:  # only this thread takes from it
            with self._lock:
                item = self._queue.popleft()
            try:
                self._write(item)
            except OSError as exc:
                self._fail(item, exc.strerror or str(exc))
            except Exception as exc:
                log.exception("the journal cannot write a tick")
                self._end_file()
                self._fail(item, f"{type(exc).__name__}: {exc}")
        if self._worker.closing:
            self._end_file()

    def _write(self, item: _Turn | _Seen) -> None:
        if isinstance(item, _Turn):
            self._begin(item)
            return
        outcome = outcome_of(item.result, item.crash)
        self._put(*tick_text(item.snapshot, outcome, self._values))
        age_s = time.monotonic() - self._opened_s
        if (self._stats.ticks + 1) % _ROOM_EVERY == 0:
            self._dir.check_room()
        over = self._size >= self._full_bytes or age_s >= self._dir.limits.file_s
        if over:
            self._dir.prune(0, keep=self._path)
        with self._lock:  # both at once: no one sees the count without the request
            self._stats.ticks += 1
            if over:  # only once: that file may already wait behind other ticks
                self._turn_asked = not any(isinstance(item, _Turn) for item in self._queue)

    @property
    def _full_bytes(self) -> int:
        """Size of a full file."""
        return max(self._dir.limits.file_bytes, 2 * self._head_size)

    def _begin(self, turn: _Turn) -> None:
        self._end_file()
        head, remembered = turn.head, None
        if turn.frozen is not None:
            try:
                remembered = memory.Writer(head.config).plain(turn.frozen)
            except memory.MemoryFormatError as exc:
                head = replace(head, no_memory=str(exc))
        number = self._stats.files + 1
        self._path, self._file = self._dir.new(time.time(), number, self._full_bytes)
        self._packer, self._values = Packer(), memory.Writer(head.config)
        self._size, self._opened_s = 0, time.monotonic()
        self._put(head_text(replace(head, number=number), remembered))
        self._head_size = self._size
        with self._lock:
            problem, self._stats.problem = self._stats.problem, None
            self._stats.files, self._stats.incomplete = number, head.no_memory
            self._turn_asked = False  # ticks that waited for this file may have set it
        if problem is not None:
            log.warning("the journal is written again, %s", self._path)

    def _put(self, *pieces: bytes) -> None:
        if self._file is None:
            raise OSError("there is no file")
        data = self._packer.line(*pieces)
        written = 0
        while written < len(data):
            written += self._file.write(data[written:])
        self._size += len(data)
        with self._lock:
            self._stats.bytes += len(data)

    def _fail(self, item: _Turn | _Seen, problem: str) -> None:
        """End the file and drop what waits: it cannot be replayed without the lost tick."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # what could be written has been
                file.close()
        with self._lock:
            lost = [item for item in (item, *self._queue) if isinstance(item, _Seen)]
            self._queue.clear()
            self._stats.lost += len(lost)
            before, self._stats.problem = self._stats.problem, problem
            self._broken, self._turn_asked = True, False
            self._retry_s = self._resumed_s + RETRY_S
        if before != problem:
            log.warning("the journal is not written: %s", problem)

    def _end_file(self) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        try:
            file.write(self._packer.end())
            file.close()
        except OSError as exc:
            log.warning("the end of a journal file is not written: %s", exc.strerror)


def _room(snapshot: Snapshot) -> int:
    """How many ticks of this fleet may wait."""
    return max(4, min(_QUEUED_TICKS, _QUEUED_RANKS // max(1, len(snapshot.observations))))
