"""Stacks are taken in a rank whose C++ threads come and go."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

COMPILER = shutil.which("cc")
SCRIPT = """\
import ctypes, itertools, os, sys, time
from lightkeeper.worker_server.rank import last_words
library, still, seconds = ctypes.CDLL(sys.argv[1]), sys.argv[2] == "still", float(sys.argv[3])
taken = []
steps = itertools.count()
progress = (lambda: 0) if still else (lambda: next(steps))
last_words._STILL_S, last_words._DUTY = 0.0 if still else 2.0, 1e9
keep = last_words.keeping(taken.append, progress)
library.begin(0 if still else 6)
until = time.monotonic() + seconds
while time.monotonic() < until and not (still and taken):
    keep()
    time.sleep(0)
library.end()
print(len(taken), flush=True)
os._exit(0)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    headers = Path(sysconfig.get_paths()["include"])
    if COMPILER is None or not (headers / "Python.h").exists():
        pytest.skip("no C compiler, or no headers of Python")
    made = tmp_path_factory.mktemp("race") / "race.so"
    source = Path(__file__).with_name("thread_race.c")
    subprocess.run(
        [COMPILER, "-O1", "-shared", "-fPIC", f"-I{headers}", source, "-o", made, "-lpthread"],
        check=True,
    )
    return made


def run(library: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", SCRIPT, library, *words],
                          capture_output=True, text=True, timeout=60, check=False)  # fmt: skip


def test_a_rank_that_gets_on_lives(library: Path) -> None:
    """With Python 3.11, taking stacks all the same ends it within seconds (decisions.md)."""
    done = run(library, "moves", "2")
    assert done.returncode == 0, done.stderr
    assert (int(done.stdout) == 0) == (sys.version_info < (3, 12))


def test_the_stacks_of_one_that_stands_still_are_taken(library: Path) -> None:
    assert run(library, "still", "30").stdout == "1\n"
