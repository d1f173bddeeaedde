"""Witnesses in their threads, their file, and their process: what goes wrong in one costs
only itself.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lightkeeper.worker_server import run_dir, wire
from lightkeeper.worker_server.sidecar.machine import FILE, Machine, keep_witnesses
from lightkeeper.worker_server.sidecar.witnesses.panel import Families, Seat, write
from lightkeeper.worker_server.sidecar.witnesses.witness import CannotReadError, MachineWitness
from lightkeeper.worker_server.wire import Weight

HOST = wire.Host("node7")
FINE = {"kernel log": ""}


def said(weight: Weight = Weight.BROKEN, **more: Any) -> wire.Testimony:
    return wire.Testimony("kernel log", weight, **{"code": "xid-79", "text": "GPU 3", **more})


class Fake(MachineWitness):
    """A witness that does what a test wants."""

    name, every_s = "fake", 600.0

    def __init__(self, act: Callable[[], list[wire.Testimony]]) -> None:
        self._act = act

    def look(self, ranks: Collection[int], now_s: float) -> list[wire.Testimony]:
        return self._act()


@pytest.fixture
def heard() -> Callable[..., tuple[str, list[wire.Testimony]]]:
    def hear(act: Callable[[], Any], later_s: float = 0.0) -> Any:
        looked = threading.Event()

        def first() -> Any:
            looked.set()
            return act()

        seat = Seat(Fake(first), tuple)
        assert looked.wait(10)
        for _ in range(1000):
            if later_s or seat.hear(time.monotonic())[0] != "it has not looked yet":
                break
            threading.Event().wait(0.01)
        return seat.hear(time.monotonic() + later_s)

    return hear


def test_one_that_hangs_is_late_and_says_so(heard: Any) -> None:
    release = threading.Event()
    why, rows = heard(lambda: release.wait(60) and [], later_s=17.0)
    release.set()
    assert (why, rows) == ("no answer for 17 s", [])


@pytest.mark.parametrize(
    ("act", "why"),
    [
        (lambda: (_ for _ in ()).throw(CannotReadError("no right")), "no right"),
        (lambda: 1 / 0, "it failed: ZeroDivisionError"),
        (lambda: [7], "it failed: ValidationError"),
        (lambda: [said(count=-1)], "it failed: ValidationError"),
    ],
)
def test_one_that_fails_cannot_be_read(act: Any, why: str, heard: Any) -> None:
    reason, rows = heard(act)
    assert rows == []
    assert reason.startswith(why)


def test_one_that_reads_has_no_reason(heard: Any) -> None:
    assert heard(lambda: [said()])[0] == ""


def test_a_flood_is_cut(heard: Any) -> None:
    assert len(heard(lambda: [said(text=f"{n}") for n in range(100_000)])[1]) == 128


def test_what_is_too_long_or_not_printable_is_cut() -> None:
    witness = MachineWitness()
    text = "a\x1b[31m\n" + "b" * 999
    witness.saw(Weight.SLOW, "code", text, device="d" * 99, pids=range(99))
    (row,) = witness.said(0.0)
    assert (len(row.text), len(row.device), len(row.pids)) == (200, 32, 8)
    assert row.text.startswith("a?[31m b")


def test_the_file_is_bounded_and_keeps_the_weightiest(tmp_path: Path) -> None:
    long = {"text": "\U0001f600" * 200, "device": "\U0001f600" * 32, "pids": (2**22,) * 8}
    rows = [said(Weight.SLOW, code="\U0001f600" * 32, **long, count=n) for n in range(300)]
    rows.append(said())
    write(tmp_path / FILE, FINE, rows)
    assert Machine(tmp_path, HOST).report().testimonies[0].weight is Weight.BROKEN


def test_a_child_that_was_killed_concerns_its_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir.write_json(tmp_path / "a.json", {"pid": 70, "sidecar_pid": 71})
    families, children = Families(tmp_path), {70: [80, 81]}
    monkeypatch.setattr(run_dir, "family", lambda pid: [pid, *children.get(pid, [])])
    families.look(0.0)
    children.clear()
    families.look(60.0)
    assert families.of(said(pids=(81,))).pids == (81, 70)
    assert families.of(said(pids=(70,))).pids == (70,)
    assert families.of(said()).pids == ()
    families.look(200.0)
    assert families.of(said(pids=(81,))).pids == (81,)


# -- the file, as a sidecar reads it ---------------------------------------------------------------


def test_a_rank_hears_what_concerns_it_the_weightiest_first(tmp_path: Path) -> None:
    slow, mine = said(Weight.SLOW, text="slow"), said(Weight.ENDED, pids=(8, 7))
    rows = [said(Weight.CONTEXT), slow, said(Weight.ENDED, pids=(9,)), mine, said()]
    write(tmp_path / FILE, FINE, rows)
    machine = Machine(tmp_path, HOST)
    heard_by_it = machine.of_rank(7)
    assert [row.weight for row in heard_by_it] == [Weight.BROKEN, Weight.ENDED, Weight.SLOW]
    assert machine.report().host == HOST
    assert machine.report().error is None


def test_an_old_file_says_nothing(tmp_path: Path) -> None:
    for ago_s in (31.0, -5.0):
        report = wire.to_json(wire.MachineReport(HOST, 0.0, FINE, (said(),)))
        content = {"written_s": time.monotonic() - ago_s, "report": report}
        run_dir.write_json(tmp_path / FILE, content)
        machine = Machine(tmp_path, HOST)
        assert machine.of_rank(7) == ()
        assert machine.report().error


def test_without_a_file_or_switched_off_it_says_why(tmp_path: Path) -> None:
    assert "not been heard" in (Machine(tmp_path, HOST).report().error or "")
    write(tmp_path / FILE, FINE, [said()])
    off = Machine(tmp_path, HOST, on=False)
    assert "LIGHTKEEPER_MACHINE=0" in (off.report().error or "")
    assert off.of_rank(7) == ()


GARBAGE = {
    "empty": b"", "no JSON": b"{", "a list": b"[]", "deep": b"[" * 60_000, "huge": b" " * 10**6,
    "no report": b'{"written_s": 1}', "time": b'{"written_s": [], "report": {}}',
    "rows": b'{"written_s": 1, "report": {"schema": 1, "host": "h", "age_s": 0, '
            b'"testimonies": [[1, 2]]}}',
    "endless": b'{"written_s": NaN, "report": {}}', "bytes": b"\xff\xfe",
}  # fmt: skip


@pytest.mark.parametrize("blob", GARBAGE.values(), ids=GARBAGE)
def test_a_file_that_lies_is_not_believed(blob: bytes, tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(blob)
    machine = Machine(tmp_path, HOST)
    assert machine.of_rank(7) == ()
    assert machine.report().error


@pytest.mark.timeout(20)
def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / FILE)
    assert Machine(tmp_path, HOST).report().error
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).symlink_to("/dev/zero")
    assert Machine(tmp_path, HOST).report().error


# -- the process -----------------------------------------------------------------------------------


class OverError(Exception):
    """The test has seen enough."""


class Kept:
    """A process of witnesses, kept by a clock of its own; `lives_s`: how long each lives."""

    def __init__(self, folder: Path, until_s: float, lives_s: float = 1e9) -> None:
        self.now_s, self.started, self.killed = 0.0, list[float](), list[float]()
        self._until_s, self._lives_s = until_s, lives_s
        with pytest.raises(OverError):
            keep_witnesses(folder, self._start, lambda: self.now_s, self._sleep)

    def _start(self, folder: Path) -> Any:
        self.started.append(began_s := self.now_s)
        return SimpleNamespace(
            poll=lambda: None if self.now_s < began_s + self._lives_s else -11,
            kill=lambda: self.killed.append(self.now_s),
        )

    def _sleep(self, seconds: float) -> None:
        self.now_s += seconds
        if self.now_s > self._until_s:
            raise OverError


def test_one_that_dies_is_replaced_ever_more_rarely(tmp_path: Path) -> None:
    assert Kept(tmp_path, 80.0, lives_s=2.0).started == [3.0, 10.0, 22.0, 44.0]


def test_one_that_lived_long_is_replaced_soon(tmp_path: Path) -> None:
    (tmp_path / FILE).touch()
    os.utime(tmp_path / FILE, (1e6, 1e6))  # it is never silent
    assert Kept(tmp_path, 2000.0, lives_s=902.0).started == [3.0, 910.0, 1817.0]


def test_one_that_is_silent_is_ended_and_replaced_much_later(tmp_path: Path) -> None:
    (tmp_path / FILE).touch()
    os.utime(tmp_path / FILE, (50.0, 50.0))
    kept = Kept(tmp_path, 800.0)
    assert kept.killed == [111.0, 773.0]
    assert kept.started == [3.0, 711.0]


def test_one_process_serves_all_sidecars_of_a_run_directory(tmp_path: Path) -> None:
    started = list[Path]()
    lock = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)

    def stop(folder: Path) -> Any:
        started.append(folder)
        raise OverError

    def second() -> None:
        with pytest.raises(OverError):
            keep_witnesses(tmp_path, stop, sleep=lambda _: None)

    waits = threading.Thread(target=second)
    waits.start()
    waits.join(0.2)
    assert not started
    os.close(lock)  # as when its sidecar dies
    waits.join(10)
    assert started == [tmp_path]
