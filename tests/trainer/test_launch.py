"""Real processes: nothing that a launch started survives it, in whatever state it is."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lightkeeper.trainer import supervisor
from tests.waiting import wait_for

pytestmark = pytest.mark.integration

RUN = f"run-{os.getpid()}"
"""Other workers run the same tests."""


@pytest.fixture
def start():
    running = []

    def run(mark, *argv):
        environ = {**os.environ, supervisor.MARK: mark + ";"}
        words = [sys.executable, "-c", "import time; time.sleep(300)", *argv]
        process = subprocess.Popen(words, env=environ, start_new_session=True)
        running.append(process)
        marked = lambda: process.pid in supervisor.launched(mark)  # noqa: E731
        wait_for(marked, within_s=20, what="the mark is there")
        return process

    yield run
    for process in running:
        process.kill()
        process.wait()


def process_state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def torchrun_launch(start, mark):
    return supervisor.Launch(start(mark), mark)


def test_a_stopped_rank_that_outlived_torchrun_is_killed_and_a_sidecar_is_not(start):
    launch = torchrun_launch(start, f"{RUN}.1")
    launch.process.kill()
    launch.process.wait()
    rank = start(f"{RUN}.1")
    sidecar = start(f"{RUN}.1", "-m", "lightkeeper.worker_server.sidecar")
    os.kill(rank.pid, signal.SIGSTOP)

    assert launch.sweep() == [rank.pid]
    assert rank.wait(5) == -signal.SIGKILL
    assert sidecar.poll() is None


def test_another_launch_and_another_supervisor_are_left_alone(start):
    launch = torchrun_launch(start, f"{RUN}.1")
    others = [start(f"{RUN}.10"), start(f"other-{RUN}.1")]
    launch.process.kill()
    launch.process.wait()

    assert launch.sweep() == []
    assert [other.poll() for other in others] == [None, None]


def test_stop_ends_a_torchrun_that_does_not_react(start):
    launch = torchrun_launch(start, f"{RUN}.1")
    os.kill(launch.process.pid, signal.SIGSTOP)
    # Not yet stopped, it would still hear a SIGTERM that comes together with the SIGSTOP.
    wait_for(
        lambda: process_state(launch.process.pid) == "T", within_s=10, what="the process stops"
    )

    launch.stop()

    assert launch.poll() == -signal.SIGKILL


def test_close_ends_the_sidecars_of_all_launches(start):
    launcher = supervisor.Launcher("rg_1", 1, [], run_id=RUN)
    sidecars = [
        start(f"{RUN}.{number}", "-m", "lightkeeper.worker_server.sidecar") for number in (1, 12)
    ]

    assert sorted(launcher.close()) == sorted(sidecar.pid for sidecar in sidecars)
    assert [sidecar.wait(5) for sidecar in sidecars] == [-signal.SIGTERM] * 2
