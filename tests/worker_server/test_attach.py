"""Attaching never raises, whatever the surroundings."""

from __future__ import annotations

import pytest

from tests.worker_server.ranks import run_each, run_python

pytestmark = pytest.mark.integration

SAY = "import lightkeeper; r = lightkeeper.attach(); print(type(r).__name__)"
IDENTITY = """
import lightkeeper as w
w.attach(job='j', group='g', rank=1, world_size=2, host='h')
import os; from pathlib import Path
from lightkeeper.worker_server.rank.page.reader import PageReader
page = next(Path(os.environ['LIGHTKEEPER_RUN_DIR']).glob('*.page'))
who = PageReader(page).identity
print(who.job, who.rank, who.world_size, who.host, oct(page.stat().st_mode & 0o777))
"""
WITHOUT_TORCH = """
import sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "numpy", "torchft"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, NoTorch())
import os
from pathlib import Path
import lightkeeper
from lightkeeper.worker_server.rank.page.reader import PageReader
reporter = lightkeeper.attach()
try:
    import torch
except ModuleNotFoundError:
    reporter.begin_step(3)
page = PageReader(next(Path(os.environ["LIGHTKEEPER_RUN_DIR"]).glob("*.page")))
with reporter.phase("forward"):
    state = page.step_state(2**62)
print(state.step, state.phase)
"""
WITH_A_KEY = """
import os
key = os.environ["LIGHTKEEPER_RUN_DIR"] + "/key"
open(key, "w").close()
os.chmod(key, mode)
os.environ.update(LIGHTKEEPER_TLS_CERT=key, LIGHTKEEPER_TLS_KEY=key)
"""
ANOTHER_TORCH = """
import sys, types, lightkeeper
for name in ("torch", "torch._dynamo"):
    sys.modules[name] = types.ModuleType(name)
from lightkeeper.worker_server.rank.torch_hooks import declare_compilations
sys.modules["torch._dynamo.callback"] = types.ModuleType("torch._dynamo.callback")
declare_compilations(lightkeeper.attach())
print("trains")
"""


FAILS = {
    "RANK": {"RANK": "x"},
    "LIGHTKEEPER_PORT_BASE": {"LIGHTKEEPER_PORT_BASE": "x"},
    "LIGHTKEEPER_TOKEN_FILE": {"LIGHTKEEPER_TOKEN_FILE": "/nonexistent"},
    "REPLICA_GROUP": {"REPLICA_GROUP": "g" * 5000},
}
ONE_OF_TWO = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}
OTHER_OF_TWO = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
MISSPELT = {"LIGHTKEEPER_MONTIOR": "http://127.0.0.1:1"}
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "RANK": "1", "WORLD_SIZE": "2"}
CASES = {
    **{name: (SAY, environ) for name, environ in FAILS.items()},
    "misspelt, rank 0": (SAY, {**ONE_OF_TWO, **MISSPELT}),
    "misspelt, rank 1": (SAY, {**OTHER_OF_TWO, **MISSPELT}),
    "errors": (f"import warnings; warnings.simplefilter('error'); {SAY}", {"RANK": "x"}),
    "open": (f"import os; os.chmod(os.environ['LIGHTKEEPER_RUN_DIR'], 0o755); {SAY}", {}),
    "caller": (IDENTITY, {"RANK": "0", "WORLD_SIZE": "4", "REPLICA_GROUP": "x",
                          "LIGHTKEEPER_HOST": "y"}),
    "pod, local rank 0": (SAY, {**POD, "LOCAL_RANK": "0"}),
    "pod, local rank 1": (SAY, {**POD, "LOCAL_RANK": "1"}),
    "pod with a node": (SAY, {**POD, "LIGHTKEEPER_HOST": "node"}),
    "no pidfd": (f"import os; del os.pidfd_open; {SAY}", {}),  # as on old kernels
    "off": (SAY, {"LIGHTKEEPER": "0"}),
    **{f"key {mode:o}": (f"mode = {mode}\n{WITH_A_KEY}\n{SAY}", {}) for mode in (0o644, 0o640)},
    "twice": ("import lightkeeper as w; print(w.attach() is w.attach())", {}),
    "no torch": (WITHOUT_TORCH, {}),
    "another torch": (ANOTHER_TORCH, {"LIGHTKEEPER_TORCH": "0"}),
}  # fmt: skip


