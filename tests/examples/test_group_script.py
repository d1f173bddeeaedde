"""examples/launch/group.sh: what it does when torchrun leaves. The programs around it are stubs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess

import pytest

from tests.examples.fleet import EXAMPLES
from tests.waiting import wait_for

pytestmark = pytest.mark.integration
SCRIPT = EXAMPLES / "launch" / "group.sh"
SCRIPTS = sorted([*EXAMPLES.rglob("*.sh"), *EXAMPLES.rglob("*.sbatch")])


@pytest.fixture
def stubs(tmp_path):
    """`admit` that admits and becomes the command; `torchrun` that does as the file `act` says."""
    programs = {
        "lightkeeper": 'shift 2\nif [ -e refuse ]; then exit 75; fi\nexec "$@"',
        "torchrun": 'echo "$@" >> launches\n. ./act',
    }
    (tmp_path / "bin").mkdir()
    for name, body in programs.items():
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
    return tmp_path


def start(stubs, act):
    (stubs / "act").write_text(act)
    path = f"{stubs / 'bin'}:{os.environ['PATH']}"
    return subprocess.Popen(
        ["sh", SCRIPT, "--nproc-per-node", "2", "train.py"],
        cwd=stubs,
        env={"PATH": path, "GROUP_PAUSE_S": "0"},
    )


def launches(stubs):
    path = stubs / "launches"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize(
    ("act", "status", "count"),
    [
        ("exit 0", 0, 1),
        ("exit 75", 75, 1),
        ("kill -9 $$", 137, 1),
        ("exit 3", 3, 5),
        ("[ $(wc -l < launches) -lt 3 ] && exit 1; exit 0", 0, 3),
    ],
    ids=["finished", "refused", "killed: its ranks may live on", "five times", "better the third"],
)
def test_it_ends_or_starts_torchrun_again(stubs, act, status, count):
    assert start(stubs, act).wait(30) == status
    started = launches(stubs)
    assert started == ["--max-restarts=0 --shutdown-timeout=10 --nproc-per-node 2 train.py"] * count


def test_a_refused_host_starts_nothing(stubs):
    (stubs / "refuse").touch()
    assert start(stubs, "exit 0").wait(30) == 75
    assert launches(stubs) == []


def test_sigterm_reaches_torchrun_and_is_waited_for(stubs):
    act = "trap 'echo asked > asked; exit 143' TERM; touch ready; while :; do sleep 0.05; done"
    process = start(stubs, act)
    wait_for((stubs / "ready").exists, within_s=30, what="torchrun")
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 143
    assert (stubs / "asked").read_text() == "asked\n"


@pytest.mark.parametrize("path", SCRIPTS, ids=[path.name for path in SCRIPTS])
def test_a_script_has_no_mistakes_that_a_shell_or_shellcheck_sees(path):
    shell = path.read_text().splitlines()[0].rpartition("/")[2]
    subprocess.run([shell, "-n", path], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", "-s", shell, path], check=True)
