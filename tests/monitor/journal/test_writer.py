"""The journal on disk: bounded, never in the way, and whole again after what befell the disk."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Container, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

import pytest

from lightkeeper.monitor.decide.pipeline import Pipeline, TickResult
from lightkeeper.monitor.journal import writer as writer_module
from lightkeeper.monitor.journal.entries import Head, JournalEnd, JournalTick
from lightkeeper.monitor.journal.replay import Closed, Opened, Replay, find_journals, journal_events
from lightkeeper.monitor.journal.writer import Journal, JournalDir, Limits, files
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.observation import Pause
from tests.monitor.fakes import wait_until
from tests.monitor.fleet import SimFleet, at, hang

CONFIG = KeeperConfig()
ODD = Pause(object(), "a bug", 0.0, None)  # type: ignore[arg-type]
"""Frozen, so that it is looked into only when it is written."""


@dataclass
class OddDisk(JournalDir):
    """Refuses every write while told to, or hangs in it."""

    folder: Path
    limits: Limits = field(default_factory=Limits)
    full: bool = False
    answers: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.answers.set()

    def new(self, began_s: float, number: int, coming: int) -> tuple[Path, BinaryIO]:
        self._refuse()
        path, file = super().new(began_s, number, coming)
        write = file.write
        disk = self

        class File:
            def write(self, data: bytes) -> int:
                disk.answers.wait(10)
                disk._refuse()
                return write(data[: max(1, len(data) // 2)])  # a disk may take a part

            def close(self) -> None:
                file.close()

        return path, File()  # type: ignore[return-value]

    def _refuse(self) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")


class Run:
    """A pipeline over a fleet, journalled."""

    def __init__(self, journal_dir: JournalDir, script=(), groups: int = 3) -> None:
        self.fleet = SimFleet(groups, 1, script)
        self.pipeline = Pipeline(CONFIG)
        self.journal = Journal(journal_dir, Head(CONFIG, "1.2.3"), self.pipeline.memory)
        self.results: dict[int, TickResult] = {}
        self.odd: Container[int] = ()
        """Ticks that the journal gets with something that it cannot write."""

    def tick(self, number: int = 1) -> None:
        for _ in range(number):
            snapshot = self.fleet.snapshot()
            self.journal.before_tick(snapshot.now_s)
            self.results[snapshot.tick] = result = self.pipeline.tick(snapshot)
            odd = snapshot.tick in self.odd
            self.journal.take(replace(snapshot, pause=ODD) if odd else snapshot, result)

    def slowly(self, number: int) -> None:
        """Tick by tick, each one written or lost before the next."""
        for _ in range(number):
            before = self.done()
            self.tick()
            wait_until(lambda before=before: self.done() > before, 5, "the tick is done with")

    def done(self) -> int:
        return self.journal.stats.ticks + self.journal.stats.lost

    def close(self) -> None:
        self.journal.close()


Start = Callable[..., Run]


@pytest.fixture
def start() -> Iterator[Start]:
    """Begins a run, which is closed in the end."""
    with ExitStack() as stack:
        yield lambda *words, **more: stack.enter_context(closing(Run(*words, **more)))


def ticks_of(folder: Path, results: dict[int, TickResult]) -> list[int]:
    """Ticks on disk, each file replayed as part of the whole, all of them as live."""
    replay, numbers = Replay(), []
    for event in journal_events(find_journals([folder])[0]):
        match event:
            case Opened():
                replay.begin(event.head)
            case JournalTick():
                assert replay.tick(event).result == results[event.snapshot.tick]
                numbers.append(event.snapshot.tick)
            case Closed():
                assert event.damage is None
    return numbers


def test_what_was_ticked_is_on_disk_and_decides_the_same(tmp_path: Path, start: Start) -> None:
    run = start(JournalDir(tmp_path / "j", Limits()), [at(20, hang("rg_1.0"))])
    run.tick(40)
    run.close()
    assert ticks_of(tmp_path / "j", run.results) == list(range(1, 41))
    (path,) = files(tmp_path / "j")
    assert list(journal_events(find_journals([path])[0]))[-1] == Closed(path, JournalEnd.WHOLE)
    stats = run.journal.stats
    assert (stats.ticks, stats.lost, stats.files, stats.problem) == (40, 0, 1, None)
    assert stats.bytes <= path.stat().st_size < stats.bytes + 100


def test_each_tick_can_be_read_as_soon_as_it_is_written(tmp_path: Path, start: Start) -> None:
    """What a SIGKILL would leave."""
    run = start(JournalDir(tmp_path, Limits()))
    for number in range(1, 6):
        run.slowly(1)
        assert ticks_of(tmp_path, run.results) == list(range(1, number + 1))


def test_files_turn_by_size_and_the_oldest_goes_and_each_stands_alone(
    tmp_path: Path, start: Start
) -> None:
    limits = Limits(total_bytes=32_000, file_bytes=6_000)
    run = start(JournalDir(tmp_path, limits), [at(40, hang("rg_1.0"))], groups=3)
    run.slowly(220)
    run.close()
    kept = files(tmp_path)
    assert run.journal.stats.files > len(kept) >= 3
    assert sum(path.stat().st_size for path in kept) <= limits.total_bytes
    assert run.journal.stats.lost == 0
    assert ticks_of(tmp_path, run.results)[-1] == 220
    for path in kept:
        assert len(ticks_of(path, run.results)) > 5 or path == kept[-1]


def test_a_file_that_is_full_asks_once_for_the_next_one(tmp_path: Path, start: Start) -> None:
    """Ticks that came before the next file did still go into the full one, and say so again."""
    run = start(JournalDir(tmp_path, Limits(file_bytes=6_000)))
    for _ in range(25):
        before = run.done()
        run.tick(8)
        wait_until(lambda before=before: run.done() == before + 8, 5, "the ticks are done with")
    run.close()
    kept = files(tmp_path)
    assert len(kept) > 2
    assert min(len(ticks_of(path, run.results)) for path in kept[:-1]) > 5


def test_a_memory_larger_than_a_file_may_be_is_not_written_at_every_tick(
    tmp_path: Path, start: Start
) -> None:
    run = start(JournalDir(tmp_path, Limits(file_bytes=1)), groups=8)
    run.slowly(60)
    run.close()
    assert 2 <= run.journal.stats.files <= 20
    assert ticks_of(tmp_path, run.results) == list(range(1, 61))


def test_files_turn_by_age(tmp_path: Path, start: Start) -> None:
    run = start(JournalDir(tmp_path, Limits(file_s=0.0)))
    run.slowly(4)
    run.close()
    assert len(files(tmp_path)) >= 3
    assert ticks_of(tmp_path, run.results) == [1, 2, 3, 4]


def test_a_full_disk_is_told_and_journalling_goes_on_when_there_is_room(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "RETRY_S", 0.0)
    disk = OddDisk(tmp_path)
    run = start(disk, [at(20, hang("rg_1.0"))])
    run.slowly(15)
    disk.full = True
    run.slowly(10)
    assert run.journal.stats.problem == "No space left on device"
    (trouble,) = run.journal.troubles()
    assert trouble.startswith("the journal is not written (No space left on device): ")
    disk.full = False
    run.slowly(1)
    wait_until(lambda: run.journal.stats.problem is None, 5, "it is written again")
    run.slowly(10)
    run.close()
    assert not list(run.journal.troubles())
    assert 9 <= run.journal.stats.lost <= 12
    numbers = ticks_of(tmp_path, run.results)  # in the middle of the hang, and yet as live
    assert numbers[:15] == list(range(1, 16))
    assert numbers[-9:] == list(range(28, 37))


def test_a_disk_that_hangs_holds_up_no_tick_and_fills_no_memory(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "_QUEUED_TICKS", 5)
    disk = OddDisk(tmp_path)
    run = start(disk)
    run.slowly(3)
    disk.answers.clear()
    run.tick(20)  # would never come back if it waited
    assert run.journal.stats.lost >= 10
    (trouble,) = run.journal.troubles()
    assert "the disk does not answer" in trouble
    disk.answers.set()
    wait_until(lambda: not run.journal._queue, 5, "what waited is written")
    run.slowly(5)
    wait_until(lambda: run.journal.stats.problem is None, 5, "it is written again")
    run.slowly(5)
    run.close()
    assert ticks_of(tmp_path, run.results)[-5:] == [29, 30, 31, 32, 33]


def test_the_last_free_space_is_left_to_the_store(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "SPARE_BYTES", 1 << 60)
    run = start(JournalDir(tmp_path, Limits()))
    run.slowly(2)
    assert "MiB are left to others" in (run.journal.stats.problem or "")
    assert files(tmp_path) == []


def test_a_memory_that_cannot_be_written_is_told_and_the_ticks_are_kept(
    tmp_path: Path, start: Start
) -> None:
    run = start(JournalDir(tmp_path, Limits(file_s=0.0)))
    run.journal._remember = lambda: {"odd": object()}
    run.slowly(4)
    run.close()
    (trouble,) = run.journal.troubles()
    assert (
        trouble
        == "files of the journal need those before them: builtins.object cannot be journalled"
    )
    assert ticks_of(tmp_path, run.results) == [1, 2, 3, 4]


def test_a_memory_that_turns_out_unwritable_in_the_thread_costs_no_tick(
    tmp_path: Path, start: Start
) -> None:
    run = start(JournalDir(tmp_path, Limits(file_s=0.0)))
    remember, run.journal._remember = run.journal._remember, lambda: {"odd": ODD}
    run.slowly(6)
    run.journal._remember = remember
    run.slowly(3)
    run.close()
    assert run.journal.stats.lost == 0
    assert not list(run.journal.troubles())
    assert ticks_of(tmp_path, run.results) == list(range(1, 10))
    heads = [file.head for file in find_journals([tmp_path])[0]]
    assert [head.no_memory for head in heads[1:3]] == 2 * ["builtins.object cannot be journalled"]
    assert heads[-1].no_memory is None


def test_a_tick_that_cannot_be_written_costs_that_tick_alone(tmp_path: Path, start: Start) -> None:
    run = start(JournalDir(tmp_path, Limits()), [at(20, hang("rg_1.0"))])
    run.odd = {25}
    run.slowly(25)
    (trouble,) = run.journal.troubles()
    assert "builtins.object cannot be journalled" in trouble
    run.slowly(15)
    run.close()
    assert not list(run.journal.troubles())
    assert run.journal.stats.lost == 1
    first, second = files(tmp_path)  # in the middle of the hang, and yet as live
    assert ticks_of(tmp_path, run.results) == [*range(1, 25), *range(26, 41)]
    assert list(journal_events(find_journals([first])[0]))[-1] == Closed(first, JournalEnd.WHOLE)
    assert ticks_of(second, run.results) == list(range(26, 41))


def test_while_no_tick_can_be_written_the_memory_is_not_copied_at_each(
    tmp_path: Path, start: Start
) -> None:
    run = start(JournalDir(tmp_path, Limits()))
    run.odd = range(5, 100)
    run.slowly(40)
    run.close()
    assert run.journal.stats.files == 2
    assert run.journal.stats.lost == 36


def test_foreign_files_in_the_folder_are_left_alone(tmp_path: Path, start: Start) -> None:
    (tmp_path / "notes.txt").write_bytes(bytes(100_000))
    run = start(JournalDir(tmp_path, Limits(total_bytes=3000, file_bytes=1000)))
    run.slowly(30)
    run.close()
    assert (tmp_path / "notes.txt").exists()
    assert len(files(tmp_path)) <= 4
