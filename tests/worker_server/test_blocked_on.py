"""Which file a rank waits for, and on which device."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from lightkeeper.worker_server.sidecar.blocked_on import blocked_on
from tests.waiting import wait_for

MOUNTS = """\
22 1 252:0 / / rw - ext4 /dev/vda rw
30 22 7:0 / /data rw shared:1 - ext4 /dev/loop0 rw
31 30 0:44 / /data/far\\040away rw - nfs4 filer:/export rw
"""


UNREAD = "a reader of its log: its {} is a full pipe, and nobody reads it"


def rank(tmp_path, call: str, file: str = "", text: bytes = b"", cwd: str = "/"):
    """A /proc with one process, 7, in this system call."""
    task = tmp_path / "7/task/7"
    task.mkdir(parents=True)
    (task / "syscall").write_text(call)
    (tmp_path / "7/fd").mkdir()
    (tmp_path / "7/fd/5").symlink_to(file or "/gone")
    for fd, other in ((1, "pipe:[1]"), (2, "pipe:[2]"), (7, "pipe:[1]")):
        (tmp_path / f"7/fd/{fd}").symlink_to(other)
    (tmp_path / "7/cwd").symlink_to(cwd)
    (tmp_path / "7/mem").write_bytes(bytes(16) + text + b"\0more")
    (tmp_path / "7/mountinfo").write_text(MOUNTS)
    return tmp_path


x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of system calls")


@x86
@pytest.mark.parametrize(
    ("call", "file", "text", "said"),
    [
        ("1 0x5 0x0 0x0", "/data/log.csv", b"", "/data/log.csv on /dev/loop0 (ext4)"),
        ("74 0x5", "/home/x", b"", "/home/x on /dev/vda (ext4)"),
        ("0 0x5", "/data/far away/x", b"", "/data/far away/x on filer:/export (nfs4)"),
        ("0 0x5", "/database/x", b"", "/database/x on /dev/vda (ext4)"),
        ("257 0xffffff9c 0x10 0x0", "", b"/data/shard.bin", "/data/shard.bin on /dev/loop0 (ext4)"),
        ("257 0xffffff9c 0x10", "", b"shard.bin", "/data/here/shard.bin on /dev/loop0 (ext4)"),
        ("0 0x5", "pipe:[77]", b"", None),
        ("1 0x5", "pipe:[77]", b"", None),
        ("1 0x1", "", b"", UNREAD.format("stdout")),
        ("20 0x2", "", b"", UNREAD.format("stderr")),
        ("1 0x7", "", b"", UNREAD.format("stdout")),
        ("0 0x1", "", b"", None),
        ("0 0x5", "socket:[77]", b"", None),
        ("202 0x5", "/data/log.csv", b"", None),
        ("running", "/data/log.csv", b"", None),
        ("0 0x9", "/data/log.csv", b"", None),
        ("0 0xfffffffffffffffffffff", "/data/log.csv", b"", None),
    ],
)
def test_what_it_waits_for(tmp_path, call, file, text, said):
    proc = rank(tmp_path, call, file, text, cwd="/data/here")
    assert blocked_on(7, None, proc) == said


def test_of_nobody_nothing_is_known(tmp_path):
    assert blocked_on(7, None, tmp_path) is None


@x86
@pytest.mark.integration
def test_a_real_process_that_opens_a_fifo_without_a_writer(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    process = subprocess.Popen([sys.executable, "-c", f"open({str(fifo)!r})"])
    try:
        said = wait_for(lambda: blocked_on(process.pid, None), within_s=20.0, what="it blocks")
    finally:
        process.kill()
        process.wait(10)
    assert said.startswith(f"{fifo} on ")


@x86
@pytest.mark.integration
def test_a_real_process_whose_log_nobody_reads():
    process = subprocess.Popen(
        [sys.executable, "-c", "print('x' * 1_000_000, flush=True)"], stdout=subprocess.PIPE
    )
    try:
        said = wait_for(lambda: blocked_on(process.pid, None), within_s=20.0, what="it blocks")
    finally:
        process.kill()
        process.communicate(timeout=10)
    assert said == UNREAD.format("stdout")
