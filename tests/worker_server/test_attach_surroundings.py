"""Attaching where it is not made easy: full or read-only memory, no torch, no port."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lightkeeper.worker_server.rank.page import layout
from tests.worker_server.ranks import ROOT

pytestmark = pytest.mark.integration

NAME = f"lightkeeper-{os.getuid()}"
LIVE = """
import json, sys, time, urllib.request, lightkeeper
reporter = lightkeeper.attach()
reporter.begin_step(3)
deadline = time.monotonic() + 30
while reporter.url is None and time.monotonic() < deadline:
    time.sleep(0.05)
url = reporter.url
answer = urllib.request.urlopen(url + "/v1/state", timeout=20).read() if url else "{}"
step = json.loads(answer).get("step", {}).get("step")
print(type(reporter).__name__, step, reporter.url, flush=True)
"""


def run(code, *wrapped_in, timeout=60, **environ):
    own = {k: v for k, v in os.environ.items()
           if not (v and k.startswith(("LIGHTKEEPER", "XDG_RUNTIME", "TMPDIR")))}  # fmt: skip
    return subprocess.run(
        [*wrapped_in, sys.executable, "-c", code],
        env={**own, "PYTHONPATH": str(ROOT), "LIGHTKEEPER_LINGER_S": "0", **environ},
        capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip


def may(*command):
    """Whether this machine lets us (root, unshare) do this."""
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, capture_output=True, check=False, timeout=20).returncode == 0


needs_mounts = pytest.mark.skipif(
    not may("unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"),
    reason="needs the right to mount in a namespace of its own",
)
needs_network = pytest.mark.skipif(
    not may("unshare", "-n", "sysctl", "-qw", "net.ipv4.ip_local_port_range=40000 40001"),
    reason="needs the right to make a network namespace",
)


def mounted(*mounts):
    """A command line that runs what follows where these mounts are made, for it alone."""
    return ["unshare", "-m", "sh", "-c", " && ".join([*mounts, 'exec "$0" "$@"'])]


@needs_mounts
@pytest.mark.parametrize("room", [64 * 1024, layout.TOTAL_BYTES + 96 * 1024],
                         ids=["for no page", "for the page alone"])  # fmt: skip
def test_a_full_dev_shm_is_left_for_the_next_place_and_nothing_dies_of_it(tmp_path, room):
    done = run(LIVE, *mounted(f"mount -t tmpfs -o size={room} none /dev/shm"), TMPDIR=str(tmp_path))
    assert done.stdout.startswith("Reporter 3 http://127.0.0.1:"), done.stderr
    assert done.returncode == 0
    assert done.stderr.count("RuntimeWarning") == 1
    assert f"lightkeeper uses {tmp_path}/{NAME}, for /dev/shm/{NAME}: No space left" in done.stderr


@needs_mounts
@pytest.mark.skipif(
    any(folder.is_relative_to("/tmp") for folder in (ROOT, Path(sys.prefix))),
    reason="this checkout, or its venv, lies under /tmp itself",
)
def test_with_no_place_to_write_there_is_one_warning_and_training_goes_on():
    read_only = [f"mount -t tmpfs -o ro none {place}" for place in ("/dev/shm", "/tmp")]
    code = "import lightkeeper; r = lightkeeper.attach(); print(type(r).__name__)"
    done = run(code, *mounted(*read_only), LIGHTKEEPER_RUN_DIR="/proc/nowhere")
    assert (done.returncode, done.stdout) == (0, "NullReporter\n")
    assert done.stderr.count("RuntimeWarning: lightkeeper is not attached") == 1
    assert done.stderr.count("Warning") == 1
    for place in ("/proc/nowhere", "/dev/shm", "/tmp"):
        assert place in done.stderr


@needs_network
def test_with_every_port_of_the_range_taken_any_other_is_taken_and_logged(run_dir):
    hog = "import socket; s = socket.create_server(('127.0.0.1', 9100))\n"
    done = run(hog + LIVE, "unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$0" "$@"',
               LIGHTKEEPER_PORT_BASE="9100", LIGHTKEEPER_RUN_DIR=str(run_dir))  # fmt: skip
    assert done.stdout.startswith("Reporter 3 http://127.0.0.1:"), done.stderr
    assert not done.stdout.rstrip().endswith(":9100")
    assert done.stderr == ""
    assert any("taking any" in log.read_text() for log in run_dir.glob("*.log"))


@needs_network
def test_with_no_port_to_be_had_the_rank_trains_on_and_the_sidecar_takes_one_when_it_can(run_dir):
    hog = (
        "import os, pathlib, socket, threading, time\n"
        "hogs = [socket.create_server(('127.0.0.1', port)) for port in (40000, 40001)]\n"
        "logs = pathlib.Path(os.environ['LIGHTKEEPER_RUN_DIR'])\n"
        "def until_it_is_said():\n"
        "    while not any('no port is free' in log.read_text() for log in logs.glob('*.log')):\n"
        "        time.sleep(0.05)\n"
        "    [hog.close() for hog in hogs]\n"
        "threading.Thread(target=until_it_is_said, daemon=True).start()\n"
    )
    few = "sysctl -qw net.ipv4.ip_local_port_range='40000 40001'"
    up = f'ip link set lo up && {few} && exec "$0" "$@"'
    done = run(hog + LIVE, "unshare", "-n", "sh", "-c", up, LIGHTKEEPER_RUN_DIR=str(run_dir))
    assert done.stdout.startswith("Reporter 3 http://127.0.0.1:4000"), done.stderr
    assert done.stderr == ""
    assert any("no port is free" in log.read_text() for log in run_dir.glob("*.log"))
