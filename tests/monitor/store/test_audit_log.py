"""The audit log: what is in it, and what a sick disk costs."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lightkeeper.monitor.loop import auditor as lines
from lightkeeper.monitor.model.eviction import Change, EvictionState, QuarantineEvent, Scope
from lightkeeper.monitor.model.observation import Pause
from lightkeeper.monitor.store.audit_log import KEPT, WAITING, LogFile
from tests.monitor.decide.scene import EVICTION, ID, ROWS, hang
from tests.monitor.fakes import wait_until


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in path.read_text().splitlines()]


def one(number: int) -> lines.Line:
    return lines.line(float(number), "decision", "lightkeeper", f"evict rg_{number}", "hung")


def whats(path: Path) -> list[str]:
    return [line["what"] for line in read(path)]


# -- lines -----------------------------------------------------------------------------------------


def test_a_decision_says_who_what_and_why() -> None:
    (written,) = lines.decision(ROWS[0], "rg_1")
    assert written == {
        "at": "1970-01-01T00:01:46.000Z", "at_s": 106.0, "event": "decision", "by": "lightkeeper",
        "what": "hold rg_1", "why": "too soon", "incident": "inc-1", "guard": "cool_down",
        "attempt": 1,
    }  # fmt: skip
    by_hand = replace(EVICTION, author="a person", state=EvictionState.DECIDED)
    assert [line["by"] for line in lines.decision(by_hand, "rg_1")] == ["a person"]
    assert list(lines.decision(replace(by_hand, state=EvictionState.ASKING), "rg_1")) == []
    over = replace(by_hand, state=EvictionState.FAILED, ended_s=120.0, outcome="not gone")
    (line,) = lines.decision(over, "rg_1")
    assert (line["at_s"], line["what"], line["why"]) == (120.0, "evict rg_1 failed", "not gone")


def test_each_rung_is_told_when_it_begins_and_when_it_ends() -> None:
    began = replace(EVICTION, rungs=(replace(EVICTION.rungs[1], finished_s=None),), gone_s=None,
                    left_quorum_s=None)  # fmt: skip
    rungs = list(lines.rungs(None, began, 120.0))
    assert [(line["at_s"], line["what"]) for line in rungs] == [
        (111.1, "lighthouse_kill rg_1 began")
    ]
    rungs = list(lines.rungs(began, EVICTION, 120.0))
    assert [(line["at_s"], line["what"]) for line in rungs] == [
        (111.0, "quarantine rg_1 ended"), (114.1, "lighthouse_kill rg_1 ended"),
        (115.0, "worker_evict rg_1 ended"), (115.0, "rg_1 gone"), (116.0, "rg_1 left"),
    ]  # fmt: skip
    assert list(lines.rungs(EVICTION, EVICTION, 120.0)) == []
    failed = replace(EVICTION, failed="not gone")
    (line,) = lines.rungs(EVICTION, failed, 120.0)
    assert (line["what"], line["why"]) == ("eviction of rg_1 failed", "not gone")


def test_incidents_that_fire_and_end_are_told_once() -> None:
    moves = list(lines.moves(None, hang()))
    assert [line["what"] for line in moves] == [
        "not_entered rg_1 firing", "not_entered rg_1 resolved",
    ]  # fmt: skip
    assert list(lines.moves(hang(), hang())) == []


def test_the_quarantine_says_who_added_and_who_let_go() -> None:
    event = QuarantineEvent(103.0, Change.ADDED, "node1", "hung", until_s=9999.0, incident_id=ID)
    (added,) = lines.quarantine(event)
    assert (added["by"], added["what"], added["until_s"], added["incident"]) == (
        "lightkeeper", "quarantine node1 added", 9999.0, "inc-1",
    )  # fmt: skip
    released = QuarantineEvent(104.0, Change.RELEASED, "rg_1", "repaired", "ann", Scope.GROUP)
    (line,) = lines.quarantine(released)
    assert (line["by"], line["what"]) == ("ann", "quarantine group rg_1 released")
    assert list(lines.quarantine(replace(event, change=Change.ACCUSED))) == []


def test_the_big_red_switch_says_who_pressed_it_and_who_let_go() -> None:
    pause = Pause("maintenance", "ann", 100.0, 200.0)
    (line,) = lines.paused(None, pause, 101.0)
    assert (line["at_s"], line["by"], line["what"], line["why"]) == (
        100.0, "ann", "paused", "maintenance",
    )  # fmt: skip
    resumed = [lines.paused(pause, None, now_s) for now_s in (150.0, 200.0)]
    assert [next(line)["by"] for line in resumed] == ["a person", "lightkeeper"]
    assert list(lines.paused(pause, pause, 150.0)) == []


def test_a_time_beyond_the_calendar_is_told_without_a_date() -> None:
    assert lines.line(1e18, "x", "x", "x", "x")["at"] is None


# -- the file --------------------------------------------------------------------------------------


def test_lines_are_on_disk_after_a_flush_and_are_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "audit.jsonl"
    for number in (1, 2):
        log = LogFile(path)
        log.put(one(number))
        assert log.flush(10)
        log.close()
    assert whats(path) == ["evict rg_1", "evict rg_2"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_full_file_is_kept_under_a_number_and_the_oldest_goes(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = LogFile(path, max_bytes=150)
    for number in range(KEPT + 3):
        log.put(one(number))
        assert log.flush(10)
    log.close()
    assert whats(path) == [f"evict rg_{KEPT + 2}"]
    assert whats(tmp_path / "audit.jsonl.1") == [f"evict rg_{KEPT + 1}"]
    assert len(list(tmp_path.iterdir())) == KEPT + 1


@pytest.mark.parametrize("torn", [False, True], ids=["taken by logrotate", "half a line"])
def test_what_happened_to_the_file_spoils_no_later_line(torn: bool, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_text('{"at":"19' if torn else "")  # a monitor that was killed in a line
    log = LogFile(path)
    if not torn:
        path.rename(tmp_path / "taken")
    log.put(one(1))
    assert log.flush(10)
    log.close()
    *before, last = path.read_text().splitlines()
    assert (json.loads(last)["what"], len(before)) == ("evict rg_1", int(torn))


class Disk:
    """Takes so many bytes more."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.refused = 0

    def write(self, fd: int, data: bytes) -> int:
        if self.room <= 0:
            self.refused += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = os.write(fd, data[: self.room])
        self.room -= taken
        return taken


