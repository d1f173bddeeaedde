"""A package that we need is missing, broken or too old: training runs, and one line says it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lightkeeper.worker_server import run_dir as run_dirs
from lightkeeper.worker_server.rank.attach import SidecarProcess, start_sidecar
from tests.deep import crossed, only_explored
from tests.worker_server.ranks import ROOT, environment, eventually

pytestmark = pytest.mark.integration

NEEDS = ("click", "flask", "waitress", "requests", "rich", "prometheus_client", "jinja2")
"""What the command needs, or the sidecar."""
SICK = {
    "missing": "raise ModuleNotFoundError(f'No module named {__name__!r}', name=__name__)",
    "broken": "raise ImportError('undefined symbol: PyUnicode_Odd')",
    "odd": "raise SystemError('initialization\\nfailed')",
    "half": "raise AttributeError('partially initialized module')",
    "old": "__version__ = '0.18'\nclass Struct: pass",
}
TRAINS = "import sys; print('trains'); sys.exit(7)"
ATTACHES = f"""
from lightkeeper import Reporter, attach
reporter: Reporter = attach()
assert isinstance(reporter, Reporter)
reporter.begin_step(1)
{TRAINS}"""
ENTRIES = f"""
import sys, types, lightkeeper
for name in ("lightning.pytorch.callbacks", "pytorch_lightning.callbacks"):
    sys.modules[name] = sys.modules[name.rpartition(".")[0]] = types.ModuleType(name)
    sys.modules[name].Callback = type("Callback", (), {{}})
sys.modules["lightning"] = types.ModuleType("lightning")
lightkeeper.autoload()
lightkeeper.lightning_callbacks(), lightkeeper.pytorch_lightning_callbacks()
for callback in lightkeeper.fabric_callbacks():
    callback.on_after_setup(types.SimpleNamespace(global_rank=0, world_size=1), None)
{TRAINS}"""
WAYS = {
    "attach": ["-c", ATTACHES],
    "entry points": ["-c", ENTRIES],
    "no line of code": ["-m", "lightkeeper.worker_server", "-c", TRAINS],
    "run": ["-m", "lightkeeper", "run", "--", sys.executable, "-c", TRAINS],
    "run, then attach": ["-m", "lightkeeper", "run", "--", sys.executable, "-c", ENTRIES],
}


def python(words, sick, folder, run_dir, **more):
    """Run it where these packages are sick: {name: source}."""
    folder.mkdir(exist_ok=True)
    for name, source in sick.items():
        (folder / f"{name}.py").write_text(source)
    environ = environment(run_dir, RANK="0", WORLD_SIZE="1", LIGHTKEEPER_MONITOR="", **more)
    environ["PYTHONPATH"] = f"{folder}:{ROOT}"
    return subprocess.run(
        [sys.executable, *words], env=environ, cwd=folder, capture_output=True, text=True,
        timeout=100, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(("state", "way"), crossed(SICK, WAYS))
def test_without_the_wire_every_way_to_attach_leaves_training_alone(state, way, tmp_path, run_dir):
    done = python(
        WAYS[way], {"msgspec": SICK[state]}, tmp_path / "sick", run_dir, LIGHTKEEPER_ATTACH="1"
    )
    assert (done.returncode, done.stdout) == (7, "trains\n"), done.stderr
    said = done.stderr.splitlines()
    assert len(said) == (2 if way == "run, then attach" else 1)  # the launcher's, the rank's
    assert all(line.startswith("lightkeeper is not attached: ") for line in said)


@pytest.mark.parametrize(("name", "way"), crossed(NEEDS, ["run", "attach"]))
def test_what_only_the_command_or_the_sidecar_needs_stops_no_training(name, way, tmp_path, run_dir):
    done = python(WAYS[way], {name: SICK["odd"]}, tmp_path / "sick", run_dir)
    assert (done.returncode, done.stdout) == (7, "trains\n"), done.stderr
    expected = {
        "attach": [],
        "run": [
            "lightkeeper is not attached: SystemError: initialization failed"
            if name == "click"
            else "lightkeeper run: LIGHTKEEPER_MONITOR is empty: starting without asking, and "
            "nobody watches"
        ],
    }[way]
    assert done.stderr.splitlines()[: len(expected) or None] == expected


@only_explored  # make test: "entry points" above, and test_import_torch.py
def test_import_torch_is_not_stopped_by_a_broken_package_of_ours(tmp_path, run_dir):
    words = ["-c", f"import torch\n{TRAINS}"]
    sick = {"msgspec": SICK["broken"]}
    done = python(words, sick, tmp_path / "sick", run_dir, LIGHTKEEPER_ATTACH="1")
    assert (done.returncode, done.stdout) == (7, "trains\n"), done.stderr
    ours = [line for line in done.stderr.splitlines() if "lightkeeper" in line]
    assert ours == ["lightkeeper is not attached: ImportError: undefined symbol: PyUnicode_Odd"]


@pytest.mark.parametrize("way", WAYS)
def test_switched_off_it_imports_nothing_and_says_nothing(way, tmp_path, run_dir):
    done = python(
        WAYS[way], {"msgspec": SICK["broken"], "click": SICK["odd"]}, tmp_path / "sick", run_dir,
        LIGHTKEEPER_ATTACH="1", LIGHTKEEPER="0",
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (7, "trains\n", "")


@pytest.mark.parametrize("name", ["flask", "waitress", "prometheus_client"])
def test_a_sidecar_that_cannot_import_is_one_warning_that_says_why(
    name, tmp_path, run_dir, monkeypatch
):
    sick = tmp_path / "sick"
    sick.mkdir()
    (sick / f"{name}.py").write_text(SICK["missing"])
    (tmp_path / "sitecustomize.py").write_text(f"import sys; sys.path.insert(0, {str(sick)!r})")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    files, now_s = run_dirs.RankFiles(run_dir / "a.page"), [0.0]
    files.page.touch()
    companion = SidecarProcess(files, lambda files: _with(start_sidecar, files), lambda: now_s[0])
    eventually(lambda: "Error: No module" in files.log.read_text(), "it has ended")
    now_s[0] = 61.0
    with pytest.warns(RuntimeWarning, match=f"did not come up .*No module named '{name}'") as said:
        companion.look()
    companion.look()
    assert companion.settled
    assert len(said) == 1


def _with(start, files):
    launcher = start(files)
    launcher.wait(30)
    return launcher
