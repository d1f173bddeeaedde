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
    words = ["-m", "lightkeeper.worker_server", "sub/train.py", "--lr", "1"]
    done = run(*words, run_dir=run_dir, cwd=tmp_path)
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


def test_what_python_was_told_itself_stays(tmp_path, run_dir):
    flags = ["-P", "-u", "-X", "dev", "-Wignore", "-O"]
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


ASKED = {"LIGHTKEEPER_ATTACH": "1"}
STEP = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7"}


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


# -- a process that becomes a rank when it calls init_process_group: torch's names without torch ---

INIT = """
import json, os, sys, types
from pathlib import Path
from lightkeeper.worker_server.autoload import autoload
def init_process_group(backend=None, init_method=None, timeout=None, world_size=-1, rank=-1):
    if backend == "fails":
        raise RuntimeError("no such backend")
    return [backend, world_size, rank]
def destroy_process_group(group=None):
    return group
original = init_process_group
names = ["", ".distributed_c10d", ".device_mesh"]
modules = [types.ModuleType("torch.distributed" + name) for name in names]
for module in modules:
    sys.modules[module.__name__] = module
    module.init_process_group = original
    module.destroy_process_group = destroy_process_group
dist = modules[0]
sys.orig_argv = {command!r}
autoload()
init_process_group = dist.init_process_group
answers = []
{code}
pages = [path.name.split("-")[0] for path in Path(os.environ["LIGHTKEEPER_RUN_DIR"]).glob("*.page")]
put_back = [module.init_process_group is original for module in modules]
print(json.dumps([answers, pages, all(put_back), any(put_back), os.environ["LIGHTKEEPER_ATTACH"]]))
"""
CALL = "answers.append(dist.init_process_group({}))"
BY_CALL = CALL.format("'gloo', rank=1, world_size=2")
FAILS_ONCE = """
try:
    dist.init_process_group({})
except (RuntimeError, TypeError) as exc:
    answers.append(type(exc).__name__)
"""
WRAPPED = """
ours = dist.init_process_group
def wrapper(*args, **kwargs):
    return ours(*args, **kwargs)
dist.init_process_group = modules[1].init_process_group = wrapper
"""
DESTROY = """
answers.append(dist.destroy_process_group())
from lightkeeper.worker_server.rank.page.reader import PageReader
answers.append(PageReader(next(Path(os.environ["LIGHTKEEPER_RUN_DIR"]).glob("*.page"))).closed)
"""
BECAME, STAYED = "done:init_process_group", "1"
RAY = ["python", "/site-packages/ray/_private/workers/default_worker.py", "--node-ip-address=::1"]
INITS = {
    "the call names it": (BY_CALL, {}, PLAIN, [["gloo", 2, 1]], ["job.1"], BECAME),
    "variables that came later name it": (
        "os.environ.update(RANK='2', WORLD_SIZE='3')\n" + CALL.format("'gloo'"),
        {}, PLAIN, [["gloo", -1, -1]], ["job.2"], BECAME),
    "the call is right where a variable says otherwise": (
        "os.environ.update(RANK='0', WORLD_SIZE='2')\n" + BY_CALL,
        {}, PLAIN, [["gloo", 2, 1]], ["job.1"], BECAME),
    "a worker of Ray on a node of Slurm": (
        BY_CALL, STEP, RAY, [["gloo", 2, 1]], ["job.1"], BECAME),
    "Ray destroys its groups before it ends it": (
        BY_CALL + DESTROY, {}, RAY, [["gloo", 2, 1], None, True], ["job.1"], BECAME),
    "another script destroys its groups": (
        BY_CALL + DESTROY, {}, PLAIN, [["gloo", 2, 1], None, False], ["job.1"], BECAME),
    "imported by name": ("answers.append(init_process_group('gloo', None, None, 2, 1))",
                         {}, PLAIN, [["gloo", 2, 1]], ["job.1"], BECAME),
    "it fails, and is called again": (
        FAILS_ONCE.format("'fails', rank=1, world_size=2") + BY_CALL + "\n" + BY_CALL,
        {}, PLAIN, ["RuntimeError", ["gloo", 2, 1], ["gloo", 2, 1]], ["job.1"], BECAME),
    "wrong arguments are the callee's concern": (
        FAILS_ONCE.format("colour=3") + BY_CALL, {}, PLAIN, ["TypeError", ["gloo", 2, 1]],
        ["job.1"], BECAME),
    "an address that is no text is the callee's concern": (
        CALL.format("'gloo', 1, None, 2, 1"), {}, PLAIN, [["gloo", 2, 1]], [], STAYED),
    "no rank": (CALL.format("'gloo'"), {}, PLAIN, [["gloo", -1, -1]], [], STAYED),
    "a rank beyond its world": (
        CALL.format("'gloo', rank=2, world_size=2"), {}, PLAIN, [["gloo", 2, 2]], [], STAYED),
    "a size with nothing behind it": (
        CALL.format("'fake', rank=0, world_size=64"), {}, PLAIN, [["fake", 64, 0]], [], STAYED),
    "switched off": ("os.environ['LIGHTKEEPER'] = '0'\n" + BY_CALL, {}, PLAIN,
                     [["gloo", 2, 1]], [], STAYED),
    "a launcher": (BY_CALL, {}, ["python", "/bin/torchrun"], [["gloo", 2, 1]], [], STAYED),
    "a child of such a rank": (
        "os.environ.update(RANK='1', WORLD_SIZE='2')\n" + BY_CALL,
        {"LIGHTKEEPER_ATTACH": BECAME}, PLAIN, [["gloo", 2, 1]], [], BECAME),
}  # fmt: skip


@pytest.fixture(scope="module")
def inits(module_dir):
    folder = module_dir / "inits"
    folder.mkdir()
    wrapped = (WRAPPED + BY_CALL + "\n" + BY_CALL, {}, PLAIN)
    cases = {**{name: case[:3] for name, case in INITS.items()}, "wrapped": wrapped}
    return run_each(
        {
            name: (INIT.format(command=command, code=code), {**ASKED, **environ})
            for name, (code, environ, command) in cases.items()
        },
        folder,
    )


@pytest.mark.parametrize("name", INITS)
def test_a_process_attaches_when_a_call_makes_it_a_rank(inits, name):
    _, _, _, answers, pages, wish = INITS[name]
    assert inits[name].stderr == ""
    seen = json.loads(inits[name].stdout)
    assert [seen[0], seen[1], seen[4]] == [answers, pages, wish]


@pytest.mark.parametrize("name", INITS)
def test_the_name_is_torchs_own_again_once_it_has_attached(inits, name):
    _, _, all_back, any_back, _ = json.loads(inits[name].stdout)
    assert all_back == any_back
    assert any_back == (INITS[name][5] == BECAME or name in ("a launcher", "switched off"))


def test_what_others_put_around_it_stays_and_runs_once_a_call(inits):
    assert inits["wrapped"].stderr == ""
    answers, pages, *_ = json.loads(inits["wrapped"].stdout)
    assert (answers, pages) == ([["gloo", 2, 1]] * 2, ["job.1"])


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
