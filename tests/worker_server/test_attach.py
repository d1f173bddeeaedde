"""Attaching never raises, whatever the surroundings; and a late torch is noticed."""

from __future__ import annotations

import pytest

from tests.worker_server.ranks import run_python
from worker_server import run_dir as folders

pytestmark = pytest.mark.integration


def run(code, run_dir, **environ):
    return run_python("-c", code, run_dir=run_dir, **environ)


SAY = "import worker_server; r = worker_server.attach(); print(type(r).__name__)"


@pytest.mark.parametrize(
    "environ",
    [{"RANK": "x"}, {"LIGHTKEEPER_PORT_BASE": "x"}, {"LIGHTKEEPER_TOKEN_FILE": "/nonexistent"},
     {"REPLICA_GROUP": "g" * 5000}],
    ids=lambda environ: next(iter(environ)),
)  # fmt: skip
def test_an_attach_that_fails_is_one_warning_and_a_reporter_that_does_nothing(run_dir, environ):
    done = run(SAY, run_dir, **environ)
    assert (done.returncode, done.stdout) == (0, "NullReporter\n")
    assert done.stderr.count("RuntimeWarning: lightkeeper is not attached") == 1


def test_a_misspelt_variable_is_one_warning_of_rank_0_and_the_rank_is_attached(run_dir):
    for rank, warnings in (("0", 1), ("1", 0)):
        who = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2"}
        done = run(SAY, run_dir, **who, LIGHTKEEPER_MONTIOR="http://127.0.0.1:1")
        assert (done.returncode, done.stdout) == (0, "Reporter\n")
        said = "nothing reads LIGHTKEEPER_MONTIOR (did you mean LIGHTKEEPER_MONITOR?)"
        assert done.stderr.count(said) == warnings


def test_warnings_as_errors_do_not_reach_training(run_dir):
    done = run(f"import warnings; warnings.simplefilter('error'); {SAY}", run_dir, RANK="x")
    assert (done.returncode, done.stdout) == (0, "NullReporter\n")
    assert done.stderr.startswith("RuntimeWarning: lightkeeper is not attached: ")
    assert done.stderr.count("\n") == 1


def test_a_run_directory_that_others_may_enter_is_refused(tmp_path):
    tmp_path.chmod(0o755)
    assert "open to others" in run(SAY, tmp_path).stderr
    assert not list(tmp_path.iterdir())


def test_what_the_caller_says_wins_over_the_environment(run_dir):
    code = (
        "import worker_server as w\n"
        "w.attach(job='j', group='g', rank=1, world_size=2, host='h')\n"
        "import os; from pathlib import Path\n"
        "from worker_server.rank.page.reader import PageReader\n"
        "who = PageReader(next(Path(os.environ['LIGHTKEEPER_RUN_DIR']).glob('*.page'))).identity\n"
        "print(who.job, who.rank, who.world_size, who.host)\n"
    )
    done = run(code, run_dir, RANK="0", WORLD_SIZE="4", REPLICA_GROUP="x", LIGHTKEEPER_HOST="y")
    assert (done.stdout, done.stderr) == ("j g.1 2 h\n", "")


def test_a_pod_that_was_not_told_its_node_says_so_once_a_pod(run_dir):
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "RANK": "1", "WORLD_SIZE": "2"}
    for environ, says in (({"LOCAL_RANK": "0"}, 1), ({"LOCAL_RANK": "1"}, 0),
                          ({"LIGHTKEEPER_HOST": "node"}, 0)):  # fmt: skip
        done = run(SAY, run_dir, **pod, **environ)
        assert done.stdout == "Reporter\n"
        assert done.stderr.count("set LIGHTKEEPER_HOST from spec.nodeName") == says


def test_where_no_sidecar_can_be_started_no_page_is_left(run_dir):
    done = run(f"import os; del os.pidfd_open; {SAY}", run_dir)  # as on old kernels
    assert done.stdout == "NullReporter\n"
    assert done.stderr.count("RuntimeWarning: lightkeeper is not attached") == 1
    assert not list(run_dir.iterdir())


def test_it_can_be_switched_off(run_dir):
    done = run(SAY, run_dir, LIGHTKEEPER="0")
    assert (done.stdout, done.stderr) == ("NullReporter\n", "")
    assert not list(run_dir.iterdir())


def test_attaching_twice_gives_the_same_reporter(run_dir):
    done = run("import worker_server as w; print(w.attach() is w.attach())", run_dir)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_importing_the_package_is_light(run_dir):
    heavy = "[m for m in ('torch', 'flask', 'mmap', 'subprocess', 'ctypes') if m in sys.modules]"
    done = run(f"import sys, worker_server, worker_server.wire; print({heavy})", run_dir)
    assert done.stdout == "[]\n"


def test_a_torch_imported_later_is_noticed_at_the_end_of_its_import(run_dir, tmp_path):
    fake = tmp_path / "torch"
    fake.mkdir()
    (fake / "__init__.py").write_text("import torch.inner\nprint('torch is in')\n")
    (fake / "inner.py").write_text("")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from worker_server.rank.torch_hooks import when_imported\n"
        "when_imported('torch', lambda: print('noticed'))\n"
        "before = len(sys.meta_path)\n"
        "import torch\n"
        "print(torch.__spec__.name, len(sys.meta_path) - before)\n"
    )
    done = run(code, run_dir)
    assert done.stdout == "torch is in\nnoticed\ntorch -1\n", done.stderr


def test_the_endpoint_file_and_page_of_another_process_are_private(start_rank):
    rank = start_rank("hang")
    rank.says("ready")
    assert rank.endpoint
    for path in rank.run_dir.glob("*.page"):
        assert path.stat().st_mode & 0o777 == 0o600
    assert folders.start_ticks(2**22 + 1) is None


COMPILES = """
import os, torch, worker_server
from pathlib import Path
from worker_server.rank.page.reader import PageReader
worker_server.attach()
page = PageReader(next(Path(os.environ["LIGHTKEEPER_RUN_DIR"]).glob("*.page")))

def tags():
    return page.tags()

def backend(graph, example):
    print("while", tags())
    return graph

def broken(graph, example):
    raise RuntimeError("no")

print("before", tags())
torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
print("after", tags())
try:
    torch.compile(lambda x: x * 2, backend=broken)(torch.ones(2))
except Exception:
    print("failed", tags())
from torch._dynamo.callback import callback_handler
for ours in (*callback_handler.start_callbacks, *callback_handler.end_callbacks):
    ours()
print("called as older torches do", tags())
"""

ANOTHER_TORCH = """
import sys, types, worker_server
for name in ("torch", "torch._dynamo"):
    sys.modules[name] = types.ModuleType(name)
from worker_server.rank.torch_hooks import declare_compilations
sys.modules["torch._dynamo.callback"] = types.ModuleType("torch._dynamo.callback")
declare_compilations(worker_server.attach())
print("trains")
"""


def test_a_compilation_is_tagged_while_it_lasts(run_dir):
    done = run(COMPILES, run_dir)
    assert done.stdout.split("\n")[:-1] == [
        "before ()", "while ('compile',)", "after ()", "failed ()",
        "called as older torches do ()",
    ]  # fmt: skip


def test_a_torch_that_calls_nobody_back_is_one_warning(run_dir):
    done = run(ANOTHER_TORCH, run_dir, LIGHTKEEPER_TORCH="0")
    assert (done.returncode, done.stdout) == (0, "trains\n")
    assert (
        done.stderr.count("RuntimeWarning: lightkeeper does not see what torch.compile does") == 1
    )
