"""Wheel and sdist in fresh environments, in a repository that has packages of our names."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import requests

from tests.deep import only_explored
from tests.lightkeeper.installed import (
    OURS,
    ROOT,
    Shell,
    built,
    distribution_of_a_stranger,
    fresh,
    install,
    pip,
    strangers,
    unpack,
    uv,
)
from tests.ports import free_port
from tests.waiting import wait_for

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return built("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sides(tmp_path_factory) -> tuple[Path, ...]:
    """The wheels of trainer and dashboards."""
    folder = tmp_path_factory.mktemp("sides")
    return tuple(built("wheel", folder / name, name) for name in ("trainer", "dashboards"))


@pytest.fixture(scope="module")
def whole(wheel, sides, tmp_path_factory) -> Path:
    """With every extra, trainer and dashboards."""
    programs = fresh(tmp_path_factory.mktemp("whole") / "venv", extras=True)
    unpack(programs, wheel, *sides)
    return programs


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory) -> Path:
    """What `pip install lightkeeper` alone brings."""
    programs = fresh(tmp_path_factory.mktemp("bare") / "venv", extras=False)
    unpack(programs, wheel)
    return programs


@pytest.fixture
def shell(whole, tmp_path) -> Shell:
    return Shell(whole, strangers(tmp_path / "repository"), tmp_path / "state")


@pytest.fixture
def rank_host(bare, tmp_path) -> Shell:
    return Shell(bare, strangers(tmp_path / "repository"), tmp_path / "state")


def tops(names) -> set[str]:
    return {name.partition("/")[0] for name in names} - {".."}


def rooms(names) -> set[str]:
    return {"/".join(name.split("/")[:2]) for name in names if name.startswith("lightkeeper/")}


def test_each_wheel_holds_its_own_below_the_one_name_with_its_files(wheel, sides):
    contents = [zipfile.ZipFile(path).namelist() for path in (wheel, *sides)]
    for path, names in zip((wheel, *sides), contents, strict=True):
        entry = {"_lightkeeper.py"} if path == wheel else set()
        assert tops(names) - entry == {
            "lightkeeper", f"{'-'.join(path.name.split('-')[:2])}.dist-info"
        }  # fmt: skip
        assert not [name for name in names if "/./" in name]
    held = [rooms(names) for names in contents]
    assert {"lightkeeper/py.typed", "lightkeeper/monitor", "lightkeeper/worker_server"} < held[0]
    manual = [name for name in contents[0] if name.startswith("lightkeeper/docs/")]
    assert manual == ["lightkeeper/docs/on-call.md"]  # what /runbooks shows
    assert held[1:] == [{"lightkeeper/trainer"}, {"lightkeeper/dashboards"}]
    for kind in ("monitor/show/templates/", "monitor/show/web/static/", "dashboards/grafana/"):
        assert any(
            name.startswith(f"lightkeeper/{kind}") for names in contents for name in names
        ), kind


def test_all_three_have_the_version_of_the_first(wheel, sides):
    versions = {path.name.split("-")[1] for path in (wheel, *sides)}
    wanted = [tomllib.loads((ROOT / name / "pyproject.toml").read_text())["project"]["dependencies"]
              for name in ("trainer", "dashboards")]  # fmt: skip
    assert {versions.pop()} == {text.partition("==")[2] for [text] in wanted}
    assert not versions


def test_a_wheel_that_is_built_from_the_sdist_is_the_same(wheel, tmp_path):
    archive = built("sdist", tmp_path / "sdist")
    assert archive.stat().st_size < 3_000_000
    shutil.unpack_archive(archive, tmp_path)
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
        (("lightkeeper", "demo", "--help"), "Usage: lightkeeper demo"),
        (("lightkeeper", "doctor", "--help"), "Usage: lightkeeper doctor"),
        (("lightkeeper", "dashboards", "list"), "lightkeeper-fleet"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_commands_are_ours_beside_a_strangers_packages(shell, words, says):
    done = shell.run(*words)
    assert done.returncode == 0, done.stderr
    assert re.match(rf"(?:Usage.*\n\n)?{says}", done.stdout), done.stdout[:200]


def test_processes_that_a_process_of_ours_starts_are_ours_too(shell):
    """The gate starts the next one, by its own command line."""
    port = free_port()
    gate = subprocess.Popen(
        [str(shell.bin / "lightkeeper"), "gate", "--lighthouse", "http://127.0.0.1:9", "--bind",
         f"127.0.0.1:{free_port()}", "--admin", f"127.0.0.1:{port}"],
        cwd=shell.folder, env=shell.environ(), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        wait_for(lambda: _answers(f"http://127.0.0.1:{port}/v1/gate"), within_s=30, what="the gate")
    finally:
        gate.send_signal(signal.SIGTERM)
        said = gate.communicate(timeout=30)[1]
    assert "stranger" not in said


# -- other people's packages of these names ------------------------------------------------------

RANK = """
import lightkeeper
reporter = lightkeeper.attach()
with reporter.phase("data"):
    pass
