"""Attaching without a line: `python -m lightkeeper.worker_server`, and LIGHTKEEPER_ATTACH=1."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from tests.worker_server.ranks import ROOT, environment, run_each
from tests.worker_server.ranks import run_python as run

pytestmark = pytest.mark.integration

SCRIPT = """
import json, sys, lightkeeper
kind = type(lightkeeper.attach()).__name__
print(json.dumps([kind, __name__, sys.argv[1:], sys.path[0]]))
"""


def test_a_script_runs_attached(tmp_path, run_dir):
    (tmp_path / "sub").mkdir()
    script = tmp_path / "sub" / "train.py"
    script.write_text(SCRIPT)
    done = run(
        "-m",
        "lightkeeper.worker_server",
        "sub/train.py",
        "--lr",
        "1",
        run_dir=run_dir,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == ["Reporter", "__main__", ["--lr", "1"], str(script.parent)]


DEFINITIONS = """
import multiprocessing, os, signal, sys, threading
from dataclasses import dataclass
@dataclass
class Weights:
    value: int
def double(weights):
    return Weights(weights.value * 2)
def names():
    return sorted(name for name in globals() if name.startswith("_"))
"""
SEEN = (
    "print(__name__, __file__, sys.argv, sys.path, sys.flags, __package__, __doc__, names())\n"
    "print(getattr(__spec__, 'name', None), sys.modules['__main__'].double is double)\n"
    "print(os.environ.get('PYTHONPATH'))\n"
)
BEHAVIOURS = {
    "what it sees": SEEN,
    "what it starts": "if __name__ == '__main__':\n"
    "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
    "        print(pool.map(double, [Weights(4)]))\n"
    "    import atexit\n"
    "    atexit.register(lambda: print('bye'))\n"
    "    threading.Thread(target=lambda: 1 / 0, name='t').start()\n"
    "    sys.exit(4)\n",
    "exception": "def fail():\n    1 / 0\nfail()",
    "os._exit": "sys.stdout.flush(); os._exit(7)",
    "signal": "sys.stdout.flush(); os.kill(os.getpid(), signal.SIGTERM)",
    "syntax error": "def (:",
}


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_a_script_is_to_itself_and_to_others_what_it_is_under_plain_python(
    tmp_path, run_dir, behaviour
):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "it.py").write_text(DEFINITIONS + BEHAVIOURS[behaviour])
    plain = run("sub/it.py", "a", "-m", run_dir=run_dir, cwd=tmp_path)
    ours = run(
        "-m", "lightkeeper.worker_server", "sub/it.py", "a", "-m", run_dir=run_dir, cwd=tmp_path
    )
    assert (ours.stdout, ours.stderr, ours.returncode) == (
        plain.stdout, plain.stderr, plain.returncode,
    )  # fmt: skip


@pytest.mark.parametrize("way", ["-m pkg.it", "-m pkg", "pkg"])
def test_a_module_a_package_and_a_folder_run_as_under_plain_python(tmp_path, run_dir, way):
    (tmp_path / "pkg").mkdir()
    for name in ("it.py", "__main__.py"):
        (tmp_path / "pkg" / name).write_text(DEFINITIONS + BEHAVIOURS["what it sees"])
    plain = run(*way.split(), "a", run_dir=run_dir, cwd=tmp_path)
    ours = run("-m", "lightkeeper.worker_server", *way.split(), "a", run_dir=run_dir, cwd=tmp_path)
    assert (ours.stdout, ours.stderr, ours.returncode) == (
        plain.stdout, plain.stderr, plain.returncode,
    )  # fmt: skip


@pytest.mark.parametrize(
    "way",
    [["nowhere.py"], ["-m", "nowhere"], ["-c", "import sys; print(sys.argv, sys.path[0])", "a"],
     ["-c", "1 / 0"]],
    ids=" ".join,
)  # fmt: skip
def test_what_is_not_there_and_what_is_no_file_end_as_under_plain_python(tmp_path, run_dir, way):
    plain = run(*way, run_dir=run_dir, cwd=tmp_path)
    ours = run("-m", "lightkeeper.worker_server", *way, run_dir=run_dir, cwd=tmp_path)
    assert (ours.stdout, ours.stderr, ours.returncode) == (
        plain.stdout, plain.stderr, plain.returncode,
    )  # fmt: skip


@pytest.mark.parametrize("flags", [["-P"], ["-u", "-X", "dev"], ["-Wignore", "-O"]], ids=" ".join)
def test_what_python_was_told_itself_stays(tmp_path, run_dir, flags):
    (tmp_path / "it.py").write_text(DEFINITIONS + SEEN)
    plain = run(*flags, "it.py", run_dir=run_dir, cwd=tmp_path)
    ours = run(*flags, "-m", "lightkeeper.worker_server", "it.py", run_dir=run_dir, cwd=tmp_path)
    assert (ours.stdout, ours.stderr) == (plain.stdout, plain.stderr)


def test_the_sites_own_customizations_are_made_as_well(tmp_path, run_dir):
    (tmp_path / "sitecustomize.py").write_text("CUSTOM = 7")
    path = f"{ROOT}{os.pathsep}{tmp_path}"
    code = "import sitecustomize; print(sitecustomize.CUSTOM)"
    done = run("-m", "lightkeeper.worker_server", "-c", code,
               run_dir=run_dir, cwd=tmp_path, PYTHONPATH=path)  # fmt: skip
    assert (done.stdout, done.stderr) == ("7\n", "")


def test_an_interpreter_that_heeds_no_environment_says_that_it_is_not_attached(tmp_path, run_dir):
    done = run("-E", "-m", "lightkeeper.worker_server", "-c", "print(1)", run_dir=run_dir, cwd=ROOT)
    assert done.stdout == "1\n"
    assert "not attached" in done.stderr
    assert not list(run_dir.iterdir())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-m"], "-m needs a module"), (["-c"], "-c needs code"), ([], "usage:"),
        (["--bogus", "a.py"], "no such option: --bogus"), (["--job"], "no such option: --job"),
        (["--token=x", "a.py"], "no such option: --token ("),
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_command_line_is_said_and_ends_with_two(tmp_path, run_dir, arguments, says):
    done = run("-m", "lightkeeper.worker_server", *arguments, run_dir=run_dir, cwd=tmp_path)
    assert (done.returncode, says in done.stderr) == (2, True)
    assert not list(run_dir.iterdir())


def test_the_help_teaches_and_starts_nothing(tmp_path, run_dir):
    done = run("-m", "lightkeeper.worker_server", "--help", run_dir=run_dir, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    names = "LIGHTKEEPER_TOKEN_FILE", "LIGHTKEEPER_MONITOR"
    for word in ("torchrun", *names, "docs/integrations.md"):
        assert word in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert not list(run_dir.iterdir())


def test_around_a_launcher_it_is_the_ranks_that_are_asked_to_attach(tmp_path, run_dir):
    (tmp_path / "torchrun").write_text("import os; print(os.environ['LIGHTKEEPER_ATTACH'])")
    done = run(
        "-m", "lightkeeper.worker_server", "torchrun", "train.py", run_dir=run_dir, cwd=tmp_path
    )
    assert (done.stdout, done.stderr) == ("1\n", "")
    assert not list(run_dir.iterdir())


ASK = """
import subprocess, sys, torch
from pathlib import Path
import os
import re
pages = lambda: len(list(Path(os.environ["LIGHTKEEPER_RUN_DIR"]).glob("*.page")))
before = pages()
subprocess.run([sys.executable, "-c", "import torch"], check=True)
print(before, pages())
"""
ASKED = {"LIGHTKEEPER_ATTACH": "1"}
STEP = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7"}


def test_import_torch_attaches_a_rank_that_asks_for_it_and_not_its_children(tmp_path, run_dir):
    done = run("-c", ASK, run_dir=run_dir, cwd=tmp_path, **ASKED, RANK="0", WORLD_SIZE="1")
    assert (done.returncode, done.stdout.strip()) == (0, "1 1"), done.stderr


WISH = """
import os, sys
from pathlib import Path
from lightkeeper.worker_server.autoload import autoload
sys.orig_argv = {command!r}
autoload()
print(os.environ.get("LIGHTKEEPER_ATTACH"), [path.name.split("-")[0] for path in
      Path(os.environ["LIGHTKEEPER_RUN_DIR"]).glob("*.page")])
