"""Attaching without a line in the script: `python -m worker_server`, and LIGHTKEEPER_ATTACH=1."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.worker_server.ranks import ROOT

pytestmark = pytest.mark.integration

SCRIPT = """
import json, sys, worker_server
kind = type(worker_server.attach()).__name__
print(json.dumps([kind, __name__, sys.argv[1:], sys.path[0]]))
{ending}
"""


def run(*arguments, run_dir, cwd, **environ):
    own = {k: v for k, v in os.environ.items() if not k.startswith(("LIGHTKEEPER", "RANK"))}
    return subprocess.run(
        [sys.executable, *arguments],
        env={**own, "PYTHONPATH": str(ROOT), "LIGHTKEEPER_RUN_DIR": str(run_dir),
             "LIGHTKEEPER_LINGER_S": "0", **environ},
        cwd=cwd, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ending", "status"),
    [("", 0), ("sys.exit(3)", 3), ("1 / 0", 1), ("import os; os._exit(7)", 7)],
    ids=["normal", "sys.exit", "exception", "os._exit"],
)
def test_a_script_runs_attached_and_ends_as_it_ends(tmp_path, run_dir, ending, status):
    (tmp_path / "sub").mkdir()
    script = tmp_path / "sub" / "train.py"
    script.write_text(SCRIPT.format(ending="sys.stdout.flush(); " + ending if ending else ""))
    done = run("-m", "worker_server", "sub/train.py", "--lr", "1", run_dir=run_dir, cwd=tmp_path)
    assert done.returncode == status
    told = json.loads(done.stdout)
    assert told == ["Reporter", "__main__", ["--lr", "1"], str(script.parent)]
    assert ("ZeroDivisionError" in done.stderr) == (status == 1)


def test_a_module_runs_attached(tmp_path, run_dir):
    (tmp_path / "train_it.py").write_text(SCRIPT.format(ending=""))
    done = run("-m", "worker_server", "-m", "train_it", "x", run_dir=run_dir, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[:3] == ["Reporter", "__main__", ["x"]]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["nowhere.py"], "no such script: nowhere.py"), (["-m"], "-m needs a module"), ([], "usage:")],
    ids=["no script", "no module", "nothing"],
)
def test_a_wrong_command_line_is_said_and_ends_with_two(tmp_path, run_dir, arguments, says):
    done = run("-m", "worker_server", *arguments, run_dir=run_dir, cwd=tmp_path)
    assert (done.returncode, says in done.stderr) == (2, True)


ASK = """
import subprocess, sys, torch
from pathlib import Path
import os
pages = lambda: len(list(Path(os.environ["LIGHTKEEPER_RUN_DIR"]).glob("*.page")))
before = pages()
if len(sys.argv) == 1:
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
print(before, pages())
"""


@pytest.mark.parametrize(
    ("environ", "pages"),
    [
        pytest.param({"LIGHTKEEPER_ATTACH": "1", "RANK": "0", "WORLD_SIZE": "1"}, "1 1", id="rank"),
        pytest.param({"LIGHTKEEPER_ATTACH": "1"}, "0 0", id="no rank"),
        pytest.param({"RANK": "0", "WORLD_SIZE": "1"}, "0 0", id="not asked"),
    ],
)
def test_import_torch_attaches_a_rank_that_asks_for_it_and_not_its_children(
    tmp_path, run_dir, environ, pages
):
    done = run("-c", ASK, run_dir=run_dir, cwd=tmp_path, **environ)
    assert (done.returncode, done.stdout.strip()) == (0, pages), done.stderr