import dashboards.loop, monitor.loop, trainer.loop, worker_server.loop
print(type(reporter).__name__, monitor.loop.WHOSE, trainer.loop.WHOSE)
"""


@pytest.mark.parametrize(
    ("editable", "kind"),
    [(False, "a package"), (False, "a folder without __init__.py"), (True, "a package")],
    ids=["wheel", "wheel, no __init__.py", "editable"],
)
def test_a_users_packages_of_our_names_stay_theirs_in_a_rank(whole, tmp_path, kind, editable):
    if editable:
        whole = fresh(tmp_path / "venv", extras=True)
        unpack(whole, "-e", ROOT)
    folder = strangers(tmp_path / "repository")
    for name in OURS:
        (folder / name / "__init__.py").write_text("")
        (folder / name / "loop.py").write_text("WHOSE = 'mine'\n")
        if kind != "a package":
            (folder / name / "__init__.py").unlink()
    (folder / "train.py").write_text(RANK)
    shell = Shell(whole, folder, tmp_path / "state")
    done = shell.run("python", "train.py", LIGHTKEEPER_MONITOR="", LIGHTKEEPER_LINGER_S="0")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Reporter mine mine\n", "")


WHOSE = "import trainer, trainer.model; print(trainer.WHOSE)"


@pytest.mark.parametrize("kind", ["wheel", pytest.param("editable", marks=only_explored)])
def test_a_distribution_named_trainer_and_ours_come_and_go_without_each_other(
    wheel, tmp_path, kind
):
    theirs = distribution_of_a_stranger(tmp_path, "trainer")
    ours = (wheel,) if kind == "wheel" else ("-e", ROOT)
    programs = fresh(tmp_path / "venv", extras=True)
    (tmp_path / "elsewhere").mkdir()
    shell = Shell(programs, tmp_path / "elsewhere", tmp_path / "state")

    def works() -> tuple[bool, bool]:
        version = shell.run("lightkeeper", "--version") if _has(programs) else None
        whose = shell.run("python", "-c", WHOSE)
        return (
            version is not None and version.stdout.startswith("lightkeeper 0."),
            whose.stdout == "a stranger: trainer\n",
        )

    unpack(programs, theirs)
    unpack(programs, *ours)
    assert works() == (True, True)
    uv(programs, "uninstall", "trainer")
    assert works() == (True, False)
    unpack(programs, theirs)
    assert works() == (True, True)
    files = uv(programs, "show", "-f", "lightkeeper").partition("Files:")[2].split()
    editable = {"_editable_impl_lightkeeper.pth", "_editable_impl_lightkeeper.py"}
    own = {"lightkeeper", "_lightkeeper.py"} if kind == "wheel" else editable
    assert {top for top in tops(files) if not top.endswith(".dist-info")} - {"__pycache__"} == own
    uv(programs, "uninstall", "lightkeeper")
    assert works() == (False, True)


def _has(programs: Path) -> bool:
    return (programs / "lightkeeper").exists()


def test_the_trainers_wheel_adds_its_folder_and_takes_only_that_away(wheel, sides, tmp_path):
    programs = fresh(tmp_path / "venv", extras=True)
    shell = Shell(programs, strangers(tmp_path / "repository"), tmp_path / "state")
    unpack(programs, wheel)
    without = shell.run("lightkeeper", "demo", "--help")
    assert (without.returncode, without.stderr) == (
        1, "error: lightkeeper.trainer is not installed here: pip install lightkeeper-trainer\n"
    )  # fmt: skip
    install(programs, sides[0])
    assert shell.run("lightkeeper", "demo", "--help").stdout.startswith("Usage: lightkeeper demo")
    pip(programs, "uninstall", "--yes", "lightkeeper-trainer")
    [site] = programs.parent.glob("lib/python*/site-packages/lightkeeper")
    assert not (site / "trainer").exists()
    assert shell.run("lightkeeper", "monitor", "--help").returncode == 0


@pytest.mark.parametrize("name", OURS)
def test_an_old_spelling_in_a_clone_is_answered_with_the_new_one(name):
    for words in (["-m", name], ["-c", f"import {name}"]):
        done = subprocess.run(
            [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False,
            timeout=60, env={},
        )  # fmt: skip
        assert done.returncode == 1
        assert f"`{name}` is `lightkeeper.{name}` now" in done.stderr.splitlines()[-1]


TYPED = """
from lightkeeper import Reporter, attach
reporter: Reporter = attach(job="demo", rank=0)
reveal_type(attach)
reporter.begin_step("one")
attach(jobs="demo")
"""


def test_a_type_checker_sees_what_attach_takes_and_gives(bare, tmp_path):
    (tmp_path / "train.py").write_text(TYPED)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--python-executable", bare / "python",
         "--config-file", "", "train.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=170,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
    )  # fmt: skip
    said = done.stdout
    assert "train.py:4: note: Revealed type is" in said, said
    assert "job: str | None =" in said
    assert "-> lightkeeper.worker_server.rank.reporter.Reporter" in said
    assert 'train.py:5: error: Argument 1 to "begin_step"' in said
    assert 'train.py:6: error: Unexpected keyword argument "jobs"' in said
    assert "Found 2 errors" in said


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

JOB = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
ends = torch.zeros(1)
while not ends:
    ends += float(os.path.exists("stop"))
    dist.all_reduce(ends)
    time.sleep(0.05)
sys.exit(7)
"""