"""
PLAIN = ["python", "train.py"]
OTHERS_DONE = {"LIGHTKEEPER_ATTACH": "done:Slurm"}


RANK_3 = {"RANK": "3", "WORLD_SIZE": "4"}
WISHES = {
    "a rank of srun's": ({**ASKED, **STEP}, PLAIN, "done:Slurm ['job.0']"),
    "a pod of an indexed job": ({**ASKED, "JOB_COMPLETION_INDEX": "0", "WORLD_SIZE": "1"}, PLAIN,
                                "done:Kubernetes ['job.0']"),
    "torchrun under srun leaves the wish to its ranks": (
        {**ASKED, **STEP}, ["python", "/bin/torchrun", "train.py"], "1 []"),
    "a rank of that torchrun": ({**ASKED, **STEP, **RANK_3}, PLAIN, "done:torchrun ['job.3']"),
    "a rank of a launcher that took the wish": (
        {**OTHERS_DONE, **STEP, **RANK_3}, PLAIN, "done:torchrun ['job.3']"),
    "what a rank started": ({**OTHERS_DONE, **STEP}, PLAIN, "done:Slurm []"),
    "no rank": (ASKED, PLAIN, "1 []"),
    "not asked": ({"RANK": "0", "WORLD_SIZE": "1"}, PLAIN, "None []"),
}  # fmt: skip


@pytest.fixture(scope="module")
def wishes(module_dir):
    return run_each(
        {
            name: (WISH.format(command=command), environ)
            for name, (environ, command, _) in WISHES.items()
        },
        module_dir,
    )


@pytest.mark.parametrize("name", WISHES)
def test_the_wish_reaches_the_ranks_and_nobody_else(wishes, name):
    assert wishes[name][1:3] == (f"{WISHES[name][2]}\n", "")


def frames_of(traceback: str) -> str:
    """Without the place in the file: the signal may come just before the sleep."""
    lines = [line for line in traceback.splitlines() if not line.startswith("    ")]
    return re.sub(r"line \d+", "line N", "\n".join(lines))


def test_a_real_interrupt_ends_a_script_as_it_ends_under_plain_python(tmp_path, run_dir):
    code = "import time\nprint('ready', flush=True)\ntime.sleep(60)\n"
    (tmp_path / "it.py").write_text(code)
    ends = []
    for front in ([], ["-m", "lightkeeper.worker_server"]):
        with subprocess.Popen(
            [sys.executable, *front, "it.py"], cwd=tmp_path, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
            env=environment(run_dir),
        ) as process:  # fmt: skip
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGINT)
            ends.append((frames_of(process.stderr.read()), process.wait(20)))
    assert ends[0] == ends[1]
    assert ends[0][1] == -signal.SIGINT
