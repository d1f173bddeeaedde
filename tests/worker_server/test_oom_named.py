"""A rank that the OOM killer ended, or whose loader's worker it ended, and the kernel's log."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.rank.page.reader import PageReader
from lightkeeper.worker_server.rank.page.writer import PageWriter
from lightkeeper.worker_server.sidecar.last_words import Remains
from lightkeeper.worker_server.sidecar.machine import FILE, Machine
from lightkeeper.worker_server.sidecar.witnesses.panel import write
from tests.worker_server.pages import identity

KILLED = "the OOM killer ended pid 1234 (python), cgroup /job (limit 512 MiB)"
LOST = "RuntimeError: DataLoader worker (pid 1234) is killed by signal: Killed"


class Gone:
    pid, sent = os.getpid(), ()

    def wait_death(self, timeout_s: float) -> bool:
        return True


def remains_of(folder: Path, pids: tuple[int, ...], age_s: float = 3.0) -> Remains:
    PageWriter.create(folder / "a.page", identity(), 1)
    row = wire.Testimony(
        "kernel log", wire.Weight.ENDED, "oom-kill", KILLED, age_s, age_s, pids=pids
    )
    counted = wire.Testimony(
        "cgroup", wire.Weight.ENDED, "oom-kill", "a process was ended", age_s, age_s, pids=pids
    )
    write(folder / FILE, {}, [counted, row])  # the kernel's log says more
    gone: Any = Gone()
    machine = Machine(folder, wire.Host("h"))
    return Remains(PageReader(folder / "a.page"), gone, folder / "a.crash", {}, machine)


KILL = wire.Process(False, None, dead_age_s=3.0, exit_signal="SIGKILL")


def test_the_sentence_names_pid_cgroup_and_limit(tmp_path: Path) -> None:
    ending = remains_of(tmp_path, (os.getpid(),)).ending(KILL)
    assert ending.sentence == f"Killed by SIGKILL; {KILLED}."


@pytest.mark.parametrize(("pids", "age_s"), [((1234, os.getpid()), 3.0), ((os.getpid(),), 600.0)])
def test_another_processs_or_an_earlier_kill_is_not_its_own(
    pids: tuple[int, ...], age_s: float, tmp_path: Path
) -> None:
    assert remains_of(tmp_path, pids, age_s).ending(KILL).sentence == "Killed by SIGKILL."


def test_a_killed_worker_of_its_loader_is_named_beside_the_exception(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remains = remains_of(tmp_path, (1234, os.getpid()))
    said = f"the main thread\n{LOST}\nTraceback (most recent call last):\n{LOST}\n"
    monkeypatch.setattr(remains.page, "note", lambda kind, now_ns: (said, 3.0))
    ending = remains.ending(wire.Process(False, None, dead_age_s=3.0, exit_code=1))
    assert (ending.exception, ending.detail) == (LOST, KILLED)