@pytest.fixture(scope="module")
def ended(module_dir):
    return run_each(CASES, module_dir)


@pytest.mark.parametrize("case", [*FAILS, "no pidfd"])
def test_an_attach_that_fails_is_one_warning_and_a_reporter_that_does_nothing(ended, case):
    code, stdout, stderr, run_dir = ended[case]
    assert (code, stdout) == (0, "NullReporter\n")
    assert stderr.count("RuntimeWarning: lightkeeper is not attached") == 1
    assert not list(run_dir.iterdir())  # also where it was the sidecar that could not be started


@pytest.mark.parametrize(("case", "warnings"), [("misspelt, rank 0", 1), ("misspelt, rank 1", 0)])
def test_a_misspelt_variable_is_one_warning_of_rank_0_and_the_rank_is_attached(
    ended, case, warnings
):
    assert ended[case][:2] == (0, "Reporter\n")
    said = "nothing reads LIGHTKEEPER_MONTIOR (did you mean LIGHTKEEPER_MONITOR?)"
    assert ended[case].stderr.count(said) == warnings


@pytest.mark.parametrize(("mode", "lines"), [("644", 1), ("640", 0)])
def test_a_tls_key_that_others_can_read_is_one_warning(ended, mode, lines):
    assert ended[f"key {mode}"].stdout == "Reporter\n"
    assert ended[f"key {mode}"].stderr.count("holds a key that others can read: chmod 600") == lines


def test_warnings_as_errors_do_not_reach_training(ended):
    code, stdout, stderr, _ = ended["errors"]
    assert (code, stdout) == (0, "NullReporter\n")
    assert stderr.startswith("RuntimeWarning: lightkeeper is not attached: ")
    assert stderr.count("\n") == 1


def test_a_run_directory_that_others_may_enter_is_refused(ended):
    assert "open to others" in ended["open"].stderr
    assert not list(ended["open"].run_dir.iterdir())


def test_what_the_caller_says_wins_over_the_environment_and_the_page_is_private(ended):
    assert ended["caller"][1:3] == ("j g.1 2 h 0o600\n", "")


@pytest.mark.parametrize(
    ("case", "says"), [("pod, local rank 0", 1), ("pod, local rank 1", 0), ("pod with a node", 0)]
)
def test_a_pod_that_was_not_told_its_node_says_so_once_a_pod(ended, case, says):
    assert ended[case].stdout == "Reporter\n"
    assert ended[case].stderr.count("set LIGHTKEEPER_HOST from spec.nodeName") == says


def test_it_can_be_switched_off(ended):
    assert ended["off"][1:3] == ("NullReporter\n", "")
    assert not list(ended["off"].run_dir.iterdir())


def test_attaching_twice_gives_the_same_reporter(ended):
    assert ended["twice"][1:3] == ("True\n", "")


def test_where_there_is_no_torch_steps_and_phases_are_reported(ended):
    assert ended["no torch"][:3] == (0, "3 forward\n", "")


def test_a_torch_that_calls_nobody_back_is_one_warning(ended):
    code, stdout, stderr, _ = ended["another torch"]
    assert (code, stdout) == (0, "trains\n")
    assert stderr.count("RuntimeWarning: lightkeeper does not see what torch.compile does") == 1


def test_importing_the_package_is_light(run_dir):
    heavy = "[m for m in ('torch', 'flask', 'mmap', 'subprocess', 'ctypes') if m in sys.modules]"
    code = f"import sys, lightkeeper, lightkeeper.worker_server.wire; print({heavy})"
    assert run_python("-c", code, run_dir=run_dir).stdout == "[]\n"
