"""examples/systemd: units that systemd reads without a word, and commands that ours understand."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from configparser import RawConfigParser

import pytest

from monitor.cli import build_parser
from tests.examples.fleet import EXAMPLES

pytestmark = pytest.mark.integration
UNITS = sorted((EXAMPLES / "systemd").glob("*.service"))


def words_of(path):
    unit = RawConfigParser(strict=False)
    unit.optionxform = str  # names of systemd are not lowered
    unit.read_string(path.read_text().replace("\\\n", ""))
    return shlex.split(unit["Service"]["ExecStart"])


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
    assert build_parser().parse_args(words).command == name


def test_the_end_of_a_group_ends_its_ranks_and_that_of_the_gate_leaves_its_worker():
    texts = {path.stem: path.read_text() for path in UNITS}
    assert "KillMode=control-group" in texts["lightkeeper-group@"]
    assert "KillMode=process" in texts["lightkeeper-gate"]
