"""A real OOM kill in a cgroup, read from the real log of the kernel."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightkeeper.worker_server.sidecar.witnesses.kernel_log import KernelLog
from lightkeeper.worker_server.sidecar.witnesses.witness import CannotReadError
from lightkeeper.worker_server.wire import Testimony as Said
from lightkeeper.worker_server.wire import Weight

_LIMIT = 32 << 20
_EATS = """
import sys
sys.stdin.read(1)
held = []
while True:
    held.append(bytearray(1 << 20))
"""


@pytest.fixture
def cgroup() -> Iterator[Path]:
    root, limit = Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"
    if not root.is_dir():
        root, limit = Path("/sys/fs/cgroup"), "memory.max"
    folder = root / f"lightkeeper-witness-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / limit).write_text(str(_LIMIT))
    except OSError as exc:
        pytest.skip(f"no memory cgroup can be made here: {exc}")
    yield folder
    folder.rmdir()


@pytest.mark.timeout(60)
def test_a_real_oom_kill_is_named_with_pid_cgroup_and_limit(cgroup: Path) -> None:
    log = KernelLog()
    try:
        log.look((), time.monotonic())
    except CannotReadError as exc:
        pytest.skip(f"the kernel's log cannot be read here: {exc}")
    with subprocess.Popen([sys.executable, "-c", _EATS], stdin=subprocess.PIPE) as eater:
        (cgroup / "cgroup.procs").write_text(str(eater.pid))
        eater.communicate(b"x")
    assert eater.returncode == -signal.SIGKILL
    row = _kill_of(eater.pid, log)
    assert (row.code, row.weight) == ("oom-kill", Weight.ENDED)
    assert f"pid {eater.pid} " in row.text
    assert row.text.endswith(f"cgroup /{cgroup.name} (limit 32 MiB)")


def _kill_of(pid: int, log: KernelLog) -> Said:
    until_s = time.monotonic() + 20
    while time.monotonic() < until_s:
        for row in log.look((), time.monotonic()):
            if row.pids == (pid,):
                return row
        os.sched_yield()
    raise AssertionError("the kernel's log has no such kill")
