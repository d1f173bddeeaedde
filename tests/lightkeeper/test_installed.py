"""Wheel and sdist in fresh environments, in a repository that has packages of our names."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import requests

from tests.lightkeeper.installed import OURS, Shell, built, installed, strangers
from tests.ports import free_port
from tests.waiting import wait_for

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return built("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def whole(wheel, tmp_path_factory) -> Path:
    """With every extra."""
    return installed(wheel, tmp_path_factory.mktemp("whole") / "venv", extras=True)


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory) -> Path:
    """What `pip install lightkeeper` alone brings."""
    return installed(wheel, tmp_path_factory.mktemp("bare") / "venv", extras=False)


@pytest.fixture
def shell(whole, tmp_path) -> Shell:
    return Shell(whole, strangers(tmp_path / "repository"), tmp_path / "state")


@pytest.fixture
def rank_host(bare, tmp_path) -> Shell:
    return Shell(bare, strangers(tmp_path / "repository"), tmp_path / "state")


def test_the_wheel_holds_our_packages_with_their_files_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert tops == {*OURS, "lightkeeper", f"lightkeeper-{wheel.name.split('-')[1]}.dist-info"}
    for kind in ("monitor/show/templates/", "monitor/show/static/", "dashboards/grafana/"):
        assert any(name.startswith(kind) for name in names), kind


def test_a_wheel_that_is_built_from_the_sdist_is_the_same(wheel, tmp_path):
    archive = built("sdist", tmp_path / "sdist")
    assert archive.stat().st_size < 3_000_000
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    [tree] = tmp_path.glob("lightkeeper-*")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "again")],
        cwd=tree, check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    [again] = (tmp_path / "again").iterdir()
    direct, other = zipfile.ZipFile(wheel), zipfile.ZipFile(again)
    assert {i.filename: i.CRC for i in direct.infolist()} == {
        i.filename: i.CRC for i in other.infolist()
    }


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("lightkeeper", "--version"), r"lightkeeper \d+\.\d+\.\d+\n"),
        (("python", "-m", "lightkeeper", "--version"), r"lightkeeper \d+\.\d+\.\d+\n"),
        (("lightkeeper", "monitor", "--help"), "Watch a job"),
        (("lightkeeper", "gate", "--help"), "In front of the Lighthouse"),
        (("lightkeeper", "demo", "--help"), "usage: lightkeeper demo"),
        (("lightkeeper", "goodput", "--help"), "Estimate how much"),
        (("lightkeeper", "doctor", "--help"), "usage: lightkeeper doctor"),
        (("lightkeeper", "dashboards", "list"), "lightkeeper-fleet"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_commands_are_ours_beside_a_strangers_packages(shell, words, says):
    done = shell.run(*words)
    assert done.returncode == 0, done.stderr
    assert re.match(rf"(?:Usage.*\n\n)?{says}", done.stdout), done.stdout[:200]


def test_processes_that_a_process_of_ours_starts_are_ours_too(shell):
    """The gate's workers, whose module is named on a command line of ours."""
    port = free_port()
    gate = subprocess.Popen(
        [str(shell.bin / "lightkeeper"), "gate", "--lighthouse", "http://127.0.0.1:9", "--bind",
         f"127.0.0.1:{free_port()}", "--admin", f"127.0.0.1:{port}"],
        cwd=shell.folder, env=shell.environ(), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        wait_for(lambda: _answers(f"http://127.0.0.1:{port}/v1/gate"), within_s=30, what="a worker")
    finally:
        gate.send_signal(signal.SIGTERM)
        said = gate.communicate(timeout=30)[1]
    assert "stranger" not in said


RANK = """
import json, sys, lightkeeper
reporter = lightkeeper.attach()
with reporter.phase("data"):
    pass
import {stranger}
"""


def test_in_a_rank_a_strangers_package_stays_theirs(shell):
    (shell.folder / "worker_server" / "__init__.py").unlink()
    (shell.folder / "worker_server").rmdir()
    (shell.folder / "train.py").write_text(RANK.format(stranger="monitor"))
    done = shell.run("python", "train.py", LIGHTKEEPER_MONITOR="", LIGHTKEEPER_LINGER_S="0")
    assert (done.returncode, done.stderr) == (1, "a stranger: monitor\n")


def test_a_rank_whose_worker_server_is_a_strangers_trains_unattached_and_is_told_once(shell):
    (shell.folder / "train.py").write_text(RANK.format(stranger="json"))
    done = shell.run("python", "train.py", LIGHTKEEPER_ATTACH="1", RANK="0", WORLD_SIZE="1")
    assert done.returncode == 0
    place = shell.folder / "worker_server" / "__init__.py"
    assert done.stderr == (
        f"lightkeeper is not attached: a package `worker_server` at {place} is in the way of its "
        "own; rename it, or put it later on PYTHONPATH\n"
    )


# -- what a rank's host has ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "extra"),
    [("monitor", "monitor"), ("gate", "gate"),
     ("analyze", "analyze"), ("replay", "analyze"), ("check scheduler", "monitor")],
)  # fmt: skip
def test_a_command_whose_extra_is_missing_names_it_in_one_sentence(rank_host, command, extra):
    done = rank_host.run("lightkeeper", *command.split())
    assert done.returncode == 1
    assert re.fullmatch(
        rf"error: \w+ is not installed here: pip install 'lightkeeper\[{extra}\]'\n", done.stderr
    )