def test_three_commands_and_no_variable_from_the_wheel_to_a_watched_job(shell):
    """`pip install` was the first; the monitor is not at its default port, which others may use."""
    (shell.folder / "train.py").write_text(JOB)
    url = f"http://127.0.0.1:{free_port()}"
    lightkeeper = str(shell.bin / "lightkeeper")
    here = {"cwd": shell.folder, "env": shell.environ(), "stderr": subprocess.PIPE, "text": True}
    monitor = subprocess.Popen([lightkeeper, "monitor", "--bind", url[7:]], **here)
    wait_for(lambda: _answers(f"{url}/healthz"), within_s=60, what="the monitor")
    job = subprocess.Popen(
        [lightkeeper, "run", "--monitor", url, "--", str(shell.bin / "python"), "-m",
         "torch.distributed.run", "--standalone", "--nproc-per-node", "1", "train.py"],
        **here,
    )  # fmt: skip
    try:
        wait_for(lambda: _healthy(url) == ["job.0"], within_s=90, what="its rank")
        evicted = shell.run(
            "lightkeeper", "quarantine", "add", "node7", "--reason", "trial", "--monitor", url
        )
        assert evicted.returncode == 0, evicted.stderr  # it found the token
        examined = shell.run("lightkeeper", "doctor", "--format", "json")
        findings = json.loads(examined.stdout)["findings"]
        seen = {row["where"] for row in findings if row["check"] == "monitor sees the ranks"}
        assert seen == {"job.0"}
        of_host = {"versions", "run directory", "ptrace"}
        findings = [row for row in findings if "socket is too long" not in row["said"]]  # pytest's
        states = {row["state"] for row in findings if row["check"] not in of_host}
        states -= {"unknown"}  # torch's control plane may come up later, and doctor says so
        assert (examined.returncode, states) == (0, {"ok"}), examined.stdout
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
