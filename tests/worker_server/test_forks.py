"""Children that a test's process forks: none outlives it, none goes on with its work."""

import os
import subprocess
import sys

import pytest

from tests.monitor.process import ROOT, environment
from tests.waiting import wait_for

LIVES = "from tests.forks import child; print(child(lambda: {}), flush=True); {}"


def forking(life, then):
    return subprocess.run(
        [sys.executable, "-c", LIVES.format(life, then)], cwd=ROOT, env=environment(),
        capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip


def test_a_child_that_comes_back_from_its_life_or_fails_in_it_ends():
    waits = "import os; print(os.waitstatus_to_exitcode(os.wait()[1]))"
    assert forking("None", waits).stdout.split()[1:] == ["0"]
    failed = forking("1 / 0", waits)
    assert failed.stdout.split()[1:] == ["7"]
    assert "ZeroDivisionError" in failed.stderr


@pytest.mark.integration
def test_a_child_dies_with_its_parent():
    pid = int(forking("__import__('time').sleep(60)", "import os; os._exit(0)").stdout)
    wait_for(lambda: not os.path.exists(f"/proc/{pid}"), within_s=10, what="the child is gone")