def test_a_bare_install_runs_a_rank_with_its_workerserver_and_asks_a_monitor(rank_host):
    (rank_host.folder / "worker_server" / "__init__.py").unlink()
    (rank_host.folder / "worker_server").rmdir()
    (rank_host.folder / "train.py").write_text(
        "import time, sys, urllib.request, lightkeeper\n"
        "reporter = lightkeeper.attach()\n"
        "while reporter.url is None: time.sleep(0.05)\n"
        "print(urllib.request.urlopen(reporter.url + '/v1/state').read().decode())\n"
    )
    done = rank_host.run(
        "lightkeeper", "run", "--", "python", "train.py", LIGHTKEEPER_MONITOR="",
        LIGHTKEEPER_LINGER_S="0",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["identity"]["group"] == "job"
    asked = rank_host.run("lightkeeper", "status", "--monitor", "http://127.0.0.1:9")
    assert asked.returncode == 1
    assert "nobody listens there" in asked.stderr


# -- three commands ------------------------------------------------------------------------------

DDP = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(10_000):
    ends = torch.tensor(float(os.path.exists("stop")))
    dist.all_reduce(ends)
    if ends:
        break
    optimizer.zero_grad()
    model(torch.randn(2, 8)).sum().backward()
    optimizer.step()
    time.sleep(0.05)
sys.exit(7 * dist.get_rank())
"""


def test_three_commands_and_no_variable_from_the_wheel_to_a_watched_job(shell):
    """`pip install` was the first; the monitor is not at its default port, which others may use."""
    (shell.folder / "worker_server" / "__init__.py").unlink()
    (shell.folder / "worker_server").rmdir()
    (shell.folder / "train.py").write_text(DDP)
    url = f"http://127.0.0.1:{free_port()}"
    lightkeeper = str(shell.bin / "lightkeeper")
    here = {"cwd": shell.folder, "env": shell.environ(), "stderr": subprocess.PIPE, "text": True}
    monitor = subprocess.Popen([lightkeeper, "monitor", "--bind", url[7:]], **here)
    wait_for(lambda: _answers(f"{url}/healthz"), within_s=60, what="the monitor")
    job = subprocess.Popen(
        [lightkeeper, "run", "--monitor", url, "--", str(shell.bin / "python"), "-m",
         "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"],
        **here,
    )  # fmt: skip
    try:
        wait_for(lambda: _healthy(url) == ["job.0", "job.1"], within_s=90, what="both ranks")
        evicted = shell.run(
            "lightkeeper", "quarantine", "add", "node7", "--reason", "trial", "--monitor", url
        )
        assert evicted.returncode == 0, evicted.stderr  # it found the token
    finally:
        (shell.folder / "stop").touch()
        said = job.communicate(timeout=60)[1]
        monitor.terminate()
        log = monitor.communicate(timeout=30)[1]
    assert job.returncode == 1, said  # torchrun's own, for a rank that ended with 7
    assert "lightkeeper" not in said
    assert f"ranks on this host: lightkeeper run --monitor {url} -- torchrun ... train.py" in log
    token = shell.state / "lightkeeper" / "token"
    assert token.stat().st_mode & 0o777 == 0o600
    assert token.read_text().strip() not in log


def _answers(url: str) -> bool:
    try:
        return requests.get(url, timeout=5).ok
    except requests.RequestException:
        return False


def _healthy(url: str) -> list[str]:
    ranks = (
        requests.get(f"{url}/v1/ranks", timeout=5).json().get("ranks", [])
    )  # before a tick: none
    return sorted(row["rank"] for row in ranks if row["health"] == "healthy")
