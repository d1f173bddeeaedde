"""What `import torch` starts in a rank, and what an attach sees of torch: it is imported once."""

from __future__ import annotations

import json
import os

import pytest

from lightkeeper.worker_server import wire
from tests import sidecars
from tests.nursery import nursery
from tests.worker_server.admissions import REFUSAL, FakeMonitor
from tests.worker_server.ranks import ROOT, environment, run_each

pytest.importorskip("torch")
pytestmark = pytest.mark.integration

IMPORTS = """
code = ""
def forks():  # torch calls it as it calls ours, and first: the children go on with their import
    global code
    code = child()
sys.modules["forks"] = sys.modules["__main__"]
import torch
exec(code, {"__name__": "__main__"})
"""
CHILD = """
import glob, os, subprocess, sys
pages = os.environ["LIGHTKEEPER_RUN_DIR"] + "/*.page"
before = len(glob.glob(pages))
code = "from lightkeeper.worker_server.autoload import autoload; autoload()"
subprocess.run([sys.executable, "-c", code], check=True)
print(before, len(glob.glob(pages)))
"""
HOOKS = """
import torch.distributed as dist, lightkeeper
from torch.optim import optimizer
before = dist.all_reduce
lightkeeper.attach()
print(dist.all_reduce is before, len(optimizer._global_optimizer_post_hooks))
"""
LOOP = """
import time, torch, urllib.request, lightkeeper
reporter = lightkeeper.attach()
weights = torch.nn.Linear(2, 1)
adam, other = torch.optim.AdamW(weights.parameters()), torch.optim.SGD(weights.parameters())
for step in range(5):
    weights(torch.ones(2)).sum().backward()
    if reports:
        reporter.begin_step(100 + step)
    adam.step()
    if reports:
        reporter.end_step(100 + step, committed=True)
    else:
        other.step()
while reporter.url is None:
    time.sleep(0.05)
print(urllib.request.urlopen(reporter.url + "/v1/state", timeout=20).read().decode(), end="")
"""
COMPILES = """
import torch, lightkeeper
from pathlib import Path
from lightkeeper.worker_server.rank.page.reader import PageReader
lightkeeper.attach()
tags = PageReader(next(Path(os.environ["LIGHTKEEPER_RUN_DIR"]).glob("*.page"))).tags

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
LATER = f"""
import os, sys
folder = os.environ["LIGHTKEEPER_RUN_DIR"]
for number, code in enumerate({["reports = False" + LOOP, "reports = True" + LOOP, COMPILES]!r}):
    if not os.fork():
        os.environ["LIGHTKEEPER_RUN_DIR"] = f"{{folder}}/{{number}}"
        exec(code)
        sys.stdout.flush()
        os._exit(0)
    os.wait()
"""
RANK = {"LIGHTKEEPER_ATTACH": "1", "RANK": "0", "WORLD_SIZE": "1"}


@pytest.fixture(scope="module")
def ended(module_dir):
    entry_points = module_dir / "forks-1.dist-info" / "entry_points.txt"
    entry_points.parent.mkdir()
    entry_points.write_text("[torch.backends]\nforks = forks:forks\n")
    entry_points.with_name("METADATA").write_text("Name: forks\nVersion: 1\n")
    monitor = FakeMonitor(REFUSAL)
    refused = {"LIGHTKEEPER_ADMISSION": "refuse", "LIGHTKEEPER_MONITOR": monitor.url}
    cases = {
        "rank": (CHILD, RANK),
        "refused": ("print('trains')", {**RANK, "LIGHTKEEPER_HOST": "node1", **refused}),
        "left out": (HOOKS, {"LIGHTKEEPER_TORCH": "0"}),
        "hooked": (HOOKS, {"LIGHTKEEPER_TORCH": "1"}),
    }
    path = os.pathsep.join(map(str, (module_dir, ROOT)))
    yield run_each(cases, module_dir, life=IMPORTS, PYTHONPATH=path)
    monitor.close()


@pytest.fixture(scope="module")
def later(module_dir):
    """What three ranks print that attach long after it."""
    said, errors = module_dir / "said", module_dir / "errors"
    own = environment(module_dir / "later", **sidecars.forked())
    child = nursery("torch").start(["-c", LATER], own, out=said, err=errors)
    assert child.wait() == 0, errors.read_text()
    return said.read_text().splitlines()


def test_it_attaches_a_rank_that_asks_for_it_and_not_its_children(ended):
    code, stdout, stderr, _ = ended["rank"]
    assert (code, stdout) == (0, "1 1\n"), stderr


def test_a_refused_rank_ends_out_of_it(ended):
    code, stdout, stderr, _ = ended["refused"]
    assert (code, stdout) == (75, "")
    assert stderr == (
        "lightkeeper: this rank is refused on node1 until a person releases it: node1 is "
        "quarantined by ann: ECC; ending with status 75\n"
    )


def test_torchs_part_can_be_left_out(ended):
    assert [ended[name].stdout for name in ("left out", "hooked")] == ["True 0\n", "False 1\n"]


def test_a_loop_that_says_nothing_has_its_optimizers_steps_and_one_that_reports_only_its_own(later):
    silent, reports = (wire.parse_state(json.loads(line)).step for line in later[:2])
    assert (silent.committed_step, silent.commits, silent.commit_failures) == (4, 5, 0)
    assert silent.source == "optimizer"
    assert (reports.committed_step, reports.commits) == (104, 5)


def test_a_compilation_is_tagged_while_it_lasts(later):
    assert later[2:] == [
        "before ()", "while ('compile',)", "after ()", "failed ()",
        "called as older torches do ()",
    ]  # fmt: skip