def test_a_full_disk_is_told_and_nothing_is_lost_when_there_is_room_again(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    whole = len(json.dumps(one(1), separators=(",", ":"))) + 1
    disk = Disk(whole + 10)
    log = LogFile(path, write=disk.write, again_s=0.01)
    log.put(one(1), one(2), one(3))
    assert not log.flush(10)
    said = wait_until(lambda: log.trouble, 10, "it is told")
    assert said == f"the audit log {path} takes no lines (No space left on device)"
    disk.room = 10_000
    wait_until(lambda: log.trouble is None, 10, "it goes on")
    assert log.flush(10)
    log.close()
    first, torn, *rest = path.read_text().splitlines()
    assert (json.loads(first)["what"], len(torn)) == ("evict rg_1", 10)
    assert [json.loads(text)["what"] for text in rest] == ["evict rg_2", "evict rg_3"]


def test_more_lines_than_memory_holds_are_counted_and_said(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    disk = Disk(0)
    log = LogFile(path, write=disk.write, again_s=0.01)
    for number in range(WAITING + 5):
        log.put(one(number))
    assert log.lost == 5
    # the try under way may still hold the lines that were given up, and would write them after all
    tried = disk.refused
    wait_until(lambda: disk.refused >= tried + 2, 20, "it is tried with what waits now")
    disk.room = 10_000_000
    wait_until(lambda: log.trouble is None and log.flush(0.1), 20, "it goes on")
    log.close()
    written = whats(path)
    assert "5 lines were lost" in written
    assert written[-1] == f"evict rg_{WAITING + 4}"
    assert len(written) == WAITING + 1


def test_closing_on_a_dead_disk_waits_for_nobody(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "audit.jsonl", write=Disk(0).write, again_s=3600)
    log.put(one(1))
    wait_until(lambda: log.trouble, 10, "it is told")
    log.close()


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_what_is_no_file_is_refused_at_the_start(make: Any, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    make(path)
    with pytest.raises(OSError, match="not a file"):
        LogFile(path)
