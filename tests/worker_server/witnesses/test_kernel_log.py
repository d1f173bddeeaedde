"""The kernel's log as a witness: forms of lines, records, what counts as one event."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightkeeper.worker_server.sidecar.witnesses import kernel_log
from lightkeeper.worker_server.sidecar.witnesses.kernel_log import KernelLog
from lightkeeper.worker_server.sidecar.witnesses.witness import CannotReadError
from lightkeeper.worker_server.wire import Weight

CASES = json.loads((Path(__file__).parent / "cases" / "kernel_log.json").read_text())["cases"]
XID = "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus."


def lines_of(tmp_path: Path, ours: Callable[[int], int | None] = lambda pid: pid) -> KernelLog:
    for address in ("0000:1b:00.0", "0000:3b:00.0"):
        (tmp_path / "proc/driver/nvidia/gpus" / address).mkdir(parents=True)
    return KernelLog(tmp_path, ours)


def record(text: str, sequence: int = 1, at_s: float = 100.0, priority: int = 4) -> str:
    return f"{priority},{sequence},{int(at_s * 1e6)},-;{text}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_line_is_read_as_what_it_means(case: dict[str, Any], tmp_path: Path) -> None:
    lines = lines_of(tmp_path)
    for number, text in enumerate(case["lines"]):
        lines.take(record(text, number))
    events = lines.said(100.0)
    if case["code"] is None:
        assert not events
        return
    (event,) = events
    assert (event.code, event.weight, event.device, list(event.pids), event.text) == (
        case["code"], Weight(case["weight"]), case.get("device", ""), case.get("pids", []),
        case["text"],
    )  # fmt: skip
    assert event.count == 1


def test_equal_lines_are_one_event_for_an_hour(tmp_path: Path) -> None:
    lines = lines_of(tmp_path)
    for number in range(5):
        lines.take(record(XID, number, 100.0 + number))
    (event,) = lines.said(110.0)
    assert (event.count, event.for_s, event.age_s) == (5, 10.0, 6.0)
    assert not lines.said(104.0 + 3601)


def test_what_a_program_wrote_to_the_log_is_not_the_kernels(tmp_path: Path) -> None:
    lines = lines_of(tmp_path)
    lines.take(record(XID, priority=12))
    assert not lines.said(100.0)


@pytest.mark.parametrize(
    "blob", ["", ";", "a,b,c;x", "4,1;x", "4,1,-2,-;x", "4,٣,2,-;x", f"4,1,{'9' * 30},-;{XID}"]
)
def test_what_is_no_record_is_dropped(blob: str, tmp_path: Path) -> None:
    lines = lines_of(tmp_path)
    lines.take(blob)
    assert not lines.said(0.0)


def test_lines_that_were_lost_are_counted(tmp_path: Path) -> None:
    lines = lines_of(tmp_path)
    lines.take(record("hello", 7))
    lines.take(record("hello", 20))
    (event,) = lines.said(100.0)
    assert (event.code, event.count, event.weight) == ("lines-lost", 12, Weight.CONTEXT)


def test_a_server_that_answers_again_explains_nothing_any_more(tmp_path: Path) -> None:
    lines = lines_of(tmp_path)
    lines.take(record("nfs: server filer7 not responding, still trying", 1))
    lines.take(record("nfs: server filer7 OK", 2))
    assert {event.weight for event in lines.said(100.0)} == {Weight.CONTEXT}


def test_a_process_of_an_unknown_pid_decides_nothing(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, ours=lambda pid: None)
    lines.take(record("Out of memory: Killed process 99 (python) total-vm:1kB, anon-rss:1kB"))
    (event,) = lines.said(100.0)
    assert (event.weight, event.pids) == (Weight.CONTEXT, ())


def test_the_lightest_events_make_room(tmp_path: Path) -> None:
    lines = lines_of(tmp_path)
    lines.take(record(XID, 0))
    for number in range(1000):
        lines.take(record(f"nfs: server s{number} OK", number + 1))
    events = lines.said(100.0)
    assert len(events) == 128
    assert events[0].code == "xid-79"


def test_a_file_that_grows_is_followed(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    file = tmp_path / "dev/kmsg"
    now_s = time.monotonic()
    head = record("hello", 1, now_s) + "\n SUBSYSTEM=pci\n DEVICE=+pci:0000:1b:00.0\n"
    file.write_text(head + record(XID, 2, now_s)[:30])
    log = KernelLog(tmp_path)
    assert not log.look((), now_s)
    with file.open("a") as more:
        more.write(record(XID, 2, now_s)[30:] + "\n")
    (row,) = log.look((), now_s + 5)
    assert (row.witness, row.code, row.weight) == ("kernel log", "xid-79", Weight.BROKEN)
    assert 4.9 < row.age_s < 5.1


def test_a_flood_is_read_bit_by_bit(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    file = tmp_path / "dev/kmsg"
    file.write_text("".join(record(XID, n, n / 1e3) + "\n" for n in range(20_000)))
    log, began_s = KernelLog(tmp_path), time.thread_time()
    (row,) = log.look((), 101.0)
    assert row.count <= 20_000
    assert time.thread_time() - began_s < 4


def test_a_log_that_may_not_be_read_says_what_to_grant(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(CannotReadError, match="CAP_SYSLOG"):
        KernelLog().look((), 0.0)


def test_only_the_kernels_own_device_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "kmsg"
    file.write_text(record(XID) + "\n")
    real = os.open
    monkeypatch.setattr(kernel_log.os, "open", lambda _, flags: real(file, flags))
    with pytest.raises(CannotReadError, match="not the kernel's log"):
        KernelLog().look((), 0.0)


def test_a_log_that_is_missing_says_so(tmp_path: Path) -> None:
    with pytest.raises(CannotReadError, match="give the container that device"):
        KernelLog(tmp_path).look((), 0.0)
