"""examples/systemd: units that systemd reads without a word, and commands that ours understand."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from configparser import RawConfigParser

import pytest

from tests.examples.fleet import EXAMPLES
from tests.monitor.commands.parsing import parsed

pytestmark = pytest.mark.integration
UNITS = sorted((EXAMPLES / "systemd").glob("*.service"))


def service_of(path):
    unit = RawConfigParser(strict=False)
    unit.optionxform = str  # names of systemd are not lowered
    unit.read_string(path.read_text().replace("\\\n", ""))
    return unit["Service"]


def words_of(path):
    return shlex.split(service_of(path)["ExecStart"])


def test_systemd_reads_them_all(tmp_path):
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not here")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("torchft_lighthouse", "lightkeeper", "torchrun"):
        (programs / name).symlink_to("/bin/true")
    copies = []
    for path in UNITS:
        text = path.read_text()
        for place in ("/opt/train/bin", "/opt/lightkeeper/bin"):
            text = text.replace(place, str(programs))
        copies.append(tmp_path / path.name)
        copies[-1].write_text(text.replace("/opt/train", str(tmp_path)))
    done = subprocess.run(
        ["systemd-analyze", "verify", *copies], check=False, capture_output=True, text=True
    )
    assert (done.returncode, [x for x in done.stderr.splitlines() if str(tmp_path) in x]) == (0, [])


@pytest.mark.parametrize("name", ["gate", "monitor"])
def test_ours_understand_their_arguments(name):
    program, *words = words_of(EXAMPLES / "systemd" / f"lightkeeper-{name}.service")
    assert program == "/opt/lightkeeper/bin/lightkeeper"
    assert parsed(*words).info_name == name


def test_the_end_of_a_group_ends_its_ranks_and_a_gate_is_reloaded_by_the_next_one():
    texts = {path.stem: path.read_text() for path in UNITS}
    assert "KillMode=control-group" in texts["lightkeeper-group@"]
    assert "ExecReload=/bin/kill -HUP" in texts["lightkeeper-gate"]


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_systemd_finds_little_that_they_could_do_to_the_host(path):
    """Of 10; 9.2 where nothing is said. Ranks need devices, and code that is written and run."""
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not here")
    most = 55 if "group" in path.name else 20
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={most}", path]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout.splitlines()[-1]


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_none_of_them_is_root_or_becomes_it_and_each_may_open_enough_files(path):
    unit = service_of(path)
    assert unit["User"] != "root"
    assert (unit["NoNewPrivileges"], unit["CapabilityBoundingSet"]) == ("yes", "")
    assert int(unit["LimitNOFILE"]) >= 65_536


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_no_unit_hides_what_its_program_reads(path):
    """Both look for other lives of themselves in /proc, and ranks for devices and memory."""
    unit = service_of(path)
    assert "ProcSubset" not in unit
    if "monitor" in path.name:
        assert "ProtectProc" not in unit  # a process that is hidden would pass for one that ended
    if "group" in path.name:
        kept = {"PrivateDevices", "ProtectClock", "MemoryDenyWriteExecute", "ProtectProc"}
        assert not kept & set(unit)


def test_a_group_runs_what_its_owner_wrote_down():
    words = words_of(EXAMPLES / "systemd" / "lightkeeper-group@.service")
    assert words[-1] == "$TRAIN"  # unbraced: systemd splits it into words
    assert not any("trainer" in word for word in words)
