"""lightkeeper as a user has it: a wheel in an environment of its own, run in a folder of theirs."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
OURS = ("dashboards", "gate", "monitor", "trainer", "worker_server")
_HERE = Path(sysconfig.get_paths()["purelib"])


def built(kind: str, folder: Path, project: str = ".") -> Path:
    """The wheel or sdist of this tree, or of a project in it."""
    command = [sys.executable, "-P", "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    subprocess.run(command, cwd=ROOT / project, check=True, capture_output=True, timeout=120)
    [made] = folder.iterdir()
    return made


def fresh(folder: Path, *, extras: bool) -> Path:
    """The programs of a fresh environment that has, without the network, what lightkeeper needs:
    with `extras` all that is installed here, else what a bare `pip install lightkeeper` brings.
    """
    venv.create(folder, symlinks=True)
    site = Path(next(folder.glob("lib/python*/site-packages")))
    if extras:
        (site / "00-here.pth").write_text(f"{_HERE}\n")  # before an editable install needs it
    else:
        for name in sorted(_needed("lightkeeper")):
            for file in importlib.metadata.files(name) or ():
                top = file.parts[0]
                if top not in ("..", "__pycache__") and not (site / top).exists():
                    (site / top).symlink_to(_HERE / top)
    return folder / "bin"


def pip(programs: Path, *words: str | Path) -> str:
    """What pip says about that environment, without the network."""
    command = [
        sys.executable, "-P", "-m", "pip", "--python", str(programs / "python"),
        "--disable-pip-version-check", *map(str, words),
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=120
    )
    return done.stdout


_PLAIN = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation")


def install(programs: Path, *what: str | Path) -> None:
    """Wheels, or `-e` and a folder, by pip, as people do it."""
    pip(programs, "install", *_PLAIN, *what)


def uv(programs: Path, *words: str | Path) -> str:
    """What uv says, in place of pip: it takes a tenth of the time."""
    done = subprocess.run(
        [Path(sys.executable).with_name("uv"), "--no-cache", "pip", words[0], "--python",
         programs / "python", *words[1:]],
        cwd=programs, check=True, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return done.stdout


def unpack(programs: Path, *what: str | Path) -> None:
    """As `install`, where pip is not what is tested."""
    uv(programs, "install", *_PLAIN, *what)


def _needed(name: str, seen: frozenset[str] = frozenset()) -> set[str]:
    names = set[str]()
    for text in importlib.metadata.requires(name) or ():
        requirement = Requirement(text)
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if wanted and requirement.name not in seen | names:
            names |= {requirement.name, *_needed(requirement.name, seen | names)}
    return names


def strangers(folder: Path) -> Path:
    """A user's repository with packages of our names; who imports the package is not us."""
    for name in OURS:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"raise SystemExit('a stranger: {name}')\n")
    return folder


def distribution_of_a_stranger(folder: Path, name: str) -> Path:
    """A wheel as PyPI has some: one top-level package, of one of our folders' names."""
    info = f"{name}-0.0.36.dist-info"
    files = {
        f"{name}/__init__.py": f"WHOSE = 'a stranger: {name}'\n",
        f"{name}/model.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.0.36\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{file},,\n" for file in (*files, f"{info}/RECORD"))
    wheel = folder / f"{name}-0.0.36-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(file, text)
    return wheel


@dataclass(frozen=True, slots=True)
class Shell:
    """Runs words in the user's folder, which is on PYTHONPATH as well."""

    bin: Path
    folder: Path
    state: Path

    def environ(self, **more: str) -> dict[str, str]:
        kept = {
            k: v for k, v in os.environ.items()
            if not k.startswith(("LIGHTKEEPER", "TORCHFT", "PYTHON", "VIRTUAL_ENV"))
        }  # fmt: skip
        path = f"{self.bin}{os.pathsep}{kept.get('PATH', '')}"
        own = {"PATH": path, "PYTHONPATH": ".", "XDG_STATE_HOME": str(self.state)}
        return {**kept, **own, "LIGHTKEEPER_RUN_DIR": str(self.state / "run"), **more}

    def run(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.bin / words[0]), *words[1:]],
            cwd=self.folder, env=self.environ(**more), capture_output=True, text=True,
            timeout=120, check=False,
        )  # fmt: skip
